"""labkit's own requests: what answers which request."""

import array
import json
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sandbox import until

from labkit.measure.traffic import socket_loops

DELAY_S, SIZE = 0.02, 14
ARGV = [sys.executable, "-I", "-S", socket_loops.__file__]


def test_second_response_answers_no_later_request() -> None:
    """A path may deliver a datagram twice. Each round trip after it would else end with the one response before."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def answer_twice() -> None:
            for _ in range(4):
                request, client = server.recvfrom(100)
                time.sleep(DELAY_S)
                for _ in range(2):
                    server.sendto(request, client)

        thread = threading.Thread(target=answer_twice)
        thread.start()
        transaction = socket_loops._transaction(request("udp_rr", server.getsockname(), (1, 1)))
        for _ in range(4):
            begun_s = time.monotonic()
            transaction()
            assert time.monotonic() - begun_s >= DELAY_S
        thread.join()


def test_round_trip_ends_with_the_last_byte() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        transaction = socket_loops._transaction(request("tcp_rr", server.getsockname(), (2, 9)))
        connection, _ = server.accept()

        def answer_in_parts() -> None:
            for _ in range(3):
                connection.recv(2)
                connection.sendall(bytes(4))
                time.sleep(DELAY_S)
                connection.sendall(bytes(5))

        thread = threading.Thread(target=answer_in_parts)
        thread.start()
        for _ in range(3):
            begun_s = time.monotonic()
            transaction()
            assert time.monotonic() - begun_s >= DELAY_S
        thread.join()
        connection.close()


@pytest.mark.parametrize(
    ("protocol", "rate_rps", "outstanding", "sizes"),
    [
        ("udp_rr", None, 1, (2, 300)),
        ("udp_rr", None, 1, (300, 2)),
        ("udp_rr", None, 4, (4, 300)),
        ("udp_rr", None, 4, (300, 4)),
        ("udp_rr", 400, 1, (4, 300)),
        ("udp_rr", 400, 1, (300, 4)),
        ("tcp_rr", None, 1, (2, 90_000)),
        ("tcp_rr", None, 16, (90_000, 90_000)),
        ("tcp_rr", 200, 1, (2, 90_000)),
        ("tcp_crr", None, 1, (90_000, 2)),
    ],
)
def test_response_of_another_size(
    protocol: str, rate_rps: int | None, outstanding: int, sizes: tuple[int, int]
) -> None:
    """The server answers each request, and the client takes the answer."""
    kind = socket.SOCK_DGRAM if protocol == "udp_rr" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    asked = request(protocol, address, sizes, rate_rps=rate_rps, outstanding=outstanding)
    asked["duration_s"] = 0.2 if rate_rps is None else 1
    with subprocess.Popen([*ARGV, json.dumps({**asked, "serves": True})]) as server:
        try:
            with socket.socket(socket.AF_INET, kind) as one:
                one.settimeout(0.1)
                assert until(lambda: answer(one, address, sizes) == sizes[1], 30)
            report = reported(asked)
        finally:
            server.kill()
    assert (report["problem"], report["lost"]) == (None, 0)
    count = sum(report["counts"].values())
    assert count == rate_rps if rate_rps else count > 2


@pytest.mark.parametrize("protocol", ["udp_rr", "tcp_rr"])
@pytest.mark.parametrize("outstanding", [1, 8])
def test_so_many_are_in_flight_all_the_time(protocol: str, outstanding: int) -> None:
    """By Little's law the sum of the latencies is this number times the duration. The last ones end after it."""
    with answering(protocol, DELAY_S) as address:
        asked = request(protocol, address, (SIZE, SIZE), outstanding=outstanding)
        report = reported(asked)
    assert (report["problem"], report["lost"]) == (None, 0)
    counts_ns = {int(steps) * socket_loops.STEP_NS: count for steps, count in report["counts"].items()}
    assert min(counts_ns) > 0.99e9 * DELAY_S
    sum_s = sum(ns * count for ns, count in counts_ns.items()) / 1e9
    longest_s = max(counts_ns) / 1e9
    assert 0.8 * outstanding * asked["duration_s"] < sum_s
    assert sum_s < 1.01 * outstanding * (asked["duration_s"] + longest_s)


