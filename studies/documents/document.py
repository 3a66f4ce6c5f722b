"""The findings in two lengths, and the same texts for the notebook.

`python -m studies.documents.document docs/FINDINGS.md` (`make figures`) writes the claims with their verdicts. `page`
is the page of `make docs`, which has the evidence of each claim, too.

Every number in it comes from the published runs, from printed numbers of the documents, or from the claims themselves.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.analysis import profile_doubts, stats
from labkit.common.printable import markdown_table
from labkit.common.units import counted, duration, listed, percent
from studies.documents import conditions
from studies.documents.claim import (
    AGREES,
    BY_NUMBERS,
    BY_RUNS,
    CONFIRMED,
    MISSING,
    UNKNOWN,
    Judgement,
    Range,
    judge,
    reason,
)
from studies.documents.evidence import PRINTED, Evidence
from studies.documents.registry import DOCUMENTS, TABLE, claims
from studies.documents.results import FULL_LENGTH, Results

FULL_LENGTH_WITH = dict.fromkeys(("ipvlan", "ipvlan_1500"), ", with `where: vm:debian` in it") | {
    "ovs_test_plan": ", which also has the use cases in a VLAN since then"}  # fmt: skip
BUSY_SHARE = 0.05  # of all CPUs: what other programs may take without a sentence
MAX_DOUBTS = 12  # of a run; the others are counted
NO_RATIO = "–"  # what a claim without any has as evidence
TITLE = "# Findings: the claims of five documents\n"
RULE: str = TABLE["pages"]["rule"]


def judgements(results: Results) -> list[Judgement]:
    """Return the verdicts about all claims."""
    return [judge(claim, results) for claim in claims()]


def page(results: Results, judgements: Sequence[Judgement]) -> str:
    """Return the whole document as Markdown."""
    parts = [
        TITLE, introduction(results, judgements), "## The claims\n", table(judgements), picture(judgements), RULE,
        "## The runs\n", runs(results),
        "## Each claim\n", *(section(one, results) for one in judgements),
        "## Doubts about the runs\n", doubts(results),
    ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"


def short_page(judgements: Sequence[Judgement]) -> str:
    """Return docs/FINDINGS.md as Markdown: the verdict of each claim."""
    every = table(judgements, are_explained=False)
    return "\n".join(
        [TITLE, f"{counts(judgements)}\n", picture(judgements), every, TABLE["pages"]["short_end"]]
    )


def introduction(results: Results, judgements: Sequence[Judgement]) -> str:
    """Return the first paragraphs: how short the runs were, on what, and how to run them at full length."""
    descriptions = [results.description(name) for name in results.names()]
    if not descriptions:
        return f"No run is published in `data/results/`. {counts(judgements)}\n"
    # Lab VMs are hosts of a run as well, and never have more CPUs than the machine that they are on.
    hosts = [host for one in descriptions for host in one["hosts"]]
    kinds = listed(sorted({host["cpu"] for host in hosts if host["cpu"] and not host["emulated"]}))
    cpus = counted(max(int(host["cpus_count"]) for host in hosts), "CPU") + f" ({kinds})" * bool(kinds)
    memory = sorted({int(one["memory_bytes"]) for one in descriptions if one.get("memory_bytes")})
    commands = {one: results.description(one).get("command") for one in results.names() if one in FULL_LENGTH}
    whole = [one for one in commands if commands[one] == f"labkit sweep params/{FULL_LENGTH[one]}.yaml"]
    own = [one for one in whole if FULL_LENGTH[one].startswith("findings-")]
    full = [one for one in whole if one not in (*own, *FULL_LENGTH_WITH)]
    short = [one for one in commands if one not in (*own, *full)]
    groups = {"At full length": full, "By files made for them": own, "Shortened": short}
    lengths = " ".join(f"{how}: {_coded(names)}." for how, names in groups.items())
    lengths += "".join(_shorter_search(results.description(one)) for one in whole)
    return str(TABLE["pages"]["introduction"]).format(
        cpus=cpus, memory=f" and {memory[-1] / 1e9:.0f} GB of memory" if memory else "",
        days=listed(sorted({str(one["finished"])[:10] for one in descriptions})), lengths=lengths,
        measured=duration(sum(one.get("measuring_s", 0.0) for one in descriptions)), counts=counts(judgements),
    )  # fmt: skip


def _coded(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _shorter_search(description: Mapping[str, Any]) -> str:
    """Return that a whole sweep decides its loads by less than labkit does by default, or ""."""
    passes, sum_s = (description.get("parameters", {}).get(name) for name in ("passes", "sum_s"))
    if passes is None or sum_s is None:
        return ""
    return (
        f" The sweep of `{description['run']}` makes each search {'once' if passes == 1 else f'{passes} times'} and"
        f" decides each load by {sum_s:g} s of trials, which is less than labkit's default."
    )


def counts(judgements: Sequence[Judgement]) -> str:
    """Return how many claims have which verdict, those by runs apart from those by the document's own numbers."""

    def of(words: Sequence[str]) -> str:
        numbers = {word: sum(one.word == word for one in judgements) for word in words}
        return (
            ", ".join(f"{count} {word}{noted(word, count)}" for word, count in numbers.items() if count)
            or "none"
        )

    def noted(word: str, total: int) -> str:
        notes = Counter(one.note for one in judgements if one.word == word and one.note)
        lines = (f"{'all' if count == total else count}: {note}" for note, count in notes.items())
        return f" ({'; '.join(lines)})" if notes else ""

    return (
        f"{counted(len(judgements), 'claim')}. By measurement: {of(BY_RUNS)}. By the documents' own numbers alone:"
        f" {of(BY_NUMBERS)}. The rest: {of((UNKNOWN,))}."
    )


