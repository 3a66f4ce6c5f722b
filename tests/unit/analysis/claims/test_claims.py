"""Claims are judged by published ratios: agree, contradict, undecided; and the findings are what they say."""

import hashlib
import io
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_rows
from conftest import ROOT
from pyarrow import parquet
from scipy.special import bdtrc
from synthetic_rows import FINISHED

from labkit import cli
from labkit.analysis import load, published_runs
from labkit.analysis.flame.flame_graph import still_picture
from labkit.commands.publish import PRIVATE, publish
from labkit.common import run_folder, schema
from labkit.common.errors import BadInput
from studies.documents import document, evidence, exhibits, pictures, printed, repeated
from studies.documents.claim import (
    AGREES,
    CONFIRMED,
    CONSISTENT,
    CONTRADICTED,
    CONTRADICTS,
    DEPENDS,
    EQUAL,
    FALSE_SHARE,
    INCONSISTENT,
    MISSING,
    NOT_REPRODUCED,
    OTHER_CONDITIONS,
    RANGES,
    UNDECIDED,
    UNKNOWN,
    Claim,
    Judgement,
    beyond_chance,
    judge,
    printed_range,
    reading,
    reason,
)
from studies.documents.conditions import CONDITIONS
from studies.documents.evidence import Evidence, Source, ratio_of_arms, ratio_of_values
from studies.documents.registry import DOCUMENTS, TABLE, claim_of, claims, where_of
from studies.documents.results import Results, how_to_measure

MORE, LESS, EXACT = (RANGES[name] for name in ("more", "less", "exact"))
PUBLISHED = Results(ROOT / "data" / "results")


@pytest.fixture(scope="module")
def judgements() -> list[Judgement]:
    return document.judgements(PUBLISHED)


def published(folder: Path, *tables: list[synthetic_rows.Row], name: str = "mine") -> Results:
    """Publish rows as the run `name`, and return the results."""
    rows = [
        row | {"run": name, "seed": 7, "point": f"{place}-r{row['round']}"}
        for place, table in enumerate(tables)
        for row in table
    ]
    publish(synthetic_rows.save(folder / "measured", rows, **FINISHED), folder / "results" / name)
    return Results(folder / "results")


def claimed(claimed_range: tuple[float, float], *sources: Source, conditions: str = "") -> Claim:
    words = "name", "A claim.", "paper", "somewhere", "nothing", "a ratio"
    return Claim(*words, claimed_range, sources, conditions=conditions)


def measured(ratio: float, how: str = "t", width: float = 1.01, setups_count: int | None = None) -> Source:
    """Return a ratio of a run, with an interval of 1 % on each side, or without noise (`how`: counted)."""
    width = 1.0 if how == evidence.COUNTED else width
    one = Evidence("run", "point", "host", ratio, ratio / width, ratio * width, how, setups_count)
    return lambda _results: [one]


def test_reading_of_an_interval() -> None:
    for low, high, claimed_range, word in (
        (1.1, 1.3, MORE, AGREES), (0.9, 1.3, MORE, UNDECIDED), (0.7, 0.9, MORE, CONTRADICTS),
        (1.0, 1.3, MORE, UNDECIDED), (0.7, 0.9, LESS, AGREES), (2.1, 3.0, printed_range(2.5, 3), AGREES),
        (1.1, 1.9, printed_range(2.5, 3), CONTRADICTS), (1.9, 2.1, printed_range(2.5, 3), UNDECIDED),
        (1.0, 1.0, EXACT, AGREES), (0.95, 1.05, MORE, EQUAL), (0.95, 1.05, LESS, EQUAL),
        (0.85, 1.05, LESS, UNDECIDED), (1.02, 1.05, MORE, AGREES),
    ):  # fmt: skip
        one = Evidence("run", "point", "host", math.sqrt(low * high), low, high)
        assert reading(one, claimed_range, (1 / 1.1, 1.1)) == word


YES, MORE_YES, NO, SOME = (measured(ratio) for ratio in (2.0, 3.0, 0.5, 1.0))


@pytest.mark.parametrize(
    ("sources", "word", "of_every_point"),
    [
        ([YES], CONFIRMED, CONFIRMED),
        ([NO], CONTRADICTED, CONTRADICTED),
        ([YES, YES, NO, NO], DEPENDS, CONTRADICTED),
        ([YES, YES, SOME], CONFIRMED, UNKNOWN),
        ([YES, SOME, SOME], UNKNOWN, UNKNOWN),  # chance explains one of three
        ([YES] * 9 + [NO], CONFIRMED, UNKNOWN),  # and one of ten
        ([YES] * 9 + [measured(0.5, evidence.COUNTED)], DEPENDS, CONTRADICTED),  # counts have no noise
        # At 98.3 % for each of three, an interval reaches to 0.72, and to 1.21.
        ([measured(0.5, width=1.3, setups_count=10), SOME, SOME], CONTRADICTED, CONTRADICTED),
        ([measured(0.5, width=1.9, setups_count=10), SOME, SOME], UNKNOWN, UNKNOWN),
    ],
)
def test_word_of_a_claim(sources: list[Source], word: str, of_every_point: str) -> None:
    claim = claimed(MORE, *sources)
    assert judge(claim, Results(ROOT)).word == word
    assert judge(replace(claim, all_points=True), Results(ROOT)).word == of_every_point


def test_both_ways_to_decide_are_seldom_wrong() -> None:
    """An interval that misses the true ratio lies on the wrong side of it in half of the cases."""
    wrong = FALSE_SHARE / 2
    for count in range(1, 100):
        least = next(one for one in range(1, count + 1) if beyond_chance(one, count))
        assert bdtrc(least - 1, count, wrong) + wrong <= FALSE_SHARE + 1e-9, count


