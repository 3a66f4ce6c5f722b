"""Ratios between datapaths within each kernel, side by side for all kernels.

Each ratio is measured on one host; hosts are compared by such ratios only.
"""

import math

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import protocols, theme
from labkit.analysis.figures.forest_plot import as_rows, control_band, drawn_range, ratio_ticks
from labkit.analysis.figures.panels import TURNED, Panel, finish, grid, labels, panels
from labkit.analysis.load import hosts

PANEL_PX = 330
WIDTH_PX = 590  # all plots side by side, in a figure 900 px wide


def kernels(verdicts: pd.DataFrame) -> go.Figure:
    """Draw the ratios to the baseline of the same kernel (log axis), against the kernels in order of version.

    Panels are by protocol, number of pairs and other differing parameters. Bars are 95 % intervals. The shaded band is
    the interval of the baseline against itself (A/A control) in that kernel. A symbol is open if its interval contains
    1.
    """
    there = hosts(verdicts)
    named = pd.concat([rows.assign(place=place) for place, (_, rows) in enumerate(there)] or [verdicts])
    parts = panels(named, columns_count=2, by_host=False)
    columns = max((part.column for part in parts), default=1)
    texts, turned_px = labels([name.removeprefix("Linux ") for name, _ in there], WIDTH_PX / columns)
    figure = grid(parts, PANEL_PX, [turned_px] * len(parts))
    ticks = {"tickvals": list(range(len(there))), "ticktext": texts, "tickangle": TURNED if turned_px else 0}
    figure.update_xaxes(range=[-0.5, len(there) - 0.5], showgrid=False, **ticks)
    low, high = drawn_range(verdicts)
    baselines = ", ".join(theme.plain(name) for name in verdicts["baseline"].dropna().unique())
    axis = {"type": "log", "tickvals": ratio_ticks(low, high), "range": [math.log10(low), math.log10(high)]}
    figure.update_yaxes(title_text=f"ratio to {baselines or 'the baseline'}", **axis)
    for panel in parts:
        _controls(figure, panel)
        _arms(figure, panel)
    more = {panel.protocol: protocols.of(panel.table).higher_is_better for panel in parts}
    above = ["above 1 is faster"] if any(more.values()) else []
    below = [f"below 1 is faster ({name})" for name in sorted(more) if not more[name]]
    bars = "bars: 95 % interval, open where it includes 1; shaded: the baseline against itself (A/A)"
    subtitle = f"{' and '.join([*above, *below])}; {bars}"
    figure = finish(figure, as_rows(verdicts), "Ratios to the baseline within each kernel", subtitle)
    return theme.explained(
        figure,
        "The ratios of several kernels side by side. Speeds of different kernels or machines never share an axis,"
        " because labkit compares only within one kernel on one machine.",
    )


def _controls(figure: go.Figure, panel: Panel) -> None:
    """Draw the rule at 1, and in each kernel the band of the baseline against itself."""
    for place in sorted(panel.table["place"].unique()):
        rows = panel.table[panel.table["place"].eq(place)]
        for low, high in control_band(rows):
            figure.add_shape(type="rect", x0=place - 0.45, x1=place + 0.45, y0=low, y1=high, **panel.place)
    rule = {"type": "line", "line_width": 1, "opacity": 0.8}
    figure.add_shape(xref="x domain", x0=0, x1=1, y0=1, y1=1, **rule, **panel.place)


def _arms(figure: go.Figure, panel: Panel) -> None:
    """Draw a trace for each topology with a ratio, side by side in each kernel."""
    known = panel.table[panel.table["ratio"].notna()]
    arms = sorted(known["topology"].unique(), key=theme.arm_order)
    for number, arm in enumerate(arms):
        own, style = known[known["topology"].eq(arm)], theme.arm_style(arm)
        low, high = (own[end].fillna(own["ratio"]) for end in ("low", "high"))
        open_ = (low <= 1) & (high >= 1)
        symbol = style.symbol.removesuffix("-open")
        figure.add_scatter(
            x=own["place"] + 0.6 * ((number + 0.5) / len(arms) - 0.5), y=own["ratio"], mode="markers",
            error_y={"array": high - own["ratio"], "arrayminus": own["ratio"] - low},
            marker={"color": style.color, "symbol": [symbol + "-open" * one for one in open_], "size": 9},
            name=theme.plain(arm), legendgroup=arm, showlegend=True, hoverinfo="text",
            hovertext=[theme.folded(sentence, 60) for sentence in own["sentence"]], **panel.place,
        )  # fmt: skip
