"""Send the load in a guest, or count it there, on request from outside.

Each request is a line of JSON: the arguments of a trial, or `learn` or `read` for the counter. So is each answer.
It runs alone in the guest (`labkit.measure.endpoints.exec_server` starts it), so it imports only the standard library
and `packet_sender`. No nftables is needed there: a packet socket with a filter counts, and the guest's IP layer drops
what nobody listens for.
"""

import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

if __package__:
    from labkit.measure.traffic import packet_sender
else:  # in a guest, where labkit is not
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    packet_sender = __import__("packet_sender")

ETH_P_ALL = 3
PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 1, 1
PACKET_STATISTICS = 6


class Counter:
    """Counts the load at an interface with a packet socket that is never read: the kernel counts what it drops too.

    `frame`: what `learn` sends, so that switches on the way learn the interface's port. Raises OSError.
    """

    def __init__(self, interface: str, v6: bool, frame: bytes) -> None:
        self._frame, self._count = frame, 0
        self._learning = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        self._learning.bind((interface, 0))
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
        packet_sender.only_udp(self._socket, v6, (packet_sender.PORT, packet_sender.PROBE_PORT))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel makes it a few frames
        self._socket.setsockopt(packet_sender.SOL_PACKET, packet_sender.PACKET_IGNORE_OUTGOING, 1)
        # Flows may differ in their MAC address, and a NIC would drop those that are not its own.
        wanted = struct.pack("iHH8s", socket.if_nametoindex(interface), PACKET_MR_PROMISC, 0, b"")
        self._socket.setsockopt(packet_sender.SOL_PACKET, PACKET_ADD_MEMBERSHIP, wanted)
        self._socket.bind((interface, ETH_P_ALL))

    def learn(self) -> None:
        """Send the frame from which switches learn."""
        packet_sender.send_frame(self._learning, self._frame)

    def read(self) -> int:
        """Return how many frames of the load have arrived. The kernel's counters start again with each request."""
        packets, _dropped = struct.unpack(
            "II", self._socket.getsockopt(packet_sender.SOL_PACKET, PACKET_STATISTICS, 8)
        )
        self._count += packets  # with those that found no room
        return self._count

    def answer(self, request: str) -> dict[str, Any]:
        """Return the count; `learn` sends the frame before."""
        if request == "learn":
            self.learn()
        return {"count": self.read()}


def main() -> None:
    """Run as a program whose argument is the request as JSON."""
    request: dict[str, Any] = json.loads(sys.argv[1])
    requests, answers = open(0, "rb"), open(1, "wb")
    try:
        if "addresses" in request:
            addresses = packet_sender.FrameAddresses(**request["addresses"])
            mix = packet_sender.Mix(**request["mix"])
            answer: Callable[[Any], dict[str, Any]] = packet_sender.Sender(addresses, mix).answer
            packet_sender.prepare_process(None)
        else:
            frame = bytes.fromhex(request["frame"])
            answer = Counter(request["interface"], request["v6"], frame).answer
        packet_sender.serve(requests, answers, answer)
    except OSError as error:
        answers.write(json.dumps({"error": error.strerror}).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
