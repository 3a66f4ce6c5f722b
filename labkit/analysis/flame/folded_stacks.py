"""Folded stacks: a line for each stack, its frames from the process to the function that ran, and how often it was seen
(`iperf3;do_syscall_64_[k];udp_sendmsg_[k] 42`), as the perf-tools' stackcollapse programs write them.

The first frame is the process, kernel frames end in `_[k]`. A file may be compressed (.gz).
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from labkit.common.errors import BadInput

Stacks = Mapping[str, int]

KERNEL = "_[k]"
_MARK = re.compile(r"_\[[kij]\]$")  # kernel, inlined, compiled at run time


def read(path: Path) -> Counter[str]:
    """The stacks of a file, equal ones together. It is read line by line: memory goes with the number of different
    stacks. Raises BadInput for what are no folded stacks, with the line."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as lines:
            return parsed(lines, str(path))
    except FileNotFoundError:
        raise BadInput(f"there are no folded stacks {path}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} holds no folded stacks but bytes that are no text") from None
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} cannot be read to its end: {error}") from None


def parsed(lines: Iterable[str], source: str = "the text") -> Counter[str]:
    """The stacks of lines, equal ones together; empty lines and comments (`#`) are skipped."""
    stacks: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        stack, _, count = line.strip().rpartition(" ")
        if not stack or not count.isascii() or not count.isdecimal():
            raise BadInput(f"{source}, line {number}, is no folded stack (`a;b;c 42`): {line.strip()[:60]!r}")
        stacks[stack] += int(count)
    return stacks


def text(stacks: Stacks) -> str:
    """The stacks as folded text, in order of their names."""
    return "".join(f"{stack} {count}\n" for stack, count in sorted(stacks.items()))


def plain(frame: str) -> str:
    """A frame's name without the mark of where it was."""
    return _MARK.sub("", frame)
