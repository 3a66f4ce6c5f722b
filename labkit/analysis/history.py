"""The history of benchmarks: a folder with a Parquet file for each run (`labkit track`), and the series in it.

A file is written under another name and then renamed, so a reader sees whole files only, and writers that add at once
lose nothing. Its name has a digest of the run's identity: a run that is added again is the same file. DuckDB reads all
files as one table: `SELECT * FROM read_parquet('data/track/*.parquet')`.

A series is an arm at a point on one class of machines. Two classes are never in one series. The kernel is not a part of
it: a change between kernels is what a history is for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit import __version__
from labkit.analysis import benchmark_formats, change_points, csv_series, load, protocols, verdicts
from labkit.analysis.change_points import Change
from labkit.analysis.load import COST, HOST
from labkit.analysis.parquet_rows import column_types, encode
from labkit.common import run_folder, safe_files, units
from labkit.common.errors import BadInput
from labkit.common.schema import BY_NAME, PERCENTILE, Column, Type

# Raised also where a value gets another meaning, so that a series has one: files of an older format are left out until
# their run is added again, which computes the values anew. 2: the CPU time of a request is of those in its window.
# 3: CPU time is that of both hosts, and of all slices of a round together.
FORMAT = "3"
SUFFIX = ".parquet"
MAX_BYTES = 64 << 20  # of a file
# A clock may differ by this from that of the machine that adds the run.
CLOCKS_S = 60.0
SERIES = ["experiment", "arm", "baseline", "point", "metric", "machine_class"]
# What may explain a change, in the order in which it is named.
PROVENANCE = [
    "kernel", "kernel_build", "kernel_config_digest", "sysctl_digest", "iperf3", "labkit", "git_revision", "machine",
]  # fmt: skip
_OWN: tuple[tuple[str, Type, str], ...] = (
    ("arm", "text", "the arm: what verdicts name"),
    ("baseline", "text", "the arm that ratios are to; null: this arm is the baseline"),
    ("point", "text", "the parameters of the point that are no defaults, in words"),
    ("metric", "text", "the column of rows whose values these are"),
    ("higher_is_better", "flag", "whether higher values are better"),
    ("machine_class", "text", "the machine or lab VM, its accelerator, CPU and number of CPUs"),
    ("added", "text", "when it was added, in UTC"),
    ("folder", "text", "the run's folder when it was added"),
    ("setups_count", "integer", "fresh set-ups"),
    ("value", "number", "the geometric mean over set-ups, in the metric's unit"),
    ("value_low", "number", "the low end of its 95 % interval"),
    ("value_high", "number", "the high end of its 95 % interval"),
    ("ratio", "number", "the ratio to the baseline, measured next to it"),
    ("low", "number", "the low end of its 95 % interval"),
    ("high", "number", "the high end of its 95 % interval"),
)
COLUMNS = {name: BY_NAME[name] for name in ("experiment", "run", "time", *PROVENANCE)} | {
    name: Column(name, "", kind, meaning, "rows", "describes") for name, kind, meaning in _OWN
}


def add(run: Path, folder: Path) -> list[tuple[Path, bool]]:
    """Add a run, the runs of a sweep or a CSV file to the history in a folder; return each file, and whether it is new.

    Raises BadInput for a run that is not finished, or has nothing to compare, and for a wrong line.
    """
    if run.suffix == ".csv":
        content = safe_files.read_regular(run)
        path = folder / _name(run.stem, content)
        if is_new := isinstance(_read(path), str):
            points = [{**dict.fromkeys(COLUMNS), **one} for one in csv_series.points(run, content)]
            run_folder.write(path, _encoded(points))
        return [(path, is_new)]
    there = [run]
    if (run / "sweep.json").exists():
        there = [run / name for name in run_folder.sweep_points(run) if (run / name / "run.json").exists()]
    result = []
    for one in there:
        about = run_folder.read_run(one)
        if not about.get("finished"):
            raise BadInput(f"the run {one} is not finished: repeat its command with --folder {one} first")
        identity = [
            *(about[name] for name in ("experiment", "run", "created", "seed")),
            protocols.percentile(None if os.environ.get(PERCENTILE) else about.get("percentile")),
        ]
        path = folder / _name(str(about["run"]), json.dumps(identity).encode())
        if is_new := isinstance(_read(path), str):
            points = list(_points(one, f"{run.name}/{one.name}" if one != run else one.resolve().name))
            if not points:
                raise BadInput(
                    f"the run {one} has no valid measurement of throughput or latency: nothing to add"
                )
            run_folder.write(path, _encoded(points))
        result.append((path, is_new))
    return result


def _name(name: str, identity: bytes) -> str:
    digest = hashlib.sha256(identity).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_.+-]', '_', name)[:100]}-{digest}{SUFFIX}"


def _points(run: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the columns of each arm at each point of the run with this name, for its metric and its CPU time."""
    rows = load.part(load.load(run), "cost")
    for table in (rows, load.by_cost(rows)):
        ok = load.measured_rows(table)
        ok = ok[ok["role"].ne("control") & ok["value"].gt(0)]
        if ok.empty:
            continue
        compared = {
            (key, line["topology"]): line
            for key, lines in load.groups(verdicts.verdicts(table))
            for line in lines.to_dict("records")
        }
        for key, arm, rows, mean in benchmark_formats.arm_means(ok):
            first = rows.iloc[0]
            against = compared.get((key, arm), {})
            metric = str(first["metric"])
            yield {
                **{name: first[name] for name in PROVENANCE},
                "experiment": first["experiment"], "arm": arm, "baseline": against.get("baseline"),
                "point": load.group_text((*[None] * len(HOST), *key[len(HOST) :])),
                "metric": metric, "higher_is_better": protocols.higher_is_better(metric),
                "machine_class": machine_class(first),
                "time": rows["time"].min(), "added": run_folder.now(), "run": name,
                "folder": str(run.resolve()), "setups_count": rows["setup"].nunique(),
                "value": mean.ratio, "value_low": mean.low, "value_high": mean.high,
                **{name: against.get(name) for name in ("ratio", "low", "high")},
            }  # fmt: skip


