"""The calls of one packet as a figure and as a table, from real traces in the form of a run's artefacts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT

from labkit.analysis import flame
from labkit.common import call_trees
from labkit.common.call_trees import Tree
from labkit.common.errors import BadInput

pytestmark = pytest.mark.long

SAMPLE = ROOT / "tests/samples/function_graph-6.1-bridge.txt"


def trees() -> list[Tree]:
    """Return the receiver's and the sender's call tree."""
    with open(SAMPLE) as lines:
        return list(call_trees.Reader(("udp_sendmsg", "net_rx_action")).read(lines))


def rows(folder: Path, count: int = 1, **changes: Any) -> pd.DataFrame:
    """Return rows like those of `loading.profiles`, with the same report in all rounds."""
    receiver, sender = trees()
    result = []
    for number in range(count):
        name = f"{number}-function_graph.txt"
        lines = ["# tracer: function_graph", "# one", *sender.lines, "# two", *receiver.lines, ""]
        (folder / name).write_text("\n".join(lines))
        report = {
            "trees": [{"root": tree.root.name, "part": 0.5} for tree in (sender, receiver)],
            "roots": {tree.root.name: {"chosen_of": "7 whole calls"} for tree in (sender, receiver)},
            "shortest_s": 6.4e-7,
        }
        row = {"observer": "function_graph", "status": "ok", "artefact": name, "folder": str(folder),
               "observed": report, "doubts": None, "overhead_ratio": 0.25, "accelerator": "tcg"}  # fmt: skip
        result.append(row | changes)
    return pd.DataFrame(result)


def test_icicle_in_call_order_with_notes(tmp_path: Path) -> None:
    [packet, other] = flame.packets(rows(tmp_path, 3), "veth_bridge")
    assert (packet.root, other.root) == ("udp_sendmsg", "net_rx_action")
    data = packet.icicle(0.001).data
    names = [data["names"][at] for at in data["name"]]
    assert names[:4] == ["iperf3-162", "udp_sendmsg", "__rcu_read_lock", "__rcu_read_unlock"]
    assert names.index("br_handle_frame [bridge]") < names.index("ip_rcv") < names.index("udp_rcv")
    assert data["kinds"][data["names"].index("br_handle_frame [bridge]")] == "module"
    assert data["depth"][:3] == [0, 1, 2]
    assert data["left"][0] == data["left"][1] == sum(data["own_left"]) == 527_301
    assert data["span"] == pytest.approx(1_000_000)
    assert data["text"].splitlines() == packet.tree.lines
    [packet, _] = flame.packets(rows(tmp_path, 3), "veth_bridge")
    lines = " ".join(packet.icicle().data["notes"])
    for words in (
        "the median of 7 whole calls", "middle one of 3 rounds", "Tracing a call adds", "took 640 ns", "speed was 25 %",
        "CPU was emulated", "self time",
    ):  # fmt: skip
        assert words in lines, lines


def test_two_packets_compared(tmp_path: Path) -> None:
    bridge, receiver = flame.packets(rows(tmp_path), "veth_bridge")
    table = flame.packets_compared(receiver, flame.PacketCalls("veth", bridge.tree, [], 1e-6), rows=300)
    assert list(table.columns) == [
        "veth_bridge, calls", "veth, calls", "veth_bridge, µs", "veth, µs", "difference, µs",
    ]  # fmt: skip
    assert table.loc["udp_sendmsg", "veth_bridge, calls"] == "0"
    assert table.loc["total", "veth, µs"] == "527.3"
    values = table["veth, µs"].str.replace(",", "").astype(float)
    assert values.iloc[:-1].sum() == pytest.approx(527.3, abs=0.05 * len(values))
    short = flame.packets_compared(receiver, bridge, rows=3)
    assert list(short.index[-2:]) == ["everything else", "total"]
    assert len(short) == 5


def test_several_arms_on_one_scale(tmp_path: Path) -> None:
    sender, receiver = flame.packets(rows(tmp_path), "veth")
    of = [
        [replace(sender, arm=arm, shortest_s=s)]
        for arm, s in (("veth_bridge", 6e-7), ("macvlan_bridge", 2e-6))
    ]
    lines, *pieces, _only, alone = list(flame.side_by_side([[sender], *of, [receiver]]))
    assert lines == "One scale of time for all sides."
    drawn = [piece for piece in pieces if isinstance(piece, flame.Flame)]
    assert [one.data["title"].partition(":")[0] for one in drawn] == ["veth", "veth_bridge", "macvlan_bridge"]
    assert {round(one.data["span"]) for one in drawn} == {527_301}
    words, tables = ([piece for piece in pieces if isinstance(piece, kind)] for kind in (str, pd.DataFrame))
    assert ["not equally fast" in one for one in words] == [False, True]
    assert [one.columns[1] for one in tables] == ["veth_bridge, calls", "macvlan_bridge, calls"]
    assert alone == "Calls of net_rx_action were recorded for veth only."
    assert [type(piece) for piece in flame.side_by_side([[sender]])] == [flame.Flame], (
        "one arm has nothing beside it"
    )


def test_missing_calls_are_one_sentence(tmp_path: Path) -> None:
    result = rows(tmp_path)
    with pytest.raises(
        BadInput, match="veth has no recorded calls of a packet: run it with observe=function_graph"
    ):
        flame.packets(result[result["observer"].ne("function_graph")], "veth")
    with pytest.raises(
        BadInput, match=r"veth was traced, but none of its calls can be used: failed \(it ended early\)"
    ):
        flame.packets(rows(tmp_path, status="failed", reason="it ended early"), "veth")
    (tmp_path / "0-function_graph.txt").unlink()
    with pytest.raises(BadInput, match=r"0-function_graph\.txt do not exist: measure again"):
        flame.packets(result, "veth")
    (tmp_path / "none.txt").write_text("# tracer: function_graph\n")
    empty = {"trees": [], "roots": {}, "shortest_s": 0}
    with pytest.raises(BadInput, match="udp_sendmsg was not called"):
        flame.packets(
            rows(tmp_path, artefact="none.txt", observed=empty, doubts="udp_sendmsg was not called"), "v"
        )
