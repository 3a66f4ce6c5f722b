"""State the findings about the cost of datagrams by size as Markdown sentences.

They are fragmentation, whether the sender or the receiver is the limit, the fits, and the part of the cost in which
arms differ.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from labkit.analysis import figures, load, run_figures, stats, verdicts
from labkit.analysis.displays import show
from labkit.analysis.figures.cost_by_size import largest_whole
from labkit.common import units
from labkit.common.units import counted, si
from studies import function_time_claim
from studies.linear_fit import Estimate, interval, seconds
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
        times = function_time_claim.times(self.profiles)
        show(functions(self.profiles), figures.function_durations(times) if len(times) else None)


def transport(rows: pd.DataFrame) -> list[str]:
    """Return how datagrams travelled: whole or in fragments, with which offloads, and whether all arrived."""
    result = cost_model.per_round(rows)
    lines = [
        line
        for key, group in load.groups(result, function_time_claim.BY)
        for line in _transport(_named(key, result), group)
    ]
    return lines + _offloads(rows[rows["status"].eq("ok") & rows["protocol"].eq("udp")])


def same_costs(curves: Sequence[Curve]) -> list[str]:
    """Return a sentence for each point whose two costs are proportional, so that only one of them is shown."""
    points = pd.DataFrame([one.group for one in curves])
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
        sentences = f"{counted(count, 'difference')} judged together: at 95 % each, about {0.05 * count:.2g}"
        sentences += (
            " of them would be significant by chance. The procedure of Benjamini and Hochberg selects"
        )
        sentences += " those that are listed;"
        lines.append(
            f"{sentences} at most 5 % of these are expected to be false."
            " Each interval in brackets is for its own value only."
        )
    return lines


def functions(profiles: pd.DataFrame) -> list[str]:
    """Return for each arm whether a function takes as long for a large datagram as a report claims.

    The claim is `function_time_claim.SEED`. If no functions were timed, return one sentence that says why.
    """
    claim = function_time_claim.SEED
    result = function_time_claim.judge_claim(function_time_claim.times(profiles))
    if not result:
        reasons = function_time_claim.why_not(profiles)
        because = "; ".join(reasons) or f"{function_time_claim.OBSERVER} was not set to observe both sizes"
        return [
            f"Whether `{claim.function}` takes half as long for {claim.length_bytes} bytes as for"
            f" {claim.of_length_bytes} cannot be determined here: {because}."
        ]
    sentences = f"Claimed ({claim.source}): `{claim.function}` takes {claim.ratio:g} times as long for"
    sentences += f" {claim.length_bytes} bytes as for {claim.of_length_bytes}."
    sentences += " The tracer's own time is in every call and is the same at each size,"
    sentences += " so it moves the ratio towards 1."
    among = pd.DataFrame([dict(zip(function_time_claim.BY, one.key, strict=True)) for one in result])
    return [sentences, *(f"    - {_judgement_sentence(one)}{_named(one.key, among)}." for one in result)]


def _named(key: load.Key, table: pd.DataFrame) -> str:
    """Return what distinguishes a point from the others of a table, to end a sentence with; empty if nothing does."""
    varying = [name for name in function_time_claim.BY if table[name].nunique(dropna=False) > 1]
    of = dict(zip(function_time_claim.BY, key, strict=True))
    words = [f"{name.removesuffix('_bytes').replace('_', ' ')} {of[name]}" for name in varying]
    return f" ({', '.join(words)})" if words else ""


def _where(curve: Curve, among: Sequence[Curve]) -> str:
    return _named(curve.key, pd.DataFrame([one.group for one in among]))


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
        place, most = beyond.index[int(beyond.to_numpy().argmax())], beyond.max()
        start = f"Datagrams were lost at {len(beyond)} of {len(lost)} points (arm and size),"
        start += f" at most {units.percent(most)}, at {place[0]} with {place[1]:.0f} bytes:"
        start += " the receiver is the limit there, and the cost of the lost datagrams is"
        yield f"{start} included in that of the received ones{where}."
    if len(beyond) == len(lost):
        return
    start = f"At {counted(len(lost) - len(beyond), 'point')} at most {units.percent(LOST)} was lost:"
    of = group.iloc[0]
    if pd.notna(of["rate_bps"]):
        yield f"{start} the requested rate determines the time between datagrams{where}."
    elif of["pairs"] == 1 and of["streams"] == 1:
        start += " there the sender, one process, is the limit,"
        yield f"{start} and the time between datagrams is the time to send one{where}."
    else:
        start += " there the senders are the limit,"
        yield f"{start} and the time between datagrams is that of all senders together{where}."


def _offloads(rows: pd.DataFrame) -> list[str]:
    by: dict[str, list[str]] = {}
    for arm, some in rows[rows["role"].ne("control")].groupby("arm", sort=False):
        features = str(some["offloads"].dropna().iloc[0] if some["offloads"].notna().any() else "").split()
        on = [name for name in OFFLOADS if name in features]
        by.setdefault(", ".join(f"{name} {'on' if name in on else 'off'}" for name in OFFLOADS), []).append(
            str(arm)
        )
    return [
        f"Offloads of the clients' interfaces for UDP ({', '.join(arms)}): {sentences}."
        for sentences, arms in by.items()
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
    sentences = f"**{one.curve.arm} against {one.baseline.arm}**, {COSTS[one.curve.cost]}{where}: "
    results: list[str] = []
    alike: dict[str, list[str]] = {}
    for part in [part for part in PARTS if part in one.parts]:
        if (word := one.word(part)) in (SAME, NO_EVIDENCE):
            head = f"{word}, for {one.why[part]}:" if word == NO_EVIDENCE else word
            alike.setdefault(head, []).append(f"{EACH[part]} ({interval(one.parts[part])})")
        else:
            results.append(f"{EACH[part]} {word} by {_by(one.parts[part])}")
    results += [f"{head} {', '.join(some)}" for head, some in alike.items()]
    return sentences + ("; ".join(results) or "no round has both") + "."


def _by(result: Estimate) -> str:
    """Return the size of a difference without its sign, which the verdict's word gives."""
    near, far = (result.low, result.high) if result.value > 0 else (result.high, result.low)
    if near is None or far is None:
        return seconds(abs(result.value))
    sign = 1 if result.value > 0 else -1
    return interval(Estimate(abs(result.value), sign * near, sign * far, result.rounds_count))


