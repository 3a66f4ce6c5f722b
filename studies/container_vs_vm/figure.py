"""Results of several kinds of endpoints: namespaces, containers and guests, a row of plots for each load."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import protocols, stats, theme
from labkit.analysis.figures.cost_by_size import PREFIXES
from labkit.analysis.figures.panels import Panel, finish, grid, panels
from labkit.analysis.load import ENDPOINT_NAMES
from studies.container_vs_vm.endpoint_kinds import ENDPOINTS, machines

LINE_PX, EDGES_PX = 40, 56  # height of a kind of endpoints, and of the rest of a plot
# Width of a letter of a kind's name, and of what is between the name and the axis.
LETTER_PX, AXIS_PX = 7.4, 25
NOT_OURS = "the report, on another machine"
BELOW = 0.3  # vertical distance between two quantities of a kind, in rows
RAW = 0.2  # vertical distance between single rounds and their mean, in rows
SUBTITLE_PX = 16  # height of a line of the subtitle
NARROW = 8.0  # least ratio of the two ends of an axis
DECADES = 1.3  # decades from which on only powers of ten are labelled
MAX_LABELS = 4  # labels at powers of ten
NEAR = 0.01  # relative tolerance for equal lengths, because the report rounds
SIGNS = ("", "m", "µ", "n")  # of seconds


class Plot(NamedTuple):
    """The content of a plot: a title, the unit of its axis, its quantities, and the column with the report's values.

    Each quantity is a column; its symbol is in SYMBOLS, or that of the kind of endpoints.
    """

    title: str
    unit: str
    columns: tuple[str, ...]
    published: str | None = None


ARRIVES = {
    "udp": [
        Plot("throughput", "bit/s", ("throughput_bps",), "received_bps"),
        Plot("datagrams received", "per second", ("throughput_pps",), "received_pps"),
    ],
    "tcp": [
        Plot("throughput", "bit/s", ("throughput_bps",)),
        Plot("round-trip time, measured by TCP", "s", ("rtt_s",)),
    ],
    "ping": [
        Plot("round-trip time p50", "s", ("latency_p50_s",)),
        Plot("longest round-trip time", "s", ("latency_max_s",)),
    ],
}
QUALITY = {
    "udp": [
        Plot("jitter", "s", ("jitter_s",), "jitter_s"),
        Plot("datagrams lost", "%", ("lost_percent",), "lost_percent"),
    ]
}
COSTS = {
    protocol: [
        Plot(f"CPU time of a {work} received", "s", ("cpu_here", "cpu_there")),
        Plot("of which softirq", "s", ("softirq_here", "softirq_there")),
    ]
    for protocol, work in (("udp", "datagram"), ("tcp", "gigabyte"))
}
SYMBOLS = {
    "cpu_here": "square", "cpu_there": "circle-open", "softirq_here": "square", "softirq_there": "circle-open",
}  # fmt: skip


def ends(rows: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw the received load at namespaces, containers, guests and a shared guest, on log axes.

    The quantities are throughput and datagrams per second, or round-trip times. Stars are values that the report
    published (`reference_tables.container_vs_vm`) for datagrams of the same length.
    """
    return _drawn(rows, ARRIVES, "What the ends get", published=published)


