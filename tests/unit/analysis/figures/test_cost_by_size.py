"""Figures of the cost of encapsulation, read back from their traces: content, units, and what never shares an axis."""

from statistics import geometric_mean
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest
import synthetic_report
import synthetic_rows

from labkit.analysis import figures
from labkit.analysis import verdicts as verdict_tables
from labkit.common.errors import BadInput
from studies.overlay import figure_header_overhead as overlay_figure_header_overhead

pytestmark = pytest.mark.long

ARMS = {"veth": 1.0, "veth (again)": 1.0, "vxlan": 0.6, "vxlan_gre": 0.3}
SIZES = (64, 512, 1400)
LAYERS = {
    "vxlan": [("IPv4", 20), ("UDP", 8), ("VXLAN", 8), ("Ethernet", 14)],
    "vxlan_gre": [("IPv4", 20), ("GRE", 4), ("IPv4", 20), ("UDP", 8), ("VXLAN", 8), ("Ethernet", 14)],
}
PACKETS = 1000  # in a slice of veth


def cost_rows(sizes: tuple[int, ...] = SIZES, **changes: Any) -> pd.DataFrame:
    """Return rows like a sweep's over sizes, one run for each. A slower arm takes as much CPU time for fewer
    packets."""
    result = []
    for size in sizes:
        at_size = {"protocol": "udp", "length_bytes": size, "run": f"of-{size}", "folder": f"of-{size}"}
        spent = {"part": "cost", "cpu_s": 5e-6 * PACKETS, "softirq_s": 1e-6 * PACKETS}
        own = synthetic_rows.rows(ARMS, whole=1, **at_size | spent | changes)
        for row in own:
            count = int(PACKETS * row["throughput_bps"] / 1e10)
            row |= {"received_count": count, "throughput_pps": count / 0.07, "received_bytes": count * size}
        result += own
    return pd.DataFrame(result)


def header_rows(**changes: Any) -> pd.DataFrame:
    """Return rows of the part `headers` in which the measured size exceeds the computed one by a byte."""
    return pd.DataFrame(
        [
            {"part": "headers", "topology": name, "status": "ok", "computed_bytes": sum(size for _, size in layers)}
            | {"measured_bytes": sum(size for _, size in layers) + 1.0}
            | {"layers": [{"name": one, "header_bytes": size, "source": "RFC"} for one, size in layers]}
            | changes
            for name, layers in LAYERS.items()
        ]
    )  # fmt: skip


def scatters(figure: go.Figure) -> list[go.Scatter]:
    return [trace for trace in figure.data if trace.type == "scatter"]


def middles(figure: go.Figure, name: str) -> list[go.Scatter]:
    return [trace for trace in scatters(figure) if trace.mode == "lines+markers" and trace.name == name]


def test_panels_against_size() -> None:
    rows = cost_rows()
    figure = figures.cost(rows)
    assert [axis.title.text for axis in figure.select_yaxes()] == ["Gbit/s", "kpps", "µs"]
    assert [axis.ticktext for axis in figure.select_xaxes()] == [("64", "512", "1400")] * 3
    assert [title.rpartition(": ")[2][:-4] for title in synthetic_report.titles(figure)] == [
        "throughput", "datagrams received", "CPU time of a datagram received, whole machine",
    ]  # fmt: skip
    for name, level in (("veth", 1.0), ("vxlan_gre", 0.3)):
        throughput, rate, cpu = middles(figure, name)
        assert list(throughput.y) == pytest.approx([10 * level] * 3, rel=0.03)
        assert list(rate.y) == pytest.approx([PACKETS / 0.07 * level / 1e3] * 3, rel=0.03)
        own = rows[rows["arm"].eq(name) & rows["method"].eq("slice") & rows["length_bytes"].eq(64)]
        sums = own.groupby("round")[["cpu_s", "received_count"]].sum()
        assert cpu.y[0] == pytest.approx(geometric_mean(sums["cpu_s"] / sums["received_count"]) * 1e6)
        assert cpu.error_y.array[0] > 0
        assert "64 bytes" in cpu.hovertext[0]
    xs = [middles(figure, name)[0].x[0] for name in ARMS]
    assert len(set(xs)) == len(ARMS), "arms stand beside each other"


