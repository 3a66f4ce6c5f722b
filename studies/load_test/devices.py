"""The device under test of a load test: one outside that a TRex server's ports reach, or a topology of labkit."""

import abc
import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from labkit.common import schema
from labkit.common.errors import Failed, Unsupported
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments import survey
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.context import RunContext
from labkit.measure.experiments.measuring_loop import Plan, Point, Running, Stages, balanced
from labkit.measure.experiments.rows import OUTSIDE, Arm, Measured
from labkit.measure.traffic.trex import server
from labkit.measure.traffic.trex.client import Client, Server, connected
from labkit.system import machine
from studies.load_test.parameters import SharedParameters

START_S = 3.0  # about: of TRex
OWN = "labkit's own server"
Result = TypeVar("Result")
COLUMNS = (*schema.names(writer=("throughput", "trex")), "time_s")


@dataclass(frozen=True)
class TrexPorts:
    """The ports of a TRex server at both sides of a device.

    `ends`: the addresses of each port's frames; None: those of TRex's own profiles reach the other port. `pids`: the
    process of labkit's own server.
    """

    client: Client
    server: str
    about: Server
    ends: list[tuple[str, str]] | None
    pids: tuple[int, ...] = ()

    def with_cpu_share(self, measure: Callable[[], Result]) -> tuple[Result, float | None]:
        """Return the result of `measure`, and how many CPUs labkit's own TRex used meanwhile; None for another one."""
        begun, before_s = time.monotonic(), machine.cpu_s(self.pids)
        result = measure()
        used_s = machine.cpu_s(self.pids) - before_s
        return result, used_s / (time.monotonic() - begun) if self.pids else None


@dataclass(frozen=True)
class Device:
    """A device under test, and what sends through it from both sides.

    `measured`: adds what a row says about the device to its metrics. `load`: what `LoadTest.load` returned. `columns`:
    of all rows.
    """

    measured: Callable[[dict[str, Any]], Measured]
    load: Any
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class LoadTest(Point):
    """A load test of one device. Tests with one connection end together, when the server fails.

    `connect_s`: about how long connecting takes before it; 0 if an earlier test connects. `mult`: the factor of a
    stateful profile's rates.
    """

    parameters: SharedParameters
    arm: Arm
    connect_s: float
    mult: float | None = None

    mode: ClassVar[str]  # of the TRex server: STL or ASTF

    @property
    def series(self) -> Hashable:
        """The connection."""
        return OUTSIDE if self.arm == OUTSIDE else (self.arm.label, self.round)

    def measured_arms(self, usable: list[Arm]) -> list[Arm]:
        """Return its own."""
        return [self.arm]

    @property
    @abc.abstractmethod
    def test_s(self) -> float:
        """The estimated duration in seconds, without connecting."""

    @abc.abstractmethod
    def load(self, ports: TrexPorts) -> object:
        """Load the profile into a TRex server; return what sends it."""

    @abc.abstractmethod
    def test(self, running: Running, device: Device) -> Stages:
        """Run the test and record its rows."""

    def planned_s(self, usable: list[Arm]) -> float:
        """The estimated duration in seconds."""
        return self.connect_s + self.test_s

    def measure(self, running: Running) -> Stages:
        """Connect if that is not yet done, and test. A topology of labkit that cannot be tested gets a row."""
        try:
            if not running.is_open(self.series):
                what = f"starting the generator on {self.arm.label}"
                if self.arm == OUTSIDE:
                    what = f"connecting to the TRex server {self.parameters.address}"
                yield what, self.connect_s
            device = running.opened(self.series, lambda: self.connected(running))
            yield from self.test(running, device)
        except (Failed, Unsupported) as error:
            if self.arm == OUTSIDE:
                raise
            running.rows.clear()
            self.record(
                running, None, {"part": "cost", "direction": "all", **row_columns.not_measured(error)}
            )
            running.stop(self, str(error))

    @contextmanager
    def connected(self, running: Running) -> Iterator[Device]:
        """Give the device a TRex server at both sides."""
        with trex_ports(self.parameters, running.run_context, self.arm, self.mode) as (ports, measured):
            columns = {
                "trex_server": ports.server,
                "trex": ports.about.version,
                "pairs": len(ports.client.ports) // 2,
            }
            yield Device(measured, self.load(ports), columns)

    def record(
        self, running: Running, device: Device | None, metrics: dict[str, Any], *, keep: bool = False
    ) -> None:
        """Add a row to the test, with what it says about the device. `keep`: at once (`Running.record`)."""
        shared = dict.fromkeys(COLUMNS) | {
            "generator": self.parameters.load_generator.name,
            "frame": self.parameters.profile,
            "mult": self.mult,
        }
        if device is not None:
            shared |= device.columns
            _, metrics = device.measured(metrics)
        running.record(self, self.parameters, (self.arm, shared | metrics), keep=keep)


