"""The proxy of a published port copies every byte, both ways, and passes on that a side has ended."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from labkit.measure.topologies import published_ports

PATIENCE_S = 20.0


def test_clients_of_udp_are_remembered_while_they_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """iperf3's server sends one datagram. Its client would lose everything after a new port of the proxy."""
    monkeypatch.setattr(published_ports, "IDLE_S", 0.5)
    behind, front, client = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3))
    with behind, front, client:
        behind.bind(("127.0.0.1", 0))
        front.bind(("127.0.0.1", 0))
        behind.settimeout(PATIENCE_S)

        def copy() -> None:
            with suppress(OSError):  # the socket is closed at the end of the test
                published_ports._copy_datagrams(front, behind.getsockname())

        threading.Thread(target=copy, daemon=True).start()
        seen = set()
        for number in range(12):
            client.sendto(bytes([number]), front.getsockname())
            data, port = behind.recvfrom(10)
            assert data == bytes([number])
            seen.add(port)
            time.sleep(0.06)
        assert len(seen) == 1
        time.sleep(1.5)
        client.sendto(b"again", front.getsockname())
        assert behind.recvfrom(10)[1] not in seen, "an idle client is forgotten"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(PATIENCE_S)
        yield made


@pytest.fixture
def client() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a client's connection: its own end, and the end that the proxy has accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        front, _address = listener.accept()
        with ours, front:
            yield ours, front


def received(connection: socket.socket) -> bytes:
    """Return everything up to the end of the stream."""
    connection.settimeout(PATIENCE_S)
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_streams_are_copied_both_ways_until_both_have_ended(
    client: tuple[socket.socket, socket.socket], server: socket.socket
) -> None:
    request, answer = os.urandom(5_000_003), os.urandom(3_000_007)
    ours, front = client
    copying = threading.Thread(
        target=published_ports._copy_stream, args=(front, server.getsockname()), daemon=True
    )
    copying.start()

    def send(connection: socket.socket, content: bytes) -> threading.Thread:
        def work() -> None:
            connection.sendall(content)
            connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    with server.accept()[0] as behind:
        # Both send at the same time: more than all buffers on the way hold.
        senders = [send(ours, request), send(behind, answer)]
        assert received(behind) == request
        assert received(ours) == answer
    for one in (*senders, copying):
        one.join(PATIENCE_S)
        assert not one.is_alive()
    assert front.fileno() == -1


def test_client_of_a_server_that_refuses_gets_the_end_of_its_stream(
    client: tuple[socket.socket, socket.socket], server: socket.socket
) -> None:
    address = server.getsockname()
    server.close()
    ours, front = client
    published_ports._copy_stream(front, address)
    assert received(ours) == b""
