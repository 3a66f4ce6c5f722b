"""Figures over the number of pairs, read back from their traces: content and units."""

import itertools
import math
from statistics import geometric_mean

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import synthetic_report
from synthetic_report import ROUNDS, SLICES

from labkit.analysis import figures, theme
from labkit.analysis.figures import line_chart
from labkit.common.schema import LATENCIES
from labkit.measure.topologies.registry import TABLE


def lines(figure: go.Figure) -> list[go.Scatter]:
    """Return the traces with geometric means and intervals."""
    return [trace for trace in figure.data if trace.error_y.array is not None]


def parts(figure: go.Figure) -> list[go.Scatter]:
    """Return the traces of softirq alone."""
    return [trace for trace in figure.data if trace.marker.symbol == "line-ew-open"]


def test_throughput_shows_rounds_and_centre() -> None:
    rows = synthetic_report.rows(protocols=("tcp",), pairs=(4,))
    figure = figures.throughput(rows)
    [raw] = [t for t in figure.data if t.opacity == 0.5 and t.name == "macvlan_bridge"]
    assert len(raw.x) == ROUNDS + 1, "a point for each round's slices, and one for the whole run"
    assert [symbol.endswith("-open") for symbol in raw.marker.symbol].count(True) == 1
    [line] = [t for t in lines(figure) if t.name == "macvlan_bridge"]
    slices = rows[(rows["arm"] == "macvlan_bridge") & (rows["method"] == "slice")]
    middle = geometric_mean(slices.groupby("round")["throughput_bps"].mean()) / 1e9
    assert line.y[0] == pytest.approx(middle)
    assert line.error_y.array[0] > 0
    assert line.error_y.arrayminus[0] > 0
    assert f"geometric mean {middle:.4g} Gbit/s, 5 rounds" in line.hovertext[0]
    assert "95 % interval" in line.hovertext[0]
    rows = synthetic_report.rows(protocols=("tcp",), pairs=(1,))
    rows.loc[rows["round"].eq(0), "throughput_bps"] = 0.0
    [line] = [trace for trace in lines(figures.throughput(rows)) if trace.name == "macvlan_bridge"]
    assert "<br>median " in line.hovertext[0]
    rows = synthetic_report.rows(protocols=("tcp",), pairs=(1,))
    figure = figures.throughput(rows[rows["method"] != "slice"])
    [line] = [trace for trace in lines(figure) if trace.name == "macvlan_bridge"]
    assert line.error_y.array[0] == 0, "one run has no interval"


def test_mean_of_an_arm_whose_worst_rounds_have_no_percentile_is_not_drawn() -> None:
    rows = synthetic_report.rows(protocols=("http",), pairs=(1,))
    rows = rows[rows["method"].eq("whole")].assign(transaction_rate=1e3, latency_p99_s=1e-3, placement=None)
    rows = pd.concat([rows, rows.assign(round=1)])
    rows.loc[rows["arm"].eq("macvlan_bridge") & rows["round"].eq(1), "latency_p99_s"] = None
    figure = figures.requests(rows)
    sizes = [trace.marker.size for trace in figure.data if trace.name == "macvlan_bridge"]
    assert sizes == [5]
    assert "lost too much for a percentile (1 round)" in figure.layout.title.subtitle.text


def test_axis_ranges_fit_the_load() -> None:
    rows = synthetic_report.rows(protocols=("tcp",), pairs=(1,))
    whole = rows["arm"].eq("macvlan_bridge") & rows["method"].eq("whole")
    rows.loc[whole, "throughput_bps"] = 900e9
    figure = figures.throughput(rows)
    top = next(figure.select_yaxes()).range[1]
    assert top < 50
    [raw] = [t for t in figure.data if t.opacity == 0.5 and t.name == "macvlan_bridge"]
    [beyond] = [at for at, symbol in enumerate(raw.marker.symbol) if symbol == "arrow-up"]
    assert raw.y[beyond] < top
    assert "900 Gbit/s" in raw.hovertext[beyond]
    rows = synthetic_report.rows()
    slow = rows["protocol"] == "udp"
    rows.loc[slow, "throughput_bps"] /= 10
    tcp, udp = (axis.range[1] for axis in figures.throughput(rows).select_yaxes())
    assert tcp > 5 * udp


def test_axis_titles_and_pair_counts() -> None:
    figure = figures.throughput(synthetic_report.rows(protocols=("udp", "tcp", "ping"), mtus=(9000, 1500)))
    assert [axis.title.text for axis in figure.select_yaxes()] == 2 * [
        *2 * ["throughput, Gbit/s"],
        "round-trip time p50, µs",
    ]
    assert [title[3:-4] for title in synthetic_report.titles(figure)] == [
        f"{protocol} · MTU {mtu}" for mtu in (1500, 9000) for protocol in ("TCP", "UDP", "ping")
    ]
    for axis in figure.select_xaxes():
        assert axis.type == "log"
        assert axis.ticktext == ("1", "2", "8")
        assert axis.tickvals == (1, 2, 8)
    [ping] = [trace for trace in lines(figure) if trace.xaxis == "x3" and trace.name == "macvlan_bridge"]
    assert ping.y[0] == pytest.approx(25)


