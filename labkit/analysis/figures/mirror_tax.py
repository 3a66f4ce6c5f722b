"""The mirror tax: the cost of a packet against its number of copies, with the fitted line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import finish, titled_grid
from labkit.analysis.load import complete
from labkit.analysis.packet_cost.mirror_tax import COSTS, Tax
from labkit.common.units import si

PANEL_PX, BETWEEN_PX, TOP_PX = 300, 90, 100
US = 1e-6


def mirror_tax(rows: pd.DataFrame, taxes: Sequence[Tax]) -> go.Figure:
    """Draw the cost of a packet (`mirror_tax.taxes(rows)`) against its counted copies, a panel for each load and cost.

    Points are means of the rounds with 95 % intervals; lines are the fits.
    """
    panels: dict[tuple[str, str], list[Tax]] = {}
    for one in taxes:
        panels.setdefault((_load(one), one.cost), []).append(one)
    count = max(len(panels), 1)
    titles = {(number + 1, 1): f"<b>{load}</b>: {COSTS[cost]}" for number, (load, cost) in enumerate(panels)}
    whole = count * PANEL_PX + (count - 1) * BETWEEN_PX
    figure = titled_grid(titles or {(1, 1): ""}, rows=count, cols=1, vertical_spacing=BETWEEN_PX / whole)
    figure.update_layout(height=whole + TOP_PX, margin={"t": TOP_PX, "b": 0})
    seen: set[str] = set()
    for number, some in enumerate(panels.values()):
        for tax in some:
            _draw(figure, tax, number + 1, tax.curve not in seen)
            seen.add(tax.curve)
        figure.update_yaxes(title_text="µs per packet", rangemode="tozero", row=number + 1, col=1)
    figure.update_xaxes(title_text="copies of a packet (counted)", row=count, col=1)
    subtitle = "mean of the rounds and 95 % interval; lines: fit of every round, averaged"
    return finish(figure, complete(rows), "The mirror tax", subtitle)


def _load(tax: Tax) -> str:
    of = tax.of
    words = [str(of["protocol"])]
    if not pd.isna(of["length_bytes"]):
        words.append(f"{of['length_bytes']:.0f} bytes")
    if not pd.isna(of["rate_bps"]):
        words.append(f"{si(of['rate_bps'], 'bit/s')} offered")
    return ", ".join(words)


def _draw(figure: go.Figure, tax: Tax, row: int, first: bool) -> None:
    style = theme.arm_style(tax.curve)
    means = tax.means
    middle = np.array([one.value for one in means]) / US
    low, high = (
        np.array([one.value if end is None else end for one, end in zip(means, ends, strict=True)]) / US
        for ends in ([one.low for one in means], [one.high for one in means])
    )
    figure.add_trace(
        go.Scatter(
            x=tax.copies, y=middle, mode="markers", name=tax.curve, legendgroup=tax.curve, showlegend=first,
            marker={"color": style.color, "symbol": style.symbol, "size": 8},
            error_y={"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low},
        ),
        row=row, col=1,
    )  # fmt: skip
    if tax.fixed is not None and tax.copy is not None:
        along = np.array([0.0, float(tax.copies.max())])
        figure.add_trace(
            go.Scatter(
                x=along, y=(tax.fixed.value + tax.copy.value * along) / US, mode="lines", legendgroup=tax.curve,
                showlegend=False, line={"color": style.color, "dash": style.dash, "width": 1.5}, hoverinfo="skip",
            ),
            row=row, col=1,
        )  # fmt: skip
