"""List what experiments say about their rows, beside verdicts, in the terminal and in the display of a run.

To let another experiment say more than a verdict, add it to BY_EXPERIMENT.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

import pandas as pd

from labkit.analysis import load
from labkit.analysis.findings import loss_rates
from labkit.analysis.packet_cost import cost_model
from labkit.common import extensions
from studies.monitor_cost import finding as monitor_cost
from studies.ovs_test_plan import finding as ovs_test_plan
from studies.packet_size import finding as packet_size
from studies.trex import finding as trex
from studies.virtual_tap import finding as virtual_tap

# Takes the rows of one experiment and its profiles, and returns Markdown sentences
Findings = Callable[[pd.DataFrame, pd.DataFrame], list[str]]


def _throughput(rows: pd.DataFrame, _profiles: pd.DataFrame) -> list[str]:
    return _by_host(rows, _searched)


def _ovs_test_plan(rows: pd.DataFrame, _profiles: pd.DataFrame) -> list[str]:
    return _by_host(
        rows, lambda own: [*_searched(own), *ovs_test_plan.report(own[~own["part"].eq("trials")])]
    )


def _searched(rows: pd.DataFrame) -> list[str]:
    trials = rows["part"].eq("trials")
    return loss_rates.report(rows[~trials], rows[trials])


def _by_host(rows: pd.DataFrame, report: Callable[[pd.DataFrame], list[str]]) -> list[str]:
    """Return the sentences about each host. With several hosts, those of each are below its name."""
    hosts = load.measured_hosts(rows)
    if len(hosts) < 2:
        return [f"- {sentence}" for sentence in report(rows)]
    return [
        line
        for name, own in hosts
        for line in (f"- **{name}**", *(f"    - {sentence}" for sentence in report(own)))
    ]


BY_EXPERIMENT: dict[str, Findings] = {
    "packet_size": lambda rows, profiles: packet_size.all_findings(rows, cost_model.curves(rows), profiles),
    "virtual_tap": lambda rows, _profiles: [f"- {sentence}" for sentence in virtual_tap.report(rows)],
    "monitor_cost": lambda rows, _profiles: [f"- {sentence}" for sentence in monitor_cost.report(rows)],
    "throughput": _throughput,
    "ovs_test_plan": _ovs_test_plan,
    "trex_stateless": lambda rows, _profiles: [f"- {sentence}" for sentence in trex.report(rows)],
    "trex_stateful": lambda rows, _profiles: [f"- {sentence}" for sentence in trex.stateful(rows)],
}
BY_EXPERIMENT |= extensions.load_all("labkit.findings", FunctionType, BY_EXPERIMENT)


def sentences(rows: pd.DataFrame, profiles: Callable[[], pd.DataFrame]) -> list[str]:
    """Return what the experiments of these rows say about them, as items of a Markdown list.

    rows: all rows of a run, with every part. profiles: returns its profiles; called only if an experiment needs them.
    """
    result = []
    for name, findings in BY_EXPERIMENT.items():
        if len(own := rows[rows["experiment"].eq(name)]):
            result += findings(own, profiles())
    return [one if one.lstrip().startswith("- ") else f"- {one}" for one in result]
