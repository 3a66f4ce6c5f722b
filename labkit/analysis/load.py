"""Load the rows of a run folder or a sweep folder into one table, and select the valid ones.

A row is a measurement; the column `folder` is added. Arms are compared within a group, whose rows are equal in the
columns of GROUP. Only rows of status "ok" count. A host is a kernel on a machine (equal in the columns of HOST). Rows
of several hosts are never pooled; only their ratios are compared.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import protocols, published_runs
from labkit.analysis.protocols import PROTOCOLS
from labkit.common import run_folder, schema, switch_options
from labkit.common.errors import BadInput, choose

# The host of a row: as requested, and as it turned out to be
RAN_ON = schema.names(writer=("machine",), use="host")
PEER_RAN_ON = schema.names(writer=("peer",), use="host")  # the servers' host in experiments with two nodes
HOST = [*schema.names(writer=("rows",), use="host"), *RAN_ON, *PEER_RAN_ON]
# The host and every scalar parameter of a run. Rows that differ in one of these are not compared with each other.
GROUP = [*HOST, *schema.names(use="group")]
# A metric: CPU time of all hosts for each packet that arrived, of TCP for each byte (`by_cost` adds the column)
COST = "cpu_per_unit_s"
PROFILE = "profile"  # method of rows beside an observer, and of the rows that measure its cost
ENDPOINT_NAMES = {
    "namespace": "namespaces",
    "container": "containers",
    "guest": "a guest each",
    "shared_guest": "namespaces of one guest",
}
TURN = ("run", "point", "round", "method", "slice")  # in it each arm is measured once
STARVED = 0.01  # share of the arm's median; a slice with less is starved
ALWAYS_NAMED = ("pairs", "mtu_bytes")  # of a group, also where they have the usual value
HEADERS = {4: 28, 6: 48}  # IP and UDP headers: the MTU minus these is the largest unfragmented payload
# The columns of every table. Columns of captures keep their types.
COMPARED = tuple(writer for writer in schema.WRITERS if writer != "observation")
WORDS = [*(one for one in schema.names(writer=COMPARED, type=("text", "flag")) if one != "again"), "folder"]
NUMBERS = schema.names(writer=COMPARED, type=("number", "integer"))
_NUMBERS = frozenset(NUMBERS)
# The type "str" of pandas with Python's strings, not Arrow's: rows of tables with so many columns are selected twice as
# fast.
TEXT = pd.StringDtype("python", na_value=np.nan)
pd.set_option("mode.string_storage", TEXT.storage)  # also for the columns that pandas makes in between
# Columns in which compared rows of one host must be equal
PROVENANCE = schema.names(writer=("machine",), use="equal")
GUEST_COLUMNS = schema.names(writer=("endpoint",), use="equal")  # the same for rows with guests
Key = tuple[Any, ...]


def load(path: str | Path, part: str | None = "cost") -> pd.DataFrame:
    """Return the rows of a run folder, or of all runs of a sweep folder, without those of profiles (see `profiles`).

    `folder` is the path of the run. `part` selects a part of an experiment with several parts (`overlay`), None all of
    them; other experiments have only `cost`. Round-trip times are compared by the percentile that the run was measured
    for, unless this process has another one. `attrs["unfinished"]` is a list of sentences, one for each missing part;
    without such a part it is not there.
    Raises BadInput if this is not a folder of a run or sweep, or if a file is incomplete, with its name.
    """
    return _tables(Path(path), lambda row: _belongs_to(part, row))[0]


def profiles(path: str | Path) -> pd.DataFrame:
    """Return the rows of a run or sweep folder that were measured beside an observer, and those that measure its cost.

    In the latter, `observer` is null. `observed` is the observer's result; `artefact` is a file in `folder`.
    """
    return _tables(Path(path), _is_profile_row)[0]


def rows_and_profiles(path: str | Path) -> list[pd.DataFrame]:
    """Return what `load` and `profiles` return. The folder is read once."""
    return _tables(Path(path), lambda row: _belongs_to("cost", row), _is_profile_row)


def part(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of one part of an experiment. Experiments without parts have `cost` only."""
    return rows[rows["part"].fillna("cost").eq(name)]


def _belongs_to(part: str | None, row: dict[str, Any]) -> bool:
    return not _is_profile_row(row) and part in (None, row.get("part") or "cost")


