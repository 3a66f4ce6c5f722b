"""The search for the rate at which a datapath begins to lose packets: NDR and PDR of topologies, side by side.

All arms exist at once. Each round searches them one after the other, in alternating order (A B B A), with a fresh set-
up. The baseline is searched twice (A/A control). A row of the part `cost` is one search for one loss ratio; rows of
the part `trials` are its trials, including repeated ones.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from labkit.common import run_folder, schema, units
from labkit.common.errors import Failed, LabkitError, Unsupported
from labkit.common.units import counted
from labkit.measure.experiments import context, profiled_runs, survey
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments.built_arm import BuiltArm
from labkit.measure.experiments.context import Event, Experiment, Progress, RunContext
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.experiments.throughput_search import mlrsearch, profiles
from labkit.measure.experiments.throughput_search.conditions import (
    Conditions,
    ConditionsMonitor,
    SwitchState,
    give_cpus,
)
from labkit.measure.experiments.throughput_search.mlrsearch import FoundRate, Result
from labkit.measure.experiments.throughput_search.outside import outside
from labkit.measure.experiments.throughput_search.parameters import HELP, Throughput
from labkit.measure.experiments.trex.devices import OUTSIDE
from labkit.measure.experiments.two_hosts import client_side
from labkit.measure.topologies.open_vswitch.switch import Switch
from labkit.measure.traffic import rates
from labkit.measure.traffic.base import Trial, Trials

METHOD, TRIAL = "search", "trial"
PART = "trials"
CALIBRATION_S, CALIBRATIONS = 0.1, 5
WITHIN_REACH = 0.8  # share of the generator's own limit up to which it keeps the rate within 1 %
FULL = 0.98  # share of a line's rate from which it is full
AFTER_S = 1.0  # seconds of a trial after the search
SHARES = (0.1, 0.5, 0.9)  # shares of the last rate found at which latency is measured
REPEATED = 0.2  # share of all attempts: with more repeats, the rate is biased upwards (mlrsearch.Attempts)
SET_UP_S = 0.3  # about: of an arm with its generator
AROUND_S = 2.0  # about: the calibration before a search, and reading what the switch counted after it
TRIES = 2.5  # about how often a trial after the search is taken, because the machine disturbed the others
# About how long a pass of a search takes that ends by itself, with some repeated trials: sums (`Settings.sum_s`), but
# at least this many seconds.
PLANNED_SUMS, PLANNED_S = 8, 4.0

# Additional columns of these rows; null where not measured.
COLUMNS = schema.names(writer=("throughput",))

# Records the row of a trial or a search as soon as it has ended, so that neither a failure nor a kill loses it.
Record = Callable[[Measured], None]
# Builds the arms of a point, searches them, and yields the label of each before.
Build = Callable[[Throughput, RunContext, "SearchPoint", list[Arm], random.Random, Record], Iterator[str]]
# Runs a trial for a phase at a rate for a time, with or without latency, or of an exact number of frames.
Take = Callable[[str, float | None, float, bool, int | None], tuple[Trial, Conditions]]


@dataclass(frozen=True)
class SearchPoint:
    """One round of searches with one frame size, one number of flows and one number of pairs."""

    pairs: int
    round: int
    frame: str
    flows: int

    @property
    def name(self) -> str:
        """`64b-1000f-1-r2`"""
        return f"{self.frame}b-{self.flows}f-{self.pairs}-r{self.round}"


def points(parameters: Throughput, seed: int) -> list[SearchPoint]:
    """Return all points in measuring order: round by round, shuffled within each."""
    search = []
    for number in range(parameters.rounds):
        all_of = [
            SearchPoint(pairs, number, frame, flows)
            for pairs in parameters.pairs
            for frame in parameters.frame_bytes
            for flows in parameters.flows
        ]
        search += random.Random(f"{seed} {number}").sample(all_of, len(all_of))
    return search


def planned_s(parameters: Throughput) -> float:
    """Estimate the duration of the whole experiment in seconds."""
    if parameters.server is not None:
        return len(points(parameters, 0)) * _point_s(parameters, [OUTSIDE])
    usable = survey.planned_arms(parameters)
    searches_s = len(points(parameters, 0)) * _point_s(parameters, usable)
    return survey.survey_s(parameters) + searches_s + _profiles_s(parameters, usable)


def _profiles_s(parameters: Throughput, usable: list[Arm]) -> float:
    count = len(parameters.pairs) * len(parameters.frame_bytes) * len(parameters.flows)
    each_s = profiled_runs.planned_s(parameters, usable) if parameters.observe else 0.0
    return count * parameters.profile_rounds * each_s


def _set_up_s(usable: list[Arm]) -> float:
    return SET_UP_S * len(usable) + survey.boots_s(usable)


def _point_s(parameters: Throughput, usable: list[Arm]) -> float:
    return _set_up_s(usable) + len(usable) * _search_s(parameters)


def _search_s(parameters: Throughput) -> float:
    settings = parameters.settings
    around_s = AROUND_S + AFTER_S * (TRIES * len(parameters.loss) + len(SHARES) * parameters.latency)
    search_s = settings.passes * max(PLANNED_S, PLANNED_SUMS * settings.sum_s)
    return min(parameters.search_limit_s, search_s) + around_s


def run(parameters: Throughput, run_context: RunContext) -> Iterator[Event]:
    """Measure every point that has no rows yet; yield rows and progress."""
    if parameters.server is not None:
        yield from _run_outside(parameters, run_context)
        return
    done = run_context.done()
    profiled_runs.check(parameters)
    usable, refused = survey.survey(parameters, run_context)
    profiled_runs.check_built(parameters)
    yield from survey.refused_rows([parameters], run_context, refused, done)
    if not usable:
        return
    done -= survey.incomplete_points(run_context, usable)
    left = _left(parameters, run_context, done)
    build = _across if parameters.has_remote_servers else _together
    begun_s = survey.survey_s(parameters)
    left_s = len(left) * _point_s(parameters, usable)
    progress = Progress(begun_s + left_s + _profiles_s(parameters, usable), begun_s)
    there = [row for row in run_folder.read_rows(run_context.folder) if row["point"] in done]
    for point in left:
        end_s = progress.done_s + _point_s(parameters, usable)
        for event in _measured(parameters, run_context, point, usable, progress, build):
            there += event.get("rows", [])
            yield event
        progress.done_s = end_s
    columns = dict.fromkeys(COLUMNS) | {"part": "cost", "vlan": parameters.vlan, "length_bytes": None}
    searched_rows = [row for row in there if row["method"] == METHOD]
    observed = [one for one in profiles.points(parameters, searched_rows, columns) if one.name not in done]
    yield from profiled_runs.measure(run_context, observed, usable, progress)
    for pairs in parameters.pairs:
        yield context.stopped_event(pairs, _all_searched(parameters))


def _all_searched(parameters: Throughput) -> str:
    return f"all {counted(parameters.rounds, 'round')} were searched"


def _left(parameters: Throughput, run_context: RunContext, done: Set[str]) -> list[SearchPoint]:
    return [point for point in points(parameters, run_context.seed) if point.name not in done]


def _run_outside(parameters: Throughput, run_context: RunContext) -> Iterator[Event]:
    """Search through a device between the ports of a server that runs elsewhere, until the server fails."""
    if not (left := _left(parameters, run_context, run_context.done())):
        return
    progress = Progress(len(left) * _point_s(parameters, [OUTSIDE]))
    yield progress.event(f"connecting to the TRex server {parameters.address}")
    with outside(parameters, run_context) as (with_line, arm):

        def build(
            parameters: Throughput,
            _run_context: RunContext,
            point: SearchPoint,
            _usable: list[Arm],
            _rng: random.Random,
            record: Record,
        ) -> Iterator[str]:
            yield arm.arm.label
            record_search(parameters, arm, point, record)

        for point in left:
            for event in _measured(with_line, run_context, point, [OUTSIDE], progress, build):
                yield event
                failed = [row["reason"] for row in event.get("rows", []) if row["status"] == "failed"]
                if failed:
                    yield context.stopped_event(point.pairs, failed[0])
                    return
    yield context.stopped_event(1, _all_searched(parameters))


def _measured(
    parameters: Throughput,
    run_context: RunContext,
    point: SearchPoint,
    usable: list[Arm],
    progress: Progress,
    build: Build,
) -> Iterator[Event]:
    frames = f"frames of {point.frame} bytes" if point.frame.isdigit() else f"frames of the mix {point.frame}"
    what = f"{frames}, {counted(point.flows, 'flow')}, round {point.round + 1} of {parameters.rounds}"
    rng = random.Random(f"{run_context.seed} {point.name}")
    mean = rates.mean_bytes(rates.sizes(point.frame))
    shared = dict.fromkeys(COLUMNS) | {
        "part": "cost",
        "point": point.name,
        "round": point.round,
        "frame": point.frame,
        "frame_bytes": mean,
        "flows_count": point.flows,
        "vlan": parameters.vlan,
        "length_bytes": None,
    }
    rows: list[run_folder.Row] = []

    def record(measured: Measured) -> None:
        arm, metrics = measured
        columns = {**shared, **parameters.columns_of(arm.topology), **metrics}
        rows.append(row_columns.row_of(parameters, run_context, arm, point.pairs, columns))
        run_context.keep_unfinished(point.name, rows[-1:])

    yield progress.event(f"{what}: set-up")
    progress.done_s += _set_up_s(usable)
    for label in build(parameters, run_context, point, usable, rng, record):
        yield progress.event(f"{what}: {label}")
        progress.done_s += _search_s(parameters)
    yield context.rows(point.name, rows)


def _together(
    parameters: Throughput,
    run_context: RunContext,
    point: SearchPoint,
    usable: list[Arm],
    rng: random.Random,
    record: Record,
) -> Iterator[str]:
    """Build all arms at once and search one after the other; yield each label before."""
    with survey.built(parameters, run_context, point.pairs, usable, rng) as (built_arms, refused):
        for arm, metrics in refused:
            record((arm, {**metrics, "method": METHOD}))
        of = {one.arm.label: one for one in built_arms}
        for label in row_columns.order(run_context, point.pairs, point.round, list(of)):
            yield label
            record_search(parameters, of[label], point, record)


def _across(
    parameters: Throughput,
    run_context: RunContext,
    point: SearchPoint,
    usable: list[Arm],
    _rng: random.Random,
    record: Record,
) -> Iterator[str]:
    """Search all arms across two hosts, and yield the label of each.

    One arm is built after the other, because the arms share the two NICs.
    """
    assert run_context.peer is not None
    of = {arm.label: arm for arm in usable}
    for label in row_columns.order(run_context, point.pairs, point.round, list(of)):
        yield label
        try:
            with client_side.across(parameters, run_context, of[label], point.pairs) as one:
                one.mark_as_replacement(parameters)
                one.compare(run_context.peer.views[usable[0].topology])
                record_search(parameters, one, point, record)
        except (Failed, Unsupported) as error:
            record((of[label], {"status": "failed", "reason": str(error), "method": METHOD}))


def record_search(parameters: Throughput, built_arm: BuiltArm, point: SearchPoint, record: Record) -> None:
    """Search one arm; record a row for each trial and for each loss ratio."""
    try:
        _search(parameters, built_arm, point, record)
    except LabkitError as error:
        record((built_arm.arm, {**row_columns.not_measured(error), "method": METHOD}))


def _search(parameters: Throughput, built_arm: BuiltArm, point: SearchPoint, record: Record) -> None:
    """Search one arm. Raises LabkitError, for example if the generator ends."""
    with ExitStack() as stack:
        mix = parameters.mix_of(built_arm.arm.topology, point.frame, point.flows)
        trials = stack.enter_context(built_arm.trials(parameters.load_generator, mix))
        generator_pids = frozenset(getattr(trials, "pids", ()))
        monitor = ConditionsMonitor(built_arm.namespaces, generator_pids, in_guests=parameters.in_guests)
        stack.callback(monitor.close)
        scheduling = _give_priority(monitor, generator_pids, built_arm.switch, in_guests=parameters.in_guests)
        take = _trial_runner(built_arm, trials, monitor, record)
        min_pps, line_pps = parameters.bounds(point.frame)
        reach_pps = _reach_pps(take, max(CALIBRATION_S, parameters.load_generator.min_trial_s))
        # Ports of TRex that fill their line keep every rate below it.
        fills = parameters.server is not None and line_pps is not None and reach_pps >= FULL * line_pps
        max_pps = min(reach_pps * (1 if fills else WITHIN_REACH), line_pps or reach_pps)

        def trial_s(rate_pps: float, duration_s: float) -> float:
            return duration_s if parameters.trial_frames is None else parameters.trial_frames / rate_pps

        def measure(rate_pps: float, duration_s: float) -> tuple[Trial, str | None]:
            trial, conditions = take(
                "search", rate_pps, trial_s(rate_pps, duration_s), False, parameters.trial_frames
            )
            return trial, conditions.disturbance(trial)

        result = mlrsearch.search(
            measure,
            parameters.settings,
            parameters.loss,
            min_pps,
            max_pps,
            parameters.search_limit_s,
            trial_s,
        )
        costs = _costs(take, result.bounds, SwitchState(built_arm.switch))
        last = next((one.rate_pps for one in reversed(result.bounds) if one.rate_pps), None)
        for share in SHARES if parameters.latency and built_arm.shares_a_clock and last else ():
            assert last is not None
            _after(take, f"latency at {units.percent(share)}", share * last, latency=True)
        for one in result.bounds:
            metrics, doubts = _row(one, result, parameters, point, line_pps)
            metrics |= {"datapath_scheduling": scheduling} | costs.get(one.rate_pps, {})
            record(built_arm.measured(metrics, doubts))


def _give_priority(
    monitor: ConditionsMonitor, generator_pids: frozenset[int], switch: Switch | None, *, in_guests: bool
) -> str | None:
    """Set how the datapath's processes are scheduled and return it; None if there are none.

    The CPUs of guests run the generator too, and several with SCHED_FIFO on one CPU would keep each other from it.
    """
    if not monitor.pids:
        return None
    if in_guests:
        return "normal"
    cpu = min(os.sched_getaffinity(0))
    if switch is not None and not switch.kernel:
        # All senders share one CPU: on the switch's own CPU one would keep it from its packets.
        for pid in generator_pids:
            with suppress(ProcessLookupError):  # the trial reports how it ended
                os.sched_setaffinity(pid, {cpu})
    return "fifo" if give_cpus(monitor.pids, cpu) else "normal"


def _trial_runner(built_arm: BuiltArm, trials: Trials, monitor: ConditionsMonitor, record: Record) -> Take:
    """Return a function that runs a trial and records its row."""

    def take(
        phase: str, rate_pps: float | None, duration_s: float, latency: bool, count: int | None
    ) -> tuple[Trial, Conditions]:
        monitor.begin()
        trial = trials.trial(rate_pps, duration_s, latency=latency, count=count)
        conditions = monitor.end(trial)
        record(built_arm.measured(_trial_row(phase, trial, conditions)))
        return trial, conditions

    return take


def _trial_row(phase: str, trial: Trial, conditions: Conditions) -> dict[str, Any]:
    disturbance = None if trial.rate_pps is None else conditions.disturbance(trial)
    latency = trial.latency
    latency_columns = {} if latency is None else {
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
        "requested_pps": trial.rate_pps,
        "offered_pps": trial.offered_pps,
        "throughput_pps": trial.received_count / trial.elapsed_s,
        "offered_count": trial.offered_count,
        "sent_count": trial.sent_count,
        "received_frames_count": trial.received_count,
        "received_by": dict(trial.received_by),
        "hops": dict(trial.hops),
        "lost_count": trial.lost_count,
        "loss_ratio": trial.loss_ratio,
        "window_s": trial.elapsed_s,
        "generator_cpu_s": trial.generator_cpu_s,
        **conditions.row(),
        **latency_columns,
    }


def _reach_pps(take: Take, trial_s: float) -> float:
    """Return the rate that the generator reaches on this path in trials of `trial_s`. Raises Failed if it is zero."""
    reached = max(take("calibration", None, trial_s, False, None)[0].offered_pps for _ in range(CALIBRATIONS))
    if reached <= 0:
        raise Failed("the generator could not send a single frame")
    return reached


def _after(take: Take, phase: str, rate_pps: float, latency: bool) -> tuple[Trial, Conditions]:
    """Run a trial after the search; repeat it while the machine disturbs it."""
    for _ in range(mlrsearch.REPEATS):
        trial, conditions = take(phase, rate_pps, AFTER_S, latency, None)
        if conditions.disturbance(trial) is None:
            break
    return trial, conditions


def _costs(take: Take, search: list[FoundRate], state: SwitchState) -> dict[float | None, dict[str, Any]]:
    """Return, for each rate found, the CPU time of the machine, the generator and the datapath at this rate.

    It also has the machine's CPU time per received packet, what each receiver got, and what a switch counted.
    """
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
    one: FoundRate, result: Result, parameters: Throughput, point: SearchPoint, line_pps: float | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the columns of the result for one loss ratio, and its doubts."""
    mean = rates.mean_bytes(rates.sizes(point.frame))
    settings = parameters.settings
    row: dict[str, Any] = {
        "method": METHOD,
        "loss_goal_ratio": one.loss_ratio,
        "throughput_pps": one.rate_pps,
        "throughput_bps": one.rate_pps and one.rate_pps * mean * 8,
        "lower_bound_pps": one.lower_pps,
        "upper_bound_pps": one.upper_pps,
        "constant_loss_ratio": one.constant_loss and one.constant_loss.loss_ratio,
        "max_pps": result.max_pps,
        "exceed_ratio": settings.exceed_ratio,
        "trial_s": settings.trial_s if parameters.trial_frames is None else None,
        "trial_frames_count": parameters.trial_frames,
        "sum_s": settings.sum_s,
        "passes": list(one.passes_pps) or None,
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
            f"{counted(result.disturbed_count, 'trial')} stayed disturbed after {mlrsearch.REPEATS} repeats"
        )
    if result.left_out_count:
        doubts.append(
            f"{result.left_out_count} of {settings.passes} passes are left out, because the generator reached no load"
        )
    if one.frames_missing_count and one.rate_pps is not None:
        doubts.append(
            "labkit cannot tell whether the same share of frames is lost at every load: that needs"
            f" {one.frames_missing_count} more frames far below the rate; use a longer limit_s, or a higher min_rate"
        )
    if 0 < one.open_count < len(one.passes_pps):
        doubts.append(
            f"{one.open_count} of {len(one.passes_pps)} passes found no rate or no upper bound, so the one in the"
            " middle is the result"
        )
    return row, doubts


