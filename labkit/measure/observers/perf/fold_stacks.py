"""Folded stacks from the text of `perf script` (perf 6.1; `tests/samples` has real output): one line for each different
stack, `process;outermost;…;innermost count`, kernel frames ending in `_[k]`, as stackcollapse-perf.pl writes them.

The text is read once, in blocks, whatever its size: a function is looked up by the whole line that names it, because a
profile has few different lines, and stacks that do not fit into memory go to a sorted file that is merged in the end.
"""

from __future__ import annotations

import heapq
import itertools
import operator
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import IO

BLOCK_BYTES = 1 << 20
MOST_BYTES = 48 << 20  # of stacks held in memory before they go to a file
MOST_LINES = 200_000  # whose functions are remembered
LONGEST_SAMPLE = 4 << 20  # bytes; text without an end of a sample is no perf script's

# The experiment is in a PID namespace of its own: what is outside of it is number 0 there, as idle CPUs are (or -1).
OUTSIDE, KERNEL, IDLE = b"elsewhere", b"kernel", b"swapper"
_IDLE = {b"cpu_startup_entry_[k]", b"do_idle_[k]", b"default_idle_call_[k]"}
_KERNEL = {b"kthread_[k]", b"ret_from_fork_[k]", b"ret_from_fork_asm_[k]"}

# A sample begins `process 1234 [000] 12.345: 1 event:`, or `process 1234/1235 …`; the name may have spaces.
_sample = re.compile(rb"(\S.*?)\s+(-?\d+)(?:/-?\d+)?(?=\s|$)")
# Code that a program has written itself (an emulator's, a virtual machine's) is of one file for each process: with its
# number a name would be another one in each round.
_translated = re.compile(rb"\Aperf-\d+\.map\Z")
_frame = re.compile(rb"\s*[0-9a-f]+ (.*?)(?:\+0x[0-9a-f]+)? \((.*)\)\s*$")
_lost = re.compile(rb"(PERF_RECORD_LOST(?:_SAMPLES)?)\b\D*(\d+)")


class _Frames(dict[bytes, bytes]):
    """The function of a line `address symbol+0x12 (object)`; b"" of a line that is none."""

    def __missing__(self, line: bytes) -> bytes:
        if len(self) >= MOST_LINES:
            self.clear()
        result = _frame.match(line)
        name = self[line] = name_of(*result.groups()) if result else b""
        return name


