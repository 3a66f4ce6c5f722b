"""A load test, as operators of networks make them: a warm-up, a linear ramp to a share of the line's rate, and a hold;
it ends as soon as the device loses more than a limit.

The ramp is a staircase. After each step the traffic rests, so that sent and received are exact counts and nothing that
is on its way is taken for lost. A step has rows of its own, for both directions together and for each: throughput, loss
and latency over time. TRex's rates are counted over wall time while a step runs.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from labkit.common import units
from labkit.common.errors import BadInput, LabkitError
from labkit.common.schema import LATENCIES, TARGET_HELD
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.changes import SOURCES
from labkit.measure.experiments.measuring_loop import Plan, Running, Stages
from labkit.measure.traffic import rates
from labkit.measure.traffic.trex.streams import PROBE_FRAME_BYTES, PROBES_PPS
from studies.load_test import devices
from studies.load_test.devices import Device, LoadTest, TrexPorts
from studies.load_test.parameters import LoadTestParameters
from studies.load_test.sides import Sides, TrexSides, packets, totals

METHOD, STEP = "ramp", "trial"
OF_PROBES = (*(f"latency_{name}_s" for name in LATENCIES), "latency_mean_s", "jitter_s")


@dataclass(frozen=True)
class Step:
    """One step of a load test: `rate_pps` is what each sending port sends, without latency probes."""

    phase: str
    rate_pps: float
    duration_s: float


@dataclass
class Outcome:
    """What a load test has found so far. `best`: the columns of the step with the greatest rate that arrived within the
    loss limit, all ports together, and the latency of the slower direction. `ended`: why it ended; `problem`: why it
    says nothing about the device. `repeated_count`: steps that were repeated, because the machine disturbed them."""

    best: dict[str, Any] = field(default_factory=dict)
    ended: str = TARGET_HELD
    problem: str | None = None
    repeated_count: int = 0


def steps(parameters: LoadTestParameters, sides: Sides) -> list[Step]:
    """Return all steps. Latency probes have their share of the line, so no step's load is more than they leave.

    Raises BadInput for a rate that the line cannot carry.
    """
    line, sizes = parameters.line(sides.line_bps), [sides.frame_bytes]
    warmup_pps = rates.pps("warmup_rate", parameters.warmup_rate, sizes, line)
    target_pps = rates.pps("target", parameters.ramp_target(sides.on_kernel), sizes, line)
    left = line.left_pps(sides.frame_bytes, PROBES_PPS, PROBE_FRAME_BYTES)
    if parameters.latency and left is not None:
        if left <= 0:
            raise BadInput(
                f"latency=true: {PROBES_PPS:.0f} probes a second fill a line of {units.si(line.rate_bps, 'bit/s')}:"
                " use latency=false"
            )
        warmup_pps, target_pps = min(warmup_pps, left), min(target_pps, left)

    def phase(name: str, whole_s: float, first_pps: float, last_pps: float) -> Iterator[Step]:
        count = math.ceil(whole_s / parameters.each_s)
        for number in range(1, count + 1):
            rate_pps = first_pps + (last_pps - first_pps) * number / count
            yield Step(name, rate_pps, whole_s / count)

    return [
        *phase("warm-up", parameters.warmup_s, warmup_pps, warmup_pps),
        *phase("ramp", parameters.ramp_s, 0.0, target_pps),
        *phase("hold", parameters.hold_s, target_pps, target_pps),
    ]


class RampTest(LoadTest):
    """A warm-up, a ramp and a hold."""

    parameters: LoadTestParameters
    mode: ClassVar[str] = "STL"

    @property
    def test_s(self) -> float:
        """The estimated duration in seconds."""
        parameters = self.parameters
        phases_s = (parameters.warmup_s, parameters.ramp_s, parameters.hold_s)
        return sum(phases_s) + parameters.rest_s * sum(math.ceil(one / parameters.each_s) for one in phases_s)

    @contextmanager
    def connected(self, running: Running) -> Iterator[Device]:
        """Give the device a generator at both sides."""
        if self.parameters.with_trex:
            with super().connected(running) as device:
                yield device
            return
        with (
            devices.built(self.parameters, running.run_context, self.arm) as one,
            packets(one, self.parameters) as sides,
        ):
            yield Device(one.measured, sides, {"pairs": 1, "datapath_scheduling": sides.scheduling})

    def load(self, ports: TrexPorts) -> TrexSides:
        """Load the profile into a TRex server; return what sends it."""
        parameters, probes_pps = self.parameters, PROBES_PPS if self.parameters.latency else 0.0
        frame_bytes = ports.client.load(
            parameters.profile,
            source=SOURCES[parameters.profile_digest] if parameters.profile_digest else None,
            ends=ports.ends,
            latency_pps=probes_pps,
            both=parameters.directions == "both",
        )
        return TrexSides(ports, frame_bytes, probes_pps)

    def test(self, running: Running, device: Device) -> Stages:
        """Take one step after the other until the device loses too much, or cannot be measured."""
        parameters, sides, outcome = self.parameters, device.load, Outcome()
        shared, begun_s = _shared(parameters, sides), time.monotonic()
        for step in steps(parameters, sides):
            rate = units.si(step.rate_pps, "pps")
            yield f"{step.phase}: {rate} from each port", step.duration_s + parameters.rest_s
            for left in reversed(range(sides.tries)):
                at = {"time_s": time.monotonic() - begun_s}
                rows = _measured(sides, step)
                for row in rows:
                    self.record(running, device, shared | at | row, keep=True)
                if rows[0]["status"] != "invalid" or not left:
                    break
                outcome.repeated_count += 1
            _judge(parameters, rows, outcome)
            if outcome.ended != TARGET_HELD:
                break
        self.record(running, device, shared | _result(outcome))
        running.rows.insert(0, running.rows.pop())  # the result comes first
        running.why_stopped[self.pairs] = outcome.ended
        if outcome.problem is not None:
            running.stop(self, outcome.ended)


def plan(parameters: LoadTestParameters, seed: int) -> Plan:
    """Return the plan of the experiment; `seed` decides the order of arms."""
    return devices.plan(RampTest, parameters, seed)


def _measured(sides: Sides, step: Step) -> list[dict[str, Any]]:
    """Measure a step and return its rows: of all directions together, and of each."""
    shared = {"method": STEP, "part": "steps", "phase": step.phase, "duration_s": step.duration_s}
    try:
        taken = sides.take(step.rate_pps, step.duration_s)
    except LabkitError as error:
        return [shared | {"direction": "all", "status": "failed", "reason": str(error)}]
    status = "ok" if taken.problem is None else "invalid"
    shared |= {"status": status, "reason": taken.problem, **taken.columns}
    return [shared | {"direction": "all"} | totals(taken.ways), *(shared | one for one in taken.ways)]


def _judge(parameters: LoadTestParameters, rows: list[dict[str, Any]], outcome: Outcome) -> None:
    """Note the rate of a step, or why the test ends with it."""
    whole, *ways = rows
    best_pps = outcome.best.get("throughput_pps")
    if whole["status"] != "ok":
        problem = whole["reason"]
        if best_pps is not None and whole["status"] == "invalid":
            problem += f"; before that {units.si(best_pps, 'pps')} arrived within the loss limit"
        outcome.problem = outcome.ended = problem
    elif not whole["received_frames_count"]:
        words = f"nothing of {whole['sent_count']} frames arrived"
        if parameters.server is not None:
            ports = ",".join(map(str, parameters.ports))
            words += f": check the cables of ports {ports}, and that the device forwards between them"
        outcome.problem = outcome.ended = words
    elif whole["lost_count"] > parameters.spare_count(whole["offered_count"]):
        outcome.ended = (
            f"the device lost {100 * whole['loss_ratio']:.2g} % at {units.si(whole['offered_pps'], 'pps')}, more than"
            f" the limit of {100 * parameters.loss_limit:g} %"
        )
    elif best_pps is None or whole["throughput_pps"] > best_pps:
        # An unknown latency, as of lost probes, is the longest.
        slower = max(
            ways, key=lambda way: math.inf if (tail_s := way.get("latency_p99_s")) is None else tail_s
        )
        outcome.best = {name: whole[name] for name in ("throughput_pps", "throughput_bps")}
        outcome.best |= {name: slower.get(name) for name in OF_PROBES}


def _shared(parameters: LoadTestParameters, sides: Sides) -> dict[str, Any]:
    """Return the columns that all rows of a load test share."""
    line, frame_bytes = parameters.line(sides.line_bps), sides.frame_bytes
    line_pps, words = line.max_pps(frame_bytes), line.arithmetic(frame_bytes)
    left = line.left_pps(frame_bytes, PROBES_PPS, PROBE_FRAME_BYTES)
    if parameters.latency and left is not None and frame_bytes != PROBE_FRAME_BYTES:
        line_pps = left + PROBES_PPS
        words += f"; with {PROBES_PPS:.0f} probes of {PROBE_FRAME_BYTES} bytes among them {line_pps:.0f} pps"
    return {
        "frame_bytes": frame_bytes,
        "line": words,
        "line_pps": line_pps,
        "senders_count": sides.senders_count,
        "loss_goal_ratio": parameters.loss_limit,
    }


def _result(outcome: Outcome) -> dict[str, Any]:
    """Return the columns of the result of a load test."""
    is_known = bool(outcome.best) and outcome.problem is None
    return {
        "part": "cost",
        "method": METHOD,
        "direction": "all",
        "status": "ok" if is_known else "invalid",
        "reason": None if is_known else outcome.problem or outcome.ended,
        **outcome.best,
        "ended": outcome.ended,
        "repeated_count": outcome.repeated_count,
    }


EXPERIMENT = measuring_loop.experiment(
    LoadTestParameters,
    plan,
    about="a load test: a ramp of packets through a device, until it loses some; loss and latency over time",
)
