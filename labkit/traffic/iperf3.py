"""iperf3: one process for each end of each pair, parsed from its JSON only.

The parser is a pure function over the JSON of both ends (iperf3 3.12; `tests/samples` has real output).
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from labkit import process
from labkit.endpoints import Endpoint, Pair
from labkit.errors import Failed, Unsupported

PORT = 5201
OLDEST = (3, 12)  # the JSON of UDP runs has sums of both ends only from here on
GRACE_S = 5.0  # beyond its planned time, until a run is ended by force
START_S = 10.0


@dataclass(frozen=True)
class Load:
    """What iperf3 is asked for. None leaves a choice to iperf3; `rate_bps` None is as fast as it goes. Whole
    seconds: its -t and -O take no others."""

    protocol: str = "tcp"
    length_bytes: int | None = None
    rate_bps: float | None = None
    streams: int = 1
    duration_s: int = 5
    omit_s: int = 1
    mss_bytes: int | None = None
    congestion: str | None = None
    zerocopy: bool = False
    affinity: str | None = None  # "0,1": client's CPU, server's CPU


def version() -> str:
    """The version of iperf3. Raises Unsupported when there is none, or one whose JSON lacks what a row
    needs."""
    words = process.output(["iperf3", "--version"]).split()
    text = words[1] if len(words) > 1 else "?"
    numbers = tuple(int(number) for number in re.findall(r"\d+", text)[:2])
    if numbers < OLDEST:
        raise Unsupported(f"iperf3 {text} is too old: labkit reads the JSON of 3.12 and newer; install that")
    return text


def client_argv(load: Load, address: str) -> list[str]:
    """The client's command line."""
    argv = [
        "iperf3",
        "-J",
        "-c",
        address,
        "-p",
        str(PORT),
        "-t",
        str(load.duration_s),
        "--connect-timeout",
        "3000",
    ]
    if load.protocol == "udp":
        argv += ["-u", "-b", str(int(load.rate_bps or 0))]
    elif load.rate_bps is not None:
        argv += ["-b", str(int(load.rate_bps))]
    for flag, value in (
        ("-O", load.omit_s or None),
        ("-l", load.length_bytes),
        ("-P", load.streams if load.streams > 1 else None),
        ("-M", load.mss_bytes),
        ("-C", load.congestion),
        ("-A", load.affinity),
    ):
        if value is not None:
            argv += [flag, str(value)]
    return argv + (["-Z"] if load.zerocopy else [])


def server_argv(address: str) -> list[str]:
    """The server's command line; unbound, with both ends in one namespace it would answer UDP from the
    client's address."""
    return ["iperf3", "-s", "-1", "-J", "-p", str(PORT), "-B", address]


class Flow:
    """One client and one server process."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.server = process.Running([*pair.server.prefix, *server_argv(pair.server.address)])
        self.client: process.Running | None = None

    def connect(self, load: Load) -> None:
        """Start the client."""
        self.client = process.Running(
            [*self.pair.client.prefix, *client_argv(load, self.pair.server.address)]
        )

    def programs(self) -> list[process.Running]:
        """The processes that were started."""
        return [self.server] if self.client is None else [self.client, self.server]


class Flows:
    """The flows of one topology: started together, stopped and continued together, ended together."""

    def __init__(self) -> None:
        self.programs: list[process.Running] = []
        self.flows: list[Flow] = []

    def start(self, load: Load) -> None:
        """Start all clients. Each is stopped as soon as it exists and all are continued at once, so that none
        has a lead."""
        for flow in self.flows:
            flow.connect(load)
            assert flow.client is not None
            flow.client.signal(signal.SIGSTOP)
            self.programs.append(flow.client)
        self.go()

    @property
    def clients(self) -> list[process.Running]:
        """The client processes."""
        return [flow.client for flow in self.flows if flow.client is not None]

    def go(self) -> None:
        """Let all senders send."""
        for client in self.clients:
            client.signal(signal.SIGCONT)

    def hold(self) -> None:
        """Stop all senders where they are."""
        for client in self.clients:
            client.signal(signal.SIGSTOP)

    def wait(self, until: float) -> None:
        """Sleep until then (time.monotonic()), or until all clients have ended."""
        process.wait(self.clients, until)

    def early_end(self) -> str | None:
        """The words of a flow that has ended although it should be running, or None."""
        for flow in self.flows:
            for program in flow.programs():
                if program.poll():
                    return _why(flow)
        return None

    def finish(self, deadline: float) -> tuple[list[dict[str, Any]], str | None]:
        """Wait until the clients have ended and return each flow's JSON (both ends), and what went wrong
        first, or None.

        At the deadline the rest is interrupted (iperf3 then still writes what it has), a second later killed.
        """
        late = process.wait(self.clients, deadline)
        for program in late:
            program.signal(signal.SIGINT)
        late_words = f"iperf3 did not end {GRACE_S:.0f} s after its time and was ended" if late else None
        for program in process.wait(
            [*self.clients, *(flow.server for flow in self.flows)], time.monotonic() + 1
        ):
            program.signal(signal.SIGCONT)
            program.kill()
        pages = [{"client": _page(flow.client), "server": _page(flow.server)} for flow in self.flows]
        problems = (_problem(flow, page) for flow, page in zip(self.flows, pages, strict=True))
        return pages, late_words or next((problem for problem in problems if problem), None)


@contextmanager
def flows(pairs: Sequence[Pair]) -> Iterator[Flows]:
    """Servers listening for each pair; when the block ends, by whatever way, none of the processes is
    left."""
    made = Flows()
    with process.all_ended(made.programs):
        for pair in pairs:
            made.flows.append(Flow(pair))
            made.programs.append(made.flows[-1].server)
        _listening([pair.server for pair in pairs], made.programs)
        yield made


def _listening(servers: Sequence[Endpoint], programs: Sequence[process.Running]) -> None:
    """Return when every server's port listens (state 0A of /proc/net/tcp and tcp6)."""
    wanted = f":{PORT:04X} "
    deadline = time.monotonic() + START_S
    for server, program in zip(servers, programs, strict=True):
        tables = [server.namespace.open(f"/proc/net/{name}") for name in ("tcp6", "tcp")]
        try:
            while not any(_listens(table, wanted) for table in tables):
                if program.poll():
                    raise Failed(f"the iperf3 server ended before it listened: {program.ended().words()}")
                if time.monotonic() > deadline:
                    raise Failed(f"the iperf3 server at {server.name} did not listen within {START_S:.0f} s")
                time.sleep(0.002)
        finally:
            for table in tables:
                table.close()


