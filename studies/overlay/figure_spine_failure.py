"""Loss while a spine is down: every probe at its send time, by kind of routes and kind of failure."""

import math
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import titled_grid
from labkit.analysis.load import hosts
from labkit.common.units import si
from studies.overlay.notes import WRONG, finish, ok, routes_order

FAILURES = ("carrier", "silent")
PANEL_PX, BETWEEN_PX, TOP_PX, AXIS_PX = 195, 58, 112, 52
LOST, WORDS = 0.6, 1.9  # of lost probes and spine names: decades above the longest round-trip time
SYSCTL = "ignore_routes_with_linkdown"
PHASES = ("before", "during", "after")
DEVIATION = "not as expected"


def failure(df: pd.DataFrame) -> go.Figure:
    """Draw every probe at its send time: a dot at its round-trip time (log), or × above if it was lost.

    The shaded time is that of the failure. Above the probes are the spines that carried them before, during and after
    it. There is a column for each kind of routes and a row for each kind of failure, with the outage in words. `df`:
    rows of the part failure. The rows of several hosts are below each other.
    """
    there = modes(df)
    rows = list(dict.fromkeys((host, how) for host, how, _ in there))
    columns = list(dict.fromkeys(str(one["routes"]) for _, _, one in there)) or [""]
    columns.sort(key=routes_order)
    at = {
        (rows.index((host, how)) + 1, columns.index(str(one["routes"])) + 1): one for host, how, one in there
    }
    several = len({host for host, _ in rows}) > 1
    titles = {
        (row, column): _title(one, rows[row - 1][0] if several else "") for (row, column), one in at.items()
    }
    # Room for the lines of the titles beyond the usual two.
    more_px = theme.NOTE_LINE_PX * max((title.count("<br>") - 1 for title in titles.values()), default=0)
    between_px, top_px = BETWEEN_PX + more_px, TOP_PX + more_px
    high = PANEL_PX * max(len(rows), 1) - BETWEEN_PX + more_px * max(len(rows) - 1, 0)
    spacing = {"horizontal_spacing": 0.03, "vertical_spacing": between_px / high if len(rows) > 1 else 0}
    figure = titled_grid(titles, rows=max(len(rows), 1), cols=len(columns), shared_yaxes="all", **spacing)
    lowest, highest = _range([one for _, _, one in there])
    for (row, column), one in at.items():
        _panel(figure, one, highest, {"row": row, "col": column})
    _axes(figure, lowest, highest, list(at))
    figure.update_layout(height=high + top_px + AXIS_PX, margin={"t": top_px, "b": AXIS_PX}, showlegend=False)
    subtitle = (
        "a dot: an answered probe; ×: a lost one; shaded: the spine is down;"
        " above: the spine that carries the flow"
    )
    return finish(figure, df, "A spine fails under a flow", subtitle, _notes(df), below_px=AXIS_PX)


