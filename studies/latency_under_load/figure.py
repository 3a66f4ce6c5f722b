"""Throughput and round-trip times over time, and the distribution of round-trip times in each phase."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import load, theme
from labkit.analysis.figures.panels import arms, finish, titled_grid
from studies.latency_under_load import course
from studies.latency_under_load.course import PHASES

PANEL_PX, BETWEEN_PX, EDGES_PX = 210, 80, 150
TITLE_LETTERS = 88
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
    ways = [way for way in WAYS if rows["direction"].isin([way, "both"]).any()]
    figure, places = _panels([(f"{TITLES[name]}{of}", name) for of, _ in loads for name in (*ways, "rtt")])
    for number, (_, own) in enumerate(loads):
        at = {name: number * (len(ways) + 1) + row for row, name in enumerate((*ways, "rtt"), 1)}
        read = list(_courses(own))
        for arm, role, courses in read:
            style = theme.arm_style(arm, role)
            line = {"color": style.color, "dash": style.dash, "width": 1.5}
            throughput = _throughput(courses) * MEGA
            series = {**{way: throughput[f"{way}_bps"] for way in ways}, "rtt": _probes(courses) * MILLI}
            for name, values in series.items():
                figure.add_scatter(
                    x=values.index, y=values, mode="lines", name=arm, legendgroup=arm, line=line, showlegend=True,
                    row=at[name], col=1,
                )  # fmt: skip
        for one in [one for _, _, courses in read for one in courses][:1]:
            (begin, _), (since, until), (_, end) = (one.phases[phase] for phase in PHASES)
            for row in at.values():
                figure.add_vrect(
                    x0=since, x1=until, layer="below", line_width=0, row=row, col=1, **theme.BAND
                )
                figure.update_xaxes(range=[begin, end], row=row, col=1)
    for row, name in enumerate(places, 1):
        words = (
            {"type": "log", "title_text": "ms"}
            if name == "rtt"
            else {"title_text": "Mbit/s", "rangemode": "tozero"}
        )
        figure.update_yaxes(**words, row=row, col=1)
        if name == "rtt":
            figure.update_xaxes(title_text="seconds since the load began", row=row, col=1)
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


def _panels(titled: list[tuple[str, str]]) -> tuple[go.Figure, list[str]]:
    """Return an empty figure with a plot below the other for each title, and what each shows."""
    count = max(len(titled), 1)
    height = PANEL_PX * count + BETWEEN_PX * (count - 1)
    titles = {(row, 1): theme.folded(title, TITLE_LETTERS) for row, (title, _) in enumerate(titled, 1)}
    spacing = BETWEEN_PX / height if count > 1 else 0
    figure = titled_grid(titles, rows=count, cols=1, vertical_spacing=spacing)
    figure.update_layout(height=height + EDGES_PX, margin={"b": 0}, legend=theme.legend_below())
    return figure, [what for _, what in titled]


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


def _answered(courses: list[course.Course], phase: str) -> float:
    """Return the share of the probes of a phase that got an answer."""
    answered = [
        rtt_s is not None
        for one in courses
        for sent_s, rtt_s in one.probes
        if one.phases[phase][0] <= sent_s < one.phases[phase][1]
    ]
    return float(np.mean(answered)) if answered else 0.0


def latency_cdf(rows: pd.DataFrame) -> go.Figure:
    """Draw the share of round trips that are not slower, under load (wide) and before it (thin), for each arm."""
    loads = _loads(rows)
    figure, _ = _panels([(TITLES["rtt"] + of, "") for of, _ in loads])
    for row, (_, own) in enumerate(loads, 1):
        for arm, role, courses in _courses(own):
            style = theme.arm_style(arm, role)
            for phase, width in (("loaded", 2.5), ("idle", 1)):
                if len(times := _phase(courses, phase)):
                    figure.add_scatter(
                        x=np.quantile(times, POINTS) * MILLI, y=POINTS * _answered(courses, phase),
                        mode="lines", name=arm, legendgroup=arm, row=row, col=1, showlegend=phase == "loaded",
                        line={"color": style.color, "dash": style.dash, "width": width},
                    )  # fmt: skip
    figure.update_xaxes(type="log", dtick=1, title_text="ms")
    figure.update_yaxes(title_text="share of probes", range=[0, 1.01])
    return finish(
        figure, rows, "Round-trip times under load", "wide lines: under load; thin lines: before it"
    )


def latency_box(rows: pd.DataFrame) -> go.Figure:
    """Draw the quartiles of the round-trip times of each arm before, during and after the load."""
    loads = _loads(rows)
    figure, _ = _panels([(TITLES["rtt"] + of, "") for of, _ in loads])
    for row, (_, own) in enumerate(loads, 1):
        for arm, role, courses in _courses(own):
            there = {phase: times for phase in PHASES if len(times := _phase(courses, phase))}
            low, first, middle, third, high = (
                [float(np.quantile(times, share)) * MILLI for times in there.values()] for share in WHISKERS
            )
            figure.add_box(
                x=[WHEN[phase] for phase in there], lowerfence=low, q1=first, median=middle, q3=third, upperfence=high,
                name=arm, legendgroup=arm, offsetgroup=arm, showlegend=True, row=row, col=1,
                line={"color": theme.arm_style(arm, role).color, "width": 1.5},
            )  # fmt: skip
    figure.update_yaxes(type="log", dtick=1, title_text="ms")
    figure.update_layout(boxmode="group")
    subtitle = "boxes: quartiles and median; whiskers: from the 1st to the 99th percentile, all rounds"
    return finish(figure, rows, "Round-trip times before, under and after the load", subtitle)
