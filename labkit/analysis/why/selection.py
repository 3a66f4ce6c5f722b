"""Select the two sides of `labkit why`: the arms, runs and points, and where both were profiled."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from labkit.analysis import load, profile_doubts, protocols
from labkit.analysis.flame.load_profiles import OBSERVER, usable_rows
from labkit.common import run_folder, safe_files
from labkit.common.errors import BadInput, choose, did_you_mean

POINT = [name for name in load.GROUP if name not in load.HOST]
FORM = "RUN:ARM,length_bytes=400"
_VALUE = re.compile(r"(^|,)\w+=")  # of a parameter; an option of a topology follows a plus sign
Values = dict[str, str]  # parameters of a point and their values as `load.value_text` writes them


@dataclass(frozen=True)
class Run:
    """One side's rows, read once: `rows` from measuring rounds and `profiles` from observed rounds.

    `folders` may be several runs of the same experiment. They count as one side, and each row says which run it is
    from. `folder` is the first of them.
    """

    folder: Path
    rows: pd.DataFrame
    profiles: pd.DataFrame
    folders: tuple[Path, ...]

    def arms(self, *roles: str) -> list[str]:
        """Return the names of the arms, or only those that have one of the roles."""
        names: list[str] = []
        for rows in (self.profiles, self.rows):
            names += list(rows.loc[rows["role"].isin(roles), "arm"] if roles else rows["arm"])
        return list(dict.fromkeys(names))

    def second(self, arm: str) -> str | None:
        """Return the arm that is the second measurement of this one, or None."""
        topology = _compared_as(arm, self.profiles, self.rows)
        for rows in (self.profiles, self.rows):
            names = rows.loc[rows["again"] & rows["topology"].eq(topology) & rows["arm"].ne(arm), "arm"]
            if len(names):
                return str(names.iloc[0])
        return None

    def arm(self, name: str) -> str | None:
        """Return the arm with this name, or None if there is none.

        The name is as in tables, or with the topology that all arms share in front of the arm's change.
        """
        arms = self.arms()
        shared = {*arms, *self.rows["built_topology"], *self.profiles["built_topology"]}
        full = {f"{topology}+{one}": one for topology in shared for one in arms}
        return name if name in arms else full.get(name)


def _compared_as(arm: str, *tables: pd.DataFrame) -> str:
    """Return the name under which the rows of an arm are compared, which its second measurement has as well."""
    names = (name for rows in tables for name in rows.loc[rows["arm"].eq(arm), "topology"])
    return str(next(names, arm))


@dataclass(frozen=True)
class ProfiledArm:
    """An arm of a run, or of several that count as one side, at the points with these values.

    `rows` are the measuring rows of all arms. `profiles` are the arm's own.
    """

    name: str
    folders: tuple[Path, ...]
    arm: str
    values: Values
    rows: pd.DataFrame
    profiles: pd.DataFrame

    @property
    def topology(self) -> str:
        """Return the name of the compared arm: the same for both measurements of the baseline."""
        return _compared_as(self.arm, self.profiles, self.rows)


# left, right, and the control of left, which is the same arm measured again
Sides = tuple[ProfiledArm, ProfiledArm, ProfiledArm | None]


@dataclass(frozen=True)
class ProfiledPoint:
    """The profiles of both sides at one point, and of the control if left has one.

    label: the point's parameters.
    """

    label: str
    protocol: str
    sides: Sides
    rows: tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame | None]

    @property
    def judged(self) -> protocols.Protocol:
        """The protocol, judged by the metric of the rows; of points with packets of different sizes, by their rate."""
        of = protocols.of(self.rows[0])
        return of.by_work if "length_bytes" in differing(self.sides) else of

    def named_sides(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield the name and the rows of each side that has rows at this point."""
        for side, rows in zip(self.sides, self.rows, strict=True):
            if side is not None and rows is not None:
                yield side.name, rows

    def profiled_sides(self) -> list[tuple[str, pd.DataFrame]]:
        """Return the name and the rows of both sides, and of the control if it has profiles (OBSERVER)."""
        again = self.rows[2]
        profiled = again is not None and (again["observer"].eq(OBSERVER) & again["status"].eq("ok")).any()
        return list(self.named_sides())[: 3 if profiled else 2]

    def doubts(self, observer: str, with_control: bool = True) -> list[str]:
        """Return sentences that cast doubt on what an observer reported here."""
        return [
            f"Of {name}: {one}."
            for name, rows in list(self.named_sides())[: 3 if with_control else 2]
            for one in profile_doubts.doubts(rows, observer)
        ]


