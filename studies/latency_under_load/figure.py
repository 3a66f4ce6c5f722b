"""Throughput and round-trip times over time, and the distribution of round-trip times in each phase."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import arms, finish, titled_grid
from studies.latency_under_load import course
from studies.latency_under_load.course import PHASES

PANEL_PX, BETWEEN_PX, EDGES_PX = 210, 70, 150
TITLES = {
    "forward": "From clients to servers",
    "reverse": "From servers to clients",
    "rtt": "Round-trip times",
}
WAYS = ("forward", "reverse")
WHEN = {"idle": "before", "loaded": "under load", "after": "after"}
MILLI, MEGA = 1e3, 1e-6
POINTS = np.linspace(0, 1, 400)  # of a distribution
WHISKERS = (0.01, 0.25, 0.5, 0.75, 0.99)


def _courses(rows: pd.DataFrame) -> Iterator[tuple[str, str, list[course.Course]]]:
    """Yield each arm with its role and the courses of its valid measurements, in drawing order."""
    ok = rows[rows["status"].eq("ok") & rows["artefact"].notna()]
    for arm, role in arms(ok):
        own = ok[ok["arm"].eq(arm)]
        yield arm, role, [course.read(*one) for one in zip(own["folder"], own["artefact"], strict=True)]


def over_time(rows: pd.DataFrame) -> go.Figure:
    """Draw the throughput of each direction above the round-trip times, on one time axis, a colour for each arm.

    Values of one interval of all rounds have one point: the mean of the throughput, and the median of the round-trip
    times. rows: those of one load, with the courses in their folders.
    """
    read = list(_courses(rows))
    tables = [(arm, role, _throughput(own), _probes(own)) for arm, role, own in read]
    ways = [way for way in WAYS if rows["direction"].isin([way, "both"]).any()]
    places = {name: row for row, name in enumerate([*ways, "rtt"], 1)}
    height = PANEL_PX * len(places) + BETWEEN_PX * (len(places) - 1)
    figure = titled_grid(
        {(row, 1): TITLES[name] for name, row in places.items()}, rows=len(places), cols=1, shared_xaxes=True,
        vertical_spacing=BETWEEN_PX / height if len(places) > 1 else 0,
    )  # fmt: skip
    for arm, role, throughput, probes in tables:
        style = theme.arm_style(arm, role)
        line = {"color": style.color, "dash": style.dash, "width": 1.5}
        for name, values in [
            *((way, throughput[f"{way}_bps"] * MEGA) for way in ways),
            ("rtt", probes * MILLI),
        ]:
            figure.add_scatter(
                x=values.index, y=values, mode="lines", name=arm, legendgroup=arm, line=line, showlegend=True,
                row=places[name], col=1,
            )  # fmt: skip
            figure.update_yaxes(title_text="Mbit/s", rangemode="tozero", row=places[name], col=1)
    figure.update_yaxes(type="log", title_text="ms", rangemode="normal", row=places["rtt"], col=1)
    figure.update_xaxes(title_text="seconds since the load began", row=len(places), col=1)
    for begin, end in [one.phases["loaded"] for _, _, own in read for one in own][:1]:
        figure.add_vrect(x0=begin, x1=end, layer="below", line_width=0, **theme.BAND)
    figure.update_layout(height=height + EDGES_PX, margin={"b": 0}, legend=theme.legend_below())
    subtitle = (
        "of each interval the mean throughput at the receiving interfaces, and the median round-trip time, over all"
        " rounds; shaded: the time that counts as loaded"
    )
    return finish(figure, rows, "Under load, over time", subtitle)


def _throughput(courses: list[course.Course]) -> pd.DataFrame:
    """Return the mean rates of each interval, by its end in seconds since the load began."""
    times = [one.time_s for each in courses for one in each.intervals]
    values = [(one.forward_bps, one.reverse_bps) for each in courses for one in each.intervals]
    table = pd.DataFrame(values, columns=["forward_bps", "reverse_bps"], dtype=float)
    return table.groupby(_bins(times, _interval_s(courses))).mean()


def _probes(courses: list[course.Course]) -> pd.Series[float]:
    """Return the median round-trip time of each interval, by its end."""
    times, values = zip(*(one for each in courses for one in each.probes), strict=True)
    return pd.Series(values, dtype=float).groupby(_bins(times, _interval_s(courses))).median()


def _bins(times: list[float] | tuple[float, ...], interval_s: float) -> np.ndarray:
    return np.round(np.ceil(np.asarray(times) / interval_s) * interval_s, 6)


def _interval_s(courses: list[course.Course]) -> float:
    """Return the usual length of an interval, in whole tenths of a second."""
    steps = [step for each in courses for step in np.diff([one.time_s for one in each.intervals])]
    return max(0.1, round(float(np.median(steps)), 1)) if steps else 0.1


def _phase(courses: list[course.Course], phase: str) -> np.ndarray:
    """Return the round-trip times of all answered probes of a phase, in seconds."""
    times = [
        rtt_s
        for one in courses
        for sent_s, rtt_s in one.probes
        if rtt_s is not None and one.phases[phase][0] <= sent_s < one.phases[phase][1]
    ]
    return np.array(times, dtype=float)


def latency_cdf(rows: pd.DataFrame) -> go.Figure:
    """Draw the share of round trips that are not slower, under load (lines) and before it (thin), for each arm."""
    figure = go.Figure()
    for arm, role, own in _courses(rows):
        style = theme.arm_style(arm, role)
        for phase, width in (("loaded", 2.5), ("idle", 1)):
            if len(times := _phase(own, phase)):
                figure.add_scatter(
                    x=np.quantile(times, POINTS) * MILLI, y=POINTS, mode="lines", name=arm, legendgroup=arm,
                    showlegend=phase == "loaded", line={"color": style.color, "dash": style.dash, "width": width},
                )  # fmt: skip
    figure.update_xaxes(type="log", title_text="round-trip time, ms")
    figure.update_yaxes(title_text="share of round trips", range=[0, 1.01])
    figure.update_layout(height=420, margin={"b": 50}, legend=theme.legend_below())
    return finish(
        figure, rows, "Round-trip times under load", "wide lines: under load; thin lines: before it"
    )


def latency_box(rows: pd.DataFrame) -> go.Figure:
    """Draw the quartiles of the round-trip times of each arm before, during and after the load."""
    figure = go.Figure()
    for arm, role, own in _courses(rows):
        style = theme.arm_style(arm, role)
        there = {phase: times for phase in PHASES if len(times := _phase(own, phase))}
        low, first, middle, third, high = (
            [float(np.quantile(times, share)) * MILLI for times in there.values()] for share in WHISKERS
        )
        figure.add_box(
            x=[WHEN[phase] for phase in there], lowerfence=low, q1=first, median=middle, q3=third, upperfence=high,
            name=arm, line={"color": style.color, "width": 1.5},
        )  # fmt: skip
    figure.update_yaxes(type="log", title_text="round-trip time, ms")
    figure.update_layout(height=420, margin={"b": 50}, boxmode="group", legend=theme.legend_below())
    subtitle = "boxes: quartiles and median; whiskers: from the 1st to the 99th percentile, all rounds"
    return finish(figure, rows, "Round-trip times before, under and after the load", subtitle)
