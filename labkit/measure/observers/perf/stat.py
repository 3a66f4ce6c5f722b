"""perf stat: counts of CPU counters, software events and tracepoints during the traffic (perf-stat(1), 6.1).

`tests/samples` has real output.
"""

import functools
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from labkit.common import errors, units
from labkit.common.errors import BadInput, Failed, Unsupported, did_you_mean
from labkit.measure import topologies
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad, Observer
from labkit.measure.observers.parameters import EVENTS, own
from labkit.measure.observers.perf import control as perf_control
from labkit.measure.observers.perf.control import WHOLE_MACHINE, Scope
from labkit.system import process

BETWEEN = "|"  # column separator; event names contain commas
NO_COUNTER = (
    "this machine has no such counter (a virtual machine without one, an emulated CPU, or another CPU)"
)
NO_TURN = "it got no counter during the run: request fewer events, or a longer run"
NAME = r"[A-Za-z0-9_][\w.:/=,@*~-]{0,199}"  # a valid event name that is not an option of perf
FILES = (".o", ".c", ".bpf")  # some builds of perf load such names as BPF, or compile them
Counts = dict[str, dict[str, Any]]


@contextmanager
def perf_stat(events: Sequence[str] = EVENTS, scope: Scope = WHOLE_MACHINE) -> Iterator[ArmedObserver]:
    """Start perf stat before the traffic, not yet counting; use `counting` around it, and `report` afterwards.

    Raises what `check` raises.
    """
    refused = check(tuple(events), scope)
    known = [name for name in events if name not in refused]
    words = ["stat", "-x", BETWEEN, "--log-fd=1", *_options(known), *scope.argv()]
    with perf_control.controlled(words) as control:
        yield ArmedObserver(lambda: _report(control.end().stdout, events, refused, scope), control.counting)


def _report(text: str, events: Sequence[str], refused: Counts, scope: Scope) -> Observation:
    """Return count, running_ratio and reason of each event.

    An unavailable count is null with its reason. Below a running_ratio of 1 the event shared a counter with others, and
    perf scaled its count up.
    """
    result = parse(text)
    counts = {name: refused.get(name) or event_counts(result, name) for name in events}
    shared = [
        f"{name} {units.percent(one['running_ratio'])}"
        for name, one in counts.items()
        if (one["running_ratio"] or 1) < 1
    ]
    words = "events shared counters, so their counts are scaled up from a part of the time"
    doubts = [f"{words}: {', '.join(shared)}"] if shared else []
    return Observation({"scope": str(scope), "events": counts}, doubts=doubts)


@functools.cache
def check(events: tuple[str, ...], scope: Scope = WHOLE_MACHINE) -> Counts:
    """Return the events that this machine cannot count, in the form of `report`; try perf with the others.

    Raises Unsupported without perf or the privilege, BadInput for a name that perf does not know, with near ones.
    """
    for name in events:
        if not re.fullmatch(NAME, name) or "," in re.sub("/.*/", "", name) or name.endswith(FILES):
            raise BadInput(f"{name!r} is not an event name; `perf list` lists them")
    if not events or _try_events(events, scope):
        return {}
    refused: Counts = {}
    for name in events:
        if _try_events([name], scope):
            continue
        if not re.search("[:/]", name):
            raise BadInput(f"perf knows no event {name}{_near(name)}; `perf list` lists the events")
        refused[name] = _null(f"this machine has no event {name}")
    if len(refused) == len(events):
        raise BadInput(
            f"this machine has none of the events {', '.join(events)}; `perf list` lists what it has"
        )
    return refused


def try_event(event: str) -> dict[str, Any]:
    """Count an event while the machine is almost idle, in the form of `report`, to see whether it counts at all.

    Raises Unsupported without perf or the privilege.
    """
    ended = _try([event], WHOLE_MACHINE, "-x", BETWEEN, "--log-fd=1")
    if ended.returncode != 0:
        raise perf_control.refusal(ended)
    return event_counts(parse(ended.stdout), event)


def _try_events(events: Sequence[str], scope: Scope) -> bool:
    """Return whether perf knows all of these events. Raises the error if it knows them but cannot open them."""
    ended = _try(events, scope, "--log-fd=2")
    if ended.returncode != 0 and "event syntax error" not in ended.stderr:
        raise perf_control.refusal(ended)
    return ended.returncode == 0


def _options(events: Sequence[str]) -> list[str]:
    return [word for name in events for word in ("-e", name)]


def _try(events: Sequence[str], scope: Scope, *words: str) -> process.Ended:
    argv = [perf_control.program(), "stat", *words, *_options(events), *scope.argv(), "--", "true"]
    return process.run(argv, perf_control.ANSWER_S)


def _near(name: str) -> str:
    try:
        listed = process.output([perf_control.program(), "list", "--no-desc"], perf_control.ANSWER_S)
    except Failed:
        return ""
    known = re.findall(r"^\s+([\w.:-]+)(?: OR ([\w.-]+))?\s", listed, re.MULTILINE)
    return did_you_mean(name, [*EVENTS, *(word for pair in known for word in pair if word)], 3)


def parse(text: str) -> Counts:
    """Parse the output of `perf stat -x '|'`: event to count, running_ratio, reason; clocks in seconds.

    Raises Failed for an invalid number.
    """
    result: Counts = {}
    with errors.reading("the output of perf stat") as at:
        for at.line, line in enumerate(text.splitlines(), 1):
            fields = line.split(BETWEEN)
            if len(fields) < 5 or line.startswith("#"):
                continue
            value, unit, name, _running, percent = fields[:5]
            result[name] = _count(value, unit, percent)
    return result


def _count(value: str, unit: str, percent: str) -> dict[str, Any]:
    if value == "<not supported>":
        return _null(NO_COUNTER)
    if value == "<not counted>":
        return _null(NO_TURN)
    number = float(value) if "." in value else int(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{value!r} is not a count")
    report = {
        "count": number / 1e3 if unit == "msec" else number,
        "running_ratio": float(percent) / 100 if percent else None,
        "reason": None,
    }
    return {**report, "unit": "s"} if unit == "msec" else report


def _null(reason: str) -> dict[str, Any]:
    return {"count": None, "running_ratio": None, "reason": reason}


def event_counts(result: Counts, name: str) -> dict[str, Any]:
    """Return the counts of an event.

    With two kinds of CPUs perf reports `cpu_core/cycles/` and `cpu_atom/cycles/`; they are added.
    """
    if name in result:
        return result[name]
    parts = [one for of, one in result.items() if of.split("/")[1:2] == [name]]
    counted = [one for one in parts if one["count"] is not None]
    if not counted:
        return parts[0] if parts else _null("perf did not report it")
    least = min((one["running_ratio"] for one in counted if one["running_ratio"] is not None), default=None)
    return {"count": sum(one["count"] for one in counted), "running_ratio": least, "reason": None}


def _check_parameters(parameters: ObservedLoad) -> None:
    if not own(parameters).events:
        raise BadInput(
            "events is empty, but observe=perf_stat needs events: give events=NAME,NAME, or leave events out"
        )


def _armed(
    parameters: ObservedLoad, topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[ArmedObserver]:
    mine = own(parameters)
    if mine.events_of == "machine":
        return perf_stat(mine.events)
    if topology.switch is None:
        raise Unsupported(
            f"{topology.name} has no switch whose events could be counted: use events_of=machine"
        )
    return perf_stat(mine.events, Scope(pids=(topology.switch.pid,)))


PERF_STAT = Observer(
    _armed, lambda parameters: check(own(parameters).events), check_parameters=_check_parameters
)
