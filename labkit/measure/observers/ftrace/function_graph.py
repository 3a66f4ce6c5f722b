"""The calls of one packet, from the sender's system call to the receiver's socket, as function_graph prints them.

Source: Documentation/trace/ftrace.rst. During the traffic, a bounded number of complete calls of a root function is
recorded. The report shows the call of median duration among those without interrupts or task switches. What runs in a
softirq at the end of the sender's call is part of that call: over veth this is the whole path to the receiver's socket.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from labkit.common import call_trees, run_folder, units
from labkit.common.call_trees import Reader, Tree
from labkit.common.errors import Unsupported
from labkit.measure import topologies
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad, Observer
from labkit.measure.observers.ftrace import kernel_functions
from labkit.measure.observers.ftrace import session as tracing
from labkit.measure.observers.parameters import own

PARAMETER = "graph_functions"
SENDS = {
    ("udp", 4): ("udp_sendmsg",),
    ("udp", 6): ("udpv6_sendmsg",),
    # One segment. A TCP write may send many segments or none; most are sent when earlier ones are acknowledged.
    ("tcp", 4): ("__tcp_transmit_skb",),
    ("tcp", 6): ("__tcp_transmit_skb",),
    ("ping", 4): ("raw_sendmsg", "ping_v4_sendmsg"),
    ("ping", 6): ("rawv6_sendmsg", "ping_v6_sendmsg"),
}
# Where a guest's packets enter this kernel: from QEMU, and from vhost.
GUEST_SENDS = ("tun_chr_write_iter", "tun_sendmsg")
SOFT_INTERRUPT = "net_rx_action"  # the receiver's softirq, if it does not run within the sender's call
# Functions that a packet with data passes when it reaches a socket, for any protocol; also a ping's reply.
ARRIVALS = frozenset(
    ("__udp_enqueue_schedule_skb", "udp_queue_rcv_one_skb", "udpv6_queue_rcv_one_skb", "tcp_data_queue",
     "tcp_queue_rcv", "tcp_data_ready", "raw_rcv", "rawv6_rcv", "ping_rcv", "ping_queue_rcv_skb")
)  # fmt: skip
EACH_KIB = 2048  # buffer per CPU: about 60,000 calls, which is about a hundred packets
MAX_CALLS = 500  # calls that are read
OPTIONS = {
    "funcgraph-cpu": True, "funcgraph-proc": True, "funcgraph-duration": True, "funcgraph-overhead": True,
    "funcgraph-tail": True, "funcgraph-irqs": True, "funcgraph-abstime": False, "latency-format": False,
    "overwrite": False,  # a full buffer keeps the first events
}  # fmt: skip


def report(trace: Path, roots: Sequence[str], text: Path) -> Observation:
    """Return how the calls in a trace were chosen; write them to the file `text` as ftrace prints them."""
    reader = Reader(roots)
    with open(trace, errors="replace") as lines:
        kept_lines = [line for line in islice(lines, 40) if line.startswith("#")]
    with open(trace, errors="replace") as lines:
        trees = list(islice(reader.read(lines), MAX_CALLS))
    result = {root: _describe_root([tree for tree in trees if tree.root.name == root]) for root in roots}
    chosen = [(root, tree) for root, (_, tree) in result.items() if tree is not None]
    for root, tree in chosen:
        kept_lines.append(f"#\n# {root}, the median: of {result[root][0]['chosen_of']}\n")
        kept_lines += [f"{each}\n" for each in tree.lines]
    run_folder.write(text, "".join(kept_lines).encode())
    observed: dict[str, Any] = {
        "tracer": tracing.TRACER,
        "root": chosen[0][0] if chosen else None,
        "packets_count": sum(about["count"] for about, _ in result.values()),
        "roots": {root: about for root, (about, _) in result.items()},
        "trees": [_about(*each) for each in chosen],
        "shortest_s": min((call.total_ns for tree in trees for call in tree.calls), default=0) / 1e9,
        "left_out_count": reader.broken_count,
    }
    doubts = [] if chosen else [f"none of {', '.join(roots)} was called during the trace"]
    if reader.lost_count:
        doubts.append(f"the trace buffer lost {reader.lost_count} events during the recording")
    return Observation(observed, text, reader.lost_count, doubts)


def _describe_root(trees: list[Tree]) -> tuple[dict[str, Any], Tree | None]:
    """Return a description of all calls of a root function, and the kept one."""
    arrived = [tree for tree in trees if not tree.names().isdisjoint(ARRIVALS)]
    calm = [tree for tree in arrived or trees if not tree.disturbed]
    pool = calm or arrived or trees
    words = units.counted(len(pool), "whole call")
    words += " in which a packet reached a socket" if arrived else ""
    words += " and no interrupt or other process came" if calm and arrived else ""
    words += " into which no interrupt or other process came" if calm and not arrived else ""
    words += f"; {len(trees)} were recorded" if len(trees) > len(pool) else ""
    about = {
        "count": len(trees),
        "arrived_count": len(arrived),
        "undisturbed_count": sum(not tree.disturbed for tree in trees),
        "chosen_of": words,
    }
    return about, call_trees.median(pool)


def _about(root: str, tree: Tree) -> dict[str, Any]:
    """Return the description of a tree in the report."""
    return {
        "root": root,
        "part": 0.5,  # earlier versions kept the calls at other quantiles, too
        "cpu": tree.cpu,
        "process": tree.process,
        "duration_s": tree.root.total_ns / 1e9,
        "calls_count": len(tree.calls),
    }


def roots(named: Sequence[str], protocol: str, family: int, guests: bool) -> tuple[str, ...]:
    """Return the functions whose calls are recorded: the named ones, else the usual ones for this protocol.

    Raises BadInput for a function that the kernel cannot trace, Unsupported if it can trace none of the usual ones.
    """
    if named:
        return tuple(one for all_of in kernel_functions.resolved(named).values() for one in all_of)
    # Protocols whose names do not begin with their transport's (http) are over TCP.
    sends = SENDS.get((protocol.partition("_")[0], family), SENDS["tcp", family])
    usual = (*sends, *(GUEST_SENDS if guests else ()), SOFT_INTERRUPT)
    result = kernel_functions.resolve(usual, tracing.functions())
    if not any(result.values()):
        raise Unsupported(
            f"this kernel can trace none of {', '.join(usual)}: name other functions with {PARAMETER}=NAME"
        )
    return tuple(one for all_of in result.values() for one in all_of)


def _roots(parameters: ObservedLoad) -> tuple[str, ...]:
    names = own(parameters).graph_functions
    return roots(names, parameters.protocol, parameters.family, "guest" in parameters.endpoint)


@contextmanager
def _armed(parameters: ObservedLoad, _topology: topologies.Topology, stem: Path) -> Iterator[ArmedObserver]:
    """Arm function_graph for the calls of the roots and everything that they call, before the traffic.

    It traces until `counting` ends or the buffer is full.
    Raises what `session.session` raises.
    """
    roots, buffer_kib = _roots(parameters), EACH_KIB * (os.cpu_count() or 1)
    with tracing.session(roots=roots, buffer_kib=buffer_kib, options=OPTIONS) as session:
        trace, text = session.folder / "trace", stem.with_name(f"{stem.name}.txt")
        yield ArmedObserver(lambda: report(trace, roots, text), session.counting)


FUNCTION_GRAPH = Observer(
    _armed,
    lambda _parameters: tracing.check(),
    _roots,
    traces=True,
    disturbs=True,
)
