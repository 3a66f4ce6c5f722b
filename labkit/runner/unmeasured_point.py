"""Record a point of a sweep whose host could not be used, for example because its kernel did not boot.

The record is a run folder with one row, which has the status failed and the reason. The row is in a file of its own
because it says nothing about an arm. The next attempt to measure the point removes it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.common import run_folder, safe_files, switch_options
from labkit.measure import experiments
from labkit.measure.experiments.rows import COLUMNS

POINT = "host"  # the name of the file with the row
REASON = "host_failed"  # key of run.json: why nothing was measured in this folder


def write(folder: Path, experiment: str, parameters: Mapping[str, Any], reason: str) -> None:
    """Write the row of a point that could not be measured, and run.json if nothing of the point was measured before.

    `parameters`: those of the sweep file. The others have their defaults.
    """
    kind = experiments.find(experiment).parameters
    own = kind.of({name: value for name, value in parameters.items() if name in kind.help()}).asdict()
    if not (folder / "run.json").exists() or is_only_this(folder):
        described = run_folder.describe_run(folder, experiment, own)
        run_folder.write_json(folder / "run.json", {**described, REASON: reason})
    run_folder.write_rows(folder, POINT, [_row(folder, experiment, own, reason)])


def _row(folder: Path, experiment: str, own: dict[str, Any], reason: str) -> run_folder.Row:
    given = {
        name: value for name, value in own.items() if name in COLUMNS and not isinstance(value, list | dict)
    }
    topology = _first(own.get("topology")) or experiment
    more = {
        "experiment": experiment,
        "run": folder.name,
        "point": POINT,
        "arm": topology,
        "role": "baseline",
        "topology": topology,
        **switch_options.columns(topology),
        "protocol": own.get("protocol") or _first(own.get("loads")) or "ping",
        "pairs": _first(own.get("pairs")),
        "time": run_folder.now(),
        "status": "failed",
        "reason": reason,
    }
    return {**dict.fromkeys(COLUMNS), **given, **more}


def _first(value: Any) -> Any:
    return next(iter(value), None) if isinstance(value, list | tuple) else value


def reason(folder: Path) -> str | None:
    """Return why the last attempt could not measure the point in this folder, or None."""
    if not (folder / "rows" / f"{POINT}.jsonl").exists():
        return None
    return next((str(row["reason"]) for row in run_folder.read_rows(folder) if row["point"] == POINT), None)


def is_only_this(folder: Path) -> bool:
    """Return whether this folder's run.json is that of a point without any measurement."""
    return REASON in run_folder.read_run(folder)


def remove(folder: Path) -> None:
    """Remove the row, because the point is being measured now."""
    safe_files.remove(folder / "rows" / f"{POINT}.jsonl")
