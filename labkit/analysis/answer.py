"""Answer the question of a run in a sentence for each metric: which arm is faster than the baseline, by how much."""

from __future__ import annotations

import math
import re

import pandas as pd

from labkit.analysis import load, protocols, stats
from labkit.analysis.verdicts import ABSENT
from labkit.common import schema, units

FACTOR = 2.0  # from here on a ratio is said as a factor
LEAST_FACTOR = 1.3  # of a range up to such a factor: 1.02 times faster would be read as double
NAMED_COUNT = 4  # of arms in a question
CLAIMS_COUNT = 6  # in a part of the sentence; the table has all
WORDS = ("faster", "slower")  # the kinds of verdicts that come first
PLURALS = {"is": "are", "was": "were", "shows": "show", "makes": "make"}


def question(verdicts: pd.DataFrame) -> str:
    """Return what the verdicts answer: `Which is faster for ping (median round-trip time): veth or vxlan?`, or `Where
    does gro matter more for TCP (throughput): on veth or on vxlan?`; an empty text if there are none."""
    if not len(verdicts):
        return ""
    # The baseline of an arm whose change has no effect is its own unchanged arm.
    others = verdicts[~verdicts["word"].eq("equal")]
    usual = (others if len(others) else verdicts)["baseline"].iloc[0]
    own = verdicts[verdicts["baseline"].eq(usual)]  # not those of changes
    effects = verdicts[verdicts["change"].notna()]
    arms = list(dict.fromkeys([*own["baseline"].astype(str), *own["topology"].astype(str)]))
    named = " or ".join([", ".join(arms[:-1]), arms[-1]]) if 1 < len(arms) <= NAMED_COUNT else ""
    about = protocols.all_of(verdicts)
    labels: dict[str, list[str]] = {}
    for one in about:
        labels.setdefault(one.average, []).append(one.label)
    measured = [f"{units.listed(own)} ({metric})" for metric, own in labels.items()]
    if len(effects) and not _are_answers(verdicts)[verdicts["change"].isna()].any():
        on = (
            str(one[name]).removeprefix(f"{one['change']} ")
            for name in ("baseline", "topology")
            for one in effects.to_dict("records")
        )
        ends, changes = (" or ".join(dict.fromkeys(names)) for names in (on, effects["change"]))
        return f"Where does {changes} matter more for {units.listed(measured)}: {ends}?"
    which = "Which" if named else f"Which of {len(arms)} arms"
    return f"{which} is faster for {units.listed(measured)}{f': {named}' if named else ''}?"


def _are_answers(verdicts: pd.DataFrame) -> pd.Series[bool]:
    """Return for each verdict whether it is an answer: an effect of a change, or an arm that no effect is about."""
    covered = {
        (one["protocol"], str(one["ends_on"]), arm)
        for one in verdicts[verdicts["change"].notna()].to_dict("records")
        for name in ("topology", "baseline")
        for end in [str(one[name]).removeprefix(f"{one['change']} on ")]
        for arm in (end, f"{end}+{one['change']}")
    }
    arms = zip(verdicts["protocol"], verdicts["ends_on"].map(str), verdicts["topology"], strict=True)
    return pd.Series([arm not in covered for arm in arms], verdicts.index) | verdicts["change"].notna()


def answer(verdicts: pd.DataFrame) -> list[str]:
    """Return the verdicts (`verdicts.verdicts`) as sentences without a full stop; none if there are none.

    Each host and protocol has one (requests on one CPU and on two have one each); it begins with the largest
    difference. If several topologies have the same change, it is about where the change matters more. An arm that was
    measured at several points has one phrase for each kind of verdict, with the number of its points and the range of
    its sizes.
    """
    hosts = load.hosts(verdicts)
    sentences = []
    for host, every in hosts:
        rows = every[_are_answers(every) | every["word"].isin(ABSENT)]
        by = ["protocol", "ends_on", "baseline"]
        for (_, ends_on, baseline), own in rows.groupby(by, sort=False, dropna=False):
            what = protocols.of(own)
            claims: dict[str, list[str]] = {}
            arms = [(str(arm), each) for arm, each in own.groupby("topology", sort=False)]
            for arm, each in sorted(arms, key=lambda one: -_difference(one[1])):
                claims.setdefault(_claim(each), []).append(arm)
            texts = [f"{units.listed(same)} {_plural(claim, same)}" for claim, same in claims.items()]
            more = f"; {units.counted(len(texts) - CLAIMS_COUNT, 'more claim')} in the table"
            text = ", ".join(texts[:CLAIMS_COUNT]) + (more if len(texts) > CLAIMS_COUNT else "")
            where = f" on {host}" if len(hosts) > 1 else ""
            # What a change does to a topology is relative to what it does to another one.
            effect = "".join(f", effect of {change}" for change in own["change"].dropna().unique())
            against = "" if str(baseline) == "nan" else f"{effect} against {baseline}"
            ends = "" if str(ends_on) == "nan" else f", {schema.ENDS_ON[str(ends_on)]}"
            sentences.append(f"{what.label} {what.average}{against}{where}{ends}: {text}")
    return sentences


def _difference(rows: pd.DataFrame) -> float:
    """Return the largest difference that was found, as a logarithm; 0 if none was."""
    found = rows.loc[rows["word"].isin(WORDS), "ratio"].astype(float)
    return max((abs(math.log(ratio)) for ratio in found), default=0.0)


def _plural(claim: str, arms: list[str]) -> str:
    if len(arms) == 1:
        return claim
    return re.sub(rf"\b({'|'.join(PLURALS)})\b", lambda verb: PLURALS[verb[0]], claim)


def _claim(rows: pd.DataFrame) -> str:
    """Return what the verdicts say about one arm: `is 14 % slower (ratio 0.830 to 0.890)`."""
    kinds, said = [], ""
    order = rows["word"].map(lambda word: WORDS.index(word) if word in WORDS else len(WORDS))
    for word, same in rows.iloc[order.argsort(kind="stable")].groupby("word", sort=False):
        at = "" if len(same) == len(rows) else f" at {len(same)} of {len(rows)} points"
        verb, _, rest = f"{_words(str(word), same)}{at}".partition(" ")
        kinds.append(rest if verb == said else f"{verb} {rest}")
        said = verb
    return units.listed(kinds)


def _words(word: str, rows: pd.DataFrame) -> str:
    if word == "equal":
        return "is equal by construction"
    if word in ABSENT:
        return "was not measured"
    if word not in WORDS:
        return "shows no evidence of a difference" if word == "no evidence" else f"shows {word}"
    sizes = sorted(max(ratio, 1 / ratio) for ratio in rows["ratio"].astype(float))
    ends = [sizes[0], sizes[-1]] if len(sizes) > 1 else sizes
    as_factors = ends[0] >= FACTOR or (ends[-1] >= FACTOR and ends[0] >= LEAST_FACTOR)
    texts = dict.fromkeys(f"{one:.3g}" if as_factors else _share(rows, one) for one in ends)
    interval = ""
    if len(rows) == 1 and pd.notna(rows["low"].iloc[0]):
        interval = f" (ratio {stats.interval_text(rows['low'].iloc[0], rows['high'].iloc[0], '.3f', ' to ')})"
    does = "makes it" if rows["change"].notna().any() else "is"
    return f"{does} {' to '.join(texts)}{' times' * as_factors} {word}{interval}"


def _share(rows: pd.DataFrame, larger: float) -> str:
    """Return the change in the metric: a ratio of 0.8 is 20 % less, and one of 1.25 is 25 % more."""
    return units.percent(larger - 1 if rows["ratio"].iloc[0] > 1 else 1 - 1 / larger)
