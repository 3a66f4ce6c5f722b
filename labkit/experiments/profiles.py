"""Profiles: whole runs of every arm under each observer, one observer at a time, after the rounds that measure.

They never enter a comparison (METHOD, "Profiles"). In the same rounds every arm also runs without an observer, so that
what an observer cost stands beside what it saw.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from labkit import machine, records, units
from labkit.errors import LabkitError, Unsupported
from labkit.experiments import arms, columns, events, whole
from labkit.experiments.asked import Datapaths
from labkit.experiments.columns import Arm, Measured
from labkit.experiments.events import Event, Surroundings
from labkit.experiments.looks import Live
from labkit.experiments.observing import DISTURBING, TABLE
from labkit.units import many

METHOD = "profile"
UNOBSERVED = "unobserved"  # the point whose rows say why observers cannot be used
Asked = TypeVar("Asked", bound=Datapaths)
ARMING_S = 1.0  # about, and to read what was seen
BETWEEN = 6  # namespaces between the ends whose settings are kept
DISTURBED = 0.85  # of its throughput a tracer has to leave a flow


@dataclass(frozen=True)
class Profile:
    """One round of profiles for one number of pairs with one load; `prefix` tells it from those of other loads."""

    pairs: int
    round: int
    asked: Datapaths
    prefix: str = ""

    @property
    def name(self) -> str:
        """`8-p3`, `400b-8-p3`"""
        return f"{self.prefix}{'-' if self.prefix else ''}{self.pairs}-p{self.round}"

    @property
    def what(self) -> str:
        """The round in words, for progress."""
        words = f"{many(self.pairs, 'pair')}, profile {self.round + 1} of {self.asked.profile_rounds}"
        return f"{self.prefix}, {words}" if self.prefix else words


def points(asked: Datapaths) -> list[Profile]:
    """All points, round by round."""
    rounds = asked.profile_rounds if asked.observe else 0
    return [Profile(pairs, number, asked) for number in range(rounds) for pairs in asked.pairs]


def check(asked: Datapaths) -> None:
    """Raises Unsupported or BadInput, in one sentence, for an observer that cannot be used on this machine."""
    for name in asked.observe:
        TABLE[name].check(asked)


def unusable(asked: Datapaths) -> dict[str, str]:
    """The observers that cannot be used on this machine, each with the reason."""
    found = {}
    for name in asked.observe:
        try:
            TABLE[name].check(asked)
        except Unsupported as error:
            found[name] = str(error)
    return found


def without(asked: Asked, blind: Collection[str]) -> Asked:
    """The parameters without these observers."""
    left = tuple(name for name in asked.observe if name not in blind)
    return msgspec.structs.replace(asked, observe=left)


def unobserved(blind: Mapping[str, str]) -> dict[str, list[records.Row]]:
    """The point whose rows say why observers cannot be used; none where all can."""
    unseen = {"method": METHOD, "status": "unsupported"}
    rows = [{**unseen, "observer": name, "reason": why} for name, why in blind.items()]
    return {UNOBSERVED: rows} if rows else {}


def check_built(asked: Datapaths) -> None:
    """Raises BadInput for what can be known only once every arm has stood, which loads modules of the kernel: functions
    that it cannot trace."""
    for name in asked.observe:
        TABLE[name].check_built(asked)


def planned_s(asked: Datapaths, usable: list[Arm]) -> float:
    """About how many seconds a point takes."""
    runs_s = (1 + len(asked.observe)) * (asked.omit_s + asked.duration_s + 0.3)
    return arms.boots_s(usable) + len(usable) * (0.1 + runs_s + len(asked.observe) * ARMING_S)


def measure(
    around: Surroundings, left: Sequence[Profile], usable: list[Arm], spent_of: tuple[float, float]
) -> Iterator[Event]:
    """The rows of each point, with progress between; `spent_of` are planned seconds, until now and in all."""
    spent, total = spent_of
    for point in left:
        asked, found = point.asked, list[Measured]()
        each_s = planned_s(asked, usable) / (len(usable) * (1 + len(asked.observe)))
        for stage in _measure(around, point, usable, found):
            yield events.progress(f"{point.what}: {stage}", spent, total)
            spent += each_s
        named = {"point": point.name, "round": point.round}
        _tell_overhead(asked, found)
        rows = [
            columns.row_of(asked, around, arm, point.pairs, {**named, **metrics}) for arm, metrics in found
        ]
        yield events.rows(point.name, rows)


def _measure(around: Surroundings, point: Profile, usable: list[Arm], found: list[Measured]) -> Iterator[str]:
    """Measure one point: yields each stage as it begins."""
    asked = point.asked
    rng = random.Random(f"{around.seed} {point.name}")
    observers: list[str | None] = [None, *asked.observe]
    with arms.built(asked, around, point.pairs, usable, rng) as (live, refused):
        found += [(arm, {**metrics, "method": METHOD}) for arm, metrics in refused]
        of = {one.arm.label: one for one in live}
        under = {label: _settings(one, around.folder) for label, one in of.items()}
        for observer in rng.sample(observers, len(observers)):
            for label in columns.order(around, point.pairs, point.round, list(of)):
                yield f"{label}, {observer or 'not observed'}"
                arm, metrics = _observed(asked, of[label], observer, around.folder, point.name)
                found.append((arm, {**metrics, "settings": under[label]}))


def _settings(live: Live, folder: Path) -> str:
    """The settings under which an arm stands, as a file of the run's folder: of the namespaces of its first pair and of
    what lies between, by name. Arms that stand under the same ones have one file."""
    pair = live.topology.pairs[0]
    ends = {end.namespace.name: end.namespace for one in live.pairs for end in (one.client, one.server)}
    between = [space for space in live.topology.namespaces if space.name not in ends][:BETWEEN]
    spaces = {space.name: space for space in (pair.client.namespace, pair.server.namespace, *between)}
    found: dict[str, dict[str, str]] = {
        name: machine.settings_of_namespace(space.fd) for name, space in spaces.items()
    }
    found["machine"] = machine.bpf_settings()
    name = Path("artefacts", f"settings-{machine.digest(msgspec.json.encode(found, order='sorted'))}.json.gz")
    if not (folder / name).exists():
        records.write_artefact(folder / name, found)
    return str(name)


def _observed(asked: Datapaths, live: Live, observer: str | None, folder: Path, point: str) -> Measured:
    """One whole run of an arm under an observer, or under none."""
    artefacts = folder / "artefacts" / point
    suffix = f"-{observer or 'not_observed'}"
    own: dict[str, Any] = {"method": METHOD, "observer": observer}
    if observer is None:
        arm, metrics = whole.measure(asked, live, artefacts, nullcontext, suffix)
        return arm, {**metrics, **own}
    try:
        with TABLE[observer].armed(asked, live.topology, artefacts / f"{live.arm.stem}{suffix}") as watch:
            arm, metrics = whole.measure(asked, live, artefacts, watch.counting, suffix)
            told = watch.told()
    except LabkitError as error:
        return live.arm, {"status": "failed", "reason": f"{observer}: {error}", **own}
    doubts = "; ".join(filter(None, [metrics.get("doubts"), *told.doubts]))
    seen = {
        "observed": told.observed,
        "artefact": str(told.artefact.relative_to(folder)) if told.artefact else None,
        "lost_samples_count": told.lost_samples_count,
        "doubts": doubts or None,
    }
    return arm, {**metrics, **own, **seen}


def _tell_overhead(asked: Datapaths, found: list[Measured]) -> None:
    """What each observer left of the throughput (of the rate of pings) that its arm had without one in this round."""
    without = {
        arm.label: _speed(asked, metrics) for arm, metrics in found if metrics.get("observer", "") is None
    }
    for arm, metrics in found:
        speed, usual = _speed(asked, metrics), without.get(arm.label)
        if metrics.get("observer") and speed and usual:
            left = metrics["overhead_ratio"] = speed / usual
            if metrics["observer"] in DISTURBING and left < DISTURBED:
                share = units.percent(left)
                words = f"disturbed: {metrics['observer']} left only {share} of the speed"
                metrics["doubts"] = "; ".join(filter(None, [metrics.get("doubts"), words]))


def _speed(asked: Datapaths, metrics: dict[str, Any]) -> float | None:
    if metrics.get("status") != "ok":
        return None
    can = asked.load_generator.capabilities
    value = float(metrics[can.metric])
    if can.higher_is_better:
        return value
    return 1 / value if value else None
