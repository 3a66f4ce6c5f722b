"""Requests: how many are answered in a second, against the time that the slowest ones take."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import stats, theme
from labkit.analysis.figures.line_chart import PANEL_PX, TRANSACTIONS, Quantity, log_axis, no_bar
from labkit.analysis.figures.panels import Panel, arms, finish, grid, panels
from labkit.common.units import counted

TAIL = Quantity("99th percentile, µs", "µs", 1e-6)
AXES = {"transaction_rate": TRANSACTIONS, "latency_p99_s": TAIL}
MARGIN = 1.12  # between the rounds and the end of an axis


def requests(rows: pd.DataFrame) -> go.Figure:
    """Draw the rate of transactions (logarithmic) against the 99th percentile of their time (µs, logarithmic).

    There is a panel for each protocol, number of pairs and combination of the other parameters. A large mark has the
    geometric means of an arm's rounds with 95 % intervals; small marks are rounds. If a round lost so many requests
    that its 99th percentile is unknown, the arm has no large mark: the mean of the others would hide it.
    """
    drawn = rows[rows["status"].eq("ok") & rows["transaction_rate"].gt(0)]
    lost = int(drawn["latency_p99_s"].isna().sum())
    parts = panels(drawn, columns_count=2)
    figure = grid(parts, PANEL_PX)
    for panel in parts:
        if panel.table["latency_p99_s"].isna().all():
            continue
        ends = {name: (panel.table[name].min() / MARGIN, panel.table[name].max() * MARGIN) for name in AXES}
        for arm, role in arms(panel.table):
            _arm(figure, panel, arm, role, ends)
        for update, (name, quantity) in zip(
            (figure.update_xaxes, figure.update_yaxes), AXES.items(), strict=True
        ):
            shape = log_axis(*(end / quantity.scale for end in ends[name]))
            update(title_text=quantity.title, tickangle=0, **shape, **panel.place)
    subtitle = (
        "right is faster, below is steadier; geometric mean of rounds with 95 % interval (not drawn if longer than a"
        " third of an axis); small: rounds"
    )
    if lost:
        without = counted(lost, "round")
        subtitle = f"geometric mean, unless a round lost too much for a percentile ({without}); small: rounds"
    about = rows[rows["transaction_rate"].notna() | rows["status"].ne("ok")]
    figure = finish(figure, about, "Requests a second against their slowest percent", subtitle)
    return theme.explained(
        figure,
        "An arm at the lower right answers most requests, and answers nearly all of them soon. Arms that differ in the"
        " height alone have the same rate and another tail. Lost requests count as slower than all others.",
    )


def _arm(figure: go.Figure, panel: Panel, arm: str, role: str, ends: dict[str, tuple[float, float]]) -> None:
    own, style = panel.table[panel.table["arm"].eq(arm)], theme.arm_style(arm, role)
    common = {"name": theme.plain(arm), "legendgroup": arm, "mode": "markers"}
    is_whole = bool(own["latency_p99_s"].notna().all())
    rounds = go.Scatter(
        x=own["transaction_rate"] / TRANSACTIONS.scale, y=own["latency_p99_s"] / TAIL.scale,
        showlegend=not is_whole,
        marker={"color": style.color, "symbol": style.symbol, "size": 5}, opacity=0.5, hoverinfo="skip", **common,
    )  # fmt: skip
    figure.add_trace(rounds, **panel.place)
    if not is_whole:
        return
    means, bars = list[float](), list[dict[str, list[float]]]()
    words = [f"<b>{theme.plain(arm)}</b>, {counted(len(own), 'round')}"]
    for name, of in AXES.items():
        mean = stats.effect(np.log(own[name].to_numpy(float)))
        low, high = (mean.ratio if end is None else end for end in (mean.low, mean.high))
        hides = bool(no_bar(low, high, ends[name], is_log=True))
        means.append(mean.ratio / of.scale)
        bars.append({
            "array": [0 if hides else (high - mean.ratio) / of.scale],
            "arrayminus": [0 if hides else (mean.ratio - low) / of.scale],
        })  # fmt: skip
        words.append(f"{of.say(mean.ratio)} [{of.say(low)}, {of.say(high)}]")
    middle = go.Scatter(
        x=means[:1], y=means[1:], error_x=bars[0], error_y=bars[1], showlegend=True, hoverinfo="text",
        hovertext=["<br>".join(words)], marker={"color": style.color, "symbol": style.symbol, "size": 11}, **common,
    )  # fmt: skip
    figure.add_trace(middle, **panel.place)
