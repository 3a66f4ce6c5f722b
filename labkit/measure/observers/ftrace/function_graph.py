"""The calls of one packet, from the sender's system call to the receiver's socket, as ftrace's function_graph prints
them (Documentation/trace/ftrace.rst).

While traffic flows a bounded number of whole calls of a root function is recorded. The packet that is shown is that of
the median call, by duration, of those that no interrupt and no other process came into; the calls that 10 % and 90 %
of them do not outlast stand beside it. What runs in a soft interrupt at the end of the sender's call is within that
call: over veth it is the whole way to the receiver's socket.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from labkit.common import call_trees, run_folder, units
from labkit.common.call_trees import Reader, Tree
from labkit.common.errors import Unsupported
from labkit.measure import topologies
from labkit.measure.observers.base import (
    ArmedObserver,
    Observation,
    ObservedLoad,
    Observer,
    ObserverParameters,
    own_parameters,
)
from labkit.measure.observers.ftrace import kernel_functions
from labkit.measure.observers.ftrace import session as tracing

PARAMETER = "graph_functions"
SENDS = {
    ("udp", 4): ("udp_sendmsg",),
    ("udp", 6): ("udpv6_sendmsg",),
    # One segment: a write of TCP's may send many of them or none, and most are sent when others were acknowledged.
    ("tcp", 4): ("__tcp_transmit_skb",),
    ("tcp", 6): ("__tcp_transmit_skb",),
    ("ping", 4): ("raw_sendmsg", "ping_v4_sendmsg"),
    ("ping", 6): ("rawv6_sendmsg", "ping_v6_sendmsg"),
}
# Where a guest's packets come in: from QEMU, and from the kernel's own vhost.
GUEST_SENDS = ("tun_chr_write_iter", "tun_sendmsg")
SOFT_INTERRUPT = "net_rx_action"  # a receiver's, where it does not run in the sender's call
# What a packet with data comes through that arrives at a socket, of whatever protocol; a ping's answer as well.
ARRIVALS = frozenset(
    ("__udp_enqueue_schedule_skb", "udp_queue_rcv_one_skb", "udpv6_queue_rcv_one_skb", "tcp_data_queue",
     "tcp_queue_rcv", "tcp_data_ready", "raw_rcv", "rawv6_rcv", "ping_rcv", "ping_queue_rcv_skb")
)  # fmt: skip
EACH_KIB = 2048  # of buffer for each CPU: some 60,000 calls, which is about a hundred packets
MOST_CALLS = 500  # that are read
PARTS = (0.5, 0.1, 0.9)  # of the calls that are kept
OPTIONS = {
    "funcgraph-cpu": True, "funcgraph-proc": True, "funcgraph-duration": True, "funcgraph-overhead": True,
    "funcgraph-tail": True, "funcgraph-irqs": True, "funcgraph-abstime": False, "latency-format": False,
    "overwrite": False,  # the buffer takes what comes first, and then nothing
}  # fmt: skip


class Graph:
    """The tracer, armed."""

    def __init__(self, session: tracing.Session, roots: Sequence[str], text: Path) -> None:
        self._session, self._roots, self._text = session, roots, text

    def counting(self) -> AbstractContextManager[None]:
        """Trace until the block ends or the buffer is full."""
        return self._session.counting()

    def report(self) -> Observation:
        """The calls that were chosen, as a file (as ftrace prints them), and how they were."""
        reader = Reader(self._roots)
        with open(self._session.folder / "trace", errors="replace") as lines:
            head = [line for line in islice(lines, 40) if line.startswith("#")]
        with open(self._session.folder / "trace", errors="replace") as lines:
            trees = list(islice(reader.read(lines), MOST_CALLS))
        result = {root: _of_root([tree for tree in trees if tree.root.name == root]) for root in self._roots}
        chosen = [(root, part, tree) for root, (_, kept) in result.items() for part, tree in kept]
        observed: dict[str, Any] = {
            "tracer": tracing.TRACER,
            "root": chosen[0][0] if chosen else None,
            "packets_count": sum(about["count"] for about, _ in result.values()),
            "roots": {root: about for root, (about, _) in result.items()},
            "trees": [_about(*each) for each in chosen],
            "shortest_s": min((call.total_ns for tree in trees for call in tree.calls), default=0) / 1e9,
            "left_out_count": reader.broken_count,
        }
        self._write(head, result)
        doubts = [] if chosen else [f"none of {', '.join(self._roots)} was called while it was traced"]
        if reader.lost_count:
            doubts.append(f"the trace buffer lost {reader.lost_count} events within what was recorded")
        return Observation(observed, self._text, reader.lost_count, doubts)

    def _write(
        self, head: list[str], result: dict[str, tuple[dict[str, Any], list[tuple[float, Tree]]]]
    ) -> None:
        lines = ["".join(head)]
        for root, (about, kept) in result.items():
            for part, tree in kept:
                what = "the median" if part == 0.5 else f"{units.percent(part)} take no longer"
                lines += [
                    f"#\n# {root}, {what}: of {about['chosen_of']}\n",
                    *(f"{each}\n" for each in tree.lines),
                ]
        run_folder.write(self._text, "".join(lines).encode())


def _of_root(trees: list[Tree]) -> tuple[dict[str, Any], list[tuple[float, Tree]]]:
    """The calls of a root that are kept, and what is told of all of them."""
    arrived = [tree for tree in trees if not tree.names().isdisjoint(ARRIVALS)]
    calm = [tree for tree in arrived or trees if not tree.disturbed]
    pool = calm or arrived or trees
    words = units.many(len(pool), "whole call")
    words += " in which a packet reached a socket" if arrived else ""
    words += " and no interrupt or other process came" if calm and arrived else ""
    words += " into which no interrupt or other process came" if calm and not arrived else ""
    words += f"; {len(trees)} were recorded" if len(trees) > len(pool) else ""
    kept: list[tuple[float, Tree]] = []
    for part in PARTS:
        tree = call_trees.quantile(pool, part)
        if tree is not None and not any(tree is other for _, other in kept):
            kept.append((part, tree))
    about = {
        "count": len(trees),
        "arrived_count": len(arrived),
        "undisturbed_count": sum(not tree.disturbed for tree in trees),
        "chosen_of": words,
    }
    return about, kept


def _about(root: str, part: float, tree: Tree) -> dict[str, Any]:
    """What of a tree is told beside its text."""
    return {
        "root": root,
        "part": part,
        "cpu": tree.cpu,
        "process": tree.process,
        "duration_s": tree.root.total_ns / 1e9,
        "calls_count": len(tree.calls),
    }


@contextmanager
def function_graph(text: Path, roots: Sequence[str]) -> Iterator[Graph]:
    """function_graph, armed for the calls of these functions and all that they call, before traffic; use `counting`
    around it, and `report` afterwards, which writes the calls to `text`.

    Raises what `tracefs.session` raises.
    """
    buffer_kib = EACH_KIB * (os.cpu_count() or 1)
    with tracing.session(roots=roots, buffer_kib=buffer_kib, options=OPTIONS) as session:
        yield Graph(session, roots, text)


def roots(named: Sequence[str], protocol: str, family: int, guests: bool) -> tuple[str, ...]:
    """The functions whose calls are recorded: those that were named, else those that show a packet of this protocol
    best, of which this kernel has now. Raises BadInput for one that it cannot trace, Unsupported where there is none.
    """
    if named:
        return tuple(one for all_of in kernel_functions.resolved(named).values() for one in all_of)
    usual = (*SENDS[protocol, family], *(GUEST_SENDS if guests else ()), SOFT_INTERRUPT)
    result = kernel_functions.resolve(usual, tracing.functions())
    if not any(result.values()):
        raise Unsupported(f"this kernel can trace none of {', '.join(usual)}: name others, {PARAMETER}=NAME")
    return tuple(one for all_of in result.values() for one in all_of)


class GraphParameters(ObserverParameters, frozen=True, kw_only=True):
    """Parameters of function_graph; HELP says what each is."""

    HELP: ClassVar[Mapping[str, str]] = {
        PARAMETER: "whose calls function_graph shows; none: what sends and receives a packet of the protocol"
    }

    graph_functions: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise BadInput for what cannot be the name of a function."""
        kernel_functions.check_names(self.graph_functions, PARAMETER)


def _roots(parameters: ObservedLoad) -> tuple[str, ...]:
    names = own_parameters(parameters, GraphParameters).graph_functions
    return roots(names, parameters.protocol, parameters.family, "guest" in parameters.endpoint)


def _armed(
    parameters: ObservedLoad, _topology: topologies.Topology, stem: Path
) -> AbstractContextManager[ArmedObserver]:
    return function_graph(stem.with_name(f"{stem.name}.txt"), _roots(parameters))


FUNCTION_GRAPH = Observer(
    lambda _parameters: tracing.check(),
    _armed,
    _roots,
    parameters=GraphParameters,
    traces=True,
    disturbs=True,
)
