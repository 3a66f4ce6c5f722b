"""Charts of a quantity against counts, words or arms, with means, intervals and raw points for each arm, or for each
value of another parameter. Lines join the means along counts only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import protocols, stats, theme
from labkit.analysis.figures.panels import (
    ARM,
    KEYS,
    LETTER_PX,
    TURNED,
    Panel,
    arms,
    grid,
    labels,
    panels,
    words_of,
)  # fmt: skip
from labkit.analysis.load import HEADERS, hosts, value_text, varying
from labkit.common import schema
from labkit.common.errors import BadInput, choose
from labkit.common.units import counted, listed, percent, si

PANEL_PX = 330
STRANGE = 2.5  # times the highest median; a round beyond is drawn as an arrow at the edge
HEADS: Sequence[Sequence[float]] = (  # the first digits of labels
    (1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
    [tenth / 10 for tenth in range(10, 100, 2)], [tenth / 10 for tenth in range(10, 100)],
)  # fmt: skip
FEW_LABELS = 3
MANY_DECADES = 5
NARROW = 1 / 25  # share of the axis: least distance of two places for shifting arms
WIDEST = 1.5  # octaves, likewise
BESIDE = 0.03  # share of an axis of counts: arms farther apart would look like other counts
AXIS_PX, GAP_PX = 415, 4  # least width of all x axes side by side (figure: 700 px); between labels
FAINT = "faint: rounds (open: whole runs, arrow: beyond)"


@dataclass(frozen=True)
class Quantity:
    """A y axis: its title, and the unit of hover texts. Values are in base units and are divided by `scale`."""

    title: str
    unit: str
    scale: float
    is_log: bool = False

    def say(self, value: float) -> str:
        return f"{value / self.scale:.4g} {self.unit}"


@dataclass(frozen=True)
class Axis:
    """A logarithmic x axis: a column, its title, the text of a place (`say`), and its label if that differs.

    words: if the values are no counts (arms, for example), the label of each by its text. They stand an octave apart,
    and no line joins them. turned_px: their height if they are turned. null: the place of a row without a count.
    is_apart: whether no line reaches it.
    """

    column: str
    title: str
    say: Callable[[float], str]
    tick: Callable[[float, Panel], str] | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    turned_px: int = 0
    null: float = math.nan
    is_apart: bool = False

    def at(self, table: pd.DataFrame) -> pd.Series[float]:
        """Return the place of each row on the axis."""
        own = table[self.column]
        if self.words:
            return 2.0 ** own.map(value_text).map(list(self.words).index)
        return pd.to_numeric(own).fillna(self.null)


THROUGHPUT = Quantity("throughput, Gbit/s", "Gbit/s", 1e9)
TRANSACTIONS = Quantity("transactions per second, thousands", "k/s", 1e3)
CPU = Quantity("CPU-seconds per GB", "CPU-s/GB", 1e-9)
# What an axis is called, and what a figure's title calls it if not so. Of parameters that vary alike, the first is the
# usual axis; those that are not here come last, and have the names of their columns.
AXES: Mapping[str, Sequence[str]] = {
    "pairs": ("pairs at once", "number of pairs"), "length_bytes": ("length, bytes", "length of a write or datagram"),
    "rate_bps": ("offered rate of a stream, bit/s", "offered rate of a stream"),
    "rate_rps": ("requests per second of a pair",), "mtu_bytes": ("MTU, bytes", "MTU"),
    "streams": ("parallel streams of a pair",), "outstanding": ("requests in flight on a connection",),
    "mss_bytes": ("TCP maximum segment size, bytes",),
    "link_rate_bps": ("rate of the link, bit/s", "rate of the link"), "link_delay_s": ("delay of the link",),
    "frame": ("bytes of a frame", "frame size"), "flows_count": ("flows",), "congestion": ("congestion control",),
    "ends_on": ("CPUs of client and server",), "loss_goal_ratio": ("loss goal",), ARM: ("arm",),
}  # fmt: skip
NO_LIMIT = ("rate_bps", "rate_rps", "load_pps", "link_rate_bps", "link_delay_s")  # if null: none


def of_metric(metric: str, usual: Quantity) -> Quantity:
    """Return the quantity of a metric: `usual` for a throughput."""
    if metric.startswith("latency_"):
        return Quantity(f"round-trip time {schema.latency_text(metric.split('_')[1])}, µs", "µs", 1e-6)
    return TRANSACTIONS if metric == "transaction_rate" else usual


def _with_axes(rows: pd.DataFrame, beside: str | None, colour: str) -> pd.DataFrame:
    """Return the rows with the column of each one's axis, `axis`; a row that belongs to charts of two axes is twice.

    A host's rows of a protocol have the number of pairs as their axis if it varies, and then the parameters that vary
    while the others stay, those with most values first, until each row has one. Where nothing varies, the axis has the
    arms. beside, colour: what has panels and colours.
    """
    rows = rows.reset_index(drop=True)
    known = [
        one for one in dict.fromkeys((*AXES, *KEYS[1:])) if one in rows and one not in (ARM, beside, colour)
    ]
    places, axes = list[int](), list[str]()
    for _, host in hosts(_without_full_lengths(rows)):
        for _, part in host.groupby("protocol"):
            names = varying(part, known)
            texts = part[names].map(value_text).assign(all="")
            others = {name: [texts[one] for one in texts if one != name] for name in names}
            count = {name: texts[name].groupby(others[name]).transform("nunique") for name in names}
            left = pd.Series(True, part.index)
            for name in sorted(names, key=lambda one: (one != "pairs", -count[one].max())):
                drawn = (left & count[name].gt(1)).groupby(others[name]).transform("any")
                places.extend(drawn.index[drawn])
                axes += [name] * int(drawn.sum())
                left &= ~drawn
            places.extend(left.index[left])
            axes += ["pairs" if beside == ARM else ARM] * int(left.sum())
    return rows.loc[places].assign(axis=axes)


def called(column: str) -> Sequence[str]:
    """Return the title of a parameter's axis; the last is what a figure's title calls it."""
    return AXES.get(column, (column.replace("_", " "),))


def _axis(rows: pd.DataFrame, room_px: float, names: Sequence[str]) -> Axis:
    """Return the axis of these rows, a parameter or their arms: of counts if all are quantities above 0 (also as texts,
    but no version or VLAN), else of words. No limit (a null of NO_LIMIT) stands an octave beyond the limits, no
    delay before delays, and the default length, apart, beyond lengths; other nulls are words. names: the arms in order.
    """
    column = str(rows["axis"].iloc[0])
    unit = schema.BY_NAME[column].unit
    words = {text: theme.plain(word) for text, word in words_of(column, rows[column], names).items()}
    counts = pd.to_numeric(rows[column], errors="coerce")
    can_count = bool(unit) or schema.BY_NAME[column].type == "text"
    has_place = counts.gt(0) | (rows[column].isna() & (column in (*NO_LIMIT, "length_bytes")))
    if can_count and counts.gt(0).any() and has_place.all():
        null = counts.min() / 2 if column == "link_delay_s" else counts.max() * 2

        def say(place: float) -> str:
            return words[value_text(None if place == null else place)]

        def tick(place: float, _panel: Panel) -> str:
            if place == null:
                return theme.wrapped(say(place), 8)
            if unit in ("bit/s", "s"):
                return si(place, unit.removeprefix("bit/s")).strip()
            return percent(place) if column.endswith("_ratio") else value_text(place)

        return Axis(column, called(column)[0], say, tick, null=null, is_apart=column not in NO_LIMIT)
    texts = list(words.values())
    lines, turned_px = labels(texts, room_px)
    shown = dict(zip(words, lines, strict=True))
    return Axis(column, called(column)[-1], lambda at: texts[round(math.log2(at))], None, shown, turned_px)


def _without_full_lengths(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without the lengths of datagrams that fill the MTU, which follow from it if they are no axis."""
    full = rows["length_bytes"].add(rows["family"].map(HEADERS)).eq(rows["mtu_bytes"])
    full &= rows["protocol"].eq("udp")
    if "axis" in rows:
        full &= rows["axis"].ne("length_bytes")
    return rows.assign(length_bytes=rows["length_bytes"].mask(full))


