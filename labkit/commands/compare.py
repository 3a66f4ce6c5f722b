"""`labkit compare`: compare two runs."""

from __future__ import annotations

import argparse
import os

from labkit.commands import arguments
from labkit.common.errors import BadInput

NOTES = """\
labkit refuses to compare runs that differ in something that matters, and names it. Of two hosts
only ratios to the same baseline are compared, never speeds.

    labkit compare RUN RUN
"""

JSON = {
    "lines": "a list, a line for each topology and point of both runs: the columns by which points differ,"
    " `topology`, `baseline`, `left_host`, `right_host`, `method`, `metric`, `left_median` and `right_median` in"
    " the metric's unit, `left_setups_count`, `right_setups_count`, `ratio` right to left with `low` and `high`,"
    " `relative_…` of the ratios to the baseline, `how`, `word`, `sentence`",
    "doubts": "sentences",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    arguments.add_run(parser, "left")
    arguments.add_run(parser, "right", "the folder to compare it with")
    arguments.add_json(parser)


def run(given: argparse.Namespace) -> int:
    """Run the command, and return the exit code."""
    if os.path.realpath(given.left) == os.path.realpath(given.right):
        raise BadInput(f"{given.right} is named twice: name two runs")
    from labkit.analysis import compare_runs
    from labkit.commands import json_output, terminal_tables

    table, sentences = compare_runs.compare(given.left, given.right)
    if given.json:
        print(json_output.text(json_output.compared(table, sentences)))
        return 0
    terminal_tables.show_comparison(table, sentences)
    return 0
