"""Show the findings of the experiment `container_vs_vm` in its notebook.

They are which pairs are fair, how much of a difference the boundary between machines explains, function times in each
kernel, this machine's CPU time, and what the published values themselves imply.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import display

from labkit.analysis import displays, figures, flame, load, profile_doubts, protocols, stats, verdicts
from labkit.analysis.displays import show
from labkit.analysis.flame import load_profiles
from labkit.analysis.flame.packet_calls import OBSERVER as PACKETS
from labkit.analysis.load import ENDPOINT_NAMES, groups
from labkit.analysis.run_figures import of_part
from labkit.common import errors
from labkit.common.errors import BadInput
from studies import reference_tables
from studies.container_vs_vm.endpoint_kinds import (
    ENDPOINTS,
    OWN_GUEST,
    SHARED,
    differences,
    endpoint_kinds,
    fair,
    fair_pair_sentences,
    usual,
)
from studies.container_vs_vm.figure import ends, jitter_and_loss, sides

TIMERS = ("function_times", "guest_function_times")
QUANTILES = {"p50_s": "p50", "p90_s": "p90", "p99_s": "p99", "max_s": "longest"}


class ContainerVsVmFindings:
    """The findings of the run or sweep in `folder`, whose measurements are `rows`. Each method shows one section."""

    def __init__(self, folder: Path, rows: pd.DataFrame) -> None:
        self.rows = rows
        self.profiles = load.profiles(folder)
        self.published = reference_tables.container_vs_vm()
        self.usual, self.fair = usual(rows), fair(rows)

    @functools.cached_property
    def verdicts(self) -> pd.DataFrame:
        """Return the verdicts of the usual comparison: all kinds of endpoints, without those of the fair pair."""
        return verdicts.verdicts(self.usual)

    def throughput(self) -> None:
        """Show which pairs are fair, the throughput, jitter and loss of each, and the CPU time on both sides."""
        show(pairs(self.rows), ends(self.rows, self.published))
        show(*(one for one in (jitter_and_loss(self.rows, self.published), sides(self.rows)) if one.data))

    def ratios(self) -> None:
        """Show the ratios to the baseline on this machine."""
        lines = [sentence for sentence in pairs(self.usual) if sentence.startswith("Not")]
        display(figures.forest(self.verdicts, "Ratios to the baseline, on this machine", " ".join(lines)))

    def fair_pair(self) -> None:
        """Show the fair pair: the effect of the boundary between machines alone."""
        sentences = fair_pair_sentences(self.rows, SHARED, OWN_GUEST)
        if not len(self.fair):
            lines = sentences or ["It was not measured: set endpoint=guest,shared_guest"]
            display(displays.markdown(f"*There is no fair pair here. {'. '.join(lines)}.*"))
            return
        show(shares(self.rows))
        result = verdicts.verdicts(self.fair)
        about = "; ".join(one for one in sentences if one.startswith("A fair"))
        display(figures.forest(result, "The boundary between machines alone", about))

    def functions(self) -> None:
        """Show how long functions take in each kernel, and what the report says about them."""
        result = calls(self.profiles)
        if result.empty:
            display(displays.markdown(f"*{_missing(self.profiles, TIMERS)}*"))
        else:
            display(result.style.hide(axis="index").format(_formats(result), na_rep="–", escape="html"))
        doubts = profile_doubts.profile_doubts(self.profiles, self.rows, TIMERS)
        show([*doubts, *report_contradictions(self.published)])

    def packets(self) -> None:
        """Show the calls for one packet with each kind of endpoint, if `observe` had function_graph."""
        own = self.profiles[self.profiles["observer"].eq(PACKETS)]
        if not own["status"].eq("ok").any():
            display(displays.markdown(f"*{_missing(self.profiles, [PACKETS])}*"))
            return
        for key, point in groups(self.profiles[self.profiles["observer"].isin((PACKETS, *TIMERS))]):
            if point["observer"].eq(PACKETS).any():
                _packets(point, load.group_text(key))

    def costs(self) -> None:
        """Show where this machine's CPU time goes: guests against the baseline."""
        own = self.profiles[self.profiles["observer"].eq(load_profiles.OBSERVER)]
        if own.empty:
            display(displays.markdown(f"*{_missing(self.profiles, [load_profiles.OBSERVER])}*"))
        for key, point in groups(own):
            for left, right in _compared_pairs(point):
                _flame(point, left, right, load.group_text(key))