def test_a_lost_request_leaves_its_place_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are lost as may be in flight, so no more would be answered if they kept their places.

    The timer slack is of a thread, so it runs in its own one.
    """
    monkeypatch.setattr(socket_loops, "LOST_S", 1)
    lost, times = (10, 20, 30, 40), array.array("q")
    with answering("udp_rr", 0.001, lost=lost) as address, ThreadPoolExecutor(1) as own:
        asked = request("udp_rr", address, (SIZE, SIZE), outstanding=len(lost))
        _, report = own.submit(socket_loops._in_flight, {**asked, "duration_s": 3}, times).result()
    assert report["lost"] >= len(lost)
    assert len(times) > max(lost)


def test_a_request_begins_after_the_one_before_it_was_written() -> None:
    """The client sleeps while it waits for room. When there is some, the time of the test is over."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = request("tcp_rr", server.getsockname(), (1 << 20, 1), outstanding=4)
        asked["socket"] = {"sndbuf": 1 << 16}

        def answer_late() -> None:
            left = asked["length_bytes"] - 1
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1)
                time.sleep(2 * asked["duration_s"])
                assert len(connection.recv(left, socket.MSG_WAITALL)) == left
                time.sleep(5 * DELAY_S)
                connection.send(b"1")
                assert not connection.recv(1)

        with ThreadPoolExecutor(1) as other:
            end = other.submit(answer_late)
            report = reported(asked)
            end.result()
    assert (report["problem"], report["lost"]) == (None, 0)
    assert list(report["counts"].values()) == [1]
    assert report["cpu_s"] < 0.3 * asked["duration_s"]


def request(
    protocol: str, to: tuple[str, int], sizes: tuple[int, int], *, rate_rps: int | None = None, outstanding: int = 1
) -> dict[str, Any]:  # fmt: skip
    return {
        "protocol": protocol, "address": to[0], "port": to[1], "count": 1, "length_bytes": sizes[0],
        "response_bytes": sizes[1], "socket": {}, "congestion": None, "rate_rps": rate_rps, "late_ns": 10**9,
        "outstanding": outstanding, "omit_s": 0, "duration_s": 0.5,
    }  # fmt: skip


def reported(asked: dict[str, Any]) -> dict[str, Any]:
    """Let a client measure, and return its report."""
    argv = [*ARGV, json.dumps({**asked, "serves": False})]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        client.send_signal(signal.SIGHUP)
        result: dict[str, Any] = json.loads(client.stdout.read())
    return result


@contextmanager
def answering(protocol: str, after_s: float, lost: tuple[int, ...] = ()) -> Iterator[tuple[str, int]]:
    """Answer each request so long after it came, however many wait, except those of these numbers; yield the address.

    Requests have SIZE bytes.
    """
    done, streams = threading.Event(), protocol == "tcp_rr"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if streams else socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        if streams:
            server.listen()

        def answer_all() -> None:
            server.settimeout(30)
            one, waiting, seen = server.accept()[0] if streams else server, deque[tuple[Any, ...]](), 0
            while not done.is_set():
                wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.05
                if select.select([one], [], [], wait_s)[0]:
                    data, client = one.recvfrom(1 << 16)
                    for at in range(0, len(data), SIZE):
                        seen += 1
                        if seen not in lost:
                            waiting.append((time.monotonic() + after_s, data[at : at + SIZE], client))
                with suppress(ConnectionError):  # the client has gone
                    while waiting and waiting[0][0] <= time.monotonic():
                        _, data, client = waiting.popleft()
                        one.sendto(data, client) if client else one.send(data)
            if streams:
                one.close()

        thread = threading.Thread(target=answer_all)
        thread.start()
        try:
            yield server.getsockname()
        finally:
            done.set()
            thread.join()


def answer(one: socket.socket, to: tuple[str, int], sizes: tuple[int, int]) -> int:
    """Return the size of the response to one request; 0 if there is none."""
    try:
        if one.type == socket.SOCK_DGRAM:
            one.sendto(bytes(sizes[0]), to)
            return len(one.recv(1 << 17))
        one.close()
        with socket.create_connection(to) as connection:
            connection.sendall(bytes(sizes[0]))
            connection.settimeout(1)
            return len(connection.recv(1 << 20, socket.MSG_WAITALL))
    except OSError:
        return 0
