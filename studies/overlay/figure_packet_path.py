"""One packet on every interface that saw it: its headers to scale, and the time from hop to hop."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import Marks
from studies.overlay.notes import Rows, finish, micro, ok

HOP_PX, BETWEEN, TOP_PX, BOTTOM_PX = 30, 1.9, 60, 8  # height of a hop; between packets, in hops
LEFT_PX, RIGHT_PX = 182, 176  # left of the bars: node and interface; right: three columns of numbers
NODE_PX = -LEFT_PX + 10
COLUMNS_PX = {"frame": 52, "since first": 116, "step": 166}  # right ends, right of the bars
WIDTH_PX = 900 - LEFT_PX - RIGHT_PX  # width of the bars in a figure for a report
CHAR_PX, PAD_PX = 5.6, 6  # of a header's text
SHRUNK = 0.7  # least factor by which a text may shrink; longer texts are rotated
PAYLOAD, MAX_PAYLOAD_BYTES = "payload", 16  # the payload is cut, because the figure is about headers


@dataclass(frozen=True)
class Layer:
    """A header, or the payload. `below_bytes` is the number of bytes after it."""

    name: str
    text: str
    header_bytes: int
    below_bytes: int


def hops(df: pd.DataFrame, flow: int = 0) -> go.Figure:
    """Draw the interfaces that saw a packet, from top to bottom in order, each with the packet's headers to scale.

    The outermost header is left, so that the same inner header lines up in all hops. Beside them are the frame size in
    bytes and the µs since the first sighting. `df`: rows of the part path. `flow`: the number of the flow, from 0; its
    request and its reply are drawn. The payload's bar ends at 16 bytes (`MAX_PAYLOAD_BYTES`). Of several runs the first
    is drawn.
    """
    followed, figure, y = next(iter(_flows(df)[flow:]), list[Rows]()), go.Figure(), 0.0
    marks = Marks(figure)
    drawn: list[tuple[float, dict[Any, Any], Layer]] = []
    ticks: dict[float, str] = {}
    for rows in followed:
        y += BETWEEN
        _heading(marks, rows, y - 1)
        for one in rows:
            ticks[y] = theme.plain(f"{one['interface']} {one['direction']}")
            drawn += [(y, one, layer) for layer in layers(one)]
            y += 1
    marks.add()
    _bars(figure, drawn)
    figure.update_yaxes(
        tickvals=list(ticks), ticktext=list(ticks.values()), range=[y - 0.4, 0.2], ticks="",
        ticklabelstandoff=8,
    )  # fmt: skip
    figure.update_yaxes(showgrid=False, showline=False, automargin=False, visible=bool(followed))
    figure.update_xaxes(visible=False, range=[-_widest(drawn), 0])
    margin = {"l": LEFT_PX, "r": RIGHT_PX, "t": TOP_PX, "b": BOTTOM_PX}
    height = HOP_PX * (y - 0.6) + TOP_PX + BOTTOM_PX
    figure.update_layout(
        height=max(height, 160), margin=margin, barmode="overlay", bargap=0.16, showlegend=False
    )
    subtitle = f"headers to scale, outermost left; payload drawn up to {MAX_PAYLOAD_BYTES} bytes; µs since first seen"
    return finish(figure, df, "One packet, hop by hop", subtitle, _notes(df, followed), below_px=BOTTOM_PX)


def flows(df: pd.DataFrame) -> list[go.Figure]:
    """Return the figure `hops` of each flow of the first run: a request and its reply."""
    return [hops(df, number) for number in range(max(len(_flows(df)), 1))]


def _flows(df: pd.DataFrame) -> list[list[Rows]]:
    """Return the rows of each packet of the first run, in order, by flow: a request and its reply have the same ends,
    as in `cs1 > cs5 echo request`."""
    there, result = ok(df), dict[frozenset[str], list[Rows]]()
    if len(there):
        there = there[there["packet"].notna() & there["folder"].eq(there["folder"].iloc[0])]
        for _, rows in there.groupby("packet", sort=False):
            seen = rows.sort_values("position").to_dict("records")
            source, _, rest = str(seen[0]["what"]).partition(" > ")
            result.setdefault(frozenset((source, rest.partition(" ")[0])), []).append(seen)
    return list(result.values())


def layers(one: dict[Any, Any]) -> Iterator[Layer]:
    """Yield the headers of a frame from the outside in, then the payload."""
    rest = int(one["length_bytes"])
    for layer in one["layers"]:
        rest = int(layer["length_bytes"]) - int(layer["header_bytes"])
        if layer["header_bytes"] > 0:
            name, text = str(layer["text"] or layer["name"]).split()[0], str(layer["text"])
            yield Layer(name, text, int(layer["header_bytes"]), rest)
    if rest > 0:
        yield Layer(PAYLOAD, f"payload, {rest} bytes", rest, 0)


def _heading(marks: Marks, rows: Rows, y: float) -> None:
    """Draw the packet's description, its nodes at the left with rules between, and three columns at the right."""
    plot = {"xref": "x domain", "yref": "y", "showarrow": False}
    lines = f"<b>{theme.plain(rows[0]['what'])}</b>: {len(rows)} hops in {micro(rows[-1]['time_s'])} µs"
    marks.annotation(text=lines, x=0, xanchor="left", xshift=NODE_PX, y=y, **plot)
    right = {"x": 1, "xanchor": "right", "font": {"size": theme.SMALL_PX}, **plot}
    for name, shift in COLUMNS_PX.items():
        marks.annotation(text=name, xshift=shift, y=y, **right)
    before: dict[Any, Any] = {}
    for one in rows:
        y += 1
        step = f"+{micro(one['time_s'] - before['time_s'])}" if before else ""
        numbers = (f"{one['length_bytes']:.0f} B", f"{micro(one['time_s'])} µs", step)
        for number, shift in zip(numbers, COLUMNS_PX.values(), strict=True):
            marks.annotation(text=number, xshift=shift, y=y, **right)
        if one["namespace"] != before.get("namespace"):
            node = f"<b>{theme.plain(one['namespace'])}</b>"
            marks.annotation(text=node, x=0, xanchor="left", xshift=NODE_PX, y=y, **plot)
            _rule(marks, y - 0.5)
        before = one


