"""A bisect measures, goes on after `kill -9`, and finds what was planted; its runs become a history."""

import json
import os
import signal
from pathlib import Path

import pytest
from sandbox import LABKIT, Sandbox, clean_sandbox, until

pytestmark = [pytest.mark.needs("root", "ip", "ping", "nft", "veth"), pytest.mark.exhaustive]
# unit/runner/test_bisect.py holds what it decides, without measuring

BAD = 7  # the place of the first bad one of twelve
# Good ones have rules as well: their cost is alike in all runs, unlike a round trip without them.
RULES = [f"rules {count} at server" for count in (*range(2_001, 2_001 + BAD), *range(9_996, 10_001))]
BISECT = [
    "bisect", "datapaths", "topology=veth", "protocol=ping", "duration_s=1", "omit_s=0", "rounds=1",
    "profile_rounds=1", "--json", "--fail-if", "slower>99%", "--over", "change", *RULES, "--folder",
]  # fmt: skip


def finished(folder: Path) -> dict[Path, int]:
    """Return the runs that are finished, and when their description was last written."""
    runs = folder.glob("*/*/*/run.json")
    return {run: run.stat().st_mtime_ns for run in runs if json.loads(run.read_text()).get("finished")}


def killed(machine: Sandbox, folder: Path, runs: int) -> dict[Path, int]:
    """Start the bisect, kill it with its processes when there are this many runs, and return what is finished."""
    process = machine.start(*LABKIT, *BISECT, str(folder))
    assert until(lambda: process.poll() is not None or len([*folder.glob("*/*/*/rows")]) >= runs, 300)
    assert process.poll() is None, process.communicate()[1]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    return finished(folder)


def test_a_planted_regression_is_found_although_killed_twice(tmp_path: Path) -> None:
    with clean_sandbox(tmp_path) as machine:
        folder = machine.data / "bisect"
        once, twice = killed(machine, folder, 4), killed(machine, folder, 16)
        assert once.items() <= twice.items(), "no finished run is measured again"
        done = machine.labkit(*BISECT, str(folder), timeout=600)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert (answer["first_bad"], answer["last_good"]) == (RULES[BAD], RULES[BAD - 1])
        assert len(twice) >= 14, "the kills came at two moments"
        assert twice.items() <= finished(folder).items(), "no finished run is measured again"
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
