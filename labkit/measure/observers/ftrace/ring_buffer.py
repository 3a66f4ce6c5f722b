"""Parse pages of the kernel's trace buffers from per_cpu/cpuN/trace_pipe_raw.

Source: include/linux/ring_buffer.h, unchanged since Linux 2.6.30. Field positions are read from events/header_page and
the event's format.
"""

import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.common import errors

MAX_DATA, PADDING = 28, 29  # values of type_len; 30 and 31 are timestamps
COMMITTED = (1 << 27) - 1  # the two highest bits of the word mark lost events before the page
_field = re.compile(r"field:\s*([^;]+?)\s*(\w+)(?:\[\d+\])?;\s*offset:(\d+);\s*size:(\d+);")
_LETTERS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def fields(text: str) -> dict[str, tuple[int, int]]:
    """Parse the fields of a format: name to offset and size in bytes."""
    return {name: (int(offset), int(size)) for _kind, name, offset, size in _field.findall(text)}


@dataclass(frozen=True)
class Layout:
    """The layout of a page: its size, where the data length and the data are, and the event's number and fields."""

    page_bytes: int
    commit: struct.Struct
    commit_at: int
    data_at: int
    event: int
    values: struct.Struct


@errors.reading("the format of a trace event")
def layout(header_page: str, event_format: str, names: tuple[str, ...]) -> Layout:
    """Build the layout from events/header_page and the event's format.

    `names` are fields in their order in the event. Raises ValueError if the format lacks them or has another order.
    """
    page, event = fields(header_page), fields(event_format)
    number = re.search(r"^ID: (\d+)$", event_format, re.MULTILINE)
    if number is None or not {"commit", "data"} <= set(page) or not set(names) <= set(event):
        raise ValueError(f"not the format of an event with {', '.join(names)}")
    form, at = "=", 0
    for name in names:
        offset, size = event[name]
        if offset < at or size not in _LETTERS:
            raise ValueError(f"unexpected field {name} of {size} bytes at {offset}")
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
    """Yield the values of each matching event in a page. Raises ValueError for an invalid page."""
    committed = of.commit.unpack_from(page, of.commit_at)[0] & COMMITTED
    end = of.data_at + committed
    if end > len(page):
        raise ValueError(f"a page of {len(page)} bytes cannot hold {committed}")
    words = memoryview(page)[: len(page) & ~3].cast("I")
    shift, mask = (0, 31) if sys.byteorder == "little" else (27, 31)
    number, values, half = of.event, of.values.unpack_from, 0xFFFF
    at, last, size = of.data_at >> 2, end >> 2, of.values.size + 3 >> 2
    while at < last - 1:  # the shortest event has two words
        kind = words[at] >> shift & mask
        if 0 < kind <= MAX_DATA:
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
