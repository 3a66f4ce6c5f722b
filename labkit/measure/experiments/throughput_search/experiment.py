"""The search for the rate at which a datapath begins to lose packets: NDR and PDR of topologies, side by side.

All arms stand at once, and each round searches them one after the other, in an order that alternates (A B B A), each
with a fresh set-up; the baseline is searched twice (A/A control). A row of the part `cost` is one search for one ratio
of loss; the rows of the part `trials` are what it did, those that were repeated as well.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from labkit.common import schema, units
from labkit.common.errors import Failed, LabkitError
from labkit.common.units import many
from labkit.measure.experiments import context, survey
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.context import Event, RunContext
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.experiments.throughput_search import mlrsearch
from labkit.measure.experiments.throughput_search.conditions import Conditions, Watch, give_cpus
from labkit.measure.experiments.throughput_search.mlrsearch import Found, Result
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.experiments.throughput_search.switch_state import SwitchState
from labkit.measure.topologies.open_vswitch.switch import Switch
from labkit.measure.traffic import rates
from labkit.measure.traffic.base import Trial, Trials

METHOD, TRIAL = "search", "trial"
PART = "trials"
CALIBRATION_S, CALIBRATIONS = 0.1, 5
WITHIN_REACH = 0.8  # of the generator's own ceiling: so far it keeps the rate within 1 %
AFTER_S = 1.0  # of a trial after the search
SHARES = (0.1, 0.5, 0.9)  # of the last rate found, at which latency is measured
REPEATED = 0.2  # of all attempts: with more repeats, the rate is biased upwards (mlrsearch.attempts)
SET_UP_S = 0.3  # of an arm with its generator, about
PLANNED_S = 12.0  # of a search that ends by itself, about

# What rows have beside those of other experiments; null where it was not measured.
COLUMNS = schema.names(writer=("throughput",))

Take = Callable[[str, float | None, float, bool], tuple[Trial, Conditions]]


@dataclass(frozen=True)
class Point:
    """One round of searches with one size of frames, one number of flows and one number of pairs."""

    pairs: int
    round: int
    frame: str
    flows: int

    @property
    def name(self) -> str:
        """`64b-1000f-1-r2`"""
        return f"{self.frame}b-{self.flows}f-{self.pairs}-r{self.round}"


def points(parameters: Throughput, seed: int) -> list[Point]:
    """All points in the order in which they are measured: round by round, everything shuffled in each."""
    search = []
    for number in range(parameters.rounds):
        all_of = [
            Point(pairs, number, frame, flows)
            for pairs in parameters.pairs
            for frame in parameters.frame_bytes
            for flows in parameters.flows
        ]
        search += random.Random(f"{seed} {number}").sample(all_of, len(all_of))
    return search


def planned_s(parameters: Throughput) -> float:
    """Estimate the duration of the whole experiment in seconds."""
    usable = survey.planned(parameters)
    return survey.survey_s(parameters) + sum(
        _point_s(parameters, point, usable) for point in points(parameters, 0)
    )


def _set_up_s(usable: list[Arm]) -> float:
    return SET_UP_S * len(usable) + survey.boots_s(usable)


def _point_s(parameters: Throughput, point: Point, usable: list[Arm]) -> float:
    return _set_up_s(usable) + len(usable) * _search_s(parameters)


def _search_s(parameters: Throughput) -> float:
    settings = parameters.settings
    after_s = AFTER_S * (1 + len(SHARES) * parameters.latency)
    return min(parameters.limit_s, max(PLANNED_S, 8 * settings.sum_s)) + after_s


def run(parameters: Throughput, run_context: RunContext) -> Iterator[Event]:
    """Measure every point that has no rows yet; yield rows and progress."""
    done = run_context.done()
    usable, refused = survey.survey(parameters, run_context)
    yield from survey.refused_rows([parameters], run_context, refused, done)
    if not usable:
        return
    left = [point for point in points(parameters, run_context.seed) if point.name not in done]
    spent_s = survey.survey_s(parameters)
    total_s = spent_s + sum(_point_s(parameters, point, usable) for point in left)
    for point in left:
        yield from _measured(parameters, run_context, point, usable, (spent_s, total_s))
        spent_s += _point_s(parameters, point, usable)
    for pairs in parameters.pairs:
        yield context.stopped(pairs, f"all {many(parameters.rounds, 'round')} were searched")


def _measured(
    parameters: Throughput,
    run_context: RunContext,
    point: Point,
    usable: list[Arm],
    spent_of: tuple[float, float],
) -> Iterator[Event]:
    spent_s, total_s = spent_of
    frames = f"frames of {point.frame} bytes" if point.frame.isdigit() else f"frames of the mix {point.frame}"
    what = f"{frames}, {many(point.flows, 'flow')}, round {point.round + 1} of {parameters.rounds}"
    rng = random.Random(f"{run_context.seed} {point.name}")
    search: list[Measured] = []
    yield context.progress(f"{what}: set-up", spent_s, total_s)
    with survey.built(parameters, run_context, point.pairs, usable, rng) as (live, refused):
        search += [(arm, {**metrics, "method": METHOD}) for arm, metrics in refused]
        spent_s += _set_up_s(usable)
        of = {one.arm.label: one for one in live}
        for label in row_columns.order(run_context, point.pairs, point.round, list(of)):
            yield context.progress(f"{what}: {label}", spent_s, total_s)
            search += searched(parameters, of[label], point)
            spent_s += _search_s(parameters)
    mean = rates.mean_bytes(rates.sizes(point.frame))
    shared = dict.fromkeys(COLUMNS) | {
        "part": "cost",
        "point": point.name,
        "round": point.round,
        "frame": point.frame,
        "frame_bytes": mean,
        "flows_count": point.flows,
        "length_bytes": None,
    }
    rows = [
        row_columns.row_of(
            parameters,
            run_context,
            arm,
            point.pairs,
            {**shared, **parameters.columns_of(arm.topology), **metrics},
        )
        for arm, metrics in search
    ]
    yield context.rows(point.name, rows)


def searched(parameters: Throughput, live: LocalArm, point: Point) -> list[Measured]:
    """A search of one arm: a row for each ratio of loss, and one for each trial."""
    search: list[Measured] = []
    try:
        _search(parameters, live, point, search)
    except LabkitError as error:
        status = "unsupported" if type(error).__name__ == "Unsupported" else "failed"
        search.append((live.arm, {"status": status, "reason": str(error), "method": METHOD}))
    return search


def _search(parameters: Throughput, live: LocalArm, point: Point, search: list[Measured]) -> None:
    """Do the same and append to `search`, so that a failure does not lose the earlier measurements."""
    with ExitStack() as stack:
        generator = parameters.load_generator.trials(
            live.topology.pairs, parameters.mix_of(live.arm.topology, point.frame, point.flows)
        )
        trials = stack.enter_context(generator)
        generator_pids = frozenset(getattr(trials, "pids", ()))
        watch = Watch(live.topology.namespaces, generator_pids)
        stack.callback(watch.close)
        placed = _placed(watch, generator_pids, live.topology.switch)
        take = _taking(live, trials, watch, search)
        least_pps, line_pps = parameters.bounds(point.frame)
        reach_pps = _reach_pps(take)
        most_pps = min(reach_pps * WITHIN_REACH, line_pps or reach_pps)

        def measure(rate_pps: float, duration_s: float) -> tuple[Trial, str | None]:
            trial, conditions = take("search", rate_pps, duration_s, False)
            return trial, conditions.disturbance(trial)

        result = mlrsearch.search(
            measure, parameters.settings, parameters.loss, least_pps, most_pps, parameters.limit_s
        )
        costs = _costs(take, result.bounds, SwitchState(live.topology.switch))
        last = next((one.rate_pps for one in reversed(result.bounds) if one.rate_pps), None)
        for share in SHARES if parameters.latency and last else ():
            assert last is not None
            _after(take, f"latency at {units.percent(share)}", share * last, latency=True)
        for one in result.bounds:
            metrics, doubts = _row(one, result, parameters, point, line_pps)
            metrics |= {"datapath_scheduling": placed} | costs.get(one.rate_pps, {})
            search.append(live.measured(metrics, doubts))


def _placed(watch: Watch, generator_pids: frozenset[int], switch: Switch | None) -> str | None:
    """How the datapath's processes are scheduled; None where it has none."""
    if not watch.pids:
        return None
    cpu = min(os.sched_getaffinity(0))
    if switch is not None and not switch.kernel:
        # All senders on one CPU: one on the switch's own CPU would keep it from its packets.
        for pid in generator_pids:
            with suppress(ProcessLookupError):  # a trial tells how it ended
                os.sched_setaffinity(pid, {cpu})
    return "fifo" if give_cpus(watch.pids, cpu) else "normal"


