"""Make the page of `labkit why A B`: the conclusion, the verdict, where the CPU time goes, the counters, and the loss
per hop. It works offline."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.analysis import displays, figures, flame, report
from labkit.analysis.flame import load_profiles, speedscope
from labkit.analysis.flame.significance import CLAIM_SHARE, Estimate
from labkit.analysis.report import notebook_cells
from labkit.analysis.report.notebook_cells import Cell, plain
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
class Explanation:
    """The findings about why two sides differ. A notebook displays them as conclusions and flame graphs.

    sides: left, right, and the control of left or None. points: the points for which both sides have profiles.
    conclusions, differences and refusals have one entry per point: its conclusion; its compared profiles, or None with
    the reason in refusals. verdicts, notes: sentences from the measuring rounds.
    """

    sides: selection.Sides
    points: list[ProfiledPoint]
    conclusions: list[Conclusion]
    differences: list[flame.Difference | None]
    refusals: list[str]
    verdicts: list[str]
    notes: list[str]

    @property
    def title(self) -> str:
        """Return which side is compared with which."""
        return f"{self.sides[1].name} against {self.sides[0].name}"

    @property
    def flames(self) -> list[flame.Flame]:
        """Return the differential flame graph of each point that has profiles of both sides."""
        return [flame.draw_difference(one) for one in self.differences if one is not None]

    def sentences(self) -> list[str]:
        """Return the findings as sentences: for each point its conclusion, its notes and the next steps."""
        result = []
        for point, one in zip(self.points, self.conclusions, strict=True):
            head = f"{point.label}: " if len(self.points) > 1 else ""
            result += [f"{head}{one.sentence}", *one.notes, *(f"next: {step}" for step in one.next)]
        return result

    def as_json(self) -> dict[str, Any]:
        """Return the findings as plain values (`labkit why --help` lists the fields)."""
        return {
            "left": self.sides[0].name,
            "right": self.sides[1].name,
            "verdicts": self.verdicts,
            "notes": self.notes,
            "points": [
                conclusion_as_json(point.label, one)
                for point, one in zip(self.points, self.conclusions, strict=True)
            ],
        }

    def write(self, out: Path | None = None) -> Path:
        """Write the page, by default why.html in left's folder, and return its path."""
        several = len(self.points) > 1
        cells: list[Cell] = []
        for point, one in zip(self.points, self.conclusions, strict=True):
            cells += _conclusion_cells(point, one, headed=several)
        lines = "\n".join(f"- {plain(one)}" for one in self.verdicts)
        cells.append(notebook_cells.prose_cell("## Verdict", lines, *map(plain, self.notes)))
        each = zip(self.points, self.conclusions, self.differences, self.refusals, strict=True)
        for point, one, difference, why_not in each:
            cells += _cells(point, one, difference, why_not, headed=several)
        document = notebook_cells.document(cells)
        path = out or self.sides[0].folder / "why.html"
        folders = list(dict.fromkeys(side.folder for side in self.sides if side is not None))
        # The title is not a Markdown heading, because it may contain the name of a folder.
        report.page([document], folders, path, f"Why do they differ? {self.title}")
        return path

    def export(self, folder: Path) -> str:
        """Write the stacks of each side to a folder, folded (.folded) and for speedscope, and return a sentence that
        names the files."""
        return _export(folder, [one for one in self.differences if one is not None])

    def __repr__(self) -> str:
        return "\n".join(f"- {sentence}" for sentence in self.sentences())

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for number, (point, one) in enumerate(zip(self.points, self.conclusions, strict=True)):
            lines = _conclusion_lines(point, one, headed=len(self.points) > 1, level="####")
            display(displays.markdown("\n\n".join(lines)))
            if (difference := self.differences[number]) is not None:
                display(flame.draw_difference(difference))


def explain(left: str, right: str | None, processes: str = load_profiles.WITHIN) -> Explanation:
    """Explain why two sides differ.

    left, right: `FOLDER[:ARM][,name=value…]`, that is a run's folder, one of its arms, and values of the parameters of
    its points (`load.GROUP`). A value that only one side names holds for both. right may also be `ARM[,…]` or values
    alone; they then refer to left's run. Without right, the run's baseline is compared with its only variant.

    processes: a regular expression, or `switch`, the threads of ovs-vswitchd; only the time of matching processes
    counts. Raises BadInput if the sides cannot be compared or were not profiled.
    """
    flame.process_pattern(processes)  # reject an invalid pattern; else the page would only lack its profiles
    sides = selection.select_sides(left, right)
    points = list(selection.points(sides))
    compared = [_differences(point, processes) for point in points]
    return Explanation(
        sides,
        points,
        [conclusion.conclude(point, processes) for point in points],
        [difference for difference, _ in compared],
        [why_not for _, why_not in compared],
        *verdict.sentences(sides),
    )


