"""The distribution of round-trip times, all rounds together: the share that is not slower (CDF), and boxes."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.line_chart import AXIS_PX, PANEL_PX, log_axis
from labkit.analysis.figures.panels import TURNED, arms, finish, grid, labels, panels

POINTS = np.linspace(0.001, 0.999, 500)  # of a CDF
SHARES = {"lowerfence": 0.01, "q1": 0.25, "median": 0.5, "q3": 0.75, "upperfence": 0.99}  # of a box
quantiles = partial(np.quantile, method="inverted_cdf")


def cdf(counts: "pd.Series[Any]", lost_count: float, scale: float, **trace: Any) -> go.Scatter:
    """Return the line up to 99.9 %, from how often each time (the index, in seconds) was measured."""
    times = quantiles(counts.index, POINTS, weights=counts) / scale
    return go.Scatter(x=times, y=POINTS * counts.sum() / (counts.sum() + lost_count), mode="lines", **trace)


def boxes(there: "dict[str, pd.Series[Any]]", scale: float, **trace: Any) -> go.Box:
    """Return a box of such counts at each place."""
    levels = [quantiles(one.index, [*SHARES.values()], weights=one) / scale for one in there.values()]
    return go.Box(x=list(there), **dict(zip(SHARES, np.transpose(levels), strict=False)), **trace)


def latency_cdf(rows: pd.DataFrame) -> go.Figure:
    """Draw the share of requests that are answered within a time, for each arm, in panels of the other parameters."""
    subtitle = "share of requests that are answered within a time, up to 99.9 % of them; all rounds together"
    return finish(_drawn(rows, boxed=False), rows, "Distribution of round-trip times", subtitle)


def latency_box(rows: pd.DataFrame) -> go.Figure:
    """Draw the quartiles of the round-trip times (logarithmic) of each arm, in the same panels."""
    subtitle = "answered requests, all rounds; boxes: quartiles, median; whiskers: 1st and 99th percentile"
    return finish(_drawn(rows, boxed=True), rows, "Round-trip times of each arm", subtitle)


def _drawn(rows: pd.DataFrame, boxed: bool) -> go.Figure:
    histograms = rows.reindex(columns=["latency_histogram"])["latency_histogram"]  # older rows have none
    rows = rows[rows["status"].eq("ok") & histograms.notna()]
    parts, names = panels(rows, columns_count=2), [arm for arm, _ in arms(rows)]
    texts, turned_px = labels(names, AXIS_PX / max((one.column for one in parts), default=1))
    figure = grid(parts, PANEL_PX, [turned_px * boxed] * len(parts))
    for panel in parts:
        ends = list[float]()
        for arm, role in arms(panel.table):
            own, style = panel.table[panel.table["arm"].eq(arm)], theme.arm_style(arm, role)
            each = pd.concat([pd.Series(one) for one in own["latency_histogram"]])
            counts = each.groupby(each.index.astype(float) * 1e-9).sum()
            lost_count = own["received_count"].sum() + own["lost_count"].sum() - counts.sum()
            common: dict[str, Any] = {"name": theme.plain(arm), "legendgroup": arm, "showlegend": not boxed}
            trace = cdf(counts, lost_count, 1e-6, line={"color": style.color, "dash": style.dash}, **common)
            ends += [trace.x[0] / 1.1, trace.x[-1] * 1.1]
            if boxed:
                trace = boxes({texts[names.index(arm)]: counts}, 1e-6, line_color=style.color, **common)
            figure.add_trace(trace, **panel.place)
        shape = log_axis(min(ends), max(ends)) | {"hoverformat": ".4g"} | panel.place
        (figure.update_yaxes if boxed else figure.update_xaxes)(title_text="round-trip time, µs", **shape)
    if boxed:
        return figure.update_xaxes(tickangle=TURNED if turned_px else 0)
    return figure.update_yaxes(title_text="share of requests", range=[0, 1.01])
