"""The published runs in data/results, each loaded once."""

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import load, published_runs, run_figures, verdicts
from labkit.common import run_folder

FULL_LENGTH = {  # the sweep of each run at full length, in params/
    "datapaths": "datapaths", **dict.fromkeys(("ipvlan", "ipvlan_1500"), "datapaths"), "load_test": "trex",
    **{it: it for it in ("container_vs_vm", "published_ports", "packet_size", "overlay", "virtual_tap", "two_nodes")},
    "ovs_test_plan": "ovs_test_plan", "ovs_test_plan_vlan": "ovs_test_plan", "tenants": "overlay",
    "switched": "two_nodes", "two_vms": "two_nodes", "few_pairs": "findings-two_nodes", "uplink": "virtual_tap",
    **{it: f"findings-{it}" for it in ("mtu", "mirrors", "mirrors_kernel", "mirror_count", "round_trip", "offloads")},
}  # fmt: skip


def how_to_measure(run: str) -> str:
    """Return the command that measures a run that is not published, with the shortened sweep if there is one."""
    short = run_folder.project_root() / f"params/findings-{run}.yaml"
    return f"`labkit sweep params/{short.name if short.exists() else f'{FULL_LENGTH.get(run, run)}.yaml'}`"


class Results:
    """The published runs in a folder, by name.

    folder: data/results of the project, or else labkit's own. runs: folders of runs or sweeps by names of published
    ones. They take the place of all published runs.
    """

    def __init__(self, folder: Path | None = None, runs: Mapping[str, Path] | None = None) -> None:
        self._runs = runs or {}
        roots = (run_folder.project_root(), Path(__file__).resolve().parents[2])
        places = [folder] if folder else [root / "data" / "results" for root in roots]
        self.folder = next((place for place in places if place.is_dir()), places[0])
        self.rows = functools.cache(self._rows)
        self._rows_and_profiles = functools.cache(lambda name: load.rows_and_profiles(self._place(name)))
        self.verdicts = functools.cache(self._verdicts)
        self.ratios = functools.cache(self._ratios)

    def names(self) -> list[str]:
        """Return the names of the published runs."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{published_runs.ROWS}"))

    def has(self, name: str) -> bool:
        """Return whether a run was published, or another one takes its place."""
        return name in self._runs if self._runs else published_runs.is_published(self.folder / name)

    def description(self, name: str) -> dict[str, Any]:
        """Return run.json of a published run."""
        return run_folder.read_run(self.folder / name)

    def _place(self, name: str) -> Path:
        return self._runs.get(name, self.folder / name)

    def _rows(self, name: str, part: str | None = "cost") -> pd.DataFrame:
        return self._rows_and_profiles(name)[0] if part == "cost" else load.load(self._place(name), part)

    def profiles(self, name: str) -> pd.DataFrame:
        """Return the rows of a run that were measured beside an observer."""
        return self._rows_and_profiles(name)[1]

    def figures(self, name: str) -> dict[str, Callable[[], go.Figure]]:
        """Return a function for each figure of a run, by name, which draws it (`run_figures.of_run`)."""
        return run_figures.of_run(load.load(self._place(name), None), lambda: self.profiles(name))

    def compared_rows(self, name: str, of: str = "speed") -> pd.DataFrame:
        """Return the rows of a run that have this metric (of METRICS)."""
        metric, rows_of = METRICS[of]
        rows = rows_of(self.rows(name))
        return rows if metric is None else rows.assign(metric=metric)

    def _verdicts(self, name: str, of: str = "speed") -> pd.DataFrame:
        return verdicts.verdicts(self.compared_rows(name, of), pairs=self.ratios(name, of))

    def doubts(self, name: str) -> list[str]:
        """Return every reason for doubt about a run and its verdicts (`verdicts.doubts`)."""
        rows = self.rows(name)
        return verdicts.doubts(rows, self.ratios(name), self.verdicts(name)) if len(rows) else []

    def _ratios(self, name: str, of: str = "speed") -> pd.DataFrame:
        return verdicts.ratios(self.compared_rows(name, of))


def _shares_of_cpus(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each set-up of an arm, with shares of the time of all CPUs: idle, and in the switch's threads.

    The kernel counts CPU time in steps of 10 ms, of which a slice has few. Time that the hypervisor took is not idle.
    """
    ok = rows[rows["status"].eq("ok") & rows["cpu_s"].notna()]
    setup = [*load.varying(ok, [*load.GROUP, "folder", "round", "method"]), "arm"]
    sums = ok.groupby(setup, dropna=False)[["window_s", "cpu_s", "steal_s", "switch_cpu_s"]].transform("sum")
    whole_s = ok["cpus_count"] * sums["window_s"]
    idle_s = whole_s - sums["cpu_s"] - sums["steal_s"]
    shares = {"idle_ratio": idle_s / whole_s, "switch_ratio": sums["switch_cpu_s"] / whole_s}
    return ok.assign(**shares).drop_duplicates(setup).assign(method="whole", slice=math.nan)


def _of_udp(rows: pd.DataFrame) -> pd.DataFrame:
    lost = rows["lost_count"] / rows["sent_count"].where(rows["sent_count"].gt(0))
    return rows[rows["protocol"].eq("udp")].assign(arrived_ratio=1 - lost)


# What two arms are compared by: a column (None: the usual metric), and the rows that have it.
METRICS: dict[str, tuple[str | None, Callable[[pd.DataFrame], pd.DataFrame]]] = {
    "speed": (None, lambda rows: rows),
    "jitter": ("jitter_s", _of_udp),
    "arrived": ("arrived_ratio", _of_udp),
    "idle": ("idle_ratio", _shares_of_cpus),
}
