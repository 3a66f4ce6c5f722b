"""The observers by name. To add an observer, add one entry to TABLE."""

import msgspec

from labkit.common.extensions import Registry
from labkit.measure import topologies
from labkit.measure.observers.base import ObservedLoad, Observer, ObserverParameters
from labkit.measure.observers.parameters import OwnParameters
from labkit.measure.parameters import Parameters

_HERE = "labkit.measure.observers"
TABLE = Registry(
    "labkit.observers",
    Observer,
    {
        "perf_stat": f"{_HERE}.perf.stat:PERF_STAT",
        "perf_record": f"{_HERE}.perf.record:PERF_RECORD",
        "counters": f"{_HERE}.counters.packet_loss:COUNTERS",
        "switch": f"{_HERE}.switch:SWITCH",
        "function_times": f"{_HERE}.ftrace.function_times:FUNCTION_TIMES",
        "guest_function_times": f"{_HERE}.ftrace.function_times:GUEST_FUNCTION_TIMES",
        "function_graph": f"{_HERE}.ftrace.function_graph:FUNCTION_GRAPH",
        "kprobe": f"{_HERE}.ftrace.perf_tools:KPROBE",
        "funcslower": f"{_HERE}.ftrace.perf_tools:FUNCSLOWER",
        "tpoint": f"{_HERE}.ftrace.perf_tools:TPOINT",
    },
    "{} is not an observer",
)
NAMES = tuple(TABLE)
# Of all observers, each class once
PARAMETERS: tuple[type[ObserverParameters], ...] = tuple(
    dict.fromkeys((OwnParameters, *(TABLE[name].parameters for name in TABLE.others)))
)


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