def varying_column(rows: pd.DataFrame, what: str, name: str) -> str:
    """Return the column of a parameter that varies, or of the arm. Raises BadInput for another, or where all are alike.

    what: the argument that names it.
    """
    there = [one for one in KEYS[1:] if one in rows]
    columns = {one: one for one in varying(rows, there)} | {"arm": ARM}
    if name == KEYS[0]:
        raise BadInput(f"{what}={name}: each protocol has panels of its own; {choose('', columns)}")
    if name not in columns:
        raise BadInput(f"{what}={name} does not vary in these rows: {choose(name, columns)}")
    return columns[name]


def against(
    rows: pd.DataFrame,
    usual: Quantity,
    along: str | None = None,
    panel: str | None = None,
    colour: str | None = None,
) -> tuple[go.Figure, str]:
    """Draw column `value`, divided by column `weight` if there is one, against a parameter, and return the figure and
    the words of what it is against.

    along: the parameter, or the arms; otherwise each panel has the one that varies most in it, or the arms. Column
    `part` is a thin line, or a dash where no line joins the means. panel: the parameter whose values stand side by
    side. colour: that which has a style for each value; usually the arm, and where arms are the axis or stand side by
    side, another that varies. What else varies has a panel for each value.
    """
    if along not in (None, "pairs"):
        along = varying_column(rows, "along", along)
    beside = None if panel is None else varying_column(rows, "panel", panel)
    column = ARM if colour is None else varying_column(rows, "colour", colour)
    rows = _with_axes(rows, beside, column) if along is None else rows.assign(axis=along)
    axes = set(rows["axis"])
    if colour is None and ARM in (along, beside):
        # Then another parameter has the colours, if one varies.
        others = varying(rows, [one for one in KEYS[1:] if one not in {*axes, beside}])
        column = max(others, key=lambda one: rows[one].nunique(), default=ARM)
    used = [one for one in (along, beside, column) if one not in (None, ARM)]
    if len(set(used)) < len(used):
        raise BadInput(f"along, panel and colour are the same parameter, {used[-1]}: choose another")
    if "mtu_bytes" in {*axes, column}:
        rows = _without_full_lengths(rows)
    # The other arms have a note, and neither a panel nor a place.
    measured, lines = rows.loc[rows["status"].eq("ok"), ARM], dict[str, str]()
    rows = rows[rows[ARM].isin(measured)] if len(measured) else rows
    names = list(dict(arms(rows, ARM)))
    if column != ARM:
        lines = words_of(column, rows[column])
        rows = rows.assign(arm=rows[column].map(value_text).map(lines), role="variant").drop(columns=column)
    most = 2 if len(axes) > 1 or ARM in axes else None  # different axes need room
    by_arm = names if column != ARM or beside == ARM else ()
    parts = panels(rows, most, along=rows["axis"], by_arm=by_arm, beside=beside)
    room_px = AXIS_PX / max((one.column for one in parts), default=1)
    drawn = [_axis(one.table, room_px, names) for one in parts]
    figure = grid(parts, PANEL_PX, [axis.turned_px for axis in drawn])
    for one, axis in zip(parts, drawn, strict=True):
        draw(figure, one, of_metric(protocols.of(one.table).metric, usual), axis, list(lines.values()))
    of = [called(one)[-1] for one in dict.fromkeys((*AXES, *KEYS)) if one in axes]
    return figure, " of each arm" if ARM in axes or not of else f" against {listed(of)}"


