"""The parameters of labkit's own observers: every experiment that observes has them, also of those that do not run."""

from typing import Annotated

from labkit.common.limits import UNIQUE_OR_EMPTY, Form, OneOf, Within
from labkit.measure.observers.base import ObservedLoad, ObserverParameters, own_parameters

# The events that Senanayake (2024, test one) counted for ovs-vswitchd.
EVENTS = (
    "LLC-prefetches", "LLC-loads", "LLC-load-misses", "LLC-stores", "LLC-store-misses",
    "L1-dcache-loads", "L1-dcache-load-misses", "L1-dcache-stores",
    "task-clock", "context-switches", "cpu-migrations", "page-faults",
    "cycles", "instructions", "branches", "branch-misses",
)  # fmt: skip
FREQUENCY_HZ = 997  # of samples; not in step with the kernel's tick
FUNCTIONS = ("ip_rcv", "__netif_receive_skb_core")
NAME = r"[A-Za-z_][A-Za-z0-9_.]{0,126}"  # a kernel function; excludes globs and tracefs commands
NAMES = Form(NAME, "names of kernel functions, no patterns")
RETURN = ":return"
PROBED = Form(f"{NAME}({RETURN})?", "NAME or NAME:return of a kernel function")


class OwnParameters(ObserverParameters, frozen=True, kw_only=True):
    """The parameters of labkit's own observers."""

    # perf_stat
    events: Annotated[tuple[str, ...], "events that perf_stat counts, by perf's names", UNIQUE_OR_EMPTY] = (
        EVENTS
    )
    events_of: Annotated[
        str,
        "what perf_stat counts: machine (all of it) or switch (ovs-vswitchd alone, of arms that have one)",
        OneOf(("machine", "switch")),
    ] = "machine"
    # perf_record
    sample_hz: Annotated[int, "sampling frequency of perf_record on each CPU", Within(1, 50_000)] = (
        FREQUENCY_HZ
    )
    keep_perf_data: Annotated[bool, "keep perf_record's perf.data beside the folded stacks"] = False
    # function_times and guest_function_times
    functions: Annotated[
        tuple[str, ...],
        "kernel functions that function_times times: names, no patterns",
        NAMES,
        UNIQUE_OR_EMPTY,
    ] = FUNCTIONS
    # function_graph
    graph_functions: Annotated[
        tuple[str, ...],
        "functions whose calls function_graph shows; none: those that send and receive a packet",
        NAMES,
        UNIQUE_OR_EMPTY,
    ] = ()
    # kprobe, funcslower and tpoint
    probe: Annotated[
        str,
        "the kernel function whose calls kprobe records; NAME:return records the values that it returns",
        PROBED,
    ] = "ip_rcv"
    slow_function: Annotated[
        str, "the kernel function whose slow calls funcslower records", Form(NAME, "a kernel function")
    ] = "ip_rcv"
    slow_s: Annotated[
        float, "from which duration a call is slow for funcslower", Within(1e-6, 100, "in whole µs")
    ] = 5e-5
    tracepoint: Annotated[
        str,
        "the tracepoint whose events tpoint records",
        Form(r"[a-z0-9_]+:[A-Za-z0-9_]+", "SYSTEM:EVENT, for example skb:kfree_skb"),
    ] = "skb:kfree_skb"


def own(parameters: ObservedLoad) -> OwnParameters:
    """Return the parameters of labkit's own observers among those of an experiment."""
    return own_parameters(parameters, OwnParameters)
