"""Read and write captured packets as pcapng (draft-ietf-opsawg-pcapng).

A hop is an interface of the file. Times are in nanoseconds. The file has directions, and what each hop lost.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.common import errors, safe_files

SECTION, INTERFACE, STATISTICS, PACKET = 0x0A0D0D0A, 1, 5, 6
MAGIC = 0x1A2B3C4D
END, COMMENT, USER_APPLICATION, NAME, RESOLUTION, FLAGS = 0, 1, 4, 2, 9, 2  # codes of options
RECEIVED, DROPPED_BY_KERNEL, DELIVERED = 4, 7, 8  # of an interface's statistics
IN, OUT = "in", "out"
MAX_COMMENT_BYTES = 1000
DIRECTIONS = {1: IN, 2: OUT}  # the two lowest of a packet's flags
DIRECTION_FLAGS = {name: flag for flag, name in DIRECTIONS.items()}

# Kind, block's length, interface, time (high, low), captured bytes, bytes of the whole frame.
_packet = struct.Struct("<IIIIIII")


@dataclass(frozen=True)
class Frame:
    """A frame as one hop saw it.

    `data` may be only its beginning; `length_bytes` is the length of the whole frame. `comment`: a text for people.
    """

    hop: str
    link_type: int
    time_ns: int
    direction: str
    length_bytes: int
    data: bytes
    comment: str | None = None


@dataclass(frozen=True)
class Counts:
    """Counts of the frames of one hop.

    captured: in the file. dropped: lost by the kernel, because the buffer was full. skipped: left out by a limit.
    truncated: in the file, but incomplete.
    """

    captured_count: int = 0
    dropped_count: int = 0
    skipped_count: int = 0
    truncated_count: int = 0


@dataclass(frozen=True)
class Recorded:
    """The content of a file: frames in the order of time, and the counts of every hop.

    `is_whole` is false if the recorder ended before it wrote what was lost.
    """

    frames: list[Frame]
    counts: dict[str, Counts]
    is_whole: bool


def header(hops: Sequence[tuple[str, int]], snap_bytes: int) -> bytes:
    """Return the beginning of a file: its hops, each with a name and a link type."""
    options = _option(USER_APPLICATION, b"labkit") + _option(END)
    blocks = [_block(SECTION, struct.pack("<IHHq", MAGIC, 1, 0, -1) + options)]
    for name, link_type in hops:
        options = _option(NAME, name.encode()) + _option(RESOLUTION, b"\x09") + _option(END)
        blocks.append(_block(INTERFACE, struct.pack("<HHI", link_type, 0, snap_bytes) + options))
    return b"".join(blocks)


def packet(
    hop: int, time_ns: int, flags: int, length_bytes: int, data: bytes, comment: str | None = None
) -> bytes:
    """Return the block of a frame at the hop of this number.

    `flags`: direction (1 in, 2 out) and reception type (4 unicast, 8 multicast, 12 broadcast, 16 another's address).
    `comment`: a text for people; Wireshark shows it. Its beginning is kept.
    """
    option = b"" if comment is None else _option(COMMENT, _beginning(comment))
    padded = -len(data) % 4
    total = 44 + len(data) + padded + len(option)
    head = _packet.pack(PACKET, total, hop, time_ns >> 32, time_ns & 0xFFFFFFFF, len(data), length_bytes)
    return head + data + bytes(padded) + option + struct.pack("<HHIII", FLAGS, 4, flags, 0, total)


def statistics(hop: int, time_ns: int, counts: Counts) -> bytes:
    """Return the block with the counts of a hop's frames up to a time."""
    received = counts.captured_count + counts.dropped_count + counts.skipped_count
    numbers = (
        (RECEIVED, received),
        (DROPPED_BY_KERNEL, counts.dropped_count),
        (DELIVERED, counts.captured_count),
    )
    options = b"".join(_option(code, struct.pack("<Q", number)) for code, number in numbers) + _option(END)
    return _block(STATISTICS, struct.pack("<III", hop, time_ns >> 32, time_ns & 0xFFFFFFFF) + options)


def read(content: bytes) -> Recorded:
    """Return the content of a file that labkit wrote, as far as it is complete: a truncated block ends it.

    Raises BadInput, with the place, for another file.
    """
    with errors.reading("the capture", errors.BadInput) as at:
        return _read(content, at)


def _read(content: bytes, at: errors.ReadPosition) -> Recorded:
    hops: list[tuple[str, int]] = []
    frames: list[Frame] = []
    counts: dict[str, Counts] = {}
    at.byte = 0
    for kind, body in _blocks(content):
        if kind == INTERFACE:
            hops.append((_options(body[8:])[NAME].decode(), struct.unpack_from("<H", body)[0]))
        elif kind == PACKET:
            frames.append(_frame(hops, body))
        elif kind == STATISTICS:
            number, report = struct.unpack_from("<I", body)[0], _options(body[12:])
            received, dropped, delivered = (
                struct.unpack("<Q", report[code])[0] for code in (RECEIVED, DROPPED_BY_KERNEL, DELIVERED)
            )
            counts[hops[number][0]] = Counts(delivered, dropped, received - dropped - delivered)
        at.byte += len(body) + 12
    is_whole = len(counts) == len(hops)
    counts = {name: counts.get(name, Counts()) for name, _ in hops}
    for frame in frames:
        one = counts[frame.hop]
        if not is_whole:
            one = replace(one, captured_count=one.captured_count + 1)
        cut = len(frame.data) < frame.length_bytes
        counts[frame.hop] = replace(one, truncated_count=one.truncated_count + cut)
    return Recorded(sorted(frames, key=lambda frame: frame.time_ns), counts, is_whole)


def _frame(hops: Sequence[tuple[str, int]], body: bytes) -> Frame:
    number, high, low, here, length_bytes = struct.unpack_from("<IIIII", body)
    data, rest = body[20 : 20 + here], body[20 + here + -here % 4 :]
    options = _options(rest)
    (flags,) = struct.unpack("<I", options[FLAGS])
    comment = options[COMMENT].decode() if COMMENT in options else None
    name, link_type = hops[number]
    return Frame(name, link_type, high << 32 | low, DIRECTIONS[flags & 3], length_bytes, data, comment)


def sort(path: Path, comments: Mapping[int, str] | None = None) -> None:
    """Sort the packets of a complete file by time, because hops were read one after the other.

    `comments`: as for `in_order`. Raises OSError if there is no room for a second file beside it.
    """
    content = path.read_bytes()
    with safe_files.replacing(path) as file:
        file.write(in_order(content, comments))


@errors.reading("the capture", errors.BadInput)
def in_order(content: bytes, comments: Mapping[int, str] | None = None) -> bytes:
    """Return a file with its packets in the order of time. `comments`: by the packet's number in that order.

    Raises BadInput for a file that labkit did not write.
    """
    texts = comments or {}
    rest, packets, at = [], [], 0
    for kind, body in _blocks(content):
        block = content[at : at + len(body) + 12]
        at += len(block)
        if kind == PACKET:
            _number, high, low = struct.unpack_from("<III", body)
            packets.append((high << 32 | low, block))
        else:
            rest.append((kind, block))
    packets.sort(key=lambda one: one[0])
    return b"".join(
        [
            *(block for kind, block in rest if kind != STATISTICS),
            *(_add_comment(block, texts.get(number)) for number, (_, block) in enumerate(packets)),
            *(block for kind, block in rest if kind == STATISTICS),
        ]
    )


def _add_comment(block: bytes, comment: str | None) -> bytes:
    """Return the block of a packet with this comment before its other options."""
    if comment is None:
        return block
    (here,) = struct.unpack_from("<I", block, 20)
    options = 28 + here + -here % 4
    body = block[8:options] + _option(COMMENT, _beginning(comment)) + block[options:-4]
    return _block(PACKET, body)


def _beginning(comment: str) -> bytes:
    """Return the first MAX_COMMENT_BYTES bytes of a text, without an incomplete character."""
    return comment.encode()[:MAX_COMMENT_BYTES].decode(errors="ignore").encode()


def _block(kind: int, body: bytes) -> bytes:
    total = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + total + body + total


def _option(code: int, value: bytes = b"") -> bytes:
    return struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)


def _blocks(content: bytes) -> Iterator[tuple[int, bytes]]:
    if content[:4] != struct.pack("<I", SECTION) or content[8:12] != struct.pack("<I", MAGIC):
        raise ValueError("this is not a capture by labkit (pcapng)")
    at = 0
    while at + 12 <= len(content):
        kind, total = struct.unpack_from("<II", content, at)
        if total < 12 or at + total > len(content):
            return
        yield kind, content[at + 8 : at + total - 4]
        at += total


def _options(data: bytes) -> dict[int, bytes]:
    result, at = {}, 0
    while at + 4 <= len(data):
        code, length = struct.unpack_from("<HH", data, at)
        if code == END:
            break
        result[code] = data[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4
    return result
