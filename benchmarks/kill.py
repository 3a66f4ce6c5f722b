"""Measure how long the kernel takes to end an experiment with 128 pairs after kill -9 of its parent process."""

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.promise import LABKIT, ROOT, NotMeasuredError, Promise, note, python
from benchmarks.set_up import all_gone
from labkit.measure.hosts import local
from labkit.system.machine.cpu_time import descendants, process_stats

PAIRS = 128
START_S = 120.0
# The flows exist and send almost nothing, because their traffic does not matter here.
PARAMETERS = ("topology=veth_bridge", f"pairs={PAIRS}", "rate_bps=10000", "duration_s=600", "omit_s=0")


def promises(_quick: bool) -> Iterator[Promise]:
    """Yield the seconds until the last process has ended, and until the last namespace is gone, for information."""
    note(f"kill -9 with {PAIRS} pairs")
    with tempfile.TemporaryDirectory() as scratch, _last_in_line() as line:
        argv = [*LABKIT, "run", "datapaths", *PARAMETERS, "--folder", f"{scratch}/run"]
        output = Path(scratch) / "output"
        with output.open("wb") as file, subprocess.Popen(argv, cwd=ROOT, stdout=file, stderr=file) as owner:
            try:
                pids = _built(owner, output)
            finally:
                owner.kill()
                killed = time.monotonic()
            _ended(pids)
            processes_s = time.monotonic() - killed
            line.communicate(b"go\n")
            namespaces_s = time.monotonic() - killed
    what = f"kill -9 of the owner of {PAIRS} pairs to all gone"
    yield Promise(
        what, f"{processes_s:.2f} s", more=f"{len(pids)} processes; namespaces after {namespaces_s:.2f} s"
    )


def _built(owner: subprocess.Popen[bytes], lines: Path) -> list[int]:
    """Return the number of open descriptors of all processes below the owner, once every flow has both ends."""
    deadline = time.monotonic() + START_S
    while True:
        if owner.poll() is not None or time.monotonic() > deadline:
            last = "".join(lines.read_text().strip().splitlines()[-1:])
            raise NotMeasuredError(f"{PAIRS} flows did not come to stand within {START_S:.0f} s: {last}")
        below = descendants(owner.pid)
        if sum(name == "iperf3" and pid in below for pid, name, _ in process_stats()) == 2 * PAIRS:
            return [os.pidfd_open(pid) for pid in below]
        time.sleep(0.2)


def _ended(pidfds: list[int]) -> None:
    for descriptor in pidfds:
        select.select([descriptor], [], [], START_S)
        os.close(descriptor)


def _last_in_line() -> subprocess.Popen[bytes]:
    """Start a process that ends on request, after the kernel has removed all namespaces released before."""
    argv = [*local.prefix(), *python("-m", "benchmarks.kill")]
    line = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert line.stdout is not None
    line.stdout.readline()
    return line


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.readline()
    all_gone()
