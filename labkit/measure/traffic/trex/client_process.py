"""The process that has TRex's own client (lbr-trex-client), which brings an old scapy and an old yaml: labkit's own
process never imports it. Requests come as JSON lines on standard input, answers leave as JSON lines on standard output.

When standard input ends, in whatever way the experiment ended, this process stops the traffic, takes its streams out,
releases the ports, and ends. Everything that it started also ends by itself, because it is started for a duration.

It imports nothing of labkit: it runs as a file, `python -P client_process.py`.
"""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

RPC_S = 2  # how long an answer of the server may take; the client tries four times
PATIENCE_S = 25.0  # of a request, beyond the duration of its traffic
CLOSING_S = 12.0  # the time to leave the server stopped and released; then this process is killed
SETTLE_S = 0.1  # from the start of traffic to the first reading of its rate, at most
POLL_S = 0.005  # between two looks at counters, at the end of a trial
DRAIN_S = 0.3  # from the stop to the last reading, at most, so that everything on its way arrives
PACKAGE = "TRex needs the Python package lbr-trex-client: install it (pip install 'labkit[trex]')"
TOO_NEW = "lbr-trex-client imports the module imp, which Python 3.12 removed: run labkit with Python 3.11 to use TRex"
MIX = (
    (60, 28, 0.0),
    (590, 16, 0.1),
    (1514, 4, 0.2),
)  # of TRex's stl/imix.py: bytes without FCS, packets, start in s
SMALL = ((60, 1, 0.0),)  # of TRex's stl/udp_1pkt_simple_bdir.py
PROFILES = {"imix": MIX, "64b": SMALL}
STATEFUL = ("http_simple",)
HTTP_CPS = 2.776  # of TRex's astf/http_simple.py: connections a second at mult=1
HTTP_REQUEST = b"GET / HTTP/1.1\r\nHost: server\r\nUser-Agent: labkit\r\n\r\n"
HTTP_BYTES = 32768
HTTP_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 32768\r\n\r\n"
FCS_BYTES = 4
WIRE_BYTES = 20  # preamble and gap


class Refusal(Exception):
    """An error for the caller: the class of labkit.common.errors, and one sentence."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Late(BaseException):
    """A request takes longer than it may; no `except Exception` of the client's hides it."""


class Gone(Exception):
    """Standard input has ended."""


class Talk:
    """Requests and answers, on copies of the descriptors: the client's own prints go to standard error."""

    def __init__(self) -> None:
        self._input, self._output = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)
        self._heard = bytearray()

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield the requests, until standard input ends."""
        while True:
            while b"\n" in self._heard:
                line, _, rest = bytes(self._heard).partition(b"\n")
                self._heard = bytearray(rest)
                yield json.loads(line)
            if not (part := os.read(self._input, 1 << 16)):
                return
            self._heard += part

    def wait(self, until: float) -> None:
        """Sleep until `until` (time.monotonic()). Raises Gone as soon as standard input ends."""
        while (left := until - time.monotonic()) > 0:
            if select.select([self._input], [], [], left)[0]:
                if not (part := os.read(self._input, 1 << 16)):
                    raise Gone
                self._heard += part

    def answer(self, content: dict[str, Any]) -> None:
        """Write one answer."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._output, json.dumps(content).encode() + b"\n")


def words(error: BaseException) -> str:
    """Return an error of the client's in one line, without its frame and colours."""
    text = str(getattr(error, "brief", lambda: error)())
    if "Traceback" in text:  # of a profile's own code: its last line says what is wrong
        text = text.strip().splitlines()[-1]
    return " ".join("".join(char for char in text if char.isprintable() or char.isspace()).split())[:500]