def _taking(live: LocalArm, trials: Trials, watch: Watch, search: list[Measured]) -> Take:
    """What takes a trial, and leaves its row."""

    def take(
        phase: str, rate_pps: float | None, duration_s: float, latency: bool
    ) -> tuple[Trial, Conditions]:
        watch.begin()
        trial = trials.trial(rate_pps, duration_s, latency=latency)
        conditions = watch.end(trial)
        search.append(live.measured(_trial_row(phase, trial, conditions)))
        return trial, conditions

    return take


def _trial_row(phase: str, trial: Trial, conditions: Conditions) -> dict[str, Any]:
    disturbance = None if trial.rate_pps is None else conditions.disturbance(trial)
    latency = trial.latency
    of_latency = {} if latency is None else {
        "latency_p50_s": latency.p50_s,
        "latency_p90_s": latency.p90_s,
        "latency_p99_s": latency.p99_s,
        "latency_p999_s": latency.p999_s,
        "latency_max_s": latency.max_s,
        "latency_clock": latency.clock,
        "probes_sent_count": latency.sent_count,
        "probes_lost_count": latency.lost_count,
        "out_of_order_count": latency.reordered_count,
        "duplicated_count": latency.duplicated_count,
        "histogram": latency.histogram,
        "loop": "open",
    }  # fmt: skip
    limited = trial.rate_pps is not None and trial.generator_limited
    words = f"generator-limited: {disturbance}" if limited else disturbance and f"disturbed: {disturbance}"
    return {
        "part": PART,
        "method": TRIAL,
        "phase": phase,
        "status": "ok" if words is None else "invalid",
        "reason": words,
        "asked_pps": trial.rate_pps,
        "offered_pps": trial.offered_pps,
        "throughput_pps": trial.received_count / trial.elapsed_s,
        "offered_count": trial.offered_count,
        "sent_count": trial.sent_count,
        "received_frames_count": trial.received_count,
        "received_by": dict(trial.received_by),
        "lost_count": trial.lost_count,
        "loss_ratio": trial.loss_ratio,
        "window_s": trial.elapsed_s,
        "generator_cpu_s": trial.generator_cpu_s,
        **conditions.row(),
        **of_latency,
    }


