"""`labkit track`: keep a history of runs, and mark where it changes."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.commands import arguments
from labkit.commands.messages import json_text
from labkit.common import run_folder
from labkit.common.errors import BadInput
from labkit.common.printable import printable

if TYPE_CHECKING:
    from labkit.analysis.change_points import Change
    from labkit.analysis.history import Series

NOTES = """\
A history is a folder of Parquet files, one for each run, which DuckDB reads as one table. A series is
an arm at a point on one class of machines; machines of two classes are never in one series. Several
writers may add at once, and a run that is added twice is there once.

    labkit track add data/datapaths/RUN
    labkit track report
"""
_ADD = "add runs, sweeps or CSV files to a history"
_ADD_NOTES = """\
A CSV file has a line for each point of somebody else's series. Its first line names the columns:
series and value, and as far as they are known, low and high (the 95 % interval), time (ISO 8601;
without it the lines are in order), run, machine, kernel, metric, and higher_is_better (true, false;
without it, true). A file that grew at its end or was corrected may be added again; where lines come
between others, each needs a run.

    labkit track add results.csv
"""
_REPORT = "mark the changes of every series, and write them as one HTML page that works offline"
_REPORT_NOTES = """\
A change is marked if the 99.9 % interval of the ratio of the levels on both sides excludes 1, and
two levels fit better than a straight line. Two points on either side are the least, but small changes
need more. The page has the two runs beside each change, and what `labkit compare` and `labkit why` say of them.

    labkit track report --by kernel
    duckdb -c "SELECT kernel, arm, ratio, low, high FROM read_parquet('data/track/*.parquet')"
"""
_REPORT_JSON = {
    "page": "the path of the page",
    "doubts": "sentences",
    "series": "a list, those with changes first: its names (`experiment`, `arm`, `baseline`, `point`, `metric`,"
    " `machine_class`), `points_count`, and `changes`: `ratio` of the level after it to the one before, `low`, `high`,"
    " `before` and `after`: the names of the runs beside it, `sentence`",
}


def add_arguments(parser: arguments.CommandParser) -> None:
    more = parser.add_subparsers(metavar="add | report", required=True)
    add = arguments.add_command(more, "track add", _ADD, _ADD_NOTES, _add)
    text = "the folder of a run or a sweep, or FILE.csv"
    add.add_argument("runs", type=run_folder.named, nargs="+", metavar="RUN", help=text)
    report = arguments.add_command(more, "track report", _REPORT, _REPORT_NOTES, _report)
    text = "the order of a series: when it was measured, or the kernel's version (time)"
    report.add_argument("--by", choices=("time", "kernel"), default="time", help=text)
    text = "where to write the page; default: trend.html in the history"
    report.add_argument("--out", type=Path, metavar="FILE", help=text)
    text = "the folder of the history; default: data/track"
    for each in (add, report):
        each.add_argument("--history", action=arguments.Folder, help=text)
        arguments.add_percentile(each)
    arguments.add_json(report)
    report.prints(_REPORT_JSON)


def run(given: argparse.Namespace) -> int:
    """Refuse the command alone."""
    raise BadInput("labkit track: choose add or report")


def _folder(given: argparse.Namespace) -> Path:
    return given.history or run_folder.data_root() / "track"


def _add(given: argparse.Namespace) -> int:
    from labkit.analysis import history

    for one in given.runs:
        for path, is_new in history.add(one, _folder(given)):
            what = "added" if is_new else "already there"
            print(printable(f"{what}: {run_folder.display_path(path)}"))
    return 0


def _report(given: argparse.Namespace) -> int:
    from labkit.analysis import history, trend_page

    there = history.read(_folder(given), given.by)
    page = trend_page.write(there, given.out or _folder(given) / "trend.html")
    if given.json:
        series = [
            one.names | {"points_count": len(one.points), "changes": [_change(one, of) for of in one.changes]}
            for one in there.series
        ]
        print(json_text({"page": str(page), "doubts": there.doubts, "series": series}))
        return 0
    for sentence in (*trend_page.sentences(there), *there.doubts):
        print(f"- {printable(sentence)}")
    print(f"page: {printable(run_folder.display_path(page))}")
    return 0


def _change(of: Series, one: Change) -> dict[str, Any]:
    before, after = (str(run["run"]) for run in of.beside(one))
    return {**dataclasses.asdict(one), "before": before, "after": after, "sentence": of.sentence(one)}
