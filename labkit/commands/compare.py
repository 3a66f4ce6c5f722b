"""`labkit compare`: compare two runs."""

from __future__ import annotations

import argparse
import os

from labkit.commands import arguments
from labkit.common.errors import BadInput

NOTES = """\
labkit refuses to compare runs that differ in something that matters, and names it. Of two hosts
only ratios to the same baseline are compared, never speeds. If one of them is a published run, each
claim of docs/FINDINGS.md that it answers is judged by either run.

    labkit compare RUN RUN
    labkit compare RUN data/results/overlay
"""

JSON = {
    "lines": "a list, a line for each topology and point of both runs: the columns by which points differ,"
    " `topology`, `baseline`, `left_host`, `right_host`, `method`, `metric`, `left_median` and `right_median` in"
    " the metric's unit, `left_setups_count`, `right_setups_count`, `ratio` right to left with `low` and `high`,"
    " `relative_…` of the ratios to the baseline, `how`, `word`, `sentence`, `higher_is_better`: whether a ratio above"
    " 1 is better (throughput) or worse (latency)",
    "doubts": "sentences",
    "claims": "a list, a line for each claim that a published run answers: `name`, `sentence`; `left` and `right`:"
    " the verdict by this run alone, with `word` and `evidence`",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    arguments.add_run(parser, "left")
    arguments.add_run(parser, "right", "the folder to compare it with")
    arguments.add_percentile(parser)
    arguments.add_json(parser)


def run(given: argparse.Namespace) -> int:
    """Run the command, and return the exit code."""
    if os.path.realpath(given.left) == os.path.realpath(given.right):
        raise BadInput(f"{given.right} is named twice: name two runs")
    import pandas as pd
    from rich.console import Console

    from labkit.analysis import claims as claims_of_packages
    from labkit.analysis import compare_runs
    from labkit.commands import json_output, terminal_tables

    # A published run has thousands of rows. The status is shown on a terminal only.
    with Console(stderr=True).status("reading and comparing both runs"):
        claims = claims_of_packages.judge_by_both(given.left, given.right)
        try:
            table, sentences = compare_runs.compare(given.left, given.right)
        except BadInput as error:
            if not claims:  # some claims are about counts or durations, which `compare_runs` does not compare
                raise
            table, sentences = pd.DataFrame(), [f"speeds are not compared: {error}"]
    if given.json:
        print(json_output.text(json_output.compared(table, sentences, claims)))
        return 0
    terminal_tables.show_comparison(table, sentences)
    terminal_tables.show_claims(claims, given.left, given.right)
    return 0
