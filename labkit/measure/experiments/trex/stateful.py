"""Stateful traffic with TRex (ASTF): many TCP connections through a device, with latency probes in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labkit.common.errors import Failed, LabkitError
from labkit.measure.experiments import context
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments.changes import SOURCES
from labkit.measure.experiments.context import Event, Experiment, RunContext
from labkit.measure.experiments.rows import Arm
from labkit.measure.experiments.trex import stateless
from labkit.measure.experiments.trex.parameters import STATEFUL_HELP, Stateful
from labkit.measure.traffic.trex import readings
from labkit.measure.traffic.trex.client import Client

METHOD = "whole"


def planned_s(parameters: Stateful) -> float:
    """Estimate the duration of the experiment in seconds."""
    tests = parameters.rounds * len(parameters.mult)
    return stateless.CONNECT_S + tests * (parameters.test_s + stateless.REST_S)


def run(parameters: Stateful, run_context: RunContext) -> Iterator[Event]:
    """Measure every test that has no rows yet; yield rows and progress."""
    done = run_context.done()
    points = [
        (f"{stateless.point_name(parameters, number)}-m{mult:g}", number, mult)
        for number in range(parameters.rounds)
        for mult in parameters.mult
    ]
    left = [point for point in points if point[0] not in done]
    if not left:
        return
    if run_context.trex_fd is None:
        raise Failed("labkit has not started TRex's client, which should not happen: tell labkit's authors")
    spent_s, total_s = 0.0, planned_s(parameters)
    yield context.progress(f"connecting to the TRex server {parameters.address}", spent_s, total_s)
    client = Client(run_context.trex_fd, parameters.address, parameters.ports)
    try:
        server = client.connect("ASTF", force=parameters.force)
        digest = parameters.profile_digest
        client.load_stateful(parameters.profile, SOURCES[digest] if digest else None)
        for name, number, mult in left:
            yield context.progress(f"{parameters.profile}, mult {mult:g}", spent_s, total_s)
            measured = _measured(parameters, client, mult)
            shared = {
                **dict.fromkeys(stateless.COLUMNS),
                "point": name,
                "round": number,
                "mult": mult,
                "method": METHOD,
                "generator": "trex",
                "frame": parameters.profile,
                "trex_server": str(parameters.address),
                "trex": server.version,
                "duration_s": parameters.test_s,
            }
            yield context.rows(name, _rows(parameters, run_context, shared, measured))
            spent_s += parameters.test_s + stateless.REST_S
            if measured[0]["status"] == "failed":
                yield context.stopped(1, measured[0]["reason"])
                return
        yield context.stopped(1, "all tests were run")
    finally:
        client.close()


def _rows(
    parameters: Stateful, run_context: RunContext, shared: dict[str, Any], measured: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    arm, pairs = Arm(stateless.OUTSIDE, "baseline"), len(parameters.ports) // 2
    return [row_columns.row_of(parameters, run_context, arm, pairs, {**shared, **one}) for one in measured]


def _measured(parameters: Stateful, client: Client, mult: float) -> list[dict[str, Any]]:
    """Return the columns of the result, and of each direction."""
    try:
        raw = client.stateful(mult, parameters.test_s, parameters.latency_pps)
    except LabkitError as error:
        return [{"part": "cost", "direction": "all", "status": "failed", "reason": str(error)}]
    directions = readings.stateful_directions(raw, parameters.ports)
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


EXPERIMENT = Experiment(Stateful, STATEFUL_HELP, run, planned_s)
