"""Stateful traffic with TRex (ASTF): many TCP connections through a device, with latency probes in both directions."""

from __future__ import annotations

from typing import Any, ClassVar

from labkit.common.errors import LabkitError
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.changes import SOURCES
from labkit.measure.experiments.measuring_loop import Plan, Running, Stages
from labkit.measure.experiments.trex import devices
from labkit.measure.experiments.trex.devices import Device, LoadTest
from labkit.measure.experiments.trex.parameters import Stateful
from labkit.measure.traffic.trex import readings
from studies.trex import stateless

METHOD = "whole"


class StatefulTest(LoadTest):
    """Connections with one factor of the profile's rates."""

    parameters: Stateful
    mode: ClassVar[str] = "ASTF"

    @property
    def test_s(self) -> float:
        """The estimated duration in seconds."""
        return self.parameters.test_s + stateless.REST_S

    def load(self, device: Device) -> float | None:
        """Load the profile into the server; return the connections per second that it asks for, if known."""
        digest, ends = self.parameters.profile_digest, device.ends
        source = SOURCES[digest] if digest else None
        return device.client.load_stateful(self.parameters.profile, source, ends[0] if ends else None)

    def test(self, running: Running, device: Device) -> Stages:
        """Open connections and count what arrives."""
        parameters, mult = self.parameters, self.mult
        assert mult is not None
        yield f"{parameters.profile}, mult {mult:g}", self.test_s
        asked_pps = None if device.loaded is None else device.loaded * mult
        measured = _measure(parameters, device, mult, asked_pps)
        for one in measured:
            self.record(running, device, {"method": METHOD, "duration_s": parameters.test_s, **one})
        if measured[0]["status"] == "failed":
            running.stop(self, measured[0]["reason"])


def plan(parameters: Stateful, seed: int) -> Plan:
    """Return the plan of the experiment; `seed` decides the order of arms."""
    return devices.plan(StatefulTest, parameters, seed, parameters.mult, "all tests were run")


def _measure(
    parameters: Stateful, device: Device, mult: float, asked_pps: float | None
) -> list[dict[str, Any]]:
    """Return the columns of the result, and of each direction. `asked_pps`: connections per second to begin."""
    try:
        raw, cpu_share = device.with_cpu_share(
            lambda: device.client.stateful(mult, parameters.test_s, parameters.latency_pps)
        )
    except LabkitError as error:
        return [{"part": "cost", "direction": "all", "status": "failed", "reason": str(error)}]
    directions = readings.stateful_directions(raw, device.client.ports)
    connections = readings.connections(raw)
    whole = stateless.totals(directions)
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
        "trex_cpu_share": cpu_share,
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


EXPERIMENT = measuring_loop.experiment(
    Stateful, plan, about="a load test with TRex: TCP connections through a device"
)
