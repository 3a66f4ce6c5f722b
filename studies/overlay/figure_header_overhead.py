"""The share of a tunnel's cost that its headers explain: bytes, and payload efficiency beside measured ratios."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.cost_by_size import IP_BYTES, UDP_BYTES
from labkit.analysis.figures.forest_plot import as_rows, control_band, drawn_range, ratio_ticks
from labkit.analysis.figures.panels import Panel, finish, panels, titled_grid
from labkit.common.packets import ETHERNET_BYTES

BAR_PX, AROUND_BARS_PX, RATIO_PX, BETWEEN_PX, TOP_PX = 34, 40, 300, 90, 100
TCP_BYTES = 32  # TCP header with timestamps (RFC 7323)


def overhead(headers: pd.DataFrame, verdicts: pd.DataFrame) -> go.Figure:
    """Draw the headers of each tunnel, and below the measured ratios to the baseline beside payload efficiencies.

    `headers`: rows of that part, the last row of each tunnel; bars are computed bytes, and a symbol shows the measured
    ones. `verdicts` are from `verdicts.verdicts`; only UDP and TCP are drawn. The line is the ratio of payload /
    (payload + headers), which a link limited only by bytes would give. A TCP packet is a segment that fills the MTU.
    """
    headers = headers[headers["computed_bytes"].notna()] if "computed_bytes" in headers else headers.iloc[:0]
    headers = headers.drop_duplicates("topology", keep="last")
    added = dict(zip(headers["topology"], headers["computed_bytes"], strict=True)) if len(headers) else {}
    sized = _with_header_sizes(verdicts, added)
    parts = panels(sized, columns_count=1, along="length_bytes")
    figure = _empty(headers, parts)
    _bars(figure, headers)
    low, high = drawn_range(sized)
    seen = set(headers["topology"])
    for panel in parts:
        _ratios(figure, panel, (min(low, sized["efficiency"].min()), high), seen)
    subtitle = "bytes before each packet: bars computed, symbols measured;"
    subtitle += " ratios: symbols measured (95 % interval), lines payload / (payload + headers)"
    return finish(figure, as_rows(sized), "How much of the cost is headers", subtitle)


def _with_header_sizes(verdicts: pd.DataFrame, added: dict[str, float]) -> pd.DataFrame:
    """Return the verdicts of UDP and TCP with header sizes.

    Added columns: `payload` of a packet, `own` (header bytes without a tunnel), `more` (of the tunnel), `base` (of the
    baseline's tunnel, else 0), and `efficiency` relative to the baseline's.
    """
    some = verdicts[verdicts["protocol"].isin(["udp", "tcp"]) & verdicts["topology"].isin(list(added))]
    ip = some["family"].map(IP_BYTES).fillna(IP_BYTES[4])
    tcp = some["protocol"].eq("tcp")
    segment = some["mtu_bytes"] - ip - TCP_BYTES
    payload = some["length_bytes"].fillna(some["mtu_bytes"] - ip - UDP_BYTES).mask(tcp, segment)
    own = ETHERNET_BYTES + ip + np.where(tcp, TCP_BYTES, UDP_BYTES)
    more, base = (some[of].map(added).astype(float) for of in ("topology", "baseline"))
    result = some.assign(payload=payload.astype(float), own=own, more=more, base=base.fillna(0.0))
    return result.assign(efficiency=_efficiency(result, result["payload"]))


def _efficiency(of: Any, payload: Any) -> Any:
    return (payload + of["own"] + of["base"]) / (payload + of["own"] + of["more"])


def _empty(headers: pd.DataFrame, parts: list[Panel]) -> go.Figure:
    """Return an empty grid: a plot for the bars, and below it one for each panel."""
    heights = [BAR_PX * max(len(headers), 1) + AROUND_BARS_PX, *(RATIO_PX for _ in parts)]
    whole = sum(heights) + BETWEEN_PX * len(parts)
    titles = {(1, 1): "<b>headers of a packet</b>"} | {(panel.row + 1, 1): panel.titled for panel in parts}
    spacing = {"vertical_spacing": BETWEEN_PX / whole} if parts else {}
    figure = titled_grid(titles, rows=len(heights), cols=1, row_heights=heights, **spacing)
    figure.update_layout(height=whole + TOP_PX, margin={"t": TOP_PX, "b": 0}, barmode="stack")
    return figure


def _bars(figure: go.Figure, headers: pd.DataFrame) -> None:
    """Draw the headers of each tunnel as a bar, from the outside in, with the measured bytes."""
    rows = sorted(headers.to_dict("records"), key=lambda one: theme.arm_order(one["topology"]))
    for one in rows:
        name = theme.plain(one["topology"])
        for layer in one["layers"]:
            fill, border = theme.layer_colors(layer["name"])
            words = f"{layer['name']}, {layer['header_bytes']} bytes: {layer.get('source', '')}"
            figure.add_bar(
                x=[layer["header_bytes"]], y=[name], orientation="h", showlegend=False, row=1, col=1,
                marker={"color": fill, "line": {"color": border, "width": 1}},
                text=f"{theme.plain(layer['name'])}<br>{layer['header_bytes']}", textposition="inside",
                textangle=0, insidetextanchor="middle", textfont=theme.LAYER_TEXT,
                hovertext=theme.folded(words, 60), hoverinfo="text",
            )  # fmt: skip
        style = theme.arm_style(one["topology"])
        figure.add_scatter(
            x=[one["measured_bytes"]], y=[name], mode="markers+text", name=name, legendgroup=one["topology"],
            text=f"measured {one['measured_bytes']:g}, computed {one['computed_bytes']:g}",
            textposition="middle right", hoverinfo="skip", cliponaxis=False, row=1, col=1,
            marker={"color": style.color, "symbol": style.symbol, "size": 10},
            line={"color": style.color, "dash": style.dash},
        )  # fmt: skip
    most = max((one["computed_bytes"] for one in rows), default=1)
    figure.update_xaxes(title_text="bytes before each packet", range=[0, most * 1.2], row=1, col=1)
    figure.update_yaxes(autorange="reversed", ticks="", showgrid=False, row=1, col=1)


def _ratios(figure: go.Figure, panel: Panel, ends: tuple[float, float], seen: set[str]) -> None:
    """Draw ratios against payload: efficiencies as a line, measured ratios as symbols side by side."""
    place = {"row": panel.row + 1, "col": 1}
    sizes = sorted(panel.table["payload"].unique())
    gap = min((math.log2(more / less) for less, more in pairwise(sizes)), default=1.0)
    margin = 2 ** (gap * 0.45)
    curve = np.geomspace(sizes[0] / margin, sizes[-1] * margin, 60)
    arms = sorted(panel.table["topology"].unique(), key=theme.arm_order)
    _controls(figure, panel, margin, place)
    for number, arm in enumerate(arms):
        own = panel.table[panel.table["topology"].eq(arm)].sort_values("payload")
        known, style = own[own["ratio"].notna()], theme.arm_style(arm)
        common: dict[str, Any] = {"name": theme.plain(arm), "legendgroup": arm, "showlegend": False}
        line = {"color": style.color, "dash": style.dash, "width": 1.5}
        y = _efficiency(own.iloc[0], curve)
        figure.add_scatter(x=curve, y=y, mode="lines", line=line, hoverinfo="skip", **common, **place)
        low, high = (known[end].fillna(known["ratio"]) for end in ("low", "high"))
        figure.add_scatter(
            x=known["payload"] * 2 ** (gap * 0.6 * ((number + 0.5) / len(arms) - 0.5)), y=known["ratio"],
            error_y={"array": high - known["ratio"], "arrayminus": known["ratio"] - low}, mode="markers",
            marker={"color": style.color, "symbol": style.symbol, "size": 9}, hoverinfo="text",
            hovertext=[_say(one) for one in known.to_dict("records")],
            **common | {"showlegend": arm not in seen}, **place,
        )  # fmt: skip
        seen.add(arm)
    labels = {"tickvals": sizes, "ticktext": [f"{size:.0f}" for size in sizes], "tickangle": 0}
    span = [math.log10(curve[0]), math.log10(curve[-1])]
    figure.update_xaxes(type="log", range=span, title_text="bytes of payload of a packet", **labels, **place)
    baseline = ", ".join(theme.plain(name) for name in panel.table["baseline"].dropna().unique())
    axis = {"tickvals": ratio_ticks(*ends), "range": [math.log10(end) for end in ends]}
    figure.update_yaxes(type="log", title_text=f"ratio to {baseline or 'the baseline'}", **axis, **place)


def _controls(figure: go.Figure, panel: Panel, margin: float, place: dict[str, int]) -> None:
    """Draw the rule at 1, and at each size the band of the baseline against itself."""
    for size in sorted(panel.table["payload"].unique()):
        some = panel.table[panel.table["payload"].eq(size)]
        for low, high in control_band(some):
            figure.add_shape(type="rect", x0=size / margin, x1=size * margin, y0=low, y1=high, **place)
    rule = {"type": "line", "line_width": 1, "opacity": 0.8}
    figure.add_shape(xref="x domain", x0=0, x1=1, y0=1, y1=1, **rule, **place)


def _say(one: dict[Any, Any]) -> str:
    explained = f"by bytes alone the ratio would be {one['efficiency']:.3f}: {one['payload']:.0f} of payload,"
    explained += f" {one['own']:.0f} of headers, {one['more']:.0f} more in the tunnel"
    return f"{theme.folded(one['sentence'], 60)}<br>{theme.folded(explained, 60)}"