def _listens(table: IO[str], wanted: str) -> bool:
    text = os.pread(table.fileno(), 1 << 16, 0).decode()
    return any(wanted in line and line.split()[3] == "0A" for line in text.splitlines()[1:])


def _page(program: process.Running | None) -> dict[str, Any]:
    """The JSON that iperf3 wrote; {} and the text under "unreadable" where it wrote none."""
    if program is None:
        return {}
    text = program.ended().stdout
    try:
        page = json.loads(text)
    except ValueError:
        return {"unreadable": text[:2000]}
    return page if isinstance(page, dict) else {"unreadable": text[:2000]}


def _problem(flow: Flow, page: dict[str, Any]) -> str | None:
    client, server = page["client"], page["server"]
    assert flow.client is not None
    if "error" in client:
        return f"iperf3: {client['error']}"
    if "unreadable" in client:
        ended = flow.client.ended()
        if ended.returncode == 0:
            return f"iperf3 wrote what is not JSON: {' '.join(client['unreadable'].split())[:120]!r}"
        return ended.words()
    if "error" in server:
        return f"iperf3 server: {server['error']}"
    return None


def _why(flow: Flow) -> str:
    for program in flow.programs():
        program.poll()
    page = {"client": _page(flow.client) if flow.client and flow.client.poll() else {}, "server": {}}
    if flow.server.poll():
        page["server"] = _page(flow.server)
        words = flow.server.ended().words()
        return f"iperf3 server: {page['server']['error']}" if "error" in page["server"] else words
    return _problem(flow, page) or "iperf3 ended before its time"


def metrics(pages: Sequence[dict[str, Any]], protocol: str) -> dict[str, Any]:
    """The sums over the flows that a row carries, from the JSON of both ends of each.

    iperf3_bps is what the receivers got; CPU-seconds are iperf3's own utilisation over the run without
    the omitted part. Raises Failed when a page lacks what this version of iperf3 should have written.
    """
    try:
        ends = [page["client"]["end"] for page in pages]
        received = [end["sum_received"] for end in ends]
        sent = [end["sum_sent"] for end in ends]
        cpu = [end["cpu_utilization_percent"] for end in ends]
        row: dict[str, Any] = {
            "iperf3_bps": sum(part["bits_per_second"] for part in received),
            "sent_bps": sum(part["bits_per_second"] for part in sent),
            "client_cpu_s": sum(
                use["host_total"] / 100 * part["seconds"] for use, part in zip(cpu, sent, strict=True)
            ),
            "server_cpu_s": sum(
                use["remote_total"] / 100 * part["seconds"] for use, part in zip(cpu, sent, strict=True)
            ),
        }
        return row | (_udp(pages) if protocol == "udp" else _tcp(ends))
    except (LookupError, TypeError, ArithmeticError) as error:
        raise Failed(f"iperf3's JSON lacks what a row needs: {error}") from None


def _udp(pages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    # What was lost is known at the server: the client's JSON (3.12) adds what was lost in the omitted
    # seconds.
    servers = [page["server"]["end"] for page in pages]
    received = [end["sum_received"] for end in servers]
    arrived = [part["packets"] - part["lost_packets"] for part in received]
    streams = [stream["udp"] for end in servers for stream in end["streams"]]
    return {
        "sent_count": sum(page["client"]["end"]["sum_sent"]["packets"] for page in pages),
        "received_count": sum(arrived),
        "lost_count": sum(part["lost_packets"] for part in received),
        "out_of_order_count": sum(stream["out_of_order"] for stream in streams),
        "jitter_s": sum(part["jitter_ms"] for part in received) / len(received) / 1e3,
        "length_bytes": pages[0]["client"]["start"]["test_start"]["blksize"],
    }


def _tcp(ends: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rtts = [stream["sender"]["mean_rtt"] for end in ends for stream in end["streams"]]
    return {
        "retransmits_count": sum(end["sum_sent"]["retransmits"] for end in ends),
        "rtt_s": sum(rtts) / len(rtts) / 1e6,
        "sender_congestion": ends[0].get("sender_tcp_congestion"),
    }