def test_arms_do_not_overlap() -> None:
    drawn = [trace.x[0] for trace in lines(figures.throughput(synthetic_report.rows(protocols=("tcp",))))]
    assert len(set(drawn)) == 3
    assert all(1 / math.sqrt(2) < x < math.sqrt(2) for x in drawn)


def test_panels_wrap_and_leave_no_holes() -> None:
    lengths = (64, 512, 1024, 1400)
    rows = pd.concat(
        [synthetic_report.rows(protocols=("udp",)).assign(length_bytes=length) for length in lengths]
    )
    figure = figures.throughput(rows)
    assert [title[3:-4] for title in synthetic_report.titles(figure)] == [
        f"UDP · MTU 1500<br>{length} B each" for length in lengths
    ]
    assert len({axis.domain for axis in figure.select_xaxes()}) == 2
    # Datagrams fill the MTU, so each MTU has its own length: three columns would leave two places empty.
    tcp, udp = (synthetic_report.rows(protocols=(name,), mtus=(1500, 9000)) for name in ("tcp", "udp"))
    figure = figures.throughput(pd.concat([tcp, udp.assign(length_bytes=udp["mtu_bytes"] - 28)]))
    places = {(x.domain, y.domain) for x, y in zip(figure.select_xaxes(), figure.select_yaxes(), strict=True)}
    assert len(places) == 4
    assert len({x for x, _ in places}) == len({y for _, y in places}) == 2


def test_cpu_per_gigabyte_is_a_ratio_of_sums() -> None:
    rows = synthetic_report.rows(protocols=("tcp", "ping"), pairs=(1,))
    figure = figures.cpu_per_gigabyte(rows)
    assert [title[3:6] for title in synthetic_report.titles(figure)] == ["TCP"], (
        "pings receive next to no bytes"
    )
    [line] = [trace for trace in lines(figure) if trace.name == "macvlan_bridge"]
    slices = rows[
        (rows["arm"] == "macvlan_bridge") & (rows["method"] == "slice") & (rows["protocol"] == "tcp")
    ]
    rounds = slices.groupby("round")[["cpu_s", "softirq_s", "received_bytes"]].sum()
    assert line.y[0] == pytest.approx(geometric_mean(rounds["cpu_s"] / rounds["received_bytes"]) * 1e9)
    [part] = [trace for trace in parts(figure) if trace.name == "macvlan_bridge"]
    assert part.y[0] == pytest.approx((rounds["softirq_s"] / rounds["received_bytes"]).median() * 1e9)
    assert "softirq" in line.hovertext[0]
    assert figure.layout.title.subtitle.text.startswith("whole machine, less is better")
    of_peer = {"peer_cpu_s": rows["cpu_s"], "peer_softirq_s": rows["softirq_s"]}
    figure = figures.cpu_per_gigabyte(rows.assign(nodes="two", where="vm:debian", **of_peer))
    [both] = [trace for trace in lines(figure) if trace.name == "macvlan_bridge"]
    assert both.y[0] == pytest.approx(2 * line.y[0])
    assert figure.layout.title.subtitle.text.startswith("both hosts, less is better")


@pytest.mark.parametrize("value", [0.0, None])
def test_null_and_zero_values(value: float | None) -> None:
    rows = synthetic_report.rows(protocols=("tcp",), pairs=(1,))
    for metric in ("throughput_bps", "received_bytes", "cpu_s", "softirq_s"):
        less = rows.assign(**{metric: value})
        figures.throughput(less)
        figures.slices(less)
        figure = figures.cpu_per_gigabyte(less)
        assert metric != "softirq_s" or value is not None or not parts(figure)


@pytest.mark.parametrize("role", ["baseline", "variant", "control"])
def test_missing_arm(role: str) -> None:
    rows = synthetic_report.rows(protocols=("tcp",), pairs=(1,))
    for draw in (figures.throughput, figures.slices, figures.cpu_per_gigabyte):
        draw(rows[rows["role"] != role])
        draw(rows[rows["role"] == role])


def test_percentiles_from_the_median_to_the_longest() -> None:
    times = dict(zip(LATENCIES, (1, 2, 4, 8, 16), strict=True))
    columns = {f"latency_{name}_s": 1e-5 * factor for name, factor in times.items()}
    rows = synthetic_report.rows(protocols=("tcp",), pairs=(1,)).assign(**columns)
    assert not figures.percentiles(rows).data  # bulk transfers have no round trips
    figure = figures.percentiles(rows.assign(protocol="tcp_rr", metric="latency_p50_s"))
    assert {tuple(np.round(line.y)) for line in lines(figure)} == {(10, 20, 40, 80, 160)}
    assert next(figure.select_xaxes()).ticktext == ("p50", "p90", "p99", "p99.9", "max")
    lossy = rows.assign(protocol="tcp_rr", metric="latency_p50_s", lost_count=1.0)
    lossy.loc[lossy.index[5:7], "latency_max_s"] = math.nan
    subtitle = figures.percentiles(lossy).layout.title.subtitle.text.replace("<br>", " ")
    assert subtitle.endswith("; without 2 percentiles that fell on a lost round trip")