def test_a_tie_contradicts_and_a_confirmed_claim_says_where_it_was_shown() -> None:
    tie = judge(replace(claimed(MORE, SOME, SOME), margin=0.1), Results(ROOT))
    assert (tie.word, tie.counts) == (CONTRADICTED, "2 equal within 10 %")
    assert "Within 0.9091 to 1.1 it is a tie." in document.section(tie)
    for sources, text in (
        (
            [YES, MORE_YES, SOME],
            "Shown at 2 of 3 points, with ratios of 2 to 3. Not shown at `point` (run).\n",
        ),
        ([YES, MORE_YES], ""),
        ([SOME], ""),
    ):
        assert document.shown_where(judge(claimed(MORE, *sources), Results(ROOT))) == text


def test_other_conditions_contradict_nothing() -> None:
    """A claim that is not reproduced under other conditions depends on them."""
    judged = judge(claimed(MORE, NO, conditions="Another path."), Results(ROOT))
    assert (judged.word, judged.counts, judged.note) == (DEPENDS, "1 contradicts", NOT_REPRODUCED)
    assert "Other conditions: Another path." in document.section(judged)
    assert "not reproduced here" in document.ratio_summary(judged)
    assert "1 depends (all: not reproduced here" in document.counts([judged])
    for sources, conditions, word, note in (
        ([YES, YES, NO, NO], "Another path.", DEPENDS, ""),
        ([YES], "Another path.", CONFIRMED, OTHER_CONDITIONS),
        ([YES], "", CONFIRMED, ""),
    ):
        one = judge(claimed(MORE, *sources, conditions=conditions), Results(ROOT))
        assert (one.word, one.note) == (word, note)


def test_own_numbers_of_a_document_are_no_measurement() -> None:
    results = Results(ROOT)
    yes, no = (evidence.computed("number", lambda value=value: value) for value in (2.0, 0.5))
    assert judge(claimed(MORE, yes), results).word == CONSISTENT
    assert judge(claimed(MORE, yes, no), results).word == INCONSISTENT
    assert judge(claimed(MORE, yes, NO), results).word == CONTRADICTED  # the run decides
    assert judge(claimed(MORE, yes, ratio_of_arms("absent", "macvlan", "veth")), results).word == UNKNOWN
    assert document.counts([judge(claimed(MORE, one), results) for one in (yes, no, YES)]) == (
        "3 claims. By measurement: 1 confirmed. By the documents' own numbers alone: 1 consistent, 1 inconsistent."
        " The rest: none."
    )


def test_emulated_guests_decide_nothing_about_guests(tmp_path: Path) -> None:
    """The rows of namespaces and containers come first and have no guests."""
    rows = synthetic_rows.rows({"veth": 1.0, "veth (again)": 1.0, "veth/container": 1.0, "veth/guest": 0.5})
    for row in rows:
        row["guest_accelerator"] = "tcg" if row["arm"] == "veth/guest" else None
    source = ratio_of_arms("mine", "veth/guest", "veth/container")
    results = published(tmp_path, rows)
    assert judge(claimed(LESS, source), results).word == CONFIRMED
    [one] = evidence.undecided_if("emulated", source)(results)
    assert one.doubt.startswith("the guests were emulated")
    assert reading(one, LESS) == UNDECIDED
    assert one.host.endswith(", guests emulated")


def timed_rows(kind: str, own_s: float, **changes: object) -> list[synthetic_rows.Row]:
    """Return profiles of a kind of endpoints: `ip_rcv` took `own_s` in their kernel, and 1 s in the other one."""
    rows = synthetic_rows.rows({f"veth/{kind}": 1.0}, rounds=4, slices=1, method="profile", endpoint=kind)
    for row in rows:
        p50_s = own_s * (1.1 if row["round"] == 0 else 1.0)
        mine, other = ({"functions": {"ip_rcv": {"count": 9, "p50_s": one_s}}} for one_s in (p50_s, 1.0))
        is_guest = kind == "guest"
        row["observer"] = "guest_function_times" if is_guest else "function_times"
        row["observed"] = other | {"guest": mine} if is_guest else mine | {"guest": other}
        row |= {"guest_accelerator": "tcg" if is_guest else None, "guest_kernel": "6.1.0-56"}
        row |= {"length_bytes": 400, **changes}
    return rows


def test_durations_of_functions_in_two_kernels(tmp_path: Path) -> None:
    """A container's function runs in the kernel of its host, a guest's in the guest's kernel.

    Each size of datagrams has a ratio. Only valid rows of observers that time functions count.
    """
    source = evidence.function_ratio("mine", ("container", "ip_rcv"), ("guest", "ip_rcv"))
    ignored = [timed_rows("guest", 0.5, status="invalid"), timed_rows("guest", 0.5, observer="counters")]
    short = [*timed_rows("container", 1e-5), *timed_rows("guest", 4e-5)]
    long = [
        *timed_rows("container", 1e-5, length_bytes=800), *timed_rows("guest", 8e-5, length_bytes=800),
    ]  # fmt: skip
    results = published(tmp_path, short, *ignored, long)
    four, eight = sorted(source(results), key=lambda one: one.ratio)
    assert (four.ratio, eight.ratio) == (pytest.approx(4), pytest.approx(8))
    assert four.low < 4 / 1.04
    assert four.high > 4 * 1.04  # by the drift between runs
    assert four.what == "ip_rcv, a guest each (41 µs) / ip_rcv, containers (10.2 µs): 400 bytes each"
    assert four.host == "Linux 6.1.0; guests with Linux 6.1.0-56, emulated"
    assert four.guests_emulated
    missing = evidence.function_ratio("mine", ("container", "ip_rcv"), ("shared_guest", "ip_rcv"))
    bare = published(tmp_path / "bare", synthetic_rows.rows())
    for [one], kind in ((missing(results), "shared_guest"), (source(bare), "container")):
        assert one.doubt == f"no profile has a duration of ip_rcv for endpoint={kind}"


def test_durations_in_several_kernels_decide_nothing(tmp_path: Path) -> None:
    elsewhere = timed_rows("container", 1e-5, kernel="6.18")
    results = published(tmp_path, timed_rows("container", 1e-5), elsewhere, timed_rows("guest", 4e-5))
    [one] = evidence.function_ratio("mine", ("container", "ip_rcv"), ("guest", "ip_rcv"))(results)
    assert one.doubt == "a side was measured in several kernels"
    assert math.isnan(one.ratio)


