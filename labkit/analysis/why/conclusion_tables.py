"""Build the tables of a conclusion: candidate causes with evidence, differing settings, and where the work goes."""

from __future__ import annotations

from typing import Any

import pandas as pd

from labkit.analysis.flame.significance import CLAIM_SHARE, Estimate
from labkit.analysis.why.candidates import Candidate
from labkit.analysis.why.conclusion import Conclusion
from labkit.analysis.why.counter_tables import NS, Table
from labkit.analysis.why.work import Split
from labkit.common import units

MAX_ROWS = 12
STRENGTHS = {3: "strong", 2: "good", 1: "weak", 0: "none"}


def candidates(of: Conclusion) -> Table:
    """Return the table of all candidates, strongest first."""
    title = "Candidate causes"
    if not of.candidates:
        return title, "None: no recorded setting differs, and nothing stands out.", None
    lines = [
        {
            "candidate": one.name,
            "evidence": STRENGTHS[one.strength],
            "what is known": "; ".join(f"{where}: {text}" for where, text in one.evidence),
        }
        for one in of.candidates[:MAX_ROWS]
    ]
    more = len(of.candidates) - MAX_ROWS
    words = "Strongest first." + (f" {units.counted(more, 'weaker one')} left out." if more > 0 else "")
    return title, words, pd.DataFrame(lines).set_index("candidate")


def settings(of: Conclusion) -> Table:
    """Return the table of differing settings: requested ones first, then those that can affect packets or CPU time."""
    title = "What differs between the sides"
    if not of.settings:
        return title, "Only the time of the run differs among all that labkit records.", None
    lines = [
        {
            "setting": one.name,
            "where": ", ".join(one.places) or "–",
            "left": one.left,
            "right": one.right,
            "may matter": "requested" if one.requested else "yes" if one.can_affect_result else "hardly",
            "code that it changes": ", ".join(path.name for path in one.paths[:3]) or "–",
        }
        for one in of.settings[: 5 * MAX_ROWS]
    ]
    more = len(of.settings) - 5 * MAX_ROWS
    text = f"{units.counted(more, 'more setting')} left out." if more > 0 else ""
    return title, text, pd.DataFrame(lines).set_index("setting")


def work(of: Conclusion) -> Table:
    """Return the difference in cost by part: lost packets, and the CPU time per packet of each stage."""
    title = "Where the work goes"
    if of.split is None:
        return title, "Not known: there are no profiles of both sides.", None
    split = of.split
    sent = [f"{units.digits(count)} sent" for count in (split.spent.left, split.spent.right)]
    lines = {
        "packets that were lost": _line(split, split.loss.estimate, *sent),
        **{part.name: _line(split, part.estimate, *_costs(split, part.left_s, part.right_s)) for part in split.stages},
        "in all": _line(split, split.total, *_costs(split, split.total.left, split.total.right)),
    }  # fmt: skip
    text = (
        f"Cost per {split.unit.description} = packets sent for each that arrived × CPU time of each stage for a"
        " packet that passes it. The differences add up: each factor is weighted by the mean of the other factor over"
        f" both sides. Several questions are asked of the same rounds, so a difference needs"
        f" p < {units.percent(CLAIM_SHARE)}; it is unsure where only its 95 % interval excludes 0."
    )
    table = pd.DataFrame(lines).T
    table.columns.name = "stage"
    return title, text, table


def switch(of: Conclusion) -> Table:
    """Return the CPU time of each kind of a switch's work, largest difference first."""
    assert of.split is not None, "there are profiles of both sides"
    unit = of.split.unit
    lines = {
        part.name: _line(of.split, part.size, *_costs(of.split, part.size.left, part.size.right))
        | {"for each copy": "–" if part.each_copy_s is None else f"{part.each_copy_s * NS:+,.0f} ns"}
        for part in of.parts
    }
    text = f"CPU time per {unit.description}, by what it is spent on. Every sample counts once."
    table = pd.DataFrame(lines).T
    table.columns.name = "kind of work"
    return "Where the switch's work goes", text, table


def _costs(split: Split, *values: float) -> list[str]:
    return [f"{units.digits(value / split.unit.unit_s)} {split.unit.unit}" for value in values]


def _line(split: Split, size: Estimate, left: str, right: str) -> dict[str, str]:
    by = split.unit.unit_s
    return {
        "left": left,
        "right": right,
        f"difference, {split.unit.unit}": units.plus_minus(size.difference / by, size.half / by, sign=True),
        "differs": "yes" if size.certain else "unsure" if abs(size.difference) > size.half else "no",
    }


def as_json(point: str, one: Conclusion) -> dict[str, Any]:
    """Return a conclusion as plain values (`labkit why --help` lists the fields). point: the point's parameters."""
    return {
        "point": point,
        "sentence": one.sentence,
        "cause": one.cause,
        "notes": list(one.notes),
        "next": list(one.next),
        "candidates": [_candidate(each) for each in one.candidates],
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    """Return a candidate as plain values. The size is in seconds per unit that arrived, or null if unknown."""
    size = one.size
    return {
        "name": one.name,
        "evidence": STRENGTHS[one.strength],
        "known": [f"{where}: {text}" for where, text in one.evidence],
        "difference_s": size.difference if size else None,
        "half_width_s": size.half if size else None,
    }
