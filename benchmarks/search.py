"""Measure how long a search of NDR and PDR takes, and how far apart searches of the same switch are.

The switch is Open vSwitch in userspace, because a veth or a Linux bridge loses nothing that the generator offers. Each
search has a fresh set-up.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.promise import LABKIT, NotMeasuredError, Promise, median, note, output
from labkit.analysis.findings.loss_rates import goal_name
from labkit.common import run_folder, units

WITHIN_S, MAX_SPREAD = 60.0, 0.1
SEARCHES, QUICK = 3, 2
PARAMETERS = ("topology=ovs_netdev", "frame_bytes=64", "flows=1000", "latency=false")


def promises(quick: bool) -> Iterator[Promise]:
    """Yield the seconds of the longest search, and for each loss goal the greatest distance from the median."""
    count = QUICK if quick else SEARCHES
    note(f"{count} searches of a switch, each with its control")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        output(
            [*LABKIT, "run", "throughput", *PARAMETERS, f"rounds={count}", "--json", "--folder", str(folder)]
        )
        rows = [row for row in run_folder.read_rows(folder) if row["method"] == "search"]
    longest_s = max((row["search_s"] for row in rows if row["search_s"] is not None), default=None)
    if longest_s is None:
        raise NotMeasuredError(f"no search ended: {rows[0]['reason']}")
    yield Promise(
        "NDR and PDR of one point, the longest search",
        f"{longest_s:.1f} s",
        bound=f"<= {WITHIN_S:.0f} s",
        kept=longest_s <= WITHIN_S,
    )
    for loss, rates_pps in rates(rows).items():
        far = spread(rates_pps)
        yield Promise(
            f"{goal_name(loss)} of {count} searches, from their median", f"{far:.1%}",
            bound=f"<= {MAX_SPREAD:.0%}", kept=None if quick else len(rates_pps) == count and far <= MAX_SPREAD,
            more=", ".join(units.si(pps, "pps") for pps in rates_pps),
        )  # fmt: skip


def rates(rows: Sequence[run_folder.Row]) -> dict[float, list[float]]:
    """Return the rates that the searches of the baseline found, by loss goal. Raises NotMeasuredError without any."""
    result: dict[float, list[float]] = {}
    for row in rows:
        if row["role"] == "baseline" and row["status"] == "ok":
            result.setdefault(row["loss_goal_ratio"], []).append(row["throughput_pps"])
    if not result:
        reasons = "; ".join(dict.fromkeys(str(row["reason"]) for row in rows))
        raise NotMeasuredError(f"no search found a rate: {reasons}")
    return result


def spread(rates_pps: Sequence[float]) -> float:
    """Return the greatest distance of a rate from the median, as a share of the median."""
    middle = median(rates_pps)
    return max(abs(pps / middle - 1) for pps in rates_pps)
