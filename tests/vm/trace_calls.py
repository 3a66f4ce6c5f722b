"""Trace packets in several ways, give a container interfaces in VLANs, and report both as a JSON object.

The tests run this as a program in a machine of their own. It is one program because importing labkit takes a minute on
an emulated CPU.
"""

from __future__ import annotations

import functools
import json
import re
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import attach_vlans

from labkit.common.errors import BadInput
from labkit.measure import topologies
from labkit.measure.experiments import DatapathParameters
from labkit.measure.observers.ftrace import function_graph, function_times, perf_tools, session
from labkit.measure.observers.parameters import OwnParameters
from labkit.measure.observers.registry import TABLE
from labkit.measure.traffic import ping
from labkit.system import netlink, process
from labkit.system.machine import tracing_guard

SENT, PORT = 60, 7000
PING, MANY = (["ping", "-q", "-f", "-c", count, "127.0.0.1"] for count in ("100", "500"))
UNKNOWN = ("ip_recv", "zzz_nothing_zzz", "ip_rcv")


def bound(end: Any) -> socket.socket:
    with netlink.inside(end.namespace.fd):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(60)
    made.bind((end.address, PORT))
    return made


def calls(stem: Path) -> dict[str, Any]:
    """Send datagrams over a bridge while function_graph traces.

    All sockets are there before, because programs start slowly on an emulated kernel that traces them.
    """
    parameters = DatapathParameters(topology=("veth_bridge",), protocol="udp")
    with topologies.build("veth_bridge", topologies.Spec(1)) as topology, ExitStack() as stack:
        assert ping.reachable(topology.pairs, 1500, 4) is None
        client, server = (
            stack.enter_context(bound(end)) for end in (topology.pairs[0].client, topology.pairs[0].server)
        )
        observer = TABLE["function_graph"]
        observer.check(parameters)
        observer.check_built(parameters)
        watch = stack.enter_context(observer.armed(parameters, topology, stem))
        with watch.counting():
            for _ in range(SENT):
                client.sendto(bytes(400), server.getsockname())
                server.recv(1000)
        report = watch.report()
    assert report.artefact is not None
    return {"observed": report.observed, "lost": report.lost_samples_count, "doubts": report.doubts,
            "text": report.artefact.read_text()}  # fmt: skip


def counts() -> dict[str, Any]:
    """Return what function_times says of ip_rcv in two ways, and with a much too small buffer, and two other programs.

    The load is 100 echo requests over loopback and their replies; for the small buffer it is 500.
    """
    result: dict[str, Any] = {}
    for name, options in (("own", {}), ("bpf", {"tracer": "bpf"}), ("small", {"buffer_kib": 64})):
        if name == "small":
            function_times.TURN_S = 60.0  # until the load is over: else its reader may be fast enough
        with function_times.function_times(("ip_rcv", "icmp_rcv"), **options) as watch:
            with watch.counting():
                process.output(MANY if name == "small" else PING, 60)
            report = watch.report()
        one = report.observed["functions"]["ip_rcv"]
        result[name] = (one["count"], one["p50_s"], report.lost_samples_count, report.doubts)
    with session.exclusive_tracefs():
        output = process.output(["perf", "ftrace", "latency", "-n", "-T", "ip_rcv", "--", *PING], 120)
    result["perf"] = (sum(map(int, re.findall(r"\|\s+(\d+) \|", output))), output)
    own = OwnParameters(probe="ip_rcv:return", slow_s=1e-6, tracepoint="net:netif_rx")
    for tool in ("kprobe", "funcslower", "tpoint"):
        with perf_tools.TOOLS[tool].armed(own) as watch:
            with watch.counting():
                process.output(PING, 60)
            seen = watch.report().observed
        result[tool] = (seen["calls_count"], seen)
    return result


def refusal(ask: Callable[[], object]) -> str:
    try:
        ask()
    except BadInput as error:
        return str(error)
    return "nothing is refused"


if __name__ == "__main__":
    # The kernel's list, which an emulated CPU writes for seconds, is read once. The guard has a test of its own.
    session.functions = functools.cache(session.functions)
    tracing_guard.start_guard = nullcontext
    with tempfile.TemporaryDirectory() as folder:
        report = {"calls": calls(Path(folder) / "calls"), "counts": counts()}
    report["refused"] = [
        refusal(function_times.function_times(UNKNOWN).__enter__),
        refusal(lambda: function_graph.roots(UNKNOWN, "udp", 4, False)),
    ]
    print(json.dumps({**report, "vlans": attach_vlans.report()}))
