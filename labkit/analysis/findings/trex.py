"""State what load tests with TRex found: the greatest rate, its share of line rate, and why the test ended."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.common.units import percent, si


def report(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each load test. rows: those of the experiments with TRex."""
    return [_sentence(row) for _, row in rows[rows["part"].eq("cost")].iterrows()]


def stateful(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each stateful test, and one for each direction of it. rows: those of `trex_stateful`."""
    result = []
    for _, row in rows[rows["part"].eq("cost")].iterrows():
        what = f"{row['frame']} through the device at {row['trex_server']}, mult {row['mult']:g}"
        if row["status"] != "ok":
            result.append(f"{what}: {row['reason']}.")
            continue
        result.append(
            f"{what}: {si(row['throughput_bps'], 'bit/s')} in all, {row['connection_rate']:.4g} connections"
            f" per second, {row['connection_errors_count']:.0f} errors."
        )
        ways = rows[rows["point"].eq(row["point"]) & rows["part"].eq("directions")]
        result += [_way(way) for _, way in ways[ways["latency_mean_s"].notna()].iterrows()]
    return result


def _way(row: pd.Series[Any]) -> str:
    times = (si(row[name], "s") for name in ("latency_mean_s", "latency_max_s", "jitter_s"))
    mean, most, jitter = times
    return (
        f"Direction {row['direction']}: {si(row['throughput_bps'], 'bit/s')}; the latency of probes was {mean} on"
        f" average (exponentially weighted) and {most} at most, with a jitter of {jitter}."
        f" {row['probes_lost_count']:.0f} of {row['probes_sent_count']:.0f} probes were lost."
    )


def _sentence(row: pd.Series[Any]) -> str:
    what = f"{row['frame']} through the device at {row['trex_server']}, test {int(row['round']) + 1}"
    if row["status"] != "ok":
        return f"{what}: {row['reason']}."
    share = ""
    if pd.notna(row["line_pps"]) and row["line_pps"] > 0:
        directions = 2 if row["direction"] == "all" and row["senders_count"] == 2 * row["pairs"] else 1
        most = directions * row["pairs"] * row["line_pps"]
        share = f", {percent(row['throughput_pps'] / most)} of what the lines carry ({si(most, 'pps')}: {row['line']})"
    return f"{what}: {si(row['throughput_pps'], 'pps')} arrived within the loss limit{share}; {row['ended']}."