def select_sides(left: str, right: str | None, percentile: str | None = None) -> Sides:
    """Return both sides, and the control of left if there is one.

    A value that only one side names holds for both. Raises BadInput if the texts do not name two different sides.
    """
    folders, arm, given = _parse_side(left, None)
    assert folders is not None, "the first side needs a folder, because no other side can supply it"
    one = other = _read_runs(folders, percentile)
    more: Values = {}
    if right is None:
        if arm:
            raise BadInput(f"{left} is one arm: also name the arm to compare it with")
        arms = _usual(one)
    else:
        elsewhere, second, more = _parse_side(right, one)
        other = one if elsewhere is None or _same(elsewhere, folders) else _read_runs(elsewhere, percentile)
        first = _arm(one, arm)
        arms = (first, _arm(other, second or (first if elsewhere is None else None)))
    values = _values(one, arms[0], {**more, **given}), _values(other, arms[1], {**given, **more})
    if one is other and arms[0] == arms[1] and values[0] == values[1]:
        raise BadInput(f"{left} and {right} are the same: name two points of an arm as {FORM} each")
    again, differing = one.second(arms[0]), _differing(*values)
    left_side, right_side, *control = [
        _side(_name(name, own, differing, run, beside), run, name, own)
        for name, own, run, beside in (
            (arms[0], values[0], one, other),
            (arms[1], values[1], other, one),
            *([(again, values[0], one, other)] if again and again != arms[1] else []),
        )
    ]
    return left_side, right_side, control[0] if control else None


def differing(sides: Sides) -> list[str]:
    """Return the parameters whose requested values differ between the sides."""
    return _differing(sides[0].values, sides[1].values)


def shared_parameters(sides: Sides) -> list[str]:
    """Return the parameters of a point that must be equal on both sides."""
    return [name for name in POINT if name not in differing(sides)]


def label(sides: Sides, key: load.Key) -> str:
    """Return the values of the shared parameters in words."""
    of = dict(zip(shared_parameters(sides), key, strict=True))
    return load.group_text(tuple(of.get(name) for name in load.GROUP))


def by_host(sides: Sides) -> list[tuple[str, Sides]]:
    """Return the sides on each host that measured both, with the name of the host.

    The name is "" if there is a single host, or if the sides were measured on one host each, which may differ. Raises
    BadInput if a side has several hosts, of which none is among the other's.
    """
    left, right = (
        [key for key, _ in load.groups(one.profiles[one.profiles["status"].eq("ok")], load.HOST)]
        for one in (sides[0], sides[1])
    )
    if max(len(left), len(right)) < 2:
        return [("", sides)]
    common = [key for key in left if key in right]
    if not common:
        several = sides[0] if len(left) > 1 else sides[1]
        names = ", ".join(name for name, _ in load.hosts(several.profiles))
        raise BadInput(
            f"{several.name} was measured on several hosts ({names}), and the other side on none of them: name a run of"
            " one host"
        )
    keys = [dict(zip(load.HOST, key, strict=True)) for key in common]
    return [
        (load.host_text(of, keys) if len(common) > 1 else "", _on_host(sides, key))
        for key, of in zip(common, keys, strict=True)
    ]


def _on_host(sides: Sides, key: load.Key) -> Sides:
    """Return the sides with the rows of one host."""

    def here(table: pd.DataFrame) -> pd.DataFrame:
        return dict(load.groups(table, load.HOST)).get(key, table.iloc[:0])

    def only(side: ProfiledArm) -> ProfiledArm:
        return replace(side, rows=here(side.rows), profiles=here(side.profiles))

    left, right, again = sides
    return only(left), only(right), None if again is None else only(again)


def points(sides: Sides) -> Iterator[ProfiledPoint]:
    """Yield the points for which both sides have profiles, for each host by itself.

    Raises BadInput if there is none, if the sides have different protocols, and like `by_host`.
    """
    for host, own in by_host(sides):
        for point in _points(own):
            yield replace(point, label=f"{point.label}, on {host}") if host else point