def draw(figure: go.Figure, panel: Panel, quantity: Quantity, axis: Axis, names: Sequence[str] = ()) -> None:
    """Draw one panel. names: the lines in order, if they are not those of arms."""
    table = _rounds(panel.table.assign(x=axis.at(panel.table)))
    places = sorted(axis.at(panel.table).unique())
    gap = min((math.log2(more / fewer) for fewer, more in pairwise(places)), default=1.0)
    gap = min(max(gap, math.log2(places[-1] / places[0]) * NARROW), WIDEST)
    drawn, ends = arms(table), _ends(table, quantity.is_log)
    styles = {arm: theme.arm_style(arm, role) for arm, role in drawn}
    if names:
        styles = {arm: theme.nth_style(place) for place, arm in enumerate(names) if arm in styles}
    # The arms of a place stand side by side, so that their intervals do not overlap.
    spread = gap * 0.5
    if not axis.words and len(places) > 1:
        spread = min(spread, BESIDE * (math.log2(places[-1] / places[0]) + gap))
    numbers = table["arm"].map(list(styles).index).groupby(table["x"])
    side = (numbers.rank("dense") - 0.5) / numbers.transform("nunique") - 0.5
    table = table.assign(shift=2 ** (spread * side))
    rounds: dict[str, list[dict[Any, Any]]] = {arm: [] for arm in styles}
    for one in table.to_dict("records"):  # dicts are faster than tables for the few rounds of an arm
        rounds[one["arm"]].append(one)
    traces = list[dict[str, Any]]()
    for arm, style in styles.items():
        assert ends is not None  # because there are rounds
        apart = axis.null if axis.is_apart else math.nan
        own = [
            one | {"place": axis.say(one["x"]), "x": one["x"] * one["shift"], "apart": one["x"] == apart}
            for one in rounds[arm]
        ]
        traces += _arm(arm, style, own, ends, quantity, not axis.words)
    figure.add_traces(traces, rows=[panel.row] * len(traces), cols=[panel.column] * len(traces))
    _axes(figure, panel, places, gap * 0.5 * math.log10(2), quantity, axis, ends)


