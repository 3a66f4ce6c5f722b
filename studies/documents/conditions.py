"""Under what conditions a document measured what it claims, beside those of the runs that answer it.

Those of a document are data in claims.toml (`had` of the document, and of the claim). Those of a run come from its
rows: only from those behind the claim's evidence.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.analysis import load
from labkit.common import units
from studies.documents.claim import Judgement
from studies.documents.evidence import Filter, host_of, rows_with
from studies.documents.results import Results

NOT_TOLD = "not told"
DATAPATHS = {"system": "the kernel's datapath", "netdev": "user space"}
READERS = {"none": "nobody", "count": "a counter", "record": "a recorder"}
WAYS = {
    "veth_published_proxy": "ports published by a proxy", "veth_published_nat": "ports published by NAT",
    "l2": "rules of the switch, by MAC address", "l3": "rules of the switch, by IP address",
}  # fmt: skip


def table(judged: Judgement, results: Results, had: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return a line for each condition: its name, the document's, and that of each run; none without a run."""
    found: dict[str, list[Filter]] = {}
    for one, _ in judged.evidence:
        if one.of and results.has(one.run) and one.of not in found.setdefault(one.run, []):
            found[one.run].append(one.of)
    lines = [("condition", "in the document", *(f"run {run}" for run in found))]
    rows = [_rows(results, run, of) for run, of in found.items()]
    for name, words in CONDITIONS.items():
        ours = ["; ".join(dict.fromkeys(words(some))) for some in rows]
        if name in had or any(ours):
            lines.append((name, had.get(name, NOT_TOLD), *(one or "–" for one in ours)))
    return lines if found else []


def _rows(results: Results, run: str, of: Sequence[Filter]) -> pd.DataFrame:
    """Return the valid rows behind the evidence."""
    rows = results.rows(run, None if any("part" in one for one in of) else "cost")
    rows = rows[rows["status"].eq("ok")]
    return rows.loc[rows.index.isin([place for one in of for place in rows_with(rows[[*one]], one).index])]


def _distinct(rows: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Return the distinct values of columns, without those whose first one is null."""
    known = rows.reindex(columns=columns).dropna(subset=columns[0]).drop_duplicates()
    return list(known.itertuples(index=False, name=None))


def _named(column: str, words: Mapping[str, str], what: str = "{}") -> Callable[[pd.DataFrame], list[str]]:
    """Return a function that gives the values of a column in words."""
    return lambda rows: [what.format(words.get(value, value)) for (value,) in _distinct(rows, column)]


def _ways(rows: pd.DataFrame) -> list[str]:
    """Return how packets reach the servers. Frames of the packet generator have none."""
    named = [name for column in ("topology", "rules") for (name,) in _distinct(rows, column) if name in WAYS]
    return ["the servers' own addresses"] * bool(rows["frame"].isna().any()) + [WAYS[name] for name in named]


def _cpus(rows: pd.DataFrame) -> list[str]:
    found = _distinct(rows, "cpus_count", "cpu")
    return [f"{units.counted(int(count), 'CPU')} ({cpu})" for count, cpu in found]


def _nodes(rows: pd.DataFrame) -> list[str]:
    return [
        f"two, link {'without a rate' if pd.isna(rate) else units.si(rate, 'bit/s')}" if nodes == "two" else "one"
        for nodes, rate in _distinct(rows, "nodes", "link_rate_bps")
    ]  # fmt: skip


def _datagrams(rows: pd.DataFrame) -> list[str]:
    sizes = sorted(int(size) for (size,) in _distinct(rows[rows["protocol"].eq("udp")], "length_bytes"))
    return [f"{units.listed([str(one) for one in sizes])} bytes"] if sizes else []


CONDITIONS: dict[str, Callable[[pd.DataFrame], Sequence[str]]] = {
    "ends": _named("endpoint", load.ENDPOINT_NAMES),
    "way to the servers": _ways,
    "switch": _named("datapath", DATAPATHS, "Open vSwitch, {}"),
    "readers of copies": _named("readers", READERS),
    "nodes": _nodes,
    "datagrams": _datagrams,
    "frames": _named("frame", {}),
    "flows": _named("flows_count", {}, "{:,.0f}"),
    "rules": _named("rules_count", {}, "{:,.0f}"),
    "CPUs": _cpus,
    "CPUs of the ends": lambda of: _named("on", {})(of.assign(on=of["affinity"].fillna(of["placement"]))),
    "kernel": lambda rows: [host_of(rows)],
}
