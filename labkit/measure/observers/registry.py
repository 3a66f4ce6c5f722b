"""The observers by name. To add an observer, add one entry to TABLE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint, Pair
from labkit.measure.observers import switch
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad
from labkit.measure.observers.counters.kernel_counters import Counters, counters
from labkit.measure.observers.counters.packet_loss import losses
from labkit.measure.observers.counters.receive_counters import IN_UDP
from labkit.measure.observers.ftrace import (
    function_graph,
    function_times,
    guest_function_times,
    kernel_functions,
    session,
)
from labkit.measure.observers.perf import record, stat
from labkit.measure.parameters import one_of
from labkit.measure.topologies import open_vswitch
from labkit.measure.topologies.state.packet_path import IN, OUT


@dataclass(frozen=True)
class Observer:
    """One observer: three hooks that reject impossible requests, and the function that arms it.

    `check` sees the parameters, `check_topology` also one built arm; `check_built` runs after every arm was built once
    (so the kernel's modules are loaded). `armed` gets the parameters, the built topology and the beginning of the path
    for an artefact. An observer that `traces` changes the code of this kernel and needs a guard. One that `disturbs`
    changes the code of a kernel, this one or a guest's.
    """

    check: Callable[[ObservedLoad], object]
    armed: Callable[[ObservedLoad, topologies.Topology, Path], AbstractContextManager[ArmedObserver]]
    check_built: Callable[[ObservedLoad], object] = lambda _parameters: None
    check_topology: Callable[[ObservedLoad, topologies.Topology], object] = lambda _parameters, _topology: (
        None
    )
    traces: bool = False
    disturbs: bool = False


class _Losses:
    """The kernel's counters, and the packet loss on the path of each pair that follows from them."""

    def __init__(self, parameters: ObservedLoad, topology: topologies.Topology, counted: Counters) -> None:
        self._parameters, self._counted = parameters, counted
        state = topologies.state(topology)
        self._outside = [
            (space.name, link.name)
            for space in state.namespaces
            for link in space.interfaces
            if link.kind in IN_UDP
        ]
        self._pairs = [
            (client.name, server.name, _pair_path(pair, steps))
            for pair, (client, server), steps in zip(
                topology.pairs, state.pairs, topologies.packet_paths(state), strict=True
            )
        ]
        self.counting = counted.counting

    def report(self) -> Observation:
        """Return the counts by place, and under `loss` the hops of each pair."""
        changed = self._counted.report().observed
        result = losses(
            changed, self._pairs, self._parameters.protocol, self._parameters.family, self._outside
        )
        return Observation({**changed, "loss": result})


def _pair_path(pair: Pair, steps: Sequence[topologies.Step]) -> list[tuple[str, str, str]]:
    """Return the path of a pair, with the interfaces inside guests, which this kernel does not see."""
    way = [(step.namespace, step.interface, step.direction) for step in steps]
    if _in_guest(pair.client):
        way.insert(0, (pair.client.name, pair.client.interface, OUT))
    if _in_guest(pair.server):
        way.append((pair.server.name, pair.server.interface, IN))
    return way


def _in_guest(end: Endpoint) -> bool:
    return end.box is not None and end.box.kernel is not None


@contextmanager
def _counters(
    parameters: ObservedLoad, topology: topologies.Topology, _stem: Path
) -> Iterator[ArmedObserver]:
    ends = [end for pair in topology.pairs for end in (pair.client, pair.server) if _in_guest(end)]
    with counters(topology.namespaces, ends) as counted:
        yield _Losses(parameters, topology, counted)


def _perf_stat(
    parameters: ObservedLoad, _topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[ArmedObserver]:
    return stat.perf_stat(parameters.events)


def _perf_record(
    parameters: ObservedLoad, _topology: topologies.Topology, stem: Path
) -> AbstractContextManager[ArmedObserver]:
    folded = stem.with_name(f"{stem.name}.folded.gz")
    return record.perf_record(folded, frequency_hz=parameters.sample_hz, keep=parameters.keep_perf_data)


def _function_times(
    parameters: ObservedLoad, _topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[ArmedObserver]:
    return function_times.function_times(parameters.functions)


def _roots(parameters: ObservedLoad) -> tuple[str, ...]:
    return function_graph.roots(
        parameters.graph_functions, parameters.protocol, parameters.family, "guest" in parameters.endpoint
    )


def _function_graph(
    parameters: ObservedLoad, _topology: topologies.Topology, stem: Path
) -> AbstractContextManager[ArmedObserver]:
    return function_graph.function_graph(stem.with_name(f"{stem.name}.txt"), _roots(parameters))


def _guests(parameters: ObservedLoad, topology: topologies.Topology) -> list[guest_function_times.Machine]:
    """Return the guests at the ends, each once. Raises Unsupported if their kernel may panic when it is traced."""
    from labkit.measure.endpoints.guest import spec  # what only guests need

    ends = [end for pair in topology.pairs for end in (pair.client, pair.server)]
    boxes = {end.box.name: end.box for end in ends if end.box is not None and end.box.kernel is not None}
    word = parameters.guest_word
    for box in boxes.values():
        several = box.report["guest_accelerator"] == "tcg" and box.report["guest_cpus_count"] > 1
        if several and spec.parse(word).machine.profile != "tracing":
            raise Unsupported(
                "an emulated guest with several CPUs may panic when its functions are traced:"
                f" use guest={word},profile=tracing, which runs all of them in one thread"
            )
    result: list[guest_function_times.Machine] = [getattr(box, "guest", box) for box in boxes.values()]  # type: ignore[arg-type]
    return result


def _guest_function_times(
    parameters: ObservedLoad, topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[ArmedObserver]:
    return guest_function_times.guest_function_times(_guests(parameters, topology), parameters.functions)


def _check_guests(parameters: ObservedLoad) -> None:
    if not parameters.in_guests:
        raise BadInput(
            "observe=guest_function_times needs endpoint=guest; otherwise use observe=function_times"
        )


def _check_traceable(parameters: ObservedLoad, topology: topologies.Topology) -> None:
    """Raise BadInput for functions that the guests' kernel cannot trace.

    Other problems of a tracer do not stop the experiment; its rows report them.
    """
    with suppress(Unsupported, Failed):
        for one in _guests(parameters, topology)[:1]:  # all guests have the same kernel and modules
            guest_function_times.traced(one, parameters.functions)


def _switch(
    _parameters: ObservedLoad, topology: topologies.Topology, _stem: Path
) -> AbstractContextManager[ArmedObserver]:
    return switch.switched(topology.switch)


def _check_switch(parameters: ObservedLoad) -> None:
    if not any(name.partition("+")[0] in open_vswitch.NAMES for name in parameters.topology_names):
        names = " or ".join(open_vswitch.NAMES)
        raise BadInput(f"observe=switch needs topology={names}")


TABLE = {
    "perf_stat": Observer(lambda parameters: stat.check(parameters.events), _perf_stat),
    "perf_record": Observer(lambda _parameters: record.check(), _perf_record),
    "counters": Observer(lambda _parameters: None, _counters),
    "switch": Observer(_check_switch, _switch),
    "function_times": Observer(
        lambda _parameters: function_times.check(),
        _function_times,
        lambda parameters: kernel_functions.resolved(parameters.functions),
        traces=True,
        disturbs=True,
    ),
    "guest_function_times": Observer(
        _check_guests, _guest_function_times, check_topology=_check_traceable, disturbs=True
    ),
    "function_graph": Observer(
        lambda _parameters: session.check(),
        _function_graph,
        lambda parameters: _roots(parameters),
        traces=True,
        disturbs=True,
    ),
}
NAMES = tuple(TABLE)
TRACERS = frozenset(name for name, one in TABLE.items() if one.traces)
DISTURBING = frozenset(name for name, one in TABLE.items() if one.disturbs)


def check_topology(parameters: ObservedLoad, topology: topologies.Topology) -> None:
    """Raise BadInput if an observer does not support this built topology."""
    for name in parameters.observe:
        TABLE[name].check_topology(parameters, topology)


def check(parameters: ObservedLoad) -> None:
    """Raise BadInput, with one sentence, for unknown observers and for parameters that an observer does not support."""
    for name in ("observe", "events", "functions", "graph_functions"):
        words = getattr(parameters, name)
        if len(set(words)) < len(words):
            raise BadInput(f"{name} names a value twice: {', '.join(words)}")
    for name in parameters.observe:
        one_of("observe", name, tuple(TABLE))
    kernel_functions.check_names(parameters.functions)
    kernel_functions.check_names(parameters.graph_functions, "graph_functions")
    timed = [name for name in parameters.observe if name in ("function_times", "guest_function_times")]
    if timed and not parameters.functions:  # without names the tracer would arm all functions of the kernel
        raise BadInput(f"observe={timed[0]} needs functions=NAME,NAME")
    if "perf_stat" in parameters.observe and not parameters.events:
        raise BadInput("observe=perf_stat needs events=NAME,NAME, or leave events out")
