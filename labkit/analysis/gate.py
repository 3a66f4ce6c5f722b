"""A gate for CI: is the new run worse than the old one, or an arm than the baseline beside it, by more than a margin?

A point is *worse* if its whole 95 % interval is beyond the margin, *not worse* if none of it is, and else labkit
*cannot tell*. Of many points one is beyond it by chance, so the worst must be beyond it by more (S. Holm, 1979).
`slower` is about the metric of verdicts, `cpu` about CPU time for each unit that arrived: ratios to the common baseline
are judged; without any, the values, whose intervals include the drift between runs. `loss` is about the difference of
two shares of lost packets, of arms in each round. So equal runs fail by chance less often than in 1 of 40, however many
points and conditions they have, and never because noise hides the answer.
"""

import html
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from labkit.analysis import change_effects, compare_runs, protocols, stats, verdicts
from labkit.analysis.conditions import taken_shares
from labkit.analysis.load import GROUP, HOST, by_cost, group_text, groups, key_of, load, measured_rows, timed
from labkit.common import units
from labkit.common.errors import BadInput, did_you_mean
from labkit.common.printable import markdown_table, printable

WORSE, NOT_WORSE, UNCLEAR = "worse", "not worse", "cannot tell"
EXIT_CODES = {NOT_WORSE: 0, WORSE: 3, UNCLEAR: 4}
# Of one, of several
VERBS = {WORSE: ("is", "are"), UNCLEAR: ("may be", "may be"), NOT_WORSE: ("is not", "are not")}
NO_MEASUREMENT = "the old run measured it, and the new one has no valid measurement of it"
SUMMARY_LINES = 6
SHARE = (1 - stats.CONFIDENCE) / 2  # of equal points that are worse by chance
# What a gate of arms measures if nothing else is said: slices (ten minutes for one point), or whole runs where a load
# has no slices (twice as long for requests, which have two places in a round).
DEFAULTS = ({"rounds": 120, "slices": 12, "whole_runs": 0}, {"rounds": 30})


class Condition(NamedTuple):
    """When a point fails. what: a key of CONDITIONS. beyond: the margin as a share, of `loss` as a difference of
    shares."""

    what: str
    beyond: float

    @property
    def text(self) -> str:
        """What a worse point is: `slower by more than 3 %`."""
        return f"{CONDITIONS[self.what]} by more than {units.exact_percent(self.beyond)}"


# What may be worse, in words.
CONDITIONS = {"slower": "slower", "cpu": "more CPU time per unit", "loss": "more packets lost"}


@dataclass(frozen=True)
class Judged:
    """A point and its word, one of WORSE, NOT_WORSE and UNCLEAR.

    arm: the name of its topology. slower, low, high: how much worse the new run is, with its interval; 1.03 is 3 %
    slower, or 3 % more of all packets lost. degrees_of_freedom: of the interval, None
    if it is not Student's.
    """

    name: str
    word: str
    slower: float
    low: float
    high: float
    sentence: str
    arm: str = ""
    condition: str = ""
    degrees_of_freedom: float | None = None

    @property
    def size(self) -> str:
        """How much slower it is, in words: `+3.1 % [+1.2 %, +5.0 %]`."""
        if self.low == self.high == 1.0 and self.word == UNCLEAR:
            return "unknown"
        ends = (self.slower, self.low, self.high)
        one, low, high = (f"{units.digits((value - 1) * 100, sign=True)} %" for value in ends)
        return f"{one} [{low}, {high}]"


def condition(text: str) -> Condition:
    """Return the condition in a text such as `slower>3%`. Raises BadInput for another text."""
    found = re.fullmatch(r"(\w+)\s*>\s*([0-9]+(?:\.[0-9]+)?)\s*%", text)
    if found is None or found[1] not in CONDITIONS or not 0 < float(found[2]) < 100:
        known = ", ".join(f"'{what}>3%'" for what in CONDITIONS)
        near = did_you_mean(text.partition(">")[0].strip(), CONDITIONS)
        raise BadInput(f"--fail-if {text}: write {known}, with a margin between 0 and 100 %{near}")
    return Condition(found[1], float(found[2]) / 100)


def enough(conditions: Sequence[Condition]) -> float:
    """Return the half-width at which no more rounds are needed: two fifths of the smallest margin. It is 0 (never) with
    another condition than `slower`: the half-width is that of the metric of verdicts.

    In simulations from recorded slices, at least 19 of 20 runs then say `not worse` of equal arms, and `worse` of an
    arm that is worse by twice the margin.
    """
    if any(one.what != "slower" for one in conditions):
        return 0.0
    return min(one.beyond for one in conditions) / 2.5


def repetitions(conditions: Sequence[Condition]) -> Sequence[dict[str, int]]:
    """Return those of DEFAULTS that count what the conditions are about: slices count no lost packets."""
    return DEFAULTS[1:] if _about_loss(conditions) else DEFAULTS


