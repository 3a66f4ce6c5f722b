"""The process that runs TRex's own client (lbr-trex-client), which brings an old scapy and an old yaml.

labkit's own process never imports the client. Requests come as JSON lines on standard input, answers leave as JSON
lines on standard output.

However the experiment ends, standard input ends. Then this process stops the traffic, removes its streams, releases the
ports, and ends. The traffic also ends by itself, because it is started for a duration.

Of labkit it imports only modules without packages, because the client needs its own copies of libraries.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from labkit.common.errors import BadInput, Failed, LabkitError, Unsupported
from labkit.measure.traffic.trex import streams
from labkit.measure.traffic.trex.streams import error_text
from labkit.system.process import Lines

RPC_S = 2  # how long an answer of the server may take; the client tries four times
PUBLISHER_S = 2.0  # how long the server's publisher may take to accept a connection
PATIENCE_S = 25.0  # of a request, beyond the duration of its traffic
CLOSING_S = 12.0  # the time to leave the server stopped and released; then this process is killed
SETTLE_S = 0.1  # from the start of traffic to the first reading of its rate, at most
READ_S = 1.0  # between two readings of stateful traffic
POLL_S = 0.005  # between two readings of the counters, at the end of a trial
# After the stop everything on its way arrives: until nothing more has arrived for so long, and at most so long.
DRAIN_S, MAX_DRAIN_S = 0.3, 2.0
PACKAGE = "TRex needs the Python package lbr-trex-client: install it (pip install 'labkit[trex]')"
TOO_NEW = "lbr-trex-client imports the module imp, which Python 3.12 removed: run labkit with Python 3.11 to use TRex"


class TimedOut(BaseException):
    """A request takes too long. No `except Exception` of the client hides it."""


class InputClosed(Exception):
    """Standard input has ended."""


class Channel:
    """Requests and answers, on copies of the descriptors: the client's own prints go to standard error."""

    def __init__(self) -> None:
        self._requests, self._output = Lines(open(os.dup(0), "rb", buffering=0)), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)

    def requests(self) -> Iterator[dict[str, Any]]:
        """Yield the requests, until standard input ends."""
        yield from map(json.loads, self._requests.until_end())

    def wait(self, until: float) -> None:
        """Sleep until `until` (time.monotonic()). Raises InputClosed as soon as standard input ends."""
        with contextlib.suppress(TimeoutError):
            while (left_s := until - time.monotonic()) > 0:
                if not self._requests.read(left_s):
                    raise InputClosed

    def answer(self, content: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._output, json.dumps(content).encode() + b"\n")