class Session:
    """A connection to one server, with the ports that it owns."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._client: Any = None
        self._server = ""
        self._ports: list[int] = []
        self._owned = False
        self._mode = ""
        self._senders: list[int] = []
        self._latency_pps = 0.0

    # the connection

    def connect(
        self, mode: str, host: str, rpc_port: int, ports: list[int], force: bool, user: str
    ) -> dict[str, Any]:
        """Connect and acquire the ports; return what the server says of itself and of them."""
        self._server = f"{host}:{rpc_port}"
        # The client wants its own copies of libraries, so nothing else may have imported them before.
        try:
            import lbr_trex_client  # noqa: F401
        except ImportError:
            raise Refusal("Unsupported", PACKAGE) from None
        if sys.version_info >= (3, 12):
            raise Refusal("Unsupported", TOO_NEW)
        if mode == "STL":
            from trex.stl.api import STLClient as Client
        else:
            from trex.astf.api import ASTFClient as Client
        create: Any = Client
        self._client = create(
            username=user, server=host, sync_port=rpc_port, async_port=rpc_port - 1, verbose_level="none",
            sync_timeout=RPC_S, async_timeout=RPC_S,
        )  # fmt: skip
        try:
            self._client.connect()
        except Exception as error:
            raise self._no_connection(words(error), mode) from None
        there = self._client.get_all_ports()
        if missing := [port for port in ports if port not in there]:
            raise Refusal(
                "BadInput", f"ports={','.join(map(str, ports))}: the TRex server {self._server} has no port"
                f" {missing[0]}; it has {', '.join(map(str, there))}",
            )  # fmt: skip
        self._ports = ports
        self._acquire(mode, force)
        version = self._client.get_server_version()
        return {
            "version": version.get("version"),
            "mode": version.get("mode"),
            "line_bps": [self._client.get_port_attr(port)["speed"] * 1e9 for port in ports],
            "driver": self._client.get_port_info(ports)[0].get("driver"),
        }

    def _no_connection(self, text: str, mode: str) -> Refusal:
        if "configuration mismatch" in text:
            other = {"STL": "without --astf", "ASTF": "with --astf"}[mode]
            return Refusal("Failed", f"the TRex server {self._server} runs in another mode: start it {other}")
        if "version mismatch" in text:
            return Refusal(
                "Failed", f"the TRex server {self._server} has another version of the API than lbr-trex-client 3.4:"
                f" {text}"
            )  # fmt: skip
        return Refusal(
            "Failed",
            f"no TRex server answers at {self._server}: start one there (./_t-rex-64 -i), or name another with"
            f" server=HOST:PORT ({text})",
        )

    def _owners(self) -> dict[int, str]:
        names = {port: self._client.ports[port].get_owner() for port in self._ports}
        return {port: name for port, name in names.items() if name}

    def _acquire(self, mode: str, force: bool) -> None:
        if not force and (owners := self._owners()):
            port, owner = next(iter(owners.items()))
            raise Refusal(
                "Failed", f"port {port} of the TRex server {self._server} is owned by {owner}: wait until it is"
                " released, or take it with force=true",
            )  # fmt: skip
        try:
            if mode == "STL":
                self._client.acquire(self._ports, force=force, sync_streams=force)
            else:
                self._client.acquire(force=force)
        except Exception as error:
            raise Refusal(
                "Failed",
                f"the ports of the TRex server {self._server} cannot be acquired: {words(error)}",
            ) from None
        self._owned, self._mode = True, mode
        if mode == "STL":
            self._client.stop(self._client.get_active_ports() or None)
            self._client.remove_all_streams(self._ports)

    def close(self) -> None:
        """Leave the server stopped and released, whatever is left of the connection."""
        if self._client is None:
            return
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
        signal.setitimer(signal.ITIMER_REAL, CLOSING_S)
        steps: list[Callable[[], Any]] = []
        if self._owned:
            clear = [lambda: self._client.remove_all_streams(self._ports)] if self._mode == "STL" else []
            steps = [self._client.stop, *clear, self._client.release]
        steps.append(lambda: self._client.disconnect(stop_traffic=False, release_ports=False))
        for step in steps:
            with contextlib.suppress(Exception):
                step()
        self._client, self._owned = None, False

    # stateless traffic

    def load(
        self,
        profile: str,
        source: str | None,
        ends: list[list[str]] | None,
        latency_pps: float,
        both: bool,
    ) -> dict[str, Any]:
        """Give the ports their streams; return the mean length of their frames, with FCS, and their number.

        `profile`: a name of PROFILES, or that of a file whose text is `source`. `ends`: the source and the destination
        address of each port. `both`: every port sends; else only those at an even place.
        """
        from trex.stl.api import STLFlowLatencyStats, STLPktBuilder, STLStream, STLTXCont

        frames: list[tuple[int, float]] = []
        self._senders = [port for place, port in enumerate(self._ports) if both or place % 2 == 0]
        self._latency_pps = latency_pps
        for place, port in enumerate(self._ports):
            if port not in self._senders:
                continue
            given = ends[place] if ends else None
            if source is None:
                streams = _streams(profile, place % 2, given)
            else:
                streams = _from_file(profile, source, place % 2, port)
            if place < 2:
                frames += [(_length(stream), _weight(stream)) for stream in streams]
            if latency_pps:
                packet = STLPktBuilder(pkt=_packet(place % 2, given, 60))
                probes = STLFlowLatencyStats(pg_id=1000 + port)
                streams.append(STLStream(packet=packet, mode=STLTXCont(pps=latency_pps), flow_stats=probes))
            try:
                self._client.add_streams(streams, ports=[port])
            except Exception as error:
                raise Refusal(
                    "Failed", f"the TRex server refuses the streams of {profile}: {words(error)}"
                ) from None
        total = sum(weight for _, weight in frames)
        mean = sum(length * weight for length, weight in frames) / total if total else 0.0
        return {"frame_bytes": mean, "streams_count": len(frames), "senders": self._senders}

    def load_frames(
        self,
        frames: list[list[int]],
        flows: int,
        field: str,
        ends: list[list[str]],
        udp_ports: list[int],
        latency_pps: float,
    ) -> dict[str, Any]:
        """Give the first port of each pair one stream for each frame size, instead of the streams that it had.

        `frames`: pairs of a size in bytes with FCS and its weight. `field`: what differs between the flows.
        """
        from trex.stl.api import STLFlowLatencyStats, STLPktBuilder, STLStream, STLTXCont

        self._call(self._client.remove_all_streams, self._ports)
        self._senders, self._latency_pps = self._ports[::2], latency_pps
        for place, port in enumerate(self._ports):
            if port not in self._senders:
                continue
            program = _flow_program(field, flows, ends[place], udp_ports)
            streams = [
                STLStream(
                    packet=STLPktBuilder(
                        pkt=_packet(0, ends[place], size - FCS_BYTES, udp_ports), vm=program
                    ),
                    mode=STLTXCont(pps=weight),
                )
                for size, weight in frames
            ]
            if latency_pps:
                packet = STLPktBuilder(pkt=_packet(0, ends[place], 60, udp_ports))
                probes = STLFlowLatencyStats(pg_id=1000 + port)
                streams.append(STLStream(packet=packet, mode=STLTXCont(pps=latency_pps), flow_stats=probes))
            try:
                self._client.add_streams(streams, ports=[port])
            except Exception as error:
                raise Refusal("Failed", f"the TRex server refuses the streams: {words(error)}") from None
        return {"senders": self._senders}

    def trial(self, rate_pps: float, duration_s: float, grace_s: float) -> dict[str, Any]:
        """Send so many packets a second from each sending port for so long, beside the latency probes. Return readings
        of the counters: at rest before, twice while it runs, at rest after; and when it ran."""
        readings = [self._reading()]
        begun = time.monotonic()
        try:
            self._client.start(ports=self._senders, mult=f"{rate_pps:.3f}pps", duration=duration_s)
        except Exception as error:
            text = words(error)
            if not self._client.is_connected() or "get server response" in text:
                raise self._gone(text) from None
            kind = "BadInput" if "exceeds port line rate" in text else "Failed"
            raise Refusal(kind, f"{rate_pps:.0f} pps from each port cannot be sent: {text}") from None
        started = time.monotonic()
        self._talk.wait(started + min(SETTLE_S, 0.2 * duration_s))
        readings.append(self._reading())
        self._talk.wait(started + 0.95 * duration_s)
        readings.append(self._reading())
        self._talk.wait(started + duration_s)
        rest = readings[0]["ports"]
        planned = len(self._senders) * int((rate_pps + self._latency_pps) * duration_s)
        self._watch(started + duration_s + grace_s, lambda ports: _rise(rest, ports, "opackets") >= planned)
        self._call(self._client.stop, self._senders)
        ended = time.monotonic()
        arrived = ("ipackets", "ierrors")
        self._watch(
            ended + DRAIN_S, lambda ports: _rise(rest, ports, *arrived) >= _rise(rest, ports, "opackets")
        )
        readings.append(self._reading())
        return {"readings": readings, "begun": begun, "started": started, "ended": ended}

    def _watch(self, deadline: float, reached: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the ports' counters say so, at the latest until the deadline."""
        while not reached(self._port_counters()) and (now := time.monotonic()) < deadline:
            self._talk.wait(min(now + POLL_S, deadline))

    def _port_counters(self) -> dict[str, Any]:
        return {str(port): self._rpc("get_port_stats", {"port_id": port}) for port in self._ports}

    # stateful traffic

    def load_stateful(self, profile: str, source: str | None, ends: list[str] | None) -> dict[str, Any]:
        """Load connections: a name of STATEFUL, or a file of Python whose text is `source`."""
        chosen = _http(ends) if source is None else _stateful_from_file(profile, source)
        try:
            self._client.load_profile(chosen)
        except Exception as error:
            raise Refusal(
                "Failed", f"the TRex server refuses the profile {profile}: {words(error)}"
            ) from None
        return {}

    def stateful(self, mult: float, duration_s: float, latency_pps: int, poll_s: float) -> dict[str, Any]:
        """Run `mult` times the profile's connections a second, beside latency probes in both directions. Return the
        server's own counters, read every `poll_s` seconds and once at rest."""
        before = self._port_counters()
        try:
            self._client.start(mult=mult, duration=duration_s, latency_pps=latency_pps)
        except Exception as error:
            raise Refusal("Failed", f"mult={mult:g} cannot be started: {words(error)}") from None
        started = time.monotonic()
        readings = []
        while (now := time.monotonic()) < started + duration_s:
            self._talk.wait(min(now + poll_s, started + duration_s))
            readings.append(self._stateful_reading())
        self._call(self._client.stop)
        self._talk.wait(time.monotonic() + DRAIN_S)
        readings.append(self._stateful_reading())
        described = self._rpc("get_counter_desc", {"profile_id": "_"})["data"]
        return {
            "before": before,
            "readings": readings,
            "names": {str(one["id"]): one["name"] for one in described},
        }

    def _stateful_reading(self) -> dict[str, Any]:
        ports = self._port_counters()
        return {
            "time": time.monotonic(),
            "ports": ports,
            "global": self._rpc("get_global_stats"),
            "counters": self._rpc("get_counter_values", {"profile_id": "_"}),
            "latency": self._rpc("get_latency_stats"),
        }

    def _reading(self) -> dict[str, Any]:
        """The server's own counters, unchanged, with the time at which they were read."""
        before = time.monotonic()
        ports = self._port_counters()
        after = time.monotonic()
        result = {"time": (before + after) / 2, "ports": ports, "global": self._rpc("get_global_stats")}
        if self._latency_pps:
            result["pgid"] = self._rpc("get_pgid_stats", {"pgids": [1000 + port for port in self._senders]})
        return result

    def _rpc(self, method: str, parameters: dict[str, Any] | None = None) -> Any:
        """The server's own answer: the client's would be smoothed and relative to its last reset."""
        answer = self._client._transmit(method, parameters or {})
        if not answer:
            raise self._gone(str(answer.err()))
        return answer.data()

    def _gone(self, text: str) -> Refusal:
        return Refusal("Failed", f"the TRex server {self._server} does not answer any more: {text}")

    def _call(self, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except Exception as error:
            raise self._gone(words(error)) from None


def _rise(before: dict[str, Any], after: dict[str, Any], *names: str) -> int:
    """Return by how much counters rose, of all ports together."""
    return sum(int(after[port][name]) - int(before[port][name]) for port in before for name in names)


def _packet(side: int, ends: list[str] | None, size: int, udp_ports: list[int] | None = None) -> Any:
    """A UDP packet of `size` bytes without FCS from this side, 16.0.0.1 to 48.0.0.1 or back where no ends are given.

    With UDP ports it has no UDP checksum (RFC 768), because flows may change what it covers."""
    from trex.stl.api import IP, UDP, Ether  # the client's own scapy

    source, target = ends or [("16.0.0.1", "48.0.0.1"), ("48.0.0.1", "16.0.0.1")][side]
    udp = UDP(dport=12, sport=1025)
    if udp_ports:
        udp = UDP(sport=udp_ports[0], dport=udp_ports[1], chksum=0)
    head = Ether() / IP(src=source, dst=target) / udp
    return head / (b"x" * max(0, size - len(head)))


def _flow_program(field: str, flows: int, ends: list[str], udp_ports: list[int]) -> Any:
    """The program that makes so many flows, which differ in this field; None for one flow."""
    from trex.stl.api import STLScVmRaw, STLVmFixIpv4, STLVmFlowVar, STLVmWrFlowVar

    if flows == 1:
        return None
    place, size, first = {
        "source_port": ("UDP.sport", 2, udp_ports[0]),
        "target_port": ("UDP.dport", 2, udp_ports[1]),
        "source_ip": ("IP.src", 4, int(ipaddress.ip_address(ends[0]))),
        "target_ip": ("IP.dst", 4, int(ipaddress.ip_address(ends[1]))),
    }[field]
    steps = [
        STLVmFlowVar("flow", min_value=first, max_value=first + flows - 1, size=size, op="inc"),
        STLVmWrFlowVar(fv_name="flow", pkt_offset=place),
    ]
    return STLScVmRaw([*steps, *([STLVmFixIpv4(offset="IP")] if size == 4 else [])])


def _streams(profile: str, side: int, ends: list[str] | None) -> list[Any]:
    """The streams of a named profile; without ends, addresses go through 16.0.0.1-254 and 48.0.0.1-254."""
    from trex.stl.api import (
        STLPktBuilder,
        STLScVmRaw,
        STLStream,
        STLTXCont,
        STLVmFixIpv4,
        STLVmFlowVar,
        STLVmWrFlowVar,
    )

    result = []
    for size, pps, delay_s in PROFILES[profile]:
        program = None
        if ends is None and profile == "imix":
            first = [("16.0.0.1", "16.0.0.254"), ("48.0.0.1", "48.0.0.254")]
            (source, source_end), (target, target_end) = first if side == 0 else first[::-1]
            program = STLScVmRaw(
                [
                    STLVmFlowVar("src", min_value=source, max_value=source_end, size=4, op="inc"),
                    STLVmFlowVar("dst", min_value=target, max_value=target_end, size=4, op="inc"),
                    STLVmWrFlowVar(fv_name="src", pkt_offset="IP.src"),
                    STLVmWrFlowVar(fv_name="dst", pkt_offset="IP.dst"),
                    STLVmFixIpv4(offset="IP"),
                ]
            )
        packet = STLPktBuilder(pkt=_packet(side, ends, size), vm=program)
        result.append(STLStream(isg=delay_s, packet=packet, mode=STLTXCont(pps=pps)))
    return result


def _http(ends: list[str] | None) -> Any:
    """Connections like those of TRex's astf/http_simple.py: a GET, and an answer of 32 KiB.

    `ends`: the addresses of the client and the server; None: the ranges of that file."""
    from trex.astf.api import (
        ASTFIPGen,
        ASTFIPGenDist,
        ASTFIPGenGlobal,
        ASTFProfile,
        ASTFProgram,
        ASTFTCPClientTemplate,
        ASTFTCPServerTemplate,
        ASTFTemplate,
    )

    answer = HTTP_ANSWER + b"*" * HTTP_BYTES
    client, server = ASTFProgram(), ASTFProgram()
    client.send(HTTP_REQUEST)
    client.recv(len(answer))
    server.recv(len(HTTP_REQUEST))
    server.send(answer)
    clients, servers = ["16.0.0.0", "16.0.0.255"], ["48.0.0.0", "48.0.255.255"]
    if ends:
        clients, servers = [ends[0]] * 2, [ends[1]] * 2
    addresses = ASTFIPGen(
        glob=ASTFIPGenGlobal(ip_offset="1.0.0.0"),
        dist_client=ASTFIPGenDist(ip_range=clients, distribution="seq"),
        dist_server=ASTFIPGenDist(ip_range=servers, distribution="seq"),
    )
    template = ASTFTemplate(
        client_template=ASTFTCPClientTemplate(program=client, ip_gen=addresses, cps=HTTP_CPS),
        server_template=ASTFTCPServerTemplate(program=server),
    )
    return ASTFProfile(default_ip_gen=addresses, templates=template)


def _stateful_from_file(name: str, source: str) -> Any:
    """A stateful profile that is Python: code, which runs here with the user's rights."""
    from trex.astf.api import ASTFProfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, os.path.basename(name))
        with open(path, "w") as file:
            file.write(source)
        try:
            return ASTFProfile.load_py(path)
        except BaseException as error:
            raise Refusal(
                "BadInput",
                f"profile={name}: TRex cannot take it as a stateful profile: {type(error).__name__}: {words(error)}",
            ) from None


