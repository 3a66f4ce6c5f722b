"""iperf3 as a traffic generator: one process for each end of each pair.

It parses the JSON output of both ends (iperf3 3.12; `tests/samples` has real output).
"""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.endpoints import Endpoint, Pair, RemotePair
from labkit.measure.traffic.base import (
    FLOW_TURN_S,
    LARGEST_DATAGRAM,
    PORT,
    TURN_S,
    Capabilities,
    FlowGenerator,
    LoadParameters,
    Page,
    skew,
    until_listening,
)
from labkit.system import process

SERVER = "the iperf3 server"
OLDEST = (3, 12)  # the first version whose JSON of UDP runs has the sums of both ends
GRACE_S = 5.0  # how long a run may exceed its planned time before it is killed
LAST_WORDS_S = 1.0  # how long the other end may take to write its report after one end has ended
# For a program to start; on an emulated CPU that may be stopped for long.
START_S, EMULATED_START_S = 10.0, 60.0
_BACK = "_bidir_reverse"  # ends the names of the sums of the second direction
_DIRECTIONS: dict[str, list[str]] = {"forward": [], "reverse": ["-R"], "both": ["--bidir"]}


@dataclass(frozen=True)
class Load:
    """The options of an iperf3 run. None leaves the choice to iperf3; `rate_bps` None means as fast as possible.

    Times are whole seconds, because iperf3's -t and -O take no fractions.
    """

    protocol: str = "tcp"
    length_bytes: int | None = None
    rate_bps: float | None = None
    streams: int = 1
    duration_s: int = 5
    omit_s: int = 1
    mss_bytes: int | None = None
    congestion: str | None = None
    socket: str | None = None
    zerocopy: bool = False
    affinity: str | None = None  # "0,1": the client's CPU and the server's CPU
    direction: str = "forward"


def load_of(parameters: LoadParameters) -> Load:
    """Return the iperf3 options for the parameters of an experiment."""
    given = {field.name: getattr(parameters, field.name) for field in fields(Load)}
    udp = parameters.protocol == "udp"
    return Load(**given | {"length_bytes": parameters.datagram_bytes if udp else parameters.length_bytes})


def version() -> str:
    """Return the version of iperf3. Raises Unsupported if it is missing, or too old for the JSON that rows need."""
    words = process.output(["iperf3", "--version"]).split()
    text = words[1] if len(words) > 1 else "?"
    numbers = tuple(int(number) for number in re.findall(r"\d+", text)[:2])
    if numbers < OLDEST:
        raise Unsupported(
            f"iperf3 {text} is too old: labkit reads the JSON of 3.12 and newer; install a newer one"
        )
    return text


def client_argv(load: Load, address: str, port: int = PORT) -> list[str]:
    """Return the client's command line."""
    argv = ["iperf3", "-J", "-c", address, "-p", str(port), "-t", str(load.duration_s)]
    argv += ["--connect-timeout", "3000", *_DIRECTIONS[load.direction]]
    if load.protocol == "udp":
        argv += ["-u", "-b", str(int(load.rate_bps or 0))]
    elif load.rate_bps is not None:
        argv += ["-b", str(int(load.rate_bps))]
    options = _socket_options(load.socket)
    for flag, value in (
        ("-O", load.omit_s or None),
        ("-l", load.length_bytes),
        ("-P", load.streams if load.streams > 1 else None),
        ("-M", load.mss_bytes),
        ("-C", load.congestion),
        ("-w", options.get("sndbuf")),  # the server's, too, and all receive buffers
        ("-A", load.affinity),
    ):
        if value is not None:
            argv += [flag, str(value)]
    return argv + ["-Z"] * load.zerocopy + ["-N"] * ("nodelay" in options)


def _socket_options(text: str | None) -> dict[str, int]:
    if text is None:
        return {}
    from labkit.measure.traffic import socket_options  # few loads have any

    return socket_options.parse(text)


