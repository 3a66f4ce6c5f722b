"""labkit's own requests: what answers which request."""

import socket
import threading
import time

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
        request = {"protocol": "udp_rr", "address": address, "port": port, "length_bytes": 1, "socket": {}}
        transaction = socket_loops._transaction({**request, "congestion": None})
        for _ in range(4):
            begun_s = time.monotonic()
            transaction()
            assert time.monotonic() - begun_s >= DELAY_S
        thread.join()
