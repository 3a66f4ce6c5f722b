"""Throughput against the number of mirrors, beside what the thesis measured."""

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import Panel, finish, grid, panels
from labkit.analysis.load import GROUP, complete

PANEL_PX = 220
THESIS_BYTES = 64  # of the writes of TCP in the thesis' table 4.1


def mirror_count(rows: pd.DataFrame, lines: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw the ratio of throughput to that without mirrors against the number of mirrors, a panel for each load.

    There is a line for each switch, with 95 % intervals, and grey lines for the thesis where the load is the thesis'.
    Loads and switches with a single number of mirrors are left out if others have several. rows: the measurements.
    lines: `virtual_tap.against_none(rows, verdicts)`. published: `reference_tables.thesis_count()`.
    """
    drawn = lines[lines["ratio"].notna()]
    several = drawn.groupby([*GROUP, "curve"], dropna=False)["mirrors"].transform("nunique").gt(1)
    drawn = drawn[several] if several.any() else drawn
    parts = panels(drawn, columns_count=2, by_pairs=drawn["pairs"].nunique() > 1)
    figure = grid(parts, PANEL_PX)
    for panel in parts:
        for curve, some in panel.table.groupby("curve", sort=False):
            _line(figure, panel, str(curve), some.sort_values("mirrors"))
        if panel.protocol == "tcp" and panel.table["length_bytes"].eq(THESIS_BYTES).all():
            _thesis(figure, panel, published)
    figure.update_xaxes(title_text="mirrors")
    figure.update_yaxes(title_text="ratio to 0 mirrors", rangemode="tozero")
    figure.update_layout(legend=theme.legend_below())
    subtitle = "ratios with 95 % intervals; grey: published, of another machine, whose load did not stress the switch"
    if several.any() and not several.all():
        subtitle += "; loads with one number of mirrors are not drawn"
    return finish(figure, complete(rows), "Throughput against the number of mirrors", subtitle)


def _line(figure: go.Figure, panel: Panel, curve: str, own: pd.DataFrame) -> None:
    style = theme.arm_style(curve)
    figure.add_trace(
        go.Scatter(
            x=[0, *own["mirrors"]], y=[1, *own["ratio"]], mode="lines+markers", name=theme.plain(curve),
            legendgroup=curve, showlegend=True, line={"color": style.color, "dash": style.dash},
            marker={"symbol": style.symbol, "size": 8},
            error_y={"array": [0, *(own["high"] - own["ratio"])], "arrayminus": [0, *(own["ratio"] - own["low"])]},
        ),
        **panel.place,
    )  # fmt: skip


def _thesis(figure: go.Figure, panel: Panel, published: pd.DataFrame) -> None:
    for name, dash in (("with ifstat", "dash"), ("without ifstat", "dot")):
        without = published.loc[published["mirrors"].eq(0), name]
        if not len(without):
            continue
        text = f"Senanayake 2024, TCP, writes of {THESIS_BYTES} bytes, {name}"
        figure.add_trace(
            go.Scatter(
                x=published["mirrors"], y=published[name] / without.iloc[0], mode="lines+markers", name=text,
                legendgroup=text, showlegend=True, line={"color": theme.GREY, "dash": dash},
                marker={"symbol": "x", "size": 7},
            ),
            **panel.place,
        )  # fmt: skip
