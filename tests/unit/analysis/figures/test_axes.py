"""Charts against the parameter that varies, or against one of choice."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from synthetic_rows import rows

from labkit.analysis import figures, load, run_figures
from labkit.analysis.figures import line_chart
from labkit.common.errors import BadInput


def swept(name: str, values: tuple[Any, ...], **given: Any) -> pd.DataFrame:
    """Return rows of a sweep over one parameter, with a slice in each round."""
    each = [row for value in values for row in rows(**{"slices": 1, name: value} | given)]
    return load.complete(pd.DataFrame(each))


def read(figure: go.Figure) -> tuple[str, list[str], list[str]]:
    """Return the title, the ticks of the first axis, and the titles of the panels."""
    panels = [text.text for text in figure.layout.annotations if text.text.startswith("<b>")]
    return figure.layout.title.text, list(figure.layout.xaxis.ticktext), panels


def drawn(rows: pd.DataFrame, **given: Any) -> tuple[str, list[str], list[str]]:
    return read(figures.throughput(rows, **given))


def test_swept_parameter_is_the_axis() -> None:
    for name, values, title, ticks in (
        ("pairs", (1, 2, 8), "number of pairs", ["1", "2", "8"]),
        ("length_bytes", (64, 512, 1400), "length of a write or datagram", ["64", "512", "1400"]),
        ("mtu_bytes", (1500, 9000), "MTU", ["1500", "9000"]),
        ("rate_bps", (1e8, 1e9), "offered rate of a stream", ["100 M", "1 G"]),
        ("streams", (1, 4), "parallel streams of a pair", ["1", "4"]),
        ("burst_frames", (1, 8), "burst frames", ["1", "8"]),
        ("frame", ("1024", "64"), "frame size", ["64", "1024"]),
        ("frame", ("imix", "1024", "64"), "frame size", ["frames imix", "frames 64", "frames 1024"]),
        ("congestion", ("cubic", "bbr"), "congestion control", ["bbr", "cubic"]),
        ("rate_bps", (1e8, None), "offered rate of a stream", ["100 M", "unlimited"]),
        ("mss_bytes", (1000, None), "TCP maximum segment size, bytes", ["default MSS", "MSS 1000"]),
        ("link_delay_s", (1e-3, None), "delay of the link", ["no delay", "1 ms"]),
        ("loss_goal_ratio", (0.01, 0.001), "loss goal", ["0.1 %", "1 %"]),
        ("loss_goal_ratio", (0.01, 0.0), "loss goal", ["NDR", "PDR 1 %"]),
        ("family", (4, 6), "family", ["IPv4", "IPv6"]),
    ):
        figure = figures.throughput(swept(name, values, protocol="udp"))
        found, labels, panels = read(figure)
        assert f"Throughput against {title}" in found
        assert figure.layout.xaxis.title.text
        assert labels == ticks
        assert len(panels) == 1


def test_marks_of_arms_stand_at_their_count() -> None:
    """They look like no other length, but do not hide each other."""
    figure = figures.throughput(swept("length_bytes", (512, 1400), protocol="udp"))
    means = [one.x for one in figure.data if one.error_y.array is not None]
    assert len({first for first, _ in means}) == len(means) > 1
    for first, last in means:
        assert (first, last) == (pytest.approx(512, rel=0.03), pytest.approx(1400, rel=0.03))


def test_each_parameter_that_varies_alone_has_a_panel_with_the_common_point() -> None:
    table = pd.concat([swept("length_bytes", (64, 1400)), swept("pairs", (1, 2), length_bytes=512)])
    figure = figures.throughput(table)
    assert [axis.ticktext for axis in figure.select_xaxes()] == [("64", "512", "1400"), ("1", "2")]
    title, _, panels = read(figure)
    assert "Throughput against number of pairs and length of a write or datagram" in title
    assert panels == ["<b>TCP · MTU 1500 · 1 pair</b>", "<b>TCP · MTU 1500<br>512 B each</b>"]
    title, labels, panels = drawn(table[table["pairs"].eq(1)], along="length_bytes")
    assert "against length of a write" in title
    assert (labels, len(panels)) == (["64", "512", "1400"], 1)


def test_null_has_a_place_among_counts_where_it_is_no_limit() -> None:
    for name, values, places, mode in (
        ("rate_bps", (1e8, None), (1e8, 2e8), "lines+markers"),
        ("link_delay_s", (1e-3, None), (5e-4, 1e-3), "lines+markers"),
        ("mss_bytes", (1000, None), (1, 2), "markers"),
        ("length_bytes", (64, 512, None), (64, 512, 1024), "lines+markers"),
    ):
        figure = figures.throughput(swept(name, values))
        assert figure.layout.xaxis.tickvals == pytest.approx(places)
        assert {one.mode for one in figure.data if one.showlegend} == {mode}
    lines = [one.y for one in figure.data if one.showlegend]
    assert {tuple(np.isfinite(line)) for line in lines} == {(True, True, False, True)}, "apart from the line"


def test_length_that_fills_the_mtu_has_its_place_among_lengths() -> None:
    table = pd.concat(
        [swept("length_bytes", (64, 1472), protocol="udp", mtu_bytes=mtu) for mtu in (1500, 9000)]
    )
    _, labels, panels = drawn(table, along="length_bytes", colour="mtu_bytes")
    assert (labels, len(panels)) == (["64", "1472"], 2)


def test_parameter_that_varies_most_in_a_panel_is_the_axis() -> None:
    """What differs between protocols alone does not vary. Where nothing varies, the arms are the axis."""
    tcp, arms = swept("length_bytes", (None,)), ("veth_bridge", "macvlan_bridge")
    title, labels, _ = drawn(pd.concat([tcp, swept("length_bytes", (64,), protocol="udp")]))
    assert ("Throughput of each arm" in title, labels) == (True, list(arms))
    udp = [swept("length_bytes", (64, 512), protocol="udp", congestion=one) for one in ("a", "b", "c")]
    assert drawn(udp[0])[1] == ["64", "512"]
    assert drawn(pd.concat(udp))[1:] == (
        ["a", "b", "c"],
        [f"<b>UDP · MTU 1500<br>{size} B each</b>" for size in (64, 512)],
    )
    assert drawn(pd.concat(udp), colour="congestion")[1] == ["64", "512"]
    figure = figures.throughput(pd.concat([tcp, udp[0]]).assign(congestion=None))
    assert [axis.ticktext for axis in figure.select_xaxes()] == [arms, ("64", "512")]


def test_values_that_read_the_same_are_told_apart() -> None:
    table = swept("rate_bps", (1e9, 1.0004e9), protocol="udp")
    words = ["1 Gbit/s (1000000000)", "1 Gbit/s (1000400000)"]
    figure = figures.throughput(table, along="pairs", colour="rate_bps")
    assert [trace.name for trace in figure.data if trace.showlegend] == words
    assert drawn(table, along="pairs")[2] == [f"<b>UDP · MTU 1500<br>{one}</b>" for one in words]


def test_parameter_that_is_no_axis_is_refused() -> None:
    with pytest.raises(BadInput, match=r"along=congestion does not vary in these rows: choose pairs, "):
        figures.throughput(swept("pairs", (1, 2)), along="congestion")
    with pytest.raises(
        BadInput, match="along, panel and colour are the same parameter, pairs: choose another"
    ):
        figures.throughput(swept("pairs", (1, 2)), along="pairs", colour="pairs")
    with pytest.raises(
        BadInput, match=r"no choice color=: choose of, panel, colour \(did you mean colour\?\)"
    ):
        run_figures.Figures({}, swept("pairs", (1, 2))).along("pairs", color="mtu_bytes")


def test_any_parameter_that_varies_is_an_axis_a_panel_or_a_colour() -> None:
    table = pd.concat([swept("congestion", (None, "reno"), mtu_bytes=mtu) for mtu in (1500, 9000)])
    title, labels, panels = drawn(table, along="congestion")
    assert ("against congestion" in title, labels) == (True, ["default congestion control", "reno"])
    assert panels == ["<b>TCP · MTU 1500</b>", "<b>TCP · MTU 9000</b>"]
    assert drawn(table, along="arm")[1] == ["veth_bridge", "macvlan_bridge"]
    lost = table[table["topology"].eq("macvlan_bridge")].assign(
        topology="ipvlan_l2", arm="ipvlan_l2", status="failed"
    )
    more = [table.assign(topology=f"{name}_{table_arm}", arm=f"{name}_{table_arm}", role="variant")
            for name in ("a_long_name", "another_name") for table_arm in ("of_an_arm", "of_one_more")]  # fmt: skip
    every = pd.concat([table, lost, *more])
    turned, upright = (figures.throughput(every, along=one).layout for one in ("arm", "pairs"))
    assert len(turned.xaxis.ticktext) == 6, "each measured arm has a label, also where they are turned"
    assert "ipvlan_l2" not in turned.xaxis.ticktext
    assert (turned.xaxis.tickangle, upright.xaxis.tickangle) == (-90, 0)
    assert turned.margin.b > upright.margin.b
    figure = figures.throughput(table, along="congestion", panel="arm", colour="mtu_bytes")
    titles = [text.text for text in figure.layout.annotations if text.text.startswith("<b>")]
    assert titles == ["<b>TCP · veth_bridge</b>", "<b>TCP · macvlan_bridge</b>"]
    shown = [trace for trace in figure.data if trace.showlegend]
    assert [trace.name for trace in shown] == ["MTU 1500", "MTU 9000"]
    assert (len({trace.line.color for trace in shown}), shown[0].mode) == (2, "markers")


def test_arms_have_one_order_with_the_baseline_first() -> None:
    """The legend has it also where a later panel has lines, but not of each arm."""
    arms = ["veth_routed", "loopback", "veth_bridge"]
    table = load.complete(pd.DataFrame(rows(dict.fromkeys(arms, 1.0), slices=1)))
    assert drawn(table)[1] == arms
    lengths = swept("length_bytes", (64, 512), ratios=dict.fromkeys(arms, 1.0), protocol="udp")
    _, _, panels = drawn(lengths, panel="arm")
    assert panels == [f"<b>UDP · MTU 1500<br>{one}</b>" for one in arms]
    figure = figures.throughput(pd.concat([table, lengths[lengths["arm"].ne(arms[-1])]]))
    shown = sorted((one for one in figure.data if one.showlegend), key=lambda one: one.legendrank)
    assert [one.name for one in shown] == arms


def test_arm_has_a_mean_of_slices_at_one_place_and_of_whole_runs_at_another() -> None:
    table = load.complete(pd.DataFrame(rows(slices=2) + rows(slices=0, whole=5, pairs=2)))
    means = [one for one in figures.throughput(table).data if one.error_y.array is not None]
    assert {len(one.x) for one in means} == {2}


def test_titles_name_pairs_and_the_arm_of_colours() -> None:
    table = swept("mtu_bytes", (1500, 9000), pairs=8, ratios={"veth_bridge": 1.0})
    assert drawn(table)[2] == ["<b>TCP · 8 pairs</b>"]
    assert drawn(table, along="pairs", colour="mtu_bytes")[2] == ["<b>TCP · veth_bridge</b>"]
    ping = swept("mtu_bytes", (1500,), protocol="ping")
    assert drawn(pd.concat([table, ping]), along="arm")[2][-1] == "<b>ping · 1 pair</b>"


def test_a_parameter_without_words_divides_panels() -> None:
    _, labels, panels = drawn(swept("burst_frames", (1, 8), pairs=2, protocol="udp"), along="pairs")
    assert (labels, panels) == (
        ["2"],
        ["<b>UDP · MTU 1500<br>bursts of 1</b>", "<b>UDP · MTU 1500<br>bursts of 8</b>"],
    )


def test_logarithmic_axis_shows_its_scale() -> None:
    for low, high in (
        (190, 230), (8, 14), (95, 4500), (3, 10), (1, 1e7), (0.9, 1.05), (170, 620), (200, 206),
    ):  # fmt: skip
        shown = [value for value in line_chart.log_axis(low, high)["tickvals"] if low <= value <= high]
        assert 3 <= len(shown) <= 8 or (high / low < 1.05 and len(shown) == 1)
