"""Parse the text output of the function_graph tracer into call trees with self times.

The format is described in Documentation/trace/ftrace.rst, "function graph tracer"; tested with kernels 6.1 and 6.12.
The module reads only text, so both measurement and analysis can use it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

# Functions with which an interrupt begins. The trace marks an interrupt with an arrow (`==>`) only where the kernel
# tags these functions, so elsewhere it is recognised by name.
INTERRUPTS = frozenset(("irq_enter", "irq_enter_rcu", "sysvec_apic_timer_interrupt", "gic_handle_irq"))
SLEEPS = frozenset(("schedule", "__schedule", "schedule_timeout", "preempt_schedule_irq"))

# An interrupt in the tracer's own code, after a call has ended, is printed as if it were inside that call.
ROUNDED_NS = 1000  # tolerance for negative self times: more than the rounding of the printed digits

_CPU = re.compile(r"(?:\d+\.\d+ \| +)?(\d+)\)\s*(.*?)\s*$")
_DURATION = re.compile(r"([\d.]+) us$")
_LOST = re.compile(r"CPU:\d+ \[LOST (\d+) EVENTS\]")
_NAME = re.compile(r"[^\s(]+(?: \[[^\]]+\])?")  # `veth_xmit [veth]`: a function of a module
_TAIL = re.compile(r"\} /\* (.+?) \*/")


@dataclass(slots=True)
class Call:
    """One call of a function.

    depth is 0 for the root. total_ns is the time from entry to return. self_ns is total_ns without the time in traced
    callees. module is "" for functions of the kernel itself.
    """

    name: str
    depth: int
    module: str = ""
    total_ns: int = 0
    self_ns: int = 0


@dataclass(slots=True)
class Tree:
    """One call of a root function with all calls below it, in order of entry.

    process is the name and id as the kernel prints them (the name is cut to seven characters), or "" if the trace has
    none. lines are the lines of the trace.
    """

    cpu: int
    process: str
    calls: list[Call] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def root(self) -> Call:
        """Return the call that contains all others."""
        return self.calls[0]

    def names(self) -> frozenset[str]:
        """Return the names of all functions, without suffixes that the compiler appended (`net_rx_action.part.0`)."""
        return frozenset(plain(call.name) for call in self.calls)

    @property
    def disturbed(self) -> bool:
        """Return whether an interrupt occurred during the call, or another process ran."""
        return not self.names().isdisjoint(INTERRUPTS | SLEEPS) or any("==>" in line for line in self.lines)


@dataclass(slots=True)
class _Open:
    """An unfinished tree, with the stack of calls that are still open."""

    tree: Tree
    stack: list[Call] = field(default_factory=list)


class Reader:
    """A parser of traces.

    lost_count counts the events that the kernel reports as lost. broken_count counts the trees that were dropped
    because the trace does not contain all of their lines.
    """

    def __init__(self, roots: Iterable[str] = ()) -> None:
        self._roots = frozenset(roots)
        self._open: dict[str, _Open] = {}
        self.lost_count = self.broken_count = 0

    def read(self, lines: Iterable[str]) -> Iterator[Tree]:
        """Yield each complete call of a root function when it ends. By default every function at depth 0 is a root."""
        for line in lines:
            head, bar, body = line.rstrip("\n").rpartition("|")
            if not bar or line.startswith("#"):
                if lost := _LOST.match(line):
                    self.lost_count += int(lost[1])
                    self._break_all()
                continue
            place, bar, duration = head.rpartition("|")
            if not bar:  # there is no process column
                place, _, duration = head.partition(")")
                place = f"{place})"
            if (match := _CPU.match(place.lstrip())) is None:
                continue
            cpu, process = match.groups()
            if (tree := self._line(process or cpu, int(cpu), process, duration, body)) is not None:
                tree.lines.append(line.rstrip("\n"))
                yield tree
            elif one := self._open.get(process or cpu):
                one.tree.lines.append(line.rstrip("\n"))
        self._break_all()

    def _line(self, key: str, cpu: int, process: str, duration: str, body: str) -> Tree | None:
        """Process one line; return the tree if the line completes it."""
        text = body.strip()
        depth = (len(body) - len(body.lstrip())) // 2 - 1
        one = self._open.get(key)
        if not text or text.startswith("/*"):  # an interrupt arrow or a comment
            return None
        if text.startswith("}"):
            return None if one is None else self._end_call(key, one, depth, text, duration)
        if (match := _NAME.match(text)) is None:
            return None
        name, _, module = match[0].rstrip("]").partition(" [")
        if one is None:
            if depth != 0 or (self._roots and name not in self._roots):
                return None
            one = self._open[key] = _Open(Tree(cpu, process))
        if depth != len(one.stack):
            return self._break(key)
        call = Call(name, depth, module)
        one.tree.calls.append(call)
        one.stack.append(call)
        if "{" in text.removeprefix(match[0]):
            return None
        return self._end_call(key, one, depth, text, duration)

    def _end_call(self, key: str, one: _Open, depth: int, text: str, duration: str) -> Tree | None:
        call, took, tail = one.stack.pop(), _DURATION.search(duration.strip()), _TAIL.match(text)
        if depth != len(one.stack) or took is None or (tail and tail[1].split(" ")[0] != call.name):
            return self._break(key)
        call.total_ns = round(float(took[1]) * 1000)
        call.self_ns += call.total_ns
        if call.self_ns < -ROUNDED_NS:
            return self._break(key)
        if one.stack:
            one.stack[-1].self_ns -= call.total_ns
            return None
        return self._open.pop(key).tree

    def _break(self, key: str) -> Tree | None:
        del self._open[key]
        self.broken_count += 1
        return None

    def _break_all(self) -> None:
        for key in list(self._open):
            self._break(key)


def plain(name: str) -> str:
    """Return a function's name without suffixes that the compiler appended."""
    return name.partition(".")[0]


def median(trees: Iterable[Tree]) -> Tree | None:
    """Return the tree with the median duration (the lower of two), or None if there are no trees."""
    result = sorted(trees, key=attrgetter("root.total_ns"))
    return result[(len(result) - 1) // 2] if result else None
