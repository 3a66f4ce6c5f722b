"""A machine-wide sysctl as a change: it must be allowed by name, is set only while its arm is measured, and is always
restored."""

import os
import signal
import sys
from pathlib import Path

import pytest
from sandbox import LABKIT, Sandbox, machine_fixture, until

from labkit.common.errors import Unsupported
from labkit.system import netlink
from labkit.system.machine import sysctl_journal

NAME = "net.ipv4.tcp_notsent_lowat"  # a namespaced sysctl that stands in for a machine-wide one
CHANGE = f"change=wait: machine_sysctl {NAME}=131072"
HELD = """
import os, sys, time
from labkit.system import netlink
from labkit.system.machine import sysctl_journal
from pathlib import Path
sysctl_journal.JOURNAL = Path(sys.argv[1])
with sysctl_journal.changed({sys.argv[2]: "131072"}, os.open("/proc/self/ns/net", os.O_RDONLY)):
    print("set", flush=True)
    time.sleep(60)
"""

pytestmark = [pytest.mark.long, pytest.mark.needs("root", "iperf3", "ip", "ping", "veth", "bridge")]

machine = machine_fixture("module", user=False)


def value(machine: Sandbox) -> str:
    return machine.run("sysctl", "-n", NAME).stdout.strip()


def test_refused_unless_allowed_by_name(machine: Sandbox) -> None:
    done = machine.labkit("run", "datapaths", CHANGE)
    assert done.returncode == 2
    assert "LABKIT_ALLOW=machine_sysctl" in done.stderr


def test_set_during_its_arm_and_restored(machine: Sandbox) -> None:
    before = value(machine)
    words = (CHANGE, "slices=1", "whole_runs=0")
    rows = machine.rows(*words, LABKIT_ALLOW="machine_sysctl")
    [effect] = next(row["changed"] for row in rows if row["change"])
    assert (effect["at"], effect["setting"], effect["after"]) == ("machine", NAME, "131072")
    assert effect["before"] == before != "131072"
    assert value(machine) == before


def test_next_run_restores_a_killed_owners_value(
    machine: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, before = tmp_path / "journal", value(machine)
    held = machine.start(sys.executable, "-c", HELD, str(journal), NAME)
    assert held.stdout is not None
    assert held.stdout.readline() == "set\n"
    assert value(machine) == "131072"
    held.send_signal(signal.SIGKILL)
    held.communicate()
    assert value(machine) == "131072"
    monkeypatch.setattr(sysctl_journal, "JOURNAL", journal)
    netns = os.open(f"/proc/{machine.keeper.pid}/ns/net", os.O_RDONLY)
    try:
        with netlink.inside(netns):
            assert sysctl_journal.restore_leftovers() == [NAME]
    finally:
        os.close(netns)
    assert value(machine) == before
    assert sysctl_journal.restore_leftovers() == []


@pytest.mark.long
def test_guard_restores_after_a_killed_run(machine: Sandbox) -> None:
    before = value(machine)
    # With this seed the changed arm is measured first.
    words = ["run", "datapaths", CHANGE, "slices=0", "duration_s=30", "omit_s=0", "seed=1"]
    run = machine.start(*LABKIT, *words, LABKIT_ALLOW="machine_sysctl")
    assert until(lambda: value(machine) != before, 120, 0.1)
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    assert until(lambda: value(machine) == before, 120, 0.1)


def test_second_change_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysctl_journal, "JOURNAL", tmp_path / "journal")
    monkeypatch.setattr(sysctl_journal, "GRACE_S", 0.1)
    netns = os.open("/proc/self/ns/net", os.O_RDONLY)
    name = "net.core.somaxconn"
    now = Path("/proc/sys/net/core/somaxconn").read_text().strip()
    try:
        with (
            sysctl_journal.changed({name: now}, netns),
            pytest.raises(Unsupported, match="another labkit process is changing"),
            sysctl_journal.changed({name: now}, netns),
        ):
            pass
    finally:
        os.close(netns)


def test_foreign_journal_writes_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x"
    target.write_text("mine")
    journal = tmp_path / "journal"
    journal.write_text('{"name":"kernel.core_pattern","value":"|x"}\n{"name":"../x","value":"theirs"}\n')
    monkeypatch.setattr(sysctl_journal, "JOURNAL", journal)
    monkeypatch.setattr(sysctl_journal, "ROOT", tmp_path)
    assert sysctl_journal.restore_leftovers() == []
    assert target.read_text() == "mine"
