"""Read and write folded stacks, as the perf-tools' stackcollapse programs write them.

A line is a stack and its number of samples, `iperf3;do_syscall_64_[k];udp_sendmsg_[k] 42`. The first frame is the
process, and the last is the function that ran. Kernel frames end in `_[k]`. A file may be compressed (.gz).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from labkit.common import safe_files
from labkit.common.errors import BadInput

Stacks = Mapping[str, int]

KERNEL = "_[k]"
MAX_DIGITS = 18  # of a count of samples
MAX_LENGTH = 1 << 20  # of a stack
_MARK = re.compile(r"_\[[kij]\]$")  # kernel, inlined, compiled at run time


def read(path: Path) -> Counter[str]:
    """Return the stacks of a file, with equal stacks added up.

    The file is read line by line, so memory depends on the number of different stacks. Raises BadInput, with the line,
    if the file does not have folded stacks.
    """
    return parse(safe_files.text_lines(path), str(path))


def parse(lines: Iterable[str], source: str = "the text") -> Counter[str]:
    """Return the stacks of lines, with equal stacks added up. Empty lines and comments (`#`) are skipped."""
    stacks: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        stack, _, count = line.strip().rpartition(" ")
        is_count = count.isascii() and count.isdecimal() and len(count) <= MAX_DIGITS
        if not is_count or not 0 < len(stack) <= MAX_LENGTH:
            raise BadInput(
                f"{source}, line {number}, is not a folded stack (`a;b;c 42`): {line.strip()[:60]!r}"
            )
        stacks[stack] += int(count)
    return stacks


def text(stacks: Stacks) -> str:
    """Return the stacks as folded text, sorted by name."""
    return "".join(f"{stack} {count}\n" for stack, count in sorted(stacks.items()))


def plain(frame: str) -> str:
    """Return a frame's name without its mark (kernel, inlined, compiled at run time)."""
    return _MARK.sub("", frame)
