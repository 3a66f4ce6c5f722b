"""Load tests: rate, loss and latency over time, the share of the line's rate, and the latency of probes, each beside
published results of another machine."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go
from plotly.colors import hex_to_rgb

from labkit.analysis import figures, theme
from labkit.analysis.figures.over_time import Curve
from labkit.analysis.figures.panels import finish
from labkit.common.units import si

EDGES_PX, LINE_PX = 130, 36
NO_LOSS = 1e-6  # position of steps without loss on the logarithmic axis
PANELS = ("frames", "loss", "latency")
DASHES = ("solid", "dash", "dot")
SMOKE = 0.2  # opacity of the band from the median to the 99th percentile


def over_time(rows: pd.DataFrame) -> go.Figure:
    """Draw the rates of all ports together, the loss ratio and the latency of probes against time; lines for each test.

    A cross is a step that says nothing about the device (invalid). Dashed lines: the rate of the lines if it is near,
    and the loss limit. rows: those of `load_test`, with the part `steps`.
    """
    every = rows[rows["part"].eq("steps") & rows["offered_pps"].notna()]
    steps = every[every["direction"].eq("all")]
    line_pps = _line_pps(rows, steps)
    limit = float(steps["loss_goal_ratio"].max()) if steps["loss_goal_ratio"].nunique() == 1 else None
    of_line = "" if line_pps is None else f", dashed: all lines full ({si(line_pps, 'pps')})"
    of_limit = "" if limit is None else f", dashed: the limit ({100 * limit:g} %)"
    titles = (
        f"Rate{of_line}",
        f"Loss{of_limit}",
        "Latency: median, band up to the 99th percentile, dots: greatest",
    )
    lines: list[Curve] = []
    tests = list(steps.groupby(["arm", "folder", "point", "role"], sort=False))
    colors = [theme.arm_style(str(arm), str(role)).color for (arm, *_, role), _ in tests]
    if len(set(colors)) < len(colors):
        colors = [theme.PALETTE[number % len(theme.PALETTE)] for number in range(len(tests))]
    for color, ((arm, folder, point, _), own) in zip(colors, tests, strict=True):
        name = theme.plain(f"{own['frame'].iloc[0]} · {arm} · test {int(own['round'].iloc[0]) + 1}")
        same = every["folder"].eq(str(folder)) & every["point"].eq(str(point))
        lines += _of_test(name, color, own, every[same & every["direction"].ne("all")])
    figure = figures.over_time([*zip(titles, PANELS, strict=True)], lines, "seconds since the test began")
    for row, value in ((1, line_pps), (2, limit)):
        if value is not None:
            figure.add_hline(y=value, line={"dash": "dash", "color": theme.GREY, "width": 2}, row=row, col=1)
    figure.update_xaxes(matches="x")
    subtitle = (
        f"steps: warm-up, ramp, hold; ×: the generator or the machine was the limit; at {NO_LOSS:g}: no loss"
    )
    return finish(figure, rows[rows["part"].eq("cost")], "Rate, loss and latency over time", subtitle)


def _of_test(name: str, color: str, steps: pd.DataFrame, ways: pd.DataFrame) -> Iterator[Curve]:
    """Yield the lines of a load test. Latencies are those of the slower direction, of steps that are not disturbed."""
    middle = (steps["time_s"] + steps["duration_s"] / 2).to_numpy(float)
    symbols = ["circle" if status == "ok" else "x" for status in steps["status"]]
    solid, dotted = {"color": color, "width": 2}, {"color": color, "width": 1, "dash": "dot"}
    marked = {"mode": "lines+markers", "marker": {"symbol": symbols, "size": 6}}

    def by_time(column: str) -> pd.Series[float]:
        return pd.Series(steps[column].to_numpy(float), middle)

    yield Curve(1, f"{name}: requested", by_time("requested_pps"), dotted)
    yield Curve(1, f"{name}: received", by_time("throughput_pps"), solid, marked)
    yield Curve(2, f"{name}: received", by_time("loss_ratio").clip(lower=NO_LOSS), solid, marked)
    known = ways[ways["status"].eq("ok") & ways["latency_p50_s"].notna()].sort_values("latency_p99_s")
    known = known.assign(middle=known["time_s"] + known["duration_s"] / 2)
    slower = known.groupby("middle").tail(1).set_index("middle").sort_index()
    red, green, blue = hex_to_rgb(color)
    none = {"color": color, "width": 0}
    smoke = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},{SMOKE})", "hoverinfo": "skip"}
    dots = {"mode": "markers", "marker": {"size": 4, "color": color}}
    yield Curve(3, f"{name}: received", slower["latency_p50_s"], solid)
    yield Curve(3, f"{name}: received", slower["latency_p99_s"], none, smoke)
    yield Curve(3, f"{name}: received", slower["latency_max_s"], none, dots)


def _line_pps(rows: pd.DataFrame, steps: pd.DataFrame) -> float | None:
    """Return what all lines carry, if it is the same in all tests and does not push everything else to the bottom."""
    results = rows[rows["part"].eq("cost") & rows["line_pps"].notna()]
    full = results["line_pps"] * results["senders_count"]
    is_far = full.max() > 5 * steps["requested_pps"].max()
    return float(full.max()) if full.nunique() == 1 and not is_far else None


def line_shares(rows: pd.DataFrame, own: pd.DataFrame, published: pd.DataFrame) -> go.Figure:
    """Draw the greatest rate within the loss limit as a share of what the lines carry, own tests above published ones.

    rows: those of the experiment. own: `finding.shares(rows)`. published: `reference_tables.trex_shares()`.
    """
    figure = go.Figure()
    both = (
        (own, "measured here", theme.PALETTE[0]),
        (published, "published (TRex 2.88, 1 Gbit/s)", theme.GREY),
    )
    names: list[str] = []  # points of a sweep have tests of the same name
    for table, name, color in both:
        some = table[table["share"].notna()]
        places = list(range(len(names), len(names) + len(some)))
        names += [theme.plain(f"{test}") for test in some["test"]]
        figure.add_bar(
            x=some["share"], y=places, orientation="h", name=name, marker={"color": color},
            text=[
                f"{si(pps, 'pps')} of {si(line, 'pps')}"
                for pps, line in some[["pps", "line_pps"]].itertuples(index=False, name=None)
            ],
            textposition="auto", hoverinfo="x+text",
        )  # fmt: skip
    figure.update_xaxes(title_text="share of the lines' rate", tickformat=".0%", range=[0, 1.02])
    figure.update_yaxes(autorange="reversed", automargin=True, tickvals=[*range(len(names))], ticktext=names)
    figure.update_layout(height=EDGES_PX + 40 + LINE_PX * max(3, len(names)), legend=theme.legend_below())
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
        cycle, place = divmod(number, len(theme.PALETTE))
        dash = DASHES[cycle % len(DASHES)]  # where colours repeat
        lines.append((f"{arm}: {direction}", table, theme.PALETTE[place], dash))
    for direction, table in published.groupby("direction", sort=False):
        dash = "dash" if str(direction).endswith("0") else "dot"
        lines.append((str(direction), table, theme.GREY, dash))
    for name, table, color, dash in lines:
        ordered = table.sort_values("bucket_us")
        figure.add_scatter(
            x=ordered["bucket_us"].clip(lower=1) / 1e6, y=ordered["count"] / ordered["count"].sum(),
            mode="lines+markers", name=theme.plain(name), line={"color": color, "dash": dash, "shape": "hv"},
            marker={"size": 5}, hovertemplate="from %{x:.3s}s: %{y:.2%} of the probes<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(type="log", title_text="lower edge of the bucket (s)")
    figure.update_yaxes(type="log", title_text="share of the probes", tickformat=".2~p")
    figure.update_layout(height=EDGES_PX + 330, legend=theme.legend_below())
    subtitle = "probes beside the load, by direction; grey: published, of another machine at 975 Mbit/s"
    return finish(figure, rows[rows["part"].eq("cost")], "Latency of the probes", subtitle)