def test_a_full_link_decides_nothing(tmp_path: Path) -> None:
    """Arms that fill the link are equal whatever they are. On a faster link the same ratios decide."""
    sources = [TO_BASELINE, BESIDE_IT, ratio_of_values("mine", "mtu_bytes", 1500, 9000, "macvlan")]
    for times_as_fast, full in ((1, True), (2, False)):
        tables = [
            synthetic_rows.rows(dict.fromkeys(ARMS, 1.0), mtu_bytes=mtu_bytes, nodes="two", seed=mtu_bytes)
            for mtu_bytes in (1500, 9000)
        ]
        rate_bps = times_as_fast * max(row["throughput_bps"] for rows in tables for row in rows)
        results = published(
            tmp_path / str(full), *([row | {"link_rate_bps": rate_bps} for row in of] for of in tables)
        )
        for source in sources:
            careful = evidence.undecided_if("link_full", source)(results)
            assert {one.link_full for one in careful} == {full}
            assert {one.doubt for one in careful} == ({"both sides fill the link"} if full else {""})


def test_the_denominator_is_the_claims_and_not_the_runs_baseline(tmp_path: Path) -> None:
    """A run of somebody else may have another baseline, or none of the arms that a claim divides by."""
    arms = {"macvlan": 1.0, "macvlan (again)": 1.0, "ipvlan": 1.5}
    source = ratio_of_arms("mine", "ipvlan", "veth")
    [one] = source(published(tmp_path / "with", synthetic_rows.rows(arms | {"veth": 1.2})))
    assert one.low < 1.25 < one.high
    assert one.what.startswith("ipvlan / veth: ")
    [one] = source(published(tmp_path / "without", synthetic_rows.rows(arms)))
    assert one.doubt == "the run did not measure it"


ARMS = {"veth": 1.0, "veth (again)": 1.0, "macvlan": 1.2, "ipvlan": 1.5}
TO_BASELINE, BESIDE_IT = ratio_of_arms("mine", "macvlan", "veth"), ratio_of_arms("mine", "ipvlan", "macvlan")


def test_slices_of_one_setup_decide_nothing(tmp_path: Path) -> None:
    results = published(tmp_path, synthetic_rows.rows(ARMS, rounds=1, slices=20))
    for source in (TO_BASELINE, BESIDE_IT):
        [one] = source(results)
        assert one.low > 1, "it has an interval, which is about this set-up alone"
        assert one.doubt == evidence.ONE_SETUP
        assert judge(claimed(MORE, source), results).word == UNKNOWN


def test_slices_that_whole_runs_contradict_decide_nothing(tmp_path: Path) -> None:
    rows = synthetic_rows.rows(ARMS, whole=5)
    for row in rows:
        if row["method"] == "whole" and row["arm"] == "ipvlan":
            row["throughput_bps"] /= 2
    results = published(tmp_path, rows)
    for source in (ratio_of_arms("mine", "ipvlan", "veth"), BESIDE_IT):
        [one] = source(results)
        assert one.low < 0.8 < 1.2 < one.high
        assert reading(one, MORE) == UNDECIDED
    [one] = TO_BASELINE(results)
    assert reading(one, MORE) == AGREES


def test_baseline_that_differs_from_itself_widens_evidence(tmp_path: Path) -> None:
    differs = {"veth": 1.0, "veth (again)": 1.4, "macvlan": 2.0, "ipvlan": 3.0}
    sizes = [synthetic_rows.rows(differs, protocol="udp", length_bytes=size, seed=size) for size in (64, 512)]
    of_sizes = evidence.ratio_of_ratios("mine", "macvlan", "veth", "length_bytes", 64, 512)
    alone, both = published(tmp_path / "one", sizes[0]), published(tmp_path / "two", *sizes)
    for source, results in ((TO_BASELINE, alone), (BESIDE_IT, alone), (of_sizes, both)):
        [one] = source(results)
        assert one.high > 100 * one.low
        assert judge(claimed(MORE, source), results).word == UNKNOWN


def test_ratio_within_the_control_shows_no_direction() -> None:
    """A control between 0.9 and 1.1 explains a ratio of 1.03 whose own interval is narrow; it keeps the interval."""
    narrow = {"ratio": 1.03, "low": 1.02, "high": 1.04, "how": "t", "rounds_count": 10, "control_ratio": 0.99}
    one, beyond = (
        evidence.of_verdict(
            Evidence("run", "point", "host"), narrow | {"control_low": low, "control_high": high}
        )
        for low, high in ((0.9, 1.1), (0.97, 1.01))
    )
    assert (one.low, one.high) == (1.02, 1.04)
    assert (reading(one, MORE), reason(one, MORE)) == (UNDECIDED, "within A/A")
    assert reading(one, printed_range(3)) == CONTRADICTS  # whatever its direction, it is not 3
    assert (reading(beyond, MORE), reason(beyond, MORE)) == (AGREES, "")


def test_ratio_of_two_values_of_a_parameter(tmp_path: Path) -> None:
    fast = synthetic_rows.rows(dict.fromkeys(ARMS, 3.0), mtu_bytes=9000)
    pairs = synthetic_rows.rows(dict.fromkeys(ARMS, 1.0), pairs=4, seed=5)
    results = published(tmp_path, fast, synthetic_rows.rows(dict.fromkeys(ARMS, 1.0), seed=4), pairs)
    [one] = ratio_of_values("mine", "mtu_bytes", 1500, 9000, "veth")(results)
    assert one.low < 3 < one.high
    assert "MTU 1500 → MTU 9000" in one.what
    [one] = ratio_of_values("mine", "pairs", 1, 4, "macvlan", "speed_per_pair")(results)
    assert one.low < 0.25 < one.high