def _verdict(one: FoundRate, result: Result, line_pps: float | None) -> tuple[str | None, str | None]:
    """Return the status and reason of a search without a valid rate; None for a valid one."""
    goal = f"loss of at most {units.percent(one.loss_ratio)}"
    if (loss := one.constant_loss) is not None:
        least, most = (units.si(pps, "pps") for pps in (loss.low_pps, loss.max_pps))
        low, every = (f"{100 * ratio:.2g} %" for ratio in (loss.low_loss_ratio, loss.loss_ratio))
        return "invalid", (
            f"no rate has {goal}: the path loses {low} of the frames even at loads up to {least}, and {every} on"
            f" average up to {most}"
        )
    if result.limited and one.lower_pps is not None:
        most = units.si(one.lower_pps, "pps")
        return "invalid", f"generator-limited: {goal} up to {most} in a trial; {result.problem}"
    if result.problem is not None:
        known = f"between {one.lower_pps or 0:.0f} and {one.upper_pps or result.max_pps:.0f} pps"
        return "invalid", f"{result.problem}; by then the rate with {goal} lay {known}"
    if one.rate_pps is None:
        return (
            "invalid",
            f"the lowest load, {units.si(one.upper_pps, 'pps')}, already lost more than the goal ({goal}):"
            " use a lower min_rate",
        )
    if one.upper_pps is None and line_pps is not None and (one.lower_pps or 0.0) >= FULL * line_pps:
        return None, None  # the line rate itself, or the highest requested load
    if one.upper_pps is None:
        return "invalid", (
            f"generator-limited: {goal} up to {units.si(one.lower_pps, 'pps')}, the most that the generator offers here"
        )
    return None, None


EXPERIMENT = Experiment(
    Throughput,
    HELP,
    run,
    planned_s,
    about="the packet rate at which loss begins (NDR, PDR), on any topology",
)