def picture(judgements: Sequence[Judgement]) -> str:
    """Return the figure of all claims, with words that say what it shows."""
    shown = {
        one.claim.name: one.claim.document
        for one in judgements
        if any(evidence.run != PRINTED and not math.isnan(evidence.ratio) for evidence, _ in one.evidence)
    }
    text = (
        f"The {counted(len(shown), 'claim')} with measured ratios ({counted(len(set(shown.values())), 'document')}):"
        " the range of ratios for which each holds, and the measured ratios"
    )
    return f"![{text}](../figures/claims.svg)\n"


def table(judgements: Sequence[Judgement], *, are_explained: bool = True) -> str:
    """Return all claims as a table: sentence, document, verdict, and what the evidence is.

    are_explained: the page has a section about each claim, to which its sentence is a link.
    """
    lines = [
        (
            str(number), f"[{one.claim.sentence}](#{one.claim.name})" if are_explained else one.claim.sentence,
            DOCUMENTS[one.claim.document].author.split(",")[0], f"**{one.word}**" if are_explained else one.word,
            ratio_summary(one),
        )
        for number, one in enumerate(judgements, 1)
    ]  # fmt: skip
    return markdown_table(("", "claim", "from", "verdict", "evidence"), lines)


def ratio_summary(one: Judgement) -> str:
    """Return the range of the ratios that the verdict comes from, and how many of them decide."""
    known = [evidence for evidence, _ in one.deciding if not math.isnan(evidence.ratio)]
    if not known:
        return NO_RATIO
    note = f"; {one.note}" if one.note else ""
    return f"ratio {_span([evidence.ratio for evidence in known])}: {one.counts}{note}"


def _span(ratios: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(map(number, (min(ratios), max(ratios)))))


def shown_where(one: Judgement) -> str:
    """Return at how many points a confirmed claim was shown, with which ratios, and where not; "" if at all points."""
    known = [(evidence, read) for evidence, read in one.deciding if not math.isnan(evidence.ratio)]
    agreeing = [evidence.ratio for evidence, read in known if read == AGREES]
    if one.word != CONFIRMED or len(agreeing) == len(known):
        return ""
    others = dict.fromkeys(
        f"`{evidence.what}` ({evidence.run})" for evidence, read in known if read != AGREES
    )
    return (
        f"Shown at {len(agreeing)} of {counted(len(known), 'point')}, with ratios of {_span(agreeing)}. Not shown at"
        f" {'; '.join(others)}.\n"
    )


def section(one: Judgement, results: Results | None = None) -> str:
    """Return the section of one claim, with the conditions of the `results` that answer it.

    Its heading is the claim's name alone: every viewer of Markdown makes the same anchor of it, and links stay right
    when the verdict changes.
    """
    claim = one.claim
    note = f": {one.note}" if one.note else ""
    lines = [
        f"### {claim.name}\n", f"**{one.word[0].upper()}{one.word[1:]}{note}.** {claim.sentence}\n",
        f"*{DOCUMENTS[claim.document].label}*, {claim.place}.\n",
    ]  # fmt: skip
    if claim.claimed_range is not None:
        where = " at every point" if claim.all_points else ""
        tie = f" Within {range_text(claim.equal_range)} it is a tie." if claim.equal_range else ""
        lines.append(
            f"Ratio: {claim.ratio}. The claim holds for ratios of {range_text(claim.claimed_range)}{where}.{tie}\n"
        )
        lines.append(evidence_table(one, claim.claimed_range))
    if where_shown := shown_where(one):
        lines.append(where_shown)
    had = {**DOCUMENTS[claim.document].had, **claim.had}
    if results and (compared := conditions.table(one, results, had)):
        lines.append(markdown_table(compared[0], compared[1:]))
    if claim.conditions:
        lines.append(f"Other conditions: {claim.conditions}\n")
    if claim.remark:
        lines.append(f"{claim.remark}\n")
    lines.append(f"*What would settle it:* {claim.settle}.\n")
    return "\n".join(lines)