def machine_class(row: Any) -> str:
    """Return the class of the machine that measured a row: machines of one class may be pooled in a series."""
    where = str(row["where"])
    words = ["lab VM" if where.startswith("vm:") else "machine"]
    words += re.findall(r",(profile=\w+)", where)
    for end in ("", "peer_"):
        known = [row.get(f"{end}{name}") for name in ("accelerator", "cpu")]
        words += [f"{'peer ' * bool(end)}{one}" for one in known if one is not None and pd.notna(one)]
    if pd.notna(row["cpus_count"]):
        words.append(units.counted(int(row["cpus_count"]), "CPU"))
    return ", ".join(words)


def _encoded(points: list[dict[str, Any]]) -> bytes:
    plain = [{name: None if pd.isna(one[name]) else one[name] for name in COLUMNS} for one in points]
    return encode(plain, __version__, COLUMNS, labkit_history=FORMAT)


def _read(path: Path) -> pd.DataFrame | str:
    """Return the points in a file, or why it is left out, in a sentence."""
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(pyarrow.BufferReader(safe_files.read_regular(path, MAX_BYTES)))
        version = (table.schema.metadata or {}).get(b"labkit_history", b"").decode(errors="replace")
        if version != FORMAT or not set(COLUMNS) <= set(table.column_names):
            what = f"has version {version[:20]} of the history" if version else "is not of a history"
            return f"left out: {path} {what}, and this labkit reads version {FORMAT}: add its run again"
        types = column_types()
        own = pyarrow.schema([(name, types[column.type]) for name, column in COLUMNS.items()])
        return pd.DataFrame(table.select(list(COLUMNS)).cast(own).to_pandas())
    except BadInput as error:
        return f"left out: {error}"
    except (pyarrow.ArrowException, OSError):
        return f"left out: {path} is no Parquet file of a history, or a part of one: remove it, and add its run again"


def change_text(ratio: float) -> str:
    """Return a ratio as a change in per cent: 1.1 is `+10 %`, and 2.5 is `+150 %`."""
    return f"{units.digits(float(f'{(ratio - 1) * 100:.2g}'), sign=True)} %"


@dataclass(frozen=True)
class Series:
    """A series: its names (SERIES), its points in order, and its changes.

    The columns `y`, `y_low` and `y_high` of the points are what is judged: the ratio to the baseline, or, of the
    baseline itself, the value.
    """

    names: dict[str, Any]
    points: pd.DataFrame
    changes: list[Change]

    @property
    def is_ratio(self) -> bool:
        return self.names["baseline"] is not None

    @property
    def title(self) -> str:
        """Return the series in words."""
        to = f" to {self.names['baseline']}" if self.is_ratio else ""
        metric = self.names["metric"]
        own = metric.rsplit("_", 1)[0] if metric in BY_NAME else metric
        what = "CPU time" if metric == COST else own.replace("_", " ")
        where = ", ".join(filter(None, (self.names["experiment"], self.names["point"])))
        return f"{self.names['arm']}{to}: {what} ({where})"

    def beside(self, change: Change) -> tuple[pd.Series[Any], pd.Series[Any]]:
        """Return the last point before a change and the first one after it."""
        return self.points.iloc[change.place - 1], self.points.iloc[change.place]

    def sentence(self, change: Change) -> str:
        """Return a change in words."""
        before, after = self.beside(change)
        more = bool(self.points["higher_is_better"].iloc[0])
        word = "better" if (change.ratio > 1) == more else "worse"
        one, low, high = map(change_text, (change.ratio, change.low, change.high))
        return f"{word}: {one} [{low}, {high}] from {before['run']} to {after['run']}"


