"""Containers as endpoints: isolation, limits, and clean-up."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sandbox import LABKIT, Sandbox, Trap, sandbox, until

from labkit.common.errors import Failed, Unsupported
from labkit.measure.endpoints import oci_container
from labkit.system import process

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


LOOK = """
import json, sys, time
from labkit.measure import topologies
from labkit.system import process
spec = topologies.Spec(endpoint="container", family=6)
with topologies.build("veth", spec) as topology:
    [pair] = topology.pairs
    client, server = pair.client, pair.server
    def output(*argv):
        ended = process.run([*client.prefix, *argv])
        return [ended.returncode, ended.stdout, ended.stderr]
    report = {
        "outputs": {word: output(*word.split()) for word in sys.argv[1:]},
        "ping": output("ping", "-n", "-c2", "-i0.2", server.address),
        "long": len(output("head", "-c3000000", "/dev/zero")[1]),
        "signal": output("sh", "-c", "kill -TERM $$")[0],
        "before": server.counters().received_bytes,
    }
    program = client.start(["sh", "-c", "while :; do echo x; sleep 0.01; done"], held=True)
    assert program.held(time.monotonic() + 20)
    report["held"] = program.output_so_far()
    program.go()
    while not program.output_so_far():
        time.sleep(0.01)
    program.hold()
    lengths = [-1, 0]
    while lengths[-1] != lengths[-2]:
        time.sleep(0.5)
        lengths.append(len(program.output_so_far()))
    program.kill()
    program.ended()
    while "sleep 0.01" in output("ps", "ax", "-o", "args")[1]:
        time.sleep(0.01)
    print(json.dumps(report))
"""


# io_uring_setup(2) has the number 425 on every architecture. LOOK splits commands at spaces, so use none.
CALL_IO_URING = "c=__import__('ctypes');print(c.CDLL(None,use_errno=True).syscall(425,1,None),c.get_errno())"


@pytest.mark.needs("root", "veth", "runc", "ping")
def test_programs_run_in_a_container(machine: Sandbox) -> None:
    parameters = (
        "hostname", "unshare --net true", "touch /etc/labkit-was-here", "no-program",
        f"{sys.executable} -I -c {CALL_IO_URING}", "cat /proc/self/status",
    )  # fmt: skip
    argv = ["unshare", "--fork", "--pid", "--kill-child", "--mount-proc", "--net", "--mount", "--"]
    before = groups()
    done = machine.run(*argv, sys.executable, "-P", "-c", LOOK, *parameters, timeout=200, code=0)
    result = json.loads(done.stdout)
    lines = result["outputs"]
    assert lines["hostname"] == [0, "client0\n", ""]
    assert "not permitted" in lines["unshare --net true"][2]  # the system call filter
    assert "Read-only" in lines["touch /etc/labkit-was-here"][2]
    assert lines["no-program"][0] == 127
    [called] = [answer for command, answer in lines.items() if CALL_IO_URING in command]
    assert called[:2] == [0, "-1 38\n"]  # ENOSYS: the filter is an allowlist
    status = dict(
        line.split(":\t") for line in lines["cat /proc/self/status"][1].splitlines() if ":\t" in line
    )
    assert status["Seccomp"] == "2"
    assert not int(status["CapEff"], 16) >> 21 & 1  # CAP_SYS_ADMIN
    assert result["ping"][0] == 0, result["ping"]
    assert result["long"] == 3000000
    assert result["signal"] == -15
    assert result["held"] == ""
    assert groups() <= before
    assert not list(machine.folder.glob("tmp/*"))


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
