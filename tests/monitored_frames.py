"""Frames for the tests of a monitor: ordinary ones, and mutants of real ones."""

from __future__ import annotations

import random
import struct
from ipaddress import ip_address

import overlay_checks
from conftest import ROOT

SAMPLE = ROOT / "tests" / "samples" / "tcpdump-4.99.3-gre.pcap"
MACS = bytes(12)


def ip(source: str, destination: str, protocol: int, payload: bytes = bytes(8)) -> bytes:
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, 64, protocol, 0)
    return head + ip_address(source).packed + ip_address(destination).packed + payload


def mutants(count: int, seed: int) -> list[bytes]:
    """Yield frames of real tunnels with bytes changed, cut off, inserted or doubled."""
    frames = [data for _length, data in overlay_checks.pcap(SAMPLE.read_bytes())]
    frames += [MACS + b"\x08\x00" + ip("10.0.0.1", "10.0.0.2", 17, b"<script>alert(1)</script>\x1b[2J")]
    draw = random.Random(seed)
    result = []
    for _ in range(count):
        data = bytearray(draw.choice(frames))
        for _ in range(draw.randrange(1, 8)):
            at = draw.randrange(len(data) + 1)
            match draw.randrange(4):
                case 0 if at < len(data):
                    data[at] = draw.randrange(256)
                case 1:
                    del data[at:]
                case 2:
                    data[at:at] = draw.randbytes(draw.randrange(1, 40))
                case _:
                    data[at:at] = data[: draw.randrange(64)]
        result.append(bytes(data))
    return result
