"""A bounded load between two existing ends, while counters are read: iperf3 with TCP, then with UDP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from labkit.common import errors, units
from labkit.common.errors import Failed
from labkit.measure.existing.checks.probes import End
from labkit.measure.existing.endpoints import ExistingEndpoint, require
from labkit.system import machine, process

SECONDS, MAX_SECONDS = 3, 30
TCP_BPS, UDP_BPS, UDP_BYTES = 2_000_000_000, 50_000_000, 1200
PORT = 5201
PROTOCOLS = {"TCP": ["-b", str(TCP_BPS)], "UDP": ["-u", "-b", str(UDP_BPS), "-l", str(UDP_BYTES)]}
START_S, SPARE_S, STEP_S = 3.0, 10.0, 0.5


@dataclass(frozen=True)
class Load:
    """What a load came to: the rate that arrived, and how many TCP segments were sent again or datagrams were lost."""

    protocol: str
    received_bps: float
    again_count: int
    sent_count: int
    said: str = ""


def plan(client: tuple[str, str], server: tuple[str, str], seconds: int) -> str:
    """Say what a load will send between two ends, each a name and its address."""
    return (
        f"from {client[0]} ({client[1]}) to {server[0]} ({server[1]}), port {PORT}: iperf3"
        f" for {seconds} s of TCP with at most {units.si(TCP_BPS, 'bit/s')}, then for {seconds} s of UDP with"
        f" {units.si(UDP_BPS, 'bit/s')}"
    )


def run(client: End, server: End, seconds: int, ends: Sequence[ExistingEndpoint]) -> list[Load]:
    """Run the load, as long as the named ends exist. What fails is in `said`. Raises Unsupported without iperf3, and
    Failed if its port is taken or an end has ended."""
    loads = []
    for protocol in PROTOCOLS:
        with listening(server), sending(client, server.address, seconds, protocol) as loaded:
            while (one := loaded()) is None:
                for end in ends:  # iperf3 would wait for it
                    require(end.name, end.process)
            loads.append(one)
    return loads


def _iperf3(end: End, *words: str) -> process.Running:
    machine.require_program("iperf3")
    inside = [*process.DIE_WITH_US, *end.space.namespace.prefix, machine.program("iperf3")]
    return process.Running([*inside, *words, "-p", str(PORT)])


@contextmanager
def listening(server: End) -> Iterator[None]:
    """Run a server of iperf3 for one load. Raises Unsupported without iperf3, and Failed if its port is taken."""
    if server.space.namespace.listens(PORT):
        raise Failed(f"another program listens on port {PORT} of {server.space.name}")
    with process.all_ended([_iperf3(server, "-s", "-1", "-B", server.address)]) as [started]:
        started.ready(lambda: server.space.namespace.listens(PORT), time.monotonic() + START_S, 0.02)
        yield


@contextmanager
def sending(client: End, to: str, seconds: int, protocol: str) -> Iterator[Callable[[], Load | None]]:
    """Send one part of the load to the address at which iperf3 listens. Yields what waits for up to STEP_S and returns
    what it came to; None: it still runs. What fails is in `said`."""
    words = [*PROTOCOLS[protocol], "-c", to, "-B", client.address, "-t", str(seconds), "-J"]
    words += ["--connect-timeout", "3000"]
    with process.all_ended([_iperf3(client, *words)]) as [running]:
        until_s = time.monotonic() + seconds + SPARE_S

        def loaded() -> Load | None:
            if process.wait([running], time.monotonic() + STEP_S) and time.monotonic() < until_s:
                return None
            ended = running.ended_within(0)
            try:
                return _parsed(protocol, ended.stdout)
            except Failed as error:
                return Load(protocol, 0.0, 0, 0, ended.message() if ended.timed_out else str(error))

        yield loaded


@errors.reading("the output of iperf3")
def _parsed(protocol: str, text: str) -> Load:
    report: dict[str, Any] = msgspec.json.decode(text)
    if "error" in report:
        raise Failed(report["error"])
    end = report["end"]
    if protocol == "UDP":
        total = end["sum"]
        rate = total["bits_per_second"] * (1 - total["lost_percent"] / 100)
        return Load(protocol, rate, total["lost_packets"], total["packets"])
    sent, received = end["sum_sent"], end["sum_received"]
    segments = max(int(sent["bytes"] / (report["start"].get("tcp_mss_default") or 1448)), 1)
    return Load(protocol, received["bits_per_second"], sent.get("retransmits", 0), segments)