def check(conditions: Sequence[Condition], parameters: Any) -> None:
    """Raise BadInput if a condition is about loss, and no load of these parameters counts lost packets."""
    if not _about_loss(conditions):
        return
    loads = [parameters]
    if hasattr(parameters, "for_load"):
        loads = [parameters.for_load(load) for load in parameters.loads]
    counted = [one for one in loads if getattr(one, "protocol", None) != "tcp"]
    if not counted:
        raise BadInput(
            "--fail-if loss: TCP sends what is lost again and counts no packets: choose a load of UDP"
        )
    if all(getattr(one, "slices", 0) and getattr(one, "whole_runs", None) == 0 for one in counted):
        raise BadInput("--fail-if loss: slices count no lost packets: leave out whole_runs=0")


def _about_loss(conditions: Sequence[Condition]) -> bool:
    return any(one.what == "loss" for one in conditions)


def judge_runs(
    left: Path, right: Path, table: pd.DataFrame, conditions: Sequence[Condition], **how: Any
) -> list[Judged]:
    """Judge the right run against the left one by every condition, the worst first.

    `table` is what `compare_runs.compare` says of them, `how` its further arguments. Raises BadInput if a condition
    cannot be judged.
    """
    result = list[Judged]()
    for one in conditions:
        if one.what == "loss":
            result += _judge_loss(left, right, one, len(conditions), **how)
        else:
            lines = (
                table if one.what == "slower" else compare_runs.compare(left, right, judged=by_cost, **how)[0]
            )
            result += judge(lines, one, len(conditions))
        if not any(each.condition == one.text for each in result):  # else the other conditions would decide
            result.append(_nothing(one))
    return _sorted(result)


def judge_arms(run: Path, conditions: Sequence[Condition]) -> list[Judged]:
    """Judge the arms of a run against its baseline by every condition, the worst first: two builds that took turns.

    Where there are changes, each changed arm is judged against its own unchanged one, and no other arm. Raises BadInput
    if loss is a condition and no packets were counted.
    """
    rows = load(run)
    judged_by = {"slower": _verdicts, "cpu": lambda rows: _verdicts(by_cost(rows)), "loss": _loss_of_arms}
    result = list[Judged]()
    for by in conditions:
        lines = judged_by[by.what](rows)
        equal = lines["word"].eq("equal")
        # Without a control, or with one round, a missing difference proves nothing.
        hidden = lines["control_low"].isna() | lines["rounds_count"].eq(1)
        why = lines["sentence"].where(hidden & ~equal)
        ends = {f"judged_{end}": lines[end].mask(equal, 1.0) for end in ("ratio", "low", "high")}
        ends["judged_degrees_of_freedom"] = lines["degrees_of_freedom"]
        result += judge(lines.assign(**ends, why=why), by, len(conditions)) or [_nothing(by)]
    return _sorted(result)


def _verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts about arms, or, where there are changes, about each changed arm and its own unchanged one."""
    pairs = verdicts.ratios(rows)
    lines = verdicts.verdicts(rows, pairs=pairs)
    changes = list(rows["change"].dropna().unique())
    if not changes:
        return lines
    own = [{*changes, *(f"{base}+{change}" for change in changes)} for base in lines["baseline"]]
    is_own = np.array([arm in names for arm, names in zip(lines["topology"], own, strict=True)], bool)
    is_changed = lines["topology"].str.endswith(tuple(f"+{change}" for change in changes))
    effects = change_effects.change_verdicts(rows, pairs)
    # Another changed arm that was not measured has no effect, but its own line says why.
    every = [effects[effects["change"].isna()], lines[is_own | (is_changed & lines["ratio"].isna())]]
    return pd.concat(every, ignore_index=True).drop_duplicates([*GROUP, "topology"], ignore_index=True)


def _loss_of_arms(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `_verdicts` about lost packets: the ratio is exp() of the difference of two shares of the same round."""
    rows = _by_loss(rows)
    lost = measured_rows(rows)
    if not len(lost):
        raise BadInput("--fail-if loss: no valid run counted packets")
    rows = rows[rows["protocol"].isin(lost["protocol"])]  # others count no packets
    lines = _verdicts(rows)
    shares = {key: float(own["log"].mean()) for key, own in groups(lost, [*GROUP, "topology"])}
    sentences = [_lost_text(line, shares) for line in lines.to_dict("records")]
    return lines.assign(sentence=sentences)


