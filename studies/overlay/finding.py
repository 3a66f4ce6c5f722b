"""State the findings of the experiment `overlay` as Markdown sentences.

They are the path of a packet, reachability, the failure of a spine, and the headers that tunnels add. Each function
takes the rows of one part, and reports each host separately.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, verdicts
from labkit.analysis.load import group_similar, hosts, part
from labkit.analysis.run_figures import Profiles, of_part
from labkit.common.units import si
from studies.overlay.figure_header_overhead import overhead
from studies.overlay.figure_packet_path import hops
from studies.overlay.figure_reachability import matrix
from studies.overlay.figure_spine_failure import deviation
from studies.overlay.figure_spine_failure import failure as draw_failure
from studies.overlay.notes import Rows, routes_order

FAILED = {"carrier": "its interfaces go down", "silent": "it silently stops forwarding"}
UDP_BYTES = 8


def findings(rows: pd.DataFrame, _profiles: pd.DataFrame) -> list[str]:
    """Return the sentences of all parts that were measured, as items of a list."""
    parts = ((sentences, rows[rows["part"].eq(part)]) for part, sentences in SENTENCES.items())
    return [line for sentences, own in parts if len(own) for line in sentences(own)]


def _by_host(each: Callable[[pd.DataFrame], Iterator[str]]) -> Callable[[pd.DataFrame], list[str]]:
    """Let a function return the sentences of each host, and a sentence for each reason why something is missing."""

    @functools.wraps(each)
    def lines(df: pd.DataFrame) -> list[str]:
        there = hosts(df[df["status"].eq("ok")])
        found = [
            f"{line} ({name})" if len(there) > 1 else line for name, rows in there for line in each(rows)
        ]
        reasons = group_similar(df.loc[df["status"].ne("ok"), "reason"].astype("str"))
        return [*found, *dict.fromkeys(f"Not measured: {reason}." for reason in reasons)]

    return lines


@_by_host
def path(df: pd.DataFrame) -> Iterator[str]:
    """Return a sentence for each captured packet: the number of interfaces, and its largest encapsulation."""
    for _, rows in df.sort_values(["folder", "packet", "position"]).groupby(["folder", "packet"], sort=False):
        seen: Rows = rows.to_dict("records")
        large = max(seen, key=lambda one: len(one["layers"]))
        own, most = (int(one["length_bytes"]) for one in (seen[0], large))
        ip = next(layer for layer in seen[0]["layers"] if layer["name"].startswith("ip"))
        lines = f"**{seen[0]['what']}**: {int(ip['length_bytes'])} bytes of IP in a frame of {own}, seen at {len(seen)}"
        lines += f" interfaces within {si(seen[-1]['time_s'], 's')}."
        if len(large["layers"]) > len(seen[0]["layers"]):
            lines += f" From {large['hop']} on it is a frame of {most} bytes: {_inside(large)};"
            lines += f" {most - own} bytes of additional headers."
        yield lines


def _inside(one: dict[Any, Any]) -> str:
    """Return the encapsulating headers from the outside in, with lengths as tcpdump reports them.

    The length of GRE includes its header; that of UDP does not.
    """
    result = []
    for layer in one["layers"]:
        if layer["name"] == "gre":
            result.append(f"GRE of {layer['length_bytes']} bytes")
        elif layer["name"] == "udp":
            result.append(f"{layer['text']} with {layer['length_bytes'] - UDP_BYTES} bytes")
        elif layer["name"] in ("vxlan", "geneve"):
            result.append(layer["text"])
    return ", in it ".join(result) or one["stack"]


@_by_host
def reachability(df: pd.DataFrame) -> Iterator[str]:
    """Return a sentence for each kind of routes: how many pairs reach each other, and by which paths."""
    result = dict(tuple(df.groupby(["routes", "folder"], sort=False)))
    for routes, folder in sorted(result, key=lambda key: routes_order(key[0])):
        rows = result[routes, folder]
        whole = rows[rows["received_count"].eq(rows["sent_count"])]
        fine, apart = rows["as_expected"].astype(bool), rows["received_count"].eq(0)
        spines = rows.loc[~apart, "spine"].fillna("no spine").value_counts()
        via = ", ".join(f"{spine} {count}" for spine, count in spines.items())
        without = int((fine & apart).sum())
        yield (
            f"**{routes}**: of {len(rows)} pairs of containers {len(whole)} lost nothing, and"
            f" {(fine & ~apart).sum()} took an expected path; path via {via}"
            f"{f'; {without} have no path, as described' if without else ''}."
        )
        for one in rows[~fine].to_dict("records"):
            yield f"    - {one['source']} to {one['target']}: {_otherwise(one)}."


def _otherwise(one: dict[Any, Any]) -> str:
    went = " → ".join(one["path"] or []) or "nowhere"
    promised = " or ".join(" → ".join(path) for path in one["expected_paths"] or []) or "no path"
    lines = f"{one['received_count']:g} of {one['sent_count']:g} answered, path {went}, expected {promised}"
    ttls = [one["ttl"], one["expected_ttl"]]
    if pd.notna(ttls).all() and ttls[0] != ttls[1]:
        lines += f", TTL {ttls[0]:g} instead of {ttls[1]:g}"
    return lines


@_by_host
def failure(df: pd.DataFrame) -> Iterator[str]:
    """Return a sentence for each failure: the lost probes, the longest outage, and the spine that carried the flow."""
    for one in sorted(
        df.to_dict("records"),
        key=lambda one: (routes_order(one["routes"]), one["failure"], bool(one["ignores_linkdown"])),
    ):
        lost = one["sent_count"] - one["received_count"]
        how = f"**{one['routes']}, {one['failed']} fails ({FAILED[one['failure']]}"
        how += ", and the leaves ignore routes without carrier)**" if one["ignores_linkdown"] else ")**"
        during = [spine for spine in one["path_during"] if spine is not None]
        by = f"the flow used {' and '.join(dict.fromkeys(during))}" if during else "no packet arrived"
        down_s = one["up_s"] - one["down_s"]
        lines = f"{how}: down for {si(down_s, 's')}, {by}; longest time without an answer {si(one['outage_s'], 's')}, "
        ends = "" if one["outage_over"] else "; the outage was not over at the end"
        unexpected = f". {deviation(one)}" if deviation(one) else ""
        yield f"{lines}{lost:g} of {one['sent_count']:g} probes lost{_late(one)}{ends}{unexpected}."


@_by_host
def headers(df: pd.DataFrame) -> Iterator[str]:
    """Return a sentence for each tunnel: the bytes that it adds, by header sizes and by the kernel's counters."""
    for one in df.to_dict("records"):
        sizes = " + ".join(f"{layer['header_bytes']:g} ({layer['name']})" for layer in one["layers"])
        computed, measured = one["computed_bytes"], one["measured_bytes"]
        seen = (
            "and the same number was measured" if computed == measured else f"but {measured:g} were measured"
        )
        yield f"**{one['topology']}** adds {computed:g} bytes to each packet, {sizes}, {seen}."


def _late(one: dict[Any, Any]) -> str:
    """Return the number of probes that were answered after the spine recovered: they waited for ARP."""
    late = [
        sent_s
        for sent_s, rtt_s in one["probes"]
        if rtt_s is not None and one["down_s"] <= sent_s < one["up_s"] <= sent_s + rtt_s
    ]
    return f", {len(late)} probes sent meanwhile were answered after the recovery" if late else ""


SENTENCES = {
    "path": path, "reachability": reachability, "tenants": reachability, "failure": failure, "headers": headers,
}  # fmt: skip


def _overhead(rows: pd.DataFrame, _profiles: Profiles) -> go.Figure:
    headers_rows = part(rows, "headers")
    if not len(headers_rows):
        return go.Figure()
    return overhead(headers_rows, verdicts.verdicts(part(rows, "cost")))


FIGURES = {
    "hops": of_part("path", hops),
    "reachability": of_part("reachability", matrix),
    "tenants": of_part("tenants", matrix),
    "failure": of_part("failure", draw_failure),
    "cost": of_part("cost", figures.cost),
    "overhead": _overhead,
}
