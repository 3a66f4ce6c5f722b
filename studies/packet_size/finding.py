"""State the findings about the cost of datagrams by size as Markdown sentences.

They are fragmentation, whether the sender or the receiver is the limit, the fits, and the part of the cost in which
arms differ.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, load, run_figures, stats, verdicts
from labkit.analysis.displays import show
from labkit.analysis.figures.cost_by_size import largest_whole
from labkit.common import units
from labkit.common.units import counted, si
from studies import function_time_claim
from studies.linear_fit import Estimate, interval
from studies.packet_size import cost_comparison, cost_model
from studies.packet_size.cost_comparison import NO_EVIDENCE, SAME, Comparison
from studies.packet_size.cost_model import COSTS, LOST, PARTS, Curve
from studies.packet_size.figure_fit import fitted

EACH = {
    "fixed": "for each datagram",
    "byte": "for each byte",
    "first": "for the first fragment of a fragmented one",
    "fragment": "for each further fragment",
}
BRIEF = {"cpu_per_packet_s": "CPU time", "time_per_packet_s": "time to the next", "rtt_s": "round-trip time"}
HEADS = {
    "fixed": "a datagram",
    "byte": "a byte of it",
    "first": "cut: the first fragment",
    "fragment": "cut: each further one",
}
# Tolerated relative difference of counted and computed fragments, which are not of the same moment.
SEEN_SURE = 0.02
OFFLOADS = ("tx-udp-segmentation", "generic-receive-offload", "rx-gro-list", "rx-udp-gro-forwarding")


class PacketSizeFindings:
    """The findings of a run or sweep with these rows and profiles. Each method shows one section."""

    def __init__(self, rows: pd.DataFrame, profiles: pd.DataFrame) -> None:
        self.rows, self.profiles = rows, profiles
        self.every = cost_model.curves(rows)
        self.curves = cost_model.without_proportional_time(self.every)

    def speeds(self) -> None:
        """Show how datagrams travelled, and the throughput of each size."""
        show(transport(self.rows), figures.rates(self.rows))

    def costs(self) -> None:
        """Show what a datagram costs: the fits as a table and in a figure."""
        show(same_costs(self.every), table(self.curves), fitted(self.rows, self.curves))

    def differences(self) -> None:
        """Show in which part of the cost the datapaths differ, and the throughput against the baseline."""
        show(differences(self.curves), figures.forest(verdicts.verdicts(self.rows)))

    def functions(self) -> None:
        """Show how long kernel functions take, and what the report claims about that."""
        show(functions(self.profiles), _function_times(self.profiles))


def transport(rows: pd.DataFrame) -> list[str]:
    """Return how datagrams travelled: whole or in fragments, with which offloads, and whether all arrived."""
    points = dict(load.groups(cost_model.per_round(rows), function_time_claim.BY))
    lines = [line for key, group in points.items() for line in _transport(_named(key, points), group)]
    return lines + _offloads(rows[rows["status"].eq("ok") & rows["protocol"].eq("udp")])


def same_costs(curves: Sequence[Curve]) -> list[str]:
    """Return a sentence for each point whose two costs are proportional, so that only one of them is shown."""
    points = [one.key for one in curves]
    return [
        f"At every size and datapath about {quotient:.2g} CPUs were busy, so the CPU time of a datagram is about"
        f" {quotient:.2g} times the time to the next: only CPU time is shown{_named(key, points)}."
        for key, quotient in cost_model.proportional(curves).items()
    ]


def fits(curves: Sequence[Curve]) -> list[str]:
    """Return a sentence for each fit, with the points that do not lie on it."""
    return [
        line for curve in curves if curve.role != "control" for line in _fit(curve, _where(curve, curves))
    ]


def table(curves: Sequence[Curve]) -> pd.DataFrame:
    """Return the fits as a table: one row per arm and cost, with 95 % intervals."""
    lines = []
    for curve in curves:
        parts = {HEADS[part]: interval(one) for part, one in curve.parts.items()}
        sentences = {"cost": f"{BRIEF[curve.cost]}{_where(curve, curves)}", "datapath": curve.arm}
        why = "; ".join([*_off(curve), *curve.left_out]) or curve.why
        lines.append(sentences | parts | {"does not fit": why})
    result = pd.DataFrame(lines, columns=["cost", "datapath", *HEADS.values(), "does not fit"])
    return result.replace("", None).dropna(axis="columns", how="all")


def differences(curves: Sequence[Curve]) -> list[str]:
    """Return a sentence for each arm and cost on the part in which the arm differs from the baseline, and one sentence
    on the number of comparisons."""
    result = cost_comparison.comparisons(curves)
    lines = [_difference(one, _where(one.curve, curves)) for one in result]
    if count := sum(len(one.judged) for one in result):
        lines.append(
            f"{counted(count, 'difference')} judged together: at 95 % each, about {0.05 * count:.2g} of them would be"
            " significant by chance. The procedure of Benjamini and Hochberg selects those that are listed; at most 5 %"
            " of these are expected to be false. Each interval in brackets is for its own value only."
        )
    return lines


def functions(profiles: pd.DataFrame) -> list[str]:
    """Return for each arm whether a function takes as long for a large datagram as a report claims.

    If no functions were timed, return one sentence that says why.
    """
    function, (large, small) = function_time_claim.FUNCTION, function_time_claim.LENGTHS
    result = function_time_claim.judge_claim(function_time_claim.times(profiles))
    if not result:
        reasons = function_time_claim.why_not(profiles)
        because = "; ".join(reasons) or f"{function_time_claim.OBSERVER} was not set to observe both sizes"
        return [
            f"Whether `{function}` takes half as long for {large} bytes as for {small} cannot be determined here:"
            f" {because}."
        ]
    claimed = (
        f"Claimed ({function_time_claim.SOURCE}): `{function}` takes {function_time_claim.RATIO:g} times as long for"
        f" {large} bytes as for {small}. The tracer's own time is in every call and is the same at each size, so it"
        " moves the ratio towards 1."
    )
    points = [one.key for one in result]
    return [claimed, *(f"    - {_judgement_sentence(one)}{_named(one.key, points)}." for one in result)]


def _named(key: load.Key, among: Iterable[load.Key]) -> str:
    """Return what distinguishes a point from the others, to end a sentence with; empty if nothing does."""
    points = pd.DataFrame(list(among), columns=function_time_claim.BY)
    of = dict(zip(function_time_claim.BY, key, strict=True))
    varying = load.varying(points, function_time_claim.BY)
    words = [f"{name.removesuffix('_bytes').replace('_', ' ')} {of[name]}" for name in varying]
    return f" ({', '.join(words)})" if words else ""


def _where(curve: Curve, among: Sequence[Curve]) -> str:
    return _named(curve.key, [one.key for one in among])


def _transport(where: str, group: pd.DataFrame) -> Iterator[str]:
    mtu, family = int(group["mtu_bytes"].iloc[0]), int(group["family"].iloc[0])
    cut = group[group["fragments_count"] > 1].drop_duplicates("length_bytes").sort_values("length_bytes")
    each = [
        f"{one['fragments_count']} fragments for {one['length_bytes']:.0f} bytes" for _, one in cut.iterrows()
    ]
    whole_bytes = largest_whole(mtu, family)
    start = f"At an MTU of {mtu} bytes IPv{family} carries up to {whole_bytes} bytes unfragmented"
    yield f"{start}{', and sends ' + ', '.join(each) if each else ''}{where}."
    seen = group[group["seen_fragments_ratio"].notna()]
    if len(seen):
        middles = seen.groupby(["arm", "length_bytes"])[["seen_fragments_ratio", "fragments_count"]].mean()
        off = middles[(middles["seen_fragments_ratio"] / middles["fragments_count"] - 1).abs() > SEEN_SURE]
        for one in off.reset_index().to_dict("records"):
            counts = f"{one['seen_fragments_ratio']:.3g} of each datagram of {one['length_bytes']:.0f} bytes"
            yield f"But IP counted {counts} at {one['arm']}, where {one['fragments_count']:g} were computed{where}."
        if len(cut) and not len(off):
            text = "The senders' kernel counted the computed number of fragments: no segmentation offload was used"
            yield f"{text}{where}."
    yield from _limits(group, where)


def _limits(group: pd.DataFrame, where: str) -> Iterator[str]:
    """Yield sentences on what limits the rate: the receiver if datagrams are lost, else the senders or the requested
    rate."""
    lost = group.groupby(["topology", "length_bytes"])["lost_ratio"].mean().dropna()
    if not len(lost):
        return
    beyond = lost[lost > LOST]
    if len(beyond):
        (arm, size_bytes), most = beyond.index[int(beyond.to_numpy().argmax())], beyond.max()
        yield (
            f"Datagrams were lost at {len(beyond)} of {len(lost)} points (arm and size), at most {units.percent(most)},"
            f" at {arm} with {size_bytes:.0f} bytes: the receiver is the limit there, and the cost of the lost"
            f" datagrams is included in that of the received ones{where}."
        )
    if len(beyond) == len(lost):
        return
    of, limit, time = group.iloc[0], "the senders are", "that of all senders together"
    if of["pairs"] == 1 and of["streams"] == 1:
        limit, time = "the sender, one process, is", "the time to send one"
    why = f"there {limit} the limit, and the time between datagrams is {time}"
    if pd.notna(of["rate_bps"]):
        why = "the requested rate determines the time between datagrams"
    points = counted(len(lost) - len(beyond), "point")
    yield f"At {points} at most {units.percent(LOST)} was lost: {why}{where}."


def _offloads(rows: pd.DataFrame) -> list[str]:
    by: dict[str, list[str]] = {}
    for arm, some in rows[rows["role"].ne("control")].groupby("arm", sort=False):
        on = str(next(iter(some["offloads"].dropna()), "")).split()
        states = ", ".join(f"{name} {'on' if name in on else 'off'}" for name in OFFLOADS)
        by.setdefault(states, []).append(str(arm))
    return [
        f"Offloads of the clients' interfaces for UDP ({', '.join(arms)}): {states}."
        for states, arms in by.items()
    ]


def _fit(curve: Curve, where: str) -> Iterator[str]:
    about = f"**{curve.arm}**, {COSTS[curve.cost]}{where}"
    if not curve.parts:
        yield f"{about}: not fitted: {'; '.join([curve.why, *curve.left_out])}."
        return
    parts = [f"{interval(one)} {EACH[part]}" for part, one in curve.parts.items()]
    yield f"{about}: {', '.join(parts)} ({counted(curve.parts['fixed'].rounds_count, 'round')})."
    for sentences in _off(curve):
        yield (
            f"    - But {sentences}, which is more than the scatter of the rounds."
            " The numbers describe the line, not each size."
        )
    yield from (f"    - {sentences}." for sentences in curve.left_out)


def _off(curve: Curve) -> Iterator[str]:
    """Yield which points do not lie on their line, and the largest misfit."""
    whole = curve.fragments == 1
    for result, which, what in (
        (curve.line, whole, "the sizes without fragments do not lie on a straight line"),
        (curve.steps, ~whole, "the cost is not linear in the number of fragments"),
    ):
        if result is not None and result.misfits:
            middles = np.where(which, curve.residuals.mean(axis=0), 0)
            place = int(np.abs(middles).argmax())
            yield f"{what}: the fit misses by up to {middles[place]:+.0%}, at {curve.lengths[place]:.0f} bytes"


def _difference(one: Comparison, where: str) -> str:
    results: list[str] = []
    alike: dict[str, list[str]] = {}
    for part in [part for part in PARTS if part in one.parts]:
        if (word := one.word(part)) in (SAME, NO_EVIDENCE):
            head = f"{word}, for {one.why[part]}:" if word == NO_EVIDENCE else word
            alike.setdefault(head, []).append(f"{EACH[part]} ({interval(one.parts[part])})")
        else:
            results.append(f"{EACH[part]} {word} by {_by(one.parts[part])}")
    results += [f"{head} {', '.join(some)}" for head, some in alike.items()]
    words = "; ".join(results) or "no round has both"
    return f"**{one.curve.arm} against {one.baseline.arm}**, {COSTS[one.curve.cost]}{where}: {words}."


def _by(result: Estimate) -> str:
    """Return the size of a difference without its sign, which the verdict's word gives."""
    low, high = result.low, result.high
    if result.value < 0 and low is not None and high is not None:
        low, high = -high, -low
    return interval(Estimate(abs(result.value), low, high, result.rounds_count))