def _rule(marks: Marks, y: float) -> None:
    """Draw a thin line from the names of nodes to the last column."""
    line = {"type": "line", "y0": y, "y1": y, "line_width": 1, "opacity": 0.35}
    marks.shape(xref="x domain", x0=0, x1=1, **line)
    aside = {"xref": "x domain", "xsizemode": "pixel"}
    marks.shape(xanchor=0, x0=NODE_PX, x1=0, **aside, **line)
    marks.shape(xanchor=1, x0=0, x1=max(COLUMNS_PX.values()), **aside, **line)


def _shown_bytes(layer: Layer) -> int:
    """Return the number of drawn bytes."""
    return min(layer.header_bytes, MAX_PAYLOAD_BYTES) if layer.name == PAYLOAD else layer.header_bytes


def _start(one: dict[Any, Any], layer: Layer) -> int:
    """Return the start of the layer's bar, relative to the end of the drawn frame (negative)."""
    inside = [other for other in layers(one) if other.below_bytes <= layer.below_bytes]
    return -sum(_shown_bytes(other) for other in inside)


def _widest(drawn: list[tuple[float, dict[Any, Any], Layer]]) -> int:
    return max((-_start(one, layer) for _, one, layer in drawn), default=1)


def _bars(figure: go.Figure, drawn: list[tuple[float, dict[Any, Any], Layer]]) -> None:
    """Draw a trace for each header name."""
    byte_px = WIDTH_PX / _widest(drawn)
    names = dict.fromkeys((layer.name, layer.header_bytes) for _, _, layer in drawn)
    for name, size in names:
        own = [one for one in drawn if (one[2].name, one[2].header_bytes) == (name, size)]
        fill, border = theme.layer_colors(name)
        room = byte_px * _shown_bytes(own[0][2])
        texts = [_label(layer, room) for _, _, layer in own]
        figure.add_bar(
            orientation="h", y=[y for y, _, _ in own], base=[_start(one, layer) for _, one, layer in own],
            x=[_shown_bytes(layer) for _, _, layer in own], name=theme.plain(name),
            marker={"color": fill, "line": {"color": border, "width": 1}}, text=texts,
            textangle=-90 if room - PAD_PX < SHRUNK * CHAR_PX * len(name) else 0, hoverinfo="text",
            hovertext=[_hover(one, layer) for _, one, layer in own], textposition="inside",
            insidetextanchor="middle", textfont=theme.LAYER_TEXT,
        )  # fmt: skip


def _label(layer: Layer, room_px: float) -> str:
    """Return a header's name and size, in two lines if necessary, and its addresses below if they fit."""
    fits = (room_px - PAD_PX) / CHAR_PX
    name, size = layer.name, f"{layer.header_bytes}"
    of = layer.text.removeprefix(name).strip() if name != PAYLOAD else ""
    lines = [f"{name} {size}"]
    if len(lines[0]) > fits:
        lines = [name, size] if SHRUNK * len(name) <= fits else lines
    elif of and SHRUNK * len(of) <= fits:
        lines.append(of)
    return "<br>".join(theme.plain(line) for line in lines)


def _hover(one: dict[Any, Any], layer: Layer) -> str:
    whole = layer.header_bytes + layer.below_bytes
    adds = "" if layer.name == PAYLOAD else f"<br>{layer.header_bytes} bytes, {whole} with what is inside"
    lines = f"{one['hop']} {one['direction']}, {micro(one['time_s'])} µs: {one['stack']}"
    return f"<b>{theme.plain(layer.text)}</b>{adds}<br>{theme.folded(lines, 70)}"


def _notes(df: pd.DataFrame, followed: list[Rows]) -> list[str]:
    """Return notes about doubts and about packets that are not drawn."""
    lines, seen = [], [one for rows in followed for one in rows]
    for how in ("dropped", "skipped"):
        for hop, count in {
            str(one["hop"]): one[f"{how}_count"] for one in seen if one[f"{how}_count"]
        }.items():
            lines.append(
                f"The capture at {hop} {how} {count:.0f} packets, so a packet that it does not show may"
                " still have passed there."
            )
    if followed and (runs := ok(df)["folder"].nunique()) > 1:
        lines.append(f"This is of the first of {runs} runs.")
    return lines
