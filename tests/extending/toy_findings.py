"""What the experiment `jumbo` says about its rows: the throughput of each arm and MTU."""

from __future__ import annotations

import pandas as pd


def report(rows: pd.DataFrame, _profiles: pd.DataFrame) -> list[str]:
    """Return a Markdown line for each arm and MTU, with the mean of its throughput in Gbit/s."""
    ok = rows[rows["status"].eq("ok")]
    means = ok.groupby(["arm", "mtu_bytes"])["throughput_bps"].mean() / 1e9
    return [f"- {arm} at MTU {mtu:g}: {mean:.3g} Gbit/s." for (arm, mtu), mean in means.items()]