def evidence_table(one: Judgement, claimed_range: Range) -> str:
    """Return the evidence of a claim as a table, with one line for all points of a run that miss for one reason."""
    lines: dict[tuple[object, ...], tuple[str, ...]] = {}
    for place, (evidence, read) in enumerate(one.evidence):
        missing = (evidence.run, evidence.host, evidence.doubt)
        key = missing if read == MISSING else (place,)
        if key in lines:
            continue
        count = sum((other.run, other.host, other.doubt) == missing for other, _ in one.evidence)
        if read == MISSING and count > 1 and evidence.what:
            what = counted(count, "point")
        else:
            what = f"`{evidence.what}`" if evidence.run != PRINTED and evidence.what else evidence.what
        why = reason(evidence, claimed_range, one.claim.equal_range)
        lines[key] = (
            evidence.run, what or "–", evidence.host or "–", ratio_text(evidence),
            evidence.control.removeprefix("ratio ") or "–", f"{read}: {why}" if why else read,
        )  # fmt: skip
    return markdown_table(("run", "point", "kernel", "ratio [95 %]", "A/A", "reading"), list(lines.values()))


def ratio_text(evidence: Evidence) -> str:
    """Return `1.23 [1.1, 1.35]`, or the ratio alone where it was computed."""
    if math.isnan(evidence.ratio):
        return NO_RATIO
    if math.isnan(evidence.low) or evidence.exact:
        return number(evidence.ratio)
    if evidence.high > stats.WIDE * evidence.low:
        return f"{number(evidence.ratio)} [{stats.interval_text(evidence.low, evidence.high)}]"
    return f"{number(evidence.ratio)} [{number(evidence.low)}, {number(evidence.high)}]"


def number(value: float) -> str:
    """Return a ratio with three digits, and with more near 1, where they tell it from 1."""
    near = abs(value - 1)
    return f"{value:.5g}" if near < 0.005 else f"{value:.4g}" if near < 0.2 else f"{value:.3g}"


def range_text(claimed_range: Range) -> str:
    """Return a range of ratios in words: `more than 1`, `0.8 to 1.25`."""
    low, high = claimed_range
    if math.isinf(low):
        return f"less than {number(high)}"
    if math.isinf(high):
        return f"more than {number(low)}"
    return f"{number(low)} to {number(high)}"


def runs(results: Results) -> str:
    """Return the published runs as a table: command, kernels, rows, digest, and the sweep of full length."""
    lines = []
    for name in results.names():
        one = results.description(name)
        kernels = dict.fromkeys(
            f"Linux {host['kernel']}{', emulated' * host['emulated']}" for host in one["hosts"]
        )
        kernels |= dict.fromkeys(
            f"guests with Linux {host['guest_kernel']}{', emulated' * host['guest_emulated']}"
            for host in one["hosts"] if "guest_kernel" in host
        )  # fmt: skip
        lines.append(
            (
                name, f"`{one['command']}`", "; ".join(kernels), f"labkit {one['hosts'][0]['labkit']}",
                str(one["finished"])[:10], str(one["rows_count"]), f"`{one['sha256'][:16]}`",
                f"`params/{FULL_LENGTH[name]}.yaml`{FULL_LENGTH_WITH.get(name, '')}" if name in FULL_LENGTH else "–",
            )
        )  # fmt: skip
    return markdown_table(
        ("run", "command", "kernels", "by", "date", "rows", "SHA-256", "full length"), lines
    )


def doubts(results: Results) -> str:
    """Return what labkit itself doubts about each run."""
    return "\n".join(line for name in results.names() for line in _doubts(results, name))


def _doubts(results: Results, name: str) -> Iterator[str]:
    rows = results.rows(name)
    sentences = results.doubts(name)
    sentences += profile_doubts.profile_doubts(results.profiles(name), rows)
    if (share := results.description(name).get("max_foreign_cpu_share") or 0.0) > BUSY_SHARE:
        sentences.append(
            f"another program took up to {percent(share)} of the time of all CPUs for some seconds of the measurement"
        )
    yield f"**{name}**\n"
    yield from (f"- {doubt}" for doubt in sentences[:MAX_DOUBTS])
    if not sentences:
        yield "- no reason to doubt these numbers was found"
    if len(sentences) > MAX_DOUBTS:
        yield f"- and {len(sentences) - MAX_DOUBTS} more: `labkit.open('data/results/{name}').doubts()`"
    yield ""


def frame(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """Return all evidence with a ratio as a table, one row each.

    Columns: claim, name, verdict, low_claimed, high_claimed, reading, and the fields of Evidence.
    """
    lines = [
        {"claim": one.claim.sentence, "name": one.claim.name, "verdict": one.word,
         "low_claimed": one.claim.claimed_range[0], "high_claimed": one.claim.claimed_range[1],
         "reading": read, **vars(piece)}
        for one in judgements if one.claim.claimed_range is not None
        for piece, read in one.evidence if not math.isnan(piece.ratio)
    ]  # fmt: skip
    return pd.DataFrame(lines)


if __name__ == "__main__":
    opened = Results()
    Path(sys.argv[1]).write_text(short_page(judgements(opened)))
