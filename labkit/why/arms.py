"""Why every arm of a run costs what it costs: the conclusion of each against the baseline."""

from __future__ import annotations

from pathlib import Path

from labkit import loading
from labkit.errors import BadInput
from labkit.flame import runs
from labkit.why import conclusion, sides


def each_arm(folder: Path) -> list[str]:
    """The conclusion about every variant of a run against its baseline, a sentence for each point; where nothing was
    profiled, a sentence that says how to profile it."""
    profiles = loading.profiles(folder)
    if profiles.empty:
        return ["No profiles were taken: with observe=perf_record,counters each price has its cause here."]
    baselines = list(profiles.loc[profiles["role"].eq("baseline"), "arm"].unique())
    said = []
    for arm in profiles.loc[profiles["role"].eq("variant"), "arm"].unique() if baselines else ():
        try:
            both = sides.asked(f"{folder}:{baselines[0]}", str(arm))
            for point in sides.points(both):
                said.append(f"**{arm}** ({point.words}): {conclusion.conclude(point, runs.WITHIN).sentence}.")
        except BadInput as error:
            said.append(f"**{arm}**: {error}.")
    return said