class Folding:
    """Samples by stack, and by process. `samples_count` were counted, `lost_count` the kernel could not deliver
    (`--show-lost-events`), `unread_count` lines said nothing that is known. Use it with `with`: it may hold files.
    weighted: the first line of a sample ends in its period (`-F …,period`), of which it is worth so much more or less
    than the mean; counts still add up to samples."""

    def __init__(self, weighted: bool = False) -> None:
        self.weighted = weighted
        self._weights = 0
        self.samples_count = self.unread_count = 0
        self.processes: Counter[bytes] = Counter()
        self._lost: Counter[bytes] = Counter()
        self._counts: Counter[bytes] = Counter()
        self._held_bytes = 0
        self._frames = _Frames()
        self._spilled: list[IO[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Folding:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, blocks: Iterable[bytes]) -> None:
        """Count the samples of a text that comes in blocks of any size; may be called again for another text.

        Raises ValueError for what is no text of `perf script`.
        """
        rest = b""
        for block in blocks:
            text = rest + block
            end = text.rfind(b"\n\n") + 2
            if end < 2:
                if len(text) > LONGEST_SAMPLE:
                    raise ValueError(f"no sample ends within {LONGEST_SAMPLE >> 20} MiB")
                rest = text
                continue
            rest = text[end:]
            self._samples(text[: end - 2])
        self._samples(rest.rstrip())

    @property
    def lost_count(self) -> int:
        """Samples that the kernel could not deliver; newer ones tell it in two ways."""
        return max(self._lost.values(), default=0)

    def lines(self) -> Iterator[bytes]:
        """The folded stacks, sorted, each `stack count` with its end of line."""
        runs = [_read_back(file) for file in self._spilled]
        before = weights = 0
        merged = heapq.merge(sorted(self._counts.items()), *runs)
        for stack, equal in itertools.groupby(merged, key=operator.itemgetter(0)):
            weights += sum(weight for _, weight in equal)
            # What rounding takes from one stack the next one gets, which is its neighbour in the tree.
            if (until := round(weights * self.samples_count / self._weights)) > before:
                yield b"%b %d\n" % (stack, until - before)
            before = until

    def _samples(self, text: bytes) -> None:
        counts, frames = self._counts, self._frames
        for sample in text.split(b"\n\n"):
            first, *stack = sample.split(b"\n")
            if first[:1] in b"#\n" or b"PERF_RECORD_" in first:
                first, stack = self._between(first, stack)
            process = _sample.match(first)
            if process is None:
                self.unread_count += bool(first.strip())
                continue
            weight = self._weight(first)
            names = [frames[line] for line in reversed(stack)]
            if b"" in names:
                self.unread_count += names.count(b"")
                names = [one for one in names if one]
            name, number = process.groups()
            of = self._process(name, number, names)
            self.processes[of] += 1
            key = b";".join([of, *names])
            if key not in counts:
                self._held_bytes += len(key) + 100
            counts[key] += weight
            self._weights += weight
            self.samples_count += 1
        if self._held_bytes > MOST_BYTES:
            self._spill()

    def _weight(self, first: bytes) -> int:
        """Raise ValueError for a line that does not end in a period."""
        return max(1, int(first.rsplit(None, 1)[-1])) if self.weighted else 1

    def _between(self, first: bytes, stack: list[bytes]) -> tuple[bytes, list[bytes]]:
        """A sample without the lines before it that are none of a sample: comments, and what was lost."""
        lines = [first, *stack]
        while lines and (not lines[0] or lines[0].startswith(b"#") or b"PERF_RECORD_" in lines[0]):
            line = lines.pop(0)
            if lost := _lost.search(line):
                self._lost[lost[1]] += int(lost[2])
        return (lines[0], lines[1:]) if lines else (b"", [])

    @staticmethod
    def _process(name: bytes, number: bytes, names: list[bytes]) -> bytes:
        if number not in (b"0", b"-1"):
            return name.replace(b" ", b"_").replace(b";", b":")
        outermost = set(names[:8])
        return IDLE if outermost & _IDLE else KERNEL if outermost & _KERNEL else OUTSIDE

    def _spill(self) -> None:
        file = self._stack.enter_context(tempfile.TemporaryFile())
        file.writelines(b"%b %d\n" % one for one in sorted(self._counts.items()))
        self._spilled.append(file)
        self._counts.clear()
        self._held_bytes = 0


def name_of(symbol: bytes, place: bytes) -> bytes:
    """A function as folded stacks have it: `_[k]` after one of the kernel or of a module of it, the object in brackets
    where there is no symbol."""
    if symbol == b"[unknown]":
        inside = _translated.sub(b"perf-PID.map", place.rsplit(b"/", 1)[-1].strip(b"[]"))
        return b"[%b]" % (inside or b"unknown")
    name = symbol.replace(b";", b":")
    of_kernel = (
        place[:1] == b"[" and place not in (b"[unknown]", b"[vdso]", b"[vsyscall]")
    ) or place.endswith((b"vmlinux", b".ko", b".ko.xz", b".ko.zst", b".ko.gz"))
    return name + b"_[k]" if of_kernel else name


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    """A file in blocks."""
    while block := file.read(BLOCK_BYTES):
        yield block


def _read_back(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    file.seek(0)
    for line in file:
        stack, _, count = line.rpartition(b" ")
        yield stack, int(count)