def _missing(profiles: pd.DataFrame, observers: Sequence[str]) -> str:
    """Return why there is nothing to show about these observers."""
    own = profiles[profiles["observer"].isin(observers)]
    if len(own):
        reasons = load.group_similar(own["reason"].fillna("no reason was recorded").astype("str"))
        names = " and ".join(name for name in observers if own["observer"].eq(name).any())
        return f"{names} recorded nothing: {'; '.join(dict.fromkeys(reasons))}."
    if lost := profile_doubts.not_set_up(profiles):
        return f"{' and '.join(observers)} recorded nothing: {'; '.join(lost)}."
    if observers != TIMERS:
        return f"Not measured: set `observe={','.join(observers)}`."
    return (
        "Not measured: `observe=guest_function_times guest=debian,profile=tracing` measures the guests' kernels,"
        " `observe=function_times` this machine's kernel. If this kernel cannot time functions (see `labkit doctor`),"
        " `where=vm:debian,profile=tracing` boots one that can."
    )


def _compared_pairs(point: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the pairs of arms whose profiles are compared.

    They are separate guests against the baseline, and against a guest that both endpoints share.
    """
    first = point[~point["again"]]
    of = dict(first[["endpoint", "arm"]].itertuples(index=False, name=None))
    left = [name for name in (*ENDPOINTS[:1], SHARED) if name in of]
    return [(of[name], of[OWN_GUEST]) for name in left if OWN_GUEST in of]


def _packets(point: pd.DataFrame, text: str) -> None:
    """Display the packets of one point. Of an arm that was measured twice, only the first measurement counts."""
    display(displays.markdown(f"**The calls of one packet: {text}**"))
    there = []
    for arm in dict.fromkeys(point.loc[point["observer"].eq(PACKETS) & ~point["again"], "arm"]):
        try:
            there.append(flame.packets(point[point["arm"].eq(arm)], arm))
        except BadInput as error:
            display(displays.markdown(f"*{error}.*"))
    for piece in flame.side_by_side(there):
        display(displays.markdown(piece) if isinstance(piece, str) else piece)


def _flame(point: pd.DataFrame, left: str, right: str, text: str) -> None:
    """Display the differential flame graph of two arms, and the functions that explain most."""
    endpoint = point.loc[point["arm"].eq(left), "endpoint"].iloc[0]
    again = point.loc[point["again"] & point["endpoint"].eq(endpoint), "arm"].unique()[:1]
    of = {name: point[point["arm"].eq(name)] for name in (left, right, *again)}
    try:
        there = [(name, rows) for name, rows in of.items() if len(rows)]
        result = load_profiles.compared(there, str(point["protocol"].iloc[0]))
    except BadInput as error:
        display(displays.markdown(f"*{text}: {error}.*"))
        return
    ends = {str(row["arm"]): ENDPOINT_NAMES[str(row["endpoint"])] for _, row in point.iterrows()}
    display(displays.markdown(f"**{text}**, {ends[right]} against {ends[left]}: {flame.sentence(result)}."))
    display(flame.draw_difference(result), figures.functions(result.functions()))


def calls(profiles: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run of function_times and function.

    Columns: the endpoints, the kernel, the number of calls and of calls per packet, quantiles of their times in µs, the
    speed left by the tracer (a ratio; for pings, of their rate), and the tracer.
    """
    lines = []
    own = profiles[profiles["observer"].isin(TIMERS) & profiles["status"].eq("ok")]
    for row in own.to_dict("records"):
        seen = load_profiles.observed(row["observed"])
        for report, of in ((seen, ""), (seen.get("guest") or {}, "guest_")):
            packets = load_profiles.work(row, report)
            for name, one in report.get("functions", {}).items():
                lines.append(_call(row, name, one, of, packets) | {"tracer": seen.get("tracer")})
    result = pd.DataFrame(lines)
    return result.sort_values(["function", "bytes", "ends", "kernel"], ignore_index=True) if lines else result


def _call(row: dict[Any, Any], name: str, one: dict[str, Any], of: str, packets: float) -> dict[str, Any]:
    """Return the row of one function.

    of: an empty text for this machine's kernel, or `guest_` for a guest's. packets: the number that arrived meanwhile.
    """
    micro: dict[str, Any] = {
        f"{word}, µs": None if one.get(key) is None else one[key] * 1e6 for key, word in QUANTILES.items()
    }
    line: dict[str, Any] = {"function": name, "ends": ENDPOINT_NAMES[row["endpoint"]]}
    line["kernel"] = f"{row[f'{of}kernel']}{', emulated' * (row[f'{of}accelerator'] == 'tcg')}"
    line |= {"load": row["protocol"], "bytes": row["length_bytes"], "calls": one.get("count")}
    # The length of TCP packets depends on offloads.
    unknown = one.get("count") is None or protocols.find(row["protocol"]).work == "gigabyte"
    line["calls a packet"] = None if unknown else one["count"] / packets
    return line | micro | {"speed left": row["overhead_ratio"]}


def _formats(result: pd.DataFrame) -> dict[Any, Any]:
    micro: dict[Any, Any] = {name: "{:.1f}" for name in result if str(name).endswith("µs")}
    ratios = dict.fromkeys(("calls a packet", "speed left"), "{:.2f}")
    return micro | ratios | {"bytes": "{:.0f}", "calls": "{:,.0f}"}


def pairs(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each compared pair of endpoint kinds: whether it is fair."""
    lines: dict[str, None] = {}
    for _, own in load.hosts(rows):
        there = [name for name in ENDPOINTS if own["endpoint"].eq(name).any()]
        both = [(there[0], other) for other in there[1:] if other != SHARED]
        for left, right in dict.fromkeys([*both, (SHARED, OWN_GUEST)]):
            lines |= {f"{sentence}.": None for sentence in fair_pair_sentences(own, left, right)}
    return list(lines)


def shares(rows: pd.DataFrame) -> list[str]:
    """Return a sentence for each point: how much of the guests' difference from the baseline remains without a boundary
    between machines. Empty if there is no fair pair."""
    return [_share(key, group) for key, group in groups(rows) if len(fair(group)) and len(usual(group))]


def _share(key: tuple[Any, ...], rows: pd.DataFrame) -> str:
    base = str(rows.loc[rows["role"].eq("baseline"), "endpoint"].iloc[0])
    of_guests, inner = (_against(result, OWN_GUEST) for result in (usual(rows), fair(rows)))
    of_shared = _against(rows[rows["endpoint"].isin([base, SHARED])], SHARED)
    words = load.group_text(key)
    if inner is None or (base != SHARED and (of_guests is None or of_shared is None)):
        return f"**{words}**: too little was measured to separate the effect of the boundary."
    metric = protocols.of(rows).quantity
    alone = f"The effect of the boundary between machines alone is {_ratio_text(inner)}."
    if of_guests is None or of_shared is None:
        return f"**{words}**, {metric}: {alone[0].lower()}{alone[1:]}"
    of = {side.endpoint: side for side in endpoint_kinds(rows)}
    others = ", ".join(differences(of[base], of[SHARED])) or "what surrounds the programs"
    return (
        f"**{words}**: the {metric} of guests against {ENDPOINT_NAMES[base]} is {_ratio_text(of_guests)}; where"
        f" both ends share one guest ({others}) it is {_ratio_text(of_shared)}. {alone}"
    )


def _against(rows: pd.DataFrame, endpoint: str) -> pd.Series[Any] | None:
    """Return the verdict about a kind of endpoint, or None if it has no ratio."""
    result = verdicts.verdicts(rows)
    result = result[result["topology"].str.endswith(f"/{endpoint}") & result["ratio"].notna()]
    return result.iloc[0] if len(result) else None


def _ratio_text(line: pd.Series[Any]) -> str:
    """Return a ratio with its interval and its verdict: `1/4.93 [0.194, 0.212], slower`."""
    ratio = float(line["ratio"])
    lines = f"{ratio:.3g} times" if ratio >= 0.5 else f"1/{1 / ratio:.3g}"
    interval = "" if pd.isna(line["low"]) else f" [{stats.interval_text(line['low'], line['high'], '.3g')}]"
    return f"{lines}{interval}, {line['word']}"


def report_contradictions(result: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on what the published figures themselves, by computation, say against the report's conclusion."""
    with errors.reading(f"data/reference/{reference_tables.CONTAINER_VS_VM}", BadInput):
        each = [
            f"{ENDPOINT_NAMES[one['endpoint']]}, {one['length_bytes']:.0f} bytes: {one['ip_rcv_s'] * 1e6:.4g}"
            for one in result[result["ip_rcv_s"].notna()].to_dict("records")
        ]
        default = result[result["default"]].set_index("endpoint")
        one, two = (default.loc[[name]].iloc[0].to_dict() for name in ("container", OWN_GUEST))
        bits, datagrams = (one[name] / two[name] for name in ("received_bps", "received_pps"))
        lengths = [f"{round(side['length_bytes'], -1):.0f}" for side in (one, two)]
    yield f"The report, on another machine, read `ip_rcv` off one call each, in µs: {'; '.join(each)}."
    yield (
        f"Its containers received {bits:.0f} times as many bits as its VMs, but in datagrams of about"
        f" {lengths[0]} bytes, the VMs in datagrams of {lengths[1]} (bits by datagrams: iperf3's default differs"
        f" between versions): in datagrams it is {datagrams:.0f} times."
    )
    busy = two["ip_rcv_s"] * two["received_pps"]
    if math.isfinite(busy) and busy > 1:
        yield (
            f"`ip_rcv` cannot have taken {two['ip_rcv_s'] * 1e3:.0f} ms a packet in the VM: with"
            f" {two['received_pps']:.0f} datagrams a second that is {busy:.1f} CPUs. A single printed call,"
            " interrupts included, is not a distribution."
        )


FIGURES = {
    "endpoint_kinds": of_part("cost", lambda rows: ends(rows, reference_tables.container_vs_vm())),
    "jitter_and_loss": of_part(
        "cost", lambda rows: jitter_and_loss(rows, reference_tables.container_vs_vm())
    ),
    "cpu_time": of_part("cost", sides),
}