def failure_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each kind of routes and kind of failure.

    Columns: routes, failure, the failed spine, linkdown ignored (the sysctl), sent, lost, outage (s), the spines that
    carried requests before, during and after the failure, those expected during the failure, and the deviation in
    words (only if there is one).
    """
    lines: list[dict[str, Any]] = []
    for host, _, one in modes(df):
        at = {"host": host, "routes": one["routes"], "failure": one["failure"], "failed": one["failed"]}
        at["linkdown ignored"] = _notices(one)
        counts = {"sent": int(one["sent_count"]), "lost": _lost(one), "outage, s": one["outage_s"]}
        carried: dict[str, Any] = {phase: _spines(one.get(f"path_{phase}")) for phase in PHASES}
        expected = one.get("expected_during")
        carried["expected during"] = " or ".join(expected) or "none" if isinstance(expected, list) else None
        lines.append(at | counts | carried | {DEVIATION: deviation(one)})
    table = pd.DataFrame(lines)
    if len(table) and not table[DEVIATION].any():
        table = table.drop(columns=DEVIATION)
    return table.drop(columns="host") if len(table) and table["host"].nunique() == 1 else table


def deviation(one: dict[Any, Any]) -> str:
    """Return how the spines that carried packets during the failure differ from the expected ones, or ""."""
    expected = one.get("expected_during")
    if not isinstance(expected, list):
        return ""
    path = one.get("path_during")
    used = {str(spine) for spine in path if spine is not None} if isinstance(path, list | tuple) else set()
    if used <= set(expected) and bool(used) == bool(expected):
        return ""
    return f"{WRONG} {' and '.join(sorted(used)) or 'no spine'} instead of {' or '.join(expected) or 'none'}"


def modes(df: pd.DataFrame) -> list[tuple[str, str, dict[Any, Any]]]:
    """Return host, failure in words, and the last row for each kind of routes and failure, in order."""
    result = {}
    for number, (host, rows) in enumerate(hosts(ok(df))):
        for one in rows.to_dict("records"):
            rank = FAILURES.index(one["failure"]) if one["failure"] in FAILURES else len(FAILURES)
            order = (number, rank, one["failure"], _notices(one), routes_order(one["routes"]))
            how = str(one["failure"]) + ", linkdown ignored" * _notices(one)
            result[order] = (host, how, one)
    return [result[order] for order in sorted(result)]


def _notices(one: dict[Any, Any]) -> bool:
    return one.get("ignores_linkdown") is True


def _lost(one: dict[Any, Any]) -> int:
    return int(one["sent_count"] - one["received_count"])


def _spines(path: Any) -> str:
    """Return the spines that carried requests and answers, once if they are the same."""
    if not isinstance(path, list | tuple) or not path:
        return "none"
    return "/".join(dict.fromkeys(str(spine) if spine is not None else "none" for spine in path))


def _title(one: dict[Any, Any], host: str) -> str:
    """Return routes, kind of failure, the outage in words, and the host if there are several."""
    lost = f"{_lost(one)} of {one['sent_count']:.0f} lost"
    gap = one["outage_s"] > one["interval_s"]
    lines = ["linkdown ignored"] * _notices(one)
    lines += [f"no answer for {si(one['outage_s'], 's')}", lost] if gap else [f"no outage, {lost}"]
    lines += filter(None, [deviation(one), host])
    head = theme.plain(f"{one['routes']}: {one['failure']}")
    return "<br>".join([f"<b>{head}</b>", *map(theme.plain, lines)])


def _range(rows: list[dict[Any, Any]]) -> tuple[float, float]:
    """Return the decimal exponents of the shortest and the longest round-trip time."""
    times = [rtt for one in rows for _, rtt in one["probes"] if rtt is not None and rtt > 0] or [1e-4, 1e-2]
    return math.floor(math.log10(min(times)) * 10) / 10, math.log10(max(times))


def _panel(figure: go.Figure, one: dict[Any, Any], highest: float, place: dict[str, int]) -> None:
    top = 10 ** (highest + LOST)
    sent = [at for at, rtt in one["probes"] if rtt is None]
    answered = [(at, rtt) for at, rtt in one["probes"] if rtt is not None]
    common: dict[str, Any] = {"mode": "markers", "hoverinfo": "text", **place}
    if answered:
        x, y = zip(*answered, strict=True)
        texts = [f"sent at {at:.2f} s, answered after {si(rtt, 's')}" for at, rtt in answered]
        figure.add_scatter(x=x, y=y, marker=theme.ANSWERED, hovertext=texts, **common)
    if sent:
        texts = [f"sent at {at:.2f} s, lost" for at in sent]
        figure.add_scatter(x=sent, y=[top] * len(sent), marker=theme.LOST, hovertext=texts, **common)
    down, up = one["down_s"], one["up_s"]
    figure.add_shape(type="rect", x0=down, x1=up, yref="y domain", y0=0, y1=1, **theme.BAND, **place)
    last = max((at for at, _ in one["probes"]), default=up)
    for phase, x in zip(PHASES, (down / 2, (down + up) / 2, (up + last) / 2), strict=True):
        words = {"text": theme.plain(_spines(one.get(f"path_{phase}"))), "font": {"size": theme.SMALL_PX}}
        at = {"yref": "y domain", "y": 1, "yanchor": "top", "showarrow": False}
        figure.add_annotation(x=x, **at, **words, **place)


def _axes(figure: go.Figure, lowest: float, highest: float, places: list[tuple[int, int]]) -> None:
    """Set the same axes for all plots, with labels at the left and below the last plot."""
    exponents = range(math.ceil(lowest), math.floor(highest) + 1)
    shown = list(exponents)[:: max(1, math.ceil(len(exponents) / 3))]
    ticks: dict[str, Any] = {"tickvals": [10.0**one for one in shown] + [10 ** (highest + LOST)]}
    ticks["ticktext"] = [si(10.0**one, "s") for one in shown] + ["lost"]
    figure.update_yaxes(type="log", range=[lowest - 0.2, highest + WORDS], **ticks)
    last = max((row for row, _ in places), default=1)
    figure.update_xaxes(matches="x", rangemode="tozero")
    for column in {column for _, column in places}:
        below = max(row for row, own in places if own == column)
        figure.update_xaxes(title_text="seconds since the first probe", row=below, col=column)
    for row in range(1, last):
        figure.update_xaxes(showticklabels=False, row=row)


def _notes(df: pd.DataFrame) -> list[str]:
    lines = []
    there = [one for _, _, one in modes(df)]
    if any(one["failure"] == "carrier" for one in there):
        lines.append(
            "carrier: the spine's interfaces go down. silent: it stops forwarding, and no link shows it."
        )
    if any(map(_notices, there)):
        lines.append(f"linkdown ignored: the sysctl {SYSCTL} makes the leaves ignore routes over dead links.")
    return lines
