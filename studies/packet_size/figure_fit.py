"""The cost of a datagram against its size: measurements, fits and residuals."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.cost_by_size import (
    PREFIXES,
    SIZE,
    fragments_count,
    largest_whole,
    mark_mtu,
    say_size,
)
from labkit.analysis.figures.line_chart import NARROW, log_axis, no_bar, ticks
from labkit.analysis.figures.panels import Panel, finish, panels, titled_grid
from labkit.analysis.load import complete, groups
from labkit.common.units import counted
from studies import linear_fit
from studies.function_time_claim import BY
from studies.linear_fit import Floats
from studies.packet_size.cost_model import COSTS, Curve

COST_PX, REST_PX, BETWEEN_PX, TOP_PX = 330, 190, 90, 118
HOST_PX = 40  # more between panels whose titles have the host
SIDE = 0.035  # share of the axis left free beside the outermost sizes
MARGIN = 1.25  # factor between the measured range and the axis
STEPS = 2000  # points of a drawn curve
BESIDE = 0.006  # greatest distance of arms at one size, as a share of the axis
TOGETHER = 0.6  # greatest share of the room between two sizes that all arms of one size take


def fitted(rows: pd.DataFrame, curves: Sequence[Curve]) -> go.Figure:
    """Draw each cost of `curves` (`cost_model.curves(rows)`) against size.

    Both axes of a cost are logarithmic. Each plot has the means of the rounds with 95 % intervals, the rounds (faint)
    and the fit. Below it are the residuals in per cent, with 95 % intervals. The line is fitted through unfragmented
    sizes; the steps beyond are fragments. If the interval of a residual excludes 0, that size does not lie on the line.
    """
    rows = complete(rows)
    together = [list(some) for _, some in groupby(curves, lambda one: (one.key, one.cost))]
    drawn = [(_panel(rows, some), some) for some in together]
    figure = _empty(drawn)
    for number, (panel, some) in enumerate(drawn):
        _plots(figure, panel, some, 2 * number + 1)
    subtitle = (
        "mean of the rounds and 95 % interval; faint: single rounds; lines: fit (right of the dotted line:"
    )
    subtitle += "<br>fragments); below: what is measured beyond the fit; no bar: too long for the plot"
    return finish(figure, rows, "Fixed cost, cost of a byte, cost of a fragment", subtitle)


def _panel(rows: pd.DataFrame, some: list[Curve]) -> Panel:
    """Return the panel of one point and cost, titled as in `panels`."""
    there = rows[rows["length_bytes"].notna()]
    for panel in panels(there, columns_count=1, along="length_bytes"):
        if next(groups(panel.table[:1], BY))[0] == some[0].key:
            return panel
    raise AssertionError(f"curves are of these rows: {some[0].group}")


def _empty(drawn: list[tuple[Panel, list[Curve]]]) -> go.Figure:
    heights = [height for _ in drawn for height in (COST_PX, REST_PX)] or [COST_PX]
    titles = {}
    for number, (panel, some) in enumerate(drawn):
        host = f"<br>{panel.host}" if panel.host else ""
        titles[2 * number + 1, 1] = f"<b>{panel.title}: {COSTS[some[0].cost]}</b>{host}"
        titles[2 * number + 2, 1] = "measured beyond the fit"
    between = BETWEEN_PX + HOST_PX * any(panel.host for panel, _ in drawn)
    whole = sum(heights) + between * (len(heights) - 1)
    figure = titled_grid(
        titles, rows=len(heights), cols=1, row_heights=heights, vertical_spacing=between / whole
    )
    figure.update_layout(height=whole + TOP_PX, margin={"t": TOP_PX, "b": 0})
    return figure


def _plots(figure: go.Figure, panel: Panel, some: list[Curve], row: int) -> None:
    places = sorted({float(length) for one in some for length in one.lengths})
    span = math.log10(places[-1] / places[0]) if len(places) > 1 else 1.0
    least = min(one.values.mean(axis=0).min() for one in some if one.values.size)
    prefix = next((sign for sign, scale in PREFIXES.items() if scale <= least), "n")
    measured = np.concatenate([one.values.ravel() for one in some])
    ends = float(measured.min()) / MARGIN, float(measured.max()) * MARGIN
    most = max(_reach(one) for one in some) * MARGIN or 0.02
    gap = min((math.log10(more / less) for less, more in pairwise(places)), default=span)
    beside = min(BESIDE, TOGETHER * max(gap / span, NARROW) / len(some))
    for number, curve in enumerate(some):
        shift = 10 ** (span * beside * (number - (len(some) - 1) / 2))
        _draw_measured(figure, curve, shift, prefix, ends, row)
        _line(figure, curve, PREFIXES[prefix], places, row)
        _rest(figure, curve, shift, most, row + 1)
    if not list(figure.select_traces(row=row + 1, col=1)):  # plotly draws no axes for a plot without data
        figure.add_scatter(
            x=[math.sqrt(places[0] * places[-1])], y=[most * 50], mode="text", text=["too few sizes for a fit"],
            showlegend=False, hoverinfo="skip", row=row + 1, col=1,
        )  # fmt: skip
    sides = [math.log10(places[0]) - SIDE * span, math.log10(places[-1]) + SIDE * span]
    labels = ticks({place: say_size(place, panel) for place in places})
    for one in (row, row + 1):
        figure.update_xaxes(type="log", range=sides, **labels, row=one, col=1)
        mark_mtu(figure, replace(panel, row=one, column=1))
    figure.update_xaxes(title_text=SIZE.title, row=row + 1, col=1)
    axis = log_axis(*(end / PREFIXES[prefix] for end in ends))
    figure.update_yaxes(title_text=f"{prefix}s", **axis, row=row, col=1)
    figure.update_yaxes(title_text="%", range=[-most * 100, most * 100], row=row + 1, col=1)
    nought: dict[str, Any] = {"type": "line", "line_width": 1, "opacity": 0.8, "row": row + 1, "col": 1}
    figure.add_shape(y0=0, y1=0, xref="x domain", x0=0, x1=1, **nought)


def _intervals(values: Floats) -> tuple[Floats, Floats]:
    """Return the mean of each size and half the width of its interval (0 if there is none)."""
    result = [linear_fit.mean(column) for column in values.T]
    return np.array([one.value for one in result]), np.array([one.half for one in result])


def _draw_measured(
    figure: go.Figure, curve: Curve, shift: float, prefix: str, ends: tuple[float, float], row: int
) -> None:
    scale, unit = PREFIXES[prefix], f"{prefix}s"
    style = theme.arm_style(curve.arm, curve.role)
    common: dict[str, Any] = {"name": theme.plain(curve.arm), "legendgroup": curve.arm, "mode": "markers"}
    marker = {"color": style.color, "symbol": style.symbol}
    rounds_count = len(curve.values)
    x, y = np.tile(curve.lengths * shift, rounds_count), curve.values.ravel() / scale
    faint = {"marker": marker | {"size": 4}, "opacity": 0.35, "hoverinfo": "skip", "showlegend": False}
    common |= {"row": row, "col": 1}
    figure.add_scatter(x=x, y=y, **faint, **common)
    middles, halves = _intervals(curve.values)
    lines = [
        f"<b>{theme.plain(curve.arm)}</b>, {length:.0f} bytes<br>{middle / scale:.4g} {unit} ± {half / scale:.2g},"
        f" {counted(rounds_count, 'round')}<br>fit: {fit / scale:.4g} {unit}"
        for length, middle, half, fit in zip(
            curve.lengths, middles, halves, curve.at(curve.lengths, curve.fragments), strict=True
        )
    ]
    below = np.minimum(halves, middles * 0.99) / scale  # the axis is logarithmic, so a bar must not reach 0
    wide = no_bar(middles - below * scale, middles + halves, ends, is_log=True)
    bars = {"array": np.where(wide, 0, halves / scale), "arrayminus": np.where(wide, 0, below)}
    figure.add_scatter(
        x=curve.lengths * shift, y=middles / scale, error_y=bars, marker=marker, hovertext=lines,
        hoverinfo="text", showlegend=True, **common,
    )  # fmt: skip


def _line(figure: go.Figure, curve: Curve, scale: float, places: list[float], row: int) -> None:
    """Draw the fit: the line for unfragmented sizes, and separately the steps for fragmented ones."""
    if not curve.parts:
        return
    mtu, family = float(str(curve.group["mtu_bytes"])), float(str(curve.group["family"] or 4))
    whole = largest_whole(mtu, family)
    style = theme.arm_style(curve.arm, curve.role)
    for first, last in ((places[0], min(whole, places[-1])), (whole + 1, places[-1])):
        if last <= first or (first > whole and "fragment" not in curve.parts):
            continue
        lengths = np.unique(np.geomspace(first, last, STEPS).round())
        fragments = np.array([fragments_count(length, mtu, family) for length in lengths], float)
        figure.add_scatter(
            x=lengths, y=curve.at(lengths, fragments) / scale, mode="lines", hoverinfo="skip", showlegend=False,
            line={"color": style.color, "dash": style.dash, "width": 1.5}, name=theme.plain(curve.arm),
            legendgroup=curve.arm, row=row, col=1,
        )  # fmt: skip


def _reach(curve: Curve) -> float:
    """Return the largest absolute residual of a single round."""
    return float(np.abs(curve.residuals).max(initial=0.0, where=~np.isnan(curve.residuals)))


def _rest(figure: go.Figure, curve: Curve, shift: float, most: float, row: int) -> None:
    """Draw the residuals on an axis from -most to most."""
    known = ~np.isnan(curve.residuals).any(axis=0)
    if not known.any():
        return
    middles, halves = _intervals(curve.residuals[:, known])
    lengths = curve.lengths[known]
    style = theme.arm_style(curve.arm, curve.role)
    lines = [
        f"<b>{theme.plain(curve.arm)}</b>, {length:.0f} bytes<br>{middle:+.1%} ± {half:.1%} of the fit"
        for length, middle, half in zip(lengths, middles, halves, strict=True)
    ]
    wide = no_bar(middles - halves, middles + halves, (-most, most), is_log=False)
    bars = {"array": np.where(wide, 0, halves * 100)}
    figure.add_scatter(
        x=lengths * shift, y=middles * 100, error_y=bars, mode="markers", hovertext=lines,
        marker={"color": style.color, "symbol": style.symbol, "size": 6}, hoverinfo="text", showlegend=False,
        name=theme.plain(curve.arm), legendgroup=curve.arm, row=row, col=1,
    )  # fmt: skip
