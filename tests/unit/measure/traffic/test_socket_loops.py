"""labkit's own requests: what answers which request."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from sandbox import until

from labkit.measure.traffic import socket_loops

DELAY_S = 0.02


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
        address, port = server.getsockname()
        request = {
            "protocol": "udp_rr",
            "address": address,
            "port": port,
            "length_bytes": 1,
            "response_bytes": 1,
        }
        transaction = socket_loops._transaction({**request, "socket": {}, "congestion": None})
        for _ in range(4):
            begun_s = time.monotonic()
            transaction()
            assert time.monotonic() - begun_s >= DELAY_S
        thread.join()


def test_round_trip_ends_with_the_last_byte() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()
        request = {
            "protocol": "tcp_rr",
            "address": address,
            "port": port,
            "length_bytes": 2,
            "response_bytes": 9,
        }
        transaction = socket_loops._transaction({**request, "socket": {}, "congestion": None})
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
    ("protocol", "rate_rps", "sizes"),
    [
        ("udp_rr", None, (2, 300)),
        ("udp_rr", None, (300, 2)),
        ("udp_rr", 400, (4, 300)),
        ("udp_rr", 400, (300, 4)),
        ("tcp_rr", None, (2, 90_000)),
        ("tcp_rr", 200, (2, 90_000)),
        ("tcp_crr", None, (90_000, 2)),
    ],
)
def test_response_of_another_size(protocol: str, rate_rps: int | None, sizes: tuple[int, int]) -> None:
    """The server answers each request, and the client takes the answer."""
    kind = socket.SOCK_DGRAM if protocol == "udp_rr" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as free:
        free.bind(("127.0.0.1", 0))
        address, port = free.getsockname()
    request = {
        "protocol": protocol, "address": address, "port": port, "count": 1, "length_bytes": sizes[0],
        "response_bytes": sizes[1], "socket": {}, "congestion": None, "rate_rps": rate_rps, "late_ns": 10**9,
        "omit_s": 0, "duration_s": 0.2 if rate_rps is None else 1,
    }  # fmt: skip
    argv = [sys.executable, "-I", "-S", socket_loops.__file__]
    with subprocess.Popen([*argv, json.dumps({**request, "serves": True})]) as server:
        try:
            with socket.socket(socket.AF_INET, kind) as one:
                one.settimeout(0.1)
                assert until(lambda: answer(one, (address, port), sizes) == sizes[1], 30)
            with subprocess.Popen(
                [*argv, json.dumps({**request, "serves": False})], stdout=subprocess.PIPE
            ) as client:
                assert client.stdout is not None
                assert client.stdout.readline() == b"ready\n"
                client.send_signal(signal.SIGHUP)
                report = json.loads(client.stdout.read())
        finally:
            server.kill()
    assert (report["problem"], report["lost"]) == (None, 0)
    count = sum(report["counts"].values())
    assert count == rate_rps if rate_rps else count > 2


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
