"""Make the page of `labkit why A B`: the conclusion, the verdict, where the CPU time goes, the counters, and the loss
per hop. It works offline."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.analysis import displays, figures, flame, report
from labkit.analysis.flame import load_profiles
from labkit.analysis.flame.significance import CLAIM_SHARE, Estimate
from labkit.analysis.report.notebook_cells import Cell, document, plain, prose_cell, shown_cell
from labkit.analysis.why import conclusion, selection, verdict
from labkit.analysis.why.candidates import Candidate
from labkit.analysis.why.conclusion import Conclusion
from labkit.analysis.why.counter_tables import NS, Table
from labkit.analysis.why.sections import parts
from labkit.analysis.why.selection import ProfiledPoint
from labkit.analysis.why.work import Split
from labkit.common import run_folder, units
from labkit.common.errors import BadInput

MAX_ROWS = 12
STRENGTHS = {3: "strong", 2: "good", 1: "weak", 0: "none"}


@dataclass(frozen=True)
class ExplainedPoint:
    """A point for which both sides have profiles: its conclusion, and its compared profiles, or None with the reason in
    why_not."""

    point: ProfiledPoint
    conclusion: Conclusion
    difference: flame.Difference | None
    why_not: str = ""

    @classmethod
    def of(cls, point: ProfiledPoint, processes: str) -> "ExplainedPoint":
        """Explain a point. processes: as of `explain`."""
        concluded = conclusion.conclude(point, processes)
        try:
            compared = load_profiles.compared(point.profiled_sides(), point.protocol, processes)
        except BadInput as error:
            return cls(point, concluded, None, str(error))
        return cls(point, concluded, compared)


@dataclass(frozen=True)
class Explanation:
    """The findings about why two sides differ. A notebook displays them as conclusions and flame graphs.

    sides: left, right, and the control of left or None. verdicts, notes: sentences from the measuring rounds.
    """

    sides: selection.Sides
    points: list[ExplainedPoint]
    verdicts: list[str]
    notes: list[str]

    @property
    def title(self) -> str:
        """Return which side is compared with which."""
        return f"{self.sides[1].name} against {self.sides[0].name}"

    @property
    def conclusions(self) -> list[Conclusion]:
        """Return the conclusion of each point."""
        return [one.conclusion for one in self.points]

    @property
    def flames(self) -> flame.Flames:
        """Return the differential flame graph of each point that has profiles of both sides."""
        every = (one.difference for one in self.points)
        return flame.Flames(flame.draw_difference(one) for one in every if one is not None)

    @property
    def _headed(self) -> bool:
        return len(self.points) > 1

    def sentences(self) -> list[str]:
        """Return the findings as sentences: for each point its conclusion, its notes and the next steps."""
        result = []
        for one in self.points:
            of = one.conclusion
            head = f"{one.point.label}: " if self._headed else ""
            result += [f"{head}{of.sentence}", *of.notes, *(f"next: {step}" for step in of.next)]
        return result

    def as_json(self) -> dict[str, Any]:
        """Return the findings as plain values (`labkit why --help` lists the fields)."""
        return {
            "left": self.sides[0].name,
            "right": self.sides[1].name,
            "verdicts": self.verdicts,
            "notes": self.notes,
            "points": [conclusion_as_json(one.point.label, one.conclusion) for one in self.points],
        }

    def write(self, out: Path | None = None) -> Path:
        """Write the page, by default why.html in left's folder, and return its path."""
        cells = [cell for one in self.points for cell in _conclusion_cells(one, self._headed)]
        lines = "\n".join(f"- {plain(one)}" for one in self.verdicts)
        cells.append(prose_cell("## Verdict", lines, *map(plain, self.notes)))
        cells += [cell for one in self.points for cell in _cells(one, self._headed)]
        path = out or self.sides[0].folders[0] / "why.html"
        both = [[*side.folders, *map(Path, side.profiles["folder"].unique())] for side in self.sides if side]
        folders = list(dict.fromkeys(folder for own in both for folder in own))
        # The title is not a Markdown heading, because it may contain the name of a folder.
        report.page([document(cells)], folders, path, f"Why do they differ? {self.title}")
        return path

    def export(self, folder: Path) -> str:
        """Write the stacks of each side and of the control of every point to a folder, folded, and return a
        sentence that names the files."""
        written = []
        differences = [one.difference for one in self.points if one.difference is not None]
        for number, one in enumerate(differences, 1):
            for arm in filter(None, (one.left, one.right, one.control)):
                point = f"-{number}" if len(differences) > 1 else ""
                stem = re.sub(r"[^\w.+-]+", "_", arm.name).strip("_") + point
                run_folder.write(folder / f"{stem}.folded", flame.text(arm.stacks()).encode())
                written.append(stem)
        if not written:
            return f"nothing to export to {folder}: there are no profiles"
        return f"{folder} has {', '.join(written)}: .folded for flamegraph.pl, speedscope and the Firefox Profiler"

    def __repr__(self) -> str:
        return "\n".join(f"- {sentence}" for sentence in self.sentences())

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for one in self.points:
            display(displays.markdown("\n\n".join(_conclusion_lines(one, self._headed, level="####"))))
            if one.difference is not None:
                display(flame.draw_difference(one.difference))


