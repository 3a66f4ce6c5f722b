"""What machines were like while they were measured, as doubts: time that the hypervisor took, CPUs that are emulated,
and what else wanted them before."""

from __future__ import annotations

import pandas as pd

from labkit import units
from labkit.loading import emulated, hosts

STOLEN_SHARE = 0.01


def of_host(ok: pd.DataFrame) -> list[str]:
    """Doubts about rows of one host, as `loading.measured` has them."""
    said = []
    capacity = (ok["window_s"] * ok["cpus_count"]).where(ok["steal_s"].notna())
    share = float(ok["steal_s"].sum() / capacity.sum()) if capacity.sum() > 0 else 0.0
    if share >= STOLEN_SHARE:
        most = float((ok["steal_s"] / capacity).max())
        said.append(
            f"steal: the hypervisor took {units.percent(share)} of all CPU time, up to {units.percent(most)}"
        )
    if count := int(emulated(ok).sum()):
        said.append(
            f"emulated CPU (TCG) in {count} of {units.many(len(ok), 'row')}: ratios are not a real one's"
        )
    return said


def busy(df: pd.DataFrame) -> list[str]:
    """Which machines were busy before any of these rows was measured, by the load when their first run began: when
    later ones began it was that of the runs before. A lab VM has no other work than its run's, which is load of the
    machine that it is on as well."""
    known = df[df["load1_before"].notna() & df["cpus_count"].notna() & df["time"].notna()]
    first = known.sort_values("time", kind="stable").groupby("machine", dropna=False, sort=False).head(1)
    there = hosts(df)
    names = {index: f"{name}: " for name, rows in there for index in rows.index} if len(there) > 1 else {}
    return [
        f"{names.get(at, '')}a busy machine: in the minute before the first run {row['load1_before']:.1f} programs on"
        f" average ran on its {units.many(int(row['cpus_count']), 'CPU')}, or waited for one or for a disk (load1); of"
        " those that went on the CPU time is counted as well"
        for at, row in first.iterrows()
        if row["load1_before"] > row["cpus_count"] and not str(row["where"]).startswith("vm:")
    ]
