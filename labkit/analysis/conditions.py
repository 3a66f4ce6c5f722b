"""Doubts about the condition of the machines: steal time, CPU quotas, emulated CPUs, and other load before a run."""

from __future__ import annotations

import pandas as pd

from labkit.analysis.load import emulated, hosts
from labkit.common import units

STOLEN_SHARE = 0.01
BUSY_CPUS = 0.5  # an idle machine stays below this


def host_doubts(ok: pd.DataFrame) -> list[str]:
    """Return the doubts about the rows of one host, as `load.measured_rows` returns them."""
    lines = []
    capacity = (ok["window_s"] * ok["cpus_count"]).where(ok["steal_s"].notna())
    share = float(ok["steal_s"].sum() / capacity.sum()) if capacity.sum() > 0 else 0.0
    if share >= STOLEN_SHARE:
        most = float((ok["steal_s"] / capacity).max())
        lines.append(
            f"steal: the hypervisor took {units.percent(share)} of all CPU time, up to {units.percent(most)}"
        )
    if (share := float(ok["throttled_share"].max())) > STOLEN_SHARE:
        count = int(ok["throttled_share"].gt(STOLEN_SHARE).sum())
        lines.append(
            f"a CPU quota (cgroup) stopped the run in {count} of {units.counted(len(ok), 'row')}, for up to"
            f" {units.percent(share)} of the time: the quota was measured, too"
        )
    if count := int(emulated(ok).sum()):
        lines.append(
            f"emulated CPU (TCG) in {count} of {units.counted(len(ok), 'row')}: ratios on a real CPU may differ"
        )
    return lines


def busy(df: pd.DataFrame) -> list[str]:
    """Return a doubt for each machine that was busy before its first run.

    Later runs do not count, because the kernel may still clean up after the run before. Lab VMs do not count, because
    they run nothing but the experiment.
    """
    known = df[df["busy_before_share"].notna() & df["cpus_count"].notna() & df["time"].notna()]
    first = known.sort_values("time", kind="stable").groupby("machine", dropna=False, sort=False).head(1)
    all_hosts = hosts(df)
    names = (
        {index: f"{name}: " for name, rows in all_hosts for index in rows.index} if len(all_hosts) > 1 else {}
    )
    first = first.assign(cpus=first["busy_before_share"] * first["cpus_count"])
    return [
        f"{names.get(index, '')}a busy machine: in the half second before the first run {row['cpus']:.1f} of its"
        f" {units.counted(int(row['cpus_count']), 'CPU')} were busy; the CPU time of background processes is included"
        for index, row in first.iterrows()
        if row["cpus"] > BUSY_CPUS and not str(row["where"]).startswith("vm:")
    ]
