"""Compare kinds of endpoints (namespaces, containers, guests).

The module tells whether two kinds form a fair pair, which differs only in the boundary between machines, and names
other differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from labkit.analysis.load import ENDPOINT_NAMES, HOST, emulated, groups
from labkit.common import units

SHARED, OWN_GUEST = "shared_guest", "guest"
ENDPOINTS = ("namespace", "container", OWN_GUEST, SHARED)
ALIKE = [*HOST, "pairs", "guest"]  # two kinds are compared only if these columns are equal


@dataclass(frozen=True)
class EndpointKind:
    """The environment of the programs at one kind of endpoint.

    cpus_count is the total over all guests. threads_count is the number of host threads that run these CPUs.
    """

    endpoint: str
    kernel: str
    emulated: bool
    cpus_count: int
    threads_count: int

    @property
    def description(self) -> str:
        """Return a description such as `Linux 6.12.1, 2 emulated CPUs`."""
        kind = "emulated CPU" if self.emulated else "CPU"
        words = f"Linux {self.kernel}, {units.counted(self.cpus_count, kind)}"
        in_threads = f" in {units.counted(self.threads_count, 'thread')}"
        return words + in_threads * (self.threads_count != self.cpus_count)


def endpoint_kinds(rows: pd.DataFrame) -> list[EndpointKind]:
    """Return the measured kinds of endpoints in the order of ENDPOINTS. A kind may occur once per host."""
    ok = rows[rows["status"].isin(["ok", "invalid"])]
    columns = ["endpoint", "kernel", "accelerator", "pairs", "cpus_count", "guest_kernel", "guest_cpus_count"]
    columns += ["guest_accelerator", "guest_threads_count"]
    result = [_side(str(row["endpoint"]), row) for _, row in ok.drop_duplicates(columns).iterrows()]
    return sorted(dict.fromkeys(result), key=lambda side: ENDPOINTS.index(side.endpoint))


def _side(endpoint: str, row: pd.Series[Any]) -> EndpointKind:
    if pd.isna(row["guest_kernel"]):
        cpus = int(row["cpus_count"])
        return EndpointKind(endpoint, str(row["kernel"]), bool(emulated(row)), cpus, cpus)
    guests = 2 * int(row["pairs"]) if endpoint == OWN_GUEST else 1
    cpus, threads = row["guest_cpus_count"], row["guest_threads_count"]
    threads = cpus if pd.isna(threads) else threads  # older rows lack this column
    return EndpointKind(
        endpoint, str(row["guest_kernel"]), bool(emulated(row)), guests * int(cpus), guests * int(threads)
    )


def machines(rows: pd.DataFrame) -> list[str]:
    """Return a line for each distinct environment: `namespaces, containers: Linux …`."""
    alike: dict[str, list[str]] = {}
    for side in endpoint_kinds(rows):
        alike.setdefault(side.description, []).append(ENDPOINT_NAMES[side.endpoint])
    return [f"{', '.join(names)}: {words}" for words, names in alike.items()]


def differences(one: EndpointKind, other: EndpointKind) -> list[str]:
    """Return the differences between two kinds other than the boundary."""
    lines = ["the kernel"] * (one.kernel != other.kernel)
    lines += ["the emulation"] * (one.emulated != other.emulated)
    lines += ["the number of CPUs"] * (one.cpus_count != other.cpus_count)
    shared = one.threads_count * other.cpus_count != other.threads_count * one.cpus_count
    alike = one.emulated and other.emulated
    return lines + ["the number of threads that emulate the CPUs"] * (alike and shared)


def fair_pair_sentences(rows: pd.DataFrame, left: str, right: str) -> list[str]:
    """Return a sentence that says whether two kinds of endpoints are a fair pair.

    If the answer depends on the number of pairs or the guest, there is a sentence for each answer. The list is empty if
    either kind was not measured.
    """
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
    pair = f"{ENDPOINT_NAMES[right]} against {ENDPOINT_NAMES[left]}"
    differ = list(
        dict.fromkeys(sentence for one in of[0] for other in of[1] for sentence in differences(one, other))
    )
    if not differ:
        what = "the boundary between machines, NICs with their offloads and queues included"
        what = what if OWN_GUEST in (left, right) else "what surrounds the programs"
        return f"A fair pair: {pair}. Both have {of[0][0].description}; what differs is {what}"
    both = units.listed(differ)
    verb = "differ" if differ[1:] else "differs"
    return f"Not a fair pair: {pair}. {both[0].upper()}{both[1:]} also {verb}"


def fair(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of separate guests, with the shared guest as their baseline.

    Only groups (ALIKE) in which the two are a fair pair are kept.
    """
    own = rows[rows["endpoint"].isin([SHARED, OWN_GUEST]) & rows["change"].isna()].copy()
    judged = ((there, _judged(there, SHARED, OWN_GUEST) or "") for _, there in groups(own, ALIKE))
    kept = [there for there, words in judged if words.startswith("A fair pair")]
    own = own.loc[[index for there in kept for index in there.index]]
    shared = own["endpoint"].eq(SHARED)
    role = pd.Series("variant", own.index).mask(shared, "baseline").mask(shared & own["again"], "control")
    return own.assign(role=role.astype("str"))


def usual(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows without those of the shared guest, except where it is the baseline."""
    return rows[~(rows["endpoint"].eq(SHARED) & rows["role"].eq("variant"))]
