"""A search whose generator ends in the middle: its finished trials stay as rows. A polling thread leaves its CPU."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sandbox import until

from labkit.common import run_folder
from labkit.common.errors import Failed
from labkit.measure.experiments import survey
from labkit.measure.experiments.context import RunContext
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.experiments.throughput_search import conditions, experiment, profiles
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.traffic.base import Trial

TRIALS = 1 + experiment.CALIBRATIONS + 2  # the delay, the calibration, and two of the search
DEATH = "the packet generator at client0 was killed by signal 9"


class DyingArm:
    """An arm without loss, whose generator ends after TRIALS trials."""

    arm = Arm("veth", "baseline")
    namespaces = ()
    switch = None
    shares_a_clock = False
    count = 0
    while_measured = nullcontext

    @contextmanager
    def trials(self, *_: object) -> Iterator[DyingArm]:
        yield self

    def trial(self, rate_pps: float | None, duration_s: float, **_: object) -> Trial:
        if self.count == TRIALS:
            raise Failed(DEATH)
        self.count += 1
        frames = round((rate_pps or 50e3) * duration_s)
        return Trial(
            rate_pps=rate_pps, duration_s=duration_s, offered_count=frames, sent_count=frames, received_count=frames,
            hops={}, elapsed_s=duration_s, slip_s=0.0, generator_cpu_s=0.0,
        )  # fmt: skip

    def measured(self, metrics: dict[str, Any]) -> tuple[Arm, dict[str, Any]]:
        return self.arm, {"status": "ok", **metrics}


class QueueArm(DyingArm):
    """An arm that carries 10,000 frames a second, and has a queue for those of `queue_s`."""

    def __init__(self, queue_s: float) -> None:
        self.queue_s = queue_s

    def trial(self, rate_pps: float | None, duration_s: float, **_: object) -> Trial:
        self.count = 0
        made = super().trial(rate_pps, duration_s)
        passed = min(made.offered_count, round(10e3 * (duration_s + self.queue_s)))
        drained_s = max(0.0, passed / 10e3 - duration_s)
        return dataclasses.replace(made, received_count=passed, drained_s=drained_s)

    def measured(self, metrics: dict[str, Any], doubts: Sequence[str] = ()) -> tuple[Arm, dict[str, Any]]:
        return self.arm, {"status": "ok", **metrics, "doubts": "; ".join(doubts)}


@pytest.mark.parametrize(
    ("queue_s", "trial_s", "factor", "doubt"),
    [
        (0.05, 0.2, 1.25, "a trial of 1 s at this rate lost 1"),
        (0.0, 0.2, 1.0, ""),
        (0.3, 1.0, 1.3, "a trial of 1 s at this rate had frames that arrived up to 2"),
        (0.01, 1.0, 1.0, ""),
    ],
)
def test_queue_that_holds_what_trials_send_too_much(
    queue_s: float, trial_s: float, factor: float, doubt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions.ConditionsMonitor, "give_priority", lambda *_: None)
    made, parameters = list[Measured](), Throughput(passes=1, loss=(0.0,), latency=False, trial_s=trial_s)
    experiment.search(parameters, QueueArm(queue_s), "64", 1, made.append)  # type: ignore[arg-type]
    [found] = [row for _arm, row in made if row["method"] == experiment.METHOD]
    assert found["throughput_pps"] == pytest.approx(factor * 10e3, rel=0.06)
    assert found["doubts"].startswith(doubt)
    assert bool(found["doubts"]) == bool(doubt)


@pytest.fixture
def searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Return a function that searches arms; it returns the events that were sent meanwhile, and those of its end."""

    @contextmanager
    def built(
        _parameters: object, _context: object, _pairs: object, usable: list[Arm], _rng: object
    ) -> Iterator[tuple[list[DyingArm], list[Measured]]]:
        built_arms = [DyingArm() for _ in usable]
        for one, arm in zip(built_arms, usable, strict=True):
            one.arm = arm
        yield built_arms, []

    def search(usable: list[Arm], *again: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        sent: list[dict[str, Any]] = []
        monkeypatch.setattr(survey, "survey", lambda *_: (usable, []))
        run_context = RunContext("throughput", tmp_path, 1, {}, again=frozenset(again), send=sent.append)
        events = list(experiment.EXPERIMENT.run(Throughput(rounds=1), run_context))
        return sent, [event for event in events if event["event"] == "rows" and event["rows"]]

    monkeypatch.setattr(conditions.ConditionsMonitor, "give_priority", lambda *_: None)
    monkeypatch.setattr(survey, "built", built)
    return search


def test_each_row_is_sent_as_soon_as_its_trial_has_ended(searched: Callable[..., Any]) -> None:
    """A killed labkit loses only the trial that runs; the round's event has the same rows again."""
    sent, [finished] = searched([DyingArm.arm])
    assert [event["event"] for event in sent] == ["unfinished"] * (TRIALS + 1)
    assert [row for event in sent for row in event["rows"]] == finished["rows"]
    assert {event["point"] for event in sent} == {finished["point"]}
    *kept, last = finished["rows"]
    assert [row["method"] for row in kept] == [experiment.TRIAL] * TRIALS
    assert [row["phase"] for row in kept[-2:]] == ["search"] * 2
    assert (last["method"], last["status"], last["reason"]) == (experiment.METHOD, "failed", DEATH)


def test_recovered_arm_is_searched_at_finished_points(searched: Callable[..., Any], tmp_path: Path) -> None:
    """An arm that failed in the survey has no rows at the points that were measured without it."""
    both = [DyingArm.arm, Arm("vxlan", "variant")]
    _sent, [first] = searched(both[:1])
    run_folder.write_rows(tmp_path, first["point"], first["rows"])
    assert searched(both)[1] == [], "an arm that did not fail is no reason"
    _sent, [second] = searched(both, "1-refused")
    assert second["point"] == first["point"]
    assert {row["arm"] for row in second["rows"]} == {"veth", "vxlan"}


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("name", "scheduler", "nice"),
    [("pmd-c00", os.SCHED_OTHER, -20), ("handler1", os.SCHED_FIFO, os.getpriority(os.PRIO_PROCESS, 0))],
)
def test_polling_thread_leaves_its_cpu_to_others(
    name: str, scheduler: int, nice: int, tmp_path: Path
) -> None:
    """With SCHED_FIFO, a thread that never pauses would keep all others of the switch from that CPU."""
    program = shutil.copy(shutil.which("sleep") or "", tmp_path / name)
    with subprocess.Popen([program, "60"]) as process:
        comm = Path(f"/proc/{process.pid}/comm")
        assert until(lambda: comm.read_text().strip() == name, 5)  # the name comes a moment after exec
        assert conditions.give_cpus(frozenset({process.pid}), -1)
        seen = os.sched_getscheduler(process.pid), os.getpriority(os.PRIO_PROCESS, process.pid)
        process.kill()
    assert seen == (scheduler, nice)


