"""One end of labkit's own requests and connections: a loop of system calls in a process for each open connection.

tcp_crr: connect, request, response, close. tcp_cc: connect and close. tcp_rr, udp_rr: requests and responses of one
connection. In tcp_crr and tcp_cc the server closes first, and the client reads to the end. So TIME_WAIT stays at the
server, and the client's port is free again at once.

It runs alone, also in a container, so it imports only the standard library. `_socket` is Python's `socket` without the
layer that is written in Python. Measured on two shared cores over veth, with the kernel's part: 20 µs of the client's
CPU time for a connection of tcp_crr, 4 µs for a request of udp_rr.
"""

from __future__ import annotations

import _socket
import array
import collections
import ctypes
import errno
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

STEP_NS = 100  # times are reported in steps of this length
BACKLOG = 4096
RETRY_S = 1e-3  # after which a client without a free port tries again
PATIENCE_S = 8.0  # a lost SYN is sent again after 1, 3 and 7 s
PR_SET_PDEATHSIG = 1
SMALL_BYTES = 512  # of these, Nagle's algorithm holds nothing back on a new connection


class ClosedEarlyError(Exception):
    """The server closed a connection before its response was complete."""


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
    family, address = _address(request)
    one = _socket.socket(family, _socket.SOCK_DGRAM if protocol == "udp_rr" else _socket.SOCK_STREAM)
    one.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    one.bind(address)
    if protocol != "udp_rr":
        one.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)  # accepted connections inherit it
        one.listen(BACKLOG)
    _copies(request["count"])
    response = bytes(length)
    if protocol == "udp_rr":
        while True:
            one.sendto(*one.recvfrom(length))
    while True:
        connection = one._accept()[0]  # type: ignore[attr-defined]
        try:
            while protocol != "tcp_cc" and _read(connection, length):
                os.write(connection, response)
                if protocol == "tcp_crr":
                    break
        except OSError:  # the client has gone
            pass
        os.close(connection)


def _read(connection: int, length: int) -> bool:
    """Read so many bytes; return False if the connection ends before."""
    while length and (data := os.read(connection, length)):
        length -= len(data)
    return not length


def _transaction(request: dict[str, Any]) -> Callable[[], None]:
    """Return a function that does one transaction. It raises OSError or ClosedEarlyError."""
    protocol, length = request["protocol"], request["length_bytes"]
    family, address = _address(request)
    kind = _socket.SOCK_DGRAM if protocol == "udp_rr" else _socket.SOCK_STREAM
    payload, new = bytes(length), _socket.socket

    def with_connection() -> None:
        one = new(family, kind)
        one.connect(address)
        left = 0
        if protocol == "tcp_crr":
            if length > SMALL_BYTES:
                one.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            one.sendall(payload)
            left = length
        while data := one.recv(length):
            left -= len(data)
        one.close()
        if left:
            raise ClosedEarlyError

    if protocol in ("tcp_crr", "tcp_cc"):
        return with_connection
    open_one = new(family, kind)
    open_one.connect(address)
    if protocol == "tcp_rr":
        open_one.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    send, receive = open_one.sendall, open_one.recv

    def on_connection() -> None:
        send(payload)
        left = length
        while left:
            if not (data := receive(left)):
                raise ClosedEarlyError
            left -= len(data)

    return on_connection


def _repeat(transaction: Callable[[], None], seconds: float, times: array.array[int]) -> int:
    """Repeat a transaction for so long, append how long each took, and return how often no port was free."""
    clock, append, portless = time.monotonic_ns, times.append, 0
    begun = clock()
    end = begun + int(seconds * 1e9)
    while begun < end:
        try:
            while begun < end:
                transaction()
                now = clock()
                append(now - begun)
                begun = now
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            portless += 1
            time.sleep(RETRY_S)
            begun = clock()
    return portless


def measure(request: dict[str, Any]) -> None:
    """Print `ready`, wait for SIGHUP, and print a report for each connection: a line of JSON."""
    output, others = _copies(request["count"])
    if output == 1:
        os.write(1, b"ready\n")
    signal.sigwait([signal.SIGHUP])
    for pid, _ in others:
        os.kill(pid, signal.SIGHUP)
    times, portless, problem = array.array("q"), 0, None
    signal.signal(signal.SIGALRM, _silent)
    signal.setitimer(signal.ITIMER_REAL, request["omit_s"] + request["duration_s"] + PATIENCE_S)
    used_s = time.process_time()
    try:
        transaction = _transaction(request)
        _repeat(transaction, request["omit_s"], array.array("q"))
        used_s = time.process_time()
        portless = _repeat(transaction, request["duration_s"], times)
    except ClosedEarlyError:
        problem = "the server closed a connection before its response was complete"
    except TimeoutError:
        problem = f"an answer did not come within {PATIENCE_S:.0f} s"
    except OSError as error:
        problem = error.strerror
    signal.setitimer(signal.ITIMER_REAL, 0)  # the others' reports may take as long
    counts = collections.Counter(one // STEP_NS for one in times)
    report = {
        "counts": counts,
        "portless": portless,
        "cpu_s": time.process_time() - used_s,
        "problem": problem,
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
