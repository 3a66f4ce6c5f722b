"""Reachability between containers and the paths of packets, expected and measured."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import Marks
from labkit.analysis.load import hosts
from labkit.common import units
from studies.overlay.notes import WRONG, finish, micro, ok, path_lists, path_text, routes_order

CELL_PX, TOP_PX, BOTTOM_PX, LEFT_PX = 56, 60, 8, 122
# Above the middle of the first row, in cells: for column heads and for a host's name.
BETWEEN, NAME = 1.45, 0.4
ENDS = {"source": "source_address", "target": "target_address"}
NARROW = 6  # containers: of more, cells have no TTL and columns no address
TENANTS = {
    "bridges 1, 3": ("cs1", "cs2", "cs5"), "bridge 2": ("cs3", "cs4"), "X, Y": ("csX", "csY"),
    "X1, Y1": ("csX1", "csY1"), "A, B": ("csA", "csB"),
}  # fmt: skip
TITLES = {
    "reachability": "Who reaches whom, by which path",
    "tenants": "Which tenants reach which, by which path",
}


def matrix(df: pd.DataFrame) -> go.Figure:
    """Draw a matrix of sources (rows) by targets (columns) for each host and kind of routes.

    A cell shows answered/sent, the path's spine, the TTL and the median round-trip time. Losses and unexpected paths or
    TTLs are highlighted with a border, a mark and a text. Hover texts show the expected and measured paths. `df`: rows
    of the part reachability. Of several runs of one host the last is drawn.
    """
    figure, y, ticks, wide = go.Figure(), 0.0, dict[float, str](), 1
    marks, points = Marks(figure), list[dict[str, Any]]()
    for host, routes, rows in matrices(df):
        order = list(dict.fromkeys([*rows["source"], *rows["target"]]))
        addresses = {one[end]: one[of] for one in rows.to_dict("records") for end, of in ENDS.items()}
        y += _head(marks, order, addresses, y, (host, routes))
        wide = max(wide, len(order))
        for one in rows.to_dict("records"):
            at = order.index(one["target"]), y + order.index(one["source"])
            points.append(_cell(marks, one, at, is_narrow=len(order) > NARROW))
        ticks |= {y + at: _end(node, addresses) for at, node in enumerate(order)}
        y += len(order)
    marks.add()
    figure.add_traces(points)
    _axes(figure, ticks, wide, y)
    bad = sum(bool(faults(one)) for one in ok(df).to_dict("records"))
    ttl = " TTL," * (wide <= NARROW)
    subtitle = f"from the row's container to the column's: answered/sent, spine,{ttl} round-trip time p50"
    subtitle += f"; {WRONG}: not as expected ({bad})" if bad else "; all as expected" if len(ok(df)) else ""
    title = TITLES.get(str(df["part"].iloc[0]) if len(df) else "", TITLES["reachability"])
    return finish(figure, df, title, subtitle, _notes(df), below_px=BOTTOM_PX)


def tenants_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return how many pairs of containers of two tenants reach each other, a line for each tenant and kind of routes.

    A mark says that a pair is not as the description promises. df: rows of the part tenants.
    """
    of = {name: tenant for tenant, names in TENANTS.items() for name in names}
    lines = []
    for _, routes, rows in matrices(df):
        for source in TENANTS:
            line = {"routes": routes, "from": source}
            for target in TENANTS:
                own = rows[rows["source"].map(of).eq(source) & rows["target"].map(of).eq(target)]
                reached = own["received_count"].eq(own["sent_count"]).sum()
                wrong = "" if own["as_expected"].astype(bool).all() else f" {WRONG}"
                line[f"to {target}"] = f"{reached} of {len(own)}{wrong}"
            lines.append(line)
    return pd.DataFrame(lines)


def matrix_table(df: pd.DataFrame) -> pd.DataFrame:
    """Return the deviations from the expectation, a row for each pair of containers that has one.

    Columns: routes, from, to, answered, TTL, expected TTL, path, expected paths, median round-trip time (µs), and the
    deviation in words.
    """
    lines = []
    for one in [one for *_, rows in matrices(df) for one in rows.to_dict("records")]:
        if wrong := faults(one):
            expected = " or ".join(map(path_text, path_lists(one["expected_paths"])))
            rtt = None if pd.isna(one["rtt_p50_s"]) else one["rtt_p50_s"] * 1e6
            ends = (one.get("routes"), one["source"], one["target"], _answered(one))
            ttls = (_ttl(one["ttl"]), _ttl(one["expected_ttl"]))
            lines.append((*ends, *ttls, path_text(one["path"]), expected, rtt, ", ".join(wrong)))
    columns = ["routes", "from", "to", "answered", "TTL", "expected TTL", "path", "expected path"]
    return pd.DataFrame(lines, columns=[*columns, "p50, µs", "not as expected"])


def faults(one: dict[Any, Any]) -> list[str]:
    """Return the deviations between one container and another: losses, the path, the TTL."""
    if one["as_expected"]:
        return []  # also if there was no answer and no path is expected
    lost = int(one["sent_count"] - one["received_count"])
    lines = [f"{lost} lost"] * (lost > 0)
    if one["received_count"] > 0 and list(one["path"] or []) not in path_lists(one["expected_paths"]):
        lines.append("another path")
    seen, expected = _ttl(one["ttl"]), _ttl(one["expected_ttl"])
    lines += [f"TTL {seen}, not {expected}"] * (
        seen is not None and expected is not None and seen != expected
    )
    return lines or ["not as expected"]