def test_jitter_and_ratios_of_ratios(tmp_path: Path) -> None:
    """Jitter is compared as speed is. A ratio of two ratios, each of a size of datagrams, is one of each round."""
    arms = {"veth": 1.0, "veth (again)": 1.0, "macvlan": 1.2}
    small = synthetic_rows.rows(arms, protocol="udp", length_bytes=64, slices=8)
    large = synthetic_rows.rows(arms | {"macvlan": 1.8}, protocol="udp", length_bytes=512, slices=8)
    for row in (*small, *large):
        row |= {"jitter_s": 2e-6 if row["arm"] == "macvlan" else 1e-6, "lost_count": 0, "sent_count": 9}
    results = published(tmp_path, small, large)
    jitter = ratio_of_arms("mine", "macvlan", "veth", "jitter", length_bytes=64)
    assert [one.ratio for one in jitter(results)] == [pytest.approx(2)]
    [one] = evidence.ratio_of_ratios("mine", "macvlan", "veth", "length_bytes", 64, 512)(results)
    assert one.low < 1.5 < one.high
    assert one.what.endswith("64 bytes each → 512 bytes each")


def test_idle_time_is_of_a_set_up_and_not_of_its_slices(tmp_path: Path) -> None:
    """In some slices, the CPUs are never idle. Time that the hypervisor took is not idle."""
    rows = synthetic_rows.rows(dict.fromkeys(("veth", "veth (again)", "macvlan"), 1.0), slices=4)
    for row in rows:
        idle_s = (0.08, 0.0)[row["slice"] % 2] / (1 if row["topology"] == "veth" else 4)
        row |= {"window_s": 0.1, "steal_s": 0.01, "cpu_s": 0.2 - 0.01 - idle_s, "switch_cpu_s": 0.05}
    results = published(tmp_path, rows)
    [one] = ratio_of_arms("mine", "macvlan", "veth", "idle")(results)
    assert (one.ratio, one.setups_count) == (pytest.approx(0.25), 5)
    shares = results.compared_rows("mine", "idle")
    expected = shares["topology"].map({"veth": 0.2, "macvlan": 0.05})
    assert shares["idle_ratio"].to_list() == pytest.approx(expected.to_list())
    assert shares["switch_ratio"].to_list() == pytest.approx([0.25] * 3 * 5)


def mirrored(
    rate_bps: float, made_bps: float, arrived: float, link_bps: float, family: int = 4
) -> list[synthetic_rows.Row]:
    """Return rows of a mirror whose copies take a link between two hosts; `arrived` is the share that it delivers."""
    name, frame_bits = "ovs+mirrors=1+output=gre", 8 * (1472 + {4: 42, 6: 62}[family])
    made = made_bps / frame_bits * 0.07  # of the window
    rows = synthetic_rows.rows(
        {name: 1.0}, slices=0, whole=5, protocol="udp", length_bytes=1472, rate_bps=rate_bps, link_rate_bps=link_bps,
        nodes="two", copies_expected_count=round(made), copies_count=round(made * arrived), family=family,
    )  # fmt: skip
    return [row | {"role": "variant"} for row in rows]


def test_copies_over_a_link(tmp_path: Path) -> None:
    """Each load is on the side of the link's rate where its copies really were. A load above it whose sender was too
    slow is on neither side, and rows of another link do not count."""
    results = published(
        tmp_path,
        mirrored(4e8, 4e8, 1.0, 1e9),
        mirrored(1.2e9, 1.2e9, 0.8, 1e9),
        mirrored(1.6e9, 8e8, 1.0, 1e9),  # the sender did not reach its rate
        mirrored(1.2e8, 1.2e8, 0.8, 1e8),
    )
    six = published(tmp_path / "six", mirrored(1.2e9, 1.2e9, 0.8, 1e9, family=6))
    for of, what, link_bps, ratio, words in (
        (results, "of_link", 1e9, 0.96, "gre: udp, 1 pair, MTU 1500, two nodes, link 1 Gbit/s, 1200 Mbit/s"),
        (results, "arrived", 1e9, 1, "400 Mbit/s"),
        (results, "of_link", 1e8, 0.96, "120 Mbit/s"),
        (six, "of_link", 1e9, 0.96, "1200 Mbit/s"),
    ):
        [one] = evidence.mirrored_share("mine", what, link_bps)(of)
        assert one.ratio == pytest.approx(ratio, rel=1e-2)
        assert one.what.endswith(words)


def test_copies_of_two_hosts_and_sizes_are_not_pooled(tmp_path: Path) -> None:
    small, large = (
        [row | {"length_bytes": size, "mtu_bytes": size + 28} for row in mirrored(4e8, 4e8, share, 1e9)]
        for size, share in ((1472, 1.0), (8900, 0.5))
    )
    elsewhere = [row | {"kernel": "6.18.5"} for row in mirrored(4e8, 4e8, 0.8, 1e9)]
    results = published(tmp_path, small, large, elsewhere)
    ratios = sorted(one.ratio for one in evidence.mirrored_share("mine", "arrived", 1e9)(results))
    assert ratios == pytest.approx([0.8, 1.0], rel=1e-2)  # the link does not carry copies of 8,900 bytes
    [one] = evidence.mirrored_share("mine", "of_link", 1e9)(results)
    assert "MTU 8928" in one.what


def test_missing_run_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    source = ratio_of_arms("mine", "macvlan", "veth")
    judgement = judge(claimed(MORE, source, source), Results(tmp_path / "results"))
    assert judgement.word == UNKNOWN
    assert {read for _, read in judgement.evidence} == {MISSING}
    [line] = document.evidence_table(judgement, MORE).splitlines()[2:]  # both miss for one reason
    assert line.endswith("| not measured: `labkit sweep params/mine.yaml` measures it |")


def test_claims_are_judged_by_a_run_of_ones_own(tmp_path: Path) -> None:
    """The runs in data/results named datapaths and ipvlan answer a claim together; here each decides alone."""
    slower = {"veth_bridge": 1.0, "veth_bridge (again)": 1.0, "macvlan_bridge": 0.8}
    theirs = published(tmp_path, synthetic_rows.rows(protocol="udp"), name="datapaths").folder / "datapaths"
    rows = synthetic_rows.rows(slower, seed=9, protocol="udp")
    mine = synthetic_rows.save(tmp_path / "mine", rows, **FINISHED)
    [one] = repeated.judge_by_both(mine, theirs)
    assert one.name == "macvlan-faster-udp"
    assert (one.left.word, one.right.word) == (DEPENDS, CONFIRMED)
    assert one.left.evidence.endswith(f"; {NOT_REPRODUCED}")
    assert one.right.evidence.endswith(f"; {OTHER_CONDITIONS}")
    assert repeated.judge_by_both(mine, mine) == []


