"""Why is B slower than A? `labkit why A B`: the verdict, where the CPU's time goes, counters, and loss per hop, of two
arms of a run, of two runs or of two points, on one page that works offline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from nbformat import from_dict

from labkit.analysis import figures, flame, report
from labkit.analysis.flame import load_profiles, speedscope
from labkit.analysis.report.notebook_cells import PLOTLY
from labkit.analysis.why import (
    conclusion,
    conclusion_tables,
    selection,
    verdict,
)
from labkit.analysis.why.arms import each_arm
from labkit.analysis.why.conclusion import Candidate, Conclusion
from labkit.analysis.why.sections import parts
from labkit.analysis.why.selection import ProfiledPoint
from labkit.common import run_folder
from labkit.common.errors import BadInput

__all__ = ["Explanation", "each_arm", "explain", "page"]

Cell = dict[str, Any]


@dataclass(frozen=True)
class Explanation:
    """Why two sides differ. In a notebook it is displayed as its conclusions and flame graphs.

    sides: left, right, and the control of left or None. points: the points that both sides have profiles of.
    conclusions, differences, refusals: for each point its conclusion; its profiles compared, or None with the reason in
    refusals. verdicts, notes: what the rounds that measured show, in sentences.
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
        """What is compared with what."""
        return f"{self.sides[1].name} against {self.sides[0].name}"

    @property
    def flames(self) -> list[flame.Flame]:
        """The differential flame graph of each point that has profiles of both sides."""
        return [flame.drawn(one) for one in self.differences if one is not None]

    def sentences(self) -> list[str]:
        """Return what was found, a conclusion for each point with its notes and the next steps."""
        result = []
        for point, one in zip(self.points, self.conclusions, strict=True):
            head = f"{point.words}: " if len(self.points) > 1 else ""
            result += [f"{head}{one.sentence}", *one.notes, *(f"next: {step}" for step in one.next)]
        return result

    def as_json(self) -> dict[str, Any]:
        """Return the findings as plain values (docs/COMMANDS.md lists the fields)."""
        return {
            "left": self.sides[0].name,
            "right": self.sides[1].name,
            "verdicts": self.verdicts,
            "notes": self.notes,
            "points": [
                {
                    "point": point.words,
                    "sentence": one.sentence,
                    "cause": one.cause,
                    "notes": list(one.notes),
                    "next": list(one.next),
                    "candidates": [_candidate(each) for each in one.candidates],
                }
                for point, one in zip(self.points, self.conclusions, strict=True)
            ],
        }

    def write(self, out: Path | None = None) -> Path:
        """Write the page, by default why.html in left's folder, and return its path."""
        several = len(self.points) > 1
        cells: list[Cell] = []
        for point, one in zip(self.points, self.conclusions, strict=True):
            cells += _of_conclusion(point, one, headed=several)
        lines = "\n".join(f"- {_plain(one)}" for one in self.verdicts)
        cells.append(_prose("## Verdict", lines, *map(_plain, self.notes)))
        for point, difference, why_not in zip(self.points, self.differences, self.refusals, strict=True):
            cells += _cells(point, difference, why_not, headed=several)
        document = from_dict({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})  # type: ignore[no-untyped-call]
        path = out or self.sides[0].folder / "why.html"
        folders = list(dict.fromkeys(side.folder for side in self.sides if side is not None))
        # The title is no heading of Markdown: it may have the name of a folder in it.
        report.page([document], folders, path, f"Why do they differ? {self.title}")
        return path

    def export(self, folder: Path) -> str:
        """Write the stacks of each side to a folder, folded (.folded) and for speedscope, and return a sentence that
        names the files."""
        return _exported(folder, [one for one in self.differences if one is not None])

    def __repr__(self) -> str:
        return "\n".join(f"- {sentence}" for sentence in self.sentences())

    def _ipython_display_(self) -> None:
        from IPython.display import Markdown, display

        for number, (point, one) in enumerate(zip(self.points, self.conclusions, strict=True)):
            display(Markdown("\n\n".join(_told(point, one, headed=len(self.points) > 1))))
            if (difference := self.differences[number]) is not None:
                display(flame.drawn(difference))


