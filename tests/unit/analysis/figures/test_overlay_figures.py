"""Figures and tables of the experiment `overlay`, of its published run, read back from what is drawn."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
from conftest import ROOT

from labkit.analysis import load
from studies.overlay import finding as findings
from studies.overlay.figure_packet_path import flows, hops
from studies.overlay.figure_reachability import matrix, matrix_table
from studies.overlay.figure_spine_failure import failure, failure_table

pytestmark = pytest.mark.long

DRAWN = {"path": hops, "reachability": matrix, "failure": failure}
REAL = {"where": "here", "accelerator": "none", "kernel": "6.18.5", "folder": "other", "run": "other"}


@functools.cache
def published(part: str) -> pd.DataFrame:
    return load.load(ROOT / "data/results/overlay", part)


def recorded(part: str, **columns: Any) -> pd.DataFrame:
    """Return the published rows of a part, with other values in these columns."""
    return published(part).assign(**columns)


def words(figure: go.Figure) -> str:
    return "\n".join(one.text for one in figure.layout.annotations)


def test_headers_in_frame_order() -> None:
    rows = recorded("path")
    figure = hops(rows[rows["packet"].eq(0)])
    row = figure.layout.yaxis.tickvals[figure.layout.yaxis.ticktext.index("lc1_sc2 out")]
    bars = sorted(
        (base, base + x, bar.name)
        for bar in figure.data
        for base, x, y in zip(bar.base, bar.x, bar.y, strict=True)
        if y == row
    )
    assert [name for *_, name in bars] == [
        "Ethernet", "IP", "GRE", "IP", "UDP", "VXLAN", "Ethernet", "IP", "ICMP", "payload",
    ]  # fmt: skip
    assert all(one[1] == other[0] for one, other in itertools.pairwise(bars)), "no gap, no overlap"
    assert bars[-1][1] == 0
    assert bars[0][0] == -(172 - 56 + 16), "of the payload's 56 bytes 16 are drawn"
    figure = hops(rows)
    assert all(text.startswith(bar.name) for bar in figure.data for text in bar.text)
    fills = {bar.name: bar.marker.color for bar in figure.data}
    assert len(set(fills.values())) == len(fills) == 7


def test_hop_bytes_times_and_drops() -> None:
    rows = recorded("path")
    figure = hops(rows)
    names = list(figure.layout.yaxis.ticktext)
    assert len(names) == 32
    assert names[:2] == ["cs1_br1 out", "br1_cs1 in"]
    assert names[16] == "cs5_br3 out", "the reply begins where the request ended"
    shown = {
        "172 B": 8,
        "148 B": 8,
        "134 B": 4,
        "16 hops in 1\u202f478 µs": 1,
        "16 hops in 288 µs": 1,
        "<b>sc2</b>": 2,
    }
    assert {text: words(figure).count(text) for text in shown} == shown
    hover = "\n".join(text for bar in figure.data for text in bar.hovertext)
    assert "<b>VXLAN 30</b><br>8 bytes, 106 with what is inside" in hover
    rows.loc[rows["hop"].eq("sc2:sc2_lc1"), "dropped_count"] = 7
    assert "capture at sc2:sc2_lc1 dropped 7 packets" in words(hops(rows)).replace("<br>", " ")


def test_each_flow_has_a_figure() -> None:
    rows = recorded("path")
    heads = [[text for text in words(figure).splitlines() if " hops in " in text] for figure in flows(rows)]
    assert [[head.partition("</b>")[0] for head in both] for both in heads] == [
        [f"<b>cs1 &gt; {end} echo request", f"<b>{end} &gt; cs1 echo reply"] for end in ("cs5", "cs4")
    ]
    [empty] = flows(rows.iloc[:0])
    assert "the table is empty" in words(empty)


def test_unexpected_cell_stands_out() -> None:
    rows = recorded("reachability")
    usual = matrix(rows)
    assert "≠" not in words(usual)
    assert len(usual.layout.shapes) == 3 * 20
    assert words(usual).index("<b>static</b>") < words(usual).index("<b>ecmp</b>")
    assert matrix_table(rows.assign(received_count=0, ttl=None, rtt_p50_s=None)).empty, (
        "no answer was expected"
    )
    rows = rows[rows["routes"].eq("static")].copy()
    [at] = rows.index[rows["source"].eq("cs1") & rows["target"].eq("cs4")]
    rows.at[at, "path"] = ["cs1", "con_ns1", "lc1", "sc1", "lc2", "con_ns2", "cs4"]
    rows.at[at, "as_expected"] = False
    for target, column, value in (("cs1", "received_count", 1), ("cs3", "ttl", 60)):
        rows.loc[rows["source"].eq("cs2") & rows["target"].eq(target), [column, "as_expected"]] = [
            value,
            False,
        ]
    figure = matrix(rows)
    shown = {"≠ another path": 1, "≠ 2 lost": 1, "≠ TTL 60, not 62": 1}
    assert {text: words(figure).count(text) for text in shown} == shown
    assert sorted(shape.line.width > 2 for shape in figure.layout.shapes) == [False] * 17 + [True] * 3
    [hover] = [point.hovertext[0] for point in figure.data if point.hovertext[0].startswith("cs1 to cs4")]
    for kind, spine in (("seen", "sc1"), ("expected", "sc2")):
        assert f"{kind}: cs1 → con_ns1 → lc1 → {spine} → lc2 → con_ns2 → cs4" in hover
    assert sorted(matrix_table(rows)["not as expected"]) == ["2 lost", "TTL 60, not 62", "another path"]


def test_failure_probes_by_send_time() -> None:
    rows = recorded("failure")
    figure = failure(rows)
    assert sum(len(trace.x) for trace in figure.data) == rows["sent_count"].sum()
    lost = [trace for trace in figure.data if "lost" in trace.hovertext[0]]
    not_answered = rows["sent_count"] - rows["received_count"]
    assert sorted(len(trace.x) for trace in lost) == sorted(not_answered[not_answered > 0])
    assert len({y for trace in lost for y in trace.y}) == 1, "in one line"
    late = max(y for trace in figure.data if trace not in lost for y in trace.y)
    assert 1 < late < lost[0].y[0], "above all that was answered"
    bands = {(shape.x0, shape.x1) for shape in figure.layout.shapes}
    assert bands == set(zip(rows["down_s"], rows["up_s"], strict=True))
    assert {
        "<b>static: carrier</b><br>linkdown ignored<br>no answer for 5.02 s<br>209 of 360 lost",
        "<b>metric: carrier</b><br>linkdown ignored<br>no outage, 0 of 385 lost",
        "<b>static: carrier</b><br>no answer for 5.12 s<br>128 of 355 lost",
    } <= {one.text for one in figure.layout.annotations}


def test_failure_table_expected_and_measured() -> None:
    """The flow with equal-cost routes stops if the spine is silent, although another one is expected to carry it."""
    rows = recorded("failure")
    table = failure_table(rows)
    [metric] = table[table["routes"].eq("metric") & table["linkdown ignored"]].to_dict("records")
    assert (metric["before"], metric["during"], metric["expected during"]) == ("sc2", "sc1", "sc1")
    [static] = table[table["routes"].eq("static") & table["failure"].eq("silent")].to_dict("records")
    assert (static["during"], static["expected during"], static["lost"]) == ("none", "none", 209)
    assert "host" not in table
    silent = table["routes"].eq("ecmp") & table["failure"].eq("silent")
    expected = silent.map({True: "≠ no spine instead of sc1", False: ""})
    assert table["not as expected"].tolist() == expected.tolist()
    titles = [one.text for one in failure(rows).layout.annotations if one.text.startswith("<b>")]
    for said in (titles, findings.failure(rows)):
        [wrong] = [text for text in said if "≠" in text]
        assert "ecmp" in wrong
    assert "not as expected" not in failure_table(rows[rows["routes"].ne("ecmp")])


@pytest.mark.parametrize(("part", "draw"), DRAWN.items())
def test_emulation_gaps_and_hosts_are_shown(part: str, draw: Callable[[pd.DataFrame], go.Figure]) -> None:
    few = recorded(part)["routes"].eq("static")
    emulated, real = recorded(part)[few], recorded(part, **REAL)[few]
    one = draw(real)
    assert "emulated" not in one.layout.title.text
    assert "emulated CPU" in draw(emulated).layout.title.text
    gap = real.iloc[:1].assign(status="unsupported", reason="this kernel has no gre")
    for rows in (gap, pd.concat([real, gap], ignore_index=True)):
        assert "this kernel has no gre" in words(draw(rows))
    assert draw(rows).data
    assert "the table is empty" in words(draw(real.iloc[:0]))
    two = draw(pd.concat([real, emulated], ignore_index=True))
    if part == "path":
        assert "first of 2 runs" in words(two)
        assert len(two.data) == len(one.data)
    else:
        assert two.layout.height > 1.7 * one.layout.height
        assert "Linux 6.1.0-56-amd64, emulated" in words(two)
