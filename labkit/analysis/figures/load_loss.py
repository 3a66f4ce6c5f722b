"""Loss against load: every trial of the searches of the experiment `throughput`."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.line_chart import log_axis
from labkit.analysis.figures.panels import Marks, finish, titled_grid
from labkit.analysis.findings.loss_rates import BY, traffic_text
from labkit.analysis.load import groups, varying
from labkit.common.units import percent, si

PANEL_PX, EDGES_PX = 260, 140
AXIS_MARGIN = 1.15  # factor between the measured range and the axis
COLUMNS = ["arm", "role", "status", "offered_pps", "loss_ratio"]  # of a trial
NO_LOSS = 1e-6  # position of trials without loss on the logarithmic axis


def load_loss(trials: pd.DataFrame, rates: pd.DataFrame) -> go.Figure:
    """Draw the loss ratio against the offered rate, a panel for each frame size, number of flows, and what else varies.

    A dot is a valid trial. A cross is a trial that the machine disturbed or the generator limited. Dashed lines are the
    rates found. Dotted lines are losses above the goal that are the same at every load, where there is no rate.
    trials: `load.load` with part "trials". rates: `loss_rates.rates`.
    """
    some = trials.loc[trials["phase"].eq("search") & trials["offered_pps"].gt(0), [*BY, *COLUMNS]]
    by = [*BY[:2], *varying(some, BY[2:])]
    parts = sorted(groups(some, by), key=lambda one: (len(one[0][0]), one[0][:2]))
    keys = [dict(zip(by, key, strict=True)) for key, _ in parts]
    titles = {(at, 1): f"<b>{theme.plain(traffic_text(of, by[2:]))}</b>" for at, of in enumerate(keys, 1)}
    found, count = dict(groups(rates, ["arm", *by])), max(1, len(parts))
    figure = titled_grid(titles, rows=count, cols=1, vertical_spacing=0.4 / max(count, 4))
    marks = Marks(figure)
    for at, (key, panel) in enumerate(parts, 1):
        for arm, own in panel.groupby("arm", sort=False):
            style = theme.arm_style(str(arm), str(own["role"].iloc[0]))
            _dots(figure, at, str(arm), own, style)
            result = found.get((arm, *key), pd.DataFrame(columns=["mean_pps", "constant_loss_ratio"]))
            dash, dot = ({"dash": dash, "color": style.color} for dash in ("dash", "dot"))
            line = {"type": "line", "row": at, "col": 1}
            for pps in result["mean_pps"].dropna():
                marks.shape(x0=pps, x1=pps, yref="y domain", y0=0, y1=1, line=dash, **line)
            for ratio in set(result["constant_loss_ratio"].dropna()):
                marks.shape(xref="x domain", x0=0, x1=1, y0=ratio, y1=ratio, line=dot, **line)
    marks.add()
    offered = some["offered_pps"]
    axis: dict[str, Any] = {"type": "log"}
    if len(some):
        axis = log_axis(offered.min() / AXIS_MARGIN, offered.max() * AXIS_MARGIN)
    axis |= {"ticktext": [si(float(value), "").strip() for value in axis.get("tickvals", ())]}
    figure.update_xaxes(title_text="offered, frames/s", tickangle=0, **axis)
    powers = [10.0**power for power in range(-6, 1)]
    figure.update_yaxes(type="log", title_text="lost", range=[-6.3, 0.2])
    figure.update_yaxes(tickvals=powers, ticktext=["none", *(f"{100 * power:g} %" for power in powers[1:])])
    figure.update_layout(height=EDGES_PX + PANEL_PX * count, margin_b=0)
    exceed = sorted(set(rates["exceed_ratio"].dropna())) if len(rates) else []
    has_constant_loss = bool(len(rates)) and bool(rates["constant_loss_ratio"].notna().any())
    subtitle = "×: not counted (disturbed, or generator-limited); dashed: rates found"
    subtitle += f" (exceed ratio {' and '.join(map(percent, exceed))})" if exceed else ""
    subtitle += "; dotted: lost at every load" if has_constant_loss else ""
    return finish(figure, trials, "Loss against load", subtitle)


def _dots(figure: go.Figure, row: int, arm: str, own: pd.DataFrame, style: theme.ArmStyle) -> None:
    counts = own["status"].eq("ok")
    hover = "%{x:.4s} frames/s: loss %{y:.3%}<extra></extra>"
    for part, symbol, opacity in ((own[counts], "circle", 0.8), (own[~counts], "x-thin-open", 0.4)):
        figure.add_scatter(
            x=part["offered_pps"], y=part["loss_ratio"].clip(lower=NO_LOSS), mode="markers",
            name=theme.plain(arm), legendgroup=arm, showlegend=symbol == "circle", hovertemplate=hover,
            marker={"color": style.color, "symbol": symbol, "opacity": opacity, "size": 7}, row=row, col=1,
        )  # fmt: skip