def explain(
    left: str, right: str | None, processes: str = load_profiles.WITHIN, percentile: str | None = None
) -> Explanation:
    """Explain why two sides differ.

    left, right: `FOLDER[:ARM][,name=value…]`, that is a run's folder, one of its arms, and values of the parameters of
    its points (`load.GROUP`). A value that only one side names holds for both. right may also be `ARM[,…]` or values
    alone; they then refer to left's run. Without right, the run's baseline is compared with its only variant.
    processes: a regular expression, or `switch`, the threads of ovs-vswitchd; only the time of matching processes
    counts. percentile: of `load.at_percentile`. Raises BadInput if the sides cannot be compared or were not profiled.
    """
    flame.process_pattern(processes)  # reject an invalid pattern; else the page would only lack its profiles
    sides = selection.select_sides(left, right, percentile)
    points = [ExplainedPoint.of(point, processes) for point in selection.points(sides)]
    return Explanation(sides, points, *verdict.sentences(sides))


def _conclusion_lines(one: ExplainedPoint, headed: bool, level: str = "##") -> Iterator[str]:
    """Yield the paragraphs of a conclusion as Markdown. In a notebook its heading is below that of the arm."""
    of = one.conclusion
    yield f"{level} Conclusion{f': {plain(one.point.label)}' if headed else ''}"
    yield f"**{plain(of.sentence)}.**"
    yield from map(plain, of.notes)
    if of.next:
        yield "What would decide next:"
        yield "\n".join(f"- {plain(step)}" for step in of.next)


def _conclusion_cells(one: ExplainedPoint, headed: bool) -> Iterator[Cell]:
    """Yield the cells of a conclusion: the conclusion first, then the tables that support it."""
    yield prose_cell(*_conclusion_lines(one, headed))
    of = one.conclusion
    makes = [candidates_table, settings_table, *[round_trip_table] * (of.round_trips is not None), work_table]
    for make in [*makes, switch_table] if of.parts else makes:
        title, words, table = make(of)
        yield prose_cell(f"### {title}", plain(words))
        if table is not None:
            yield shown_cell(table)


def _cells(one: ExplainedPoint, headed: bool) -> Iterator[Cell]:
    """Yield the cells of a point's profiles, and of what its observers saw."""
    heading = f"## Where the time goes{f': {plain(one.point.label)}' if headed else ''}"
    if (difference := one.difference) is None:
        if one.why_not not in one.conclusion.sentence:
            yield prose_cell(heading, f"{plain(one.why_not)}.")
    else:
        split = one.conclusion.split
        text = f"{flame.sentence(difference, None if split is None else split.total)}."
        words = " ".join([re.sub("^no ", "No ", text), *one.point.doubts(load_profiles.OBSERVER)])
        yield prose_cell(heading, plain(words))
        yield shown_cell(flame.draw_difference(difference))
        yield shown_cell(figures.functions(difference.functions()))
        yield prose_cell("### By function: self time", "The rows above the total add up to it.")
        yield shown_cell(flame.functions_as_text(difference))
        yield prose_cell("### By function: callees included")
        yield shown_cell(flame.functions_as_text(difference, inclusive=True))
    for title, pieces in parts(one.point):
        yield prose_cell(f"## {title}")
        for piece in pieces:
            if isinstance(piece, str):
                yield prose_cell(plain(piece))
            else:
                yield shown_cell(piece)


