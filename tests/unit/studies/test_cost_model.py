"""The cost of a datagram by its size, from rows with a known cost: fits, differences, sentences, figures."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import synthetic_packet_sizes
import synthetic_report
from synthetic_packet_sizes import BYTE, FIRST, FIXED, FRAGMENT, SIZES

from labkit.analysis import figures
from labkit.analysis.figures import line_chart
from labkit.analysis.figures.cost_by_size import fragments_count, largest_whole
from studies.packet_size import cost_model
from studies.packet_size import figure_fit as packet_size_figure_fit
from studies.packet_size import finding as packet_size
from studies.packet_size.cost_model import Curve

pytestmark = pytest.mark.long


def of(result: list[Curve], arm: str, cost: str = "time_per_packet_s") -> Curve:
    [one] = [curve for curve in result if (curve.arm, curve.cost) == (arm, cost)]
    return one


def test_fragment_count() -> None:
    for size, mtu, family, count in (
        (1472, 1500, 4, 1), (1473, 1500, 4, 2),
        (65507, 1500, 4, 45), (65507, 65535, 4, 1), (1453, 1500, 6, 2),
        # a fragment other than the last cannot use the whole MTU (RFC 791: multiples of 8 bytes)
        (2798, 1426, 4, 2), (2799, 1426, 4, 3),
    ):  # fmt: skip
        assert fragments_count(size, mtu, family) == count
        assert (size <= largest_whole(mtu, family)) == (count == 1)


def test_planted_costs_are_found() -> None:
    result = cost_model.curves(synthetic_packet_sizes.rows(rounds=8))
    assert [one.arm for one in result[:4]] == ["veth", "veth_bridge", "vxlan", "veth (again)"]
    veth, twice = of(result, "veth"), of(result, "veth", "cpu_per_packet_s")
    for part, planted in zip(cost_model.PARTS, (FIXED, BYTE, FIRST, FRAGMENT), strict=True):
        assert veth.parts[part].value == pytest.approx(planted, rel=0.25)
        assert twice.parts[part].value == pytest.approx(2 * veth.parts[part].value), "two busy CPUs"
    byte = of(result, "vxlan").parts["byte"]
    assert byte.low <= BYTE + 6e-9 <= byte.high
    assert not any(fit.misfits for one in result for fit in (one.line, one.steps) if fit is not None)
    assert veth.at(np.array([400.0, 4000.0]), np.array([1.0, 3.0])) == pytest.approx(
        [FIXED + 400 * BYTE, FIRST + 2 * FRAGMENT], rel=0.1
    )


def test_lack_of_fit_is_reported() -> None:
    rows = synthetic_packet_sizes.rows(rounds=8)
    rows.loc[rows["length_bytes"].eq(64), "received_bytes"] *= 0.7
    result = cost_model.curves(rows)
    assert of(result, "veth").line.misfits  # type: ignore[union-attr]
    [_, line, *_] = packet_size.fits([of(result, "veth")])
    assert "do not lie on a straight line: the fit misses by up to +" in line
    assert "at 64 bytes" in line
    assert packet_size.table(result)["does not fit"].str.contains("the fit misses by up to").all()


def test_too_few_sizes_and_incomplete_rounds() -> None:
    [few, *_] = cost_model.curves(synthetic_packet_sizes.rows((16, 1472, 4000)))
    assert few.why == "a line needs 3 sizes that fit the MTU, and there are 2"
    assert not few.parts
    assert "not fitted: a line needs 3 sizes" in packet_size.fits([few])[0]
    rows = synthetic_packet_sizes.rows()
    gone = rows["length_bytes"].eq(400) & rows["round"].eq(2)
    seldom = rows["length_bytes"].eq(800) & rows["round"].gt(1)
    one = of(cost_model.curves(rows[~gone & ~seldom]), "veth")
    assert 800 not in one.lengths
    assert one.parts["fixed"].rounds_count == 4
    assert one.left_out == [
        "800 bytes left out: measured in 2 of 5 rounds only",
        "1 of 5 rounds left out: 400 bytes were not measured",
    ]
    rows.loc[rows["length_bytes"].eq(65507) & rows["round"].eq(3), "received_bytes"] = 0.0
    one = of(cost_model.curves(rows), "veth", "cpu_per_packet_s")
    assert one.left_out == ["1 of 5 rounds left out: nothing arrived of 65507 bytes"]
    assert packet_size.fits([one])[-1] == f"    - {one.left_out[0]}."
    assert packet_size.table([one])["does not fit"].tolist() == one.left_out
    one = of(cost_model.curves(synthetic_packet_sizes.rows((16, 400, 1472, 4000))), "veth")
    assert (list(one.parts), one.steps) == (["fixed", "byte"], None), "one number of fragments is no line"
    assert np.isnan(one.at(np.array([4000.0]), np.array([3.0]))).all()
    assert cost_model.curves(synthetic_packet_sizes.rows().iloc[:0]) == []


def test_fragmentation_and_segmentation_words() -> None:
    def said(rows: pd.DataFrame) -> str:
        return " ".join(packet_size.transport(rows))

    rows = synthetic_packet_sizes.rows(rounds=2, lost=0.3)
    for words in (
        "1472 bytes unfragmented", "2 fragments for 1473 bytes, 3 fragments for 4000 bytes",
        "45 fragments for 65507 bytes", "counted the computed number", "lost at 30 of 30 points",
        "tx-udp-segmentation on",
    ):  # fmt: skip
        assert words in said(rows)
    assert "the sender, one process, is the limit" not in said(rows)
    whole = synthetic_packet_sizes.rows(rounds=2, mtu_bytes=65535)
    assert "fragments" not in said(whole)
    assert "At 30 points at most 1 % was lost: there the sender" in said(whole)
    nine_of_a_thousand = synthetic_packet_sizes.rows((400, 800), rounds=2, lost=0.009)
    assert "every datagram" not in said(nine_of_a_thousand)
    rows.loc[rows["length_bytes"].eq(4000), "fragments_count"] = 0  # as with segmentation in the NIC
    assert "But IP counted 1 of each datagram of 4000 bytes" in said(rows)


def test_limiting_side() -> None:
    for parameters, words in (
        ({}, "there the sender, one process, is the limit"),
        ({"rate_bps": 1e6}, "lost: the requested rate determines the time between datagrams."),
        ({"pairs": 8}, "there the senders are the limit, and the time between datagrams is that of all"),
        ({"streams": 4}, "there the senders are the limit"),
    ):
        rows = synthetic_packet_sizes.rows((400, 800), rounds=1, mtu_bytes=65535, **parameters)
        [lines] = [one for one in packet_size.transport(rows) if "at most 1 % was lost" in one]
        assert words in lines


def test_ping_round_trip_times() -> None:
    rows = synthetic_packet_sizes.rows(protocol="ping", method="whole")
    rows["latency_p50_s"] = 50e-6 + 1e-9 * rows["length_bytes"]
    rows[["received_bytes", "sent_count"]] = np.nan
    result = cost_model.curves(rows)
    assert {one.cost for one in result} == {"rtt_s"}
    assert result[0].parts["byte"].value == pytest.approx(1e-9)
    assert packet_size_figure_fit.fitted(rows, result).data


def scatters(figure: go.Figure, mode: str, name: str) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.mode == mode and trace.name == name]


def test_fitted_line_in_the_figure() -> None:
    rows = synthetic_packet_sizes.rows(accelerator="tcg")
    curves = cost_model.curves(rows)
    figure = packet_size_figure_fit.fitted(rows, curves)
    assert "(emulated CPU)" in figure.layout.title.text
    line, steps = scatters(figure, "lines", "veth")[:2]
    assert line.x[-1] <= 1472 < steps.x[0]
    assert len(set(np.round(steps.y, 6))) == 44, "a step for each number of fragments"
    ticks = next(figure.select_xaxes()).ticktext
    assert (ticks[0], ticks[-1]) == ("16", "65507<br>×45")
    measured = scatters(figure, "markers", "veth")
    assert len(measured) == 6, "of two costs: rounds, means, and what is left over"
    assert [shape for shape in figure.layout.shapes if shape.x0 == 1472.5]
    figure = packet_size_figure_fit.fitted(rows.iloc[:0], [])
    assert "nothing to draw" in synthetic_report.notes(figure)


def test_proportional_costs_are_shown_once() -> None:
    busy = synthetic_packet_sizes.rows()
    every = cost_model.curves(busy)
    shown = cost_model.without_proportional_time(every)
    assert {one.cost for one in every} == set(cost_model.COSTS) - {"rtt_s"}
    assert {one.cost for one in shown} == {"cpu_per_packet_s"}
    [line] = packet_size.same_costs(every)
    assert (
        "about 2 CPUs were busy, so the CPU time of a datagram is about 2 times the time to the next" in line
    )
    assert not any("time from one" in line for line in packet_size.findings(busy, busy.iloc[:0]))
    idle = busy.assign(cpu_s=busy["cpu_s"].where(busy["length_bytes"] > 400, 0.8 * busy["cpu_s"]))
    every = cost_model.curves(idle)
    assert cost_model.without_proportional_time(every) == every
    assert packet_size.same_costs(every) == []


def test_crowded_and_sparse_figures() -> None:
    """However many arms there are, they do not reach the next size."""
    arms = dict.fromkeys(("veth", "veth (again)", *map(str, range(16))), synthetic_packet_sizes.NONE)
    rows = synthetic_packet_sizes.rows((16, 400, 800, 1472), rounds=3, arms=arms, places=1)
    figure = packet_size_figure_fit.fitted(
        rows, cost_model.without_proportional_time(cost_model.curves(rows))
    )
    drawn = [trace.x for trace in figure.data if trace.hovertext is not None]
    for place in (1, 2):
        assert max(x[place] for x in drawn) < min(x[place + 1] for x in drawn)
    rows = synthetic_packet_sizes.rows(sizes=(400, 800))
    figure = packet_size_figure_fit.fitted(rows, cost_model.curves(rows))
    assert "too few sizes for a fit" in [text for trace in figure.data for text in trace.text or ()]
    assert {trace.yaxis or "y" for trace in figure.data} >= {"y", "y2"}, "plotly draws no plot without data"


def test_rates_and_hosts_in_figures() -> None:
    rows = synthetic_packet_sizes.rows(rounds=3)
    figure = figures.rates(rows)
    busy = [trace for trace in figure.data if trace.name == "veth" and trace.mode == "lines+markers"][2]
    assert list(busy.y) == pytest.approx([2.0] * len(SIZES))
    hosts = pd.concat([rows, synthetic_packet_sizes.rows(rounds=3, kernel="6.12", accelerator="tcg")])
    assert len(synthetic_report.titles(figures.rates(hosts))) == 2 * len(synthetic_report.titles(figure)) == 6
    fitted = packet_size_figure_fit.fitted(hosts, cost_model.curves(hosts))
    assert len(scatters(fitted, "markers", "veth")) == 12


def test_huge_intervals_are_not_drawn() -> None:
    rows = synthetic_packet_sizes.rows(rounds=2, noise=0.4)
    rates = figures.rates(rows)
    bars = [
        (trace.error_y.array, trace.hovertext)
        for figure in (packet_size_figure_fit.fitted(rows, cost_model.curves(rows)), rates)
        for trace in figure.data
        if trace.name == "veth" and trace.error_y.array is not None
    ]
    assert len(bars) == 7
    assert all(len(lines) == len(length) for length, lines in bars), "hover texts have them"
    marks = [mark for mark in rates.data if "triangle-up-open" in str(mark.marker.symbol)]
    assert marks, "what is cut at the end of the axis is marked there"
    few = line_chart.no_bar(np.array([1.0, 4.0]), np.array([9.0, 6.0]), (0.0, 10.0), is_log=False)
    assert few.tolist() == [True, False]
