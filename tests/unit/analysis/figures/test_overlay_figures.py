"""Figures and tables of the experiment `overlay`, read back from what is drawn."""

import itertools
from collections.abc import Callable

import pandas as pd
import plotly.graph_objects as go
import pytest
import synthetic_overlay_rows

from studies.overlay import finding as findings
from studies.overlay.figure_packet_path import flows, hops
from studies.overlay.figure_reachability import matrix, matrix_table
from studies.overlay.figure_spine_failure import failure, failure_table

DRAWN: list[tuple[Callable[[pd.DataFrame], go.Figure], str, Callable[..., pd.DataFrame]]] = [
    (hops, "path", synthetic_overlay_rows.path),
    (matrix, "reachability", synthetic_overlay_rows.reachability),
    (failure, "failure", synthetic_overlay_rows.failure),
]
each_figure = pytest.mark.parametrize(("draw", "part", "made"), DRAWN, ids=[part for _, part, _ in DRAWN])


def words(figure: go.Figure) -> str:
    return "\n".join(one.text for one in figure.layout.annotations)


def test_headers_in_frame_order() -> None:
    rows = synthetic_overlay_rows.path()
    figure = hops(rows[rows["packet"].eq(0)])
    [row] = [y for y, name in zip(figure.layout.yaxis.tickvals, figure.layout.yaxis.ticktext, strict=True)
             if name == "lc1_sc2 out"]  # fmt: skip
    bars = [
        (base, base + x, bar.name)
        for bar in figure.data
        for base, x, y in zip(bar.base, bar.x, bar.y, strict=True)
        if y == row
    ]
    bars.sort()
    assert [name for *_, name in bars] == [
        "Ethernet", "IP", "GRE", "IP", "UDP", "VXLAN", "Ethernet", "IP", "ICMP", "payload",
    ]  # fmt: skip
    assert all(one[1] == other[0] for one, other in itertools.pairwise(bars)), "no gap, no overlap"
    assert bars[-1][1] == 0
    assert bars[0][0] == -(172 - 56 + 16), "of the payload's 56 bytes 16 are drawn"
    figure = hops(synthetic_overlay_rows.path())
    assert all(text.startswith(bar.name) for bar in figure.data for text in bar.text)
    fills = {bar.name: bar.marker.color for bar in figure.data}
    assert len(set(fills.values())) == len(fills) == 7


def test_hop_bytes_times_and_drops() -> None:
    figure = hops(synthetic_overlay_rows.path())
    names = list(figure.layout.yaxis.ticktext)
    assert names[:2] == ["cs1_br1 out", "br1_cs1 in"]
    assert names[16] == "cs5_br3 out", "the reply begins where the request ended"
    assert len(names) == 32
    lines = words(figure)
    assert lines.count("172 B") == 8
    assert lines.count("148 B") == 8
    assert lines.count("134 B") == 4
    assert lines.count("60.0 µs") == 2 + 2, "in the head, and at the last hop"
    assert lines.count("<b>sc2</b>") == 2
    hover = {text for bar in figure.data for text in bar.hovertext}
    assert any("<b>VXLAN 30</b><br>8 bytes, 106 with what is inside" in text for text in hover)
    rows = synthetic_overlay_rows.path()
    rows.loc[rows["hop"].eq("sc2:sc2_lc1"), "dropped_count"] = 7
    assert "capture at sc2:sc2_lc1 dropped 7 packets" in words(hops(rows)).replace("<br>", " ")


def test_each_flow_has_a_figure() -> None:
    rows = synthetic_overlay_rows.path()
    other = rows.assign(packet=rows["packet"] + 2, what=rows["what"].str.replace("cs5", "cs4"))
    drawn = flows(pd.concat([rows, other], ignore_index=True))
    heads = [[one.text for one in figure.layout.annotations if ": 16 hops" in one.text] for figure in drawn]
    ends = [("cs1", "cs5"), ("cs1", "cs4")]
    assert [[head.split("<")[1].removeprefix("b>") for head in both] for both in heads] == [
        [f"{one} &gt; {two} echo request", f"{two} &gt; {one} echo reply"] for one, two in ends
    ]
    [empty] = flows(rows.iloc[:0])
    assert "the table is empty" in words(empty)