def _export(folder: Path, differences: list[flame.Difference]) -> str:
    """Write the stacks of each side and of the control of every point, and return a sentence that names the files."""
    written = []
    for number, one in enumerate(differences, 1):
        for arm in filter(None, (one.left, one.right, one.control)):
            point = f"-{number}" if len(differences) > 1 else ""
            stem = re.sub(r"[^\w.+-]+", "_", arm.name).strip("_") + point
            run_folder.write(folder / f"{stem}.folded", flame.text(arm.stacks()).encode())
            speedscope.write([arm], folder / f"{stem}.speedscope.json")
            written.append(stem)
    if not written:
        return f"nothing to export to {folder}: there are no profiles"
    return (
        f"{folder} has {', '.join(written)}: .folded for flamegraph.pl and the Firefox Profiler,"
        " .speedscope.json for speedscope"
    )


def _conclusion_lines(
    point: ProfiledPoint, one: Conclusion, headed: bool, level: str = "##"
) -> Iterator[str]:
    """Yield the paragraphs of a conclusion as Markdown. In a notebook its heading is below that of the arm."""
    yield f"{level} Conclusion{f': {plain(point.label)}' if headed else ''}"
    yield f"**{plain(one.sentence)}.**"
    yield from map(plain, one.notes)
    if one.next:
        yield "What would decide next:"
        yield "\n".join(f"- {plain(step)}" for step in one.next)


def _conclusion_cells(point: ProfiledPoint, one: Conclusion, headed: bool) -> Iterator[Cell]:
    """Yield the cells of a conclusion: the conclusion first, then the tables that support it."""
    yield notebook_cells.prose_cell(*_conclusion_lines(point, one, headed))
    makes = [
        candidates_table,
        settings_table,
        *[round_trip_table] * (one.round_trips is not None),
        work_table,
    ]
    for make in [*makes, switch_table] if one.parts else makes:
        title, words, table = make(one)
        yield notebook_cells.prose_cell(f"### {title}", plain(words))
        if table is not None:
            yield notebook_cells.shown_cell(table)


def _differences(point: ProfiledPoint, processes: str) -> tuple[flame.Difference | None, str]:
    """Return the comparison of a point's profiles, or None and the reason why they cannot be compared."""
    try:
        return load_profiles.compared(point.profiled_sides(), point.protocol, processes), ""
    except BadInput as error:
        return None, str(error)


def _cells(
    point: ProfiledPoint, of: Conclusion, difference: flame.Difference | None, why_not: str, headed: bool
) -> Iterator[Cell]:
    heading = f"## Where the time goes{f': {plain(point.label)}' if headed else ''}"
    if difference is None:
        yield notebook_cells.prose_cell(heading, f"{plain(why_not)}.")
    else:
        doubts = point.doubts(load_profiles.OBSERVER)
        text = flame.sentence(difference, None if of.split is None else of.split.total)
        yield notebook_cells.prose_cell(
            heading, plain(" ".join([re.sub("^no ", "No ", f"{text}."), *doubts]))
        )
        yield notebook_cells.shown_cell(flame.draw_difference(difference))
        yield notebook_cells.shown_cell(figures.functions(difference.functions()))
        yield notebook_cells.prose_cell(
            "### By function: self time", "The rows above the total add up to it."
        )
        yield notebook_cells.shown_cell(flame.functions_as_text(difference))
        yield notebook_cells.prose_cell("### By function: callees included")
        yield notebook_cells.shown_cell(flame.functions_as_text(difference, inclusive=True))
    for title, pieces in parts(point):
        yield notebook_cells.prose_cell(f"## {title}")
        for piece in pieces:
            yield (
                notebook_cells.prose_cell(plain(piece))
                if isinstance(piece, str)
                else notebook_cells.shown_cell(piece)
            )


def candidates_table(of: Conclusion) -> Table:
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


def round_trip_table(of: Conclusion) -> Table:
    """Return the parts of a round trip's time on both sides."""
    assert of.split is not None, "there are profiles of both sides"
    assert of.round_trips is not None
    parts = of.round_trips
    named = {
        "CPU time": parts.cpu,
        "waiting for a CPU": parts.wait,
        "the rest": parts.rest,
        "in all": parts.whole,
    }
    lines = {
        name: _line(of.split, size, *_costs(of.split, size.left, size.right))
        for name, size in named.items()
        if size is not None
    }
    table = pd.DataFrame(lines).T
    table.columns.name = "part"
    text = (
        "The mean round trip of a closed loop of one connection, 1 / rate. CPU time is what a"
        " request costs; a part of it may pass while the response is on its way, so the rest is the least time in"
        " which nothing of the round trip runs: sleep, wake-up, softirq delay."
    )
    return "Where the time of a round trip goes", text, table


def switch_table(of: Conclusion) -> Table:
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