def _points(sides: Sides) -> Iterator[ProfiledPoint]:
    by = shared_parameters(sides)
    if "protocol" not in by:
        why = "have loads without a common unit of work: name two loads of one protocol"
        raise BadInput(f"{sides[0].name} and {sides[1].name} {why}")
    left, right, control = ({} if one is None else dict(load.groups(one.profiles, by)) for one in sides)
    common = [(key, key) for key in left if key in right]
    if not common and left and right:
        # The question is about the parameters of which each side has one value, such as those that a change sets.
        kept = [at for at in range(len(by)) if by[at] == "protocol" or not _one_value_each(left, right, at)]
        elsewhere = {tuple(key[at] for at in kept): key for key in right}
        both = [(key, elsewhere.get(tuple(key[at] for at in kept))) for key in left]
        common = [(key, other) for key, other in both if other is not None]
    if not common:
        raise BadInput(f"{sides[0].name} and {sides[1].name} cannot be explained: {_nothing(sides, by)}")
    for key, other in common:
        rows = (left[key], right[other], control.get(key))
        yield ProfiledPoint(label(sides, key), str(key[by.index("protocol")]), sides, rows)


def _one_value_each(left: Iterable[load.Key], right: Iterable[load.Key], at: int) -> bool:
    return len({key[at] for key in left}) == len({key[at] for key in right}) == 1


def _same(one: tuple[Path, ...], other: tuple[Path, ...]) -> bool:
    return len(one) == len(other) and all(a.samefile(b) for a, b in zip(one, other, strict=True))


def _nothing(sides: Sides, by: list[str]) -> str:
    """Return the reason why there is no point to compare."""
    if bare := [one.name for one in sides[:2] if one is not None and one.profiles.empty]:
        who = f"{bare[0]} was" if len(bare) == 1 else "they were"
        return f"{who} not profiled: measure with observe=perf_record"
    text = "they have no point in common"
    if differing := load.differing_columns(sides[0].profiles, sides[1].profiles, by):
        text += f"; they differ in {', '.join(differing)}: name the points of both, as {FORM}"
    return text


def _differing(left: Values, right: Values) -> list[str]:
    return [name for name in left if left[name] != right[name]]


def _parse_side(text: str, left: Run | None) -> tuple[tuple[Path, ...] | None, str | None, Values]:
    """Parse `FOLDER[+FOLDER…][:ARM][,name=value…]` into folders, arm and values.

    Beside another side, `[ARM][,name=value…]` is valid too; its folders are None. Raises BadInput for any other text.
    """
    head, values = text, Values()
    while (result := _place(head, left)) is None:
        head, _, last = head.rpartition(",")
        name, equals, value = last.partition("=")
        if not equals:
            near = safe_files.meant(Path(text.partition(":")[0]))
            arms = near if left is None or "/" in text else f": {choose(text, left.arms())}"
            raise BadInput(f"{text} is neither the folder of a run nor FOLDER:ARM{arms}")
        if name in values:
            raise BadInput(f"{text} names {name} twice: name each parameter once")
        values[name] = value
    return *result, dict(reversed(values.items()))


def _place(text: str, left: Run | None) -> tuple[tuple[Path, ...] | None, str | None] | None:
    """Return the folders and the arm that a text without values names, or None if it names none."""
    if left is not None and (not text or left.arm(text.removeprefix(":"))):
        return None, text.removeprefix(":") or None
    if folders := _folders(text):
        return folders, None
    # The options of a topology have colons and equals signs, too: RUN:ovs+mirrors=1+select=client0:in,pairs=8
    colons = [at for at, letter in enumerate(text) if letter == ":"]
    for at in reversed(colons):
        if folders := _folders(text[:at]):
            arm = text[at + 1 :]
            return None if _VALUE.search(arm) else (folders, arm)
    return None


def _folders(text: str) -> tuple[Path, ...]:
    """Return the run folders that a text names, joined by `+`, or an empty tuple if one of them is not a folder."""
    if text and (folder := run_folder.named(text)).is_dir():
        return (folder,)
    result = [run_folder.named(one) for one in text.split("+") if one]
    return tuple(result) if len(result) > 1 and all(one.is_dir() for one in result) else ()


