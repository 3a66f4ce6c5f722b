"""Frames for the tests of a monitor: ordinary ones, and mutants of real ones."""

from __future__ import annotations

import random

import overlay_checks
from conftest import SAMPLES
from example_frames import ethernet, ip

SAMPLE = SAMPLES / "tcpdump-4.99.3-gre.pcap"


def mutants(count: int, seed: int) -> list[bytes]:
    """Yield frames of real tunnels with bytes changed, cut off, inserted or doubled."""
    frames = [data for _length, data in overlay_checks.pcap(SAMPLE.read_bytes())]
    frames += [ethernet(ip(b"<script>alert(1)</script>\x1b[2J", "10.0.0.1 > 10.0.0.2", 17))]
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
