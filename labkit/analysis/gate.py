"""A gate for CI: is the new run worse than the old one by more than a margin?

A point is *worse* if its whole 95 % interval is beyond the margin, *not worse* if none of it is, and else labkit
*cannot tell*. Ratios to the common baseline are judged; without any, speeds, whose intervals include the drift between
runs. So equal runs fail by chance less often than in 1 of 40 points, and never because noise hides the answer.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from labkit.analysis.load import METRIC, group_text, groups
from labkit.common import units
from labkit.common.errors import BadInput

WORSE, NOT_WORSE, UNCLEAR = "worse", "not worse", "cannot tell"
EXIT_CODES = {NOT_WORSE: 0, WORSE: 3, UNCLEAR: 4}
SUMMARY_LINES = 6


@dataclass(frozen=True)
class Judged:
    """A point and its word, one of WORSE, NOT_WORSE and UNCLEAR.

    slower, low, high: how much slower the new run is, with its 95 % interval; 1.03 is 3 % slower.
    """

    name: str
    word: str
    slower: float
    low: float
    high: float
    sentence: str

    @property
    def size(self) -> str:
        """How much slower it is, in words: `+3.1 % [+1.2 %, +5.0 %]`."""
        one, low, high = (f"{(value - 1) * 100:+.1f} %" for value in (self.slower, self.low, self.high))
        return f"{one} [{low}, {high}]"


def margin(condition: str) -> float:
    """Return the margin of a condition `slower>3%`: 0.03. Raises BadInput for another text."""
    found = re.fullmatch(r"slower\s*>\s*([0-9]+(?:\.[0-9]+)?)\s*%", condition)
    if found is None or not 0 < float(found[1]) < 100:
        raise BadInput(f"--fail-if {condition}: write 'slower>3%', with a margin between 0 and 100 %")
    return float(found[1]) / 100


def judge(table: pd.DataFrame, beyond: float) -> list[Judged]:
    """Judge the lines of `compare_runs.compare`, the worst first."""
    if not len(table):
        return []
    relative = table["baseline"].notna()
    result = []
    for key, lines in groups(table[relative] if relative.any() else table):
        for line in lines.to_dict("records"):
            result.append(_judged(f"{line['topology']} ({group_text(key)})", line, beyond))
    return sorted(result, key=lambda one: ([WORSE, UNCLEAR, NOT_WORSE].index(one.word), -one.low))


def _judged(name: str, line: dict[Any, Any], beyond: float) -> Judged:
    ends = [line[f"judged_{end}"] for end in ("ratio", "low", "high")]
    if any(pd.isna(end) for end in ends):
        return Judged(name, UNCLEAR, 1.0, 1.0, 1.0, str(line["sentence"]))
    ratio, low, high = ends
    if METRIC[str(line["protocol"])][1]:  # more is better
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    # Another reason than the interval, for example a busy machine, may explain a difference.
    if low > 1 + beyond:
        word = WORSE if line["word"] == "slower" else UNCLEAR
    else:
        word = NOT_WORSE if high <= 1 + beyond else UNCLEAR
    return Judged(name, word, ratio, low, high, str(line["sentence"]))


def overall(judged: Sequence[Judged]) -> str:
    """Return the word about all points: worse if one is, cannot tell if one is unclear or there is none."""
    words = {one.word for one in judged}
    return WORSE if WORSE in words else NOT_WORSE if words == {NOT_WORSE} else UNCLEAR


def sentence(judged: Sequence[Judged], beyond: float) -> str:
    """Return the answer in one sentence."""
    counts = {each: sum(one.word == each for one in judged) for each in EXIT_CODES}
    many = ", ".join(f"{count} {each}" for each, count in counts.items() if count)
    points = units.counted(len(judged), "point")
    return f"{overall(judged)}: of {points} {many or 'none'} by more than {units.percent(beyond)}"


def markdown(judged: Sequence[Judged], beyond: float, names: tuple[str, str]) -> str:
    """Return a summary of about ten lines for a pull request."""
    lines = [f"**{sentence(judged, beyond)}** ({names[1]} against {names[0]})", ""]
    lines += ["| point | slower | verdict |", "|---|---|---|"]
    lines += [f"| {one.name} | {one.size} | {one.word} |" for one in judged[:SUMMARY_LINES]]
    if len(judged) > SUMMARY_LINES:
        lines.append(f"| {len(judged) - SUMMARY_LINES} more | | |")
    return "\n".join(lines) + "\n"


def junit(judged: Sequence[Judged], beyond: float) -> str:
    """Return JUnit's XML: a failure for each point that is worse, and a skipped test where labkit cannot tell."""
    kinds = {WORSE: "failure", UNCLEAR: "skipped"}
    counts = {kind: sum(one.word == of for one in judged) for of, kind in kinds.items()}
    head = f'tests="{len(judged)}" failures="{counts["failure"]}" skipped="{counts["skipped"]}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuite name="labkit compare" {head}>']
    for one in judged:
        name = f'  <testcase classname="slower by more than {units.percent(beyond)}" name="{html.escape(one.name)}"'
        if kind := kinds.get(one.word):
            message = html.escape(f"{one.word}: {one.size}; {one.sentence}")
            lines.append(f'{name}><{kind} message="{message}"/></testcase>')
        else:
            lines.append(f"{name}/>")
    return "\n".join([*lines, "</testsuite>", ""])
