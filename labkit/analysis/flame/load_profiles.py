"""The profiles that runs left: rows of the observer perf_record, and the folded stacks beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.difference import Difference, difference
from labkit.analysis.flame.frame_tree import IDLE
from labkit.analysis.flame.profile import Arm, Round
from labkit.common.errors import BadInput

OBSERVER = "perf_record"
COUNTER = "cycles"  # perf_record's event where there is such a counter
# What ran outside of the experiment has this name in its profiles (labkit.measure.observers.perf.fold_stacks).
WITHIN = r"(?!elsewhere$).*"
# A segment of TCP is as long as offloads make it, and a ping is answered: each has its own unit of work.
USUAL = {"udp": "packet", "tcp": "gigabyte"}


def arm(rows: pd.DataFrame, name: str, processes: str = WITHIN) -> Arm:
    """One arm from its rows as `loading.profiles` gives them (of one point alone): a round for each profile that went
    well. Raises BadInput where there is none."""
    parameters = rows[rows["observer"].eq(OBSERVER)]
    rows = parameters[parameters["status"].eq("ok") & parameters["artefact"].notna()]
    if rows.empty and len(parameters):
        raise BadInput(f"{name} was profiled, and no profile of it counts: {why_not(parameters)}")
    if rows.empty:
        raise BadInput(f"{name} was not profiled: run it with observe=perf_record")
    report = [observed(value) for value in rows["observed"]]
    rounds = [_round(row, one) for (_, row), one in zip(rows.iterrows(), report, strict=True)]
    return Arm(name, rounds, " and ".join(sorted({str(one.get("event")) for one in report}))).only(processes)


def usual(protocol: str) -> str:
    """What costs of this load are related to, one of PER."""
    return USUAL.get(protocol, "cpu_second")


def compared(named: Iterable[tuple[str, pd.DataFrame]], protocol: str, processes: str = WITHIN) -> Difference:
    """The profiles of the left arm, of the right, and perhaps of the left measured again, each by its name and its rows
    of one point. Raises BadInput as `arm` and `difference` do."""
    left, right, *control = (arm(rows, name, processes) for name, rows in named)
    return difference(left, right, control[0] if control else None, usual(protocol))


def why_not(rows: pd.DataFrame) -> str:
    """`invalid (REASON)` of each kind of row that does not count."""
    reasons = rows["reason"].fillna("without a file of it")
    report = zip(rows["status"], reasons, strict=True)
    return "; ".join(dict.fromkeys(f"{status} ({reason})" for status, reason in report))


def _round(row: pd.Series, report: Mapping[str, Any]) -> Round:
    stacks = folded_stacks.read(Path(row["folder"]) / row["artefact"])
    hertz = report.get("frequency_hz")
    if not isinstance(hertz, int | float) or hertz <= 0:
        raise BadInput(f"{row['artefact']} does not say how often it was sampled (frequency_hz is {hertz})")
    count, size, cpu = (_known(row[name]) for name in ("received_count", "received_bytes", "cpu_s"))
    period_s = 1 / hertz
    if report.get("event") == COUNTER:
        if not cpu:
            raise BadInput(
                f"{row['artefact']} is of {COUNTER}, and its row has no cpu_s to make them seconds"
            )
        # How long a cycle took, and how many of them a sample stands for, is nothing that frequency_hz says.
        busy = sum(samples for stack, samples in stacks.items() if stack.rpartition(";")[2] not in IDLE)
        period_s = cpu / max(busy, 1)
    return Round(stacks, period_s, count, size, cpu)


def _known(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def observed(value: Any) -> dict[str, Any]:
    """What an observer saw, from a row: an object, or the text of one."""
    result = json.loads(value) if isinstance(value, str) else value
    return result if isinstance(result, dict) else {}


def work(row: Mapping[Any, Any] | pd.Series, report: Mapping[str, Any], of: str = "received_count") -> float:
    """What was done (a column of the row: packets that arrived, received_bytes, cpu_s) while an observer watched, which
    tells its own `window_s`: it begins before the row's window and ends after it, and traffic is taken to have been as
    fast outside. All pings are within both. NaN where nothing was done, or that is not known."""
    done = _known(row.get(of)) or math.nan
    window_s, longer_s = (_known(one.get("window_s")) for one in (row, report))
    if row.get("protocol") == "ping" or not window_s or not longer_s:
        return done
    return done * longer_s / window_s
