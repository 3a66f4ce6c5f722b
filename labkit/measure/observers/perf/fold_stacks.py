"""Fold the text of `perf script` (perf 6.1; `tests/samples` has real output) into stacks.

Each different stack is one line, `process;outermost;…;innermost count`; kernel frames end in `_[k]`, as stackcollapse-
perf.pl writes them. The text is read once, in blocks, whatever its size. Functions are cached by their whole line,
because a profile has few different lines. Stacks that exceed the memory limit go to sorted files that are merged at
the end.
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

from labkit.common import errors

BLOCK_BYTES = 1 << 20
MAX_BYTES = 48 << 20  # stacks in memory before they go to a file
MAX_LINES = 200_000  # lines whose functions are cached
LONGEST_SAMPLE = 4 << 20  # bytes; a longer text without the end of a sample is not from perf script

# The experiment has its own PID namespace: outside processes have number 0 there, like idle CPUs (or -1).
OUTSIDE, KERNEL, IDLE = b"elsewhere", b"kernel", b"swapper"
_IDLE = {b"cpu_startup_entry_[k]", b"do_idle_[k]", b"default_idle_call_[k]"}
_KERNEL = {b"kthread_[k]", b"ret_from_fork_[k]", b"ret_from_fork_asm_[k]"}

# A sample starts `process 1234/1235 period` (`FIELDS`; the period is optional) or, as perf script writes it without
# options, `process 1234 [000] 12.345: period event:`. A name may contain anything, so lines are read from their end.
FIELDS = "comm,pid,tid,{}ip,sym,symoff,dso"
_sample = re.compile(rb"(.*)\s(-?\d+)(?:/-?\d+(?:\s+(\d+))?|(?:/-?\d+)?\s+\[\d+\]\s+[\d.]+:\s+(\d+)\s.*)\s*")
# Code that a program generates (an emulator, a virtual machine) is in a file named after its pid, which would differ
# in every round.
_translated = re.compile(rb"\Aperf-\d+\.map\Z")
# The offset separates the symbol from the object: both may contain parentheses and spaces.
_frame = re.compile(rb"\s*([0-9a-f]+) (?:(.*)\+0x[0-9a-f]+|\[unknown\]) \((.*)\)\s*")
# The kernel has the upper half of the addresses; user code in a bracketed object (a JIT compiler's) has not.
_upper_half = re.compile(rb"[89a-f][0-9a-f]{15}")
_lost = re.compile(rb"\s(PERF_RECORD_LOST(?:_SAMPLES)?)\b\D*(\d+)")


class _Frames(dict[bytes, bytes]):
    """Cache of the function in a line `address symbol+0x12 (object)`; b"" for an invalid line."""

    def __missing__(self, line: bytes) -> bytes:
        if len(self) >= MAX_LINES:
            self.clear()
        match = _frame.fullmatch(line)
        name = self[line] = name_of(*match.groups()) if match else b""
        return name


class StackCounter:
    """Counts samples by stack and by process; use it with `with`, because it may hold files.

    `samples_count` were counted, `lost_count` were not delivered by the kernel (`--show-lost-events`), `unread_count`
    lines were not understood. `weighted`: the period in the first line of a sample weights the sample relative to the
    mean; the counts still add up to the number of samples.
    """

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

    def __enter__(self) -> StackCounter:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @errors.reading("the output of perf script")
    def read(self, blocks: Iterable[bytes]) -> None:
        """Count the samples of a text in blocks of any size; may be called for several texts.

        Raises Failed if the text is not from `perf script`.
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
        """Samples that the kernel could not deliver; newer kernels report them in two ways."""
        return max(self._lost.values(), default=0)

    def lines(self) -> Iterator[bytes]:
        """Yield the folded stacks, sorted, each `stack count` with a newline."""
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
            process = _sample.fullmatch(first)
            if process is None:
                first, stack = self._between(first, stack)
                process = _sample.fullmatch(first)
            if process is None or (self.weighted and not (process[3] or process[4])):
                self.unread_count += bool(first.strip())
                continue
            weight = max(1, int(process[3] or process[4])) if self.weighted else 1
            names = [frames[line] for line in reversed(stack)]
            if b"" in names:
                self.unread_count += names.count(b"")
                names = [one for one in names if one]
            of = self._process(process[1], process[2], names)
            self.processes[of] += 1
            key = b";".join([of, *names])
            if key not in counts:
                self._held_bytes += len(key) + 100
            counts[key] += weight
            self._weights += weight
            self.samples_count += 1
        if self._held_bytes > MAX_BYTES:
            self._spill()

    def _between(self, first: bytes, stack: list[bytes]) -> tuple[bytes, list[bytes]]:
        """Remove comments and reports of losses before a sample."""
        lines = [first, *stack]
        while lines and (not lines[0] or lines[0][:1] == b"#" or b" PERF_RECORD_" in lines[0]):
            if lost := _lost.search(lines.pop(0)):
                self._lost[lost[1]] += int(lost[2])
            if lines and _sample.fullmatch(lines[0]):
                break
        return (lines[0], lines[1:]) if lines else (b"", [])

    @staticmethod
    def _process(name: bytes, number: bytes, names: list[bytes]) -> bytes:
        if number not in (b"0", b"-1"):
            return name.strip().replace(b" ", b"_").replace(b";", b":") or b"[unknown]"
        outermost = set(names[:8])
        return IDLE if outermost & _IDLE else KERNEL if outermost & _KERNEL else OUTSIDE

    def _spill(self) -> None:
        file = self._stack.enter_context(tempfile.TemporaryFile())
        file.writelines(b"%b %d\n" % one for one in sorted(self._counts.items()))
        self._spilled.append(file)
        self._counts.clear()
        self._held_bytes = 0


def name_of(address: bytes, symbol: bytes | None, place: bytes) -> bytes:
    """Return a function's name in folded stacks: kernel functions end in `_[k]`, unknown symbols are the object in
    brackets."""
    if symbol is None:
        inside = _translated.sub(b"perf-PID.map", place.rsplit(b"/", 1)[-1].strip(b"[]"))
        return b"[%b]" % (inside or b"unknown")
    name = symbol.replace(b";", b":")
    return name + b"_[k]" if _upper_half.fullmatch(address) and place != b"[vsyscall]" else name


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


def _read_back(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    file.seek(0)
    for line in file:
        stack, _, count = line.rpartition(b" ")
        yield stack, int(count)
