"""Faults of a lab VM end in one sentence within a time limit. Finished rows are kept, and nothing is left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sandbox import LABKIT, Done, Sandbox, one_sentence, rows_on_disk, sandbox, until

from labkit import live
from labkit.common.errors import BadInput, Failed
from labkit.measure import hosts

pytestmark = pytest.mark.needs("namespaces", "qemu", "lab kernel")

SHORT = ("topology=veth", "duration_s=2", "omit_s=0")
PATIENCE_S = 300  # on a busy machine, an emulated boot may take a minute


@contextmanager
def measuring(where: str, folder: Path) -> Iterator[tuple[Sandbox, subprocess.Popen[str], Path]]:
    """Start a run in a lab VM that has finished its first row and still has points to measure."""
    with sandbox(folder, user=False) as machine:
        run = folder / "run"
        process = machine.start(
            *LABKIT, "run", "datapaths", *SHORT, "rounds=30", f"where={where}", "--folder=../run"
        )
        assert until(lambda: rows_on_disk(run) or process.poll() is not None, PATIENCE_S), "no row came"
        assert process.poll() is None, process.communicate()
        yield machine, process, run


def ended(process: subprocess.Popen[str], within_s: float = 90) -> str:
    out, err = process.communicate(timeout=within_s)
    return one_sentence(Done((), process.returncode, out, err))


def programs(machine: Sandbox, name: str) -> list[int]:
    return machine.pids(lambda words: Path(words[0]).name.startswith(name))


def nothing_left(machine: Sandbox) -> bool:
    return until(lambda: not machine.processes(), 20)


@pytest.mark.exhaustive
def test_killed_virtiofsd(lab_kernel: str, tmp_path: Path) -> None:
    """test_vm_lifetimes.py kills QEMU."""
    with measuring(f"vm:{lab_kernel}", tmp_path) as (machine, process, run):
        os.kill(programs(machine, "virtiofsd")[0], signal.SIGKILL)
        words = ended(process)
        assert "its lab VM" in words
        assert "to continue" in words
        assert rows_on_disk(run)
        assert nothing_left(machine)


@pytest.mark.exhaustive
def test_hanging_vm(lab_kernel: str, tmp_path: Path) -> None:
    """test_lab_vm.py has one that is silent."""
    with measuring(f"vm:{lab_kernel}", tmp_path) as (machine, process, run):
        os.kill(programs(machine, "qemu")[0], signal.SIGSTOP)
        begun = time.monotonic()
        assert "hangs" in ended(process)
        assert time.monotonic() - begun < 60
        assert rows_on_disk(run)
        assert nothing_left(machine)


def test_out_of_memory_read_only_files_and_a_kernel_panic(full_kernel: str, tmp_path: Path) -> None:
    """All in one lab VM, which the panic ends.

    The guest's kernel kills what takes too much memory: a program at an endpoint, or the experiment itself. What
    virtiofsd serves is the only way to this machine's disk; the guest's own view of it is a copy.
    """
    where = f"vm:{full_kernel},memory_mib=512,profile=tracing,modules=ipvlan"
    hog = "hogs = []\nwhile True: hogs.append(bytes([1]) * (1 << 22))"
    script = "mount -t virtiofs root /mnt && cat /mnt/etc/os-release >/dev/null && touch /mnt/var/tmp/labkit-was-here"
    with hosts.leasing(tmp_path, print) as lease:
        lease(where)
        with live.build("veth", where=where) as net:
            with pytest.raises(Failed, match="SIGKILL"):
                net.client0.run("python3", "-c", hog, timeout_s=PATIENCE_S)
            assert net.client0.run("true") == ""
            with pytest.raises(Failed, match="out of memory"):
                net.client0.run("sh", "-c", "echo 1000 >/proc/1/oom_score_adj; exec python3 -c '" + hog + "'",
                                timeout_s=PATIENCE_S)  # fmt: skip
        assert not lease(where), "the lab VM itself is as good as before"
        with live.build("veth", where=where) as net:
            assert net.client0.run("uname", "-r").strip() == full_kernel
            with pytest.raises(Failed, match="Read-only file system"):
                net.client0.run("sh", "-c", script)
            with pytest.raises(Failed, match="Kernel panic") as error:
                net.client0.run("sh", "-c", "echo c >/proc/sysrq-trigger")
            assert "its lab VM" in str(error.value)
    assert not Path("/var/tmp/labkit-was-here").exists()


def test_missing_module(lab_kernel: str) -> None:
    with pytest.raises(BadInput, match="no_such_thing"):
        live.build("veth", where=f"vm:{lab_kernel},modules=no_such_thing")