def _is_profile_row(row: dict[str, Any]) -> bool:
    return row.get("method") == PROFILE


def _tables(top: Path, *wanted: Callable[[dict[str, Any]], bool]) -> list[pd.DataFrame]:
    """Return a table of the rows that each of these functions selects."""
    run_folder.check_there(top)
    there, unfinished, asked = [top], list[str](), list[Any]()
    if (top / "sweep.json").exists():
        names = run_folder.sweep_points(top)
        asked.append(run_folder.read_object(top / "sweep.json").get("percentile"))
        there = [top / name for name in names if (top / name / "run.json").exists()]
        if missing := len(names) - len(there):
            unfinished = [f"{missing} of {len(names)} points of the sweep {top.name} are not measured yet"]
    elif not (top / "run.json").exists():
        raise BadInput(f"{top} is not a run, or is incomplete: it has neither run.json nor sweep.json")
    selected: list[list[dict[str, Any]]] = [[] for _ in wanted]
    for folder in there:
        run = run_folder.read_begun(folder)
        if not run.get("finished"):
            unfinished.append(f"the run {folder.name} is not finished")
        asked.append(run.get("percentile"))
        own, published = _with_arms_in_order(_rows(folder), run), published_runs.is_published(folder)
        for rows, is_wanted in zip(selected, wanted, strict=True):
            of = filter(is_wanted, own)
            rows += [{**row, "folder": _of_sweep(folder, row) if published else str(folder)} for row in of]
    # `metric` is no column of rows, but a file of somebody else may have it.
    tables = [complete(pd.DataFrame(rows).drop(columns="metric", errors="ignore")) for rows in selected]
    if (chosen := next(filter(None, asked), None)) and not os.environ.get(schema.PERCENTILE):
        for place, table in enumerate(tables):
            with contextlib.suppress(BadInput):  # it has no such percentile
                tables[place] = at_percentile(table, chosen)
    for table in tables if unfinished else ():  # pandas copies attrs with each column that is read
        table.attrs["unfinished"] = list(unfinished)
    return tables


