"""Kinds of ends (namespaces, containers, guests): what else than the boundary between machines differs between two of
them, the fair pair where nothing else does, and what a report has published.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.analysis.load import HOST, emulated, groups
from labkit.common import run_folder

SHARED, APART = "shared_guest", "guest"
ENDPOINTS = ("namespace", "container", APART, SHARED)
ALIKE = [*HOST, "pairs", "guest"]  # kinds of ends are a pair only where these are the same
NAMES = {
    "namespace": "namespaces",
    "container": "containers",
    APART: "a guest each",
    SHARED: "namespaces of one guest",
}
PUBLISHED = "container_vs_vm.csv"


@dataclass(frozen=True)
class EndpointKind:
    """What the programs of one kind of ends ran on: a kernel, whether its CPUs are emulated, how many there are in
    all, and how many of this machine's threads run those of guests."""

    endpoint: str
    kernel: str
    emulated: bool
    cpus_count: int
    threads_count: int

    @property
    def words(self) -> str:
        """`Linux 6.12.1, 2 emulated CPUs`"""
        kind = "emulated CPU" if self.emulated else "CPU"
        lines = f"Linux {self.kernel}, {self.cpus_count} {kind}{'s' * (self.cpus_count != 1)}"
        if self.threads_count == self.cpus_count:
            return lines
        return f"{lines} in {self.threads_count} thread{'s' * (self.threads_count != 1)}"


def endpoint_kinds(rows: pd.DataFrame) -> list[EndpointKind]:
    """The kinds of ends that were measured, in the order of ENDPOINTS; on several hosts one may be there twice."""
    ok = rows[rows["status"].isin(["ok", "invalid"])]
    columns = ["endpoint", "kernel", "accelerator", "pairs", "cpus_count", "guest_kernel", "guest_cpus_count"]
    columns += ["guest_accelerator", "guest_threads_count"]
    result = [_side(str(row["endpoint"]), row) for _, row in ok.drop_duplicates(columns).iterrows()]
    return sorted(dict.fromkeys(result), key=lambda side: ENDPOINTS.index(side.endpoint))


def _side(endpoint: str, row: pd.Series[Any]) -> EndpointKind:
    if pd.isna(row["guest_kernel"]):
        cpus = int(row["cpus_count"])
        return EndpointKind(endpoint, str(row["kernel"]), bool(emulated(row)), cpus, cpus)
    guests = 2 * int(row["pairs"]) if endpoint == APART else 1
    cpus, threads = row["guest_cpus_count"], row["guest_threads_count"]
    threads = cpus if pd.isna(threads) else threads  # older rows do not say
    return EndpointKind(
        endpoint, str(row["guest_kernel"]), bool(emulated(row)), guests * int(cpus), guests * int(threads)
    )


def machines(rows: pd.DataFrame) -> list[str]:
    """What each kind of ends ran on, a line for all that are alike: `namespaces, containers: Linux …`."""
    alike: dict[str, list[str]] = {}
    for side in endpoint_kinds(rows):
        alike.setdefault(side.words, []).append(NAMES[side.endpoint])
    return [f"{', '.join(names)}: {words}" for words, names in alike.items()]


def differences(one: EndpointKind, other: EndpointKind) -> list[str]:
    """What differs between two sides beside the boundary."""
    lines = ["the kernel"] * (one.kernel != other.kernel)
    lines += ["the emulation"] * (one.emulated != other.emulated)
    lines += ["the number of CPUs"] * (one.cpus_count != other.cpus_count)
    shared = one.threads_count * other.cpus_count != other.threads_count * one.cpus_count
    alike = one.emulated and other.emulated
    return lines + ["the number of threads that emulate the CPUs"] * (alike and shared)


