"""One end of labkit's own requests and connections: a loop of system calls in a process for each open connection.

tcp_crr: connect, request, response, close. tcp_cc: connect and close. tcp_rr, udp_rr: requests and responses of one
connection, in a closed loop, or in an open one at a rate. In tcp_crr and tcp_cc the server closes first, and the client
reads to the end. So TIME_WAIT stays at the server, and the client's port is free again at once.

It runs alone, also in a container or a guest, so it imports only the standard library. `_socket` is `socket` without
the layer that is written in Python. Measured on two shared cores over veth, with the kernel's part: 20 µs of the
client's CPU time for a connection of tcp_crr, 4 µs for a request of udp_rr.
"""

from __future__ import annotations

import _socket
import array
import collections
import contextlib
import ctypes
import errno
import gc
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

STEP_NS = 100  # times are reported in steps of this length
BACKLOG = 4096
RETRY_S = 1e-3  # after which a client without a free port tries again
PATIENCE_S = 8.0  # a lost SYN is sent again after 1, 3 and 7 s
# A request without a response for so long is lost: since it was sent, or (TCP, open loop) since the last one was due.
LOST_S = 2
SPIN_NS = 100_000  # before a request is due, its sender does not sleep: a timer may be late
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
SMALL_BYTES = 512  # of these, Nagle's algorithm holds nothing back on a new connection
SO_BUSY_POLL = 46  # asm-generic/socket.h
OPTIONS = {
    "sndbuf": (_socket.SOL_SOCKET, _socket.SO_SNDBUF),
    "rcvbuf": (_socket.SOL_SOCKET, _socket.SO_RCVBUF),
    "nodelay": (_socket.IPPROTO_TCP, _socket.TCP_NODELAY),
    "busy_poll": (_socket.SOL_SOCKET, SO_BUSY_POLL),
}
QUICKACK = _socket.IPPROTO_TCP, _socket.TCP_QUICKACK
LIMITS = {"sndbuf": "net.core.wmem_max", "rcvbuf": "net.core.rmem_max"}


class ClosedEarlyError(Exception):
    """The server closed a connection before its response was complete."""


