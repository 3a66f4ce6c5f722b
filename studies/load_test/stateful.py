"""Stateful traffic with TRex (ASTF): many TCP connections through a device, with latency probes in both directions."""

from typing import Any, ClassVar

from labkit.common.errors import LabkitError
from labkit.measure.experiments import measuring_loop
from labkit.measure.experiments.changes import SOURCES
from labkit.measure.experiments.measuring_loop import Plan, Running, Stages
from labkit.measure.traffic.trex import readings
from studies.load_test import devices, sides
from studies.load_test.devices import Device, LoadTest, TrexPorts
from studies.load_test.parameters import TREX_REST_S, Stateful

METHOD = "whole"


class StatefulTest(LoadTest):
    """Connections with one factor of the profile's rates."""

    parameters: Stateful
    mode: ClassVar[str] = "ASTF"

    @property
    def test_s(self) -> float:
        """The estimated duration in seconds."""
        return self.parameters.test_s + TREX_REST_S

    def load(self, ports: TrexPorts) -> tuple[TrexPorts, float | None]:
        """Load the profile into the server; return it with the connections per second that it asks for, if known."""
        digest, ends = self.parameters.profile_digest, ports.ends
        source = SOURCES[digest] if digest else None
        asked_pps = ports.client.load_stateful(self.parameters.profile, source, ends[0] if ends else None)
        return ports, asked_pps

    def test(self, running: Running, device: Device) -> Stages:
        """Open connections and count what arrives."""
        parameters, mult = self.parameters, self.mult
        assert mult is not None
        yield f"{parameters.profile}, mult {mult:g}", self.test_s
        ports, asked_pps = device.load
        measured = _measure(parameters, ports, mult, None if asked_pps is None else asked_pps * mult)
        for one in measured:
            self.record(running, device, {"method": METHOD, "duration_s": parameters.test_s, **one})
        if measured[0]["status"] == "failed":
            running.stop(self, measured[0]["reason"])


def plan(parameters: Stateful, seed: int) -> Plan:
    """Return the plan of the experiment; `seed` decides the order of arms."""
    return devices.plan(StatefulTest, parameters, seed, parameters.mult, "all tests were run")


def _measure(
    parameters: Stateful, ports: TrexPorts, mult: float, asked_pps: float | None
) -> list[dict[str, Any]]:
    """Return the columns of the result, and of each direction. `asked_pps`: connections per second to begin."""
    try:
        raw, cpu_share = ports.with_cpu_share(
            lambda: ports.client.stateful(mult, parameters.test_s, parameters.latency_pps)
        )
    except LabkitError as error:
        return [{"part": "cost", "direction": "all", "status": "failed", "reason": str(error)}]
    directions = readings.stateful_directions(raw, ports.client.ports)
    connections = readings.connections(raw)
    ways = [sides.trex_columns(one) for one in directions]
    whole = sides.totals(ways)
    problem = sides.drops_of(directions)
    if problem is None and not connections.connections_count:
        problem = (
            "no connection was established: check the cables, and that the device forwards between the ports"
        )
    if problem is None and asked_pps is not None:
        begun, seconds = connections.attempts_pps, connections.window_s
        if begun * seconds < sides.REACHED * asked_pps * seconds - 1:
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
    by_direction = [{"part": "directions", **one, **state} for one in ways]
    return [whole | result | state, *by_direction]


EXPERIMENT = measuring_loop.experiment(
    Stateful, plan, about="a load test with TRex: TCP connections through a device"
)