def jitter_and_loss(rows: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw the jitter of UDP (iperf3's, RFC 3550) and the share of lost datagrams, with the report's as `ends` does.

    A log axis has no place for a share of 0: measured ones are a 0 at its edge, and the report's are left out.
    """
    own, others = (
        table.assign(
            lost_percent=100 * table["lost_count"] / table["sent_count"].where(table["sent_count"] > 0)
        )
        for table in (rows[rows["protocol"].eq("udp")], published)
    )
    others["lost_percent"] = others["lost_percent"].where(others["lost_percent"] > 0)
    return _drawn(own, QUALITY, "Jitter and loss at the ends", published=others)


def sides(rows: pd.DataFrame) -> go.Figure:
    """Draw the CPU time on both sides of the boundary, per received datagram (UDP) or gigabyte (TCP).

    One side is the whole machine; the other is what the guests' own kernels count.
    """
    loaded = rows[rows["protocol"].isin(list(COSTS))].copy()
    work = loaded["received_bytes"].astype(float) / 1e9
    work = work.mask(loaded["protocol"].eq("udp"), loaded["received_bytes"] / loaded["length_bytes"])
    work = work.where(work > 0)
    for name in ("cpu", "softirq"):
        loaded[f"{name}_here"] = loaded[f"{name}_s"].astype(float) / work
        loaded[f"{name}_there"] = loaded[f"guest_{name}_s"].astype(float) / work
    note = "squares: the whole machine; circles: as counted by the guests' kernels"
    return _drawn(loaded, COSTS, "CPU time on both sides of the boundary", note)


def _finish(figure: go.Figure, rows: pd.DataFrame, title: str, note: str) -> go.Figure:
    """Add the title and a subtitle line for each machine, and make room for them."""
    lines = [theme.plain(line) for line in machines(rows)]
    lines += [*filter(None, [note]), "small: rounds; large: geometric mean and 95 % interval if none is 0"]
    room = SUBTITLE_PX * max(0, len(lines) - 2)
    left = AXIS_PX + LETTER_PX * max(
        (len(ENDPOINT_NAMES[name]) for name in rows["endpoint"].dropna().unique()), default=0
    )
    figure.update_layout(margin={"t": figure.layout.margin.t + room, "l": left}, showlegend=False)
    figure.update_layout(height=figure.layout.height + room)
    figure.update_yaxes(automargin=False)  # the notes begin at the figure's edge only if the margin is known
    return finish(figure, rows, title, "<br>".join(lines))


def _drawn(
    rows: pd.DataFrame, plots: dict[str, list[Plot]], title: str, note: str = "",
    published: pd.DataFrame | None = None,
) -> go.Figure:  # fmt: skip
    rows = rows[rows["change"].isna()]  # else a kind's mean would have two arms
    there = [name for name in ENDPOINTS if name in set(rows["endpoint"])]
    places = [
        (replace(panel, row=row, column=column, title=f"{_load(panel)}<br>{plot.title}"), plot)
        for row, panel in enumerate(panels(rows, columns_count=1), 1)
        for column, plot in enumerate(plots.get(panel.protocol, []), 1)
    ]
    figure = grid([panel for panel, _ in places], LINE_PX * max(len(there), 1) + EDGES_PX)
    for panel, plot in places:
        others = list[float]()
        if published is not None and plot.published:
            of_report = _published_at_lengths(panel.table, published)
            scale = PREFIXES[_prefix(panel.table[panel.table["status"].eq("ok")], plot)]
            scaled = of_report.assign(**{plot.published: of_report[plot.published] / scale})
            _draw_published(figure, panel, plot.published, scaled, there)
            others = of_report.loc[of_report["endpoint"].isin(there), plot.published].dropna().tolist()
        _plot(figure, panel, plot, there, others)
    if published is not None and len(_published_at_lengths(rows, published)):
        note = f"stars: {NOT_OURS}"
    return _finish(figure, rows, title, note)


def _load(panel: Panel) -> str:
    """Describe the load of a panel: `UDP · 800 bytes`."""
    lengths = panel.table["length_bytes"].dropna().unique()
    words = [protocols.find(panel.protocol).label, *(f"{length:.0f} bytes" for length in lengths)]
    more = panel.title.split(" · ")[2:]
    return " · ".join([*words, *(word for word in more if "B each" not in word and "length" not in word)])


def _plot(figure: go.Figure, panel: Panel, plot: Plot, there: list[str], others: list[float]) -> None:
    """Draw one plot; its axis has room for the values of others, too."""
    columns = ["endpoint", "arm", "again", "folder", "round", *plot.columns]
    ok = panel.table.loc[panel.table["status"].eq("ok"), columns]
    prefix = _prefix(ok, plot)
    reach, nothing = [value / PREFIXES[prefix] for value in others], list[tuple[float, str]]()
    for at, endpoint in enumerate(there):
        for number, column in enumerate(plot.columns):
            own = ok[ok["endpoint"].eq(endpoint)]
            value = own[column].astype(float) / PREFIXES[prefix]
            own = own.assign(value=value, unit=f"{prefix}{plot.unit}")
            if zeros := int(own["value"].eq(0).sum()):
                lines = f"0 in {zeros} of {own['value'].count()} runs: {theme.plain(own['arm'].iloc[0])}"
                nothing.append((at + BELOW * number, lines))
            if len(own := own[own["value"] > 0]):
                style = theme.ENDS[endpoint]
                style = replace(style, symbol=SYMBOLS.get(column, style.symbol))
                reach += _dots(figure, panel, own, style, at + BELOW * number, not zeros)
    _zeros(figure, panel, nothing, min(reach, default=1.0))
    names = [theme.plain(ENDPOINT_NAMES[name]) if panel.column == 1 else "" for name in there]
    axis = {
        "range": [len(there) - 0.4, -0.6], "tickvals": list(range(len(there))), "ticktext": names, "ticks": "",
    }  # fmt: skip
    figure.update_yaxes(axis, **panel.place)
    if reach and max(reach) / min(reach) < NARROW:  # so that there is room for a label or two
        middle = math.log10(max(reach) * min(reach)) / 2
        far = math.log10(NARROW) / 2
        figure.update_xaxes(range=[middle - far, middle + far], **panel.place)
    decades = math.log10(max(reach) / min(reach)) if reach else 0.0
    figure.update_xaxes(
        type="log", tickformat=",~g" if plot.unit in ("s", "%") else "~s",
        dtick=math.ceil(decades / MAX_LABELS) if decades > DECADES else "D2", tickangle=0,
        title_text=f"{prefix}{plot.unit}", **panel.place,
    )  # fmt: skip


def _prefix(ok: pd.DataFrame, plot: Plot) -> str:
    """Return a suitable SI prefix for seconds; other units have prefixes at each tick."""
    if plot.unit != "s":
        return ""
    values = pd.Series(ok[list(plot.columns)].to_numpy(float).ravel())
    middle = values[values > 0].median()
    return next((sign for sign, scale in PREFIXES.items() if scale <= middle and sign in SIGNS), "")


def _zeros(figure: go.Figure, panel: Panel, zeros: list[tuple[float, str]], least: float) -> None:
    """Draw measured zeros as a 0 at the lower edge, because a log axis has no place for them."""
    if zeros:
        figure.add_scatter(
            x=[least] * len(zeros), y=[y for y, _ in zeros], text=["0"] * len(zeros), mode="text",
            hoverinfo="text", hovertext=[hover for _, hover in zeros], **panel.place,
        )  # fmt: skip


def _dots(
    figure: go.Figure, panel: Panel, rows: pd.DataFrame, style: theme.ArmStyle, y: float, has_all: bool
) -> list[float]:
    """Draw single rounds, and if these are all of them, their mean with its interval; return the drawn values."""
    words = [
        f"{theme.plain(one['arm'])}, round {one['round']:.0f}: {one['value']:.4g} {one['unit']}"
        for one in rows.to_dict("records")
    ]
    marks = np.where(rows["again"], style.symbol.removesuffix("-open") + "-open", style.symbol)
    small = {"color": style.color, "size": 5, "symbol": marks}
    common: dict[str, Any] = {"mode": "markers", "hoverinfo": "text", **panel.place}
    figure.add_scatter(
        x=rows["value"], y=[y - RAW] * len(rows), marker=small, opacity=0.6, hovertext=words, **common
    )
    if not has_all:
        return list(rows["value"])
    logs = np.log(rows["value"]).groupby([rows["folder"], rows["round"]]).mean().to_numpy(float)
    result = stats.effect(logs)
    middle, low, high = result.ratio, result.low or result.ratio, result.high or result.ratio
    bars = {"array": [high - middle], "arrayminus": [middle - low]}
    numbers = f"{middle:.4g} {rows['unit'].iloc[0]} [{stats.interval_text(low, high)}], {len(logs)} rounds"
    lines = f"<b>{theme.plain(rows['arm'].iloc[0])}</b><br>{numbers}"
    large = {"color": style.color, "size": 10, "symbol": style.symbol}
    figure.add_scatter(x=[middle], y=[y], error_x=bars, marker=large, hovertext=[lines], **common)
    return [low, high, *rows["value"]]


def _published_at_lengths(rows: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Return the report's rows for the lengths of these UDP rows."""
    lengths = rows.loc[rows["protocol"].eq("udp"), "length_bytes"].dropna().unique()
    near = [bool(np.isclose(lengths, one, rtol=NEAR).any()) for one in published["length_bytes"]]
    return published[near]


def _draw_published(
    figure: go.Figure, panel: Panel, column: str, result: pd.DataFrame, there: list[str]
) -> None:
    """Draw the report's values for these kinds of endpoints."""
    result = result[result["endpoint"].isin(there) & result[column].notna()]
    words = [
        f"{NOT_OURS}: {value:.4g}{'' if has_report else ' sent, losses unknown'}"
        for value, has_report in zip(result[column], result["has_report"], strict=True)
    ]
    figure.add_scatter(
        x=result[column], y=[there.index(name) for name in result["endpoint"]], mode="markers",
        marker=theme.PUBLISHED, hoverinfo="text", hovertext=words, **panel.place,
    )  # fmt: skip
