"""A stateless load test with TRex, as operators of networks make them: a warm-up, a linear ramp to a share of the
line's rate, and a hold; it ends as soon as the device loses more than a limit.

The ramp is a staircase. After each step the traffic rests, so that sent and received are exact counts and nothing that
is on its way is taken for lost. Rates are counted over wall time while a step runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from labkit.common import units
from labkit.common.errors import BadInput, LabkitError
from labkit.common.schema import TARGET_HELD
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.changes import SOURCES
from labkit.measure.experiments.measuring_loop import Plan, Running, Stages
from labkit.measure.experiments.trex import devices
from labkit.measure.experiments.trex.devices import Device, LoadTest
from labkit.measure.experiments.trex.parameters import Stateless
from labkit.measure.traffic import rates
from labkit.measure.traffic.trex.client import Server
from labkit.measure.traffic.trex.readings import Direction, ProbeLatency, ring_drops
from labkit.measure.traffic.trex.streams import PROBE_FRAME_BYTES, PROBES_PPS

METHOD, STEP = "ramp", "trial"
REST_S = 0.6  # between two steps, about
REACHED = 0.99  # of the requested frames: less, and TRex is the limit


@dataclass(frozen=True)
class Step:
    """One step of a load test: `rate_pps` is what each sending port sends, without latency probes."""

    phase: str
    rate_pps: float
    duration_s: float


@dataclass
class Outcome:
    """What a load test has found so far. `best_pps` and `best_bps` (with FCS): the greatest rate that arrived within
    the loss limit, all ports together. `ended`: why it ended; `problem`: why it says nothing about the device."""

    best_pps: float | None = None
    best_bps: float | None = None
    ended: str = TARGET_HELD
    problem: str | None = None


def steps(parameters: Stateless, frame_bytes: float, about: Server) -> list[Step]:
    """Return all steps. Latency probes have their share of the line, so no step's load is more than they leave.

    Raises BadInput for a rate that the line cannot carry.
    """
    line = parameters.line(min(about.line_bps))
    warmup_pps = rates.pps("warmup_rate", parameters.warmup_rate, [frame_bytes], line)
    target_pps = rates.pps("target", parameters.ramp_target(about.on_kernel), [frame_bytes], line)
    if parameters.latency and (left := line.left_pps(frame_bytes, PROBES_PPS, PROBE_FRAME_BYTES)) is not None:
        if left <= 0:
            raise BadInput(
                f"latency=true: {PROBES_PPS:.0f} probes a second fill a line of {units.si(line.rate_bps, 'bit/s')}:"
                " use latency=false"
            )
        warmup_pps, target_pps = min(warmup_pps, left), min(target_pps, left)
    count = max(1, math.ceil(parameters.ramp_s / parameters.step_s))
    ramp = [
        Step("ramp", target_pps * number / count, parameters.ramp_s / count) for number in range(1, count + 1)
    ]
    held = math.ceil(parameters.hold_s / parameters.step_s)
    hold = [Step("hold", target_pps, parameters.hold_s / held) for _ in range(held)]
    return [Step("warm-up", warmup_pps, parameters.warmup_s), *ramp, *hold]


class StatelessTest(LoadTest):
    """A warm-up, a ramp and a hold."""

    parameters: Stateless
    mode: ClassVar[str] = "STL"

    @property
    def test_s(self) -> float:
        """The estimated duration in seconds."""
        phases_s = (self.parameters.warmup_s, self.parameters.ramp_s, self.parameters.hold_s)
        return sum(phases_s) + REST_S * sum(math.ceil(one / self.parameters.step_s) for one in phases_s)

    def load(self, device: Device) -> float:
        """Load the profile into the server; return the mean length of its frames in bytes."""
        parameters = self.parameters
        return device.client.load(
            parameters.profile,
            source=SOURCES[parameters.profile_digest] if parameters.profile_digest else None,
            ends=device.ends,
            latency_pps=PROBES_PPS if parameters.latency else 0.0,
            both=parameters.directions == "both",
        )

    def test(self, running: Running, device: Device) -> Stages:
        """Take one step after the other until the device loses too much, or cannot be measured."""
        parameters, outcome = self.parameters, Outcome()
        shared = _shared(parameters, device)
        for step in steps(parameters, device.loaded, device.about):
            rate = units.si(step.rate_pps, "pps")
            yield f"{step.phase}: {rate} from each port", step.duration_s + REST_S
            rows = _measure_step(parameters, device, step, outcome)
            for row in rows:
                self.record(running, device, shared | row, keep=True)
            if outcome.ended != TARGET_HELD:
                break
        self.record(running, device, shared | _result(outcome))
        running.rows.insert(0, running.rows.pop())  # the result comes first
        running.why_stopped[self.pairs] = outcome.ended
        if outcome.problem is not None:
            running.stop(self, outcome.ended)


def plan(parameters: Stateless, seed: int) -> Plan:
    """Return the plan of the experiment; `seed` decides the order of arms."""
    return devices.plan(StatelessTest, parameters, seed)


def _measure_step(
    parameters: Stateless, device: Device, step: Step, outcome: Outcome
) -> list[dict[str, Any]]:
    """Measure a step and return its rows; `outcome` then says whether and why the test has ended."""
    try:
        (directions, _raw), cpu_share = device.with_cpu_share(
            lambda: device.client.trial(step.rate_pps, step.duration_s)
        )
    except LabkitError as error:
        outcome.problem = outcome.ended = str(error)
        failed = {"status": "failed", "reason": str(error)}
        return [{"method": STEP, "part": "steps", "phase": step.phase, "direction": "all", **failed}]
    probes_pps = PROBES_PPS if parameters.latency else 0.0
    requested_pps = (step.rate_pps + probes_pps) * len(directions)
    problem = problem_of(directions, requested_pps, step.duration_s)
    shared = {
        "method": STEP,
        "part": "steps",
        "phase": step.phase,
        "status": "ok" if problem is None else "invalid",
        "reason": problem,
        "duration_s": step.duration_s,
        "trex_cpu_share": cpu_share,
    }
    whole = totals(directions)
    _judge(parameters, whole, problem, outcome)
    each_pps = requested_pps / len(directions)
    return [
        shared | {"direction": "all", "requested_pps": requested_pps} | whole,
        *(
            shared | {"direction": one.name, "requested_pps": each_pps} | direction_columns(one)
            for one in directions
        ),
    ]


def _judge(parameters: Stateless, whole: dict[str, Any], problem: str | None, outcome: Outcome) -> None:
    """Note the rate of a step, or why the test ends with it."""
    loss, limit = whole["loss_ratio"], parameters.loss_limit
    if problem is not None:
        if outcome.best_pps is not None:
            problem += f"; before that {units.si(outcome.best_pps, 'pps')} arrived within the loss limit"
        outcome.problem = outcome.ended = problem
    elif not whole["received_frames_count"]:
        outcome.problem = outcome.ended = (
            f"nothing of {whole['sent_count']} frames arrived: check the cables of ports"
            f" {','.join(map(str, parameters.ports))}, and that the device forwards between them"
        )
    elif loss > limit:
        outcome.ended = (
            f"the device lost {100 * loss:.2g} % at {units.si(whole['offered_pps'], 'pps')}, more than the limit of"
            f" {100 * limit:g} %"
        )
    elif outcome.best_pps is None or whole["throughput_pps"] > outcome.best_pps:
        outcome.best_pps, outcome.best_bps = whole["throughput_pps"], whole["throughput_bps"]


def drops_of(directions: list[Direction]) -> str | None:
    """Return a sentence about frames that TRex itself dropped or could not send, or None."""
    if drops := ring_drops(directions):
        return drops
    if refused := sum(one.refused_count for one in directions):
        return f"TRex's interfaces refused {refused} frames (oerrors): are they longer than the MTU allows?"
    return None


def problem_of(directions: list[Direction], requested_pps: float, duration_s: float) -> str | None:
    """Return why a step says nothing about the device, or None."""
    if problem := drops_of(directions):
        return problem
    sent = sum(one.sent_count for one in directions)
    if sent < REACHED * requested_pps * duration_s - len(directions):
        reached = sum(one.sent_pps for one in directions)
        return f"generator-limited: TRex sent {reached:.0f} of {requested_pps:.0f} pps"
    return None


def totals(directions: list[Direction]) -> dict[str, Any]:
    """Return the columns of all directions together."""
    sent = sum(one.sent_count for one in directions)
    lost = sum(one.lost_count for one in directions)
    return {
        "offered_pps": sum(one.sent_pps for one in directions),
        "throughput_pps": sum(one.received_pps for one in directions),
        "throughput_bps": sum(one.received_bps for one in directions),
        "offered_count": sent,
        "sent_count": sent,
        "received_frames_count": sum(one.received_count for one in directions),
        "ring_drops_count": sum(one.ring_drops_count for one in directions),
        "refused_count": sum(one.refused_count for one in directions),
        "lost_count": lost,
        "loss_ratio": lost / sent if sent else 0.0,
        "window_s": max(one.window_s for one in directions),
    }


def direction_columns(one: Direction) -> dict[str, Any]:
    """Return the columns of one direction."""
    return totals([one]) | ({} if one.latency is None else latency_columns(one, one.latency))


def latency_columns(one: Direction, latency: ProbeLatency) -> dict[str, Any]:
    """Return the columns of the latency probes in one direction. Probes whose frames arrived after TRex had stopped are
    not lost."""
    return {
        "latency_p50_s": latency.percentile_s(0.5),
        "latency_p90_s": latency.percentile_s(0.9),
        "latency_p99_s": latency.percentile_s(0.99),
        "latency_p999_s": latency.percentile_s(0.999),
        "latency_max_s": latency.max_s,
        "latency_mean_s": latency.mean_s,
        "jitter_s": latency.jitter_s,
        "latency_clock": "trex",
        "latency_buckets": {str(edge): count for edge, count in sorted(latency.buckets.items())},
        "probes_sent_count": latency.sent_count,
        "probes_lost_count": min(latency.lost_count, one.lost_count + one.ring_drops_count),
        "out_of_order_count": latency.out_of_order_count,
        "duplicated_count": latency.duplicated_count,
        "histogram": latency.hdr,
        "loop": "open",
    }


def _shared(parameters: Stateless, device: Device) -> dict[str, Any]:
    """Return the columns that all rows of a load test share."""
    line, frame_bytes = parameters.line(min(device.about.line_bps)), device.loaded
    line_pps, words = line.max_pps(frame_bytes), line.arithmetic(frame_bytes)
    left = line.left_pps(frame_bytes, PROBES_PPS, PROBE_FRAME_BYTES)
    if parameters.latency and left is not None and frame_bytes != PROBE_FRAME_BYTES:
        line_pps = left + PROBES_PPS
        words += f"; with {PROBES_PPS:.0f} probes of {PROBE_FRAME_BYTES} bytes among them {line_pps:.0f} pps"
    return {
        "frame_bytes": frame_bytes,
        "line": words,
        "line_pps": line_pps,
        "senders_count": len(device.client.senders),
        "loss_goal_ratio": parameters.loss_limit,
    }


def _result(outcome: Outcome) -> dict[str, Any]:
    """Return the columns of the result of a load test."""
    is_known = outcome.best_pps is not None and outcome.problem is None
    return {
        "part": "cost",
        "method": METHOD,
        "direction": "all",
        "status": "ok" if is_known else "invalid",
        "reason": None if is_known else outcome.problem or outcome.ended,
        "throughput_pps": outcome.best_pps,
        "throughput_bps": outcome.best_bps,
        "ended": outcome.ended,
    }


EXPERIMENT = measuring_loop.experiment(
    Stateless,
    plan,
    about="a load test with TRex: a ramp of packets through a device, until it loses some",
)