def explain(left: str, right: str | None, processes: str = load_profiles.WITHIN) -> Explanation:
    """Explain why two sides differ.

    left, right: `FOLDER[:ARM][,name=value…]`, the folder of a run, an arm of it, and values of its points' parameters
    (`loading.GROUP`), which hold for both sides where only one names them; for right also `ARM[,…]` or values alone, of
    left's run. Without right the run's baseline is compared with its only variant. processes: whose time counts, a
    regular expression. Raises BadInput for what cannot be compared, or was not profiled.
    """
    flame.process_pattern(processes)  # an invalid one is no reason for a page without profiles
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


def page(
    left: str,
    right: str | None,
    out: Path | None = None,
    processes: str = load_profiles.WITHIN,
    export: Path | None = None,
) -> tuple[Path, list[str]]:
    """Write the page of `explain`, and return its path and what it found, in sentences.

    The page is why.html in left's folder if `out` is None. export: a folder that gets the stacks of each side, folded
    (.folded) and for speedscope.
    """
    explained = explain(left, right, processes)
    path, result = explained.write(out), explained.sentences()
    return path, result + ([explained.export(export)] if export is not None else [])


def _candidate(one: Candidate) -> dict[str, Any]:
    """A candidate as plain values; the size in seconds for each unit that arrived, null where it is not known."""
    size = one.size
    return {
        "name": one.name,
        "evidence": conclusion_tables.SURE[one.sure],
        "known": [f"{where}: {text}" for where, text in one.evidence],
        "difference_s": size.difference if size else None,
        "half_width_s": size.half if size else None,
    }


def _exported(folder: Path, differences: list[flame.Difference]) -> str:
    """Write the stacks of each side and of the control of every point, and say so."""
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
    return f"{folder} has {', '.join(written)}: .folded for flamegraph.pl, .speedscope.json for speedscope"


def _told(point: ProfiledPoint, one: Conclusion, headed: bool) -> Iterator[str]:
    """The paragraphs of a conclusion, as Markdown."""
    yield f"## Conclusion{f': {_plain(point.words)}' if headed else ''}"
    yield f"**{_plain(one.sentence)}.**"
    yield from map(_plain, one.notes)
    if one.next:
        yield "What would decide next:"
        yield "\n".join(f"- {_plain(step)}" for step in one.next)


def _of_conclusion(point: ProfiledPoint, one: Conclusion, headed: bool) -> Iterator[Cell]:
    """The conclusion first, then what it is taken from."""
    yield _prose(*_told(point, one, headed))
    for make in (conclusion_tables.candidates, conclusion_tables.settings, conclusion_tables.work):
        title, words, table = make(one)
        yield _prose(f"### {title}", _plain(words))
        if table is not None:
            yield _shown(table)


def _differences(point: ProfiledPoint, processes: str) -> tuple[flame.Difference | None, str]:
    """The profiles of a point compared, or why they cannot be."""
    try:
        return load_profiles.compared(point.named_sides(), point.protocol, processes), ""
    except BadInput as error:
        return None, str(error)


def _cells(
    point: ProfiledPoint, difference: flame.Difference | None, why_not: str, headed: bool
) -> Iterator[Cell]:
    heading = f"## Where the time goes{f': {_plain(point.words)}' if headed else ''}"
    if difference is None:
        yield _prose(heading, f"{_plain(why_not)}.")
    else:
        doubts = point.doubts(load_profiles.OBSERVER)
        yield _prose(heading, _plain(" ".join([f"{flame.sentence(difference)}.", *doubts])))
        yield _shown(flame.drawn(difference))
        yield _shown(figures.functions(difference.functions()))
        yield _prose("### By function: self time", "What stands above the total adds up to it.")
        yield _shown(flame.shown(difference))
        yield _prose("### By function: with all that it called")
        yield _shown(flame.shown(difference, inclusive=True))
    for title, pieces in parts(point):
        yield _prose(f"## {title}")
        for piece in pieces:
            yield _prose(_plain(piece)) if isinstance(piece, str) else _shown(piece)


def _prose(*paragraphs: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": "\n\n".join(paragraphs)}


def _plain(text: str) -> str:
    """Words from elsewhere in Markdown: no character of them has a meaning."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)


def _shown(what: flame.Flame | go.Figure | pd.DataFrame) -> Cell:
    if isinstance(what, pd.DataFrame):
        data: Cell = {"text/html": what.to_html(border=0)}
    elif isinstance(what, flame.Flame):
        data = {flame.MIME: what.data}
    else:
        data = {PLOTLY: json.loads(what.to_json())}
    output = {"output_type": "display_data", "data": data, "metadata": {}}
    return {"cell_type": "code", "metadata": {}, "source": "", "outputs": [output], "execution_count": None}
