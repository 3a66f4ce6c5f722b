"""The search for the rate at which a datapath begins to lose packets: NDR and PDR of topologies, side by side.

All arms exist at once. Each round searches them one after the other, in alternating order (A B B A), with a fresh set-
up. The baseline is searched twice (A/A control). A row of the part `cost` is one search for one loss ratio; rows of
the part `trials` are its trials, including repeated ones.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from labkit.common import units
from labkit.common.errors import Failed
from labkit.common.units import counted
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.built_arm import BuiltArm
from labkit.measure.experiments.measurement_point import Built, Load, MeasurementPoint, Record
from labkit.measure.experiments.measuring_loop import Plan, Running, Stages, shuffled
from labkit.measure.experiments.rows import OUTSIDE, Arm
from labkit.measure.experiments.throughput_search import mlrsearch, profiles
from labkit.measure.experiments.throughput_search.conditions import Conditions, ConditionsMonitor, upcalls
from labkit.measure.experiments.throughput_search.mlrsearch import FoundRate, Result
from labkit.measure.experiments.throughput_search.outside import OutsideArm, outside
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.topologies.open_vswitch.switch import Switch
from labkit.measure.traffic import rates
from labkit.measure.traffic.base import Trial, Trials

METHOD, TRIAL = profiles.SEARCH, "trial"
PART = "trials"
CALIBRATION_S, CALIBRATIONS = 0.1, 5
DELAY_FRAMES = 10  # that show the delay of the path: too few to wait in a queue, and not all of them are lost
WITHIN_REACH = 0.8  # share of the generator's own limit up to which it keeps the rate within 1 %
FULL = 0.98  # share of a line's rate from which it is full
AFTER_S = 1.0  # seconds of a trial after the search
QUEUED = 0.02  # share of its frames: a greater loss beyond the goal shows that queues held the excess of shorter trials
DRAINED = 0.05  # share of its time: frames that arrive for longer after it show that queues held its excess
SHARES = (0.1, 0.5, 0.9)  # shares of the last rate found at which latency is measured
REPEATED = 0.2  # share of all attempts: with more repeats, the rate is biased upwards (mlrsearch.Attempts)
AROUND_S = 2.0  # about: the calibration before a search, and reading what the switch counted after it
TRIES = 2.5  # about how often a trial after the search is taken, because the machine disturbed the others
# About how long a pass of a search takes that ends by itself, with some repeated trials: sums (`Settings.sum_s`), but
# at least this many seconds.
PLANNED_SUMS, PLANNED_S = 8, 4.0

# Runs a trial for a phase at a rate for a time, with or without latency, or of an exact number of frames.
Take = Callable[[str, float | None, float, bool, int | None], tuple[Trial, Conditions]]
EachDirection = Callable[[Trial], dict[str, float]]  # returns what arrived in each direction, as columns


@dataclass(frozen=True)
class Search(Load):
    """Frames of a size in a number of flows: a trial of an arm is a search, and has a row for each trial frame rate and
    for each loss ratio."""

    parameters: Throughput
    frame: str = "64"
    flows: int = 1

    method: ClassVar[str] = METHOD
    keeps_rows: ClassVar[bool] = True

    def columns(self, _arm: Arm) -> dict[str, Any]:
        """Return the columns of the frames and flows, and those that describe a switch."""
        return profiles.columns(self.parameters, self.frame, self.flows)

    def trial_s(self, pairs: int) -> float:
        parameters, settings = self.parameters, self.parameters.settings
        around_s = AROUND_S + AFTER_S * (TRIES * len(parameters.loss) + len(SHARES) * parameters.latency)
        search_s = settings.passes * max(PLANNED_S, PLANNED_SUMS * settings.sum_s)
        return min(parameters.search_limit_s, search_s) + around_s

    def trial(self, built_arm: BuiltArm, artefacts: Path, record: Record) -> None:
        """Search one arm. Raises LabkitError, for example if the generator ends."""
        parameters = self.parameters
        if isinstance(built_arm, OutsideArm):
            parameters = built_arm.with_line(parameters)
        search(parameters, built_arm, self.frame, self.flows, record)


@dataclass(frozen=True)
class OutsidePoint(MeasurementPoint):
    """A search through a device between the ports of a server that runs elsewhere. All end when the server fails."""

    parameters: Throughput

    def measure(self, running: Running) -> Stages:
        """Connect to the server if that is not yet done, and search."""
        if not running.is_open(OUTSIDE):
            yield f"connecting to the TRex server {self.parameters.address}", 0.0
        yield from super().measure(running)
        if failed := [row["reason"] for row in running.rows if row["status"] == "failed"]:
            running.stop(self, failed[0])

    @contextmanager
    def built(self, running: Running, _rng: random.Random) -> Iterator[Built]:
        """Take the server's ports, which all points share."""
        yield [running.opened(OUTSIDE, lambda: outside(self.parameters, running.run_context))], []


