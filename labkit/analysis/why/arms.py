"""Explain what every arm of a run costs: the conclusion about each variant against the baseline.

Many comparisons claim more by chance than one does. So of the claims only those stay that Benjamini and Hochberg's
procedure keeps over all arms and points: at most 5 % of them are expected to be false.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labkit.analysis import load, stats
from labkit.analysis.flame import load_profiles
from labkit.analysis.why import conclusion, selection
from labkit.analysis.why.conclusion import Conclusion
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


def of_run(folder: Path) -> tuple[str, list[ArmConclusion]]:
    """Return the name of the run's baseline, and the conclusions about every variant against it.

    Raises BadInput if the run has no profiles of a baseline and a variant.
    """
    profiles = load.profiles(folder)
    if profiles.empty:
        raise BadInput(UNPROFILED.removesuffix("."))
    baselines, variants = (
        list(profiles.loc[profiles["role"].eq(role), "arm"].unique()) for role in ("baseline", "variant")
    )
    if not baselines or not variants:
        raise BadInput(f"{folder} has no profiles of a baseline and another arm to compare")
    return str(baselines[0]), judged(
        list(_of_arms(folder, str(baselines[0]), [str(one) for one in variants]))
    )


def _of_arms(folder: Path, baseline: str, variants: list[str]) -> Iterator[ArmConclusion]:
    for arm in variants:
        try:
            both = selection.select_sides(f"{folder}:{baseline}", arm)
            for point in selection.points(both):
                yield ArmConclusion(arm, point.words, conclusion.conclude(point, load_profiles.WITHIN))
        except BadInput as error:
            yield ArmConclusion(arm, "", None, str(error))


def judged(arms: list[ArmConclusion]) -> list[ArmConclusion]:
    """Return the conclusions, with a claim withheld where chance alone makes one among so many comparisons."""
    known = [one.conclusion for one in arms if one.conclusion is not None]
    kept = iter(stats.discoveries(np.array([one.p for one in known])))
    result = []
    for one in arms:
        if one.conclusion is not None and not next(kept) and one.conclusion.claims:
            words = f"No difference is claimed, because chance alone makes one like it among {len(known)} comparisons"
            withheld = replace(one.conclusion, sentence=f"{words}: {one.sentence}", cause=None, claims=False)
            one = replace(one, conclusion=withheld)
        result.append(one)
    return result


def each_arm(folder: Path) -> list[str]:
    """Return one sentence per variant and point: the conclusion about the variant against the run's baseline.

    If nothing was profiled, return a sentence that says how to profile the run.
    """
    if load.profiles(folder).empty:
        return [UNPROFILED]
    try:
        _baseline, arms = of_run(folder)
    except BadInput as error:
        return [f"{error}."]
    return [f"**{one.arm}**{f' ({one.point})' if one.point else ''}: {one.sentence}." for one in arms]
