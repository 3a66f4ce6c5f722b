"""State what load tests found: the greatest rate, its share of line rate, and why the test ended."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.analysis.run_figures import Draw
from labkit.common.units import percent, si
from studies import reference_tables
from studies.load_test.figure import line_shares, over_time, probe_latency


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each load test that found a rate, with SHARES. rows: those of `load_test`."""
    own = rows[rows["part"].eq("cost") & rows["status"].eq("ok") & rows["throughput_pps"].notna()]
    lines = []
    for _, row in own.iterrows():
        pps, lines_pps = row["throughput_pps"], _lines_pps(row)
        share = pps / lines_pps if lines_pps else None
        lines.append(("here", _test(row), pps, lines_pps, share, row["ended"]))
    return pd.DataFrame(lines, columns=reference_tables.SHARES)


def histogram(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the latency probes of every direction by bucket: arm (with the frames that it carries), direction,
    bucket_us (lower edges), count.

    The counts of all steps, tests or multiples that say something about the device are added.
    """
    lines = [
        (f"{row['frame']} through {_device(row)}", row["direction"], int(edge), count)
        for _, row in rows[rows["status"].eq("ok")].iterrows()
        if isinstance(buckets := row.get("latency_buckets"), dict)
        for edge, count in buckets.items()
    ]
    by = ["arm", "direction", "bucket_us"]
    return pd.DataFrame(lines, columns=[*by, "count"]).groupby(by, as_index=False, sort=True).sum()


def directions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a table of each direction of every stateful test, for display."""
    some = rows[rows["part"].eq("directions")]
    lines = [
        {
            "through": _device(row),
            "mult": f"{row['mult']:g}",
            "direction": row["direction"],
            "rate": si(row["throughput_bps"], "bit/s"),
            "frames lost": f"{row['lost_count']:.0f} of {row['sent_count']:.0f}",
            "probes lost": f"{row['probes_lost_count']:.0f} of {row['probes_sent_count']:.0f}",
            "latency p50": si(row["latency_p50_s"], "s"),
            "p99": si(row["latency_p99_s"], "s"),
            "max": si(row["latency_max_s"], "s"),
            "jitter": si(row["jitter_s"], "s"),
        }
        for _, row in some[some["latency_p50_s"].notna()].iterrows()
    ]
    return pd.DataFrame(lines)


def _lines_pps(row: pd.Series[Any]) -> float:
    """Return what the lines of all sending ports carry together; 0 without a known rate."""
    return 0.0 if pd.isna(row["line_pps"]) else float(row["line_pps"] * row["senders_count"])


def report(rows: pd.DataFrame, _profiles: pd.DataFrame | None = None) -> list[str]:
    """Return a sentence for each load test. rows: those of `load_test`."""
    return [_sentence(row) for _, row in rows[rows["part"].eq("cost")].iterrows()]


def stateful(rows: pd.DataFrame, _profiles: pd.DataFrame | None = None) -> list[str]:
    """Return a sentence for each stateful test, and one for each direction of it. rows: those of `trex_stateful`."""
    result = []
    for _, row in rows[rows["part"].eq("cost")].iterrows():
        what = f"{row['frame']} through {_device(row)}, mult {row['mult']:g}"
        if row["status"] != "ok":
            result.append(f"{what}: {row['reason']}.")
            continue
        result.append(
            f"{what}: {si(row['throughput_bps'], 'bit/s')} in all, {row['connection_rate']:.4g} connections"
            f" per second, {row['connection_errors_count']:.0f} errors."
        )
        same = rows["folder"].eq(row["folder"]) & rows["point"].eq(row["point"])
        directions = rows[same & rows["part"].eq("directions")]
        result += [_direction(one) for _, one in directions[directions["latency_mean_s"].notna()].iterrows()]
    return result


def _direction(row: pd.Series[Any]) -> str:
    mean, most, jitter = (si(row[name], "s") for name in ("latency_mean_s", "latency_max_s", "jitter_s"))
    return (
        f"Direction {row['direction']}: {si(row['throughput_bps'], 'bit/s')}; the latency of probes was {mean} on"
        f" average (exponentially weighted) and {most} at most, with a jitter of {jitter}."
        f" {row['probes_lost_count']:.0f} of {row['probes_sent_count']:.0f} probes were lost"
        f" ({row['probes_sent_count'] / row['duration_s']:.0f} were sent per second)."
    )


def _device(row: pd.Series[Any]) -> str:
    return f"the device at {row['trex_server']}" if row["topology"] == "outside" else str(row["arm"])


def _test(row: pd.Series[Any]) -> str:
    return f"{row['frame']} through {_device(row)}, test {int(row['round']) + 1}"


def _sentence(row: pd.Series[Any]) -> str:
    what = _test(row)
    if row["status"] != "ok":
        return f"{what}: {row['reason']}."
    share, lines_pps = "", _lines_pps(row)
    if lines_pps:
        carried = percent(row["throughput_pps"] / lines_pps)
        share = f", {carried} of what the lines carry ({si(lines_pps, 'pps')}: {row['line']})"
    text = f"{what}: {si(row['throughput_pps'], 'pps')} arrived within the loss limit{share}; {row['ended']}."
    if pd.isna(row.get("latency_p50_s")):
        return text
    times = [si(row[f"latency_{name}_s"], "s") for name in ("p50", "p99", "max")]
    return (
        f"{text} At that rate the latency of the probes was {times[0]} (median), {times[1]} (99 %) and {times[2]} at"
        f" most, with a jitter of {si(row['jitter_s'], 's')}, in the slower direction."
    )


STATEFUL_FIGURES: dict[str, Draw] = {
    "probe_latency": lambda rows, _: probe_latency(rows, histogram(rows), reference_tables.trex_histogram()),
}
FIGURES: dict[str, Draw] = {
    "over_time": lambda rows, _: over_time(rows),
    "line_shares": lambda rows, _: line_shares(rows, shares(rows), reference_tables.trex_shares()),
    **STATEFUL_FIGURES,
}