def _ends(rounds: pd.DataFrame, is_log: bool) -> tuple[float, float] | None:
    """Return the ends of the y axis: around all rounds, except outliers that would compress the others."""
    if rounds.empty:
        return None
    middles = rounds.groupby(["arm", "x"])["value"].median()
    top = float(min(rounds["value"].max(), STRANGE * middles.max()))
    lowest = float(max(rounds["value"].min(), middles.min() / STRANGE))
    return (lowest / 1.25, top * 1.25) if is_log else (0.0, top * 1.12)


def _axes(
    figure: go.Figure,
    panel: Panel,
    places: list[float],
    room: float,
    quantity: Quantity,
    axis: Axis,
    ends: tuple[float, float] | None,
) -> None:
    sides = [math.log10(places[0]) - room, math.log10(places[-1]) + room]
    domain = next(figure.select_xaxes(**panel.place)).domain or (0.0, 1.0)
    texts = {at: axis.tick(at, panel) if axis.tick else axis.say(at) for at in places}
    shown = ticks(texts, domain[1] - domain[0], room)
    if axis.words:
        shown = {"tickvals": places, "ticktext": list(axis.words.values())}
        shown["tickangle"] = TURNED if axis.turned_px else 0
    figure.update_xaxes(type="log", range=sides, title_text=axis.title, **shown, **panel.place)
    reach = [end / quantity.scale for end in ends] if ends else [0.0, 1.0]
    shape = log_axis(*reach) if quantity.is_log and ends else {"range": reach}
    figure.update_yaxes(title_text=quantity.title, **shape, **panel.place)
    if ends is None:  # plotly draws no axes for a plot without data
        words = {"mode": "text", "text": ["nothing was measured"], "showlegend": False, "hoverinfo": "skip"}
        figure.add_trace(go.Scatter(x=[10 ** (sum(sides) / 2)], y=[0.5], **words), **panel.place)


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis with labels at 1, 2 and 5 of each decade, at 1 only for many decades, and at more
    places if fewer than three would be seen."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    at = list[float]()
    for heads in HEADS[len(decades) < MANY_DECADES :]:
        at = [head * 10.0**decade for decade in decades for head in heads]
        if sum(low <= value <= high for value in at) >= FEW_LABELS:
            break
    labels = {"tickvals": at, "ticktext": [f"{value:g}" for value in at]}
    return {"type": "log", "range": [math.log10(low), math.log10(high)], **labels}