def _ttl(value: Any) -> int | None:
    return None if pd.isna(value) else int(value)


def _answered(one: dict[Any, Any]) -> str:
    return f"{one['received_count']:.0f}/{one['sent_count']:.0f}"


def _end(node: str, addresses: dict[str, str]) -> str:
    return f"<b>{theme.plain(node)}</b><br>{theme.plain(addresses.get(node) or '')}"


def matrices(df: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Return for each matrix the host (if there are several), the kind of routes, and a row per pair of containers."""
    there, result = hosts(ok(df)), []
    for host, rows in there:
        for routes in sorted(rows["routes"].unique(), key=routes_order):
            own = rows[rows["routes"].eq(routes)].drop_duplicates(["source", "target"], keep="last")
            result.append((host if len(there) > 1 else "", str(routes), own))
    return result


def _head(
    marks: Marks, order: list[str], addresses: dict[str, str], y: float, names: tuple[str, str]
) -> float:
    """Draw the head of a matrix: the host (on its own line), the kind of routes, and the targets above their columns.

    Returns the height of the head, to the middle of the first row of cells.
    """
    host, routes = names
    high = BETWEEN + NAME * bool(host)
    corner = {"xref": "x domain", "x": 0, "xanchor": "left", "xshift": 12 - LEFT_PX, "showarrow": False}
    bottom = {"y": y + high - 0.52, "yanchor": "bottom"}
    marks.annotation(text=f"<b>{theme.plain(routes)}</b><br>routes", align="left", **corner, **bottom)
    if host:
        marks.annotation(text=f"<b>{theme.plain(host)}</b>", y=y + 0.1, yanchor="top", **corner)
    for x, node in enumerate(order):
        text = _end(node, addresses if len(order) <= NARROW else {}).removesuffix("<br>")
        marks.annotation(text=text, x=x, showarrow=False, **bottom)
    return high


def _cell(marks: Marks, one: dict[Any, Any], at: tuple[int, float], *, is_narrow: bool) -> dict[str, Any]:
    """Draw a cell, and return the trace of an invisible point that carries its hover text."""
    wrong, (x, y) = faults(one), at
    corners = {"x0": x - 0.48, "x1": x + 0.48, "y0": y - 0.46, "y1": y + 0.46}
    marks.shape(type="rect", **corners, **theme.cell(bool(wrong)))
    rtt = "–" if pd.isna(one["rtt_p50_s"]) else f"{micro(one['rtt_p50_s'])} µs"
    spine = [theme.plain(one["spine"])] if isinstance(one["spine"], str) else []
    ttl = [f"TTL {_ttl(one['ttl'])}"] if _ttl(one["ttl"]) is not None else []
    head = f"<b>{WRONG} {', '.join(wrong)}</b>" if wrong else f"<b>{_answered(one)}</b> · {rtt}"
    lines = [head, " · ".join([*spine, *ttl])] + [f"{_answered(one)} · {rtt}"] * bool(wrong)
    if is_narrow and not wrong:
        took = units.si(one["rtt_p50_s"], "s") if ttl else ""
        lines = [f"<b>{_answered(one)}</b>", took, *(name.replace(" then ", ", ") for name in spine)]
    marks.annotation(
        text="<br>".join(filter(None, lines)), x=x, y=y, showarrow=False, font={"size": theme.SMALL_PX}
    )
    point = {"x": [x], "y": [y], "mode": "markers", "marker": {"size": 40, "opacity": 0}, "showlegend": False}
    return point | {"hoverinfo": "text", "hovertext": [_hover(one, wrong)]}


def _hover(one: dict[Any, Any], wrong: list[str]) -> str:
    expected = [path_text(path) for path in path_lists(one["expected_paths"])] or ["no path"]
    head = [f"{one['source']} to {one['target']}: {_answered(one)} answered", *wrong]
    ttls = [
        f"TTL {one[name]:.0f}" if _ttl(one[name]) is not None else "no TTL"
        for name in ("ttl", "expected_ttl")
    ]
    lines = ["; ".join(head), f"seen: {path_text(one['path'])}, {ttls[0]}"]
    lines += [f"expected: {' or '.join(expected)}, {ttls[1]}"]
    times = [one[name] for name in ("rtt_min_s", "rtt_p50_s", "rtt_max_s")]
    if not any(pd.isna(time) for time in times):
        lines.append(f"round-trip time: {' / '.join(map(micro, times))} µs (min, p50, max)")
    return "<br>".join(theme.plain(line) for line in lines)


def _axes(figure: go.Figure, ticks: dict[float, str], wide: int, y: float) -> None:
    plain: dict[str, Any] = {"showgrid": False, "showline": False, "ticks": "", "automargin": False}
    figure.update_xaxes(range=[-0.5, wide - 0.5], showticklabels=False, **plain)
    figure.update_yaxes(
        range=[max(y, 1) - 0.5, 0.1], tickvals=list(ticks), ticktext=list(ticks.values()), **plain
    )
    figure.update_yaxes(ticklabelstandoff=8)
    margin = {"l": LEFT_PX, "r": 20, "t": TOP_PX, "b": BOTTOM_PX}
    figure.update_layout(height=max(CELL_PX * y, 80) + TOP_PX + BOTTOM_PX, margin=margin, showlegend=False)


def _notes(df: pd.DataFrame) -> list[str]:
    left_out = len(ok(df)) - sum(len(rows) for *_, rows in matrices(df))
    return [f"{left_out} rows of earlier runs of the same host are not drawn."] * bool(left_out)
