"""Figures of a table: each function takes a DataFrame (rows or verdicts) and returns a plotly Figure.

Figures are about 900 px wide. Raw points are always drawn, and intervals are 95 %. An arm that could not be measured is
named under the plots with the reason, so that no gap goes unexplained. Colours and fonts come from `theme` only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import protocols, theme
from labkit.analysis.figures.cost_by_size import cost, rates
from labkit.analysis.figures.distribution import latency_box, latency_cdf
from labkit.analysis.figures.forest_plot import forest, ratio_ticks
from labkit.analysis.figures.function_costs import functions
from labkit.analysis.figures.function_times import function_durations, function_times
from labkit.analysis.figures.kernels import kernels
from labkit.analysis.figures.line_chart import CPU, FAINT, THROUGHPUT, against
from labkit.analysis.figures.load_loss import load_loss
from labkit.analysis.figures.over_time import over_time
from labkit.analysis.figures.panels import Panel, arms, finish, grid, panels
from labkit.analysis.figures.percentiles import percentiles
from labkit.analysis.figures.requests import requests
from labkit.analysis.load import cpu_of_hosts, metric_values, unsupported_rates
from labkit.analysis.protocols import CARRYING, PROTOCOLS
from labkit.common import units

__all__ = [
    "cost", "cpu_per_gigabyte", "forest", "function_durations", "function_times", "functions", "kernels", "latency_box",
    "latency_cdf", "load_loss", "over_time", "percentiles", "rates", "requests", "slices", "throughput",
]  # fmt: skip

SLICES_PX = 250


def throughput(
    rows: pd.DataFrame, along: str | None = None, panel: str | None = None, colour: str | None = None
) -> go.Figure:
    """Draw throughput (Gbit/s; for ping the round-trip time in µs) against a parameter: `along`, or in each panel the
    number of pairs if it varies, else the parameter that varies most, or the arms.

    colour: the parameter with a line for each value; usually `arm`. panel: the one whose values stand side by side.
    There is a panel for each combination of the other parameters. A line joins the geometric means of the rounds if the
    axis has counts; bars are 95 % intervals (Student's t on logarithms). A faint point is one round: the mean of its
    slices, or its whole run (open). At each place, the mean is of slices if there are any, else of whole runs.
    """
    values = metric_values(rows).mask(unsupported_rates(rows))
    figure, axis = against(rows.assign(value=values), THROUGHPUT, along, panel, colour)
    each = (rows[rows["protocol"].eq(name)] for name in PROTOCOLS)
    quantities = dict.fromkeys(protocols.of(one).quantity for one in each if len(one))
    title = f"{units.listed(list(quantities)) or 'throughput'}{axis}"
    subtitle = f"geometric mean of rounds, 95 % interval (open triangle: it continues); {FAINT}"
    figure = finish(figure, rows, title[0].upper() + title[1:], subtitle)
    text = "Each small mark is a round (a fresh set-up), and each large one the geometric mean, with its 95 % interval."
    total = " All pairs send at the same time, and the throughput is their sum."
    return theme.explained(figure, text + total * ("throughput" in quantities))


def cpu_per_gigabyte(
    rows: pd.DataFrame, along: str | None = None, panel: str | None = None, colour: str | None = None
) -> go.Figure:
    """Draw busy CPU-seconds of the whole machine (of two hosts, of both) per gigabyte received, against a parameter as
    `throughput` does; dotted line or short dash: softirq alone.

    A round's value is the sum of its CPU-seconds divided by the sum of its bytes, because one slice has too few clock
    ticks for a ratio. Pings and requests are left out, because they receive almost no bytes.
    """
    rows = rows[rows["protocol"].isin(CARRYING)]
    weight = rows["received_bytes"].astype(float).where(lambda received: received > 0)
    cpu, softirq = cpu_of_hosts(rows), cpu_of_hosts(rows, "softirq_s")
    whose = "both hosts" if cpu.gt(rows["cpu_s"].astype(float)).any() else "whole machine"
    drawn = rows.assign(value=cpu, part=softirq, weight=weight)
    figure, _ = against(drawn, CPU, along, panel, colour)
    subtitle = f"{whose}, less is better (open triangle: the interval continues)"
    subtitle += f"; dotted line or short dash: softirq alone; {FAINT}"
    figure = finish(figure, rows, "CPU time per gigabyte received", subtitle)
    return theme.explained(
        figure,
        "CPU seconds of the whole machine (of two hosts, of both), with interrupts and the load generator, for each"
        " gigabyte that arrived. Low throughput does not imply high overhead; this figure separates the two.",
    )


def slices(rows: pd.DataFrame) -> go.Figure:
    """Draw each slice's ratio to the baseline's throughput, in order of measurement, with a running median."""
    steady = rows["method"].eq("slice") & rows["throughput_bps"].astype(float).gt(0)
    ok = rows[steady & rows["status"].eq("ok") & rows["protocol"].isin(CARRYING)]
    parts = panels(ok, columns_count=2)
    figure = grid(parts, SLICES_PX)
    for panel in parts:
        turn = [name for name in ("folder", "round", "slice") if panel.table[name].notna().all()]
        wide = panel.table.pivot_table(index=turn, columns="arm", values="throughput_bps")
        baseline, *others = arms(panel.table)
        if baseline[1] != "baseline" or not others:
            continue
        ratios = wide.div(wide[baseline[0]], axis=0).reset_index(drop=True)
        # The noise is heavy-tailed. The axis covers 95 % of the slices, and the others are drawn at its edge.
        logs = np.log(ratios[[arm for arm, _ in others]].to_numpy(float))
        logs = np.abs(logs[np.isfinite(logs)])
        far = max(1.5, math.exp(float(np.quantile(logs, 0.95)))) if logs.size else 1.5
        for arm, role in others:
            _slices_arm(figure, panel, theme.arm_style(arm, role), ratios[arm], far)
        span = math.log10(far * 1.05)
        axis = {"type": "log", "tickvals": ratio_ticks(1 / far, far), "range": [-span, span]}
        figure.update_yaxes(title_text="ratio", **axis, **panel.place)
    figure.update_xaxes(title_text="slice")
    subtitle = (
        "throughput ratio of slices in the order of measurement; faint: one slice (at the edge: beyond); line: running"
        " median of 25 slices"
    )
    figure = finish(figure, rows, "Every slice against the baseline", subtitle)
    return theme.explained(
        figure,
        "Every slice as a ratio to the baseline's slice of the same turn, in the order of measurement: noise, drift,"
        " and single set-ups that differ.",
    )


def _slices_arm(
    figure: go.Figure, panel: Panel, style: theme.ArmStyle, ratios: pd.Series[float], far: float
) -> None:
    common: dict[str, Any] = {"name": theme.plain(ratios.name), "legendgroup": ratios.name, "x": ratios.index}
    marker = {"color": style.color, "symbol": style.symbol, "size": 4}
    points = go.Scatter(y=ratios.clip(1 / far, far), mode="markers", marker=marker, **common)
    middle = ratios.rolling(25, center=True, min_periods=5).median()
    line = {"color": style.color, "dash": style.dash}
    figure.add_trace(points.update(hoverinfo="skip", opacity=0.4, showlegend=False), **panel.place)
    figure.add_trace(go.Scatter(y=middle, mode="lines", line=line, showlegend=True, **common), **panel.place)
