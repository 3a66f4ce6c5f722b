"""List the figures that a run shows (`labkit.notebook.Run.figures`, `data/results/`), by experiment.

To let another experiment show more than verdicts and throughput, add it to BY_EXPERIMENT.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, load, protocols, verdicts
from labkit.analysis.figures import overlay
from labkit.analysis.figures.panels import KEYS
from labkit.analysis.findings import loss_rates
from labkit.analysis.packet_cost import cost_model, function_time_claim
from labkit.common import schema
from studies.container_vs_vm import endpoint_kinds
from studies.monitor_cost import finding as monitor_cost
from studies.ovs_test_plan import finding as ovs_test_plan
from studies.trex import finding as trex
from studies.virtual_tap import finding as virtual_tap
from studies.virtual_tap import mirror_tax

# Takes all rows of one experiment and returns its profiles on demand, because reading those takes time
Profiles = Callable[[], pd.DataFrame]
Draw = Callable[[pd.DataFrame, Profiles], go.Figure]

# The columns that divide rows, but neither panels nor the axis of a chart over pairs
_UNDIVIDED = [name for name in schema.names(use="group") if name not in (*KEYS, "pairs")]


def of_run(table: pd.DataFrame, profiles: Profiles) -> dict[str, Callable[[], go.Figure]]:
    """Return a function for each figure of a run or a sweep, by name, which draws it. A figure may be without data.

    table: all rows (`load.load` with part None). The figures are those of BY_EXPERIMENT, and the `usual` ones for each
    number of nodes.
    """
    made: dict[str, Callable[[], go.Figure]] = {}
    for experiment, rows in table.groupby("experiment", sort=False):
        for name, draw in BY_EXPERIMENT.get(str(experiment), {}).items():
            made[name] = functools.partial(draw, rows, profiles)
    for nodes, rows in part(table, "cost").groupby("nodes", sort=True):
        end = " (two nodes)" if nodes == "two" else ""
        made |= {f"{name}{end}": draw for name, draw in usual(rows, verdicts.verdicts(rows)).items()}
    return made


def usual(rows: pd.DataFrame, compared: pd.DataFrame) -> dict[str, Callable[[], go.Figure]]:
    """Return the figures of compared rows and their verdicts: the verdicts, and three charts over the number of pairs.

    The charts are left out where they would pool rows that are never compared, for example two loss goals.
    """
    made = {"forest": lambda: figures.forest(compared)}
    by_protocol = rows[rows["status"].eq("ok")].groupby("protocol")
    if by_protocol[_UNDIVIDED].nunique(dropna=False).gt(1).to_numpy().any():
        return made
    return made | {
        "throughput": lambda: figures.throughput(rows),
        "cpu_per_gigabyte": lambda: figures.cpu_per_gigabyte(rows),
        "slices": lambda: figures.slices(rows),
    }


def _part(name: str, draw: Callable[[pd.DataFrame], go.Figure]) -> Draw:
    """Return a function that draws the rows of one part, or an empty figure without any."""

    def drawn(rows: pd.DataFrame, _profiles: Profiles) -> go.Figure:
        own = part(rows, name)
        return draw(own) if len(own) else go.Figure()

    return drawn


def part(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of one part of an experiment. Experiments without parts have `cost` only."""
    return rows[rows["part"].fillna("cost").eq(name)]


def _mirror_count(rows: pd.DataFrame) -> go.Figure:
    lines = virtual_tap.against_none(verdicts.verdicts(rows))
    return figures.mirror_count(rows, lines, virtual_tap.thesis_count())


def _uplink(rows: pd.DataFrame) -> go.Figure:
    table = virtual_tap.uplink(rows)
    return figures.uplink(rows, table, virtual_tap.thesis_uplink()) if len(table) else go.Figure()


def _load_loss(rows: pd.DataFrame) -> go.Figure:
    return figures.load_loss(part(rows, "trials"), loss_rates.rates(part(rows, "cost")))


