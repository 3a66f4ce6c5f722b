"""Results in the formats that trackers of benchmarks read: github-action-benchmark and Bencher.

A series is an arm at a point. Its value is the geometric mean over fresh set-ups, with the 95 % interval of it, as
figures show it.
"""

import math
from collections.abc import Iterator

import msgspec
import numpy as np
import pandas as pd

from labkit.analysis import stats
from labkit.analysis.load import Key, group_text, groups, measured_rows
from labkit.analysis.protocols import higher_is_better
from labkit.common.errors import BadInput
from labkit.common.schema import BY_NAME


def _series(rows: pd.DataFrame) -> Iterator[tuple[str, str, bool, stats.Effect]]:
    """Yield the name, the metric, its direction (whether more is better) and the mean of each arm at each point."""
    ok = measured_rows(rows)
    ok = ok[ok["role"].ne("control") & ok["value"].gt(0)]
    if ok.empty:
        raise BadInput("these rows have no valid measurement of throughput or latency")
    for key, arm, used, mean in arm_means(ok):
        metric = str(used["metric"].iloc[0])
        yield f"{arm} ({group_text(key)})", metric, higher_is_better(metric), mean


def arm_means(ok: pd.DataFrame) -> Iterator[tuple[Key, str, pd.DataFrame, stats.Effect]]:
    """Yield the group, the name, the used rows (slices, or else whole runs) and the mean of each arm of valid rows."""
    for key, group in groups(ok):
        for arm, each in group.groupby("topology", sort=False):
            slices = each[each["method"].eq("slice")]
            used = slices if len(slices) else each
            mean = stats.effect(np.log(used["value"].to_numpy(float)), list(used["setup"]))
            yield key, str(arm), used, mean


def github_action_benchmark(rows: pd.DataFrame) -> bytes:
    """Return the rows (`load.load`) as JSON for github-action-benchmark: its tool customBiggerIsBetter, or
    customSmallerIsBetter for round-trip times. Raises BadInput for both together, because a file has one direction."""
    each = list(_series(rows))
    if len({more for _, _, more, _ in each}) > 1:
        raise BadInput("throughput and round-trip times have no common direction: export two runs")
    points = [
        {"name": name, "unit": BY_NAME[metric].unit, "value": mean.ratio}
        | ({} if mean.low is None else {"range": f"{mean.low:.4g} to {mean.high:.4g}"})
        for name, metric, _, mean in each
    ]
    return msgspec.json.format(msgspec.json.encode(points)) + b"\n"


def bencher_metric_format(rows: pd.DataFrame) -> bytes:
    """Return the rows (`load.load`) as JSON in the Bencher Metric Format: throughput in bit/s, transaction (their rate)
    in 1/s, latency in ns."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for name, metric, _, mean in _series(rows):
        measure, scale = ("latency", 1e9) if metric.endswith("_s") else (metric.rpartition("_")[0], 1.0)
        bounds = {"value": mean.ratio, "lower_value": mean.low, "upper_value": mean.high}
        known = {key: one for key, one in bounds.items() if one is not None and math.isfinite(one)}
        result[name] = {measure: {key: value * scale for key, value in known.items()}}
    return msgspec.json.format(msgspec.json.encode(result)) + b"\n"
