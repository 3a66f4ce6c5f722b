"""function_graph keeps and reports the right calls of a trace. The traces are real ones of 6.1 and 6.12."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import SAMPLES

from labkit.analysis.flame import packet_calls
from labkit.measure.observers.base import Observation
from labkit.measure.observers.ftrace import function_graph, session
from labkit.measure.traffic.registry import PROTOCOLS


def report(folder: Path, trace: str, *roots: str) -> Observation:
    folder.mkdir(exist_ok=True)
    shutil.copy(SAMPLES / f"function_graph-{trace}.txt", folder / "trace")
    return function_graph.report(folder / "trace", roots, folder / "deep" / "kept.txt")


def test_kept_text_is_unchanged(tmp_path: Path) -> None:
    seen = report(tmp_path, "6.1-bridge", "udp_sendmsg", "net_rx_action")
    assert (seen.lost_samples_count, seen.doubts) == (0, [])
    assert (seen.observed["root"], seen.observed["packets_count"]) == ("udp_sendmsg", 2)
    assert seen.observed["shortest_s"] == pytest.approx(6.81e-7)
    assert seen.artefact == tmp_path / "deep" / "kept.txt"
    lines = seen.artefact.read_text().splitlines()
    assert lines[0] == "# tracer: function_graph"
    medians = [line.partition(", the median: of 1 whole call")[0] for line in lines if "median" in line]
    assert medians == ["# udp_sendmsg", "# net_rx_action"]
    printed = (tmp_path / "trace").read_text().splitlines()
    assert all(line in printed for line in lines if not line.startswith("#"))
    for tree, about in zip(packet_calls.read(seen.artefact), seen.observed["trees"], strict=True):
        assert tree.root.name == about["root"]
        assert tree.root.total_ns / 1e9 == about["duration_s"]
        assert (about["part"], about["calls_count"]) == (0.5, len(tree.calls))
    assert not list(seen.artefact.parent.glob(".*"))


def test_interrupted_calls_are_the_last_choice(tmp_path: Path) -> None:
    seen = report(tmp_path, "6.12-interrupted", "udp_sendmsg")
    about = seen.observed["roots"]["udp_sendmsg"]
    assert (about["count"], about["arrived_count"], about["undisturbed_count"]) == (1, 1, 0)
    assert about["chosen_of"] == "1 whole call in which a packet reached a socket"
    assert seen.observed["left_out_count"] == 1


def test_ipv6_datagram(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace is from a bridge in a lab VM (family=6). IPv4 functions occur as well and are not roots."""
    [tree] = packet_calls.read(SAMPLES / "function_graph-6.12-ipv6.txt")
    there = {*tree.names(), "udp_sendmsg", "ip_rcv"}
    monkeypatch.setattr(session, "functions", lambda: sorted(there))
    roots = function_graph.roots((), "udp", 6, False)
    assert roots == ("udpv6_sendmsg", "net_rx_action")
    seen = report(tmp_path, "6.12-ipv6", *roots)
    assert (seen.doubts, seen.observed["root"], seen.observed["packets_count"]) == ([], "udpv6_sendmsg", 1)
    about = seen.observed["roots"]["udpv6_sendmsg"]
    assert (about["arrived_count"], about["undisturbed_count"]) == (1, 1)
    assert (
        about["chosen_of"]
        == "1 whole call in which a packet reached a socket and no interrupt or other process came"
    )
    order = [call.name for call in tree.calls]
    way = ["udpv6_sendmsg", "ip6_output", "ip6_finish_output2", "br_handle_frame", "ipv6_rcv", "ip6_input", "udpv6_rcv",
           "udpv6_queue_rcv_one_skb"]  # fmt: skip
    assert sorted(way, key=order.index) == way
    assert not {"udp_sendmsg", "ip_output", "ip_finish_output2", "ip_rcv", "udp_rcv"} & set(order)


def trace(*durations: int, arrives: str = "") -> str:
    """Return calls of f that take this many µs; `arrives` is a function that they call."""
    made = []
    for duration in durations:
        below = [f" 0)  a-1   |   0.500 us    |    {arrives}();"] if arrives else []
        made += [
            " 0)  a-1   |               |  f() {",
            *below,
            f" 0)  a-1   | ! {duration}.000 us |  }} /* f */",
        ]
    return "".join(f"{line}\n" for line in made)


def kept(folder: Path, text: str) -> tuple[dict[str, Any], list[float]]:
    (folder / "trace").write_text(text)
    seen = function_graph.report(folder / "trace", ["f"], folder / "kept.txt").observed
    return seen["roots"]["f"], [round(one["duration_s"] * 1e6) for one in seen["trees"]]


def test_the_kept_call_is_the_median(tmp_path: Path) -> None:
    about, result = kept(tmp_path, trace(*range(100, 0, -1)))
    assert result == [50]
    assert about["chosen_of"] == "100 whole calls into which no interrupt or other process came"
    text = trace(*[5] * 50) + trace(900, 1000, 2000, arrives="__udp_enqueue_schedule_skb.part.0")
    about, result = kept(tmp_path, text)
    assert (about["count"], about["arrived_count"]) == (53, 3)
    assert result == [1000]
    assert about["chosen_of"].endswith("; 53 were recorded")


def test_empty_trace_is_reported(tmp_path: Path) -> None:
    seen = report(tmp_path, "6.12-processes", "udp_sendmsg")
    assert seen.doubts == ["none of udp_sendmsg was called during the trace"]
    assert (seen.observed["root"], seen.observed["trees"]) == (None, [])


def test_every_protocol_has_root_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ["__tcp_transmit_skb", "udp_sendmsg", "raw_sendmsg"]
    monkeypatch.setattr(session, "functions", lambda: there)
    sends = {one: function_graph.roots((), one, 4, False) for one in PROTOCOLS}
    of_tcp = {one for one, found in sends.items() if found == ("__tcp_transmit_skb",)}
    assert set(PROTOCOLS) - of_tcp == {"udp", "udp_rr", "ping"}
    there.append("net_rx_action.isra.0")
    assert function_graph.roots((), "udp", 4, False) == ("udp_sendmsg", "net_rx_action.isra.0")
    there[:] = ["tun_sendmsg"]
    assert {function_graph.roots((), one, 4, True) for one in PROTOCOLS} == {("tun_sendmsg",)}
