"""Draw a state as a plotly figure: namespaces are boxes with the boxes of their interfaces, and each way of joining has
its own kind of line."""

from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.drawing import graph
from labkit.analysis.drawing.flat_layout import PAD_PX, TITLE_PX, Layout, TextBox
from labkit.analysis.drawing.folded_layout import Levels, places
from labkit.common.topology_state import InterfaceState, Namespace, Place, State

PAGE_STYLE = (
    f":root{{color-scheme:light dark}}body{{margin:0;background:#fff}}{theme.TEXTS}{{fill:{theme.INK}!important}}"
    "@media screen and (prefers-color-scheme:dark){body{background:#14171a}"
    f"{theme.TEXTS}{{fill:{theme.LIGHT_INK}!important}}}}"
)
EDGE_PX, TOP_PX, LEGEND_PX = 20, 70, 50
MIN_PX = 560  # the least width, for the title and the legend


def topology(state: State, pairs: int = graph.FEW) -> go.Figure:
    """Return the drawing of a topology's state. Of more than `pairs` pairs it shows the first ones, and says so."""
    left_out = max(len(state.pairs) - pairs, 0)
    part, _ = graph.first(graph.simplify(state), pairs)
    built = places(part)
    figure = go.Figure()
    for box in built.namespaces.values():
        figure.add_shape(type="rect", **_corners(box), **theme.NAMESPACE)
    for box in built.interfaces.values():
        figure.add_shape(type="rect", **_corners(box), **theme.INTERFACE)
    _add_lines(figure, built)
    _add_words(figure, part, built)
    text = f"as the kernel reports it (Linux {theme.plain(state.kernel)})"
    text += f"; {graph.more(left_out)}" if left_out else ""
    theme.titled(figure, graph.title(state), text)
    _size(figure, built)
    return figure


def _corners(box: TextBox) -> dict[str, float]:
    return {"x0": box.x, "y0": box.y, "x1": box.right, "y1": box.bottom}


def _add_lines(figure: go.Figure, places: Layout | Levels) -> None:
    """Add one trace for each kind of join, so that the legend has each kind once."""
    for join_kind, name in graph.JOIN_KINDS.items():
        points: list[tuple[float | None, float | None]] = []
        for join, line in places.lines:
            points += [*line, (None, None)] if join.kind == join_kind else []
        if points:
            x, y = zip(*points, strict=True)
            look: dict[str, Any] = {"mode": "lines", "line": theme.JOINS[join_kind], "hoverinfo": "skip"}
            figure.add_trace(go.Scatter(x=x, y=y, name=name, showlegend=True, **look))


def _add_words(figure: go.Figure, state: State, places: Layout | Levels) -> None:
    words: dict[str, Any] = {"mode": "text", "showlegend": False}
    boxes = [places.namespaces[space.name] for space in state.namespaces]
    names = {"text": [f"<b>{theme.plain(box.lines[0])}</b>" for box in boxes], "textposition": "middle right"}
    routes = {"hovertext": [_routes(space) for space in state.namespaces], "hoverinfo": "text"}
    x, y = [box.x + box.title_px + PAD_PX / 2 for box in boxes], [box.y + TITLE_PX / 2 for box in boxes]
    figure.add_trace(go.Scatter(x=x, y=y, textfont_size=12, **names, **routes, **words))
    at = [
        (places.interfaces[Place(space.name, one.name)], one)
        for space in state.namespaces
        for one in space.interfaces
    ]
    texts = ["<br>".join(theme.plain(line) for line in box.lines) for box, _ in at]
    more_of_it = {"hovertext": [_hover(one) for _, one in at], "hoverinfo": "text", "textfont_size": 12}
    x, y = [box.middle[0] for box, _ in at], [box.middle[1] for box, _ in at]
    figure.add_trace(go.Scatter(x=x, y=y, text=texts, **more_of_it, **words))


def _routes(space: Namespace) -> str:
    lines = [graph.route_line(route) for route in space.routes]
    return "<br>".join(theme.plain(line) for line in [f"routes of {space.name}", *(lines or ["none"])])


def _hover(one: InterfaceState) -> str:
    """Return the details of an interface that its box has no room for."""
    lines = [f"{one.name}: {graph.kind(one)}", *graph.condition(one), f"MTU {one.mtu_bytes}", one.mac]
    lines += one.addresses
    if one.tunnel is not None:
        lines.append(graph.outside(one.tunnel))
    return "<br>".join(theme.plain(line) for line in lines if line is not None)


def _size(figure: go.Figure, places: Layout | Levels) -> None:
    """Set the figure's size so that one unit is one pixel."""
    wide = max(places.width, MIN_PX - 2 * EDGE_PX)
    aside = (wide - places.width) / 2
    axis = {"visible": False, "fixedrange": True}
    figure.update_xaxes(range=[-1 - aside, places.width + aside + 1], **axis)
    figure.update_yaxes(range=[places.height + 1, -1], **axis)
    figure.update_layout(
        width=wide + 2 + 2 * EDGE_PX,
        height=places.height + 2 + TOP_PX + LEGEND_PX,
        margin={"l": EDGE_PX, "r": EDGE_PX, "t": TOP_PX, "b": LEGEND_PX},
        legend={"orientation": "h", "x": 0, "y": 0, "yanchor": "top", "xanchor": "left"},
        dragmode=False,
    )


def page(state: State) -> str:
    """Return the drawing as a standalone HTML page, which needs no network.

    Its background follows the reader's choice of light or dark; the drawing's colours suit both.
    """
    drawn: str = topology(state).to_html(include_mathjax=False, config=theme.CONFIG)
    return drawn.replace("<head>", f"<head><style>{PAGE_STYLE}</style>", 1)


def svg(state: State) -> bytes:
    """Return the drawing as SVG, dark on white. Raises Failed without a browser."""
    from labkit.analysis.report.images import drawn

    figure = theme.on_paper(topology(state))
    [content] = drawn({Path("drawing"): figure}, 60.0, {"svg": 1}, figure.layout.width).values()
    return content
