"""Measure the seconds of a sweep that are not measuring, per point, and the additional cost of its notebooks.

A point is one arm in one round for one number of pairs: one measurement for a user. The overhead is the time of
`labkit.runner.run.measure` (process start, survey of the topologies, set-up, reachability, start and end of iperf3,
writing rows) without the slices, 0.1 s each, and without the requested seconds of whole runs. The report over all
points, including papermill's start, is paid once per notebook and reported separately.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import papermill
import yaml

from benchmarks.promise import LABKIT, NotMeasuredError, Promise, note, output, python
from labkit.common import run_folder
from labkit.measure.experiments.slices import SLICE_S

BOUND_S = 0.5
PARAMETERS = {
    "topology": ["veth_bridge", "macvlan_bridge"], "mtu_bytes": 1500, "pairs": [1, 2, 8], "rounds": 3,
    "slices": 6, "whole_runs": 1, "duration_s": 1, "omit_s": 0, "half_width": 0,
}  # fmt: skip
EMPTY_CELL: dict[str, object] = {
    "cell_type": "code", "source": "", "metadata": {}, "outputs": [], "execution_count": None,
}  # fmt: skip


def promises(quick: bool) -> Iterator[Promise]:
    """Yield the promise per point, and the notebook and the report, once per sweep, for information."""
    note("a small sweep")
    parameters = PARAMETERS | ({"rounds": 2, "pairs": [1, 8]} if quick else {})
    with tempfile.TemporaryDirectory() as scratch:
        start_s = _empty_notebook_s(Path(scratch))
        file = Path(scratch) / "overhead.yaml"
        datapath_parameters = {
            "notebook": "01_datapaths",
            "parameters": parameters,
            "grid": [{"protocol": ["tcp"]}],
        }
        file.write_text(yaml.safe_dump(datapath_parameters))
        begin = time.monotonic()
        output([*LABKIT, "sweep", str(file)], LABKIT_DATA=scratch)
        whole_s = time.monotonic() - begin
        (run,) = Path(scratch).rglob("run.json")
        measure_s = run_folder.read_json(run)["measuring_s"]
        windows_s, points = windows(run_folder.read_rows(run.parent))
    each_s = (measure_s - windows_s) / points
    beside_s = whole_s - measure_s
    yield Promise(
        "seconds of a sweep that are not measuring, per point", f"{each_s:.3f} s",
        f"papermill, empty notebook: {start_s:.2f} s", each_s / start_s, f"<= {BOUND_S} s", each_s <= BOUND_S,
        f"{points} points in {whole_s:.1f} s: {windows_s:.1f} s measuring, {measure_s - windows_s:.1f} s between,"
        f" {beside_s:.1f} s once for two notebooks (papermill, imports, figures) and the report;"
        f" with these, {(whole_s - windows_s) / points:.2f} s a point",
    )  # fmt: skip


def _empty_notebook_s(scratch: Path) -> float:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"nbformat": 4, "nbformat_minor": 4, "metadata": kernel, "cells": [EMPTY_CELL]}
    file = scratch / "empty.ipynb"
    file.write_text(json.dumps(notebook))
    return float(output(python("-m", "benchmarks.overhead", str(file))))


def main() -> None:
    """Execute a notebook with papermill and print the seconds. It is a separate process because Jupyter prints, too."""
    begin = time.monotonic()
    papermill.execute_notebook(sys.argv[1], f"{sys.argv[1]}.executed", progress_bar=False)
    print(time.monotonic() - begin)


def windows(rows: list[run_folder.Row]) -> tuple[float, int]:
    """Return the requested seconds that were measured, and the number of points."""
    seconds, points = 0.0, set()
    for row in rows:
        if row["status"] != "ok":
            raise NotMeasuredError(f"a row of the sweep is not ok: {row['reason']}")
        seconds += SLICE_S if row["method"] == "slice" else row["duration_s"] + row["omit_s"]
        points.add((row["point"], row["arm"]))
    return seconds, len(points)


if __name__ == "__main__":
    main()