@dataclass(frozen=True)
class History:
    """The series of a folder, those with changes first, and a sentence for each doubt."""

    series: list[Series]
    doubts: list[str]


def read(folder: Path, by: str = "time") -> History:
    """Return the series in a folder, in the order of `time`, or of `kernel` and then of time.

    Raises BadInput if the folder has no history.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise BadInput(f"there is no history in {folder}: `labkit track add RUN` begins one")
    read = [_read(path) for path in paths]
    doubts = [one for one in read if isinstance(one, str)]
    tables = [one for one in read if not isinstance(one, str)]
    if not tables:
        raise BadInput(doubts[0])
    table = pd.concat(tables, ignore_index=True)
    # A run that was added for two percentiles is in two files, with the same CPU time and throughput in both.
    table = table.drop_duplicates([*SERIES, "run", "time", "value"], ignore_index=True)
    # Of a line of a CSV file, which may have been corrected and added again, the last one counts.
    foreign = table["experiment"].eq(csv_series.EXPERIMENT)
    lines = table[foreign].sort_values("added", kind="stable")
    lines = lines.drop_duplicates([*SERIES, "run", "time"], keep="last")
    table = pd.concat([table[~foreign], lines], ignore_index=True)
    doubts += _clock_doubts(table)
    by_series = load.groups(table.astype(dict.fromkeys(SERIES, object)), SERIES)
    result = [_series(dict(zip(SERIES, key, strict=True)), points, by) for key, points in by_series]
    doubts += [f"{one.title}: no run has a ratio, so there is no trend" for one in result if one.points.empty]
    result = [one for one in result if len(one.points)]
    few = sum(len(one.points) < change_points.LEAST for one in result)
    if few:
        doubts.append(
            f"{few} of {len(result)} series have fewer than {change_points.LEAST} points, in which no"
            " change is marked: a change needs two points on either side"
        )
    for one in result:
        if flapping := change_points.flapping(one.changes):
            doubts.append(f"{one.title}: {flapping}")
    return History(sorted(result, key=lambda one: not one.changes), doubts)


def _series(names: dict[str, Any], points: pd.DataFrame, by: str) -> Series:
    which = ["value", "value_low", "value_high"] if names["baseline"] is None else ["ratio", "low", "high"]
    points = points.assign(y=points[which[0]], y_low=points[which[1]], y_high=points[which[2]])
    points = points[points["y"].between(0, np.inf, "neither")]
    kernels = sorted(points["kernel"].dropna().unique(), key=load.version)
    rank = {name: place for place, name in enumerate(kernels)}
    first = points["kernel"].map(rank).fillna(-1) if by == "kernel" else points["time"]
    points = points.assign(first=first).sort_values(["first", "time", "added"], kind="stable")
    points = points.drop(columns="first").reset_index(drop=True)
    ends = [np.log(points[name].to_numpy(float)) for name in ("y", "y_low", "y_high")]
    return Series(names, points, change_points.changes(*ends))


def _clock_doubts(table: pd.DataFrame) -> list[str]:
    """Return a sentence for each run that says it was measured after it was added, about runs that were added after
    later ones, and about runs without a time."""
    runs = table.drop_duplicates(["run", "folder"]).sort_values("added", kind="stable")
    measured, added = (pd.to_datetime(runs[name], errors="coerce", utc=True) for name in ("time", "added"))
    ahead = (measured - added).dt.total_seconds().gt(CLOCKS_S)
    lines = [
        f"{run} says that it was measured at {time}, after it was added at {there}: a clock went back, so its place in"
        " the trend may be wrong"
        for run, time, there in runs.loc[ahead, ["run", "time", "added"]].itertuples(index=False)
    ]
    ready = table.assign(measured=pd.to_datetime(table["time"], errors="coerce", utc=True))
    ready = ready[~ready["run"].isin(runs.loc[ahead, "run"])].astype(dict.fromkeys(SERIES, object))
    if late := list(dict.fromkeys(run for _, own in load.groups(ready, SERIES) for run in _late(own))):
        lines.append(
            f"{units.counted(len(late), 'run')} ({units.listed(late[:3])}) came into the history after a run that was"
            " measured later: if a clock went back, the place in the trend is wrong"
        )
    if unknown := int((measured.isna() & runs["experiment"].ne(csv_series.EXPERIMENT)).sum()):
        what = "have no time of measuring, and are at the end of the trend"
        lines.append(f"{unknown} of {len(runs)} runs {what}")
    return lines


def _late(points: pd.DataFrame) -> Iterator[str]:
    """Yield the runs of a series that were added after one that was measured later; a minute's are in any order."""
    added = pd.to_datetime(points["added"], errors="coerce", utc=True)
    before = added - pd.Timedelta(seconds=CLOCKS_S)
    for run, measured, at in zip(points["run"], points["measured"], before, strict=True):
        if points["measured"][added.lt(at)].gt(measured).any():
            yield str(run)