def server_argv(address: str, port: int = PORT) -> list[str]:
    """Return the server's command line.

    It binds the server to its address. Otherwise, with both ends in one namespace, the server would answer UDP from
    the client's address.
    """
    return ["iperf3", "-s", "-1", "-J", "-p", str(port), "-B", address]


class Servers:
    """One listening server for each end."""

    def __init__(self, programs: list[process.Running], ends: Sequence[Endpoint]) -> None:
        # The caller's list has each server from its start, so that the caller can end it.
        self.programs, self._ends = programs, ends
        self.start()

    def start(self) -> None:
        """Start the servers. Servers that still run, for example those that wait for a lost datagram, are killed."""
        _kill(self.programs)
        for end in self._ends:
            self.programs.append(end.start(server_argv(end.address, PORT + end.port_offset)))

    def finish(self, deadline: float) -> list[Page]:
        """Wait until the servers end, kill those that still run at the deadline, and return the JSON of each."""
        for program in process.wait(self.programs, deadline):
            program.go()
            program.kill()
        return [page_of(program) for program in self.programs]


def _kill(programs: list[process.Running]) -> None:
    """Kill programs, wait until they have ended, and remove them from the list."""
    for program in programs:
        program.kill()
    process.wait(programs, time.monotonic() + LAST_WORDS_S)
    programs.clear()


class Flow:
    """A client process, and its server process if that is on this host."""

    def __init__(self, pair: Pair | RemotePair, server: process.Running | None) -> None:
        self.pair = pair
        self.server = server
        self.client: process.Running | None = None

    def connect(self, load: Load, *, held: bool) -> None:
        """Start the client. With `held`, stop it before it sends."""
        argv = client_argv(load, self.pair.server_address, PORT + self.pair.server.port_offset)
        self.client = self.pair.client.start(argv, held=held)

    def programs(self) -> list[process.Running]:
        """Return the processes of this flow that were started on this host."""
        return [program for program in (self.client, self.server) if program is not None]


