"""Load tests with TRex: the ramp over time, the share of the line's rate, and the latency of probes, each beside
published results of another machine."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import theme
from labkit.analysis.figures.panels import finish, titled_grid
from labkit.common.units import si

PANEL_PX, EDGES_PX, LINE_PX = 230, 130, 36
NO_LOSS = 1e-6  # position of steps without loss on the logarithmic axis


def ramp(rows: pd.DataFrame) -> go.Figure:
    """Draw the rates of all ports together, and the loss ratio, against the seconds of traffic; a line for each test.

    A cross is a step that says nothing about the device (invalid). Dotted lines: the rate of the lines if it is near,
    and the loss limit. rows: those of `trex_stateless`, with the part `steps`.
    """
    steps = rows[rows["part"].eq("steps") & rows["direction"].eq("all") & rows["offered_pps"].notna()]
    line_pps = _line_pps(rows, steps)
    limit = float(steps["loss_goal_ratio"].max()) if len(steps) else None
    of_line = "" if line_pps is None else f", dotted: all lines full ({si(line_pps, 'pps')})"
    of_limit = "" if limit is None else f", dotted: the limit ({100 * limit:g} %)"
    titles = {(1, 1): f"<b>rate</b>{of_line}", (2, 1): f"<b>loss</b>{of_limit}"}
    figure = titled_grid(titles, rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.12)
    frames = list(dict.fromkeys(zip(steps["arm"], steps["frame"], strict=True)))
    if steps["frame"].nunique() < 2:
        frames = []
    for (arm, test, role), own in steps.groupby(["arm", "point", "role"], sort=False):
        color = theme.arm_style(str(arm), str(role)).color
        if len(frames) > 1:
            color = theme.PALETTE[frames.index((arm, own["frame"].iloc[0])) % len(theme.PALETTE)]
        end = own["duration_s"].cumsum()
        name = theme.plain(f"{own['frame'].iloc[0]} · {arm} · test {int(own['round'].iloc[0]) + 1}")
        symbols = own["status"].map(lambda status: "circle" if status == "ok" else "x")
        shared = {"legendgroup": str(test), "mode": "lines+markers", "x": end}
        for y, dash, label, width in (
            (own["requested_pps"], "dot", f"{name}: requested", 1),
            (own["throughput_pps"], "solid", f"{name}: received", 2),
        ):
            figure.add_trace(
                go.Scatter(
                    y=y,
                    name=label,
                    line={"color": color, "dash": dash, "width": width},
                    marker={"symbol": symbols, "size": 7 if dash == "solid" else 3},
                    hovertemplate="%{x:.0f} s: %{y:.4s} frames/s<extra></extra>",
                    **shared,
                ),
                row=1,
                col=1,
            )
        figure.add_trace(
            go.Scatter(
                y=own["loss_ratio"].clip(lower=NO_LOSS),
                showlegend=False,
                line={"color": color},
                marker={"symbol": symbols, "size": 7},
                hovertemplate="%{x:.0f} s: loss %{y:.4%}<extra></extra>",
                **shared,
            ),
            row=2,
            col=1,
        )
    for row, value in ((1, line_pps), (2, limit)):
        if value is not None:
            dotted = {"dash": "dot", "color": theme.GREY, "width": 2}
            figure.add_hline(y=value, line=dotted, row=row, col=1)
    figure.update_yaxes(title_text="frames/s", exponentformat="SI", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(
        type="log", title_text="loss ratio", exponentformat="power", range=[-6.3, 0.2], row=2, col=1
    )
    figure.update_xaxes(title_text="seconds of traffic (rests are left out)", row=2, col=1)
    figure.update_layout(height=EDGES_PX + 2 * PANEL_PX, legend=theme.legend_below())
    subtitle = f"steps: warm-up, ramp, hold; ×: TRex was the limit; at {NO_LOSS:g}: no loss"
    return finish(figure, rows[rows["part"].eq("cost")], "Rate over time until the device loses", subtitle)


def _line_pps(rows: pd.DataFrame, steps: pd.DataFrame) -> float | None:
    """Return what all lines carry, unless it would push everything else to the bottom of the panel."""
    results = rows[rows["part"].eq("cost") & rows["line_pps"].notna()]
    most = (results["line_pps"] * results["senders_count"]).max()
    return None if pd.isna(most) or most > 5 * steps["requested_pps"].max() else float(most)


def line_shares(rows: pd.DataFrame, own: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw the greatest rate within the loss limit as a share of what the lines carry, own tests above published ones.

    rows: those of the experiment. own: `finding.shares(rows)`. published: `reference_tables.trex_shares()`.
    """
    figure = go.Figure()
    both = (
        (own, "measured here", theme.PALETTE[0]),
        (published, "published (TRex 2.88, 1 Gbit/s)", theme.GREY),
    )
    count = 0
    for table, name, color in both:
        some = table[table["share"].notna()]
        count += len(some)
        figure.add_bar(
            x=some["share"],
            y=[theme.plain(f"{test}") for test in some["test"]],
            orientation="h",
            name=name,
            marker={"color": color},
            text=[
                f"{si(pps, 'pps')} of {si(line, 'pps')}"
                for pps, line in some[["pps", "line_pps"]].itertuples(index=False, name=None)
            ],
            textposition="auto",
        )
    figure.update_xaxes(title_text="share of the lines' rate", tickformat=".0%", range=[0, 1.02])
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_layout(
        height=EDGES_PX + 40 + LINE_PX * max(3, count),
        legend=theme.legend_below(),
    )
    subtitle = "a frame of 64 bytes takes 84 on the line, with a VLAN tag 88; other machines are not compared"
    return finish(figure, rows[rows["part"].eq("cost")], "How much of the line is carried", subtitle)


def probe_latency(rows: pd.DataFrame, own: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw which share of the latency probes fell into each bucket, a line for each direction, beside published ones.

    Buckets are n·10^k µs wide. rows: those of the experiment. own: `finding.histogram(rows)`. published:
    `reference_tables.trex_histogram()`.
    """
    figure = go.Figure()
    lines: list[tuple[str, pd.DataFrame, str, str]] = []
    for number, ((arm, direction), table) in enumerate(own.groupby(["arm", "direction"], sort=False)):
        color = theme.PALETTE[number % len(theme.PALETTE)]
        lines.append((f"{arm}: {direction}", table, color, "solid"))
    for direction, table in published.groupby("direction", sort=False):
        dash = "dash" if str(direction).endswith("0") else "dot"
        lines.append((str(direction), table, theme.GREY, dash))
    for name, table, color, dash in lines:
        ordered = table.sort_values("bucket_us")
        figure.add_scatter(
            x=ordered["bucket_us"].clip(lower=1) / 1e6,
            y=ordered["count"] / ordered["count"].sum(),
            mode="lines+markers",
            name=theme.plain(name),
            line={"color": color, "dash": dash, "shape": "hv"},
            marker={"size": 5},
            hovertemplate="from %{x:.3s}s: %{y:.2%} of the probes<extra></extra>",
        )
    figure.update_xaxes(type="log", title_text="lower edge of the bucket (s)", exponentformat="SI")
    figure.update_yaxes(type="log", title_text="share of the probes", tickformat=".2~p")
    figure.update_layout(height=EDGES_PX + 330, legend=theme.legend_below())
    subtitle = "probes beside the load, by direction; grey: published, of another machine at 975 Mbit/s"
    return finish(figure, rows[rows["part"].eq("cost")], "Latency of the probes", subtitle)