def _with_arms_in_order(rows: list[dict[str, Any]], run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a run with the arms of each turn in the order of its parameters: they ran in a random one."""
    parameters, turns = run.get("parameters"), dict[str, int]()
    planned = {
        name: [str(one.get("name") if isinstance(one, dict) else one) for one in values]
        for name in ("topology", "endpoint", "change")
        if isinstance(parameters, dict) and isinstance(values := parameters.get(name), list)
    }

    def place(row: dict[str, Any]) -> list[int]:
        turn = turns.setdefault(str([row.get(name) for name in TURN]), len(turns))
        arm = ((str(row.get(name)), names) for name, names in planned.items())
        # The arm without a change, "None", comes first, and arms of other parameters last.
        places = [
            names.index(one) if one in names else -1 if one == "None" else len(names) for one, names in arm
        ]
        return [turn, *places, int(row.get("role") == "control")]

    return sorted(rows, key=place)


def _of_sweep(folder: Path, row: dict[str, Any]) -> str:
    """Return the folder of a published row's run. The runs of a published sweep are in one file and stay apart."""
    if not run_folder.is_name(name := str(row["run"])):
        raise BadInput(f"{folder}: a row has the run {name[:100]!r}, which is no name of a folder")
    return str(folder / name)


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows = published_runs.read_rows(folder)
    numbers = _NUMBERS | _own_numbers(row.get("experiment") for row in rows)
    for row in rows:
        wrong = [name for name in ("topology", "protocol", "status") if not isinstance(row.get(name), str)]
        # Millions of values: nearly all of them are null, numbers with a fraction, or in no column of numbers.
        others = (name for name, value in row.items() if value is not None and type(value) is not float)
        wrong += [
            name
            for name in others
            if name in numbers and not (isinstance(row[name], int) and abs(row[name]) < 10**300)
        ]
        if wrong:
            value = row.get(wrong[0])
            shown = "an integer too large" if isinstance(value, int) else repr(value)[:100]
            what = f"the column {wrong[0]} has the invalid value {shown}"
            raise BadInput(f"{folder / 'rows'}: in a row of point {row.get('point')} {what}")
    return rows


def complete(df: pd.DataFrame) -> pd.DataFrame:
    """Return the table with every column of the schema and of its experiments. Missing numbers are NaN.

    `metric` is added: the column by which rows are compared. A table may have others than the usual (`at_percentile`).
    """
    if _is_complete(df):
        return df.reset_index(drop=True)
    given = df.reset_index(drop=True)
    columns: dict[Any, Any] = {name: given[name] for name in given}
    no_numbers, no_words = np.full(len(df), np.nan), pd.array([None] * len(df), dtype=TEXT)
    for name in WORDS:
        columns[name] = columns[name].astype(TEXT) if name in columns else no_words
    for name in NUMBERS:
        is_there = name in columns and columns[name].notna().any()
        columns[name] = pd.to_numeric(columns[name]) if is_there else no_numbers
    for name in _own_numbers(given.get("experiment", ())):
        if name not in columns or columns[name].isna().all():
            columns[name] = no_numbers
    # Built at once: a table that grows column by column is slow, and pandas warns about its many blocks.
    whole = pd.DataFrame(columns, index=given.index)
    whole.attrs = dict(df.attrs)
    whole["folder"] = whole["folder"].fillna(whole["run"])
    return _parameters_of_points(_variants(_migrated(whole)))


def _own_numbers(experiments: Iterable[Any]) -> frozenset[str]:
    """Return the columns of numbers that only these experiments have. No other experiment's package is imported."""
    own = map(schema.added, {name for name in experiments if isinstance(name, str)})
    return frozenset(
        one.name for columns in own for one in columns.values() if one.type in ("number", "integer")
    )


def _is_complete(df: pd.DataFrame) -> bool:
    """Return whether `complete` has nothing to do."""
    if "built_topology" not in df or "metric" not in df:
        return False
    types = dict(zip(df.columns, df.dtypes, strict=True))
    has_numbers = all(name in types and types[name].kind in "fiu" for name in NUMBERS)
    return has_numbers and all(str(types.get(name)) == "str" for name in WORDS)


AGAIN = " (again)"  # the end of the name of an arm that is measured a second time


def _migrate_ends(df: pd.DataFrame) -> None:
    """Write where requests of older runs had their ends, as their placements say."""
    if df["transaction_rate"].isna().all() and df["ends_on"].isna().all():
        return
    one_cpu, two_cpus = schema.ENDS_ON
    cpus = df["placement"].where(df["transaction_rate"].notna()).str.extract(r"^(\d+),(\d+)$")
    ends_on = cpus[0].eq(cpus[1]).map({True: one_cpu, False: two_cpus}).where(cpus[0].notna())
    # Until labkit wrote ends_on, CPU time of sockperf's requests began 2 s before the first of them.
    was_idle = df["ends_on"].isna() & ends_on.notna() & df["generator"].eq("sockperf")
    df.loc[was_idle, ["cpu_s", "softirq_s", "cpu_wait_s", "cpu_per_transaction_s"]] = np.nan
    df["ends_on"] = df["ends_on"].fillna(ends_on.astype(TEXT))
    # A row without a measurement has no placement: it joins the first group of its run.
    of_run = df.groupby(["folder", "protocol"])["ends_on"].transform("first")
    df["ends_on"] = df["ends_on"].mask(df["ends_on"].isna() & df["status"].ne("ok"), of_run)


def _migrated(df: pd.DataFrame) -> pd.DataFrame:
    """Return the table with what rows of older runs lack, as long as labkit reads format 1.

    They are of one node, and each protocol had one generator. The placement says where requests had their ends, the
    arm's name whether it was measured a second time, the topology's name what the switch was.
    """
    usual = df["protocol"].map(lambda name: protocols.find(name).generator, na_action="ignore")
    df["generator"] = df["generator"].fillna(usual.astype("str"))
    df["nodes"], df["direction"] = df["nodes"].fillna("one"), df["direction"].fillna("forward")
    _migrate_ends(df)
    by_name = df["arm"].str.endswith(AGAIN, na=False)
    if "again" in df:
        by_name = df["again"].eq(True).where(df["again"].notna(), by_name)
    df["again"] = by_name.astype(bool)
    built = df["built_topology" if "built_topology" in df else "topology"]
    older = built[df["mirrors"].isna()]
    for name, rows in older.groupby(older):
        for column, value in switch_options.columns(name).items():
            if value is not None:
                df.loc[rows.index, column] = value
    if "metric" not in df:
        df["metric"] = df["protocol"].map(protocols.metrics()).astype(TEXT)
    return df


def _variants(df: pd.DataFrame) -> pd.DataFrame:
    """Return the table with arms named by their differences.

    If all arms have the same topology and endpoint, a changed arm is named by its change alone. `topology` becomes the
    name of the compared arm, the same for both measurements of the baseline. `built_topology` is the actual topology.
    """
    if "built_topology" not in df:
        df["built_topology"] = df["topology"]
    changed = df["change"].notna()
    if changed.any():
        names = df["arm"].str.removesuffix(AGAIN)
        both = zip(names, df["change"], strict=True)
        if len({name.removesuffix(f"+{change}") for name, change in both}) == 1:
            df.loc[changed, "arm"] = df["change"] + df["again"].map({True: AGAIN, False: ""})
    several = (df["endpoint"].notna() & df["endpoint"].ne("namespace")) | changed
    if several.any():
        df.loc[several, "topology"] = df.loc[several, "arm"].str.removesuffix(AGAIN)
    return df


def _parameters_of_points(df: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the point's value for each parameter that the change of an arm sets.

    The arm's own value is in `changed`.
    """
    if "changed" not in df:
        return df
    for row, effects in df["changed"].items():
        for one in effects if isinstance(effects, list) else ():
            if one["kind"] == "parameter" and one["setting"] in GROUP:
                usual = None if one["before"] == "None" else one["before"]
                if one["setting"] in NUMBERS:
                    usual = np.nan if usual is None else float(usual)
                df.loc[row, one["setting"]] = usual
    return df


def at_percentile(df: pd.DataFrame, chosen: str | None, *, required: bool = True) -> pd.DataFrame:
    """Return a complete table whose round-trip times are compared by a percentile: p50, p90, p99, p99.9 or max.

    None leaves the table as it is. Raises BadInput if its metric is no round-trip time, or if it lacks the percentile;
    if that is not required, only the rows that have it are compared by it.
    """
    if chosen is None or not len(df):
        return df
    name, answered = protocols.percentile(chosen), df["protocol"].isin(protocols.ANSWERED)
    if not required:
        answered &= df[f"latency_{name}_s"].notna()
    elif not answered.any():
        compared = ", ".join(df["protocol"].unique())
        raise BadInput(
            f"percentile={chosen}: {compared} is not compared by round-trip times, so leave it out"
        )
    there = [each for each in schema.LATENCIES if df.loc[answered, f"latency_{each}_s"].notna().any()]
    if required and there and name not in there:
        there = [schema.latency_text(each) for each in there]
        raise BadInput(f"percentile={chosen}: these rows do not have it, {choose(chosen, there)}")
    return df.assign(metric=df["metric"].mask(answered, f"latency_{name}_s"))


def timed(df: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows or verdicts are about a round-trip time."""
    return df["metric"].str.startswith("latency_").eq(True)


def percentile_of(df: pd.DataFrame) -> str:
    """Return the percentile by which round-trip times of a table are compared, a key of `schema.LATENCIES`."""
    metrics = df.loc[timed(df), "metric"]
    return str(metrics.iloc[0]).split("_")[1] if len(metrics) else protocols.percentile()


def measured_rows(df: pd.DataFrame) -> pd.DataFrame:
    """Return the valid rows: status ok, not beside an observer (METHOD, "Profiles"), and with a value of their metric.

    Added columns: value, log, starved, setup (label). A slice in which almost nothing arrived is
    `starved`. It gets the logarithm of the arm's slowest slice that is not starved, for two reasons. Without these
    slices, an arm that livelocks its receivers would lose its worst results. With their own logarithms, they alone
    would decide. The logarithm is NaN if nothing arrived in any slice. A short time or a small cost is not starved. A
    percentile that is a lost round trip is, too, and counts as the arm's longest time: without it, an arm that loses
    its slowest round trips would be the faster one.

    `unsupported_rates` are left out. Raises BadInput for a protocol without a metric, and for rows of one group
    that differ in PROVENANCE.
    """
    ok = df[df["status"].eq("ok") & df["method"].ne(PROFILE) & ~unsupported_rates(df)].copy()
    for unknown in sorted(set(ok.loc[ok["metric"].isna(), "protocol"].astype(str))):
        known = f"labkit compares {', '.join(PROTOCOLS)}"
        raise BadInput(f"rows with protocol={unknown} cannot be compared: {known}")
    ok["value"] = metric_values(ok)
    is_lost = timed(ok) & ok["value"].isna() & ok["lost_count"].gt(0)
    ok = ok[np.isfinite(ok["value"].astype(float)) | is_lost]
    ok["method"] = ok["method"].where(ok["method"].eq("slice"), "whole")
    ok["role"] = ok["role"].where(ok["role"].isin(["baseline", "control"]), "variant")
    ok["setup"] = ok["folder"].astype(str) + ":" + ok["round"].astype(str)
    arms = [*varying(ok, [*GROUP, "role", "topology"]), "method"]
    by_arm = ok.groupby(arms, dropna=False)["value"]
    least, longest = by_arm.transform(starved_limit), by_arm.transform("max")
    rates = list(filter(protocols.higher_is_better, ok["metric"].unique()))
    is_lost, ok["value"] = ok["value"].isna(), ok["value"].fillna(longest)
    ok["starved"] = (ok["value"].lt(least) & (ok["metric"].isin(rates) | ok["value"].le(0))) | least.isna()
    ok["log"] = np.log(ok["value"].astype(float).mask(ok["starved"], least))
    ok["starved"] |= is_lost
    # In the whole table; most often in none of its groups.
    different = varying(ok, [*PROVENANCE, *GUEST_COLUMNS])
    for key, group in groups(ok[[*GROUP, *different]]) if different else ():
        for name, (one, other, *_) in differing(group, different).items():
            both = f"{one} and {other} ({group_text(key)})"
            raise BadInput(f"rows that differ in {name} are never pooled: {both}")
    return ok


def cpu_of_hosts(df: pd.DataFrame, name: str = "cpu_s") -> pd.Series[float]:
    """Return a column of CPU time, with that of the servers' host added where it has another kernel.

    Two nodes on one kernel each have the CPU time of the whole machine. A lab VM has its host's `machine`.
    """
    is_other = df["where"].str.startswith("vm:").eq(True) | df["peer_machine"].ne(df["machine"])
    return df[name].astype(float) + df[f"peer_{name}"].astype(float).where(is_other).fillna(0)


def by_cost(df: pd.DataFrame) -> pd.DataFrame:
    """Return the table compared by COST, CPU time in seconds; NaN where no CPU time or no arrival was counted.

    All slices of an arm in a round have the cost of their sums: a slice has few of the ticks in which the kernel counts
    CPU time, or none.
    """
    arrived = df["received_count"].mask(df["protocol"].eq("tcp"), df["received_bytes"])
    # Requests are counted in a time of the generator's own, which is not that of the CPU time.
    arrived = (df["transaction_rate"] * df["window_s"]).fillna(arrived)
    work = pd.DataFrame({"cpu": cpu_of_hosts(df), "arrived": arrived}).where(df["status"].eq("ok"))
    by = [df[name] for name in ("method", *varying(df, [*GROUP, "folder", "round", "role", "topology"]))]
    sums = work.groupby(by, dropna=False).transform("sum", min_count=1)
    work = work.mask(df["method"].eq("slice"), sums)
    return df.assign(**{COST: work["cpu"] / work["arrived"].where(work["arrived"].gt(0))}).assign(metric=COST)


def without_rate(df: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows are searches that saw frames lost at every load, or were limited by the generator."""
    return generator_limited(df) | df["constant_loss_ratio"].notna()


def generator_limited(df: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows are searches that ended at the generator's limit, or runs whose rate it did not reach."""
    limited = df["status"].eq("invalid")
    if limited.any():  # most tables have no such row, and their reasons need no reading
        limited &= df["reason"].astype("str").str.startswith("generator-limited")
    return limited


def unsupported_rates(df: pd.DataFrame, none: pd.Series[bool] | None = None) -> pd.Series[bool]:
    """Return which rows are rates of arms of which at least as many searches, or runs at a rate, have none (by default
    `without_rate`).

    Such an arm has no rate. Where loss is the same at every load, short trials missed it by chance; where the generator
    is the limit, the other searches found the lowest rates, and the other runs had the quietest moments.
    """
    none = without_rate(df) if none is None else none
    if not none.any():
        return none
    with_rate = df["status"].eq("ok")
    by = [df[name].rename(name) for name in [*varying(df, [*GROUP, "topology"]), "role"]]
    counts = pd.DataFrame({"none": none, "with_rate": with_rate}).groupby(by, dropna=False).transform("sum")
    return with_rate & counts["none"].ge(counts["with_rate"])


def metric_values(df: pd.DataFrame) -> pd.Series[float]:
    """Return the value of each row in its metric; NaN for a protocol without one."""
    result = pd.Series(np.nan, df.index)
    for name in df["metric"].dropna().unique():
        result = result.mask(df["metric"].eq(name), df[name].astype(float))
    return result


def starved_limit(values: pd.Series[float]) -> float:
    """Return the least of an arm's values that is not starved, or NaN."""
    known = values.dropna().to_numpy(float)
    fed = known[(known > 0) & (known >= STARVED * np.median(known))] if len(known) else known
    return float(fed.min()) if len(fed) else math.nan


def groups(df: pd.DataFrame, by: Sequence[str] = GROUP) -> Iterator[tuple[Key, pd.DataFrame]]:
    """Yield the groups of a table: the values of `by` (None for NaN, so that keys compare equal) and the rows.

    The rows have all columns of the table. A table with few columns is divided much faster.
    """
    if not len(df):
        return
    columns = [df[name].to_numpy() for name in by]
    key = [_none_if_null(value) for column in columns for value in column[:1].tolist()]
    places = [place for place, column in enumerate(columns) if _varies(column)]
    if not places:
        yield tuple(key), df
        return
    names = [by[place] for place in places]
    for values, group in df.groupby(names, dropna=False, sort=True):
        for place, value in zip(places, values, strict=True):
            key[place] = _none_if_null(value)
        yield tuple(key), group


def _none_if_null(value: Any) -> Any:
    """Return the value; None for NaN and other nulls of pandas."""
    return None if pd.isna(value) else value


def key_of(row: Mapping[Any, Any]) -> Key:
    """Return the key of the group (`groups`) that a row belongs to."""
    return tuple(_none_if_null(row[name]) for name in GROUP)


def varying(df: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the columns with several values; null counts as one.

    Grouping by these alone gives the same groups. Most columns of GROUP have one value in most tables.
    """
    return [name for name in names if len(df) and _varies(df[name].to_numpy())]


def _varies(values: np.ndarray[Any, Any]) -> bool:
    """Return whether a column has several values. `nunique` takes ten times as long for a small table."""
    first = values[0]
    return bool(pd.notna(values).any() if pd.isna(first) else (values != first).any())


def differing(df: pd.DataFrame, names: list[str]) -> dict[str, list[Any]]:
    """Return the columns with more than one value (null does not count), with their values."""
    result = {name: list(df[name].dropna().unique()) for name in names}
    return {name: values for name, values in result.items() if len(values) > 1}


def value_text(value: Any) -> str:
    """Format a value of a column: `none` for null, a number with all its digits."""
    if pd.isna(value):
        return "none"
    return f"{value:.15g}" if isinstance(value, float | np.number) else str(value)


def values(column: pd.Series[Any]) -> list[str]:
    """Return the distinct values of a column as text, numbers in ascending order."""
    if len(column) and not _varies(column.to_numpy()):  # most columns, and much faster
        return [value_text(value) for value in column[:1].tolist()]
    result = column.drop_duplicates()
    return [value_text(value) for value in (result.sort_values() if result.dtype.kind in "if" else result)]


def differing_columns(left: pd.DataFrame, right: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the columns in which two tables have no value in common, as `pairs (1 and 8)`."""
    result = {name: (values(left[name]), values(right[name])) for name in names}
    return [
        f"{name} ({', '.join(one)} and {', '.join(other)})"
        for name, (one, other) in result.items()
        if not set(one) & set(other)
    ]


def hosts(df: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the hosts of a table in the order of kernel versions: the name of each, and its rows.

    A name contains what distinguishes the hosts of this table: `Linux 6.1.0-37-amd64, emulated`.
    """
    result = list(groups(df.reindex(columns=[*df.columns, *(name for name in HOST if name not in df)]), HOST))
    result.sort(key=lambda one: (version(one[0][HOST.index("kernel")]), [str(part) for part in one[0]]))
    keys = [dict(zip(HOST, key, strict=True)) for key, _ in result]
    return [(host_text(key, keys), rows) for key, (_, rows) in zip(keys, result, strict=True)]


def measured_hosts(df: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return `hosts`, without those on which no kernel answered."""
    return hosts(df[df["kernel"].notna()])


def host_text(of: Mapping[str, Any], among: list[dict[str, Any]]) -> str:
    """Describe a host by what distinguishes it from the others: `Linux 6.1.0-37-amd64, emulated`."""
    kernel = f"Linux {of['kernel']}" if of["kernel"] else "unknown kernel"
    if not of["kernel"] and of.get("where") not in (None, "here"):
        kernel += f" ({of['where']})"  # it did not boot or did not answer
    words = [kernel, *["emulated"] * emulated(of)]
    alike = [one for one in among if one["kernel"] == of["kernel"] and emulated(one) == emulated(of)]
    # Beside a host without a peer, a peer like the first host needs no details.
    has_peer_alike = all(of[name] and of[name] == of[name.removeprefix("peer_")] for name in PEER_RAN_ON)
    has_peer_alike = has_peer_alike and not all(one["peer_kernel"] for one in alike)
    for name in HOST:
        if has_peer_alike and name in PEER_RAN_ON:
            continue
        if len({one[name] for one in alike}) > 1 and (of[name] or not name.startswith("peer")):
            if name == "where" and not of["kernel"]:
                continue
            bare = name in ("where", "accelerator", "cpu") and of[name]
            label = name.replace("kernel_build", "build").replace("_", " ")
            words.append(of[name] if bare else f"{label} {of[name]}" if of[name] else f"unknown {label}")
    return ", ".join([*words, *["a peer like it"] * has_peer_alike])


def emulated(of: Any) -> Any:
    """Return whether host, peer or guest had an emulated CPU, for a row (a mapping) or each row of a table."""
    names = ("accelerator", "peer_accelerator", "guest_accelerator")
    one, other, third = (of.get(name) == "tcg" for name in names)
    return one | other | third


def version(kernel: str | None) -> list[tuple[int, str]]:
    """Return a sort key for kernel releases: 6.9 before 6.12, unknown ones first."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|[a-z]+", kernel or "")
    ]


def each_doubt(rows: pd.DataFrame) -> pd.Series[str]:
    """Return the doubts of all rows, one per element, with the index of its row."""
    each = rows["doubts"].dropna().astype("str").str.split("; ").explode().astype("str")
    return each[each.ne("")]


def group_similar(reasons: pd.Series[str]) -> pd.Series[str]:
    """Replace reasons that differ only in numbers by the first of them, marked as an example by its first words."""
    same = without_numbers(reasons)
    first = reasons.groupby(same).transform("first")
    several = reasons.groupby(same).transform("nunique").gt(1)
    return first.mask(several, "for example, " + first)


def group_text(key: Key, host: str = "") -> str:
    """Describe a group: `tcp, 8 pairs, MTU 1500`, other parameters that are not defaults, and the host."""
    of = dict(zip(GROUP, key, strict=True))
    always = [in_words(name, of[name]) for name in ALWAYS_NAMED if of[name] is not None]
    there = [f"on {host}"] if host else _unusual(of, ("where",))
    return ", ".join([str(of["protocol"]), *always, *non_defaults(of), *there])


def non_defaults(of: Mapping[str, Any]) -> list[str]:
    """Describe the parameters of a group that are not defaults, except protocol, pairs, MTU and host."""
    left_out = {"protocol", *ALWAYS_NAMED}
    if of["generator"] == protocols.find(str(of["protocol"])).generator:
        left_out.add("generator")
    full = (of["mtu_bytes"] or 0) - HEADERS.get(of["family"], 0)
    if of["protocol"] == "udp" and of["length_bytes"] == full:
        left_out.add("length_bytes")
    return _unusual(of, [name for name in GROUP[len(HOST) :] if name not in left_out])


def _unusual(of: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return these parameters in words, without null and usual values."""
    known = ((name, of[name]) for name in names if of[name] is not None)
    return [
        in_words(name, value) for name, value in known if value_text(value) not in schema.BY_NAME[name].usual
    ]


def in_words(name: str, value: Any) -> str:
    """Return a value of a parameter in words: `8 streams`."""
    column = schema.BY_NAME[name]
    if pd.isna(value) or column.words is None:
        return column.null or f"{name.replace('_', ' ')} {value_text(value)}"
    return column.words(value)


def without_numbers(reasons: pd.Series[str]) -> pd.Series[str]:
    """Return the reasons with every number replaced by 0."""
    return reasons.str.replace(r"\d+([.,]\d+)*", "0", regex=True)