def plan(
    kind: type[LoadTest],
    parameters: SharedParameters,
    seed: int,
    mults: Sequence[float | None] = (None,),
    finished: str = "",
) -> Plan:
    """Return the plan of all tests; each test of a round has one of `mults`.

    On labkit's own topologies each round has a fresh set-up of each arm, in alternating order.
    """
    outside = parameters.server is not None

    def points(arms: list[Arm]) -> list[LoadTest]:
        result: list[LoadTest] = []
        for number in range(parameters.rounds):
            for arm in balanced(arms, seed, 1, number):
                for place, mult in enumerate(mults):
                    name = point_name(parameters, arm, number, mult)
                    connect_s = 0.0 if place or (outside and number) else START_S
                    result.append(kind(name, 1, number, parameters, arm, connect_s, mult))
        return result

    return Plan(parameters, points, finished, arms=[OUTSIDE] if outside else None)


@contextmanager
def built(parameters: SharedParameters, run_context: RunContext, arm: Arm) -> Iterator[LocalArm]:
    """Build the topology of an arm. Raises Unsupported and Failed if it cannot be built."""
    rng = random.Random(f"{run_context.seed} {arm.label}")
    with survey.built(parameters, run_context, 1, [arm], rng) as (built_arms, refused):
        if refused:
            raise Failed(refused[0][1]["reason"])
        with built_arms[0].while_measured():
            yield built_arms[0]


@contextmanager
def trex_ports(
    parameters: SharedParameters, run_context: RunContext, arm: Arm, mode: str
) -> Iterator[tuple[TrexPorts, Callable[[dict[str, Any]], Measured]]]:
    """Connect to the server; for a topology of labkit, build it and start a server on its first pair.

    `mode`: STL or ASTF. Also yields `Device.measured`. Raises the errors of `Client.connect`; for a topology also
    Unsupported and Failed if it cannot be built, or TRex not be started on it.
    """
    if parameters.server is not None:
        at = parameters.address
        taken = connected(run_context.companion_fd, at, parameters.ports, mode, force=parameters.force)
        with taken as (client, about):
            doubts = {"doubts": "; ".join(about.doubts) or None}
            yield TrexPorts(client, str(at), about, None), lambda one: (arm, {**doubts, **one})
        return
    with built(parameters, run_context, arm) as one:
        mtu_bytes = arm.parameters(parameters).mtu_bytes
        with server.started(
            one.topology.pairs, mtu_bytes, folder=parameters.trex, stateful=mode == "ASTF"
        ) as own:
            about = own.client.connect(mode, force=False)
            own.announce()
            ends = None if own.adjacent else own.ends
            yield TrexPorts(own.client, OWN, about, ends, (own.pid,)), one.measured


def point_name(parameters: SharedParameters, arm: Arm, number: int, mult: float | None = None) -> str:
    """Return the name of a load test's file of rows: `imix-r0`, of labkit's own topologies `imix-veth_bridge-r0`."""
    profile = parameters.profile.rpartition("/")[2].removesuffix(".py")
    words = [profile] if arm == OUTSIDE else [profile, arm.stem]
    names = ("".join(char if char.isalnum() else "_" for char in word) for word in words)
    return f"{'-'.join(names)}-r{number}" + ("" if mult is None else f"-m{mult:g}")
