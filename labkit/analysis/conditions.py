"""What machines were like while they were measured, as doubts: time that the hypervisor took, CPUs that are emulated,
and what else wanted them before."""

from __future__ import annotations

import pandas as pd

from labkit.analysis.load import emulated, hosts
from labkit.common import units

STOLEN_SHARE = 0.01
BUSY_CPUS = 0.5  # what a machine at rest does not reach


def of_host(ok: pd.DataFrame) -> list[str]:
    """Doubts about rows of one host, as `loading.measured` has them."""
    lines = []
    capacity = (ok["window_s"] * ok["cpus_count"]).where(ok["steal_s"].notna())
    share = float(ok["steal_s"].sum() / capacity.sum()) if capacity.sum() > 0 else 0.0
    if share >= STOLEN_SHARE:
        most = float((ok["steal_s"] / capacity).max())
        lines.append(
            f"steal: the hypervisor took {units.percent(share)} of all CPU time, up to {units.percent(most)}"
        )
    if count := int(emulated(ok).sum()):
        lines.append(
            f"emulated CPU (TCG) in {count} of {units.many(len(ok), 'row')}: ratios are not a real one's"
        )
    return lines


def busy(df: pd.DataFrame) -> list[str]:
    """Which machines were busy before any of these rows was measured, by what it did when their first run began: when
    later ones begin the kernel may still clear up after those before. A lab VM has no work but its run's, which
    its machine has as well."""
    known = df[df["busy_before_share"].notna() & df["cpus_count"].notna() & df["time"].notna()]
    first = known.sort_values("time", kind="stable").groupby("machine", dropna=False, sort=False).head(1)
    there = hosts(df)
    names = {index: f"{name}: " for name, rows in there for index in rows.index} if len(there) > 1 else {}
    first = first.assign(cpus=first["busy_before_share"] * first["cpus_count"])
    return [
        f"{names.get(at, '')}a busy machine: in the half second before the first run {row['cpus']:.1f} of its"
        f" {units.many(int(row['cpus_count']), 'CPU')} were busy; of what went on the CPU time is counted as well"
        for at, row in first.iterrows()
        if row["cpus"] > BUSY_CPUS and not str(row["where"]).startswith("vm:")
    ]
