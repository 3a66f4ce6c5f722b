"""Throughput and round-trip times over time, and the distribution of round-trip times in each phase."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, load, theme
from labkit.analysis.figures.distribution import boxes, cdf
from labkit.analysis.figures.over_time import Curve, stacked
from labkit.analysis.figures.panels import arms, finish
from studies.latency_under_load import course
from studies.latency_under_load.course import PHASES

TITLES = {
    "forward": "From clients to servers",
    "reverse": "From servers to clients",
    "rtt": "Round-trip times",
}
WAYS = ("forward", "reverse")
WHEN = {"idle": "before", "loaded": "under load", "after": "after"}
MILLI = 1e-3


def _courses(rows: pd.DataFrame) -> Iterator[tuple[str, str, list[course.Course]]]:
    """Yield each arm with its role and the courses of its measurements, in drawing order."""
    for arm, role in arms(rows):
        own = rows[rows["arm"].eq(arm)]
        yield arm, role, [course.read(*one) for one in zip(own["folder"], own["artefact"], strict=True)]


def over_time(rows: pd.DataFrame) -> go.Figure:
    """Draw the throughput of each direction above the round-trip times, on one time axis, a colour for each arm.

    Values of one interval of all rounds have one point: the mean of the throughput, and the median of the round-trip
    times. Several loads are below each other. rows: those of runs whose folders have the courses.
    """
    loads = _loads(rows)
    names = (*(way for way in WAYS if rows["direction"].isin([way, "both"]).any()), "rtt")
    panels = [
        (f"{TITLES[name]}{of}", "latency" if name == "rtt" else "throughput")
        for of, _ in loads
        for name in names
    ]
    lines: list[Curve] = []
    phases: dict[int, dict[str, tuple[float, float]]] = {}  # by the load's first plot
    for first, (_, own) in enumerate(loads):
        for arm, role, courses in _courses(own):
            style = theme.arm_style(arm, role)
            line = {"color": style.color, "dash": style.dash, "width": 1.5}
            throughput, rtt = _throughput(courses), _probes(courses)
            for row, name in enumerate(names, first * len(names) + 1):
                lines.append(Curve(row, arm, rtt if name == "rtt" else throughput[f"{name}_bps"], line))
            for one in courses[:1]:
                phases.setdefault(first, one.phases)
    figure = figures.over_time(panels, lines, "seconds since the load began")
    for first, one_load in phases.items():
        (begin, _), (since, until), (_, end) = (one_load[phase] for phase in PHASES)
        for row in range(first * len(names) + 1, (first + 1) * len(names) + 1):
            figure.add_vrect(x0=since, x1=until, layer="below", line_width=0, row=row, col=1, **theme.BAND)
            figure.update_xaxes(range=[begin, end], row=row, col=1)
    subtitle = (
        "of each interval the mean throughput at the receiving interfaces, and the median round-trip time, over all"
        " rounds; shaded: the time that counts as loaded"
    )
    return finish(figure, rows, "Under load, over time", subtitle)


def _loads(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the valid rows of each load, with what distinguishes it from the others, for a title."""
    found = list(load.groups(rows[rows["status"].eq("ok") & rows["artefact"].notna()]))
    words = [load.group_text(key).split(", ") for key, _ in found]
    own = [[word for word in each if not all(word in other for other in words)] for each in words]
    return [
        ("".join(f" · {word}" for word in each), table) for each, (_, table) in zip(own, found, strict=True)
    ]


def _throughput(courses: list[course.Course]) -> pd.DataFrame:
    """Return the mean rates of each interval, by its end in seconds since the load began.

    A reading is a little late, so the middle of an interval says where it belongs.
    """
    half_s = _interval_s(courses) / 2
    times = [one.time_s - half_s for each in courses for one in each.intervals]
    values = [(one.forward_bps, one.reverse_bps) for each in courses for one in each.intervals]
    table = pd.DataFrame(values, columns=["forward_bps", "reverse_bps"], dtype=float)
    return table.groupby(_bins(times, _interval_s(courses))).mean()


def _probes(courses: list[course.Course]) -> pd.Series[float]:
    """Return the median round-trip time of each interval, by its end; NaN where it is a lost probe."""
    times, values = zip(*(one for each in courses for one in each.probes), strict=True)
    slowest = pd.Series(values, dtype=float).fillna(np.inf)
    return slowest.groupby(_bins(times, _interval_s(courses))).median().replace(np.inf, np.nan)


def _bins(times: list[float] | tuple[float, ...], interval_s: float) -> np.ndarray:
    return np.round(np.ceil(np.asarray(times) / interval_s) * interval_s, 6)


def _interval_s(courses: list[course.Course]) -> float:
    """Return the usual length of an interval, in whole tenths of a second."""
    steps = [step for each in courses for step in np.diff([one.time_s for one in each.intervals])]
    return max(0.1, round(float(np.median(steps)), 1)) if steps else 0.1


def _phase(courses: list[course.Course], phase: str) -> tuple[pd.Series[int], int]:
    """Return how often each round-trip time was measured in a phase, in seconds, and how many probes were lost."""
    sent = [
        rtt_s
        for one in courses
        for sent_s, rtt_s in one.probes
        if one.phases[phase][0] <= sent_s < one.phases[phase][1]
    ]
    counts = pd.Series(sent, dtype=float).value_counts()
    return counts, len(sent) - counts.sum()


def latency_cdf(rows: pd.DataFrame) -> go.Figure:
    """Draw the share of round trips that are not slower, under load (wide) and before it (thin), for each arm."""
    loads = _loads(rows)
    figure = stacked([TITLES["rtt"] + of for of, _ in loads])
    for row, (_, own) in enumerate(loads, 1):
        for arm, role, courses in _courses(own):
            style, common = theme.arm_style(arm, role), {"name": arm, "legendgroup": arm}
            for phase, width in (("loaded", 2.5), ("idle", 1)):
                counts, lost = _phase(courses, phase)
                if len(counts):
                    line = {"color": style.color, "dash": style.dash, "width": width}
                    shown = phase == "loaded"
                    trace = cdf(counts, lost, MILLI, line=line, showlegend=shown, **common)
                    figure.add_trace(trace, row=row, col=1)
    figure.update_xaxes(type="log", dtick=1, title_text="ms")
    figure.update_yaxes(title_text="share of probes", range=[0, 1.01])
    subtitle = "wide lines: under load; thin lines: before it"
    return finish(figure, rows, "Round-trip times under load", subtitle)


def latency_box(rows: pd.DataFrame) -> go.Figure:
    """Draw the quartiles of the round-trip times of each arm before, during and after the load."""
    loads = _loads(rows)
    figure = stacked([TITLES["rtt"] + of for of, _ in loads])
    for row, (_, own) in enumerate(loads, 1):
        for arm, role, courses in _courses(own):
            there = {WHEN[phase]: counts for phase in PHASES if len(counts := _phase(courses, phase)[0])}
            trace = boxes(
                there, MILLI, name=arm, legendgroup=arm, offsetgroup=arm, showlegend=True,
                line={"color": theme.arm_style(arm, role).color, "width": 1.5},
            )  # fmt: skip
            figure.add_trace(trace, row=row, col=1)
    figure.update_yaxes(type="log", dtick=1, title_text="ms")
    figure.update_layout(boxmode="group")
    subtitle = "answered probes: quartiles and median; whiskers: the 1st and the 99th percentile, all rounds"
    return finish(figure, rows, "Round-trip times before, under and after the load", subtitle)
