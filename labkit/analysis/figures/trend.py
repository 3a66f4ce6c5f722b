"""A series of measurements over runs, with its levels and changes."""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import stats, theme
from labkit.analysis.change_points import without_outliers
from labkit.analysis.figures.line_chart import THROUGHPUT, Quantity, of_metric
from labkit.analysis.load import COST
from labkit.common.schema import BY_NAME

PANEL_PX, TOP_PX, BOTTOM_PX = 260, 112, 62
TICKS = 12  # names of runs below the axis
RATIO = Quantity("ratio", "", 1.0)
CPU_TIME = Quantity("CPU time per packet (TCP: byte), µs", "µs", 1e-6)


def trend(
    points: pd.DataFrame, title: str, places: Sequence[int], texts: Sequence[str], is_ratio: bool
) -> go.Figure:
    """Draw the column `y` with its interval (`y_low`, `y_high`) for each run, in order.

    A rule with a text is before each of `places`, and a line is at the level between two of them.
    """
    metric = str(points["metric"].iloc[0])
    foreign = Quantity(metric, "", 1.0)  # of a CSV file
    is_own = metric in BY_NAME and metric.startswith(("throughput_bps", "transaction_rate", "latency_"))
    known = of_metric(metric, THROUGHPUT) if is_own else foreign
    quantity = RATIO if is_ratio else CPU_TIME if metric == COST else known
    shown = points[["y", "y_low", "y_high"]].astype(float) / quantity.scale
    figure = go.Figure()
    edges, judged = [0, *places, len(points)], without_outliers(np.log(shown["y"].to_numpy(float)))
    for begin, end in itertools.pairwise(edges):
        level = float(np.exp(judged[begin:end].mean()))
        line = {"line_color": theme.GREY, "line_width": 2, "opacity": 0.8}
        figure.add_shape(type="line", x0=begin - 0.5, x1=end - 0.5, y0=level, y1=level, **line)
    for place, text in zip(places, texts, strict=True):
        line = {"line_color": theme.GREY, "line_dash": "dash", "line_width": 1.5, "opacity": 0.9}
        figure.add_shape(type="line", x0=place - 0.5, x1=place - 0.5, yref="y domain", y0=0, y1=1, **line)
        at = {"x": place - 0.5, "yref": "y domain", "y": 1, "yanchor": "bottom", "showarrow": False}
        figure.add_annotation(text=theme.plain(text), **at)
    several = points["kernel"].nunique() > 1
    for kernel, own in points.groupby(points["kernel"].fillna("unknown kernel"), sort=False):
        mine = shown.loc[own.index]
        style = theme.arm_style(str(kernel) if several else str(own["arm"].iloc[0]))
        words = [list(map(theme.plain, one.dropna())) for _, one in own[["run", "time", "kernel"]].iterrows()]
        sizes = (f"{stats.estimate_text(*ends)} {quantity.unit}" for ends in mine.to_numpy())
        figure.add_scatter(
            x=own.index, y=mine["y"], mode="markers", name=theme.plain(kernel),
            error_y={"array": mine["y_high"] - mine["y"], "arrayminus": mine["y"] - mine["y_low"]},
            marker={"color": style.color, "symbol": style.symbol, "size": 8}, hoverinfo="text",
            hovertext=["<br>".join([*each, size]) for each, size in zip(words, sizes, strict=True)],
        )  # fmt: skip
    step = -(-len(points) // TICKS)
    labels = points["run"].astype("str")
    if points["time"].notna().all():
        times = points["time"].astype("str")
        day, year = (times.str.slice(0, letters).nunique() == 1 for letters in (10, 4))
        # the time of the day, or the day
        labels = times.str.slice(11, 16) if day else times.str.slice(5 if year else 0, 10)
    ticks = {"tickvals": list(range(0, len(points), step)), "ticktext": list(labels.iloc[::step])}
    figure.update_xaxes(range=[-0.5, len(points) - 0.5], showgrid=False, **ticks)
    figure.update_yaxes(title_text=quantity.title)
    figure.update_layout(height=PANEL_PX + TOP_PX + BOTTOM_PX, margin={"t": TOP_PX, "b": BOTTOM_PX})
    figure.update_layout(showlegend=several)
    better = "higher" if points["higher_is_better"].iloc[0] else "lower"
    on = theme.plain(points["machine_class"].fillna("unknown machine").iloc[0])
    theme.titled(figure, title, f"{on}<br>{better} is better; bars: 95 % interval of a run; line: level")
    theme.legend_fits(figure)
    return figure
