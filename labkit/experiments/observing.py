"""The observers that an experiment may ask for, each with what it needs of the experiment. TABLE is the one place to
add a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import topologies
from labkit.endpoints import Endpoint, Pair
from labkit.errors import BadInput, Failed, Unsupported
from labkit.experiments.parameters import one_of
from labkit.observers import (
    function_graph,
    function_times,
    functions,
    guest_function_times,
    perf_record,
    perf_stat,
    switch,
    tracefs,
)
from labkit.observers.counters import Counters, counters
from labkit.observers.loss import losses
from labkit.observers.receivers import IN_UDP
from labkit.observers.told import Told, Watch
from labkit.topologies import open_vswitch
from labkit.topologies.ways import IN, OUT

if TYPE_CHECKING:
    from labkit.experiments.asked import Datapaths


@dataclass(frozen=True)
class Observer:
    """Three raise what makes it impossible before anything is measured: `check` what is known at once, `check_standing`
    what is known of an arm that stands, `check_built` once every arm has stood. `armed` is given what was asked for,
    what stands, and the beginning of the path of an artefact of its own. One that `traces` changes this kernel's own
    code while it watches, and needs a guard; one that `disturbs` changes a kernel's, this or a guest's."""

    check: Callable[[Datapaths], object]
    armed: Callable[[Datapaths, topologies.Topology, Path], AbstractContextManager[Watch]]
    check_built: Callable[[Datapaths], object] = lambda _asked: None
    check_standing: Callable[[Datapaths, topologies.Topology], object] = lambda _asked, _topology: None
    traces: bool = False
    disturbs: bool = False


class _Losses:
    """The counters, and what they tell of the way of each pair."""

    def __init__(self, asked: Datapaths, topology: topologies.Topology, counted: Counters) -> None:
        self._asked, self._counted = asked, counted
        state = topologies.state(topology)
        self._outside = [
            (space.name, link.name)
            for space in state.namespaces
            for link in space.interfaces
            if link.kind in IN_UDP
        ]
        self._pairs = [
            (client.name, server.name, _way(pair, steps))
            for pair, (client, server), steps in zip(
                topology.pairs, state.pairs, topologies.ways(state), strict=True
            )
        ]
        self.counting = counted.counting

    def told(self) -> Told:
        """The counts by place, and `loss`: the hops of each pair."""
        changed = self._counted.told().observed
        found = losses(changed, self._pairs, self._asked.protocol, self._asked.family, self._outside)
        return Told({**changed, "loss": found})


def _way(pair: Pair, steps: Sequence[topologies.Step]) -> list[tuple[str, str, str]]:
    """The way of a pair, from and to the interfaces within guests, which this kernel knows nothing of."""
    way = [(step.namespace, step.interface, step.direction) for step in steps]
    if _in_guest(pair.client):
        way.insert(0, (pair.client.name, pair.client.interface, OUT))
    if _in_guest(pair.server):
        way.append((pair.server.name, pair.server.interface, IN))
    return way


def _in_guest(end: Endpoint) -> bool:
    return end.box is not None and end.box.kernel is not None


@contextmanager
def _counters(asked: Datapaths, topology: topologies.Topology, _stem: Path) -> Iterator[Watch]:
    ends = [end for pair in topology.pairs for end in (pair.client, pair.server) if _in_guest(end)]
    with counters(topology.namespaces, ends) as counted:
        yield _Losses(asked, topology, counted)


def _perf_stat(
    asked: Datapaths, _topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[Watch]:
    return perf_stat.perf_stat(asked.events)


def _perf_record(
    asked: Datapaths, _topology: topologies.Topology, stem: Path
) -> AbstractContextManager[Watch]:
    folded = stem.with_name(f"{stem.name}.folded.gz")
    return perf_record.perf_record(folded, frequency_hz=asked.sample_hz, keep=asked.keep_perf_data)


def _function_times(
    asked: Datapaths, _topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[Watch]:
    return function_times.function_times(asked.functions)


def _roots(asked: Datapaths) -> tuple[str, ...]:
    return function_graph.roots(
        asked.graph_functions, asked.protocol, asked.family, "guest" in asked.endpoint
    )


def _function_graph(
    asked: Datapaths, _topology: topologies.Topology, stem: Path
) -> AbstractContextManager[Watch]:
    return function_graph.function_graph(stem.with_name(f"{stem.name}.txt"), _roots(asked))


def _guests(asked: Datapaths, topology: topologies.Topology) -> list[guest_function_times.Machine]:
    """The guests at the ends, each once. Raises Unsupported for those whose kernel may panic when it is traced."""
    from labkit.endpoints import guest  # what only guests need

    ends = [end for pair in topology.pairs for end in (pair.client, pair.server)]
    boxes = {end.box.name: end.box for end in ends if end.box is not None and end.box.kernel is not None}
    word = asked.guest_word
    for box in boxes.values():
        several = box.told["guest_accelerator"] == "tcg" and box.told["guest_cpus_count"] > 1
        if several and guest.parse(word).machine.profile != "tracing":
            raise Unsupported(
                "an emulated guest of several CPUs may panic when its functions are traced:"
                f" guest={word},profile=tracing has one thread play all of them"
            )
    found: list[guest_function_times.Machine] = [getattr(box, "guest", box) for box in boxes.values()]  # type: ignore[arg-type]
    return found


def _guest_function_times(
    asked: Datapaths, topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[Watch]:
    return guest_function_times.guest_function_times(_guests(asked, topology), asked.functions)


def _check_guests(asked: Datapaths) -> None:
    if not asked.in_guests:
        raise BadInput(
            "observe=guest_function_times is of guests: say endpoint=guest, or observe=function_times"
        )


def _check_traceable(asked: Datapaths, topology: topologies.Topology) -> None:
    """Raises BadInput for functions that the guests' kernel cannot trace. What else is wrong with a tracer is no reason
    to measure nothing: the rows tell it."""
    with suppress(Unsupported, Failed):
        for one in _guests(asked, topology)[:1]:  # they have one kernel, and the same modules
            guest_function_times.traced(one, asked.functions)


def _switch(_asked: Datapaths, topology: topologies.Topology, _stem: Path) -> AbstractContextManager[Watch]:
    return switch.switched(topology.switch)


def _check_switch(asked: Datapaths) -> None:
    if not any(name.partition("+")[0] in open_vswitch.NAMES for name in asked.topology):
        names = " or ".join(open_vswitch.NAMES)
        raise BadInput(f"observe=switch is of Open vSwitch: say topology={names}, or leave it out")


TABLE = {
    "perf_stat": Observer(lambda asked: perf_stat.check(asked.events), _perf_stat),
    "perf_record": Observer(lambda _asked: perf_record.check(), _perf_record),
    "counters": Observer(lambda _asked: None, _counters),
    "switch": Observer(_check_switch, _switch),
    "function_times": Observer(
        lambda _asked: function_times.check(),
        _function_times,
        lambda asked: functions.resolved(asked.functions),
        traces=True,
        disturbs=True,
    ),
    "guest_function_times": Observer(
        _check_guests, _guest_function_times, check_standing=_check_traceable, disturbs=True
    ),
    "function_graph": Observer(
        lambda _asked: tracefs.check(),
        _function_graph,
        lambda asked: _roots(asked),
        traces=True,
        disturbs=True,
    ),
}
NAMES = tuple(TABLE)
TRACERS = frozenset(name for name, one in TABLE.items() if one.traces)
DISTURBING = frozenset(name for name, one in TABLE.items() if one.disturbs)


def check_standing(asked: Datapaths, topology: topologies.Topology) -> None:
    """Raises BadInput for what observers cannot be asked for where this arm stands."""
    for name in asked.observe:
        TABLE[name].check_standing(asked, topology)


def check(asked: Datapaths) -> None:
    """Raises BadInput in one sentence for observers that there are not, and for what they cannot be asked for."""
    for name in ("observe", "events", "functions", "graph_functions"):
        words = getattr(asked, name)
        if len(set(words)) < len(words):
            raise BadInput(f"{name} has a value twice: {', '.join(words)}")
    for name in asked.observe:
        one_of("observe", name, NAMES)
    functions.check_names(asked.functions)
    functions.check_names(asked.graph_functions, "graph_functions")
    timed = [name for name in asked.observe if name in ("function_times", "guest_function_times")]
    if timed and not asked.functions:  # all of the kernel's would be armed
        raise BadInput(f"observe={timed[0]} needs functions=NAME,NAME")
    if "perf_stat" in asked.observe and not asked.events:
        raise BadInput("observe=perf_stat needs events=NAME,NAME, or leave events out")