@pytest.mark.parametrize("where", ["claim", "source"])
def test_a_misspelt_key_of_the_table_is_refused(where: str) -> None:
    """It would leave out a condition, or a filter, without a word."""
    entry = {"name": "one", "sentence": "One.", "document": "paper", "place": "1", "settle": "More."}
    source = {"run": "datapaths", "arm": "veth", **({"were": {}} if where == "source" else {})}
    with pytest.raises((BadInput, TypeError), match="were" if where == "source" else "condition"):
        claim_of(entry | {"sources": [source]} | ({"condition": "Other."} if where == "claim" else {}))


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("two")
    theirs, mine = (synthetic_rows.rows(rounds=1, slices=1, seed=seed) for seed in (1, 9))
    answers_no_claim = published(folder, theirs, name="theirs").folder / "theirs"
    return [str(answers_no_claim), str(synthetic_rows.save(folder / "mine", mine, **FINISHED))]


@pytest.mark.parametrize(
    ("name", "old", "new", "words"),
    [
        ("ovs_test_plan", b"(?s).+", b"", "cannot be read: No columns to parse from file"),
        ("trex_loadtests", b"http_simple", b"\xff", "cannot be read: 'utf-8' codec"),
        ("trex_loadtests", b"1480000", b"many", "trex_loadtests.csv cannot be read: could not convert"),
        ("trex_latency", b"\nport 1", b"\nport 2", "what latency_ratio takes from data/reference cannot"),
        ("trex_counters", b"received_packets", b"arrived", "has no column received_packets, which"),
        ("trex_counters", b"710219304", b"many", "received_packets is 'many': write a number"),
        ("trex_counters", b"\nastf", b"\nimix", "what loss takes from data/reference cannot be read: it has"),
        ("trex_counters", b"47761783", b"0", "what loss takes from data/reference cannot be read: float"),
        ("container_vs_vm", b"vm,,", b"vm,9,", "cannot be read: it has no 'guest'"),
        ("virtual_tap_mirror_count", b"2,false", b"4,false", "two lines have the same mirror_ports"),
    ],
)
def test_an_edited_table_of_a_document_is_refused_in_one_sentence(
    name: str, old: bytes, new: bytes, words: str, two_runs: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    place = f"data/reference/{name}.csv"
    table = (ROOT / place).read_bytes()
    run_folder.write(tmp_path / place, re.sub(old, new, table))
    monkeypatch.setenv(run_folder.PROJECT, str(tmp_path))
    monkeypatch.setattr(repeated, "claims", claims.__wrapped__)  # no cache of labkit's own tables
    assert cli.main(["compare", *two_runs]) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert words in sentence


@pytest.mark.long
def test_conditions_there_and_here_are_named(judgements: list[Judgement], long_page: str) -> None:
    """The paper measured between containers. The thesis' ifstat reads no copy, so readers are no arms of its claims."""
    of = {section.partition("\n")[0]: section for section in long_page.split("\n### ")}
    assert "| ends | Docker containers | namespaces |" in of["macvlan-faster-udp"]
    assert "ports published by a proxy; ports published by NAT |" in of["macvlan-tcp"]
    assert re.search(r"\| readers of copies \| nobody; ifstat reads [^|]* \| nobody \|", of["mirror-count"])
    assert "| nodes | two, NICs of 1 Gbit/s | one |" in of["uplink"]
    assert re.search(r"\| CPUs of the ends \| 0,1; the switch on 0[^|]* \| 0,1 \| ", of["mirror-drop"])
    assert re.search(r"\| readers of copies \| [^|]* \| a counter \|", of["tool-filter"])
    assert "| rules of the switch, by MAC address |" in of["order-of-cases"]
    assert "| datagrams | 8.2 kB to containers and 1.4 kB to virtual machines | " in of["container-vs-vm"]
    assert "QEMU Virtual CPU" not in of["container-vs-vm"], "rows of the lab VM that traces"
    assert "condition" not in of["loss"], "no run answers it"
    for judged in judgements:  # a measured ratio is not the document's
        measured = [one for one, _ in judged.deciding if one.run != evidence.PRINTED and not one.exact]
        assert judged.claim.conditions or not measured, judged.claim.name


@pytest.mark.long
def test_a_claim_that_one_ratio_decides_says_so(judgements: list[Judgement]) -> None:
    """The count of ratios alone would not decide it."""
    sides = ((AGREES,), (CONTRADICTS, EQUAL))
    for judged in judgements:
        read = [word for one, word in judged.deciding if not math.isnan(one.ratio) and not one.exact]
        many = any(beyond_chance(sum(map(read.count, words)), len(read)) for words in sides)
        by_one = judged.word in (CONFIRMED, CONTRADICTED, DEPENDS) and bool(read) and not many
        assert ("A single ratio decides" in judged.claim.remark) == by_one, judged.claim.name


def test_a_container_received_less_than_its_client_sent() -> None:
    """18 % of the datagrams were lost, so the factor is 381, and not 467, which is that of the sent rate."""
    assert 1 / printed.guest_share() == pytest.approx(4660 * (1 - 131428 / 710760) / 9.97)
    [claim] = [one for one in claims() if one.name == "container-vs-vm-size"]
    assert claim.claimed_range == printed_range(printed.guest_share())
    assert f"{1 / printed.guest_share():.0f} times" in claim.remark
    assert "8.2 kB" in claim.conditions


@pytest.mark.long
def test_own_numbers_that_exclude_each_other(judgements: list[Judgement]) -> None:
    """A printed mean below the least that the histogram allows, counters that fall, and a test that did not pass."""
    min_s = [printed.histogram_mean_s(port) for port in (0, 1)]
    assert min_s == pytest.approx([1018e-6, 968e-6], rel=1e-3)
    assert printed.latency_ratio(0) == pytest.approx(815e-6 / min_s[0])
    assert printed.slow_probes() == pytest.approx(0.0211, abs=1e-4)
    assert [printed.within_limit(*of) for of in (("baseline",), ("imix", "64b"), ("astf",))] == [1, 0.5, 1]
    assert printed.mirror_counter("llc_loads", True) == pytest.approx(1939796 / 2036004)
    assert {"cycles", "instructions", "context switches", "CPI"} <= set(printed.copied_counters())
    words = {one.claim.name: one.word for one in judgements}
    for name in ("trex-latency", "all-passed", "mirror-counters", "flows"):
        assert words[name] == INCONSISTENT


def test_a_missing_run_is_measured_by_a_sweep_that_exists() -> None:
    given = [source.get("run", []) for entry in TABLE["claims"] for source in entry.get("sources", ())]
    given += [table["run"] for one in exhibits.EXHIBITS for table in (*one.ours, *one.draw, *one.why)]
    runs = {name for names in given for name in ([names] if isinstance(names, str) else names)}
    assert "published_ports" in runs
    for name in runs:
        assert (ROOT / how_to_measure(name).strip("`").removeprefix("labkit sweep ")).exists(), name


def test_registry_is_complete() -> None:
    names = [claim.name for claim in claims()]
    assert len(set(names)) == len(names)
    assert {claim.document for claim in claims()} == DOCUMENTS.keys()
    for claim in claims():
        assert claim.settle
        assert claim.place
        assert bool(claim.sources) == (claim.claimed_range is not None) == bool(claim.ratio)
        assert claim.sources or claim.remark, f"{claim.name} does not say why it cannot be told"
        assert claim.claimed_range is None or claim.claimed_range[0] < claim.claimed_range[1]
        assert claim.margin is None or claim.claimed_range in (MORE, LESS)
        assert {*DOCUMENTS[claim.document].had, *claim.had} <= CONDITIONS.keys(), claim.name
    for entry in TABLE["claims"]:  # a claim of a direction that runs answer says what a tie is
        is_measured = any("printed" not in one for one in entry.get("sources", ()))
        is_decided = "margin" in entry or "no margin" in entry.get("remark", "")
        assert is_decided or not is_measured or entry["range"] not in ("more", "less"), entry["name"]


@pytest.mark.long
def test_exhibits_are_beside_ours() -> None:
    """Each claim is below an exhibit, and a printed number beside the measured one of the same line."""
    assert {name for one in exhibits.EXHIBITS for name in one.claims} == {claim.name for claim in claims()}
    tables = {one.name: exhibits.beside(one, PUBLISHED) for one in exhibits.EXHIBITS}
    mirrors = tables["Table 4.1, figures 4.4 to 4.6"]
    assert list(mirrors.index) == ["0", "1", "2", "4", "8"]
    assert mirrors["printed", "Mbit/s", "monitored: True"]["8"] == "233"
    assert mirrors["run virtual_tap", "TCP", "here"]["8"].endswith(" Mbit/s")
    uplink = tables["Table 4.2, figures 4.16 and 4.17"].loc["1200000000"].tolist()
    assert uplink[:2] == ["8.38", "6.678"]
    assert uplink[2].endswith(" Mbit/s")
    ends = tables["Part 2, sections 2.1 and 2.2"]
    assert ends.loc["guest"].tolist()[:4] == ["9.97 Mbit/s", "2.51 ms", "0", "8,619"]
    assert "–" not in ends.loc["guest"].tolist()
    for one in exhibits.EXHIBITS:
        assert one.document in DOCUMENTS
        assert one.ours or one.draw or one.why or one.remark, one.name
        # A median is of rows that differ in nothing else.
        for ours in (each for each in one.ours if PUBLISHED.has(each["run"])):
            rows = evidence.rows_with(exhibits._measured(ours, PUBLISHED), where_of(ours))
            names = [name for name in (*load.GROUP, "topology") if name in rows]
            by = [ours["down"], *ours.get("across", ())]
            cells = rows.dropna(subset=list(ours["values"])).groupby(by, dropna=False)
            assert not [of for _, cell in cells for of in load.varying(cell, names)], one.name


def test_exhibits_without_numbers_are_explained() -> None:
    [explained] = [one for exhibit in exhibits.EXHIBITS for one in exhibits.explanations(exhibit, PUBLISHED)]
    assert explained.title == "ovs_netdev+mirrors=1 against ovs_netdev"
    assert "sending packets through packet sockets costs" in explained.sentences()[0]
    assert len(explained.flames) == 1
    drawn = (ROOT / "figures/mirrors_profiled.svg").read_text()
    assert drawn == still_picture(explained.flames[0].data), "make figures"


@pytest.mark.parametrize(
    ("name", "kind", "counts"),
    [
        ("paper", "figure", {3: 3, 4: 3, 5: 4}), ("paper", "table", {4: 1}),
        ("thesis", "figure", {3: 2, 4: 27}), ("thesis", "table", {2: 1, 4: 2}),
    ],
)  # fmt: skip
def test_figures_and_tables_of_a_document_are_in_its_order(
    name: str, kind: str, counts: dict[int, int]
) -> None:
    every = [f"{chapter}.{number + 1}" for chapter, count in counts.items() for number in range(count)]
    shown = []
    for one in exhibits.EXHIBITS:
        for words in re.findall(rf"{kind}s? ([\d.]+(?: (?:to|and) [\d.]+)?)", one.name, re.IGNORECASE):
            first, last = words.split()[0], words.split()[-1]
            if one.document == name:
                shown += every[every.index(first) : every.index(last) + 1]
    assert shown == every


@pytest.mark.parametrize(
    ("name", "headings"),
    [
        ("report", ["1, tables", "1, pings", "1, captures", "2.1", "2.2", "2.3", "2.4"]),
        ("load_tests", ["Introduction", "Step 3", "Step 4", "Step 5", "Injection", "Distribution"]),
        ("test_plan", ["Methodology", "Measurement Results", "Collecting Results"]),
    ],
)
def test_sections_of_a_document_are_in_its_order(name: str, headings: list[str]) -> None:
    named = [one.name for one in exhibits.EXHIBITS if one.document == name]
    shown = [[place for place, heading in enumerate(headings) if heading in one] for one in named]
    assert shown == sorted(shown)
    assert {place for places in shown for place in places} == set(range(len(headings)))


@pytest.fixture(scope="module")
def long_page(judgements: list[Judgement]) -> str:
    return document.page(PUBLISHED, judgements)


@pytest.mark.long
def test_page_is_current(judgements: list[Judgement], long_page: str) -> None:
    """docs/FINDINGS.md is the table of claims that data/results gives, and the long page explains each of them."""
    short = document.short_page(judgements)
    assert (ROOT / "docs/FINDINGS.md").read_text() == short, "make figures"
    assert all(f"\n**{name}**\n" in long_page for name in PUBLISHED.names()), "its doubts read every run"
    assert all(f"| {one.claim.sentence} |" in short for one in judgements)
    assert all(
        f"\n### {one.claim.name}\n" in long_page and f"(#{one.claim.name})" in long_page for one in judgements
    )
    # The picture of the claims needs a browser, so its verdicts are compared: `make figures` draws it anew.
    frame = document.frame(judgements)
    shown = frame[frame["run"].ne(evidence.PRINTED)].drop_duplicates("name")["verdict"]
    picture = (ROOT / "figures/claims.svg").read_text()
    drawn = re.findall(r">(confirmed|contradicted|depends|cannot be)<", picture)
    assert sorted(drawn) == sorted(str(verdict).removesuffix(" told here") for verdict in shown)


@pytest.mark.long
def test_time_of_a_function_does_not_explain_virtual_machines(judgements: list[Judgement]) -> None:
    """The guests of the published run never called ip_rcv, and took several packets in a call of ip_list_rcv."""
    [judged] = [one for one in judgements if one.claim.name == "ip_rcv-explains"]
    assert (judged.word, judged.note) == (DEPENDS, NOT_REPRODUCED)
    assert sorted(one.what.rpartition(": ")[2] for one, _ in judged.evidence) == [
        *["400 bytes each"] * 2, *["800 bytes each"] * 2,
    ]  # fmt: skip
    profiles = PUBLISHED.profiles("container_vs_vm")
    own = profiles[profiles["observer"].eq("guest_function_times") & profiles["endpoint"].eq("guest")]
    assert len(own)
    for row in own.to_dict("records"):
        calls = {name: one["count"] for name, one in row["observed"]["guest"]["functions"].items()}
        assert calls["ip_rcv"] == 0
        assert 0 < calls["ip_list_rcv"] < 0.5 * row["received_count"]


@pytest.mark.long
def test_ranges_beyond_the_axis_are_written(judgements: list[Judgement]) -> None:
    figures = pictures.claim_figures(PUBLISHED, judgements)
    assert set(figures) >= {"claims", "datapaths", "mirror_drop", "mirror_rates"}
    assert {f"{name}.svg" for name in figures} <= {path.name for path in (ROOT / "figures").glob("*.svg")}
    assert all(one.data for one in figures.values())
    figure = figures["claims"]
    ratios = [one.ratio for judged in judgements for one, _ in judged.evidence if one.run != evidence.PRINTED]
    assert (
        sum(trace.error_x.array is not None for trace in figure.data) == sum(map(math.isfinite, ratios)) > 0
    )
    words = [
        re.sub("<.*?>", "", str(one.text)) for one in figure.layout.annotations if " to " in str(one.text)
    ]
    assert words == ["depends← 0.0021 to 0.00328", "depends480 to 750 →"]
    frame = document.frame(judgements)
    drawn = frame.loc[frame["run"].ne(evidence.PRINTED), "name"].nunique()
    assert len(figure.layout.shapes) + len(words) == drawn + 1  # and the rule at 1


def test_readme_counts_the_claims() -> None:
    assert f"{len(claims())} claims of five documents" in " ".join((ROOT / "README.md").read_text().split())


def test_published_runs_are_small_without_paths_and_have_figures_of_their_rows() -> None:
    names = PUBLISHED.names()
    assert names
    files = (path for name in ("data", "figures") for path in (ROOT / name / "results").rglob("*"))
    published = [path for path in files if path.suffix != ".html"]  # git leaves out pages about a run
    assert sum(path.stat().st_size for path in published) < 31e6  # of 29 runs
    for name in names:
        described = PUBLISHED.description(name)
        content = (PUBLISHED.folder / name / published_runs.ROWS).read_bytes()
        assert hashlib.sha256(content).hexdigest() == described["sha256"]
        assert parquet.read_metadata(io.BytesIO(content)).num_rows == described["rows_count"]
        folder = ROOT / "figures/results" / name
        assert list(folder.glob("*.svg"))
        assert (folder / pictures.DIGEST).read_text().strip() == described["sha256"], "make figures"
        assert not PRIVATE.search((PUBLISHED.folder / name / "run.json").read_text())
        file = re.fullmatch(r"labkit sweep (params/[\w-]+\.yaml)", described["command"])
        assert file is None or (ROOT / file[1]).exists()


@pytest.mark.long
def test_remark_about_published_ports_is_what_the_run_says(judgements: list[Judgement]) -> None:
    [judged] = [one for one in judgements if one.claim.name == "macvlan-tcp"]
    of_run = [one for one, _ in judged.evidence if one.run == "published_ports"]
    bridge, nat, proxy = (
        float(np.median([one.ratio for one in of_run if f"/ {veth}:" in one.what]))
        for veth in ("veth_bridge", "veth_published_nat", "veth_published_proxy")
    )
    assert 1 < bridge < nat < proxy


@pytest.mark.long
def test_remarks_about_load_tests_are_what_their_rows_say() -> None:
    """They were too slow to lose a frame, and their jitter is of the order of their latency."""
    tests, steps = PUBLISHED.rows("load_test"), PUBLISHED.rows("load_test", "steps")
    assert set(tests["ended"]) == {schema.TARGET_HELD}
    assert 0.99 < steps.loc[steps["direction"].ne("all"), "offered_pps"].max() / 50_000 < 1.03
    assert tests["latency_mean_s"].lt(3e-6).all()
    shares = tests["jitter_s"] / tests["latency_mean_s"]
    said = TABLE["texts"]["own_probes"]
    assert f"jitter is {shares.min():.2g} to {shares.max():.2g} of the mean" in said
    assert "{own_probes}" in "".join(entry.get("remark", "") for entry in TABLE["claims"])


@pytest.mark.long
def test_remark_about_offloads_is_what_the_run_says() -> None:
    rows = PUBLISHED.rows("offloads")
    slices = rows[rows["status"].eq("ok") & rows["method"].eq("slice") & rows["role"].ne("control")]
    rates = slices.groupby(["pairs", "placement", "topology"])["throughput_bps"].median().unstack()
    ratios = rates["veth_bridge+no-offloads"] / rates["veth_bridge"]
    [remark] = [one.remark for one in claims() if one.name == "udp-offloads"]
    assert len(ratios) > 2
    assert f"a ratio of {ratios.min():.2g} to {ratios.max():.2g} at every placement" in remark, ratios


@pytest.mark.long
def test_remark_about_saturation_is_what_the_run_says() -> None:
    rows = PUBLISHED.rows("mirrors")
    offered = rows[rows["status"].eq("ok") & rows["protocol"].eq("tcp") & rows["rate_bps"].notna()]
    carried = (offered["throughput_bps"] / offered["rate_bps"]).groupby(
        [offered["rate_bps"], offered["mirrors"]]
    )
    shares = carried.median().unstack()
    assert shares.loc[:3e8].gt(0.98).all(axis=None)
    assert shares.loc[4.5e8:, 1].lt(0.95).all()


@pytest.mark.long
def test_remark_about_idle_time_is_what_the_runs_say(judgements: list[Judgement]) -> None:
    [judged] = [one for one in judgements if one.claim.name == "mirror-idle"]
    [idle] = [one for one, _ in judged.evidence if one.run == "mirrors"]
    assert (idle.low > 1, round(idle.ratio, 1), idle.setups_count) == (True, 1.1, 30)
    for run in ("mirrors", "mirrors_profiled"):
        rows = evidence.rows_with(
            PUBLISHED.compared_rows(run, "idle"), {"length_bytes": 1024, "rate_bps": None}
        )
        shares = rows.groupby("mirrors")["switch_ratio"].median()
        assert shares[1] > shares[0]


@pytest.mark.long
def test_figures_of_a_run_replace_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PUBLISHED.folder / "uplink", tmp_path / "uplink")
    folder = tmp_path / "figures/uplink"
    folder.mkdir(parents=True)
    (folder / "of_earlier_rows.svg").touch()
    (folder / pictures.DIGEST).write_text("another\n")

    def draw(figures: dict[str, Any], _deadline_s: float) -> dict[str, bytes]:
        """Return pictures, of which one is too large."""
        large = b"x" * (pictures.MAX_BYTES + 1)
        return {name: large if name == "forest" else b"<svg/>" for name in figures}

    monkeypatch.setattr("labkit.analysis.report.svgs", draw)
    results = Results(tmp_path)
    written = {path.name for path in pictures.write_figures_of_runs(results, tmp_path / "figures")}
    assert written == {path.name for path in folder.iterdir()}
    assert "uplink.svg" in written
    assert "forest-two-nodes.svg" in written
    assert not written & {"forest.svg", "of_earlier_rows.svg"}
    assert (folder / pictures.DIGEST).read_text().strip() == results.description("uplink")["sha256"]


