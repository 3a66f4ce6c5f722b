"""The mirror tax: the cost of a packet against its number of copies, with the fitted line."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import finish, titled_grid
from labkit.analysis.load import HOST, complete, host_text
from labkit.common.units import si
from studies.virtual_tap.mirror_tax import COSTS, CPU_TIME_OF, Tax

PANEL_PX, BETWEEN_PX, TOP_PX = 210, 100, 125
US = 1e-6


def mirror_tax(rows: pd.DataFrame, taxes: Sequence[Tax]) -> go.Figure:
    """Draw the cost of a packet (`mirror_tax.taxes(rows)`) against its counted copies.

    There is a row of panels for each load and host, and a column for each cost.

    Points are means of the rounds with 95 % intervals; lines are the fits.
    """
    hosts = list({tuple(one.of.get(name) for name in HOST): one.of for one in taxes}.values())
    labels = [_load(one.of, hosts) for one in taxes]
    row_of = {label: row for row, label in enumerate(dict.fromkeys(labels), 1)}
    costs = [cost for cost in COSTS if any(one.cost == cost for one in taxes)] or [*COSTS]
    places = [(row_of[label], 1 + costs.index(one.cost)) for label, one in zip(labels, taxes, strict=True)]
    titles = {
        place: f"<b>{label[0]}<br>{CPU_TIME_OF[one.cost]}</b>{label[1]}"
        for place, label, one in zip(places, labels, taxes, strict=True)
    }
    count = max(len(row_of), 1)
    whole = count * PANEL_PX + (count - 1) * BETWEEN_PX
    spacing = {"vertical_spacing": BETWEEN_PX / whole, "horizontal_spacing": 0.15}
    figure = titled_grid(titles or {(1, 1): ""}, rows=count, cols=len(costs), **spacing)
    figure.update_layout(height=whole + TOP_PX, margin={"t": TOP_PX, "b": 0}, legend=theme.legend_below())
    for tax, place in zip(taxes, places, strict=True):
        _draw(figure, tax, place)
    figure.update_yaxes(title_text="µs per packet", rangemode="tozero")
    figure.update_xaxes(title_text="copies of a packet (counted)")
    subtitle = (
        "CPU time for a packet that the switch forwards: mean of the rounds and 95 % interval; lines: fit of every"
        " round, averaged"
    )
    return finish(figure, complete(rows), "The mirror tax", subtitle)


def _load(of: Mapping[str, Any], hosts: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return a load in words, and a line that names its host if there are several."""
    among = [{name: one.get(name) for name in HOST} for one in hosts]
    host = (
        f"<br>{theme.plain(host_text({name: of.get(name) for name in HOST}, among))}"
        if len(hosts) > 1
        else ""
    )
    words = [str(of["protocol"])]
    if not pd.isna(of["length_bytes"]):
        words.append(f"{of['length_bytes']:.0f} bytes")
    if not pd.isna(of["rate_bps"]):
        words.append(f"{si(of['rate_bps'], 'bit/s')} offered")
    return theme.plain(", ".join(words)), host


def _draw(figure: go.Figure, tax: Tax, place: tuple[int, int]) -> None:
    style = theme.arm_style(tax.curve)
    means = tax.means
    middle = np.array([one.value for one in means]) / US
    low, high = (
        np.array([one.value if end is None else end for one, end in zip(means, ends, strict=True)]) / US
        for ends in ([one.low for one in means], [one.high for one in means])
    )
    figure.add_trace(
        go.Scatter(
            x=tax.copies, y=middle, mode="markers", name=tax.curve, legendgroup=tax.curve, showlegend=True,
            marker={"color": style.color, "symbol": style.symbol, "size": 8},
            error_y={"array": high - middle, "arrayminus": middle - low},
        ),
        row=place[0], col=place[1],
    )  # fmt: skip
    if tax.fixed is not None and tax.copy is not None:
        along = np.array([0.0, float(tax.copies.max())])
        figure.add_trace(
            go.Scatter(
                x=along, y=(tax.fixed.value + tax.copy.value * along) / US, mode="lines", legendgroup=tax.curve,
                showlegend=False, line={"color": style.color, "dash": style.dash, "width": 1.5}, hoverinfo="skip",
            ),
            row=place[0], col=place[1],
        )  # fmt: skip
