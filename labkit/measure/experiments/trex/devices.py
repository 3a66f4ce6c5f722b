"""The device under test of a load test with TRex: one outside that a server's ports reach, or a topology of labkit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labkit.common.errors import Failed, Unsupported
from labkit.measure.experiments import context, survey
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments.context import Event, RunContext
from labkit.measure.experiments.rows import Arm, Measured
from labkit.measure.experiments.trex.parameters import OnServer
from labkit.measure.traffic.trex import server
from labkit.measure.traffic.trex.client import Client

OUTSIDE = Arm("outside", "baseline")  # a device that labkit did not build
START_S = 3.0  # about: of TRex
OWN = "labkit's own server"


@dataclass(frozen=True)
class Test:
    """A test that is measured next: the name of its point, its round, and the multiple of a stateful profile."""

    point: str
    round: int
    mult: float | None = None


Group = tuple[Arm, list[Test]]


@dataclass(frozen=True)
class Device:
    """A device with a TRex server at both of its sides, and a connection to it.

    `ends`: the addresses of each port's frames; None: those of TRex's own profiles reach the other port.
    `measured`: adds what a row says about the device to its metrics.
    """

    client: Client
    server: str
    version: str
    line_bps: Sequence[float]
    ends: list[tuple[str, str]] | None
    measured: Callable[[dict[str, Any]], Measured]


def planned(parameters: OnServer) -> list[Arm]:
    """Return the arms, as if all of them were usable."""
    return [OUTSIDE] if parameters.server is not None else survey.planned(parameters)


def connecting(parameters: OnServer, arm: Arm) -> str:
    """Return what is done before a test, for a progress line."""
    if parameters.server is not None:
        return f"connecting to the TRex server {parameters.address}"
    return f"starting TRex on {arm.label}"


def planned_s(parameters: OnServer, test_s: float) -> float:
    """Estimate the duration of all tests in seconds, each with a server of its own or all with one outside."""
    if parameters.server is not None:
        return START_S + parameters.rounds * test_s
    count = parameters.rounds * len(planned(parameters))
    return survey.survey_s(parameters) + count * (START_S + test_s)


def groups(
    parameters: OnServer,
    run_context: RunContext,
    arms: Sequence[Arm],
    mults: Sequence[float | None] = (None,),
) -> list[Group]:
    """Return the tests that have no rows yet: those that share a connection, in the order of measurement.

    On labkit's own topologies each round has a fresh set-up of each arm, in alternating order.
    """
    done = run_context.done()
    result: list[Group] = []
    for number in range(parameters.rounds):
        for arm in _ordered(run_context, arms, number):
            tests = [Test(point_name(parameters, arm, number, mult), number, mult) for mult in mults]
            if left := [test for test in tests if test.point not in done]:
                result.append((arm, left))
    if parameters.server is None or not result:
        return result
    return [(OUTSIDE, [test for _, left in result for test in left])]


def _ordered(run_context: RunContext, arms: Sequence[Arm], number: int) -> list[Arm]:
    of = {arm.label: arm for arm in arms}
    return [of[label] for label in row_columns.order(run_context, 1, number, list(of))]


def usable(parameters: OnServer, run_context: RunContext) -> Iterator[Event | list[Arm]]:
    """Yield the rows of arms that this kernel cannot build, and last the list of the others."""
    if parameters.server is not None:
        yield [OUTSIDE]
        return
    good, refused = survey.survey(parameters, run_context)
    yield from survey.refused_rows([parameters], run_context, refused, run_context.done())
    yield good


@contextmanager
def connected(parameters: OnServer, run_context: RunContext, arm: Arm, mode: str) -> Iterator[Device]:
    """Connect to the server; for a topology of labkit, build it and start a server on its first pair.

    `mode`: STL or ASTF. Raises the errors of `Client.connect`; for a topology also Unsupported and Failed if it cannot
    be built, or TRex not be started on it.
    """
    if parameters.server is not None:
        if run_context.companion_fd is None:
            raise Failed(
                "labkit has not started TRex's client, which should not happen: tell labkit's authors"
            )
        client = Client(run_context.companion_fd, parameters.address, parameters.ports)
        try:
            report = client.connect(mode, force=parameters.force)
            yield Device(
                client, str(parameters.address), report.version, report.line_bps, None, lambda one: (arm, one)
            )
        finally:
            client.close()
        return
    rng = random.Random(f"{run_context.seed} {arm.label}")
    with survey.built(parameters, run_context, 1, [arm], rng) as (live, refused):
        if refused:
            raise Failed(refused[0][1]["reason"])
        [one] = live
        mtu_bytes = arm.parameters(parameters).mtu_bytes
        with server.started(
            one.topology.pairs, mtu_bytes, folder=parameters.trex, stateful=mode == "ASTF"
        ) as own:
            report = own.client.connect(mode, force=False)
            own.announce()
            ends = None if own.adjacent else own.ends
            yield Device(own.client, OWN, report.version, report.line_bps, ends, one.measured)


def failed(
    parameters: OnServer,
    run_context: RunContext,
    arm: Arm,
    test: Test,
    error: Exception,
    columns: dict[str, Any],
) -> Event:
    """Return the rows of a test whose device or server could not be started."""
    status = "unsupported" if isinstance(error, Unsupported) else "failed"
    metrics = {
        **columns,
        "generator": "trex",
        "frame": parameters.profile,
        "point": test.point,
        "round": test.round,
        "mult": test.mult,
        "part": "cost",
        "direction": "all",
        "status": status,
        "reason": str(error),
    }
    return context.rows(test.point, [row_columns.row_of(parameters, run_context, arm, 1, metrics)])


def point_name(parameters: OnServer, arm: Arm, number: int, mult: float | None = None) -> str:
    """Return the name of a load test's file of rows: `imix-r0`, of labkit's own topologies `imix-veth_bridge-r0`."""
    profile = parameters.profile.rpartition("/")[2].removesuffix(".py")
    words = [profile] if arm == OUTSIDE else [profile, arm.stem]
    names = ("".join(char if char.isalnum() else "_" for char in word) for word in words)
    return f"{'-'.join(names)}-r{number}" + ("" if mult is None else f"-m{mult:g}")