def _read_runs(folders: tuple[Path, ...], percentile: str | None) -> Run:
    """Read one run, or several runs of the same experiment as one side."""
    both = [load.rows_and_profiles(own) for own in folders]
    rows = [load.at_percentile(one, percentile) for one, _ in both]
    profiles = [load.at_percentile(one, percentile, required=False) for _, one in both]
    if len(folders) > 1:
        rows, profiles = ([pd.concat(each, ignore_index=True)] for each in (rows, profiles))
    return Run(folders[0], rows[0], profiles[0], folders)


def _usual(run: Run) -> tuple[str, str]:
    """Return the baseline and the only variant that was measured. Raises BadInput if there are several or none."""
    baseline = run.arms("baseline")
    both = pd.concat([rows[["role", "status", "arm", "reason"]] for rows in (run.profiles, run.rows)])
    both = both[both["role"].eq("variant")]
    variants = list(both.loc[both["status"].eq("ok"), "arm"].unique())
    if not variants and len(both):
        first = both.iloc[0]
        raise BadInput(
            f"{run.folder} has nothing to compare with {' and '.join(baseline)}: {first['arm']} was not measured"
            f" ({first['reason']})"
        )
    if len(run.arms()) == 1:
        drawn = len(usable_rows(run.profiles, OBSERVER)[1])
        see = f": in JupyterLab, labkit.open('{run.folder}').causes() draws its flame graph" if drawn else ""
        raise BadInput(f"{run.folder} has one arm, {run.arms()[0]}, and nothing to compare with{see}")
    if len(variants) != 1 or len(baseline) != 1:
        arms = ", ".join(run.arms())
        raise BadInput(f"{run.folder} has the arms {arms}: name two of them as {run.folder}:ARM")
    return baseline[0], variants[0]


def _arm(run: Run, name: str | None) -> str:
    """Return the arm with this name, or without a name the only arm. Raises BadInput otherwise."""
    there = run.arms()
    if name and (result := run.arm(name)):
        return result
    if name:
        raise BadInput(f"{run.folder} has no arm {name}: {choose(name, there)}")
    first = [arm for arm in there if arm not in map(run.second, there)]
    if len(first) != 1:
        raise BadInput(f"{run.folder} has the arms {', '.join(first)}: name one of them as {run.folder}:ARM")
    return first[0]


def _values(run: Run, arm: str, given: Values) -> Values:
    """Return the given values as `load.value_text` writes them. Raises BadInput for a value that the arm lacks."""
    rows = pd.concat([own.loc[own["arm"].eq(arm), POINT] for own in (run.rows, run.profiles)])
    result = Values()
    for name, text in given.items():
        where = f"{run.folder}:{','.join([arm, *(f'{one}={value}' for one, value in result.items())])}"
        if name not in POINT:
            named = [one for one in POINT if rows[one].notna().any()]
            there = [f"{one} ({', '.join(load.values(rows[one]))})" for one in named]
            near = did_you_mean(name, named)
            raise BadInput(f"{name!r} is not a parameter of a point{near}; {where} has {', '.join(there)}")
        spelling = {value.casefold(): value for value in load.values(rows[name])}
        if (value := spelling.get(_number_text(name, text).casefold())) is None:
            raise BadInput(f"{where} has no {name}={text}; it has {name}={' or '.join(spelling.values())}")
        result[name] = value
        rows = rows_with(rows, {name: value})
    return result


def _number_text(name: str, text: str) -> str:
    """Return a number in its usual form, whatever form it was given in: `1e3` becomes 1000."""
    try:
        return load.value_text(float(text)) if name in load.NUMBERS else text
    except ValueError:
        return text


def rows_with(rows: pd.DataFrame, values: Values) -> pd.DataFrame:
    """Return the rows that have these values."""
    for name, value in values.items():
        rows = rows[rows[name].map(load.value_text).eq(value)]
    return rows


def _name(arm: str, values: Values, differing: list[str], run: Run, other: Run) -> str:
    """Return the arm's name with what distinguishes it from the other side."""
    name = ",".join([arm, *(f"{each}={values[each]}" for each in differing)])
    if run is other:
        return name
    names = [str(one) if run.folder.name == other.folder.name else one.name for one in run.folders]
    return f"{name} ({'+'.join(names)})"


def _side(name: str, run: Run, arm: str, values: Values) -> ProfiledArm:
    own = run.profiles[run.profiles["arm"].eq(arm)]
    return ProfiledArm(name, run.folders, arm, values, rows_with(run.rows, values), rows_with(own, values))