def fair_pair_sentences(rows: pd.DataFrame, left: str, right: str) -> list[str]:
    """Whether two kinds of ends are a fair pair, as a sentence; where that differs by the number of pairs or the guest,
    one for each. Nothing where one of them was not measured."""
    lines: dict[str, list[str]] = {}
    for key, there in groups(rows, ALIKE):
        if sentence := _judged(there, left, right):
            pairs, guest = key[-2:]
            words = [f"{pairs:g} pair{'s' * (pairs != 1)}"] * (rows["pairs"].nunique() > 1)
            words += [f"guests of {guest}"] * (guest is not None and rows["guest"].nunique() > 1)
            lines.setdefault(sentence, []).append(", ".join(words))
    if len(lines) < 2:
        return list(lines)
    places = {sentence: "; ".join(dict.fromkeys(filter(None, each))) for sentence, each in lines.items()}
    return [f"{sentence} ({place})" if place else sentence for sentence, place in places.items()]


def _judged(rows: pd.DataFrame, left: str, right: str) -> str | None:
    of = [[side for side in endpoint_kinds(rows) if side.endpoint == name] for name in (left, right)]
    if not all(of):
        return None
    pair = f"{NAMES[right]} against {NAMES[left]}"
    differ = list(
        dict.fromkeys(lines for one in of[0] for other in of[1] for lines in differences(one, other))
    )
    if not differ:
        what = "the boundary between machines, NICs with their offloads and queues included"
        what = what if APART in (left, right) else "what surrounds the programs"
        return f"A fair pair: {pair}. Both have {of[0][0].words}; what differs is {what}"
    both = " and ".join([", ".join(differ[:-1]), differ[-1]] if differ[1:] else differ)
    verb = "differ" if differ[1:] else "differs"
    return f"Not a fair pair: {pair}. {both[0].upper()}{both[1:]} {verb} as well"


def fair(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of guests with an end each, and of the guest that ends share, which is their baseline; where both were
    measured on a host, with as many pairs and the same guest, and are a fair pair."""
    own = rows[rows["endpoint"].isin([SHARED, APART])].copy()
    kept = [there for _, there in groups(own, ALIKE) if _are_fair(there)]
    own = own.loc[[index for there in kept for index in there.index]]
    again = own["arm"].str.endswith(" (again)", na=False)
    shared = own["endpoint"].eq(SHARED)
    role = pd.Series("variant", own.index).mask(shared, "baseline").mask(shared & again, "control")
    return own.assign(role=role.astype("str"))


def _are_fair(rows: pd.DataFrame) -> bool:
    return (_judged(rows, SHARED, APART) or "").startswith("A fair pair")


def usual(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows without those of a guest that ends share, unless that is the baseline."""
    return rows[~(rows["endpoint"].eq(SHARED) & rows["role"].eq("variant"))]


def published(path: Path | None = None) -> pd.DataFrame:
    """The published measurements of an earlier report, one row per run; empty where the file is missing.

    Columns: endpoint (container, guest), length_bytes (where iperf3 chose: bytes sent per datagram), received_bps,
    received_pps, jitter_s, ip_rcv_s, has_report. has_report is False where the receiver's losses are unknown;
    received_* then holds what was sent."""
    roots = (run_folder.project_root(), Path(__file__).resolve().parents[2])
    places = [path] if path else [root / "data" / "reference" / PUBLISHED for root in roots]
    place = next((place for place in places if place.exists()), None)
    if place is None:
        return pd.DataFrame(
            columns=["endpoint", "length_bytes", "received_bps", "received_pps", "has_report"]
        )
    result = pd.read_csv(place, comment="#")
    result["endpoint"] = result["endpoint"].replace("vm", APART)
    sizes = result["sent_bps"] * result["duration_s"] / 8 / result["sent_count"]
    result["default"] = result["length_bytes"].isna()
    result["length_bytes"] = result["length_bytes"].fillna(sizes.round())
    result["has_report"] = result["sent_count"].notna()
    arrived = 1 - (result["lost_count"] / result["sent_count"]).fillna(0)
    result["received_bps"] = result["sent_bps"] * arrived
    result["received_pps"] = result["received_bps"] / 8 / result["length_bytes"]
    return result