def _settings(request: dict[str, Any], serves: bool) -> list[tuple[int, int, int | bytes]]:
    """Return the arguments of setsockopt(2) for each new socket; a server's accepted connections inherit them.

    Tries each option that was asked for. Raises OSError if the kernel refuses one, or silently takes another value.
    """
    protocol, asked = request["protocol"], request["socket"]
    # A new connection holds back no small request, so tcp_crr and tcp_cc save a call.
    small = (
        protocol in ("tcp_crr", "tcp_cc")
        and request["length_bytes"] <= SMALL_BYTES
        and len(_parts(request)) == 1
    )
    usual: dict[str, int] = {} if protocol == "udp_rr" or (small and not serves) else {"nodelay": 1}
    trial, result = _new(request, []), list[tuple[int, int, int | bytes]]()
    for name, value in (usual | {name: asked[name] for name in OPTIONS if name in asked}).items():
        result.append((*OPTIONS[name], value))
        if name in asked:
            _try(trial, name, result[-1])
            # The kernel doubles a buffer (socket(7)), and cuts it to the greatest size that a sysctl allows.
            if (has := trial.getsockopt(*OPTIONS[name]) // (2 if name in LIMITS else 1)) != value:
                limit = f": sysctl {LIMITS[name]}" if name in LIMITS else ""
                raise OSError(errno.EINVAL, f"the kernel made {name} {has}, not {value}{limit}")
    if "quickack" in asked:
        _try(trial, "quickack", (*QUICKACK, asked["quickack"]))
    if (name := request["congestion"]) is not None:
        result.append((_socket.IPPROTO_TCP, _socket.TCP_CONGESTION, name.encode()))
        _try(trial, f"congestion={name}", result[-1])
    trial.close()
    return result


def _try(trial: _socket.socket, name: str, setting: tuple[int, int, int | bytes]) -> None:
    try:
        trial.setsockopt(*setting)
    except OSError as error:
        raise OSError(error.errno, f"the kernel refuses {name}: {error.strerror}") from None


def _new(request: dict[str, Any], settings: list[tuple[int, int, int | bytes]]) -> _socket.socket:
    kind = _socket.SOCK_DGRAM if request["protocol"] == "udp_rr" else _socket.SOCK_STREAM
    one = _socket.socket(_address(request)[0], kind)
    for setting in settings:
        one.setsockopt(*setting)
    return one


def _parts(request: dict[str, Any]) -> list[bytes]:
    """Return what each write of a request sends."""
    count, length = request["socket"].get("writes", 1), request["length_bytes"]
    return [bytes(length - length // count * (count - 1)), *[bytes(length // count)] * (count - 1)]


def _reader(request: dict[str, Any]) -> tuple[Callable[[int], object], Callable[[int, int], bytes]]:
    """Return a function for each new connection, and read(2).

    With the option quickack both set it, because the kernel forgets it (tcp(7)).
    """
    quickack = request["socket"].get("quickack")
    if quickack is None:
        return int, os.read
    # A later connection with the same number needs no other object: setsockopt(2) takes the number alone.
    objects = dict[int, _socket.socket]()

    def begin(connection: int) -> None:
        if connection not in objects:
            objects[connection] = _socket.socket(fileno=connection)
        objects[connection].setsockopt(*QUICKACK, quickack)

    def read(connection: int, length: int) -> bytes:
        data = os.read(connection, length)
        objects[connection].setsockopt(*QUICKACK, quickack)
        return data

    return begin, read


def _address(request: dict[str, Any]) -> tuple[int, tuple[str, int]]:
    family = _socket.AF_INET6 if ":" in request["address"] else _socket.AF_INET
    return family, (request["address"], request["port"])


def _copies(count: int) -> tuple[int, list[tuple[int, int]]]:
    """Become `count` processes. Return where this one writes, and of the first one the others: pids and pipes."""
    others = []
    for _ in range(count - 1):
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            return writing, []
        os.close(writing)
        others.append((pid, reading))
    return 1, others


def serve(request: dict[str, Any]) -> None:
    """Answer until it is killed, in as many processes as clients have connections."""
    protocol, length = request["protocol"], request["length_bytes"]
    try:
        one = _new(request, _settings(request, serves=True))
        one.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        one.bind(_address(request)[1])
    except OSError as error:
        sys.exit(error.strerror)
    if protocol != "udp_rr":
        one.listen(BACKLOG)
    _copies(request["count"])
    response, (begin, read) = bytes(request["response_bytes"]), _reader(request)
    while protocol == "udp_rr" and len(response) == length:
        one.sendto(*one.recvfrom(length))
    while protocol == "udp_rr":  # the number of a request is at its end
        data, client = one.recvfrom(length)
        one.sendto(data[-len(response) :].rjust(len(response), b"\0"), client)
    while True:
        connection = one._accept()[0]  # type: ignore[attr-defined]
        try:
            begin(connection)
            while protocol != "tcp_cc" and _read(connection, length, read):
                os.write(connection, response)
                if protocol == "tcp_crr":
                    break
        except OSError:  # the client has gone
            pass
        os.close(connection)


def _read(connection: int, length: int, read: Callable[[int, int], bytes]) -> bool:
    """Read so many bytes; return False if the connection ends before."""
    while length and (data := read(connection, length)):
        length -= len(data)
    return not length


def _transaction(request: dict[str, Any]) -> Callable[[], None]:
    """Return a function that does one transaction. It raises OSError or ClosedEarlyError."""
    protocol, length = request["protocol"], request["length_bytes"]
    response_bytes = request["response_bytes"]
    (family, address), parts, settings = _address(request), _parts(request), _settings(request, serves=False)
    new, kind, (begin, read) = _socket.socket, _socket.SOCK_STREAM, _reader(request)

    def with_connection() -> None:
        one = new(family, kind)
        for setting in settings:
            one.setsockopt(*setting)
        one.connect(address)
        begin(number := one.fileno())
        left = 0
        if protocol == "tcp_crr":
            for part in parts:
                one.sendall(part)
            left = response_bytes
        while data := read(number, response_bytes):
            left -= len(data)
        one.close()
        if left:
            raise ClosedEarlyError

    if protocol in ("tcp_crr", "tcp_cc"):
        return with_connection

    one = _new(request, settings)
    if protocol == "udp_rr":
        one.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, struct.pack("ll", LOST_S, 0))
    one.connect(address)
    begin(number := one.detach())
    write, [payload, *rest] = os.write, parts
    sent, numbers = 0, 256 ** min(response_bytes, length, 4)

    def on_connection() -> None:
        write(number, payload)
        for part in rest:
            write(number, part)
        data = read(number, response_bytes)
        if len(data) != response_bytes and not (data and _read(number, response_bytes - len(data), read)):
            raise ClosedEarlyError

    def with_datagram() -> None:
        nonlocal sent
        sent = (sent + 1) % numbers
        write(number, sent.to_bytes(length))
        datagram = sent.to_bytes(response_bytes)
        while read(number, response_bytes) != datagram:  # a response that came late, or twice
            pass

    return with_datagram if protocol == "udp_rr" else on_connection


def _repeat(transaction: Callable[[], None], seconds: float, times: array.array[int]) -> dict[str, Any]:
    """Repeat a transaction for so long, and append how long each took.

    Return parts of the report: how often no port was free, and how many requests of udp_rr were lost.
    """
    clock, append, portless, lost = time.monotonic_ns, times.append, 0, 0
    begun = clock()
    end = begun + int(seconds * 1e9)
    while begun < end:
        try:
            while begun < end:
                transaction()
                now = clock()
                append(now - begun)
                begun = now
        except BlockingIOError:
            lost += 1
            begun = clock()
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            portless += 1
            time.sleep(RETRY_S)
            begun = clock()
    return {"portless": portless, "lost": lost}


def _in_flight(request: dict[str, Any], times: array.array[int]) -> tuple[float, dict[str, Any]]:
    """Keep `outstanding` requests in flight, or send by a schedule, whatever comes back, and append how long each took.

    With a schedule, the time of a request begins when it is due, and a sender that is late catches up. Requests of the
    first `omit_s` do not count. Responses of TCP come in order, and one of UDP has the number of its request.

    Return the CPU time used before those that count, and parts of the report.
    """
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1)
    rate, length, numbered = request["rate_rps"], request["length_bytes"], request["protocol"] == "udp_rr"
    response_bytes, most = request["response_bytes"], request["outstanding"]
    one = _new(request, _settings(request, serves=False))
    one.connect(_address(request)[1])
    begin, read = _reader(request)
    begin(number := one.detach())
    os.set_blocking(number, False)
    clock, waiting, unsent = time.monotonic_ns, dict[int, int](), b""
    sent = counted = answered = received_bytes = late = 0
    used_s = 0.0
    begun = due = now = clock()
    first = begun + 10**9 * request["omit_s"]
    until = first + int(1e9 * request["duration_s"])
    end = until + LOST_S * 10**9

    def following() -> Any:
        """Return when the next request is due, or `end`. One that waits for room waits until the oldest is lost."""
        if rate is not None:
            at = begun + 10**9 * sent // rate
        elif len(waiting) < most:
            at = now
        else:
            at = next(iter(waiting.values())) + LOST_S * 10**9 if numbered else end
        return at if at < until else end

    while now < end and (due < end or unsent or waiting):
        if unsent or now >= due:
            if not unsent:
                if due >= first:
                    used_s = used_s if counted else time.process_time()
                    counted += 1
                    late += now - due > request["late_ns"]
                if rate is None and len(waiting) == most:
                    del waiting[next(iter(waiting))]
                waiting[sent] = due
                unsent, sent, last = sent.to_bytes(length) if numbered else bytes(length), sent + 1, now
            with contextlib.suppress(BlockingIOError):
                unsent = unsent[os.write(number, unsent) :]
            now = clock()
            due = following()
        sleep_s = max(0, (end if unsent else due) - clock() - SPIN_NS) / 1e9
        arrived = select.select([number], [number] if unsent else [], [], sleep_s)[0]
        data = None
        with contextlib.suppress(BlockingIOError):  # the checksum of a datagram is verified when it is read
            data = read(number, response_bytes) if arrived else None
        now = clock()
        if data is None:
            continue
        if not data:
            raise ClosedEarlyError
        received_bytes += len(data)
        complete = [int.from_bytes(data)] if numbered else range(answered, received_bytes // response_bytes)
        answered += len(complete)
        for each in complete:
            if (begun_at := waiting.pop(each, 0)) >= first:
                times.append(now - begun_at)
        due = following() if rate is None else due
    offered_rps = sent / ((last - begun) / 1e9 + 1 / rate) if rate else None
    return used_s, {"portless": 0, "lost": counted - len(times), "late": late, "offered_rps": offered_rps}


def measure(request: dict[str, Any]) -> None:
    """Print `ready`, wait for SIGHUP, and print a report for each connection: a line of JSON."""
    output, others = _copies(request["count"])
    if output == 1:
        os.write(1, b"ready\n")
    signal.sigwait([signal.SIGHUP])
    for pid, _ in others:
        os.kill(pid, signal.SIGHUP)
    times, problem, found = array.array("q"), None, dict[str, Any]()
    signal.signal(signal.SIGALRM, _silent)
    signal.setitimer(signal.ITIMER_REAL, request["omit_s"] + request["duration_s"] + PATIENCE_S)
    used_s = time.process_time()
    try:
        if request["rate_rps"] is None and request["outstanding"] == 1:
            transaction = _transaction(request)
            _repeat(transaction, request["omit_s"], array.array("q"))
            used_s = time.process_time()
            found = _repeat(transaction, request["duration_s"], times)
        else:
            used_s, found = _in_flight(request, times)
    except ClosedEarlyError:
        problem = "the server closed a connection before its response was complete"
    except TimeoutError:
        problem = f"an answer did not come within {PATIENCE_S:.0f} s"
    except OSError as error:
        problem = error.strerror
    used_s = time.process_time() - used_s  # without what the report takes
    signal.setitimer(signal.ITIMER_REAL, 0)  # the others' reports may take as long
    counts = collections.Counter(one // STEP_NS for one in times)
    report = {
        "counts": counts,
        "cpu_s": used_s,
        "problem": problem,
        **found,
    }
    with open(output, "wb") as mine:
        mine.write(json.dumps(report).encode() + b"\n")
        for _, reading in others:
            with open(reading, "rb") as theirs:
                mine.write(theirs.read())


def _silent(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    gc.disable()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    asked: dict[str, Any] = json.loads(sys.argv[1])
    (serve if asked["serves"] else measure)(asked)
