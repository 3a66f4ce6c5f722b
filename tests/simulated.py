"""Rows and verdicts as a run has them, made up with a seed: what the figures and the report are tested with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit import figures

LEVEL_BPS = {
    "veth_bridge": 14e9,
    "macvlan_bridge": 15.4e9,
    "veth_routed": 11e9,
    "vxlan": 6e9,
    "loopback": 30e9,
}
NO_IPVLAN = "this kernel has no ipvlan (CONFIG_IPVLAN is not set): run with where='vm:…'"
ROUNDS, SLICES = 5, 6


def rows(
    variants: tuple[str, ...] = ("macvlan_bridge",),
    protocols: tuple[str, ...] = ("tcp", "udp"),
    mtus: tuple[int, ...] = (1500,),
    pairs: tuple[int, ...] = (1, 2, 8),
    **columns: Any,
) -> pd.DataFrame:
    """Rows as a run has them: in every round SLICES slices, in the last also a whole run; ipvlan_l2 is unsupported."""
    noise = np.random.default_rng(1)
    arms = [
        ("veth_bridge", "baseline"),
        *((name, "variant") for name in variants),
        ("veth_bridge (again)", "control"),
    ]
    found = []
    for protocol, mtu, count in itertools.product(protocols, mtus, pairs):
        group = {
            "run": "r",
            "where": "here",
            "protocol": protocol,
            "mtu_bytes": mtu,
            "family": 4,
            "pairs": count,
        }
        group |= {"length_bytes": None, "rate_bps": None, "streams": 1, "accelerator": "none", "doubts": None}
        absent = {"arm": "ipvlan_l2", "topology": "ipvlan_l2", "role": "variant", "status": "unsupported"}
        found.append(group | absent | {"reason": NO_IPVLAN})
        for number, (arm, role) in itertools.product(range(ROUNDS), arms):
            for piece in [*range(SLICES), *([None] if number == ROUNDS - 1 else [])]:
                topology = arm.removesuffix(" (again)")
                one = {
                    "arm": arm,
                    "topology": topology,
                    "role": role,
                    "status": "ok",
                    "reason": None,
                    "round": number,
                }
                one |= {"slice": piece, "method": "whole" if piece is None else "slice"}
                window = 1.0 if piece is None else 0.07
                level = LEVEL_BPS[topology] * noise.lognormal(0, 0.1)
                cpu = {"cpu_s": 1.8 * window, "softirq_s": 0.5 * window}
                if protocol == "ping":
                    one |= {"latency_p50_s": 2.5e-5, "received_bytes": 64.0} | cpu
                else:
                    one |= {"throughput_bps": level, "received_bytes": level * window / 8} | cpu
                found.append(group | one)
    optional = ["throughput_bps", "latency_p50_s", "received_bytes", "cpu_s", "softirq_s"]
    table = pd.DataFrame(found)
    return table.reindex(columns=[*dict.fromkeys([*table.columns, *optional])]).assign(**columns)


def verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """Verdicts with the columns that tables.verdicts gives, about arms as far apart as in LEVEL_BPS."""
    group = ["where", "protocol", "mtu_bytes", "family", "pairs", "length_bytes", "rate_bps", "streams"]
    variants = table[table["role"] == "variant"].drop_duplicates([*group, "topology"])
    ok = variants["status"].eq("ok")
    ratio = (variants["topology"].map(LEVEL_BPS) / LEVEL_BPS["veth_bridge"]).where(ok)
    word = pd.Series(np.where(ratio > 1, "faster", "slower"), variants.index).where(ok, variants["status"])
    sentence = variants["reason"].where(
        ~ok, variants["topology"] + " differs from veth_bridge, and here is how"
    )
    told = {"ratio": ratio, "low": ratio * 0.96, "high": ratio * 1.04, "word": word, "sentence": sentence}
    counts = {"n_count": 30, "rounds_count": ROUNDS, "how": "Hodges-Lehmann over 30 slices"}
    control = {"control_ratio": 1.0, "control_low": 0.97, "control_high": 1.03}
    return variants[[*group, "topology", "accelerator"]].assign(
        baseline="veth_bridge", **told, **counts, **control
    )


FIGURES: dict[str, Callable[[pd.DataFrame], go.Figure]] = {
    "throughput": figures.throughput,
    "cpu_per_gigabyte": figures.cpu_per_gigabyte,
    "slices": figures.slices,
    "forest": lambda table: figures.forest(verdicts(table)),
}


def notes(figure: go.Figure) -> str:
    return " ".join(note.text for note in figure.layout.annotations if note.name == "notes").replace(
        "<br>", " "
    )


def titles(figure: go.Figure) -> list[str]:
    return [
        note.text for note in figure.layout.annotations if note.text.startswith("<b>") and "MTU" in note.text
    ]


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(tree, list):
        for value in tree:
            yield from leaves(value, path)
    else:
        yield path, tree