def _reach_pps(take: Take) -> float:
    """What the generator reaches on this path. Raises Failed when it reaches nothing."""
    reached = max(take("calibration", None, CALIBRATION_S, False)[0].offered_pps for _ in range(CALIBRATIONS))
    if reached <= 0:
        raise Failed("the generator could not send a single frame")
    return reached


def _after(take: Take, phase: str, rate_pps: float, latency: bool) -> tuple[Trial, Conditions]:
    """A trial after the search; again while the machine disturbs it."""
    for _ in range(mlrsearch.REPEATS):
        trial, conditions = take(phase, rate_pps, AFTER_S, latency)
        if conditions.disturbance(trial) is None:
            break
    return trial, conditions


def _costs(take: Take, search: list[Found], state: SwitchState) -> dict[float | None, dict[str, Any]]:
    """By each rate that was found: the CPU time of the whole machine, the generator, and the datapath's processes at
    it, and of the machine per packet that arrived; what each receiver got, and what a switch counted."""
    costs: dict[float | None, dict[str, Any]] = {}
    for rate_pps in {one.rate_pps for one in search if one.rate_pps and one.upper_pps}:
        state.begin()
        trial, conditions = _after(take, "cost", rate_pps, latency=False)
        costs[rate_pps] = {
            "cpu_s": conditions.cpu_s,
            "softirq_s": conditions.softirq_s,
            "steal_s": conditions.steal_s,
            "datapath_cpu_s": conditions.datapath_cpu_s,
            "generator_cpu_s": trial.generator_cpu_s,
            "cpu_per_packet_s": conditions.cpu_s / trial.received_count if trial.received_count else None,
            "window_s": trial.elapsed_s,
            "received_by": dict(trial.received_by),
            **state.row(),
        }
    return costs