class Session:
    """A connection to one server, with the ports that it owns."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._client: Any = None
        self._spare: Any = None
        self._server = ""
        self._ports: list[int] = []
        self._owned = False
        self._mode = ""
        self._senders: list[int] = []
        self._latency_pps = 0.0
        # what each sending port sends, and its name in messages
        self._loaded: list[tuple[int, list[Any], str]] = []
        self._fresh = False  # no traffic has been started since the streams were added

    # the connection

    def connect(
        self, mode: str, host: str, rpc_port: int, name: str, ports: list[int], force: bool, user: str
    ) -> dict[str, Any]:
        """Connect and acquire the ports; return what the server reports about itself and about them. `name`: of the
        server, in messages."""
        self._server = name
        if sys.version_info >= (3, 12):  # the extra installs no client there
            raise Unsupported(TOO_NEW)
        # The client needs its own copies of libraries, so nothing else may have imported them before.
        try:
            import lbr_trex_client  # noqa: F401
        except ImportError:
            raise Unsupported(PACKAGE) from None
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
            raise self._no_connection(error_text(error), mode) from None
        there = self._client.get_all_ports()
        if missing := [port for port in ports if port not in there]:
            raise BadInput(
                f"ports={','.join(map(str, ports))}: the TRex server {self._server} has no port {missing[0]}; it has"
                f" {', '.join(map(str, there))}"
            )
        self._ports = ports
        self._acquire(mode, force)
        self._open_spare()
        return {
            "version": self._client.get_server_version().get("version"),
            "line_bps": [self._client.get_port_attr(port)["speed"] * 1e9 for port in ports],
            "driver": self._client.get_port_info(ports)[0].get("driver"),
            "publisher": _accepts(host, rpc_port - 1),
        }

    def _no_connection(self, text: str, mode: str) -> Failed:
        if "configuration mismatch" in text:
            other = {"STL": "without --astf", "ASTF": "with --astf"}[mode]
            return Failed(f"the TRex server {self._server} runs in another mode: start it {other}")
        if "version mismatch" in text.lower():  # of a newer client it has a capital V
            return Failed(
                f"the TRex server {self._server} has another version of the API than lbr-trex-client 3.4: {text}"
            )
        return Failed(
            f"no TRex server answers at {self._server}: start one there (./_t-rex-64 -i), or name another with"
            f" server=HOST:PORT ({text})"
        )

    def _owners(self) -> dict[int, str]:
        names = {port: self._client.ports[port].get_owner() for port in self._ports}
        return {port: name for port, name in names.items() if name}

    def _acquire(self, mode: str, force: bool) -> None:
        if not force and (owners := self._owners()):
            port, owner = next(iter(owners.items()))
            raise Failed(
                f"port {port} of the TRex server {self._server} is owned by {owner}: wait until it is released, or take"
                " it with force=true"
            )
        try:
            if mode == "STL":
                self._client.acquire(self._ports, force=force, sync_streams=force)
            else:
                self._client.acquire(force=force)
        except Exception as error:
            raise Failed(
                f"the ports of the TRex server {self._server} cannot be acquired: {error_text(error)}"
            ) from None
        self._owned, self._mode = True, mode
        if mode == "STL":
            self._client.stop(self._client.get_active_ports() or None)
            self._client.remove_all_streams(self._ports)

    def _open_spare(self) -> None:
        """Open a second connection, for `_leave_message`: a server that is stopped (SIGSTOP) answers no new one."""
        rpc = self._client.conn.rpc
        self._spare = type(rpc)(rpc.ctx)
        self._spare.connect()
        self._spare.set_api_h(rpc.api_h)
        self._spare.transmit("get_version")  # connects before it returns

    def _leave_message(self) -> None:
        """Ask a silent server to stop its traffic and to release the ports: it does so when it goes on (SIGCONT)."""
        if self._client.is_connected():  # it has answered
            return
        batch = self._spare.create_batch()
        if self._mode == "STL":
            for port in self._ports:
                given = {"handler": self._client.ports[port].handler, "port_id": port, "profile_id": "_"}
                for method in ("stop_traffic", "remove_all_streams", "release"):
                    batch.add(method, dict(given), self._spare.api_h)
        else:
            for method in ("stop", "release"):
                given = {"handler": self._client.handler, "profile_id": "_"}
                batch.add(method, given, self._spare.api_h)
        batch.invoke()

    def close(self) -> None:
        """Stop the server's traffic and release its ports, at the latest when a silent server goes on."""
        if self._client is None:
            return
        signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
        signal.setitimer(signal.ITIMER_REAL, CLOSING_S)
        steps: list[Callable[[], Any]] = []
        if self._owned:
            clear = [lambda: self._client.remove_all_streams(self._ports)] if self._mode == "STL" else []
            steps = [self._client.stop, *clear, self._client.release, self._leave_message]
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
        """Load the streams of the ports; return the mean length of their frames, with FCS, and the sending ports.

        `profile`: a name of PROFILES, or that of a file whose text is `source`. `ends`: the source and the destination
        address of each port. `both`: every port sends; else only those at an even place.
        """
        frames: list[tuple[int, float]] = []
        self._latency_pps, self._loaded = latency_pps, []
        for place, port in enumerate(self._ports):
            if place % 2 and not both:
                continue
            side, given = place % 2, ends[place] if ends else None
            if source is None:
                load = streams.profile_streams(profile, side, given)
            else:
                load = streams.file_streams(profile, source, side, port)
            if place < 2:
                frames += [(streams.frame_bytes(one), streams.weight(one)) for one in load]
            probes = [streams.probes(port, side, given, latency_pps)] if latency_pps else []
            self._loaded.append((port, [*load, *probes], f"the streams of {profile}"))
        self._add_streams()
        total = sum(weight for _, weight in frames)
        mean = sum(length * weight for length, weight in frames) / total if total else 0.0
        return {"frame_bytes": mean, "senders": self._senders}

    def load_frames(
        self,
        frames: list[list[int]],
        flows: int,
        field: str,
        ends: list[list[str]],
        udp_ports: list[int],
        latency_pps: float,
    ) -> dict[str, Any]:
        """Replace the streams of the first port of each pair by one stream for each frame size.

        `frames`: pairs of a size in bytes with FCS and its weight. `field`: what differs between the flows.
        """
        self._latency_pps, self._loaded = latency_pps, []
        for port, given in zip(self._ports[::2], ends[::2], strict=True):
            load = streams.mix_streams(frames, flows, field, given, udp_ports)
            probes = [streams.probes(port, 0, given, latency_pps, udp_ports)] if latency_pps else []
            self._loaded.append((port, [*load, *probes], "the streams"))
        self._add_streams()
        return {"senders": self._senders}

    def _add_streams(self) -> None:
        """Replace all streams. Only new ones begin with counters and histograms of latency at zero."""
        self._senders = [port for port, _load, _what in self._loaded]
        self._call(self._client.remove_all_streams, self._ports)
        for port, load, what in self._loaded:
            try:
                self._client.add_streams(load, ports=[port])
            except Exception as error:
                raise Failed(f"the TRex server refuses {what}: {error_text(error)}") from None
        self._fresh = True

    def trial(self, rate_pps: float, duration_s: float, grace_s: float) -> dict[str, Any]:
        """Send `rate_pps` packets per second from each sending port, beside the latency probes.

        TRex's rate of a port includes its latency streams, which the multiplier does not scale.

        Returns readings of the counters (at rest before, twice while it runs, at rest after) and the times.
        """
        port_pps = rate_pps + self._latency_pps
        if self._latency_pps and not self._fresh:
            self._add_streams()
        self._fresh = False
        readings = [self._reading()]
        begun = time.monotonic()
        try:
            self._client.start(ports=self._senders, mult=f"{port_pps:.3f}pps", duration=duration_s)
        except Exception as error:
            raise self._not_started(f"{rate_pps:.0f} pps from each port cannot be sent", error) from None
        started = time.monotonic()
        self._channel.wait(started + min(SETTLE_S, 0.2 * duration_s))
        readings.append(self._reading())
        self._channel.wait(started + 0.95 * duration_s)
        readings.append(self._reading())
        self._channel.wait(started + duration_s)
        rest = readings[0]["ports"]
        planned = len(self._senders) * int(port_pps * duration_s)
        deadline = started + duration_s + grace_s
        while (
            _rise(rest, self._port_counters(), "opackets") < planned and (now := time.monotonic()) < deadline
        ):
            self._channel.wait(min(now + POLL_S, deadline))
        self._call(self._client.stop, self._senders)
        ended = time.monotonic()
        self._drained(rest)
        readings.append(self._reading())
        return {"readings": readings, "begun": begun, "started": started, "ended": ended}

    def _not_started(self, what: str, error: Exception) -> LabkitError:
        """Return the error for traffic that could not be started."""
        text = error_text(error)
        if not self._client.is_connected() or "get server response" in text:
            return self._gone(text)
        return (BadInput if "exceeds port line rate" in text else Failed)(f"{what}: {text}")

    def _drained(self, rest: dict[str, Any]) -> None:
        """Wait until all has arrived that was sent since these counters, or nothing more does."""
        before, deadline = -1, (now := time.monotonic()) + MAX_DRAIN_S
        quiet = now + DRAIN_S
        while now < min(quiet, deadline):
            ports = self._port_counters()
            if (arrived := _rise(rest, ports, "ipackets", "ierrors")) >= _rise(rest, ports, "opackets"):
                return
            if arrived != before:
                before, quiet = arrived, now + DRAIN_S
            self._channel.wait(now + POLL_S)
            now = time.monotonic()

    def _port_counters(self) -> dict[str, Any]:
        return {str(port): self._rpc("get_port_stats", {"port_id": port}) for port in self._ports}

    # stateful traffic

    def load_stateful(self, profile: str, source: str | None, ends: list[str] | None) -> float | None:
        """Load connections: a name of STATEFUL, or a file of Python whose text is `source`; return how many begin per
        second at mult=1 (`streams.connection_rate`)."""
        own = streams.connections(ends) if source is None else streams.connections_of_file(profile, source)
        try:
            self._client.load_profile(own)
        except Exception as error:
            raise Failed(f"the TRex server refuses the profile {profile}: {error_text(error)}") from None
        return streams.connection_rate(own)

    def stateful(self, mult: float, duration_s: float, latency_pps: int) -> dict[str, Any]:
        """Run `mult` times the profile's connections per second, beside latency probes in both directions.

        Returns the server's own counters, read every READ_S seconds and once at rest, and those of the ports before.
        Those of connections and latency begin anew with each start.
        """
        before = self._port_counters()
        try:
            self._client.start(mult=mult, duration=duration_s, latency_pps=latency_pps)
        except Exception as error:
            raise self._not_started(f"mult={mult:g} cannot be started", error) from None
        started = time.monotonic()
        readings = []
        while (now := time.monotonic()) < started + duration_s:
            self._channel.wait(min(now + READ_S, started + duration_s))
            readings.append(self._stateful_reading())
        self._call(self._client.stop)
        self._channel.wait(time.monotonic() + DRAIN_S)
        self._drained(before)
        readings.append(self._stateful_reading())
        return {
            "before": before,
            "readings": readings,
            "described": self._rpc("get_counter_desc", {"profile_id": "_"})["data"],
        }

    def _stateful_reading(self) -> dict[str, Any]:
        ports = self._port_counters()
        return {
            "time": time.monotonic(),
            "ports": ports,
            "counters": self._rpc("get_counter_values", {"profile_id": "_"}),
            "latency": self._rpc("get_latency_stats"),
        }

    def _reading(self) -> dict[str, Any]:
        """Return the server's own counters, unchanged, with the time at which they were read."""
        before = time.monotonic()
        ports = self._port_counters()
        after = time.monotonic()
        result = {"time": (before + after) / 2, "ports": ports}
        if self._latency_pps:
            probes = [streams.FIRST_PROBES + port for port in self._senders]
            result["pgid"] = self._rpc("get_pgid_stats", {"pgids": probes})
        return result

    def _rpc(self, method: str, parameters: dict[str, Any] | None = None) -> Any:
        """Return the server's own answer: the client's would be smoothed and relative to its last reset."""
        answer = self._client._transmit(method, parameters or {})
        if not answer:
            raise self._gone(str(answer.err()))
        return answer.data()

    def _gone(self, text: str) -> Failed:
        return Failed(f"the TRex server {self._server} does not answer any more: {error_text(text)}")

    def _call(self, function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except Exception as error:
            raise self._gone(error_text(error)) from None


def _accepts(host: str, port: int) -> bool:
    """Return whether something accepts a connection there."""
    try:
        socket.create_connection((host, port), PUBLISHER_S).close()
    except OSError:
        return False
    return True


def _rise(before: dict[str, Any], after: dict[str, Any], *names: str) -> int:
    """Return by how much counters rose, of all ports together."""
    return sum(int(after[port][name]) - int(before[port][name]) for port in before for name in names)


def main() -> None:
    """Answer requests until there are no more; then stop the traffic and release the ports."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of standard input says the same, and later

    def end(*_: object) -> None:
        raise InputClosed

    def late(*_: object) -> None:
        raise TimedOut

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, late)
    channel = Channel()
    session = Session(channel)
    try:
        for request in channel.requests():
            do = request.pop("do")
            signal.setitimer(signal.ITIMER_REAL, PATIENCE_S + request.get("duration_s", 0.0))
            try:
                channel.answer({"ok": getattr(session, do)(**request)})
            except LabkitError as error:
                channel.answer({"error": str(error), "kind": type(error).__name__})
            except TimedOut:
                channel.answer({"error": f"TRex's client did not finish `{do}` in time", "kind": "Failed"})
            except InputClosed:
                raise
            except Exception as error:
                text = f"TRex's client failed ({type(error).__name__}: {error_text(error)})"
                channel.answer({"error": text, "kind": "Failed"})
    except InputClosed:
        pass
    finally:
        session.close()
    os._exit(0)  # the client's own threads would wait for the server


if __name__ == "__main__":
    main()
