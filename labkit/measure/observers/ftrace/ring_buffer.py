"""Pages of the kernel's trace buffers, as per_cpu/cpuN/trace_pipe_raw gives them (include/linux/ring_buffer.h; the same
since Linux 2.6.30). Where fields are is read from events/header_page and from an event's format, never assumed."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.common import errors

MOST_DATA, PADDING = 28, 29  # of type_len; 30 and 31 are times
COMMITTED = (1 << 27) - 1  # the two highest bits of the word tell that events before the page were missed
_field = re.compile(r"field:\s*([^;]+?)\s*(\w+)(?:\[\d+\])?;\s*offset:(\d+);\s*size:(\d+);")
_LETTERS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def fields(text: str) -> dict[str, tuple[int, int]]:
    """The fields of a format: name to offset and size in bytes."""
    return {name: (int(offset), int(size)) for _kind, name, offset, size in _field.findall(text)}


@dataclass(frozen=True)
class Layout:
    """How a page is read: its size, where the length of its data and these begin; the number of the event, and its
    fields."""

    page_bytes: int
    commit: struct.Struct
    commit_at: int
    data_at: int
    event: int
    values: struct.Struct


@errors.reading("the format of a trace event")
def layout(header_page: str, event_format: str, names: tuple[str, ...]) -> Layout:
    """The layout by events/header_page and the event's format. `names` are fields that stand in it in this order.
    Raises ValueError for a format without them, or in another order."""
    page, event = fields(header_page), fields(event_format)
    number = re.search(r"^ID: (\d+)$", event_format, re.MULTILINE)
    if number is None or not {"commit", "data"} <= set(page) or not set(names) <= set(event):
        raise ValueError(f"not the format of an event with {', '.join(names)}")
    form, at = "=", 0
    for name in names:
        offset, size = event[name]
        if offset < at or size not in _LETTERS:
            raise ValueError(f"{name} of {size} bytes stands at {offset}, which is not looked for there")
        form += f"{offset - at}x{_LETTERS[size]}"
        at = offset + size
    (commit_at, commit_bytes), (data_at, data_bytes) = page["commit"], page["data"]
    return Layout(
        data_at + data_bytes,
        struct.Struct(f"={_LETTERS[commit_bytes]}"),
        commit_at,
        data_at,
        int(number[1]),
        struct.Struct(form),
    )


def events(page: bytes, of: Layout) -> Iterator[tuple[int, ...]]:
    """The values of each event of that number in a page. Raises ValueError for what is no page."""
    committed = of.commit.unpack_from(page, of.commit_at)[0] & COMMITTED
    end = of.data_at + committed
    if end > len(page):
        raise ValueError(f"a page of {len(page)} bytes cannot hold {committed}")
    words = memoryview(page)[: len(page) & ~3].cast("I")
    shift, mask = (0, 31) if sys.byteorder == "little" else (27, 31)
    number, values, half = of.event, of.values.unpack_from, 0xFFFF
    at, last, size = of.data_at >> 2, end >> 2, of.values.size + 3 >> 2
    while at < last - 1:  # the shortest has two words
        kind = words[at] >> shift & mask
        if 0 < kind <= MOST_DATA:
            begin, after = at + 1, at + 1 + kind
        elif kind == 0:
            begin, after = at + 2, at + 1 + (words[at + 1] + 3 >> 2)
        elif kind == PADDING:
            if words[at] >> 5 == 0 or words[at + 1] == 0:
                return  # nothing follows
            at += 1 + (words[at + 1] + 3 >> 2)
            continue
        else:
            at += 2
            continue
        if after > last:
            raise ValueError(f"an event ends {after - last} words behind its page's data")
        # common_type is the first field of every event
        if words[begin] & half == number and begin + size <= last:
            yield values(page, begin << 2)
        at = after


def pages(content: bytes, of: Layout) -> Iterator[bytes]:
    """The pages of a buffer, one after the other."""
    for begin in range(0, len(content) - of.page_bytes + 1, of.page_bytes):
        yield content[begin : begin + of.page_bytes]