def points(parameters: Throughput, seed: int) -> list[MeasurementPoint]:
    """Return all points in measuring order: round by round, shuffled within each."""
    result: list[MeasurementPoint] = []
    cases = [*itertools.product(parameters.pairs, parameters.frame_bytes, parameters.flows)]
    for number, (pairs, frame, flows) in shuffled(parameters.rounds, seed, cases):
        frames = f"frames of {frame} bytes" if frame.isdigit() else f"frames of the mix {frame}"
        what = f"{frames}, {counted(flows, 'flow')}, round {number + 1} of {parameters.rounds}"
        load = Search(parameters, frame=frame, flows=flows)
        given = f"{frame}b-{flows}f-{pairs}-r{number}", pairs, number, [load], what
        result.append(
            MeasurementPoint(*given) if parameters.server is None else OutsidePoint(*given, parameters)
        )
    return result


def plan(parameters: Throughput, seed: int) -> Plan:
    """Return the plan of the experiment; `seed` decides the random orders."""
    observed = profiles.points(parameters)
    finished = f"all {counted(parameters.rounds, 'round')} were searched"
    arms = None if parameters.server is None else [OUTSIDE]
    return Plan(
        parameters,
        [*points(parameters, seed), *observed],
        finished,
        arms=arms,
        remembers=lambda row: bool(row["method"] == METHOD),
    )


def search(parameters: Throughput, built_arm: BuiltArm, frame: str, flows: int, record: Record) -> None:
    """Search one arm; record a row for each trial and for each loss ratio. Raises LabkitError."""
    parameters = parameters.for_topology(built_arm.arm.topology)
    with ExitStack() as stack:
        mix = parameters.mix(frame, flows)
        trials = stack.enter_context(built_arm.trials(parameters.load_generator, mix, parameters.direction))
        pids = frozenset(getattr(trials, "pids", ()))
        monitor = ConditionsMonitor(built_arm.namespaces, pids, in_guests=parameters.in_guests)
        stack.callback(monitor.close)
        scheduling = monitor.give_priority(built_arm.switch)
        each_direction = partial(_each_direction, parameters, built_arm, rates.mean_bytes(mix.frame_bytes))
        take = _trial_runner(built_arm, trials, monitor, record, each_direction)
        min_pps, line_pps = parameters.bounds(frame)
        if parameters.load_generator.exact_counts:
            take("delay", None, CALIBRATION_S, False, DELAY_FRAMES)
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
        costs = _costs(take, result.bounds, built_arm.switch, each_direction)
        last = next((one.rate_pps for one in reversed(result.bounds) if one.rate_pps), None)
        for share in SHARES if parameters.latency and built_arm.shares_a_clock and last else ():
            assert last is not None
            _after(take, f"latency at {units.percent(share)}", share * last, latency=True)
        for one in result.bounds:
            metrics, doubts = _row(one, result, parameters, frame, line_pps)
            doubts += getattr(trials, "doubts", ())
            cost, lost_share, drained_s = costs.get(one.rate_pps, ({}, 0.0, 0.0))
            is_shorter = one.rate_pps and trial_s(one.rate_pps, parameters.settings.trial_s) < AFTER_S
            after = ""
            if is_shorter and lost_share > one.loss_ratio + QUEUED:
                after = f"lost {units.percent(lost_share)} of the frames"
            elif drained_s > DRAINED * AFTER_S:
                after = f"had frames that arrived up to {units.si(drained_s, 's')} after it"
            if after:
                held = "the path's queues held the excess of the search's trials, or the path became slower"
                doubts.append(f"a trial of {AFTER_S:g} s at this rate {after}: {held}: use a longer trial_s")
            metrics |= {"datapath_scheduling": scheduling} | cost
            record(built_arm.measured(metrics, doubts))