@pytest.mark.long
def test_numbers_of_the_readme_are_those_of_the_findings(long_page: str) -> None:
    """The README explains its first figure by two of its ratios, and names two ranges."""
    readme = " ".join((ROOT / "README.md").read_text().split())

    def ratios(run: str, protocol: str) -> list[tuple[float, str]]:
        lines = re.findall(
            rf"^\| {run} \| `macvlan_bridge / veth_bridge: {protocol}, (\d+) pairs?, MTU \d+` \| .*? \| ([\d.]+) \[.*$",
            long_page.partition("### macvlan-faster-tcp")[2].partition("### ipvlan-tcp")[0],
            re.MULTILINE,
        )
        return [(float(ratio), pairs) for pairs, ratio in lines]

    assert "With two pairs and UDP, macvlan carries 1.14 times" in readme
    assert "With one pair, short slices (1.21) and whole runs (1.35) contradict" in readme
    assert "1.14" in {f"{ratio:.3g}" for ratio, pairs in ratios("datapaths", "udp") if pairs == "2"}
    [line] = re.findall(r"\| datapaths \|.*veth_bridge: udp, 1 pair, MTU 1500.*", long_page)
    assert "| 1.21 [1.18, 1.43]" in line
    low, high = map(
        float, re.findall(r"carries ([\d.]+) to ([\d.]+) times as much as a plain bridge", readme)[0]
    )
    runs = [
        one
        for name in ("datapaths", "ipvlan", "ipvlan_1500", "published_ports")
        for one in ratios(name, "tcp")
    ]
    assert (low, high) == (round(min(runs)[0], 2), round(max(runs)[0], 2))


def test_difference_from_1_in_whatever_direction() -> None:
    for given, expected in (
        ((2.0, 1.6, 2.5), (2.0, 1.6, 2.5)),
        ((0.5, 0.4, 0.625), (2.0, 1.6, 2.5)),
        ((1.0, 0.8, 1.1), (1.0, 1.0, 1.25)),
    ):
        same = Evidence("run", "point", "host", *given)
        [one] = evidence.deviation(lambda _, same=same: [same])(Results(ROOT))
        assert (one.ratio, one.low, one.high) == pytest.approx(expected)
