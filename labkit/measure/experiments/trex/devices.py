"""The device under test of a load test with TRex: one outside that a server's ports reach, or a topology of labkit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labkit.common import run_folder, schema
from labkit.common.errors import Failed, Unsupported
from labkit.measure.experiments import context, survey
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments.context import Event, Progress, RunContext
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.experiments.trex.parameters import TrexParameters
from labkit.measure.traffic.trex import server
from labkit.measure.traffic.trex.client import Client, connected

OUTSIDE = Arm("outside", "baseline")  # a device that labkit did not build
START_S = 3.0  # about: of TRex
OWN = "labkit's own server"
COLUMNS = schema.names(writer=("throughput", "trex"))


@dataclass(frozen=True)
class Test:
    """The next test: the name of its point, its round, and the factor of a stateful profile's rates."""

    point: str
    round: int
    mult: float | None = None


@dataclass(frozen=True)
class Device:
    """A device with a TRex server at both of its sides, and a connection to it.

    `ends`: the addresses of each port's frames; None: those of TRex's own profiles reach the other port.
    `measured`: adds what a row says about the device to its metrics.
    """

    arm: Arm
    client: Client
    server: str
    version: str
    line_bps: Sequence[float]
    ends: list[tuple[str, str]] | None
    measured: Callable[[dict[str, Any]], Measured]

    def rows(
        self,
        parameters: TrexParameters,
        run_context: RunContext,
        test: Test,
        content: Sequence[dict[str, Any]],
    ) -> Event:
        """Return the event with the rows of a test; `content` has the columns of each."""
        return context.rows(test.point, self._rows(parameters, run_context, test, content))

    def keep(
        self,
        parameters: TrexParameters,
        run_context: RunContext,
        test: Test,
        content: Sequence[dict[str, Any]],
    ) -> None:
        """Keep rows of a test that still runs (`RunContext.keep_unfinished`)."""
        run_context.keep_unfinished(test.point, self._rows(parameters, run_context, test, content))

    def _rows(
        self,
        parameters: TrexParameters,
        run_context: RunContext,
        test: Test,
        content: Sequence[dict[str, Any]],
    ) -> list[run_folder.Row]:
        shared = {"trex_server": self.server, "trex": self.version}
        pairs = len(self.client.ports) // 2
        own = [self.measured({**shared, **one})[1] for one in content]
        return _rows(parameters, run_context, self.arm, test, own, pairs)


# Yields the events of the tests of a device, and moves the progress.
Measure = Callable[[Device, list[Test], Progress], Iterator[Event]]


def run(
    parameters: TrexParameters,
    run_context: RunContext,
    mode: str,
    total_s: float,
    measure: Measure,
    mults: Sequence[float | None] = (None,),
) -> Iterator[Event]:
    """Connect to one device after the other, and measure its tests that have no rows yet; yield rows and progress.

    `mode`: STL or ASTF. `total_s`: the planned seconds. `mults`: each test of a round has one.
    """
    arms = [OUTSIDE]
    if parameters.server is None:
        arms, refused = survey.survey(parameters, run_context)
        yield from survey.refused_rows([parameters], run_context, refused, run_context.done())
        if not arms:
            return
    groups = list(_groups(parameters, run_context, arms, mults))
    left = sum(len(tests) for _, tests in groups) / (parameters.rounds * len(arms) * len(mults))
    progress = Progress(total_s * min(left, 1.0))
    for arm, tests in groups:
        yield progress.event(_connecting(parameters, arm))
        try:
            with _connect(parameters, run_context, arm, mode) as device:
                yield from measure(device, tests, progress)
        except (Failed, Unsupported) as error:
            if arm == OUTSIDE:
                raise
            result = {"part": "cost", "direction": "all", **row_columns.not_measured(error)}
            yield context.rows(tests[0].point, _rows(parameters, run_context, arm, tests[0], [result]))
            yield context.stopped_event(1, str(error))


