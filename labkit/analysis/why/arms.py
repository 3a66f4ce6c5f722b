"""Explain what every arm of a run costs: the conclusion about each variant against the baseline."""

from __future__ import annotations

from pathlib import Path

from labkit.analysis import load
from labkit.analysis.flame import load_profiles
from labkit.analysis.why import conclusion, selection
from labkit.common.errors import BadInput


def each_arm(folder: Path) -> list[str]:
    """Return one sentence per variant and point: the conclusion about the variant against the run's baseline.

    If nothing was profiled, return a sentence that says how to profile the run.
    """
    profiles = load.profiles(folder)
    if profiles.empty:
        return ["No profiles were taken. With observe=perf_record,counters this section explains each price."]
    baselines = list(profiles.loc[profiles["role"].eq("baseline"), "arm"].unique())
    lines = []
    for arm in profiles.loc[profiles["role"].eq("variant"), "arm"].unique() if baselines else ():
        try:
            both = selection.select_sides(f"{folder}:{baselines[0]}", str(arm))
            for point in selection.points(both):
                lines.append(
                    f"**{arm}** ({point.words}): {conclusion.conclude(point, load_profiles.WITHIN).sentence}."
                )
        except BadInput as error:
            lines.append(f"**{arm}**: {error}.")
    return lines
