"""Round-trip times by percentile: the median and the tail of each arm in one figure."""

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.line_chart import PANEL_PX, Axis, Quantity, draw
from labkit.analysis.figures.panels import finish, grid, panels
from labkit.analysis.load import timed
from labkit.common.schema import LATENCIES, latency_text
from labkit.common.units import counted

# The place of a percentile: one of how many round trips is longer. The axis is logarithmic, so that each further nine
# takes as much room as the one before; the longest is beside the last percentile.
ONE_OF = {name: round(1 / (1 - share)) if share < 1 else 10_000 for name, (share, _) in LATENCIES.items()}
NAMES = {place: latency_text(name) for name, place in ONE_OF.items()}
AXIS = Axis("one_of", "percentile of round trips", lambda place: NAMES[round(place)])
TIME = Quantity("round-trip time, µs", "µs", 1e-6, is_log=True)


def percentiles(rows: pd.DataFrame) -> go.Figure:
    """Draw the percentiles of round-trip times (µs, logarithmic), from the median to the longest, for protocols that
    have round trips; a panel for each number of pairs and each combination of the other parameters.

    A line joins the geometric means of the rounds' percentiles; bars are 95 % intervals.
    """
    rows = rows[timed(rows)]
    values = {name: rows[f"latency_{name}_s"].astype(float) for name in LATENCIES}
    each = [rows.assign(one_of=ONE_OF[name], value=own) for name, own in values.items()]
    table = pd.concat(each, ignore_index=True)
    parts = panels(table, columns_count=2)
    figure = grid(parts, PANEL_PX)
    for panel in parts:
        draw(figure, panel, TIME, AXIS)
    subtitle = "geometric mean of rounds, 95 % interval (open triangle: it continues); faint: rounds"
    lost = int((table["status"].eq("ok") & table["value"].isna() & table["lost_count"].gt(0)).sum())
    if lost:
        subtitle += f"; without {counted(lost, 'percentile')} that fell on a lost round trip"
    figure = finish(figure, rows, "Round-trip time by percentile", subtitle)
    return theme.explained(
        figure,
        "From left to right: the median, then the tail. Arms whose medians agree can differ in the tail, and verdicts"
        " are about one percentile only (`percentile=`).",
    )
