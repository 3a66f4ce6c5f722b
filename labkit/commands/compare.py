"""`labkit compare`: compare two runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.commands import arguments
from labkit.commands.messages import json_text
from labkit.common import run_folder
from labkit.common.errors import BadInput
from labkit.common.printable import printable

if TYPE_CHECKING:
    from labkit.analysis import gate

NOTES = """\
labkit refuses to compare runs that differ in something that matters, and names it. Of two hosts
only ratios to the same baseline are compared, never speeds. If one of them is a published run, each
claim of docs/FINDINGS.md that it answers is judged by either run.

    labkit compare RUN RUN
    labkit compare RUN data/results/overlay

With --fail-if the exit code is the answer: 0 not worse, 3 worse by more than the margin, 4 cannot
tell, 2 an error. Ratios to the common baseline are judged; without any, speeds. `slower` is about
throughput or latency, `cpu` about CPU time for each packet (TCP: byte) that arrived, `loss` about
the share of lost packets.

    labkit compare OLD NEW --fail-if 'slower>3%' --markdown summary.md --junit gate.xml
    labkit compare OLD NEW --fail-if 'slower>3%' --fail-if 'cpu>5%' --fail-if 'loss>0.1%'

`labkit run … --fail-if` without --against judges the arms of one run against its baseline, which took
turns with them: use it where both builds can run at once, as arms. A slowdown of 5 % is less than two
runs may drift apart, so only arms, or kernels in turn (`labkit bisect --gate`), can prove it.

    labkit run datapaths 'change=new: program iperf3=/opt/new/bin/iperf3' --fail-if 'slower>2.5%'

Without rounds= it measures until it can tell, for at most 120 rounds (ten minutes for one point on a
quiet machine). In simulations it then finds a slowdown of twice the margin.
docs/method/ci.md says how often it is wrong.

With --git-bisect the exit code is for `git bisect run`: 0 good (not worse), 1 bad (worse), 125 skip
(cannot tell, or nothing could be measured, for example because the kernel does not boot), 255 stop
(wrong input).

Of two kernels, only ratios to a baseline are judged, so name two topologies, as in GOOD. A slowdown
that both share is not seen: `labkit bisect --over kernels`, over images, sees it.

    git bisect run sh -c 'make -j8 || exit 125; labkit run datapaths topology=veth,veth_bridge rounds=5 \\
        where=vm:$PWD/arch/x86/boot/bzImage --against GOOD --fail-if "slower>3%" --git-bisect'
"""

JSON = {
    "lines": "a list (empty if the arms of one run are judged), a line for each topology and point of both runs: the"
    " columns by which points differ,"
    " `topology`, `baseline`, `change` (whose effects on two topologies are compared), `left_host`, `right_host`,"
    " `method`, `metric`, `left_median` and `right_median` in the metric's unit, `left_setups_count`,"
    " `right_setups_count`, `ratio` right to left with `low` and `high`, `relative_…` of the ratios to the baseline,"
    " `judged_…`: what `word` and `sentence` are about, the relative ratio if there is one, else the plain one with the"
    " drift between runs; `how`, `word`, `why` there is no evidence if that is not the interval, `sentence`,"
    " `higher_is_better`: whether a ratio above 1 is better (throughput) or worse (latency)",
    "doubts": "sentences",
    "gate": "null without --fail-if; `word` (worse, not worse, cannot tell) and `points`, each with `name`, `word`, and"
    " how much `slower` or otherwise worse it is, with `low` and `high` (1.03: 3 %), `sentence`, `arm`,"
    " `condition`, `degrees_of_freedom` (null: the interval is not Student's t)",
    "claims": "a list, a line for each claim that a published run answers: `name`, `sentence`; `left` and `right`:"
    " the verdict by this run alone, with `word` and `evidence`",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_run(parser, "left")
    arguments.add_run(parser, "right", "the folder to compare it with")
    arguments.add_percentile(parser)
    arguments.add_json(parser)
    arguments.add_gate(parser)


def run(given: argparse.Namespace) -> int:
    return arguments.for_git_bisect(given, lambda: show(given.left, given.right, given))


def show(left: Path, right: Path, given: argparse.Namespace) -> int:
    """Compare two runs and print the result as the options of `given` say; return the exit code."""
    if os.path.realpath(left) == os.path.realpath(right):
        raise BadInput(f"{right} is named twice: name two runs")
    if given.fail_if is None:
        arguments.refuse(given, ("markdown", "junit", "git_bisect"), "without --fail-if")
    import pandas as pd
    from rich.console import Console

    from labkit.analysis import claims as claims_of_packages
    from labkit.analysis import compare_runs, gate
    from labkit.commands import json_output, terminal_tables

    conditions = [gate.condition(one) for one in given.fail_if or ()]
    # A published run has thousands of rows. The status is shown on a terminal only.
    with Console(stderr=True).status("reading and comparing both runs"):
        claims = claims_of_packages.judge_by_both(left, right)
        try:
            table, doubts = compare_runs.compare(left, right)
            sentences = doubts()
        except BadInput as error:
            if not claims:  # some claims are about counts or durations, which `compare_runs` does not compare
                raise
            table, sentences = pd.DataFrame(), [f"speeds are not compared: {error}"]
        judged = gate.judge_runs(left, right, table, conditions)
    if given.json:
        print(json_text(json_output.compared(table, sentences, claims, judged)))
    else:
        terminal_tables.show_comparison(table, sentences)
        terminal_tables.show_claims(claims, left, right)
    return written(judged, conditions, given, (left.name, right.name)) if conditions else 0


def written(
    judged: list[gate.Judged],
    conditions: Sequence[gate.Condition],
    given: argparse.Namespace,
    names: tuple[str, str],
) -> int:
    """Write what a gate says of the runs or arms of these names as the options of `given` say; return the exit code."""
    from labkit.analysis import gate

    if given.markdown is not None:
        run_folder.write(given.markdown, gate.markdown(judged, conditions, names).encode())
    if given.junit is not None:
        run_folder.write(given.junit, gate.junit(judged).encode())
    for sentence in [] if given.json else gate.sentences(judged, conditions):
        print(printable(sentence))
    return gate.EXIT_CODES[gate.overall(judged)]