class Flows:
    """The flows of one topology: started together, stopped and continued together, ended together."""

    def __init__(
        self,
        pairs: Sequence[Pair | RemotePair],
        servers: Servers | None,
        load: Load,
        start_s: float = START_S,
    ) -> None:
        self.servers, self._load, self._start_s = servers, load, start_s
        self.programs: list[process.Running] = []
        self._placements: Iterator[Sequence[tuple[int, int]]] | None = None
        ready = [None] * len(pairs) if servers is None else servers.programs
        self.flows = [Flow(pair, server) for pair, server in zip(pairs, ready, strict=True)]

    def stage(self) -> None:
        """Prepare all clients for `go`: each is stopped as soon as it exists, so that none starts before the others.

        A single client starts at once, because to hold it takes one program more: 0.1 s on an emulated CPU.
        """
        held = len(self.flows) > 1
        for flow in self.flows:
            flow.connect(self._load, held=held)
            assert flow.client is not None
            self.programs.append(flow.client)
        if not held:
            return
        deadline = time.monotonic() + self._start_s
        for flow, client in zip(self.flows, self.clients, strict=True):
            # `finish` reports why a client has already ended.
            if not client.held(deadline) and not client.poll():
                where = flow.pair.client.name
                raise Failed(f"the iperf3 client at {where} was not ready within {self._start_s:.0f} s")

    def again(self) -> bool:
        """Start all flows of UDP anew, and return True. Return False if they cannot be, or need not be.

        iperf3 begins a flow of UDP with one datagram that the server answers with one. Neither is sent again, so if one
        gets lost both ends wait for 30 s (iperf_udp_connect, 3.12).
        """
        if self._load.protocol != "udp" or self.servers is None:
            return False
        _kill(self.programs)
        self.servers.start()
        for flow, server in zip(self.flows, self.servers.programs, strict=True):
            flow.server = server
        until_listening(
            SERVER,
            [flow.pair.server for flow in self.flows if isinstance(flow.pair, Pair)],
            self.servers.programs,
            self._start_s,
        )
        self.stage()
        self.go()
        return True

    @property
    def clients(self) -> list[process.Running]:
        """The client processes."""
        return [flow.client for flow in self.flows if flow.client is not None]

    def go(self) -> None:
        """Let all senders send."""
        for client in self.clients:
            client.go()

    def hold(self) -> None:
        """Pause all senders until the next `go`."""
        for client in self.clients:
            client.hold()

    def bind(self, cpus: Sequence[tuple[int, int]]) -> None:
        """Bind the client and the server of each flow to these CPUs. Raises Failed for a program that has ended."""
        for flow, (client, server) in zip(self.flows, cpus, strict=True):
            assert flow.client is not None
            assert flow.server is not None
            flow.client.bind(client)
            flow.server.bind(server)

    def move_ends(self, placements: Iterator[Sequence[tuple[int, int]]]) -> None:
        """Let `wait` bind the flows to the next placement at every turn (TURN_S, FLOW_TURN_S)."""
        self._placements = placements

    def wait(self, until: float) -> bool:
        """Sleep until `until` (time.monotonic()) or until all clients end. Return whether some still run."""
        turn_s = max(TURN_S, FLOW_TURN_S * len(self.flows))
        while self._placements is not None and until - time.monotonic() > turn_s:
            with suppress(Failed):  # a program that has ended needs no CPU
                self.bind(next(self._placements))
            if not process.wait(self.clients, time.monotonic() + turn_s):
                return False
        return bool(process.wait(self.clients, until))

    def interrupt(self) -> None:
        """End the clients early; iperf3 then writes what it counted."""
        for client in self.clients:
            client.signal(signal.SIGINT)
        self.go()

    def early_end(self) -> str | None:
        """Return the error message of a flow that ended too early, or None."""
        for flow in self.flows:
            for program in flow.programs():
                if program.poll():
                    return _why(flow)
        return None

    def finish(
        self, deadline: float, served: Callable[[], list[Page]] | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Wait until the clients end. Return the JSON of both ends of each flow, and the first problem or None.

        `served` returns the JSON of servers on another host. Clients that still run at the deadline are interrupted
        (iperf3 then writes what it has), and killed a second later.
        """
        late = process.wait(self.clients, deadline)
        for program in late:
            program.signal(signal.SIGINT)
        late_words = f"iperf3 did not end {GRACE_S:.0f} s after its time and was ended" if late else None
        for program in process.wait(self.clients, time.monotonic() + LAST_WORDS_S):
            program.go()
            program.kill()
        ends = zip(self.clients, (served or self.server_pages)(), strict=True)
        result = [{"client": page_of(client), "server": page} for client, page in ends]
        problems = (problem(client, both) for client, both in zip(self.clients, result, strict=True))
        return result, late_words or next((problem for problem in problems if problem), None)

    def server_pages(self) -> list[Page]:
        """Return the JSON of the servers that are on this host; kill those that are late."""
        return [] if self.servers is None else self.servers.finish(time.monotonic() + LAST_WORDS_S)


@contextmanager
def flows(pairs: Sequence[Pair], load: Load, *, emulated: bool = False) -> Iterator[Flows]:
    """Start a listening server for each pair, and yield the flows; all processes end with the block, in every case.

    `emulated`: wait longer for the servers, because their CPUs are emulated.
    """
    with servers([pair.server for pair in pairs], emulated=emulated) as ready:
        made = Flows(pairs, ready, load, EMULATED_START_S if emulated else START_S)
        with process.all_ended(made.programs):
            yield made


@contextmanager
def remote_flows(pairs: Sequence[RemotePair], load: Load) -> Iterator[Flows]:
    """Yield flows to servers that listen on another host; all clients end with the block."""
    made = Flows(pairs, None, load)
    with process.all_ended(made.programs):
        yield made


@contextmanager
def servers(ends: Sequence[Endpoint], *, emulated: bool = False) -> Iterator[Servers]:
    """Start servers that listen at these ends; all of them end with the block."""
    programs: list[process.Running] = []
    with process.all_ended(programs):
        made = Servers(programs, ends)
        until_listening(SERVER, ends, made.programs, EMULATED_START_S if emulated else START_S)
        yield made


def _why(flow: Flow) -> str:
    for program in flow.programs():
        program.poll()
    both = {
        "client": page_of(flow.client) if flow.client and flow.client.poll() else {},
        "server": {},
    }
    if flow.server is not None and flow.server.poll():
        both["server"] = page_of(flow.server)
        text = flow.server.ended().message()
        return f"iperf3 server: {both['server']['error']}" if "error" in both["server"] else text
    words_of = None if flow.client is None else problem(flow.client, both)
    return words_of or "iperf3 ended before its time"


def page_of(program: process.Running | None) -> Page:
    """Return the JSON that iperf3 wrote; text that is not JSON is under the key "unreadable"."""
    if program is None:
        return {}
    return parse(program.ended().stdout)


def parse(text: str) -> Page:
    """Parse the JSON of one end; text that is not JSON is under the key "unreadable"."""
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        return {"unreadable": text[:2000]}
    return result if isinstance(result, dict) else {"unreadable": text[:2000]}


def problem(client: process.Running, pages: Page) -> str | None:
    """Return the problem of a flow whose client has ended, from the JSON of its two ends, or None."""
    near, far = pages["client"], pages["server"]
    if "error" in near:
        return f"iperf3: {near['error']}"
    if "unreadable" in near:
        ended = client.ended()
        if ended.returncode == 0:
            return f"iperf3 wrote invalid JSON: {' '.join(near['unreadable'].split())[:120]!r}"
        return ended.message()
    if "error" in far:
        return f"iperf3 server: {far['error']}"
    return None


def metrics(pages: Sequence[Page], protocol: str) -> dict[str, Any]:
    """Compute the columns of a row: sums over all flows, from the JSON of both ends of each.

    iperf3_bps is the receivers' throughput, and forward_bps and reverse_bps are its directions. CPU seconds are
    iperf3's own utilisation over the run without the omitted part. Raises Failed if a page lacks a value that this
    version of iperf3 should write.
    """
    try:
        ends = [page["client"]["end"] for page in pages]
        sent = [end["sum_sent"] for end in ends]
        cpu = [end["cpu_utilization_percent"] for end in ends]
        turned = pages[0]["client"]["start"]["test_start"].get("reverse")
        sums = {"reverse" if turned else "forward": ""}
        sums |= {"reverse": _BACK} if f"sum_sent{_BACK}" in ends[0] else {}
        each = {
            f"{direction}_bps": sum(end[f"sum_received{sum_of}"]["bits_per_second"] for end in ends)
            for direction, sum_of in sums.items()
        }
        row: dict[str, Any] = {
            "iperf3_bps": sum(each.values()),
            **each,
            "sent_bps": sum(
                end[f"sum_sent{sum_of}"]["bits_per_second"] for end in ends for sum_of in sums.values()
            ),
            "client_cpu_s": sum(
                use["host_total"] / 100 * part["seconds"] for use, part in zip(cpu, sent, strict=True)
            ),
            "server_cpu_s": sum(
                use["remote_total"] / 100 * part["seconds"] for use, part in zip(cpu, sent, strict=True)
            ),
        }
        return row | (_udp(pages, sums) if protocol == "udp" else _tcp(pages, sums))
    except (LookupError, TypeError, ArithmeticError) as error:
        raise Failed(f"iperf3's JSON lacks what a row needs: {error}") from None


def _udp(pages: Sequence[Page], sums: Mapping[str, str]) -> dict[str, Any]:
    # Take the losses from the receivers: a sender's JSON (3.12) also counts losses in the omitted seconds.
    side = {"forward": "server", "reverse": "client"}
    ends = [(page[side[one]]["end"], sum_of) for page in pages for one, sum_of in sums.items()]
    received = [end[f"sum_received{sum_of}"] for end, sum_of in ends]
    arrived = sum(part["packets"] - part["lost_packets"] for part in received)
    sent = sum(
        page["client"]["end"][f"sum_sent{sum_of}"]["packets"] for page in pages for sum_of in sums.values()
    )
    lost = sum(part["lost_packets"] for part in received)
    streams = [stream["udp"] for end, _ in ends for stream in end["streams"]]
    streams = [one for one in streams if len(sums) == 1 or not one["sender"]]
    return {
        "sent_count": sent,
        "reported_received_count": arrived,
        "lost_count": _lost(sent, arrived, lost, skew(pages[0]["client"]["start"]["test_start"]["duration"])),
        "out_of_order_count": sum(stream["out_of_order"] for stream in streams),
        "jitter_s": sum(part["jitter_ms"] for part in received) / len(received) / 1e3,
        "length_bytes": pages[0]["client"]["start"]["test_start"]["blksize"],
    }


def _lost(sent: int, arrived: int, lost: int, most: float) -> int | None:
    """Return how many of the sent datagrams were lost, or None if the counts differ by more than the share `most`.

    Each end leaves out the omitted seconds by its own clock, so a late server also counts losses in them.
    """
    if arrived + lost > sent * (1 + most):
        return None
    return max(0, min(lost, sent - arrived))


def _tcp(pages: Sequence[Page], sums: Mapping[str, str]) -> dict[str, Any]:
    ends = [page["client"]["end"] for page in pages]
    sides = [side.get("end", {}) for page in pages for side in page.values()]
    streams = [stream["sender"] for side in sides for stream in side.get("streams", [])]
    rtts = [one["mean_rtt"] for one in streams if one["sender"]]
    return {
        "retransmits_count": sum(
            end[f"sum_sent{sum_of}"]["retransmits"] for end in ends for sum_of in sums.values()
        ),
        "rtt_s": sum(rtts) / len(rtts) / 1e6,
        "sender_congestion": ends[0].get("sender_tcp_congestion"),
    }


class Iperf3(FlowGenerator):
    """iperf3 as a traffic generator."""

    name = "iperf3"
    capabilities = Capabilities(
        length_bytes={"tcp": (1, 1 << 20), "udp": (16, LARGEST_DATAGRAM)},
        metric="throughput_bps",
        paced=True,
        sliced=True,
        streams=128,
        turns=True,
        sockets=("sndbuf", "rcvbuf", "nodelay"),
    )
    reported_bps = "iperf3_bps"
    grace_s, last_words_s = GRACE_S, LAST_WORDS_S

    def version(self) -> str:
        return version()

    def check(self, parameters: LoadParameters) -> None:
        """Raise BadInput for what iperf3 cannot do."""
        super().check(parameters)
        options = _socket_options(parameters.socket)
        if options.get("sndbuf") != options.get("rcvbuf"):
            raise BadInput("socket: iperf3 sets both buffers alike: give sndbuf and rcvbuf the same size")
        if options.get("nodelay") == 0:
            raise BadInput("socket=nodelay=off: iperf3 has it off anyway; leave it out")

    def flows(
        self,
        pairs: Sequence[Pair],
        parameters: LoadParameters,
        *,
        emulated: bool = False,
        endless: bool = False,
    ) -> AbstractContextManager[Flows]:
        """Start flows whose servers already listen; an endless flow runs for a day."""
        load = load_of(parameters)
        load = replace(load, duration_s=86400, omit_s=0) if endless else load
        return flows(pairs, load, emulated=emulated)

    def remote_flows(
        self, pairs: Sequence[RemotePair], parameters: LoadParameters
    ) -> AbstractContextManager[Flows]:
        return remote_flows(pairs, load_of(parameters))

    def servers(self, ends: Sequence[Endpoint], *, emulated: bool = False) -> AbstractContextManager[Servers]:
        return servers(ends, emulated=emulated)

    def metrics(self, reports: Sequence[Page], protocol: str) -> dict[str, Any]:
        """Compute the columns of a row from the JSON of both ends of each flow."""
        return metrics(reports, protocol)

    def block_bytes(self, parameters: LoadParameters) -> int:
        """Return the bytes of one write: for TCP without a length, iperf3's default of 128 KiB."""
        return (
            parameters.datagram_bytes if parameters.protocol == "udp" else parameters.length_bytes or 131072
        )


IPERF3 = Iperf3()
