"""Stateful traffic with TRex (ASTF): many TCP connections through a device, with latency probes in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labkit.common.errors import Failed, LabkitError, Unsupported
from labkit.measure.experiments import context
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments.changes import SOURCES
from labkit.measure.experiments.context import Event, RunContext
from labkit.measure.experiments.rows import Arm
from labkit.measure.experiments.trex import devices, stateless
from labkit.measure.experiments.trex.devices import Device, Test
from labkit.measure.experiments.trex.parameters import Stateful
from labkit.measure.traffic.trex import readings
from labkit.measure.traffic.trex.client import Client

METHOD = "whole"


def planned_s(parameters: Stateful) -> float:
    """Estimate the duration of the experiment in seconds."""
    return devices.planned_s(parameters, len(parameters.mult) * (parameters.test_s + stateless.REST_S))


def run(parameters: Stateful, run_context: RunContext) -> Iterator[Event]:
    """Measure every round that has no rows yet; yield rows and progress."""
    arms: list[Arm] = []
    for found in devices.usable(parameters, run_context):
        if isinstance(found, list):
            arms = found
        else:
            yield found
    total_s, spent_s = planned_s(parameters), 0.0
    for arm, tests in devices.groups(parameters, run_context, arms, parameters.mult):
        yield context.progress(devices.connecting(parameters, arm), spent_s, total_s)
        try:
            with devices.connected(parameters, run_context, arm, "ASTF") as device:
                digest, ends = parameters.profile_digest, device.ends
                source = SOURCES[digest] if digest else None
                device.client.load_stateful(parameters.profile, source, ends[0] if ends else None)
                for event in _tests(parameters, run_context, arm, device, tests, (spent_s, total_s)):
                    yield event
                    spent_s = event.get("done_s", spent_s)
        except (Failed, Unsupported) as error:
            if arm == devices.OUTSIDE:
                raise
            columns = dict.fromkeys(stateless.COLUMNS)
            yield devices.failed(parameters, run_context, arm, tests[0], error, columns)
            yield context.stopped(1, str(error))


def _tests(
    parameters: Stateful,
    run_context: RunContext,
    arm: Arm,
    device: Device,
    tests: list[Test],
    spent_of: tuple[float, float],
) -> Iterator[Event]:
    """Measure tests over one connection, until the server fails."""
    spent_s, total_s = spent_of
    pairs = len(device.client.ports) // 2
    for test in tests:
        assert test.mult is not None
        yield context.progress(f"{parameters.profile}, mult {test.mult:g}", spent_s, total_s)
        measured = _measured(parameters, device.client, test.mult)
        shared = {
            **dict.fromkeys(stateless.COLUMNS),
            "point": test.point,
            "round": test.round,
            "mult": test.mult,
            "method": METHOD,
            "generator": "trex",
            "frame": parameters.profile,
            "trex_server": device.server,
            "trex": device.version,
            "duration_s": parameters.test_s,
        }
        rows = [
            row_columns.row_of(parameters, run_context, arm, pairs, device.measured({**shared, **one})[1])
            for one in measured
        ]
        yield context.rows(test.point, rows)
        spent_s += parameters.test_s + stateless.REST_S
        if measured[0]["status"] == "failed":
            yield context.stopped(1, measured[0]["reason"])
            return
    yield context.stopped(1, "all tests were run")


def _measured(parameters: Stateful, client: Client, mult: float) -> list[dict[str, Any]]:
    """Return the columns of the result, and of each direction."""
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
    ways = [
        {
            "part": "directions",
            "direction": one.name,
            "throughput_bps": bps,
            **stateless.of_direction(one),
            **state,
        }
        for one, bps in zip(directions, bits, strict=True)
    ]
    return [whole | result | state, *ways]