def _judgement_sentence(one: function_time_claim.ClaimJudgement) -> str:
    large_s, small_s = one.lengths_s
    ratio = stats.ratio_text(one.effect.ratio, one.effect.low, one.effect.high)
    why = f"; {one.why}" if one.why else ""
    left = f"; tracing left {units.percent(one.overhead_ratio)} of the speed" if one.overhead_ratio else ""
    return (
        f"**{one.word}** at {one.arm}: {si(large_s, 's')} against {si(small_s, 's')}, {ratio} (medians of a round's"
        f" calls; {one.effect.how}){why}{left}"
    )


def findings(rows: pd.DataFrame, profiles: pd.DataFrame) -> list[str]:
    """Return all findings about the rows and profiles of a run."""
    of = PacketSizeFindings(rows, profiles)
    lines = [*transport(rows), *same_costs(of.every), *fits(of.curves), *differences(of.curves)]
    return [*lines, *functions(profiles)] if len(profiles) else lines


def _function_times(profiles: pd.DataFrame) -> go.Figure | None:
    times = function_time_claim.times(profiles)
    return figures.function_durations(times) if len(times) else None


FIGURES = {
    "rates": run_figures.of_part("cost", figures.rates),
    "cost_fit": run_figures.of_part(
        "cost", lambda rows: fitted(rows, cost_model.without_proportional_time(cost_model.curves(rows)))
    ),
    "function_times": lambda _rows, profiles: _function_times(profiles()) or go.Figure(),
}