def test_unexpected_cell_stands_out() -> None:
    rows = synthetic_overlay_rows.reachability()
    lossy = rows["source"].eq("cs2") & rows["target"].eq("cs1")
    rows.loc[lossy, ["received_count", "as_expected"]] = [3, False]
    wrong_ttl = rows["source"].eq("cs2") & rows["target"].eq("cs3")
    rows.loc[wrong_ttl, ["ttl", "as_expected"]] = [60, False]
    figure = matrix(rows)
    lines = words(figure)
    assert lines.count("≠ another path") == 2
    assert lines.count("≠ 2 lost") == 1
    assert lines.count("≠ TTL 60, not 62") == 1
    widths = [shape.line.width for shape in figure.layout.shapes]
    assert len(widths) == 20
    assert sum(width > 2 for width in widths) == 4
    [hover] = [point.hovertext[0] for point in figure.data if point.hovertext[0].startswith("cs1 to cs4")]
    assert "seen: cs1 → con_ns1 → lc1 → sc1 → lc2 → con_ns2 → cs4" in hover
    assert "expected: cs1 → con_ns1 → lc1 → sc2 → lc2 → con_ns2 → cs4" in hover
    table = matrix_table(rows)
    assert list(table["not as expected"]) == ["another path", "2 lost", "TTL 60, not 62", "another path"]
    rows = synthetic_overlay_rows.reachability()
    rows = rows.assign(received_count=0, ttl=None, rtt_min_s=None, rtt_p50_s=None, rtt_max_s=None)
    rows["as_expected"] = True
    assert matrix_table(rows).empty
    assert "≠" not in words(matrix(rows))
    rows = pd.concat(
        [synthetic_overlay_rows.reachability().assign(routes=routes) for routes in ("ecmp", "static")]
    )
    figure = matrix(rows)
    assert len(figure.layout.shapes) == 40
    lines = words(figure)
    assert lines.index("<b>static</b>") < lines.index("<b>ecmp</b>")


def test_failure_probes_by_send_time() -> None:
    figure = failure(synthetic_overlay_rows.failure())
    assert sum(len(trace.x) for trace in figure.data) == 6 * 150
    lost = [trace for trace in figure.data if "lost" in trace.hovertext[0]]
    assert [len(trace.x) for trace in lost] == [50, 50, 50]
    assert len({y for trace in lost for y in trace.y}) == 1, "in one line"
    late = max(y for trace in figure.data if trace not in lost for y in trace.y)
    assert late == pytest.approx(1.0, abs=0.01)
    assert late < lost[0].y[0], "above all that was answered"
    bands = [shape for shape in figure.layout.shapes if (shape.x0, shape.x1) == (1.1, 2.1)]
    assert len(bands) == 6
    titles = [one.text for one in figure.layout.annotations if one.text.startswith("<b>")]
    assert "<b>static: carrier</b><br>linkdown ignored<br>no answer for 1 s<br>50 of 150 lost" in titles
    assert "<b>metric: carrier</b><br>linkdown ignored<br>no outage, 0 of 150 lost" in titles
    assert "<b>static: carrier</b><br>no answer for 1 s<br>0 of 150 lost" in titles


def test_failure_table_expected_and_measured() -> None:
    table = failure_table(synthetic_overlay_rows.failure())
    [metric] = table[table["routes"].eq("metric") & table["linkdown ignored"]].to_dict("records")
    assert (metric["before"], metric["during"], metric["expected during"]) == ("sc2", "sc1", "sc1")
    [static] = table[table["routes"].eq("static") & table["failure"].eq("silent")].to_dict("records")
    assert (static["during"], static["expected during"], static["lost"]) == ("none", "none", 50)
    assert "host" not in table
    # The synthetic flow with equal-cost routes stops, although another spine is expected to carry it.
    rows = synthetic_overlay_rows.failure()
    table = failure_table(rows)
    marks = dict(
        zip(zip(table["routes"], table["failure"], strict=True), table["not as expected"], strict=True)
    )
    assert marks["ecmp", "silent"] == "≠ no spine instead of sc1"
    assert not any(mark for key, mark in marks.items() if key != ("ecmp", "silent"))
    titles = [one.text for one in failure(rows).layout.annotations if one.text.startswith("<b>")]
    assert [title for title in titles if "≠" in title] == [title for title in titles if "ecmp" in title]
    assert [line for line in findings.failure(rows) if "≠" in line] == [
        line for line in findings.failure(rows) if "ecmp" in line
    ]
    usual = rows[rows["routes"].ne("ecmp")]
    assert "not as expected" not in failure_table(usual)


@each_figure
def test_emulation_gaps_and_hosts_are_shown(
    draw: Callable[[pd.DataFrame], go.Figure], part: str, made: Callable[..., pd.DataFrame]
) -> None:
    assert "emulated CPU" in draw(made(**synthetic_overlay_rows.EMULATED)).layout.title.text
    one = draw(made())
    assert "emulated" not in one.layout.title.text
    assert "this kernel has no gre" in words(draw(synthetic_overlay_rows.unsupported(part)))
    assert "the table is empty" in words(draw(made().iloc[:0]))
    both = pd.concat([made(), synthetic_overlay_rows.unsupported(part)], ignore_index=True)
    figure = draw(both)
    assert "this kernel has no gre" in words(figure)
    assert figure.data
    rows = pd.concat([made(run="a"), made(run="b", **synthetic_overlay_rows.EMULATED)], ignore_index=True)
    two = draw(rows)
    if part == "path":
        assert "first of 2 runs" in words(two)
        assert len(two.data) == len(one.data)
    else:
        assert two.layout.height > 1.7 * one.layout.height
        assert "Linux 6.12.9-amd64, emulated" in words(two)
