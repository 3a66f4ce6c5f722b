"""The observers by name. To add an observer, add one entry to TABLE."""

from __future__ import annotations

import msgspec

from labkit.common import extensions
from labkit.measure import topologies
from labkit.measure.observers.base import ObservedLoad, Observer
from labkit.measure.observers.counters.packet_loss import COUNTERS
from labkit.measure.observers.ftrace.function_graph import FUNCTION_GRAPH
from labkit.measure.observers.ftrace.function_times import FUNCTION_TIMES
from labkit.measure.observers.ftrace.guest_function_times import GUEST_FUNCTION_TIMES
from labkit.measure.observers.ftrace.perf_tools import KPROBE
from labkit.measure.observers.perf.record import PERF_RECORD
from labkit.measure.observers.perf.stat import PERF_STAT
from labkit.measure.observers.switch import SWITCH
from labkit.measure.parameters import Parameters

TABLE: dict[str, Observer] = {
    "perf_stat": PERF_STAT,
    "perf_record": PERF_RECORD,
    "counters": COUNTERS,
    "switch": SWITCH,
    "function_times": FUNCTION_TIMES,
    "guest_function_times": GUEST_FUNCTION_TIMES,
    "function_graph": FUNCTION_GRAPH,
    "kprobe": KPROBE,
}
TABLE |= extensions.load_all("labkit.observers", Observer, TABLE)
NAMES = tuple(TABLE)
TRACERS = frozenset(name for name, one in TABLE.items() if one.traces)
DISTURBING = frozenset(name for name, one in TABLE.items() if one.disturbs)
# Of all observers, each class once
PARAMETERS = tuple(dict.fromkeys(one.parameters for one in TABLE.values()))


def with_parameters(base: type[Parameters]) -> type[msgspec.Struct]:
    """Return a class of parameters that has those of all observers, beside those of `base`."""
    fields = [
        (one.name, one.type, one.default) for each in PARAMETERS for one in msgspec.structs.fields(each)
    ]
    return msgspec.defstruct(
        "ObservedParameters", fields, bases=(base,), module=__name__, frozen=True, kw_only=True
    )


def check_topology(parameters: ObservedLoad, topology: topologies.Topology) -> None:
    """Raise BadInput if an observer does not support this built topology."""
    for name in parameters.observe:
        TABLE[name].check_topology(parameters, topology)


def check(parameters: ObservedLoad) -> None:
    """Raise BadInput, with one sentence, for parameters that an observer does not support."""
    for name in parameters.observe:
        TABLE[name].check_parameters(parameters)
