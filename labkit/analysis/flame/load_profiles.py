"""Load the profiles of runs: rows of the observer perf_record, and the files of folded stacks."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from labkit.analysis import protocols
from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.difference import Difference, difference
from labkit.analysis.flame.frame_tree import is_idle
from labkit.analysis.flame.profile import Arm, Round
from labkit.common import run_folder
from labkit.common.errors import BadInput

OBSERVER = "perf_record"
MADE_BY = f" (observe={OBSERVER} makes them)"
COUNTER = "cycles"  # perf_record's event if the CPU has this counter
OUTSIDE = "elsewhere"  # processes outside the experiment (labkit.measure.observers.perf.fold_stacks)
WITHIN = rf"(?!{OUTSIDE}$).*"
USED = [
    "folder", "artefact", "folded_stacks", "received_count", "received_bytes", "cpu_s", "transaction_rate", "window_s",
]  # fmt: skip

# perf names no object of the kernel for code that the kernel made for BPF, so that these frames have no mark. The
# number of a trampoline may be another one in every round.
BPF = r"(bpf_prog_[0-9a-f]{16}[\w.]*|bpf_dispatcher_\w+|bpf_trampoline)(?:_\d+)*(?:_\[[kj]\])?"
_BPF = re.compile(rf"(?<=;){BPF}(?=;|$)")


def arm(rows: pd.DataFrame, name: str, processes: str = WITHIN) -> Arm:
    """Return one arm from its rows of one point (`load.profiles`): one round per successful profile.

    Raises BadInput if there is none.
    """
    observed_rows, rows = usable_rows(rows, OBSERVER)
    if rows.empty and len(observed_rows):
        raise BadInput(f"{name} was profiled, but none of its profiles can be used: {why_not(observed_rows)}")
    if rows.empty:
        raise BadInput(f"{name} was not profiled: run it with observe=perf_record")
    used = rows.filter(USED).to_dict("records")
    if not any(map(has_stacks, used)):
        raise BadInput(f"there are no profiles of {name}{MADE_BY}")
    observations = [observed(value) for value in rows["observed"]]
    rounds = [_round(row, one) for row, one in zip(used, observations, strict=True)]
    event = " and ".join(sorted({str(one.get("event")) for one in observations}))
    return Arm(name, rounds, event).only(processes)


def compared(named: Iterable[tuple[str, pd.DataFrame]], protocol: str, processes: str = WITHIN) -> Difference:
    """Compare the profiles of the left arm, the right arm, and perhaps the left arm measured again.

    named: the name of each and its rows of one point. Raises BadInput as `arm` and `difference` do.
    """
    left, right, *control = (arm(rows, name, processes) for name, rows in named)
    return difference(left, right, control[0] if control else None, protocols.find(protocol).work)


def usable_rows(rows: pd.DataFrame, observer: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of an observer, and those of them that were measured and have a file."""
    seen = rows[rows["observer"].eq(observer)]
    return seen, seen[seen["status"].eq("ok") & seen["artefact"].notna()]


def has_stacks(row: Mapping[Any, Any]) -> bool:
    """Return whether a row of the observer has its stacks, as in a published run, or a file that exists."""
    if isinstance(row.get("folded_stacks"), str):
        return True
    return run_folder.artefact(row["folder"], row["artefact"]).exists()


def stacks_of(row: Mapping[Any, Any]) -> Counter[str]:
    """Return the stacks of a row of the observer. Raises BadInput like `folded_stacks.read`."""
    if isinstance(text := row.get("folded_stacks"), str):
        return folded_stacks.parse(text.split("\n"), str(row["artefact"]))
    return folded_stacks.read(run_folder.artefact(row["folder"], row["artefact"]))


def why_not(rows: pd.DataFrame) -> str:
    """Return `invalid (REASON)` for each kind of row that does not count."""
    reasons = rows["reason"].fillna("it has no file of stacks")
    report = zip(rows["status"], reasons, strict=True)
    return "; ".join(dict.fromkeys(f"{status} ({reason})" for status, reason in report))


def _round(row: Mapping[Any, Any], report: Mapping[str, Any]) -> Round:
    stacks = _with_bpf_marked(stacks_of(row))
    hertz = report.get("frequency_hz")
    if not isinstance(hertz, int | float) or hertz <= 0:
        raise BadInput(f"{row['artefact']} has no valid sampling frequency (frequency_hz is {hertz})")
    count, size, cpu = (in_window(row, name) for name in ("received_count", "received_bytes", "cpu_s"))
    period_s = 1 / hertz
    if report.get("event") == COUNTER:
        if not cpu:
            lacks = "but its row has no cpu_s to convert them to seconds"
            raise BadInput(f"{row['artefact']} was sampled by {COUNTER}, {lacks}")
        # frequency_hz does not give the duration of a cycle, nor the number of cycles per sample.
        busy = sum(samples for stack, samples in stacks.items() if not is_idle(stack.rpartition(";")[2]))
        period_s = cpu / max(busy, 1)
    return Round(stacks, period_s, count, size, cpu, run=str(row["folder"]))


def _with_bpf_marked(stacks: folded_stacks.Stacks) -> folded_stacks.Stacks:
    """Return stacks in which BPF code is of the kernel and has the same name in every round."""
    result: Counter[str] = Counter()
    for stack, count in stacks.items():
        result[_BPF.sub(rf"\1{folded_stacks.KERNEL}", stack) if ";bpf_" in stack else stack] += count
    return result


def _known(value: Any) -> float | None:
    return None if pd.isna(value) else float(value)


def observed(value: Any) -> dict[str, Any]:
    """Return an observer's report from a row, where it is an object or its JSON text."""
    result = json.loads(value) if isinstance(value, str) else value
    return result if isinstance(result, dict) else {}


def in_window(row: Mapping[Any, Any] | pd.Series, of: str) -> float | None:
    """Return the work in a row's window, or None if it is unknown. of: as of `work`.

    The generator counts requests in a time of its own, so their rate is used.
    """
    rate, window_s = _known(row.get("transaction_rate")), _known(row.get("window_s"))
    if of == "received_count" and rate is not None and window_s is not None:
        return rate * window_s
    return _known(row.get(of))


def work(row: Mapping[Any, Any] | pd.Series, report: Mapping[str, Any], of: str = "received_count") -> float:
    """Return the work done while an observer watched, or NaN if there was none or it is unknown.

    of: a column of the row (packets that arrived, received_bytes, cpu_s). The observer's own `window_s` starts before
    the row's window and ends after it; the work is scaled to it, as if traffic had the same rate outside the row's
    window. All pings are within both windows.
    """
    done = in_window(row, of) or math.nan
    window_s, longer_s = (_known(one.get("window_s")) for one in (row, report))
    if row.get("protocol") == "ping" or not window_s or not longer_s:
        return done
    return done * longer_s / window_s