def candidates_table(of: Conclusion) -> Table:
    """Return the table of all candidates, strongest first."""
    title = "Candidate causes"
    if not of.candidates:
        if any(one.relevant for one in of.settings):
            return title, "None is judged: no profiles of both sides say what the settings below cost.", None
        differs = f"no recorded setting{' that may matter' if of.settings else ''} differs"
        return title, f"None: {differs}{', and nothing stands out' if of.split is not None else ''}.", None
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


def settings_table(of: Conclusion) -> Table:
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


def work_table(of: Conclusion) -> Table:
    """Return the difference in cost by part: lost packets, and the CPU time per packet of each stage."""
    title = "Where the work goes"
    if of.split is None:
        return title, "Not known: there are no profiles of both sides.", None
    split = of.split
    sent = [f"{units.digits(count)} sent" for count in (split.spent.left, split.spent.right)]
    lines = {
        "packets that were lost": _line(split, split.loss, sent),
        **{name: _line(split, size) for name, size in split.stages.items()},
        "in all": _line(split, split.total),
    }
    text = (
        f"Cost per {split.unit.description} = packets sent for each that arrived × CPU time of each stage for a"
        " packet that passes it. The differences add up: each factor is weighted by the mean of the other factor over"
        f" both sides. Several questions are asked of the same rounds, so a difference needs"
        f" p < {units.exact_percent(CLAIM_SHARE)}; it is unsure where only its 95 % interval excludes 0."
    )
    return title, text, pd.DataFrame(lines).T.rename_axis(columns="stage")


def round_trip_table(of: Conclusion) -> Table:
    """Return the parts of a round trip's time on both sides."""
    assert of.split is not None, "there are profiles of both sides"
    assert of.round_trips is not None
    parts = of.round_trips
    named = {
        "CPU time": parts.cpu, "waiting for a CPU": parts.wait, "the rest": parts.rest, "in all": parts.whole,
    }  # fmt: skip
    lines = {name: _line(of.split, size) for name, size in named.items() if size is not None}
    text = (
        "The mean round trip of a closed loop of one connection, 1 / rate. CPU time is what a"
        " request costs; a part of it may pass while the response is on its way, so the rest is the least time in"
        " which nothing of the round trip runs: sleep, wake-up, softirq delay."
    )
    return "Where the time of a round trip goes", text, pd.DataFrame(lines).T.rename_axis(columns="part")


def switch_table(of: Conclusion) -> Table:
    """Return the CPU time of each kind of work of a switch or a relay, largest difference first."""
    assert of.split is not None, "there are profiles of both sides"
    lines = {
        part.name: _line(of.split, part.size)
        | {"for each copy": "–" if part.each_copy_s is None else f"{part.each_copy_s * NS:+,.0f} ns"}
        for part in of.parts
    }
    text = f"CPU time per {of.split.unit.description}, by what it is spent on. Every sample counts once."
    return "Work between the ends", text, pd.DataFrame(lines).T.rename_axis(columns="kind of work")


def _line(split: Split, size: Estimate, shown: Sequence[str] = ()) -> dict[str, str]:
    """Return a row of a table. shown: the texts of both sides, if these are no times."""
    unit, by = split.unit.unit, split.unit.unit_s
    left, right = shown or (f"{units.digits(value / by)} {unit}" for value in (size.left, size.right))
    return {
        "left": left,
        "right": right,
        f"difference, {unit}": units.plus_minus(size.difference / by, size.half / by, sign=True),
        "differs": "yes" if size.certain else "unsure" if abs(size.difference) > size.half else "no",
    }


def conclusion_as_json(point: str, one: Conclusion) -> dict[str, Any]:
    """Return a conclusion as plain values (`labkit why --help` lists the fields). point: the point's parameters."""
    return {
        "point": point,
        "sentence": one.sentence,
        "cause": one.cause,
        "notes": list(one.notes),
        "next": list(one.next),
        "candidates": [_candidate_as_json(each) for each in one.candidates],
    }


def _candidate_as_json(one: Candidate) -> dict[str, Any]:
    """Return a candidate as plain values. The size is in seconds per unit that arrived, or null if unknown."""
    size = one.size
    return {
        "name": one.name,
        "evidence": STRENGTHS[one.strength],
        "known": [f"{where}: {text}" for where, text in one.evidence],
        "difference_s": size.difference if size else None,
        "half_width_s": size.half if size else None,
    }