def test_distribution_merges_the_rounds() -> None:
    rows = synthetic_report.rows(protocols=("http",), pairs=(1,))
    rows = rows[rows["method"].eq("whole")].assign(received_count=1000, lost_count=0)
    assert not figures.latency_cdf(rows).data  # labkit wrote no histogram
    rounds = ({"20000": 900, "50000": 100}, {"20000": 700, "40000": 100, "50000": 200})
    each = [
        rows.assign(round=number, latency_histogram=[one] * len(rows)) for number, one in enumerate(rounds)
    ]
    rows = pd.concat(each, ignore_index=True)
    for lost, share in ((0, 1.0), (1000, 0.5)):
        cdf = figures.latency_cdf(rows.assign(lost_count=lost))
        [line] = [trace for trace in cdf.data if trace.name == "macvlan_bridge"]
        shares = pd.Series(line.y, np.round(line.x, 6)).groupby(level=0).max()
        assert shares.to_dict() == pytest.approx(
            {20: 0.8 * share, 40: 0.85 * share, 50: 0.999 * share}, abs=0.002
        )
    drawn = figures.latency_box(rows)
    [box] = [trace for trace in drawn.data if trace.name == "macvlan_bridge"]
    values = [*box.lowerfence, *box.q1, *box.median, *box.q3, *box.upperfence]
    assert values == pytest.approx([20, 20, 20, 20, 50])
    assert len(drawn.data) == 3


def test_slices_compared_within_a_round() -> None:
    rows = synthetic_report.rows(protocols=("tcp",), pairs=(1,))
    raw = [trace for trace in figures.slices(rows).data if trace.mode == "markers"]
    assert {trace.name for trace in raw} == {"macvlan_bridge", "veth_bridge (again)"}
    assert {len(trace.y) for trace in raw} == {ROUNDS * SLICES}
    both = pd.concat([rows, rows.assign(folder="another run")], ignore_index=True)
    raw = [trace for trace in figures.slices(both).data if trace.mode == "markers"]
    assert {len(trace.y) for trace in raw} == {2 * ROUNDS * SLICES}, "slices of two runs are not averaged"


def test_labels_of_many_counts_do_not_overlap() -> None:
    """Two panels side by side in a figure 700 px wide have about 225 px each."""
    counts = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    figure = figures.throughput(synthetic_report.rows(pairs=counts))
    for axis in figure.select_xaxes():
        share = axis.domain[1] - axis.domain[0]
        octave_px = line_chart.AXIS_PX * share / math.log2(128)
        shown = list(zip(axis.tickvals, axis.ticktext, strict=True))
        assert shown[0] == (1, "1")
        assert shown[-1] == (128, "128")
        for (less, one), (more, two) in itertools.pairwise(shown):
            assert math.log2(more / less) * octave_px > line_chart.LETTER_PX * (len(one) + len(two)) / 2


def test_legend_of_many_arms() -> None:
    """A legend that is higher than the plots scrolls, and is cut in an image."""
    arms = tuple(f"arm{number}" for number in range(25))
    rows = synthetic_report.rows(variants=("macvlan_bridge",), protocols=("tcp",), pairs=(1,))
    own = rows[rows["arm"].eq("macvlan_bridge")]
    rows = pd.concat([rows, *(own.assign(arm=arm, topology=arm) for arm in arms)], ignore_index=True)
    for figure in (figures.throughput(rows), figures.slices(rows)):
        margin = figure.layout.margin
        names = [trace for trace in figure.data if trace.showlegend is not False]
        assert len(names) >= 26
        assert figure.layout.height - margin.t - margin.b >= theme.LEGEND_LINE_PX * len(names)
    rows = synthetic_report.rows(protocols=("tcp",))
    name = "ovs_netdev+mirrors=1+output=gre+uplink_bps=100000000"
    rows["arm"] = rows["arm"].replace("macvlan_bridge", name)
    drawn = {trace.name for trace in figures.throughput(rows).data if trace.showlegend}
    assert "ovs_netdev+mirrors=1<br>+output=gre<br>+uplink_bps=100000000" in drawn
    assert "veth_bridge (again)" in drawn
    styles = [theme.arm_style(name) for name in TABLE]  # an arrow has its tip at the value
    assert not [one for one in styles if "arrow" in one.symbol]
    styles = [theme.arm_style(f"arm {number}") for number in range(40)]
    assert len({(one.color, one.symbol) for one in styles}) >= 25
