"""`labkit sweep`: measure every point of a grid."""

import argparse
import functools
from pathlib import Path

from labkit.commands import arguments
from labkit.commands.messages import json_text, print_error
from labkit.commands.run import judge, say_limits
from labkit.common import run_folder
from labkit.common.errors import Unsupported
from labkit.common.printable import printable
from labkit.runner import sweep, unmeasured_point
from labkit.runner.progress import Bar
from labkit.runner.sweep import Measure

NOTES = """\
An interrupted sweep resumes when the same command is given again, and it grows: after a value is
added to the file, only the new points are measured. A point on another kernel or
machine that cannot be measured is named, and the sweep goes on. `--dask` needs the extra
labkit[dask] and workers that take one point at a time.

    labkit sweep params/datapaths.yaml
    dask worker ADDRESS --resources "labkit=1" --nthreads 2
    labkit sweep params/datapaths.yaml --dask ADDRESS

The first lines of each file in params/ say what it measures: params/datapaths.yaml is the sweep of
the paper, up to 128 pairs, with MTU 1500 and 9000, and params/datapaths-quick.yaml its quick form,
three minutes long. params/findings-*.yaml are the shortened sweeps of docs/FINDINGS.md.
"""

JSON = {
    "folder": "the sweep's folder",
    "report": "the path of the HTML report",
    "failed": "points that could not be measured, each with the reason",
    "verdicts": "a list, a line for each topology and point: the columns by which points differ (`group` and `host` in"
    " `labkit rows --columns`), `topology`, `baseline`, `ratio` with its 95 % interval `low` to `high`,"
    " `degrees_of_freedom` (of Student's t), `n_count` and `rounds_count`, `how` (the estimator), `word` (the verdict),"
    " `sentence`, `metric`, `higher_is_better`;"
    " `control_…` of the baseline against itself, `whole_…` of whole runs; `disagree`: true if set-ups disagree,"
    " so that the interval is over set-ups; `widened`: true if the interval is widened because the baseline"
    " differs from itself (99 %); `change`: if two topologies are compared by what this change does to them",
    "doubts": "sentences",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a YAML file: notebook, parameters, grid"
    parser.add_argument("file", type=run_folder.named, metavar="params/FILE.yaml", help=text)
    text = "measure the points on the workers of this Dask cluster"
    parser.add_argument("--dask", metavar="ADDRESS", help=text)
    text = "copy the finished points of another sweep's folder that have the same parameters and kernel"
    parser.add_argument("--reuse", type=run_folder.named, metavar="FOLDER", help=text)
    arguments.add_percentile(parser)
    arguments.add_json(parser)
    arguments.add_keep_failed(parser)


def run(given: argparse.Namespace) -> int:
    from labkit.analysis import load, report
    from labkit.commands import json_output, terminal_tables

    bar = Bar()
    plan = sweep.load(given.file)
    say_limits(bar)
    folder = sweep.run(
        plan, bar, bar.say, _on_cluster(given.dask) if given.dask else None, given.keep_failed, given.reuse
    )
    bar.doing("writing the report")
    report.add_stills(folder / "notebook.ipynb")
    page = report.html(folder / "notebook.ipynb", folder / "report.html")
    bar.stop()
    if given.json:
        print(json_text(json_output.sweep_result(folder, page, sweep.failed(folder))))
        return judge_sweep(folder)
    result = load.load(folder, None)
    terminal_tables.show_verdicts(terminal_tables.show_observations(result))
    profiles = load.profiles(folder)
    terminal_tables.show_findings(result, profiles)
    terminal_tables.show_profiles(profiles)
    print(f"report: {printable(run_folder.display_path(page))}")
    return judge_sweep(folder)


def judge_sweep(folder: Path) -> int:
    """Return the exit code for all rows, like `run.judge`; 2 with a sentence for each point that was not measured."""
    failed = sweep.failed(folder)
    for name, why in failed.items():
        print_error(f"point {name} could not be measured: {why}")
    measured = [row for row in sweep.rows(folder) if row["point"] != unmeasured_point.POINT]
    return max(judge(measured), 2 if failed else 0)


def _on_cluster(address: str) -> Measure:
    """Return the function that measures the points of a sweep on a Dask cluster."""
    try:
        from labkit.runner.cluster import caller  # imported here, because it takes half a second
    except ModuleNotFoundError as error:
        if error.name != "distributed":
            raise
        raise Unsupported(
            "--dask needs the Python package distributed, which is not installed: pip install 'labkit[dask]'"
        ) from None
    return functools.partial(caller.measure, address)
