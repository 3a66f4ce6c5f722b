"""A bisect measures, goes on after `kill -9`, and finds what was planted; its runs become a history."""

import json
import os
import signal
from pathlib import Path

import pytest
from sandbox import LABKIT, Sandbox, clean_sandbox, until

pytestmark = [pytest.mark.needs("root", "ip", "ping", "nft", "veth"), pytest.mark.alone]

RULES = [f"rules {count} at server" for count in (1, 2, 10_000)]
BISECT = [
    "bisect", "datapaths", "topology=veth", "protocol=ping", "duration_s=1", "omit_s=0", "rounds=1",
    "profile_rounds=1", "--json", "--fail-if", "slower>99%", "--over", "change", *RULES, "--folder",
]  # fmt: skip


def killed(machine: Sandbox, folder: Path, runs: int) -> None:
    """Start the bisect, and kill it with its processes as soon as there are this many runs."""
    process = machine.start(*LABKIT, *BISECT, str(folder))
    assert until(lambda: process.poll() is not None or len([*folder.glob("*/*/*/rows")]) >= runs, 120)
    assert process.poll() is None, process.communicate()[1]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)


def test_a_planted_regression_is_found_although_killed_twice(tmp_path: Path) -> None:
    with clean_sandbox(tmp_path) as machine:
        folder = machine.data / "bisect"
        for runs in (2, 8):
            killed(machine, folder, runs)
        done = machine.labkit(*BISECT, str(folder), timeout=600)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert (answer["first_bad"], answer["last_good"]) == (RULES[2], RULES[1])
        assert {step["word"] for step in answer["steps"]} == {"worse", "not worse"}
        assert answer["why"], "both ends are explained, or it says why not"
        # The runs are ordinary ones: they can be compared and added to a history.
        sides = [str(folder / "answer" / side) for side in ("good", "bad")]
        assert machine.labkit("compare", *sides, "--fail-if", "slower>20%").returncode == 3
        assert machine.labkit("track", "add", *sides).returncode == 0
        report = json.loads(machine.labkit("track", "report", "--json").stdout)
        [latency] = [
            one for one in report["series"] if (one["arm"], one["metric"]) == ("candidate", "latency_p50_s")
        ]
        assert latency["points_count"] >= 6