def _lost_text(line: Mapping[Hashable, Any], shares: Mapping[tuple[Any, ...], float]) -> str:
    """Return the sentence of a line of `_loss_of_arms`, with the reason if it says nothing."""
    if pd.isna(line["ratio"]):
        return str(line["sentence"])
    arm, base = (units.percent(shares[*key_of(line), line[name]]) for name in ("topology", "baseline"))
    why = ""
    if pd.isna(line["low"]):
        why = "; one round has no interval"
    elif pd.isna(line["control_low"]):
        why = f"; {line['baseline']} was not measured twice"
    elif line["word"] == "no evidence" and not line["low"] <= 1 <= line["high"]:
        why = "; the baseline differs from itself by as much"
    rounds = units.counted(int(line["rounds_count"]), "round")
    return f"{arm} of the packets were lost, and {base} with {line['baseline']} ({rounds}){why}"


def _unclear(name: str, why: str, arm: str, by: Condition) -> Judged:
    return Judged(name, UNCLEAR, 1.0, 1.0, 1.0, why, arm, by.text)


def _nothing(by: Condition) -> Judged:
    return _unclear("all points", "nothing can be judged", "", by)


def judge(table: pd.DataFrame, by: Condition, conditions: int = 1) -> list[Judged]:
    """Judge the lines of `compare_runs.compare` (or `judge_arms`), the worst first. conditions: how many there are."""
    if not len(table):
        return []
    result = [_unclear(name, NO_MEASUREMENT, arm, by) for name, arm in table.attrs.get("lost", ())]
    # What a change does to one topology more than to another is no speed: either of both may have become faster.
    for key, lines in groups(table[table["change"].isna()]):
        relative = lines["baseline"].notna()
        for line in (lines[relative] if relative.any() else lines).to_dict("records"):
            result.append(_judged(f"{line['topology']} ({group_text(key)})", line, by))
    return _sorted(holm_corrected(result, by.beyond, conditions))


def _sorted(judged: list[Judged]) -> list[Judged]:
    return sorted(judged, key=lambda one: ([WORSE, UNCLEAR, NOT_WORSE].index(one.word), -one.low))


def _judged(name: str, line: dict[Any, Any], by: Condition) -> Judged:
    ends = [line[f"judged_{end}"] for end in ("ratio", "low", "high")]
    sentence, arm = str(line["sentence"]), str(line["topology"])
    if any(pd.isna(end) for end in ends):
        return _unclear(name, sentence, arm, by)
    ratio, low, high = (1 + math.log(end) for end in ends) if by.what == "loss" else ends
    if by.what == "slower" and protocols.higher_is_better(str(line["metric"])):
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    word = _word(low, high, by.beyond)
    # Another reason than the interval, for example a CPU quota, may explain a difference, or hide one.
    if (word == WORSE and line["word"] != "slower") or (word == NOT_WORSE and pd.notna(line["why"])):
        word = UNCLEAR
    freedom = None if pd.isna(line["judged_degrees_of_freedom"]) else float(line["judged_degrees_of_freedom"])
    return Judged(name, word, ratio, low, high, sentence, arm, by.text, freedom)


def holm_corrected(judged: Sequence[Judged], beyond: float, conditions: int = 1) -> list[Judged]:
    """Return the points. Those stay WORSE that are beyond the margin by more than chance makes one of so many, under
    any of so many conditions."""
    known = sum(one.size != "unknown" for one in judged)
    chances = {}  # of a point at the margin to be as far beyond it as a worse one, by Student's t
    for place, one in enumerate(judged):
        if one.word == WORSE:
            margin, low, middle = (math.log(max(value, 1e-9)) for value in (1 + beyond, one.low, one.slower))
            half_widths = (middle - margin) / max(middle - low, 1e-9)
            freedom = math.inf if one.degrees_of_freedom is None else one.degrees_of_freedom
            t = half_widths * float(stdtrit(freedom, 1 - SHARE))
            chances[place] = float(stdtr(freedom, -t))
    result, stays = list(judged), True
    for smaller, place in enumerate(sorted(chances, key=chances.__getitem__)):
        stays = stays and chances[place] <= SHARE / conditions / (known - smaller)
        if not stays:
            among = units.counted(known * conditions, "comparison")
            why = f"{judged[place].sentence}; of {among}, one may be as much worse by chance"
            result[place] = replace(judged[place], word=UNCLEAR, sentence=why)
    return result


def _word(low: float, high: float, beyond: float) -> str:
    return WORSE if low > 1 + beyond else NOT_WORSE if high <= 1 + beyond else UNCLEAR


