"""The OVS test plan: rates by use case and frame size beside the plan's own results, and a ranking of factors."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.line_chart import ticks
from labkit.analysis.figures.panels import finish, titled_grid

CASES = {"net_to_vm": "network to VM", "vm_to_net": "VM to network", "vm_to_vm": "VM to VM"}
LOADS = {"flows_count": "flows", "pairs": "VMs"}  # a line of a switch has one value of each
PANEL_PX, EDGES_PX = 270, 150
COLUMN_SHARE = 0.6  # of a panel's width, relative to `line_chart.AXIS_PX`; the legend is below
LABEL_LETTER_PX = 7
LINE_PX = 34  # height of a line of the ranking


def use_cases(rows: pd.DataFrame, rates: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw packets (left) and bits (right) per second against frame size, a row of panels for each use case.

    A point is the geometric mean of the searches with its 95 % interval, for the greatest loss goal. An open triangle
    is a search that only the generator limited. Stars are the plan's own results, from another machine. rows:
    `load.load`. rates: `ovs_test_plan.rates(rows)`. published: `ovs_test_plan.published()`.
    """
    table = rates[rates["loss_goal_ratio"].eq(rates["loss_goal_ratio"].max())] if len(rates) else rates
    cases = [case for case in CASES if len(table) and table["use_case"].eq(case).any()]
    titles = {
        (at, column): f"<b>{CASES[case]}</b>: {unit}"
        for at, case in enumerate(cases, 1)
        for column, unit in ((1, "packets/s"), (2, "bit/s"))
    }
    varying = [name for name in LOADS if len(table) and table[name].nunique() > 1]
    count = max(1, len(cases))
    figure = titled_grid(
        titles, rows=count, cols=2, vertical_spacing=0.36 / max(count, 3), horizontal_spacing=0.14
    )
    for at, case in enumerate(cases, 1):
        for (arm, *key), own in table[table["use_case"].eq(case)].groupby(["arm", *varying], sort=False):
            words = [f"{one:g} {LOADS[name]}" for name, one in zip(varying, key, strict=True)]
            switch = str(arm).replace(f"+case={case}", "")  # the panel's title names the case
            _arm(figure, at, ", ".join([switch, *words]), own.sort_values("frame_bytes"))
        _readout(figure, at, published[published["use_case"].eq(case)])
    frames = sorted(set(table.get("frame_bytes", [])))
    labels = ticks({frame: f"{frame:g}" for frame in frames}, COLUMN_SHARE) if frames else {}
    figure.update_xaxes(type="log", title_text="frame (bytes, with FCS)", **labels)
    figure.update_yaxes(type="log")
    figure.update_yaxes(dtick="D2", col=2)  # labels at 1, 2 and 5; each digit of a short axis would overlap
    figure.update_layout(height=EDGES_PX + PANEL_PX * count, legend=theme.legend_below())
    kinds = sorted(set(table["endpoint"])) if len(table) else []
    ends = " and ".join(kinds) or "nothing"
    what = "VMs" if "guest" in kinds else "VMs and network"  # the network is never a guest
    text = f"{table['goal'].iloc[0]}; " if len(table) else ""
    subtitle = f"{text}{what} are: {ends} of this machine; ★: the plan's read-out, of another machine"
    return finish(figure, rows, "Throughput by use case and frame size", subtitle)


def _arm(figure: go.Figure, row: int, arm: str, own: pd.DataFrame) -> None:
    style, rates = theme.arm_style(arm), ("low_pps", "mean_pps", "high_pps", "max_pps")
    for column, factor in ((1, 1.0), (2, own["frame_bytes"] * 8)):
        low, middle, high, most = (own[name] * factor for name in rates)
        common: dict[str, Any] = {"legendgroup": arm, "showlegend": column == 1, "row": row, "col": column}
        figure.add_scatter(
            x=own["frame_bytes"], y=middle, mode="lines+markers", name=theme.plain(arm),
            line={"color": style.color, "dash": style.dash}, marker={"symbol": style.symbol, "size": 8},
            error_y={"array": high - middle, "arrayminus": middle - low}, **common,
        )  # fmt: skip
        limited = middle.isna() & most.notna()
        if limited.any():
            name = f"{theme.plain(arm)}: at least, generator-limited"
            marker = {"symbol": "triangle-up-open", "size": 10, "color": style.color}
            x, y = own.loc[limited, "frame_bytes"], most[limited]
            figure.add_scatter(x=x, y=y, mode="markers", name=name, marker=marker, **common)


def _readout(figure: go.Figure, row: int, readout: pd.DataFrame) -> None:
    for column, name in ((1, "total_pps"), (2, "total_bps")) if len(readout) else ():
        figure.add_scatter(
            x=readout["frame_bytes"], y=readout[name], mode="markers", legendgroup="published",
            name="the plan's read-out (accelerated, another machine)", showlegend=column == 1,
            marker={"symbol": "star", "size": 12, "color": theme.GREY}, row=row, col=column,
        )  # fmt: skip


def ranked_factors(rows: pd.DataFrame, table: pd.DataFrame) -> go.Figure:
    """Draw the factors that change the rate, the greatest first: ratios with 95 % intervals over rounds.

    The last line is the switch against itself; a ratio within its interval does not show an effect. table:
    `ovs_test_plan.factors(rows)`.
    """
    names = [
        f"{factor}: {level} → {other}" if level else str(factor)
        for factor, level, other in table[["factor", "level", "other"]].itertuples(index=False, name=None)
    ]
    figure = go.Figure()
    control = table["level"].eq("")
    for part, color, name in (
        (~control, theme.PALETTE[0], "ratio of the rates"),
        (control, theme.GREY, "A/A control"),
    ):
        some = table[part]
        figure.add_scatter(
            x=some["ratio"], y=[one for one, chosen in zip(names, part, strict=True) if chosen], mode="markers",
            name=name, marker={"color": color, "size": 9},
            error_x={"array": some["high"] - some["ratio"], "arrayminus": some["ratio"] - some["low"]},
        )  # fmt: skip
    figure.add_vline(x=1, line={"color": theme.GREY, "width": 1})
    figure.update_xaxes(type="log", title_text="rate with the second level, as a ratio to the first")
    figure.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=names, automargin=False)
    # Set instead of plotly's automatic margin, so that the notes below begin at the edge and fit.
    left_px = LABEL_LETTER_PX * max(map(len, names), default=0) + 20
    height_px = EDGES_PX + LINE_PX * max(3, len(table))
    figure.update_layout(height=height_px, margin_l=left_px, legend=theme.legend_below())
    subtitle = (
        "geometric mean of searches that differ in one thing, 95 % interval over rounds (no bar: one round)"
    )
    return finish(figure, rows, "What matters most", subtitle)