def _row(
    one: Found, result: Result, parameters: Throughput, point: Point, line_pps: float | None
) -> tuple[dict[str, Any], list[str]]:
    """The columns of what was found for one ratio of loss, and its doubts."""
    mean = rates.mean_bytes(rates.sizes(point.frame))
    settings = parameters.settings
    row: dict[str, Any] = {
        "method": METHOD,
        "loss_goal_ratio": one.loss_ratio,
        "throughput_pps": one.rate_pps,
        "throughput_bps": one.rate_pps and one.rate_pps * mean * 8,
        "lower_bound_pps": one.lower_pps,
        "upper_bound_pps": one.upper_pps,
        "most_pps": result.most_pps,
        "exceed_ratio": settings.exceed_ratio,
        "trial_s": settings.trial_s,
        "sum_s": settings.sum_s,
        "trials_count": result.trials_count,
        "repeated_count": result.repeated_count,
        "disturbed_count": result.disturbed_count,
        "search_s": result.took_s,
        "line": parameters.line().arithmetic(mean),
    }
    status, reason = _verdict(one, result, line_pps)
    if status is not None:
        row |= {"status": status, "reason": reason, "throughput_pps": None, "throughput_bps": None}
    doubts = []
    if result.repeated_count > REPEATED * result.trials_count:
        share = units.percent(result.repeated_count / result.trials_count)
        doubts.append(
            f"{share} of the attempts were repeats of disturbed trials, which biases the rate upwards"
        )
    if result.disturbed_count:
        doubts.append(
            f"{many(result.disturbed_count, 'trial')} stayed disturbed after {mlrsearch.REPEATS} repeats"
        )
    return row, doubts


def _verdict(one: Found, result: Result, line_pps: float | None) -> tuple[str | None, str | None]:
    """The status of a search that found no rate of the device, and why; None for one that did."""
    goal = f"loss of at most {units.percent(one.loss_ratio)}"
    if result.problem is not None:
        known = f"between {one.lower_pps or 0:.0f} and {one.upper_pps or result.most_pps:.0f} pps"
        return "invalid", f"{result.problem}; by then the rate with {goal} lay {known}"
    if one.rate_pps is None:
        return (
            "invalid",
            f"even {units.si(one.upper_pps, 'pps')}, the lowest load, lost more than the goal ({goal})",
        )
    if one.upper_pps is None and line_pps is not None and result.most_pps >= 0.99 * line_pps:
        return None, None  # the line itself, or the highest load that was asked for
    if one.upper_pps is None:
        return "invalid", (
            f"generator-limited: {goal} up to {units.si(one.lower_pps, 'pps')}, the most that the generator offers here"
        )
    return None, None