def _rows(
    parameters: TrexParameters,
    run_context: RunContext,
    arm: Arm,
    test: Test,
    content: Sequence[dict[str, Any]],
    pairs: int = 1,
) -> list[run_folder.Row]:
    shared = dict.fromkeys(COLUMNS) | {
        "generator": "trex",
        "frame": parameters.profile,
        "point": test.point,
        "round": test.round,
        "mult": test.mult,
    }
    return [row_columns.row_of(parameters, run_context, arm, pairs, {**shared, **one}) for one in content]


def _connecting(parameters: TrexParameters, arm: Arm) -> str:
    """Return what is done before a test, for a progress line."""
    if parameters.server is not None:
        return f"connecting to the TRex server {parameters.address}"
    return f"starting TRex on {arm.label}"


def planned_s(parameters: TrexParameters, test_s: float) -> float:
    """Estimate the duration of all tests in seconds. All use the server that the parameters name, or else each starts
    one."""
    if parameters.server is not None:
        return START_S + parameters.rounds * test_s
    count = parameters.rounds * len(survey.planned_arms(parameters))
    return survey.survey_s(parameters) + count * (START_S + test_s)


def _groups(
    parameters: TrexParameters,
    run_context: RunContext,
    arms: Sequence[Arm],
    mults: Sequence[float | None],
) -> list[tuple[Arm, list[Test]]]:
    """Return the tests that have no rows yet: those that share a connection, in the order of measurement.

    On labkit's own topologies each round has a fresh set-up of each arm, in alternating order.
    """
    done = run_context.done()
    result: list[tuple[Arm, list[Test]]] = []
    for number in range(parameters.rounds):
        for arm in _order_arms(run_context, arms, number):
            tests = [Test(point_name(parameters, arm, number, mult), number, mult) for mult in mults]
            if left := [test for test in tests if test.point not in done]:
                result.append((arm, left))
    if parameters.server is None or not result:
        return result
    return [(OUTSIDE, [test for _, left in result for test in left])]


def _order_arms(run_context: RunContext, arms: Sequence[Arm], number: int) -> list[Arm]:
    of = {arm.label: arm for arm in arms}
    return [of[label] for label in row_columns.order(run_context, 1, number, list(of))]


@contextmanager
def _connect(parameters: TrexParameters, run_context: RunContext, arm: Arm, mode: str) -> Iterator[Device]:
    """Connect to the server; for a topology of labkit, build it and start a server on its first pair.

    `mode`: STL or ASTF. Raises the errors of `Client.connect`; for a topology also Unsupported and Failed if it cannot
    be built, or TRex not be started on it.
    """
    if parameters.server is not None:
        at = parameters.address
        taken = connected(run_context.companion_fd, at, parameters.ports, mode, force=parameters.force)
        with taken as (client, about):
            doubts = {"doubts": "; ".join(about.doubts) or None}
            yield Device(
                arm,
                client,
                str(at),
                about.version,
                about.line_bps,
                ends=None,
                measured=lambda one: (arm, {**doubts, **one}),
            )
        return
    rng = random.Random(f"{run_context.seed} {arm.label}")
    with survey.built(parameters, run_context, 1, [arm], rng) as (built_arms, refused):
        if refused:
            raise Failed(refused[0][1]["reason"])
        [one] = built_arms
        mtu_bytes = arm.parameters(parameters).mtu_bytes
        with server.started(
            one.topology.pairs, mtu_bytes, folder=parameters.trex, stateful=mode == "ASTF"
        ) as own:
            connection = own.client.connect(mode, force=False)
            own.announce()
            ends = None if own.adjacent else own.ends
            yield Device(arm, own.client, OWN, connection.version, connection.line_bps, ends, one.measured)


def point_name(parameters: TrexParameters, arm: Arm, number: int, mult: float | None = None) -> str:
    """Return the name of a load test's file of rows: `imix-r0`, of labkit's own topologies `imix-veth_bridge-r0`."""
    profile = parameters.profile.rpartition("/")[2].removesuffix(".py")
    words = [profile] if arm == OUTSIDE else [profile, arm.stem]
    names = ("".join(char if char.isalnum() else "_" for char in word) for word in words)
    return f"{'-'.join(names)}-r{number}" + ("" if mult is None else f"-m{mult:g}")