def ticks(labels: dict[float, str], share: float = 1.0, room: float = 0.0) -> dict[str, Any]:
    """Return the ticks of a logarithmic axis, without labels that would overlap; the last place always has a label.

    `labels`: the label of each place, in order. `share`: the axis' share of the figure's width. `room`: decades of the
    axis before the first place, and behind the last one. The first of two lines (a fragmented size) goes before others.
    """
    places = list(labels)
    octaves = math.log2(places[-1] / places[0]) + 2 * room / math.log10(2)
    octave_px = AXIS_PX * share / (octaves or 1.0)

    def fits(place: float, label: str, others: dict[float, str]) -> bool:
        """Return whether a label fits beside the others: each of its lines beside the same line of the others."""
        return all(
            abs(math.log2(place / other)) * octave_px >= LETTER_PX * (len(one) + len(two)) / 2 + GAP_PX
            for other, text in others.items()
            for one, two in zip(label.split("<br>"), text.split("<br>"), strict=False)
        )

    shown = {places[-1]: labels[places[-1]]}
    for place in [*[one for one in places if "<br>" in labels[one]][:1], *places]:
        if fits(place, labels[place], shown):
            shown[place] = labels[place]
    shown = dict(sorted(shown.items()))
    return {"tickvals": list(shown), "ticktext": list(shown.values()), "tickangle": 0}


def no_bar(low: Any, high: Any, ends: tuple[float, float], is_log: bool) -> npt.NDArray[np.bool_]:
    """Return which intervals are longer than a third of the axis, as those of two rounds are.

    Their bars would hide the points, so they appear in hover texts only.
    """
    if is_log:
        length, whole = np.log(np.asarray(high) / np.asarray(low)), math.log(ends[1] / ends[0])
    else:
        length, whole = np.asarray(high) - np.asarray(low), ends[1] - ends[0]
    return np.asarray(length > whole / 3)