def _judge_loss(
    left: Path, right: Path, by: Condition, conditions: int, in_turn: bool = False, but: str | None = None
) -> list[Judged]:
    """Judge the shares of lost packets of the points that both runs measured: one number for each set-up, or for each
    run of pairs in turn, whose kernels may differ."""
    tables = [_by_loss(load(left)), _by_loss(load(right))]
    if but is not None:
        tables = compare_runs.without(tables, but)
    hidden = (None,) * len(HOST) if in_turn else ()
    names = [*GROUP[len(hidden) :], "topology"]
    one, other = (dict(groups(measured_rows(table), names)) for table in tables)
    tried = {key for key, _ in groups(tables[1][names], names)}
    result = []
    for key in (key for key in one if key in tried):
        name, arm = f"{key[-1]} ({group_text((*hidden, *key[:-1]))})", str(key[-1])
        if key not in other:
            result.append(_unclear(name, NO_MEASUREMENT, arm, by))
            continue
        rows = (one[key], other[key])
        # Of shares, whose differences the effects give as exp().
        if in_turn:
            means = [
                {str(folder): float(own["log"].mean()) for folder, own in each.groupby("folder")}
                for each in rows
            ]
            effect = compare_runs.in_turn_effect(means)
        else:
            effect = stats.difference(*(each.groupby("setup")["log"].mean().to_numpy(float) for each in rows))
        if effect.low is None or effect.high is None:
            what = "a single pair of runs counted" if in_turn else "one of the two runs has a single set-up"
            result.append(_unclear(name, f"{what}, so there is no interval", arm, by))
            continue
        more, low, high = (1 + math.log(value) for value in (effect.ratio, effect.low, effect.high))
        shares = " and ".join(units.percent(float(each["log"].mean())) for each in rows)
        sentence = f"{shares} of the packets were lost ({effect.how})"
        found = word = _word(low, high, by.beyond)
        for (had, has), why in taken_shares(*rows, (left.name, right.name)):
            if (has > had) == (found == WORSE):  # it may explain a difference, or hide one
                word, sentence = UNCLEAR, f"{sentence}; {why}"
        result.append(Judged(name, word, more, low, high, sentence, arm, by.text, effect.degrees_of_freedom))
    if not result:
        raise BadInput(f"{left.name} and {right.name} have no point in common at which packets were counted")
    return holm_corrected(result, by.beyond, conditions)


def _by_loss(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows compared by exp() of the share of lost packets: its logarithms are shares, 0 included."""
    answered = rows["received_count"].where(timed(rows))
    lost = rows["lost_count"].fillna(rows["sent_count"] - answered)
    share = (lost / rows["sent_count"].where(rows["sent_count"].gt(0))).astype(float)
    return rows.assign(lost_share=np.exp(share), metric="lost_share")


def overall(judged: Sequence[Judged]) -> str:
    """Return the word about all points: worse if one is, cannot tell if one is unclear or there is none."""
    words = {one.word for one in judged}
    return WORSE if WORSE in words else NOT_WORSE if words == {NOT_WORSE} else UNCLEAR


def sentences(judged: Sequence[Judged], conditions: Sequence[Condition]) -> list[str]:
    """Return the answer to each condition in a sentence."""
    result = []
    for by in conditions:
        own = [one for one in judged if one.condition == by.text]
        words = [one.word for one in own]
        counts = {each: words.count(each) for each in VERBS if each in words}
        many = units.listed([f"{count} {VERBS[each][count > 1]}" for each, count in counts.items()])
        how = "" if by.what == "slower" else f" ({CONDITIONS[by.what]})"
        points, beyond = units.counted(len(own), "point"), units.exact_percent(by.beyond)
        result.append(f"{overall(own)}: of {points} {many} worse by more than {beyond}{how}")
    return result


def markdown(judged: Sequence[Judged], conditions: Sequence[Condition], names: tuple[str, str]) -> str:
    """Return a summary of about ten lines for a pull request."""
    lines = [f"**{one}** ({names[1]} against {names[0]})\n" for one in sentences(judged, conditions)]
    cells = [
        (one.name, one.size, f"{one.word}: {one.condition}" if one.word == WORSE else one.word)
        for one in judged[:SUMMARY_LINES]
    ]
    if len(judged) > SUMMARY_LINES:
        cells.append((f"{len(judged) - SUMMARY_LINES} more", "", ""))
    return "\n".join([*lines, markdown_table(("point", "difference", "verdict"), cells)])


def junit(judged: Sequence[Judged]) -> str:
    """Return JUnit's XML: a failure for each point that is worse, and a skipped test where labkit cannot tell."""
    kinds = {WORSE: "failure", UNCLEAR: "skipped"}
    counts = {kind: sum(one.word == of for one in judged) for of, kind in kinds.items()}
    head = f'tests="{len(judged)}" failures="{counts["failure"]}" skipped="{counts["skipped"]}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f'<testsuite name="labkit compare" {head}>']
    for one in judged:
        of = (one.condition, one.name, f"{one.word}: {one.size}; {one.sentence}")
        condition, name, message = (html.escape(printable(text)) for text in of)
        name = f'  <testcase classname="{condition}" name="{name}"'
        if kind := kinds.get(one.word):
            lines.append(f'{name}><{kind} message="{message}"/></testcase>')
        else:
            lines.append(f"{name}/>")
    return "\n".join([*lines, "</testsuite>", ""])
