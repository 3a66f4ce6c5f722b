"""Values over time: plots below each other on time axes of the same scale, rates above latencies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import titled_grid

PANEL_PX, BETWEEN_PX, EDGES_PX = 210, 80, 150
TITLE_LETTERS = 88
# The vertical axis of each quantity, and what its values are multiplied with
QUANTITIES: dict[str, tuple[dict[str, Any], float]] = {
    "throughput": ({"title_text": "Mbit/s", "rangemode": "tozero"}, 1e-6),
    "frames": ({"title_text": "frames/s", "rangemode": "tozero"}, 1.0),
    "loss": ({"title_text": "loss ratio", "type": "log", "dtick": 1, "exponentformat": "power"}, 1.0),
    "latency": ({"title_text": "ms", "type": "log"}, 1e3),
}


@dataclass(frozen=True)
class Curve:
    """A curve in the plot `row` (from 1): values in SI units over time in seconds.

    `line`: plotly's style of lines. `more`: further arguments of the trace.
    """

    row: int
    name: str
    values: pd.Series[float]
    line: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)


def stacked(titles: Sequence[str]) -> go.Figure:
    """Return an empty figure with a plot below the other for each title, and the legend below them."""
    count = max(len(titles), 1)
    height = PANEL_PX * count + BETWEEN_PX * (count - 1)
    folded = {(row, 1): theme.folded(title, TITLE_LETTERS) for row, title in enumerate(titles, 1)}
    spacing = BETWEEN_PX / height if count > 1 else 0
    figure = titled_grid(folded, rows=count, cols=1, vertical_spacing=spacing)
    figure.update_layout(height=height + EDGES_PX, margin={"b": 0}, legend=theme.legend_below())
    return figure


def over_time(panels: Sequence[tuple[str, str]], lines: Iterable[Curve], time_title: str) -> go.Figure:
    """Draw lines in plots below each other. `panels`: the title and the quantity (QUANTITIES) of each.

    Lines with the same name share an entry of the legend. Latency is the last quantity of plots that belong together,
    so the time axis has its title there.
    """
    figure = stacked([title for title, _ in panels])
    for one in lines:
        _, factor = QUANTITIES[panels[one.row - 1][1]]
        figure.add_scatter(
            x=one.values.index, y=one.values * factor, name=one.name, legendgroup=one.name, line=one.line,
            row=one.row, col=1, **{"mode": "lines", "showlegend": True, **one.more},
        )  # fmt: skip
    for row, (_, quantity) in enumerate(panels, 1):
        figure.update_yaxes(**QUANTITIES[quantity][0], row=row, col=1)
        if quantity == "latency":
            figure.update_xaxes(title_text=time_title, row=row, col=1)
    return figure