def _each_direction(
    parameters: Throughput, built_arm: BuiltArm, frame_bytes: float, trial: Trial
) -> dict[str, float]:
    """Return what arrived in each direction. Probes beside the load have another length, so their trials have none."""
    if trial.latency is not None or not trial.elapsed_s:
        return {}
    counts = {parameters.direction: trial.received_count}
    if parameters.direction == "both":
        clients = {pair.client.name for pair in built_arm.pairs}
        reverse_count = sum(count for name, count in trial.received_by.items() if name in clients)
        counts = {"forward": trial.received_count - reverse_count, "reverse": reverse_count}
    return {f"{name}_bps": 8 * frame_bytes * count / trial.elapsed_s for name, count in counts.items()}


def _trial_runner(
    built_arm: BuiltArm,
    trials: Trials,
    monitor: ConditionsMonitor,
    record: Record,
    each_direction: EachDirection,
) -> Take:
    """Return a function that runs a trial and records its row."""

    def take(
        phase: str, rate_pps: float | None, duration_s: float, latency: bool, count: int | None
    ) -> tuple[Trial, Conditions]:
        monitor.begin()
        trial = trials.trial(rate_pps, duration_s, latency=latency, count=count)
        conditions = monitor.end(trial)
        record(built_arm.measured(_trial_row(phase, trial, conditions) | each_direction(trial)))
        return trial, conditions

    return take


def _trial_row(phase: str, trial: Trial, conditions: Conditions) -> dict[str, Any]:
    words = None if trial.rate_pps is None else conditions.problem(trial)
    return {
        "part": PART,
        "method": TRIAL,
        "phase": phase,
        "status": "ok" if words is None else "invalid",
        "reason": words,
        **trial.columns,
        "sent_count": trial.sent_count,
        "received_by": dict(trial.received_by),
        "hops": dict(trial.hops),
        **conditions.row(),
        **({} if trial.latency is None else trial.latency.columns),
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


def _costs(
    take: Take, search: list[FoundRate], switch: Switch | None, each_direction: EachDirection
) -> dict[float | None, tuple[dict[str, Any], float, float]]:
    """Return, for each rate found, the CPU time of the machine, the generator and the datapath at this rate, the share
    of the frames that a trial lost, and `Trial.drained_s` (both 0: the machine disturbed it, or nobody knows).

    It also has the machine's CPU time per received packet, what each receiver and each direction got, and what a switch
    counted.
    """
    costs: dict[float | None, tuple[dict[str, Any], float, float]] = {}
    for rate_pps in {one.rate_pps for one in search if one.rate_pps and one.upper_pps}:
        counted = upcalls(switch)
        trial, conditions = _after(take, "cost", rate_pps, latency=False)
        is_valid = conditions.disturbance(trial) is None
        cost = {
            "cpu_s": conditions.cpu_s,
            "softirq_s": conditions.softirq_s,
            "steal_s": conditions.steal_s,
            "datapath_cpu_s": conditions.datapath_cpu_s,
            "generator_cpu_s": trial.generator_cpu_s,
            "sent_burst_frames": trial.burst_frames,
            "cpu_per_packet_s": conditions.cpu_s / trial.received_count if trial.received_count else None,
            "window_s": trial.elapsed_s,
            "received_by": dict(trial.received_by),
            **each_direction(trial),
            **counted(),
        }
        known = (trial.loss_ratio, trial.drained_s or 0.0) if is_valid else (0.0, 0.0)
        costs[rate_pps] = cost, *known
    return costs


def _row(
    one: FoundRate, result: Result, parameters: Throughput, frame: str, line_pps: float | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the columns of the result for one loss ratio, and its doubts."""
    mean = rates.mean_bytes(rates.sizes(frame))
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
    goal = f"loss of at most {units.exact_percent(one.loss_ratio)}"
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
        needs = "" if result.limited else ": it needs a longer limit_s, a larger width or a quieter machine"
        return "invalid", f"{result.problem}; by then the rate with {goal} lay {known}{needs}"
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


EXPERIMENT = measuring_loop.experiment(
    Throughput, plan, about="the packet rate at which loss begins (NDR, PDR), on any topology"
)