PARAMETERS = Throughput.of(
    {"observe": "perf_record", "profile_rounds": 2, "frame_bytes": "64,512", "loss": "0,0.005"}
)


def row(arm: str, pps: float | None, lower_pps: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "arm": arm, "pairs": 1, "frame": "64", "flows_count": 1000, "loss_goal_ratio": 0.0,
        "throughput_pps": pps, "lower_bound_pps": lower_pps, **more,
    }  # fmt: skip


def test_arms_are_observed_at_half_of_the_lowest_rate() -> None:
    rows = [row("a", 100e3), row("a", 110e3), row("a", 300e3), row("b", 200e3)]
    assert profiles.common_pps(PARAMETERS, rows, 1, "64", 1000) == 55e3
    rows = [row("a", None, 80e3), row("b", 200e3), row("c", None, None)]
    assert profiles.common_pps(PARAMETERS, rows, 1, "64", 1000) == 40e3
    for other in ({"frame": "512"}, {"loss_goal_ratio": 0.005}, {"pairs": 2}, {"flows_count": 1}):
        assert profiles.common_pps(PARAMETERS, [row("a", 1e3, **other)], 1, "64", 1000) is None


def test_sizes_with_a_rate_have_a_profile_in_each_round() -> None:
    names = [one.name for one in profiles.points(PARAMETERS)]
    assert names == ["64b-1000f-1-p0", "512b-1000f-1-p0", "64b-1000f-1-p1", "512b-1000f-1-p1"]
    assert profiles.points(Throughput.of({})) == []
    running: Any = SimpleNamespace(remembered=[row("a", None)])
    assert list(profiles.points(PARAMETERS)[0].measure(running)) == []
