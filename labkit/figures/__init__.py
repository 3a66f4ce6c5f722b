"""Figures of a table: each function takes a DataFrame (rows, or verdicts) and returns a plotly Figure.

They are made to be about 900 px wide. Raw points are always drawn, intervals are 95 %, and an arm that could not be
measured is named under the plots with its reason, so that no gap is silent. Looks belong to `theme`: no colour and
no font is set here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit import stats, theme
from labkit.figures.forest import forest, ratio_ticks
from labkit.figures.functions import functions
from labkit.figures.kernels import kernels
from labkit.figures.panels import Panel, arms, finish, grid, pairs_word, panels

__all__ = ["cpu_per_gigabyte", "forest", "functions", "kernels", "slices", "throughput"]

PANEL_PX, SLICES_PX = 330, 250
STRANGE = 2.5  # times the highest median: a round beyond is an arrow at the edge
FAINT = "faint: single rounds (open: whole runs, arrow: beyond)"


@dataclass(frozen=True)
class Quantity:
    """A y axis: its title, and the unit of hover texts. Values come in base units and are divided by `scale`."""

    title: str
    unit: str
    scale: float

    def say(self, value: float) -> str:
        return f"{value / self.scale:.4g} {self.unit}"


THROUGHPUT = Quantity("throughput, Gbit/s", "Gbit/s", 1e9)
LATENCY = Quantity("round-trip time p50, µs", "µs", 1e-6)
CPU = Quantity("CPU-seconds per GB", "CPU-s/GB", 1e-9)


def throughput(rows: pd.DataFrame) -> go.Figure:
    """Throughput (Gbit/s; of ping the round-trip time in µs) against the number of pairs, panels by protocol and MTU.

    A line joins the geometric means of the rounds; bars are their 95 % interval (Student's t on logarithms). A faint point is
    one round: the mean of its slices, or its whole run (open). A line is of slices; of whole runs if there are no
    slices.
    """
    pings = rows["protocol"].eq("ping")
    latency = rows["latency_p50_s"].astype(float)
    figure = _against_pairs(
        rows.assign(value=rows["throughput_bps"].astype(float).mask(pings, latency)), THROUGHPUT
    )
    said = ["Throughput"] * bool(len(rows) == 0 or not pings.all()) + ["Round-trip time"] * bool(pings.any())
    subtitle = f"geometric mean of the rounds and 95 % interval; {FAINT}"
    return finish(figure, rows, f"{' and '.join(said)} against number of pairs", subtitle)


def cpu_per_gigabyte(rows: pd.DataFrame) -> go.Figure:
    """Busy CPU-seconds of the whole machine per gigabyte received, against the number of pairs; dotted: softirq alone.

    A round's value is the sum of its CPU-seconds by the sum of its bytes: one slice has too few clock ticks for a
    ratio. Closed-loop pings receive next to no bytes and are left out.
    """
    rows = rows[rows["protocol"] != "ping"]
    weight = rows["received_bytes"].astype(float).where(lambda received: received > 0)
    cpu, softirq = rows["cpu_s"].astype(float), rows["softirq_s"].astype(float)
    figure = _against_pairs(rows.assign(value=cpu, part=softirq, weight=weight), CPU)
    subtitle = f"whole machine, less is better; thin dotted: softirq alone; {FAINT}"
    return finish(figure, rows, "CPU time per gigabyte received", subtitle)


def slices(rows: pd.DataFrame) -> go.Figure:
    """Every slice's throughput as a ratio to the baseline's, in order of measurement, with a running median."""
    steady = rows["method"].eq("slice") & rows["throughput_bps"].astype(float).gt(0)
    ok = rows[steady & rows["status"].eq("ok") & rows["protocol"].ne("ping")]
    parts = panels(ok, columns_count=2, by_pairs=True)
    figure, seen = grid(parts, SLICES_PX), set[str]()
    for panel in parts:
        wide = panel.table.pivot_table(index=["round", "slice"], columns="arm", values="throughput_bps")
        baseline, *others = arms(panel.table)
        if baseline[1] != "baseline" or not others:
            continue
        ratios = wide.div(wide[baseline[0]], axis=0).reset_index(drop=True)
        # Noise is heavy-tailed: the axis is for nineteen of twenty slices, the others are put to its edge.
        logs = np.log(ratios[[arm for arm, _ in others]].to_numpy(float))
        logs = np.abs(logs[np.isfinite(logs)])
        far = max(1.5, math.exp(float(np.quantile(logs, 0.95)))) if logs.size else 1.5
        for arm, role in others:
            _slices_arm(figure, panel, theme.arm_style(arm, role), ratios[arm], far, arm not in seen)
            seen.add(arm)
        span = math.log10(far * 1.05)
        axis = {"type": "log", "tickvals": ratio_ticks(1 / far, far), "range": [-span, span]}
        figure.update_yaxes(title_text="ratio", **axis, **panel.place)
    figure.update_xaxes(title_text="slice, in the order of measurement")
    subtitle = "throughput ratio; faint: one slice (at the edge: beyond); line: running median of 25 slices"
    return finish(figure, rows, "Every slice against the baseline", subtitle)


def _slices_arm(
    figure: go.Figure, panel: Panel, style: theme.ArmStyle, ratios: pd.Series[float], far: float, first: bool
) -> None:
    common: dict[str, Any] = {"name": theme.plain(ratios.name), "legendgroup": ratios.name, "x": ratios.index}
    marker = {"color": style.color, "symbol": style.symbol, "size": 4}
    points = go.Scatter(y=ratios.clip(1 / far, far), mode="markers", marker=marker, **common)
    middle = ratios.rolling(25, center=True, min_periods=5).median()
    line = {"color": style.color, "dash": style.dash}
    figure.add_trace(points.update(hoverinfo="skip", opacity=0.4, showlegend=False), **panel.place)
    figure.add_trace(go.Scatter(y=middle, mode="lines", line=line, showlegend=first, **common), **panel.place)


def _against_pairs(rows: pd.DataFrame, usual: Quantity) -> go.Figure:
    """Medians and raw points of column `value`, over column `weight` if there is one; column `part` is a thin line."""
    parts = panels(rows)
    figure, seen = grid(parts, PANEL_PX), set[str]()
    for panel in parts:
        quantity = LATENCY if panel.protocol == "ping" else usual
        rounds = _rounds(panel.table)
        pairs = sorted(panel.table["pairs"].unique())
        gap = min((math.log2(more / fewer) for fewer, more in pairwise(pairs)), default=1.0)
        drawn, top = arms(rounds), _top(rounds)
        for number, (arm, role) in enumerate(drawn):
            # Arms stand beside each other at one number of pairs, so that intervals do not cover each other.
            shift = 2 ** (gap * 0.5 * ((number + 0.5) / len(drawn) - 0.5))
            own = rounds[rounds["arm"] == arm]
            _arm(figure, panel, own.assign(x=own["pairs"] * shift, top=top), role, quantity, arm not in seen)
            seen.add(arm)
        _axes(figure, panel, pairs, gap * 0.5 * math.log10(2), quantity, top)
    return figure


def _top(rounds: pd.DataFrame) -> float | None:
    """Where the y axis ends: above all rounds, but not so far that one strange round would flatten all others."""
    if rounds.empty:
        return None
    middles = rounds.groupby(["arm", "pairs"])["value"].median()
    return float(min(rounds["value"].max(), STRANGE * middles.max()) * 1.12)


def _axes(
    figure: go.Figure, panel: Panel, pairs: list[float], room: float, quantity: Quantity, top: float | None
) -> None:
    ends = [math.log10(pairs[0]) - room, math.log10(pairs[-1]) + room]
    labels = {"tickvals": pairs, "ticktext": [f"{count:.0f}" for count in pairs]}
    figure.update_xaxes(type="log", range=ends, title_text="pairs at once", **labels, **panel.place)
    end = top / quantity.scale if top else 1.0
    figure.update_yaxes(title_text=quantity.title, range=[0, end], **panel.place)
    if top is None:  # plotly draws no axes for a plot without data
        words = {"mode": "text", "text": ["nothing was measured"], "showlegend": False, "hoverinfo": "skip"}
        figure.add_trace(go.Scatter(x=[10 ** (sum(ends) / 2)], y=[0.5], **words), **panel.place)


def _rounds(table: pd.DataFrame) -> pd.DataFrame:
    """One line for each arm, number of pairs, method and round: value, part, and count of its measurements."""
    ok = table[table["status"].eq("ok") & table["value"].notna()]
    keys = ["arm", "role", "pairs", "method", "round"] + (["run"] if "run" in ok else [])
    if "weight" not in ok:
        return ok.groupby(keys, as_index=False, dropna=False).agg(
            value=("value", "mean"), count=("value", "size")
        )
    groups = ok[ok["weight"].notna()].groupby(keys, as_index=False, dropna=False)
    # The sum of nothing is nothing, not 0.
    found = groups[["value", "part", "weight"]].sum(min_count=1).assign(count=groups.size()["size"])
    return found.assign(value=found["value"] / found["weight"], part=found["part"] / found["weight"])


def _middles(rounds: pd.DataFrame) -> pd.DataFrame:
    """For each number of pairs the geometric mean of the rounds, and how far its 95 % interval reaches below and above.

    The median stands in where a round got nothing through.
    """
    result = []
    for x, some in rounds.groupby("x"):
        values = some["value"].to_numpy(float)
        found = stats.effect(np.log(values)) if (values > 0).all() else None
        middle = float(np.median(values)) if found is None else found.ratio
        low = middle if found is None or found.low is None else found.low
        high = middle if found is None or found.high is None else found.high
        one = {
            "x": x,
            "pairs": some["pairs"].iloc[0],
            "value": middle,
            "low": low,
            "high": high,
            "rounds": len(some),
        }
        one |= {"below": max(0.0, middle - low), "above": max(0.0, high - middle)}
        result.append(one | ({"part": some["part"].median()} if "part" in some else {}))
    return pd.DataFrame(result)


def _arm(
    figure: go.Figure, panel: Panel, rounds: pd.DataFrame, role: str, quantity: Quantity, first: bool
) -> None:
    """Add one arm to its panel: its raw points, its line of medians with intervals, the thin line of the part."""
    arm = str(rounds["arm"].iloc[0])
    style = theme.arm_style(arm, role)
    common: dict[str, Any] = {"name": theme.plain(arm), "legendgroup": arm}
    whole = rounds["method"].eq("whole")
    symbols = np.where(whole, style.symbol.removesuffix("-open") + "-open", style.symbol)
    beyond = rounds["value"] > rounds["top"]
    points = go.Scatter(
        x=rounds["x"],
        y=rounds["value"].mask(beyond, rounds["top"] * 0.985) / quantity.scale,
        mode="markers",
        opacity=0.5,
        marker={
            "color": style.color,
            "symbol": np.where(beyond, "arrow-up", symbols),
            "size": 5 + 4 * beyond,
        },
        hovertext=[_say_round(one, quantity) for one in rounds.to_dict("records")],
    )
    middles = _middles(rounds if whole.all() else rounds[~whole])
    line = go.Scatter(
        x=middles["x"],
        y=middles["value"] / quantity.scale,
        error_y={"array": middles["above"] / quantity.scale, "arrayminus": middles["below"] / quantity.scale},
        mode="lines+markers",
        marker={"color": style.color, "symbol": style.symbol},
        line={"color": style.color, "dash": style.dash},
        hovertext=[_say_middle(arm, one, quantity) for one in middles.to_dict("records")],
    )
    figure.add_trace(points.update(hoverinfo="text", showlegend=False, **common), **panel.place)
    figure.add_trace(line.update(hoverinfo="text", showlegend=first, **common), **panel.place)
    if "part" in middles and middles["part"].notna().any():
        dotted = {"color": style.color, "dash": "dot", "width": 1}
        part = go.Scatter(x=middles["x"], y=middles["part"] / quantity.scale, mode="lines", line=dotted)
        figure.add_trace(part.update(hoverinfo="skip", showlegend=False, **common), **panel.place)


def _say_round(one: dict[Any, Any], quantity: Quantity) -> str:
    how = "whole run" if one["method"] == "whole" else f"{one['count']} slices"
    said = f"{theme.plain(one['arm'])}, {pairs_word(one['pairs'])}"
    return f"{said}<br>round {one['round']:.0f} ({how}): {quantity.say(one['value'])}"


def _say_middle(arm: str, one: dict[Any, Any], quantity: Quantity) -> str:
    said = f"<b>{theme.plain(arm)}</b>, {pairs_word(one['pairs'])}"
    said += f"<br>median {quantity.say(one['value'])}, {one['rounds']} rounds"
    if one["low"] < one["high"]:
        said += f"<br>95 % interval {quantity.say(one['low'])} to {quantity.say(one['high'])}"
    return said + (f"<br>of which softirq {quantity.say(one['part'])}" if pd.notna(one.get("part")) else "")
