"""Frame rates in packets per second, bits per second or per cent of a link's rate, and the bytes on the line.

On an Ethernet line a frame takes its own bytes (with FCS), 7 bytes of preamble, 1 of start delimiter, and 12 of gap to
the next (IEEE 802.3, clause 4): 84 bytes of a 64-byte frame, so 1.488 million frames a second fill 1 Gbit/s.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.common.errors import BadInput
from labkit.common.units import si

PREAMBLE_BYTES, GAP_BYTES = 8, 12
MIN_BYTES = 64  # of a frame with FCS
TAGS_BYTES = {"vlan": 4, "vxlan": 50, "vxlan6": 70}  # IEEE 802.1Q; RFC 7348 over IPv4, over IPv6
# Frame sizes of the mix in sending order, with FCS: 7, 4 and 1 frames, as in the simple IMIX of other generators. The
# order spreads the sizes.
IMIX = (64, 594, 64, 594, 64, 594, 64, 594, 64, 64, 64, 1518)
MIXES = {"imix": IMIX}
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)\s*(pps|bit/s|bps|%)", re.I)


@dataclass(frozen=True)
class Line:
    """A link: its rate in bit/s (None: no known limit), and what each frame on it has in addition (TAGS_BYTES)."""

    rate_bps: float | None = None
    tags: tuple[str, ...] = ()

    @property
    def tag_bytes(self) -> int:
        """The bytes that tags and encapsulation add to a frame."""
        return sum(TAGS_BYTES[name] for name in self.tags)

    def wire_bytes(self, frame_bytes: float) -> float:
        """Return the bytes that a frame of this size takes on the line, where a shorter one is padded."""
        return max(frame_bytes, MIN_BYTES) + self.tag_bytes + PREAMBLE_BYTES + GAP_BYTES

    def max_pps(self, frame_bytes: float) -> float | None:
        """Return how many frames of this size per second fill the line, or None without a known rate."""
        return None if self.rate_bps is None else self.rate_bps / (8 * self.wire_bytes(frame_bytes))

    def left_pps(self, frame_bytes: float, other_pps: float, other_bytes: float) -> float | None:
        """Return how many frames of this size per second fill what `other_pps` frames of `other_bytes` leave of the
        line, or None without a known rate; 0 or less if nothing is left."""
        if (most := self.max_pps(frame_bytes)) is None:
            return None
        return most - other_pps * self.wire_bytes(other_bytes) / self.wire_bytes(frame_bytes)

    def arithmetic(self, frame_bytes: float) -> str:
        """Explain `max_pps`: `64 + 20 = 84 bytes on the line; 1 Gbit/s / (84 · 8 bit) = 1488095 pps`."""
        parts = [
            f"{max(frame_bytes, MIN_BYTES):g}",
            *(f"{TAGS_BYTES[name]} ({name})" for name in self.tags),
            f"{PREAMBLE_BYTES + GAP_BYTES}",
        ]
        text = f"{' + '.join(parts)} = {self.wire_bytes(frame_bytes):g} bytes on the line"
        if (most := self.max_pps(frame_bytes)) is None:
            return text
        wire = f"{self.wire_bytes(frame_bytes):g}"
        return f"{text}; {si(self.rate_bps, 'bit/s')} / ({wire} · 8 bit) = {most:.0f} pps"


def sizes(text: str) -> tuple[int, ...]:
    """Parse frame sizes: a number gives one size, `imix` the sizes of the mix in sending order. Raises BadInput."""
    if text in MIXES:
        return MIXES[text]
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise BadInput(f"frame_bytes={text} is not a frame size: give bytes with FCS, or {', '.join(MIXES)}")
    return (int(text),)


def mean_bytes(frame_bytes: Sequence[float]) -> float:
    return sum(frame_bytes) / len(frame_bytes)


def pps(name: str, text: str, frame_bytes: Sequence[float], line: Line) -> float:
    """Parse `100kpps`, `1Gbit/s` (bits of frames with FCS) or `50%` (of the line's rate); return frames per second.

    Raises BadInput for another form, for a share of a line without a known rate, and for more than the line carries.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise BadInput(f"{name}={text}: write for example 100kpps, 500Mbit/s or 50%")
    number, mean = float(match[1]) * _UNITS[match[2].lower()], mean_bytes(frame_bytes)
    most, unit = line.max_pps(mean), match[3].lower()
    if unit == "%":
        if most is None:
            raise BadInput(f"{name}={text} is a share of a link's rate: give line_rate_bps as well")
        result = number / 100 * most
    else:
        result = number if unit == "pps" else number / (8 * mean)
    if result <= 0:
        raise BadInput(f"{name}={text}: the rate must be above 0")
    if most is not None and result > most * 1.0001:
        raise BadInput(f"{name}={text} is more than the link carries: {line.arithmetic(mean)}")
    return result
