"""Stateful traffic with TRex (ASTF): many TCP connections through a device, with latency probes in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labkit.common.errors import LabkitError
from labkit.measure.experiments import context
from labkit.measure.experiments.changes import SOURCES
from labkit.measure.experiments.context import Event, Experiment, Progress, RunContext
from labkit.measure.experiments.trex import devices
from labkit.measure.experiments.trex.devices import Device, Test
from labkit.measure.experiments.trex.parameters import STATEFUL_HELP, Stateful
from labkit.measure.traffic.trex import readings
from labkit.measure.traffic.trex.client import Client
from studies.trex import stateless

METHOD = "whole"


def planned_s(parameters: Stateful) -> float:
    """Estimate the duration of the experiment in seconds."""
    return devices.planned_s(parameters, len(parameters.mult) * (parameters.test_s + stateless.REST_S))


def run(parameters: Stateful, run_context: RunContext) -> Iterator[Event]:
    """Measure every test that has no rows yet; yield rows and progress."""

    def measure(device: Device, tests: list[Test], progress: Progress) -> Iterator[Event]:
        """Measure until the server fails."""
        digest, ends = parameters.profile_digest, device.ends
        source = SOURCES[digest] if digest else None
        base_pps = device.client.load_stateful(parameters.profile, source, ends[0] if ends else None)
        for test in tests:
            assert test.mult is not None
            yield progress.event(f"{parameters.profile}, mult {test.mult:g}")
            asked_pps = None if base_pps is None else base_pps * test.mult
            measured = _measure(parameters, device.client, test.mult, asked_pps)
            shared = {"method": METHOD, "duration_s": parameters.test_s}
            rows = [{**shared, **one} for one in measured]
            yield device.rows(parameters, run_context, test, rows)
            progress.done_s += parameters.test_s + stateless.REST_S
            if measured[0]["status"] == "failed":
                yield context.stopped_event(1, measured[0]["reason"])
                return
        yield context.stopped_event(1, "all tests were run")

    return devices.run(parameters, run_context, "ASTF", planned_s(parameters), measure, parameters.mult)


def _measure(
    parameters: Stateful, client: Client, mult: float, asked_pps: float | None
) -> list[dict[str, Any]]:
    """Return the columns of the result, and of each direction. `asked_pps`: connections per second to begin."""
    try:
        raw = client.stateful(mult, parameters.test_s, parameters.latency_pps)
    except LabkitError as error:
        return [{"part": "cost", "direction": "all", "status": "failed", "reason": str(error)}]
    directions = readings.stateful_directions(raw, client.ports)
    connections = readings.connections(raw)
    whole = stateless.totals(directions)
    busy = raw["readings"][-2]["global"].get("m_cpu_util")
    problem = stateless.drops_of(directions)
    if problem is None and not connections.connections_count:
        problem = (
            "no connection was established: check the cables, and that the device forwards between the ports"
        )
    if problem is None and asked_pps is not None:
        begun, seconds = connections.attempts_pps, connections.window_s
        if begun * seconds < stateless.REACHED * asked_pps * seconds - 1:
            problem = f"generator-limited: TRex began {begun:.0f} of {asked_pps:.0f} connections per second"
    bits = [readings.received_bps(raw, one.target) for one in directions]
    state = {"status": "ok" if problem is None else "invalid", "reason": problem}
    result = {
        "part": "cost",
        "direction": "all",
        "throughput_bps": sum(bits),
        "connections_count": connections.connections_count,
        "connection_rate": connections.connections_pps,
        "active_connections_count": connections.active_count,
        "retransmits_count": connections.retransmits_count,
        "connection_errors_count": connections.errors_count,
        "trex_cpu_share": None if busy is None else busy / 100,
    }
    by_direction = [
        {
            "part": "directions",
            "direction": one.name,
            "throughput_bps": bps,
            **stateless.direction_columns(one),
            **state,
        }
        for one, bps in zip(directions, bits, strict=True)
    ]
    return [whole | result | state, *by_direction]


EXPERIMENT = Experiment(
    Stateful,
    STATEFUL_HELP,
    run,
    planned_s,
    about="a load test with TRex: TCP connections through a device",
)