def _judgement_sentence(one: function_time_claim.ClaimJudgement) -> str:
    assert one.effect is not None, "it was measured"
    assert one.lengths_s is not None, "it was measured"
    large_s, small_s = one.lengths_s
    sentences = f"**{one.word}** at {one.arm}: {si(large_s, 's')} against {si(small_s, 's')}, "
    sentences += (
        f"{stats.ratio_text(one.effect.ratio, one.effect.low, one.effect.high)} (medians of a round's calls;"
    )
    sentences += f" {one.effect.how})"
    sentences += f"; {one.why}" if one.why else ""
    left = one.overhead_ratio
    return sentences + (f"; tracing left {units.percent(left)} of the speed" if left else "")


def findings(rows: pd.DataFrame, profiles: pd.DataFrame) -> list[str]:
    """Return all findings about the rows and profiles of a run."""
    curves = cost_model.curves(rows)
    shown = cost_model.without_proportional_time(curves)
    lines = [*transport(rows), *same_costs(curves), *fits(shown), *differences(shown)]
    return [*lines, *functions(profiles)] if len(profiles) else lines


def _cost_fit(rows: pd.DataFrame) -> go.Figure:
    return fitted(rows, cost_model.without_proportional_time(cost_model.curves(rows)))


def _function_times(_rows: pd.DataFrame, profiles: run_figures.Profiles) -> go.Figure:
    times = function_time_claim.times(profiles())
    return figures.function_durations(times) if len(times) else go.Figure()


FIGURES = {
    "rates": run_figures.of_part("cost", figures.rates),
    "cost_fit": run_figures.of_part("cost", _cost_fit),
    "function_times": _function_times,
}
