"""Containers as endpoints: isolation, limits, and clean-up."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sandbox import LABKIT, Sandbox, Trap, sandbox, until

from labkit.common.errors import Failed, Unsupported
from labkit.measure import topologies
from labkit.measure.endpoints import oci_container
from labkit.system import process

pytestmark = pytest.mark.long

GROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sandbox]:
    with sandbox(tmp_path, user=False) as made:
        trap = Trap(tmp_path / "here")
        yield made
        assert not trap.imported()
        assert until(lambda: not made.processes(), 20), made.processes()


def groups() -> set[Path]:
    """Return the existing control groups of labkit's containers."""
    return {path for pattern in ("labkit/*/", "*/labkit/*/") for path in GROUPS.glob(pattern)}


# io_uring_setup(2) has the number 425 on every architecture.
CALL_IO_URING = """
import ctypes
print(ctypes.CDLL(None, use_errno=True).syscall(425, 1, None), ctypes.get_errno())
"""


@pytest.mark.needs("root", "veth", "runc", "ping")
def test_programs_run_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = groups()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with topologies.build("veth", topologies.Spec(endpoint="container", family=6)) as topology:
        [pair] = topology.pairs

        def ran(*argv: str) -> process.Ended:
            return process.run([*pair.client.prefix, *argv])

        assert ran("hostname").stdout == "client0\n"
        assert "not permitted" in ran("unshare", "--net", "true").stderr  # the system call filter
        assert "Read-only" in ran("touch", "/etc/labkit-was-here").stderr
        assert ran("no-program").returncode == 127
        called = ran(sys.executable, "-I", "-c", CALL_IO_URING)
        assert (called.returncode, called.stdout) == (0, "-1 38\n")  # ENOSYS: the filter is an allowlist
        lines = ran("cat", "/proc/self/status").stdout.splitlines()
        status = dict(line.split(":\t") for line in lines if ":\t" in line)
        assert status["Seccomp"] == "2"
        assert not int(status["CapEff"], 16) >> 21 & 1  # CAP_SYS_ADMIN
        assert ran("ping", "-n", "-c2", "-i0.2", pair.server.address).returncode == 0
        assert len(ran("head", "-c3000000", "/dev/zero").stdout) == 3_000_000
        assert ran("sh", "-c", "kill -TERM $$").returncode == -15
        program = pair.client.start(["sh", "-c", "while :; do echo x; sleep 0.01; done"], held=True)
        assert program.held(time.monotonic() + 20)
        assert program.output_so_far() == ""
        program.go()
        assert until(program.output_so_far, 20)
        program.hold()
        lengths = [-1, 0]

        def is_held() -> bool:
            lengths.append(len(program.output_so_far()))
            return lengths[-1] == lengths[-2]

        assert until(is_held, 20, step_s=0.5)
        program.kill()
        program.ended()
        assert until(lambda: "sleep 0.01" not in ran("ps", "ax", "-o", "args").stdout, 20)
    assert groups() <= before
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.needs("root", "bridge", "runc", "ping")
def test_a_killed_run_leaves_no_container(machine: Sandbox) -> None:
    words = ("topology=veth_bridge", "endpoint=container", "protocol=ping")
    before = groups()  # control groups of other experiments
    process = machine.start(*LABKIT, "run", "datapaths", *words, "duration_s=60")
    assert until(lambda: machine.pids(lambda words: {"--", "-i0.002"} <= set(words)), 60), process.poll()
    left = groups() - before
    assert left
    process.kill()
    process.communicate()
    assert until(lambda: not machine.processes(), 20), machine.processes()
    assert until(
        lambda: not any((group / "cgroup.procs").read_text() for group in left if group.exists()), 20
    )
    # The groups are empty; the next experiment removes them, unless they are so new that a program may yet enter them.
    time.sleep(oci_container.NEW_S)
    machine.rows(*words, "duration_s=1")
    assert not left & groups()


@pytest.mark.parametrize("name", ["veth_redirect_peer", "pasta"])
@pytest.mark.needs("root", "runc", "ping")
def test_datapaths_of_today_join_containers_and_can_be_changed(name: str, machine: Sandbox) -> None:
    words = (f"topology={name}", "endpoint=container", "change=mtu-1400: mtu 1400 at both", "protocol=ping")
    rows = machine.rows(*words, "rounds=1", "duration_s=1")
    assert {(row["status"], row["endpoint"], row["lost_count"]) for row in rows} == {
        ("ok", "container", 0)
    }, rows
    effects = [one["after"] for row in rows if row["change"] for one in row["changed"]]
    assert effects
    assert set(effects) == {"1400"}
    assert any(row["change"] is None for row in rows)


def test_dead_container_program_is_reported_at_once(tmp_path: Path) -> None:
    program = process.Running(["sh", "-c", "echo it goes >&2; echo $$ >$0/pid", str(tmp_path)])
    with process.all_ended([program]):
        assert not process.wait([program], time.monotonic() + 20)
        space: Any = SimpleNamespace(name="client0")
        with pytest.raises(Failed, match="client0 ended before it was ready: it goes"):
            oci_container._wait(oci_container.Container(space, tmp_path, "runc"), program)


def test_foreign_control_group_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("1-new00000-client0", "1-own00000-client0", "1-old00000-client0"):
        (tmp_path / oci_container.OURS / name).mkdir(parents=True)
    os.utime(tmp_path / oci_container.OURS / "1-old00000-client0", (1, 1))
    monkeypatch.setattr(oci_container, "GROUPS", tmp_path)
    oci_container._remove_empty_groups("own00000")
    assert [path.name for path in (tmp_path / oci_container.OURS).iterdir()] == ["1-new00000-client0"]


def test_missing_runtime_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_container, "RUNTIMES", ("no-runc", "no-crun"))
    with pytest.raises(Unsupported, match="neither is installed: "):
        oci_container.runtime()
