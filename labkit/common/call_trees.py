"""Calls as the tracer function_graph prints them (Documentation/trace/ftrace.rst, "function graph tracer"; tried with
6.1 and 6.12), as trees with self times. It knows nothing but text, so that both wings may read it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

# How interrupts that come in between begin: arrows where the kernel marks their functions, else by name.
INTERRUPTS = frozenset(("irq_enter", "irq_enter_rcu", "sysvec_apic_timer_interrupt", "gic_handle_irq"))
SLEEPS = frozenset(("schedule", "__schedule", "schedule_timeout", "preempt_schedule_irq"))

# An interrupt in the tracer's own code, after the call has ended for it, is printed as if it were in the call.
ROUNDED_NS = 1000  # what the digits that are printed leave open, and more

_CPU = re.compile(r"(?:\d+\.\d+ \| +)?(\d+)\)\s*(.*?)\s*$")
_DURATION = re.compile(r"([\d.]+) us$")
_LOST = re.compile(r"CPU:\d+ \[LOST (\d+) EVENTS\]")
_NAME = re.compile(r"[^\s(]+(?: \[[^\]]+\])?")  # `veth_xmit [veth]` is of a module
_TAIL = re.compile(r"\} /\* (.+?) \*/")


@dataclass(slots=True)
class Call:
    """A function that was called once. depth: 0 is the root's. total_ns: from its beginning to its end; self_ns: what
    of it was in none of the functions that it called and that were traced. module: "" for what is no module's."""

    name: str
    depth: int
    module: str = ""
    total_ns: int = 0
    self_ns: int = 0


@dataclass(slots=True)
class Tree:
    """One call of a root and all that it called in the order in which it came, each call before those that it made.
    process: name and id as the kernel prints them (the name cut to seven letters), "" where it does not. lines: as the
    kernel printed it."""

    cpu: int
    process: str
    calls: list[Call] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def root(self) -> Call:
        """The call that holds all others."""
        return self.calls[0]

    def names(self) -> frozenset[str]:
        """Every function's name, without what the compiler appended (`net_rx_action.part.0`)."""
        return frozenset(plain(call.name) for call in self.calls)

    @property
    def disturbed(self) -> bool:
        """Whether an interrupt came in between, or another process ran."""
        return not self.names().isdisjoint(INTERRUPTS | SLEEPS) or any("==>" in line for line in self.lines)


@dataclass(slots=True)
class _Open:
    """A tree that has not ended: the calls around the next line."""

    tree: Tree
    stack: list[Call] = field(default_factory=list)


class Reader:
    """Reads a trace. lost_count: events that the kernel says it lost in between; broken_count: trees that are left out
    because the trace has not all of them."""

    def __init__(self, roots: Iterable[str] = ()) -> None:
        self._roots = frozenset(roots)
        self._open: dict[str, _Open] = {}
        self.lost_count = self.broken_count = 0

    def read(self, lines: Iterable[str]) -> Iterator[Tree]:
        """Every whole call of the roots (of any function that begins a tree, if none was named), as it ends."""
        for line in lines:
            head, bar, body = line.rstrip("\n").rpartition("|")
            if not bar or line.startswith("#"):
                if lost := _LOST.match(line):
                    self.lost_count += int(lost[1])
                    self._break_all()
                continue
            place, bar, duration = head.rpartition("|")
            if not bar:
                place, duration = _apart(head)
            if (result := _CPU.match(place.lstrip())) is None:
                continue
            cpu, process = result.groups()
            if (tree := self._line(process or cpu, int(cpu), process, duration, body)) is not None:
                tree.lines.append(line.rstrip("\n"))
                yield tree
            elif one := self._open.get(process or cpu):
                one.tree.lines.append(line.rstrip("\n"))
        self._break_all()

    def _line(self, key: str, cpu: int, process: str, duration: str, body: str) -> Tree | None:
        """One line of a process; the tree that ends with it."""
        words = body.strip()
        depth = (len(body) - len(body.lstrip())) // 2 - 1
        one = self._open.get(key)
        if not words or words.startswith("/*"):  # an interrupt's arrow, or a comment
            return None
        if words.startswith("}"):
            return None if one is None else self._ended(key, one, depth, words, duration)
        if (result := _NAME.match(words)) is None:
            return None
        name, _, module = result[0].rstrip("]").partition(" [")
        if one is None:
            if depth != 0 or (self._roots and name not in self._roots):
                return None
            one = self._open[key] = _Open(Tree(cpu, process))
        if depth != len(one.stack):
            return self._break(key)
        call = Call(name, depth, module)
        one.tree.calls.append(call)
        one.stack.append(call)
        if "{" in words.removeprefix(result[0]):
            return None
        return self._ended(key, one, depth, words, duration)

    def _ended(self, key: str, one: _Open, depth: int, words: str, duration: str) -> Tree | None:
        call, took, tail = one.stack.pop(), _DURATION.search(duration.strip()), _TAIL.match(words)
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


def _apart(head: str) -> tuple[str, str]:
    """CPU and duration where no process stands between them."""
    place, _, duration = head.partition(")")
    return f"{place})", duration


def plain(name: str) -> str:
    """A function's name without what the compiler appended."""
    return name.partition(".")[0]


def median(trees: Iterable[Tree]) -> Tree | None:
    """The one whose duration is the median (the lower one of two); None where there is none."""
    return quantile(trees, 0.5)


def quantile(trees: Iterable[Tree], part: float) -> Tree | None:
    """The one that so many of them take no longer than; None where there is none."""
    result = sorted(trees, key=attrgetter("root.total_ns"))
    return result[round((len(result) - 1) * part - 1e-9)] if result else None