def _from_file(name: str, source: str, side: int, port: int) -> list[Any]:
    """The streams of a profile that is Python: code, which runs here with the user's rights."""
    from trex.stl.api import STLProfile

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, os.path.basename(name))
        with open(path, "w") as file:
            file.write(source)
        try:
            profile = STLProfile.load_py(path, direction=side, port_id=port)
            return list(profile.get_streams())
        except BaseException as error:  # also SystemExit: the code is a stranger's
            raise Refusal(
                "BadInput", f"profile={name}: TRex cannot take it as a stateless profile: {type(error).__name__}:"
                f" {words(error)}",
            ) from None  # fmt: skip


def _length(stream: Any) -> int:
    """The bytes of a stream's frame, with FCS."""
    return len(base64.b64decode(stream.to_json()["packet"]["binary"])) + FCS_BYTES


def _weight(stream: Any) -> float:
    """The packets of a stream among those of the others: its rate in packets a second, or what takes its place."""
    rate = stream.to_json()["mode"]["rate"]
    value, length = float(rate["value"]), _length(stream)
    if rate["type"] == "pps":
        return value
    return value / (length if rate["type"] == "bps_L2" else length + WIRE_BYTES)


def main() -> None:
    """Answer requests until there are no more; leave the server stopped and released."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of standard input says the same, and later

    def end(*_: object) -> None:
        raise Gone

    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, late)
    talk = Talk()
    session = Session(talk)
    try:
        for request in talk.requests():
            do = request.pop("do")
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_S + request.get("duration_s", 0.0))
            try:
                talk.answer({"ok": getattr(session, do)(**request)})
            except Refusal as error:
                talk.answer({"error": str(error), "kind": error.kind})
            except Late:
                talk.answer({"error": f"TRex's client did not finish `{do}` in time", "kind": "Failed"})
            except Gone:
                raise
            except Exception as error:
                talk.answer(
                    {
                        "error": f"TRex's client failed ({type(error).__name__}: {words(error)})",
                        "kind": "Failed",
                    }
                )
    except Gone:
        pass
    finally:
        session.close()
    os._exit(0)  # the client's own threads would wait for the server


if __name__ == "__main__":
    main()
