"""Summarise the runs behind a report: their parameters and provenance, from run.json and environment.json.

Of several runs (the points of a sweep), equal values are shown once, and differing values per run.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.analysis import conditions, published_runs
from labkit.analysis.load import emulated
from labkit.common import run_folder, units
from labkit.common.errors import BadInput

Table = dict[str, Any]  # name: value, or DistinctValues


@dataclass(frozen=True)
class DistinctValues:
    """A value that differs between runs: (name of the run, value), with None for an absent value."""

    values: list[tuple[str, Any]]


@dataclass(frozen=True)
class ProvenanceSummary:
    """The parameters and provenance of runs.

    summary: short facts for the top of the page. emulated: whether some rows come from an emulated CPU.
    """

    summary: list[str]
    emulated: bool
    parameters: Table
    runs: Table
    provenance: Table


def summarize_provenance(folders: Iterable[Path]) -> ProvenanceSummary:
    """Return all known facts about the runs in these folders, each a run or a sweep. Unreadable files count as
    absent."""
    runs = dict.fromkeys(run for folder in folders for run in _runs(folder))
    names = Counter(run.name for run in runs)
    result = {run.name if names[run.name] == 1 else str(run): run for run in runs}
    descriptions = {name: _known(run_folder.read_begun, run) for name, run in result.items()}
    machines = {name: _environment(run) for name, run in result.items()}
    accelerators = sorted({str(m["accelerator"]) for m in machines.values() if m.get("accelerator")})
    kernels = sorted({str(m["kernel"]) for m in machines.values() if m.get("kernel")})
    dates = sorted(str(d["created"]) for d in descriptions.values() if d.get("created"))
    summary = [dates[0].replace("T", " ").replace("Z", " UTC")] if dates else []
    summary += [f"kernel {kernel}" for kernel in kernels]
    summary += [f"accelerator: {accelerator}" for accelerator in accelerators]
    others = ("parameters", "others")
    own = {
        name: {key: value for key, value in one.items() if key not in others}
        for name, one in descriptions.items()
    }
    for one in own.values():
        if isinstance(measuring_s := one.get("measuring_s"), int | float):
            one["measuring_s"] = units.duration(measuring_s)
    about = _merge(own)
    if programs := conditions.other_programs(result.values()):
        about["other programs, at most"] = {name: units.percent(share) for name, share in programs.items()}
    parameters = _merge({name: d.get("parameters") or {} for name, d in descriptions.items()})
    return ProvenanceSummary(
        summary, any(map(emulated, machines.values())), parameters, about, _merge(machines)
    )


def _runs(folder: Path) -> list[Path]:
    points = _known(run_folder.read_object, folder / "sweep.json").get("points")
    if isinstance(points, list):
        return [folder / str(point) for point in points if (folder / str(point)).is_dir()]
    return [folder] if (folder / "run.json").exists() else []


def _known(read: Callable[[Path], dict[str, Any]], path: Path) -> dict[str, Any]:
    """Return what a function reads, or an empty object if it cannot be read."""
    with contextlib.suppress(BadInput):
        return read(path)
    return {}


def _environment(run: Path) -> dict[str, Any]:
    """Return environment.json with kernel and accelerators at its top, taken from its machines or else from a row."""
    content = _known(run_folder.read_object, run / "environment.json")
    machine, peer = content.get("machine"), content.get("peer")
    facts = content | (machine if isinstance(machine, dict) else {})
    other = peer.get("machine") if isinstance(peer, dict) else None
    facts |= {"peer_accelerator": other.get("accelerator")} if isinstance(other, dict) else {}
    if not (facts.get("kernel") and facts.get("accelerator")):
        with contextlib.suppress(BadInput):
            facts = next(iter(published_runs.read_rows(run)), {})
    names = ("kernel", "accelerator", "peer_accelerator")
    return {name: facts[name] for name in names if facts.get(name)} | content


def _merge(tables: dict[str, Table]) -> Table:
    """Return one table of all: a value once if all tables share it, and else DistinctValues."""
    merged: Table = {}
    for name in dict.fromkeys(name for table in tables.values() for name in table):
        values = [table.get(name) for table in tables.values()]
        alike = all(value == values[0] for value in values)
        merged[name] = values[0] if alike else DistinctValues(list(zip(tables, values, strict=True)))
    return merged
