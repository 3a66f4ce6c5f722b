"""An observer: how often something happened on the machine while traffic ran (/proc/stat; proc(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from labkit.common.limits import OneOf
from labkit.measure import topologies
from labkit.measure.observers import base


class StatParameters(base.ObserverParameters, frozen=True, kw_only=True):
    """The parameters of this observer."""

    stat_event: Annotated[
        str,
        "what machine_events counts: ctxt (context switches), intr (interrupts), processes (forks)",
        OneOf(("ctxt", "intr", "processes")),
    ] = "ctxt"


def total(event: str) -> int:
    """How often it happened since boot."""
    return int(re.findall(rf"^{event} (\d+)", Path("/proc/stat").read_text(), re.MULTILINE)[0])


@contextmanager
def armed(
    parameters: base.ObservedLoad, _topology: topologies.Topology, _stem: Path
) -> Iterator[base.ArmedObserver]:
    """An observer of one whole run. It needs neither the topology nor a file of its own."""
    event, count = base.own_parameters(parameters, StatParameters).stat_event, 0

    @contextmanager
    def counting() -> Iterator[None]:
        """Around the traffic that is measured."""
        nonlocal count
        before = total(event)
        yield
        count = total(event) - before

    # The report is the column `observed` of a row.
    yield base.ArmedObserver(lambda: base.Observation({f"{event}_count": count}), counting)


# `check` raises Unsupported or BadInput before anything is measured. Every kernel has these counters.
MACHINE_EVENTS = base.Observer(check=lambda _parameters: None, armed=armed, parameters=StatParameters)
