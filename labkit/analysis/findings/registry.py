"""List what experiments say about their rows, beside verdicts, in the terminal and in the display of a run.

An experiment that says more than a verdict is in BY_EXPERIMENT, or in an entry point of the group `labkit.findings`.
"""

from collections.abc import Callable
from types import FunctionType

import pandas as pd

from labkit.analysis import load
from labkit.analysis.findings import loss_rates
from labkit.common import extensions

# Takes the rows of one experiment and its profiles, and returns Markdown sentences
Findings = Callable[[pd.DataFrame, pd.DataFrame], list[str]]


def by_host(rows: pd.DataFrame, report: Callable[[pd.DataFrame], list[str]]) -> list[str]:
    """Return the sentences about each host. With several hosts, those of each are below its name."""
    hosts = load.measured_hosts(rows)
    if len(hosts) < 2:
        return [f"- {sentence}" for sentence in report(rows)]
    return [
        line
        for name, own in hosts
        for line in (f"- **{name}**", *(f"    - {sentence}" for sentence in report(own)))
    ]


def searched(rows: pd.DataFrame) -> list[str]:
    """Return the rates that searches found (`loss_rates.report`)."""
    trials = rows["part"].eq("trials")
    return loss_rates.report(rows[~trials], rows[trials])


BY_EXPERIMENT: dict[str, Findings] = {"throughput": lambda rows, _profiles: by_host(rows, searched)}


def sentences(rows: pd.DataFrame, profiles: Callable[[], pd.DataFrame]) -> list[str]:
    """Return what the experiments of these rows say about them, as items of a Markdown list.

    rows: all rows of a run, with every part. profiles: returns its profiles; called only if an experiment needs them.
    """
    others = extensions.names("labkit.findings", BY_EXPERIMENT)
    result: list[str] = []
    for experiment, own in rows.groupby("experiment", sort=False):
        name = str(experiment)
        if name in others:
            result += extensions.load(others[name], FunctionType)(own, profiles())
        elif name in BY_EXPERIMENT:
            result += BY_EXPERIMENT[name](own, profiles())
    return [one if one.lstrip().startswith("- ") else f"- {one}" for one in result]


def doubts(rows: pd.DataFrame) -> list[str]:
    """Return the doubts about observations, which are rows of a part that is not compared, each once."""
    noted = rows[["doubts", "part"]].dropna().itertuples(index=False, name=None)
    lines = [f"{doubt} ({part})" for doubt, part in dict.fromkeys(noted)]
    count = int(load.emulated(rows).sum())
    return lines + [f"emulated CPU in {count} rows: times on hardware differ"] * bool(count)
