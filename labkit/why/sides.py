"""The two sides of `labkit why`: which arm of which run, and the points at which both were profiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from labkit import loading, profiled
from labkit.errors import BadInput
from labkit.flame.runs import OBSERVER

POINT = [name for name in loading.GROUP if name not in loading.HOST]
ALIKE = [*loading.HOST, *loading.PROVENANCE]


@dataclass(frozen=True)
class Side:
    """An arm of a run: `rows` that measure are those of the whole run, `profiles` are its own."""

    name: str
    folder: Path
    topology: str
    rows: pd.DataFrame
    profiles: pd.DataFrame


@dataclass(frozen=True)
class Point:
    """The profiles of both sides, and of the control where left has one, with like parameters. words: those."""

    words: str
    protocol: str
    sides: tuple[Side, Side, Side | None]
    rows: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame | None]

    def named(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """The sides that there are, with their rows of one point."""
        for side, rows in zip(self.sides, self.rows, strict=True):
            if side is not None and rows is not None:
                yield side.name, rows

    def doubts(self, observer: str) -> list[str]:
        """What casts doubt on what an observer saw here, a sentence each."""
        named = list(self.named())[
            : 3 if observer == OBSERVER else 2
        ]  # the control's other profiles are not read
        return [f"Of {name}: {one}." for name, rows in named for one in profiled.doubts(rows, observer)]


def asked(left: str, right: str | None) -> tuple[Side, Side, Side | None]:
    """Both sides, and the control of left (the same arm measured again) where there is one. Raises BadInput."""
    folder, arm = _named(left)
    there = _arms(folder)
    if right is None:
        if arm:
            raise BadInput(f"{left} is one arm: name the one to compare it with, too")
        variants = list(dict.fromkeys(there[there["role"].eq("variant")]["arm"]))
        baseline = list(dict.fromkeys(there[there["role"].eq("baseline")]["arm"]))
        if len(variants) != 1 or len(baseline) != 1:
            raise BadInput(
                f"{folder} has the arms {', '.join(there['arm'].unique())}: say which two, as {folder}:ARM"
            )
        ends = [(folder, baseline[0]), (folder, variants[0])]
    else:
        other = (
            (folder, right.removeprefix(":"))
            if right.removeprefix(":") in set(there["arm"])
            else _named(right)
        )
        ends = [(folder, arm), other]
    ends = [(at, name or _only(at)) for at, name in ends]
    if ends[0] == ends[1]:
        raise BadInput(f"{left} and {right} are the same")
    one_run = ends[0][0] == ends[1][0]
    found = [_side(at, name, name if one_run else f"{name} ({at.name})") for at, name in ends]
    again = f"{ends[0][1]} (again)"
    control = (
        _side(ends[0][0], again, again)
        if again in set(_arms(ends[0][0])["arm"]) and ends[1][1] != again
        else None
    )
    return found[0], found[1], control


def points(sides: tuple[Side, Side, Side | None]) -> Iterator[Point]:
    """The points that both sides have profiles of. Raises BadInput where there is none, and where what must be alike in
    a comparison differs."""
    left, right, control = (
        None if one is None else dict(loading.groups(one.profiles, POINT)) for one in sides
    )
    assert left is not None
    assert right is not None
    common = [key for key in left if key in right]
    if not common:
        bare = [one.name for one in sides[:2] if one is not None and one.profiles.empty]
        why = (
            f"{' and '.join(bare)} was not profiled: run it with observe=perf_record"
            if bare
            else "no point is common"
        )
        raise BadInput(f"{sides[0].name} and {sides[1].name} cannot be explained: {why}")
    for key in common:
        again = (control or {}).get(key)
        profiled = again is not None and (again["observer"].eq(OBSERVER) & again["status"].eq("ok")).any()
        rows = (left[key], right[key], again if profiled else None)
        both = pd.concat([rows[0], rows[1]]).reindex(columns=ALIKE)
        for name, (one, other, *_) in loading.differing(both, ALIKE).items():
            raise BadInput(
                f"{sides[0].name} and {sides[1].name} differ in {name} ({one} and {other}): their costs"
                " cannot be compared"
            )
        of = dict(zip(POINT, key, strict=True))
        words = loading.point(tuple(of.get(name) for name in loading.GROUP))
        yield Point(words, str(of["protocol"]), sides, rows)


def _named(text: str) -> tuple[Path, str | None]:
    """`FOLDER` or `FOLDER:ARM`."""
    if Path(text).is_dir():
        return Path(text), None
    folder, colon, arm = text.rpartition(":")
    if not colon or not Path(folder).is_dir():
        raise BadInput(f"{text} is no folder of a run, and no FOLDER:ARM")
    return Path(folder), arm


def _arms(folder: Path) -> pd.DataFrame:
    return pd.concat([loading.profiles(folder), loading.load(folder)], ignore_index=True)[
        ["arm", "role"]
    ].drop_duplicates()


def _only(folder: Path) -> str:
    arms = [arm for arm in _arms(folder)["arm"] if not arm.endswith(" (again)")]
    if len(arms) != 1:
        raise BadInput(f"{folder} has the arms {', '.join(arms)}: say which, as {folder}:ARM")
    return str(arms[0])


def _side(folder: Path, arm: str, name: str) -> Side:
    rows, profiles = loading.load(folder), loading.profiles(folder)
    there = list(dict.fromkeys([*rows["arm"], *profiles["arm"]]))
    if arm not in there:
        raise BadInput(f"{folder} has no arm {arm}; there are {', '.join(there)}")
    own = profiles[profiles["arm"].eq(arm)]
    return Side(name, folder, arm.removesuffix(" (again)"), rows, own)
