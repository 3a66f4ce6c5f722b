"""Explain what every arm of a run costs: the conclusion about each variant against the baseline.

Many comparisons claim more by chance than one does. So of the claims only those stay that Benjamini and Hochberg's
procedure keeps over all arms and points: at most 5 % of them are expected to be false.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import flame, load, stats
from labkit.analysis.flame import load_profiles
from labkit.analysis.flame.load_profiles import MADE_BY
from labkit.analysis.why import conclusion, page, selection
from labkit.analysis.why.conclusion import Conclusion
from labkit.common import run_folder
from labkit.common.errors import BadInput

UNPROFILED = "No profiles were taken. With observe=perf_record,counters this section explains each price."


@dataclass(frozen=True)
class ArmConclusion:
    """The conclusion about a variant at a point (in words), or why there is none."""

    arm: str
    point: str
    conclusion: Conclusion | None
    error: str = ""

    @property
    def sentence(self) -> str:
        """Return the conclusion's sentence, or the reason why there is none."""
        return self.error if self.conclusion is None else self.conclusion.sentence


@dataclass(frozen=True)
class Arms:
    """The conclusions about every variant of a run against its baseline."""

    folder: Path
    baseline: str
    arms: Sequence[ArmConclusion]

    def sentences(self) -> list[str]:
        """Return one sentence per variant and point, and the command that explains one of them in full."""
        points = len({one.point for one in self.arms}) > 1
        lines = [
            f"{one.arm}{f' ({one.point})' if points and one.point else ''}: {one.sentence}"
            for one in self.arms
        ]
        command = f"labkit why {run_folder.display_path(self.folder)}:{self.baseline} {self.arms[0].arm}"
        made_by = [f"next: repeat the run to have profiles{MADE_BY}"] * any(MADE_BY in line for line in lines)
        lines = [line.replace(MADE_BY, "") for line in lines]
        return [*lines, *made_by, f"next: {command} writes the page about one of them"]

    def as_json(self) -> dict[str, Any]:
        """Return the conclusions as plain values (`labkit why --help` lists the fields)."""
        return {
            "left": self.baseline,
            "right": None,
            "verdicts": [],
            "notes": [f"{one.arm}: {one.error}" for one in self.arms if one.conclusion is None],
            "points": [
                {"arm": one.arm} | page.conclusion_as_json(one.point, one.conclusion)
                for one in self.arms
                if one.conclusion is not None
            ],
        }


def has_several(folder: Path) -> bool:
    """Return whether a path is the folder of a run with profiles of more than one variant."""
    return folder.is_dir() and len(_arms_with_role(load.profiles(folder), "variant")) > 1


def _arms_with_role(profiles: pd.DataFrame, role: str) -> list[str]:
    return [str(one) for one in profiles.loc[profiles["role"].eq(role), "arm"].unique()]


def explain_run(folder: Path, processes: str = load_profiles.WITHIN) -> Arms:
    """Return the conclusions about every variant of a run, none if it has no profiles of a baseline.

    processes: as of `explain`. Raises BadInput if it is invalid.
    """
    flame.process_pattern(processes)
    profiles = load.profiles(folder)
    baselines, variants = _arms_with_role(profiles, "baseline"), _arms_with_role(profiles, "variant")
    if not baselines:
        return Arms(folder, "", ())
    concluded = list(conclusions(folder, baselines[0], variants, processes))
    return Arms(folder, baselines[0], judge_together(concluded))


def conclusions(
    folder: Path, baseline: str, variants: Sequence[str], processes: str = load_profiles.WITHIN
) -> Iterator[ArmConclusion]:
    """Yield the conclusion about each variant at each point, each as if it were the only comparison."""
    for arm in variants:
        try:
            both = selection.select_sides(f"{folder}:{baseline}", arm)
            for point in selection.points(both):
                yield ArmConclusion(arm, point.label, conclusion.conclude(point, processes))
        except BadInput as error:
            yield ArmConclusion(arm, "", None, str(error))


def judge_together(arms: Sequence[ArmConclusion]) -> list[ArmConclusion]:
    """Return the conclusions, with a claim withheld where chance alone makes one among so many comparisons."""
    known = [one.conclusion for one in arms if one.conclusion is not None]
    kept = iter(stats.discoveries(np.array([one.p for one in known])))
    result = []
    for one in arms:
        of = one.conclusion
        if of is not None and not next(kept) and (of.claims or of.has_effect):
            text = (
                "No cause is claimed, because chance alone may show one like it among"
                f" {len(known)} comparisons. Without the others the conclusion would be: {one.sentence}"
            )
            one = replace(one, conclusion=replace(of, sentence=text, cause=None, claims=False))
        result.append(one)
    return result


def arm_sentences(folder: Path) -> list[str]:
    """Return one sentence per variant and point: the conclusion about the variant against the run's baseline.

    If nothing was profiled, return a sentence that says how to profile the run.
    """
    if load.profiles(folder).empty:
        return [UNPROFILED]
    return [
        f"**{one.arm}**{f' ({one.point})' if one.point else ''}: {one.sentence}."
        for one in explain_run(folder).arms
    ]
