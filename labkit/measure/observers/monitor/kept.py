"""The last packets of a monitor, in bounded memory. Blocks of the ring are kept as they are and decoded on demand."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit.system.recording.packet_ring import OUTGOING, Block

# Number, time in ns, direction, bytes in all, those that are here, and the values of tshark's fields.
Row = tuple[int, int, str, int, bytes, tuple[str, ...]]


def row(number: int, time_ns: int, kind: int, length_bytes: int, data: bytes) -> Row:
    return number, time_ns, "out" if kind == OUTGOING else "in", length_bytes, data, ()


@dataclass(slots=True)
class _Part:
    """Packets that came together. `gone` of them, the oldest, are forgotten."""

    packets: Sequence[Row] | Block
    first: int
    count: int
    size_bytes: int
    gone: int = 0

    def rows(self) -> list[Row]:
        if not isinstance(self.packets, Block):
            return list(self.packets[self.gone :])
        numbered = enumerate(self.packets.packets(), self.first)
        return [row(number, *seen) for number, seen in numbered if number >= self.first + self.gone]


class KeptPackets:
    """At most `max_count` packets in at most `max_bytes` bytes, the newest. What is pushed out is counted."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count, self._max_bytes = max_count, max_bytes
        self._parts: deque[_Part] = deque()
        self._bytes = 0
        self.count = self.forgotten_count = 0

    def add(self, rows: Sequence[Row]) -> None:
        """Keep packets, in the order of their arrival."""
        if rows:
            self._add(
                _Part(rows, rows[0][0], len(rows), sum(len(one[4]) + sum(map(len, one[5])) for one in rows))
            )

    def add_block(self, first: int, block: Block) -> None:
        """Keep all packets of a block; the first of them has the number `first`."""
        self._add(_Part(block, first, block.count, len(block.data)))

    def _add(self, part: _Part) -> None:
        self._parts.append(part)
        self._bytes += part.size_bytes
        self.count += part.count
        while self._parts and (self.count > self._max_count or self._bytes > self._max_bytes):
            oldest = self._parts[0]
            left = oldest.count - oldest.gone
            drop = left if self._bytes > self._max_bytes else min(left, self.count - self._max_count)
            oldest.gone += drop
            self.count -= drop
            self.forgotten_count += drop
            if drop == left:
                self._bytes -= oldest.size_bytes
                self._parts.popleft()

    def clear(self) -> None:
        self.forgotten_count += self.count
        self._parts.clear()
        self._bytes = self.count = 0

    def newest(self, since: int, limit: int, before: float = math.inf) -> list[Row]:
        """Return the newest `limit` packets with a number after `since` and below `before`, in the order of their
        arrival."""
        result: list[Row] = []
        for one in self._backwards(before):
            if len(result) >= limit or one[0] <= since:
                break
            result.append(one)
        return result[::-1]

    def _backwards(self, before: float) -> Iterator[Row]:
        for part in reversed(self._parts):
            if part.first < before:
                yield from (one for one in reversed(part.rows()) if one[0] < before)