def _of_one_host(draw: Callable[[pd.DataFrame], go.Figure]) -> Draw:
    """Return a function that draws rows of one host. Rates of several hosts have no common figure."""

    def drawn(rows: pd.DataFrame, _profiles: Profiles) -> go.Figure:
        return draw(rows) if len(load.measured_hosts(rows)) == 1 else go.Figure()

    return drawn


def _ranked_factors(rows: pd.DataFrame) -> go.Figure:
    own = part(rows, "cost")
    return figures.ranked_factors(own, ovs_test_plan.factors(own)) if len(own) else go.Figure()


def _use_cases(rows: pd.DataFrame) -> go.Figure:
    own = part(rows, "cost")
    if not len(own):
        return go.Figure()
    return figures.use_cases(own, ovs_test_plan.rates(own), ovs_test_plan.published())


def _function_times(_rows: pd.DataFrame, profiles: Profiles) -> go.Figure:
    times = function_time_claim.times(profiles())
    return figures.function_durations(times) if len(times) else go.Figure()


def _overhead(rows: pd.DataFrame, _profiles: Profiles) -> go.Figure:
    headers = part(rows, "headers")
    return figures.overhead(headers, verdicts.verdicts(part(rows, "cost"))) if len(headers) else go.Figure()


def _trex(draw: Callable[[pd.DataFrame], go.Figure]) -> Draw:
    """Return a function that draws tests with TRex. A run without a single test lacks two columns."""

    def drawn(rows: pd.DataFrame, _profiles: Profiles) -> go.Figure:
        missing = [name for name in ("direction", "latency_buckets") if name not in rows]
        return draw(rows.assign(**dict.fromkeys(missing)))

    return drawn


def _line_shares(rows: pd.DataFrame) -> go.Figure:
    return figures.line_shares(rows, trex.shares(rows), trex.published_shares())


def _probe_latency(rows: pd.DataFrame) -> go.Figure:
    return figures.probe_latency(rows, trex.histogram(rows), trex.published_histogram())


BY_EXPERIMENT: dict[str, dict[str, Draw]] = {
    "container_vs_vm": {
        "endpoint_kinds": _part("cost", lambda rows: figures.ends(rows, endpoint_kinds.published())),
        "cpu_time": _part(
            "cost",
            lambda rows: go.Figure() if rows["protocol"].isin(protocols.TIMED).all() else figures.sides(rows),
        ),
    },
    "overlay": {
        "hops": _part("path", overlay.hops),
        "reachability": _part("reachability", overlay.matrix),
        "failure": _part("failure", overlay.failure),
        "cost": _part("cost", figures.cost),
        "overhead": _overhead,
    },
    "packet_size": {
        "rates": _part("cost", figures.rates),
        "cost_fit": _part(
            "cost",
            lambda rows: figures.fitted(rows, cost_model.without_proportional_time(cost_model.curves(rows))),
        ),
        "function_times": _function_times,
    },
    "what_does_it_cost": {"price_list": _part("cost", lambda rows: figures.price_list(figures.prices(rows)))},
    "virtual_tap": {
        "mirror_tax": _part("cost", lambda rows: figures.mirror_tax(rows, mirror_tax.taxes(rows))),
        "mirror_count": _part("cost", _mirror_count),
        "uplink": _part("cost", _uplink),
    },
    "monitor_cost": {
        "monitor_cost": _part("cost", lambda rows: figures.monitor_cost(rows, monitor_cost.costs(rows)))
    },
    "throughput": {"load_loss": _of_one_host(_load_loss)},
    "ovs_test_plan": {
        "ranked_factors": _of_one_host(_ranked_factors),
        "use_cases": _of_one_host(_use_cases),
        "load_loss": _of_one_host(_load_loss),
    },
    "trex_stateless": {
        "ramp": _trex(figures.ramp),
        "line_shares": _trex(_line_shares),
        "probe_latency": _trex(_probe_latency),
    },
    "trex_stateful": {"probe_latency": _trex(_probe_latency)},
}
