"""The difference in cost between two arms by function, with intervals."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.common import units

ROW_PX, EDGES_PX = 26, 150
LETTERS = 44


def functions(table: pd.DataFrame) -> go.Figure:
    """Draw the functions that explain a difference (`flame.Difference.functions`), each with its 95 % interval.

    Vermilion functions cost more, blue ones less. Open grey points do not stand out from the spread between rounds.
    With self times, the points add up to the total.
    """
    at: dict[str, Any] = {str(name): value for name, value in table.attrs.items()}
    scale, unit = _scale(table, at)
    figure = go.Figure()
    short = (name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…" for name in table["function"])
    names = list(map(theme.plain, short))
    for row, (_, one) in enumerate(table.iterrows()):
        color = theme.GREY
        if one["stands_out"]:
            color = theme.FRAMES["more" if one["difference_s"] > 0 else "less"]
        middle, low, high = (one[f"difference_{end}s"] / scale for end in ("", "low_", "high_"))
        bars = {} if pd.isna(low) else {"error_x": {"array": [high - middle], "arrayminus": [middle - low]}}
        is_sum = not one["kind"]
        symbol = ("diamond" if is_sum else "circle") + ("" if one["stands_out"] else "-open")
        look: dict[str, Any] = {"mode": "markers", "marker": {"color": color, "symbol": symbol, "size": 10}}
        hover = {"hoverinfo": "text", "hovertext": [_hover(one, at)]}
        figure.add_scatter(x=[middle], y=[row], showlegend=False, **look, **hover, **bars)
    ticks = {"tickvals": list(range(len(names))), "ticktext": names, "range": [len(names) - 0.5, -0.5]}
    figure.update_yaxes(showgrid=False, **ticks)
    figure.update_xaxes(title_text=f"difference, {unit} of CPU per {at['per']}")
    line = {"type": "line", "line_width": 1}
    figure.add_shape(xref="x", yref="y domain", x0=0, x1=0, y0=0, y1=1, opacity=0.8, **line)
    if sums := int(table["kind"].eq("").sum()):
        y = len(table) - sums - 0.5
        figure.add_shape(xref="x domain", yref="y", x0=0, x1=1, y0=y, y1=y, **line)
    figure.update_layout(height=EDGES_PX + ROW_PX * len(table))
    title = f"What makes {at['right']} differ from {at['left']}"
    subtitle = f"{at['time']}; bars: 95 % interval; open: does not stand out from the spread between rounds"
    theme.titled(figure, title, theme.plain(subtitle))
    return figure


def _scale(table: pd.DataFrame, at: dict[str, Any]) -> tuple[float, str]:
    """Return the unit of the axis in seconds and its name: the table's, or a larger one for numbers of five digits."""
    most = float(table["difference_s"].abs().max()) if len(table) else 0.0
    fit = (float(at["unit_s"]), str(at["unit"]))
    for size, name in ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s")):
        if size > at["unit_s"] and most / fit[0] >= 10_000:
            fit = (size, name)
    return fit


def _hover(one: pd.Series, at: dict[str, Any]) -> str:
    scale, unit = float(at["unit_s"]), at["unit"]

    def number_text(name: str) -> str:
        middle, low, high = (one[f"{name}_{end}s"] / scale for end in ("", "low_", "high_"))
        return f"{middle:,.4g} {unit}" + ("" if pd.isna(low) else f" [{low:,.4g}, {high:,.4g}]")

    share = one["share_ratio"]  # undefined if the whole difference is 0
    of = "" if pd.isna(share) else f", {units.percent(share)} of the whole"
    lines = [
        f"{one['function']} {one['kind']}".strip(),
        f"{at['left']}: {number_text('left')}",
        f"{at['right']}: {number_text('right')}",
        f"difference: {number_text('difference')}{of}",
        f"{one['samples_count']:,} samples",
    ]
    return "<br>".join(theme.plain(line) for line in lines)
