"""An observer: how often the machine switched between threads while traffic ran (/proc/stat, ctxt; proc(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from labkit.measure import topologies
from labkit.measure.observers.base import Observation, ObservedLoad, Observer


def switches() -> int:
    """Context switches of all CPUs since boot."""
    return int(re.findall(r"^ctxt (\d+)$", Path("/proc/stat").read_text(), flags=re.MULTILINE)[0])


class ContextSwitches:
    """Counts while `counting` is open."""

    count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Around the traffic that is measured."""
        before = switches()
        yield
        self.count = switches() - before

    def report(self) -> Observation:
        """The column `observed` of a row."""
        return Observation({"context_switches_count": self.count})


@contextmanager
def armed(
    _parameters: ObservedLoad, _topology: topologies.Topology, _stem: Path
) -> Iterator[ContextSwitches]:
    """An observer of one whole run. It needs neither the topology nor a file of its own."""
    yield ContextSwitches()


# `check` raises Unsupported or BadInput before anything is measured. Every kernel has this counter.
CONTEXT_SWITCHES = Observer(check=lambda _parameters: None, armed=armed)
