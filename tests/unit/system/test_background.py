"""The CPU time of other programs: of long ones, and of those that end before anybody sees them."""

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from sandbox import output

from labkit.system.machine import background
from labkit.system.machine.background import Process


def test_time_of_each_program_counts_once() -> None:
    """A shell's child used 2 s before the first sample and 1 s more before it ended; others ended unseen in 3 s.

    A program of 1000 s ends after its parent: process 1 inherits its time. A number is used again.
    """
    init, make = Process(0, "init", 5.0, 9.0), Process(1, "make", 0.0, 0.0)
    children = {(1, 0): init, (2, 0): Process(1, "sh", 1.0, 4.0), (3, 7): Process(2, "cc1", 2.0, 0.0)}
    of_make = {(2, 0): make, (3, 0): Process(2, "sh", 0.0, 0.0), (4, 0): Process(3, "server", 1000.0, 0.0)}
    left = {(1, 0): Process(0, "init", 5.0, 1009.0), (2, 0): make}
    again = {(1, 0): Process(0, "init", 0.0, 50.0), (3, 9): Process(1, "new", 1.0, 0.0)}
    for before, now, used in (
        (
            children,
            {(1, 0): init, (2, 0): Process(1, "sh", 1.5, 10.0)},
            {("sh", False): 0.5, ("sh", True): 4.0},
        ),
        ({(1, 0): init, **of_make}, left, {}),
        (
            {(1, 0): Process(0, "init", 0.0, 0.0), (3, 7): Process(1, "old", 50.0, 0.0)},
            again,
            {("new", False): 1.0},
        ),
    ):
        total_s, by_name = background.used(before, now)
        assert total_s == pytest.approx(sum(used.values()))
        assert {name: time_s for name, time_s in by_name.items() if time_s} == pytest.approx(used)


def test_own_programs_are_left_out() -> None:
    """The other program counts as somebody else's because its parent is not this process."""
    orphan = "import os, time; os.fork() and os._exit(0); os.setsid(); end = time.time() + 2"
    named = "open('/proc/self/comm', 'w').write('a-busy-program')"
    code = f"{orphan}; {named}\nwhile time.time() < end: pass"
    watch = background.Background()
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pass
    watch.sample(0.5)  # the other program ends before the report
    time.sleep(2.2)
    shares = {one["name"]: one["cpu_share"] for one in watch.report()}
    assert "a-busy-program" in shares
    assert all(0 < share <= 1 for share in shares.values())


def test_programs_of_a_part_that_is_continued_stay() -> None:
    watch = background.Background()
    watch._most = {"make": 0.2, "sh": 0.001}
    earlier = [{"name": "cc1", "cpu_share": 0.9}, {"name": "make", "cpu_share": 0.1}]
    report = [(one["name"], one["cpu_share"]) for one in watch.report(earlier)]
    assert [one for one in report if one[0] in ("cc1", "make", "sh")] == [("cc1", 0.9), ("make", 0.2)]


# Starts a shell command that is not a child of this process, and stops and continues all of it.
BESIDE = """
def beside(command):
    out = subprocess.run(["setsid", "--fork", "sh", "-c", "echo $$; exec >/dev/null; " + command], stdout=-1, text=True)
    return int(out.stdout)
"""


def watched(body: str) -> Any:
    """Return what a program prints that is alone with its relatives in a PID namespace."""
    lines = (
        "import json, os, signal, subprocess, sys, time",
        "from labkit.system.machine.background import Background",
        BESIDE,
        body,
    )
    # The namespace's first process is the parent of all, so that the watching one has relatives that are not its own.
    first = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', sys.argv[1]]).returncode)"
    alone = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", first]
    return json.loads(output([*alone, "\n".join(lines)], 120))


@pytest.mark.long
@pytest.mark.needs("root", "namespaces")
def test_load_of_short_programs_in_rounds_of_one_side_is_seen() -> None:
    """Each lives for a millisecond, so that no sample finds it."""
    body = """
group = beside("while :; do ip link; ip link; sleep 0.03; done")
watch, shares = Background(), [[], []]
for number in range(8):
    os.killpg(group, (signal.SIGSTOP, signal.SIGCONT)[number % 2])
    watch.share()
    time.sleep(1)
    shares[number % 2].append(watch.share())
os.killpg(group, signal.SIGKILL)
print(json.dumps([shares, watch.report()]))
"""
    (quiet, loaded), programs = watched(body)
    assert max(quiet) < 0.01
    assert min(loaded) > max(0.005, 2 * max(quiet))
    assert max(loaded) < 0.5
    assert programs[0]["name"].endswith(" started by sh")


@pytest.mark.needs("root", "namespaces")
def test_programs_of_a_shared_lab_vm_are_left_out() -> None:
    """Another process has booted the lab VM whose sockets are in a folder; its command line has the folder."""
    body = """
beside(f"{sys.executable} -c 'while True: pass' /tmp/labkit-scratch")
time.sleep(0.3)
both = [Background(), Background("/tmp/labkit-scratch")]
time.sleep(1)
print(json.dumps([one.share() for one in both]))
"""
    counted, left_out = watched(body)
    assert left_out < 0.5 * counted