def test_shared_axis_needs_equal_parameters() -> None:
    rows = cost_rows()
    split = pd.concat([rows, cost_rows(mtu_bytes=9000), cost_rows(kernel="6.12", accelerator="tcg")])
    figure = figures.cost(split)
    assert len(synthetic_report.titles(figure)) == 9
    assert all(len(trace.x) == 3 for name in ("veth", "vxlan") for trace in middles(figure, name))
    assert "(in part on an emulated CPU)" in figure.layout.title.text
    pairs = figures.cost(pd.concat([rows, cost_rows(pairs=8)]))
    assert len(synthetic_report.titles(pairs)) == 6
    with pytest.raises(
        BadInput, match="rows that differ in sysctl_digest are not drawn on one axis: 5ca1ab1e and b"
    ):
        figures.cost(pd.concat([rows, cost_rows((256,), sysctl_digest="b")]))


def test_packet_definition_by_protocol() -> None:
    tcp = synthetic_report.titles(figures.cost(cost_rows(protocol="tcp")))
    assert "frames received" in tcp[1]
    assert "CPU time of a frame" in tcp[2]
    [ping] = synthetic_report.titles(figures.cost(cost_rows(protocol="ping")))
    assert "round-trip time" in ping


def test_what_is_missing_is_not_drawn() -> None:
    assert "nothing to draw" in synthetic_report.notes(figures.cost(cost_rows(length_bytes=None)))
    assert "nothing to draw" in synthetic_report.notes(figures.cost(header_rows()))
    rows = cost_rows()
    assert overlay_figure_header_overhead.overhead(header_rows(), verdict_tables.verdicts(rows.iloc[:0])).data
    assert not overlay_figure_header_overhead.overhead(rows, verdict_tables.verdicts(rows)).data


def test_computed_and_measured_headers() -> None:
    rows = cost_rows(accelerator="tcg")
    points = [header_rows(), header_rows()]  # of a sweep: a tunnel has one bar
    figure = overlay_figure_header_overhead.overhead(
        pd.concat([rows, *points]), verdict_tables.verdicts(rows)
    )
    assert figure.layout.title.text.endswith("(emulated CPU)")
    for name, layers in LAYERS.items():
        bars = [trace for trace in figure.data if trace.type == "bar" and trace.y[0] == name]
        assert [(trace.text.partition("<br>")[0], trace.x[0]) for trace in bars] == layers
        [measured] = [
            trace for trace in scatters(figure) if trace.mode == "markers+text" and trace.name == name
        ]
        whole = sum(size for _, size in layers)
        assert measured.x[0] == whole + 1
        assert measured.text == f"measured {whole + 1}, computed {whole}"


def test_predicted_byte_cost_beside_measured() -> None:
    rows = cost_rows()
    verdicts = verdict_tables.verdicts(rows)
    figure = overlay_figure_header_overhead.overhead(header_rows(), verdicts)
    for name, added in (("vxlan", 50), ("vxlan_gre", 74)):
        [line] = [trace for trace in scatters(figure) if trace.mode == "lines" and trace.name == name]
        expected = [(size + 42) / (size + 42 + added) for size in line.x]
        assert list(line.y) == pytest.approx(expected)
        assert line.x[0] < SIZES[0] < SIZES[-1] < line.x[-1]
        [points] = [t for t in scatters(figure) if t.mode == "markers" and t.name == name]
        own = verdicts[verdicts["topology"].eq(name)].sort_values("length_bytes")
        assert list(points.y) == pytest.approx(list(own["ratio"]))
        assert "by bytes alone the ratio would be" in points.hovertext[0].replace("<br>", " ")
    assert not [trace for trace in figure.data if trace.name == "veth"]
    rows = cost_rows((131072,), protocol="tcp")
    figure = overlay_figure_header_overhead.overhead(header_rows(), verdict_tables.verdicts(rows))
    assert list(figure.select_xaxes())[-1].tickvals == (1448,)