def _rounds(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each arm, place on the axis, method and round: value, part, and number of measurements."""
    ok = table[table["status"].eq("ok") & table["value"].notna()]
    keys = ["arm", "role", "x", "method", "round"] + (["run"] if "run" in ok else [])
    if "weight" not in ok:
        rounds = ok.groupby(keys, as_index=False, dropna=False)
        return rounds.agg(value=("value", "mean"), count=("value", "size"))
    groups = ok[ok["weight"].notna()].groupby(keys, as_index=False, dropna=False)
    # min_count: the sum of no values is NaN, not 0.
    grouped = groups[["value", "part", "weight"]].sum(min_count=1).assign(count=groups.size()["size"])
    weight = grouped["weight"]
    return grouped.assign(value=grouped["value"] / weight, part=grouped["part"] / weight)


def _x(one: dict[Any, Any]) -> float:
    return float(one["x"])


def _middle(rounds: list[dict[Any, Any]]) -> dict[str, Any]:
    """Return the geometric mean of an arm's rounds at one place, its 95 % interval, and the median of their parts.

    If a round received nothing, the median is used instead of the mean.
    """
    values = np.array([one["value"] for one in rounds], float)
    mean = stats.effect(np.log(values)) if (values > 0).all() else None
    middle = float(np.median(values)) if mean is None else mean.ratio
    parts = [one["part"] for one in rounds if pd.notna(one.get("part"))]
    return {
        "x": rounds[0]["x"], "place": rounds[0]["place"], "value": middle, "rounds": len(rounds),
        "which": "median" if mean is None else "geometric mean",
        "low": middle if mean is None or mean.low is None else mean.low,
        "high": middle if mean is None or mean.high is None else mean.high,
        "part": float(np.median(parts)) if parts else math.nan,
    }  # fmt: skip


def _bars_and_marks(
    middles: list[dict[str, Any]], ends: tuple[float, float], scale: float
) -> tuple[dict[str, list[float]], dict[str, list[Any]]]:
    """Return the lengths of the intervals' bars, cut at the ends of the axis, and a mark for each cut end."""
    bars: dict[str, list[float]] = {"array": [], "arrayminus": []}
    marks: dict[str, list[Any]] = {"x": [], "y": [], "symbol": []}
    for end, bound, bar, symbol in (
        ("high", ends[1], "array", "triangle-up-open"),
        ("low", ends[0], "arrayminus", "triangle-down-open"),
    ):
        for one in middles:
            length, room = abs(one[end] - one["value"]), abs(one["value"] - bound)
            bars[bar].append(min(length, room) / scale)
            if length > room:
                marks["x"].append(one["x"])
                marks["y"].append(bound / scale)
                marks["symbol"].append(symbol)
    return bars, marks


def _arm(
    arm: str,
    style: theme.ArmStyle,
    rounds: list[dict[Any, Any]],
    ends: tuple[float, float],
    quantity: Quantity,
    joined: bool,
) -> list[dict[str, Any]]:
    """Return an arm's traces: raw points, the means with intervals, the marks of intervals that the axis cuts, and the
    part. joined: whether lines join the means and the parts, which are short dashes otherwise."""
    top, scale = ends[1], quantity.scale
    common: dict[str, Any] = {"name": theme.plain(arm), "legendgroup": arm, "showlegend": False}
    open_symbol = style.symbol.removesuffix("-open") + "-open"
    y: list[float] = []
    marker: dict[str, Any] = {"color": style.color, "symbol": [], "size": []}
    for one in rounds:
        beyond = one["value"] > top
        y.append((top * 0.985 if beyond else one["value"]) / scale)
        symbol = open_symbol if one["method"] == "whole" else style.symbol
        marker["symbol"].append("arrow-up" if beyond else symbol)
        marker["size"].append(9 if beyond else 5)
    points = common | {
        "x": [one["x"] for one in rounds], "y": y, "mode": "markers", "opacity": 0.5, "marker": marker,
        "hovertext": [_say_round(one, quantity) for one in rounds], "hoverinfo": "text",
    }  # fmt: skip

    places = [list(some) for _, some in groupby(sorted(rounds, key=_x), key=_x)]
    middles = [_middle([one for one in some if one["method"] != "whole"] or some) for some in places]
    if places and places[-1][0]["apart"]:  # a point without a value ends the line before it
        middles.insert(-1, middles[-1] | dict.fromkeys(("value", "low", "high", "part"), math.nan))
    bars, marks = _bars_and_marks(middles, ends, scale)
    x = [one["x"] for one in middles]
    line = common | {
        "x": x, "y": [one["value"] / scale for one in middles], "error_y": bars, "showlegend": True,
        "mode": "lines+markers" if joined else "markers",
        "marker": {"color": style.color, "symbol": style.symbol},
        "line": {"color": style.color, "dash": style.dash},
        "hovertext": [_say_middle(arm, one, quantity) for one in middles], "hoverinfo": "text",
    }  # fmt: skip

    traces = [points, line]
    if marks["x"]:
        marker = {"color": style.color, "symbol": marks["symbol"], "size": 9}
        cut = common | {"x": marks["x"], "y": marks["y"], "mode": "markers", "marker": marker}
        traces.append(cut | {"cliponaxis": False, "hoverinfo": "skip"})
    if not all(math.isnan(one["part"]) for one in middles):
        part = common | {
            "x": x, "y": [one["part"] / scale for one in middles], "mode": "lines" if joined else "markers",
            "line": {"color": style.color, "dash": "dot", "width": 1},
            "marker": {"color": style.color, "symbol": "line-ew-open"}, "hoverinfo": "skip",
        }  # fmt: skip
        traces.append(part)
    return traces


def _say_round(one: dict[Any, Any], quantity: Quantity) -> str:
    how = "whole run" if one["method"] == "whole" else f"{one['count']} slices"
    lines = f"{theme.plain(one['arm'])}, {one['place']}"
    return f"{lines}<br>round {one['round']:.0f} ({how}): {quantity.say(one['value'])}"


def _say_middle(arm: str, one: dict[Any, Any], quantity: Quantity) -> str:
    lines = f"<b>{theme.plain(arm)}</b>, {one['place']}"
    lines += f"<br>{one['which']} {quantity.say(one['value'])}, {counted(one['rounds'], 'round')}"
    if one["low"] < one["high"]:
        lines += f"<br>95 % interval {quantity.say(one['low'])} to {quantity.say(one['high'])}"
    if not math.isnan(one["part"]):
        lines += f"<br>of which softirq {quantity.say(one['part'])}"
    return lines
