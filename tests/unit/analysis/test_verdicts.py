"""Tables of rows with known effects: loading, pairing, verdicts, doubts."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import ROOT
from scipy.special import stdtrit
from synthetic_rows import ROW, Row, rows, save

from labkit.analysis import conditions, load, stats, verdicts
from labkit.analysis.load import PEER_RAN_ON, PROVENANCE, RAN_ON
from labkit.common.errors import BadInput
from labkit.common.schema import TARGET_HELD
from labkit.measure.experiments.datapaths_parameters import DatapathParameters


def verdict(some: list[Row], **given: Any) -> Any:
    """Return the only verdict of these rows."""
    result = verdicts.verdicts(pd.DataFrame(some), **given)
    assert len(result) == 1
    return result.iloc[0]


def test_slices_decide_or_whole_runs_without_them() -> None:
    result = verdict(rows())
    assert list(result.index) == [*verdicts.GROUP, *verdicts.VERDICTS]
    assert list(result[["word", "topology", "baseline"]]) == ["faster", "macvlan_bridge", "veth_bridge"]
    assert result["low"] < 1.2 < result["high"]
    assert (result["n_count"], result["rounds_count"], result["pairs"]) == (60, 5, 1)
    assert result["control_low"] < 1 < result["control_high"]
    assert math.isnan(result["whole_ratio"])
    assert "% faster than veth_bridge [" in result["sentence"]
    assert result["sentence"].endswith("(Student's t over 5 set-ups of 60 slices)")
    result = verdict(rows(slices=0, rounds=10, whole=10))
    assert (result["word"], result["how"]) == ("faster", "Student's t over 10 rounds")
    ping = verdict(rows(slices=0, rounds=10, whole=10, protocol="ping"))
    assert (ping["word"], ping["ratio"]) == ("slower", pytest.approx(result["ratio"]))


def starve(some: list[Row], count: int, arm: str = "macvlan_bridge", value: float = 0.0) -> list[Row]:
    """Return the rows with almost no traffic in the first slices of an arm."""
    own = [row for row in some if row["arm"] == arm]
    for row in own[:count]:
        row["throughput_bps"] = value
    return some


def changed(some: list[Row], of: str, **columns: Any) -> list[Row]:
    """Return the rows with other values in the columns of one topology."""
    return [row | (columns if row["topology"] == of else {}) for row in some]


LOAD_TESTS = rows(slices=0, rounds=6, whole=6)


@pytest.mark.parametrize(
    ("some", "words", "has_ratio"),
    [
        (rows({"veth_bridge": 1, "macvlan_bridge": 1.2}), "veth_bridge was not measured twice", True),
        (rows(rounds=1, slices=100), "one set-up", True),
        (
            changed(rows(), "veth_bridge", status="failed", reason="iperf3 was killed"),
            "veth_bridge has no valid measurement (iperf3 was killed)",
            False,
        ),
        (starve(rows(), 20), "in 20 of 60 slices almost nothing arrived at one of the two arms", False),
        (starve(rows(), 60), "nothing arrived at macvlan_bridge in any measurement", False),
        (
            starve(starve(rows(), 60, "veth_bridge"), 60, "veth_bridge (again)"),
            "nothing arrived at veth_bridge in any measurement",
            False,
        ),
        # Load tests that all end at their target have one rate, whatever the devices carry.
        ([row | {"ended": TARGET_HELD} for row in LOAD_TESTS], "every load test held its target", False),
    ],
)
def test_no_evidence_has_a_reason(some: list[Row], words: str, has_ratio: bool) -> None:
    result = verdict(some)
    assert result["word"] == "no evidence"
    assert words in result["sentence"]
    assert math.isnan(result["ratio"]) != has_ratio


def test_slices_without_a_tick_of_cpu_time_have_a_cost() -> None:
    """The kernel counted a tick in every other slice, of one arm two."""
    some = [row | {"received_bytes": 1e8, "cpu_s": 0.01 * (row["slice"] % 2)} for row in rows()]
    for row in some:
        row["cpu_s"] *= 2 if row["topology"] == "macvlan_bridge" else 1
    [line] = verdicts.verdicts(load.by_cost(load.complete(pd.DataFrame(some)))).to_dict("records")
    assert (line["word"], line["ratio"], line["n_count"]) == ("slower", pytest.approx(2), 60)


@pytest.mark.parametrize(("limited", "word"), [(3, "faster"), (4, "no evidence")])
def test_a_minority_of_rounds_that_reached_the_rate_decides_nothing(limited: int, word: str) -> None:
    some = rows(slices=0, rounds=8, whole=8, protocol="udp", rate_bps=1e8)
    bad = {"status": "invalid", "reason": "generator-limited: 90 of the requested 100 Mbit/s were sent"}
    some = [row | (bad if row["role"] == "variant" and row["round"] < limited else {}) for row in some]
    result = verdict(some)
    assert result["word"] == word
    if word == "no evidence":
        words = f"macvlan_bridge often lacked the requested rate ({bad['reason']})"
        assert result["sentence"].endswith(words)
        doubts = verdicts.doubts(pd.DataFrame(some))
        assert any(
            re.match("4 rates left out: .* or runs ended at the generator's limit$", one) for one in doubts
        )


def test_a_target_that_one_arm_held_is_compared() -> None:
    some = changed(LOAD_TESTS, "macvlan_bridge", ended=TARGET_HELD)
    some = changed(some, "veth_bridge", ended="it lost frames")
    assert verdict(some)["ratio"] > 0
    doubt = "macvlan_bridge: the load test held its target, so its rate is a lower bound (in 6 of 6 rows)"
    assert doubt in verdicts.doubts(pd.DataFrame(some))


@pytest.mark.parametrize(
    ("ratio", "times", "word", "doubt"),
    [(1.2, 1 / 1.5, "no evidence", "contradict"), (0.04, 0.8, "slower", "the interval spans both")],
)
def test_whole_runs_may_contradict_the_slices(ratio: float, times: float, word: str, doubt: str) -> None:
    """If they contradict the size alone, the direction stays."""
    some = rows({"veth_bridge": 1, "veth_bridge (again)": 1, "macvlan_bridge": ratio}, whole=4)
    result = verdict(some)
    assert result["word"] == ("faster" if ratio > 1 else "slower")
    assert result["whole_low"] < ratio < result["whole_high"]
    for row in some:
        if row["method"] == "whole" and row["role"] == "variant":
            row["throughput_bps"] *= times
    result = verdict(some)
    assert (result["word"], result["low"]) == (word, result["whole_low"])
    assert result["low"] < 1.03 * ratio * times < 0.97 * ratio < result["high"]
    assert "5 set-ups of 60 slices, and whole runs contradict them: ratio 0." in result["sentence"]
    assert any(doubt in one for one in verdicts.doubts(pd.DataFrame(some)))


@pytest.mark.parametrize(("ratio", "word"), [(1.3, "no evidence"), (0.06, "slower")])
def test_control_that_differs_from_itself_widens(ratio: float, word: str) -> None:
    some = rows({"veth_bridge": 1, "veth_bridge (again)": 1.1, "macvlan_bridge": ratio})
    result = verdict(some)
    assert result["word"] == word
    assert result["widened"]
    assert result["high"] > 3 * result["low"]  # the table shows what the sentence judges
    assert any("the baseline differs from itself" in doubt for doubt in verdicts.doubts(pd.DataFrame(some)))


def test_disagreeing_set_ups_are_reported() -> None:
    some = rows()
    for row in some:
        row["throughput_bps"] *= 1 + 0.1 * row["round"] * (row["role"] == "variant")
    assert verdict(some)["disagree"]
    assert "tcp, 1 pair, MTU 1500: the set-ups disagree" in " ".join(verdicts.doubts(pd.DataFrame(some)))


def test_pairing_by_run_round_and_slice() -> None:
    some = rows(rounds=3, slices=4) + rows(rounds=2, slices=4, run="b", seed=2)
    result = verdicts.ratios(pd.DataFrame(some))
    assert len(result) == 5 * 4
    assert result["setup"].nunique() == 5
    one = {row["arm"]: math.log(row["throughput_bps"]) for row in some[:3]}
    mean = (one["veth_bridge"] + one["veth_bridge (again)"]) / 2
    first = result[result["setup"].eq("a:0") & result["slice"].eq(0)].iloc[0]
    assert first["log_ratio"] == pytest.approx(one["macvlan_bridge"] - mean)
    assert first["log_control"] == pytest.approx(one["veth_bridge (again)"] - one["veth_bridge"])


def test_only_valid_rows_enter() -> None:
    some = rows()
    for place in (0, 3):  # two measurements of the baseline
        some[place] |= {"status": "invalid", "reason": "generator-limited", "throughput_bps": 1.0}
    some[5] |= {"throughput_bps": 0.0}
    result = verdict(some)
    assert result["n_count"] == 60, "the slice in which nothing arrived counts as starvation"
    assert 1.18 < result["low"] < 1.2 < result["high"] < 1.22
    lines = verdicts.doubts(pd.DataFrame(some))
    assert "veth_bridge: left out as invalid: generator-limited (in 2 of 120 rows)" in lines
    assert any(one.startswith("macvlan_bridge: in 1 of 60 rows almost nothing arrived; ") for one in lines)


def test_unmeasured_arm_gives_its_reason() -> None:
    why = "this kernel has no ipvlan"
    for status, word, sentence in (
        *((status, status, why) for status in ("unsupported", "isolated", "failed")),
        ("invalid", "no evidence", f"no evidence about ipvlan_l2: ipvlan_l2 has no valid measurement ({why}"),
    ):
        absent = ROW | {"topology": "ipvlan_l2", "arm": "ipvlan_l2", "status": status, "reason": why}
        result = verdicts.verdicts(pd.DataFrame([*rows(), absent])).set_index("topology")
        assert list(result["word"]) == ["faster", word]
        assert str(result.loc["ipvlan_l2", "sentence"]).startswith(sentence)
        assert result["ratio"].isna().tolist() == [False, True]
        assert not result["widened"].any()
        assert not result["disagree"].any()
        alone = verdicts.verdicts(pd.DataFrame([absent, absent | {"topology": "ipvlan_l3"}]))
        assert list(alone["word"]) == ["no evidence"] * 2, "no baseline was measured with it"
    reasons = [("failed", f"failure {name}") for name in "abc"] + [("unsupported", why)] * 2
    several = [
        ROW | {"topology": "ipvlan_l2", "status": status, "reason": reason} for status, reason in reasons
    ]
    line = verdicts.verdicts(pd.DataFrame([*rows(), *several])).set_index("topology").loc["ipvlan_l2"]
    assert (line["word"], line["sentence"]) in reasons, "the word and its reason are of one row"


def test_nothing_to_compare() -> None:
    for some in ([], rows({"veth_bridge": 1})):
        result = verdicts.verdicts(pd.DataFrame(some))
        assert result.empty
        assert list(result.columns) == [*verdicts.GROUP, *verdicts.VERDICTS]
        assert verdicts.ratios(pd.DataFrame(some)).empty
    assert verdicts.doubts(pd.DataFrame([])) == []


@pytest.mark.parametrize("name", [PROVENANCE[0], PROVENANCE[-1]])
def test_changed_host_is_refused(name: str) -> None:
    another: dict[str, Any] = {name: "another"}
    some = pd.DataFrame(rows(rounds=2) + rows(rounds=2, run="b", seed=2, **another))
    with pytest.raises(BadInput, match=f"differ in {name} are never pooled: .* and another"):
        verdicts.verdicts(some)
    some["where"] = np.where(some["run"].eq("b"), "vm:6.12", "here")
    assert len(verdicts.verdicts(some)) == 2


def test_unknown_provenance_is_a_doubt() -> None:
    some = rows(rounds=2) + rows(rounds=2, run="b", seed=2, iperf3=None, labkit="0.2.0", duration_s=9)
    lines = verdicts.doubts(pd.DataFrame(some))
    assert "iperf3 is not recorded in 72 of 144 rows: it may have differed" in lines
    assert "compared rows differ in labkit" in lines
    assert "compared rows differ in duration_s" in lines
    df = pd.DataFrame(row | {"flavour": "vanilla", "seed": 2**70} for row in rows()).drop(
        columns=["where", "machine", "doubts", "rate_bps", "steal_s"]
    )
    assert verdicts.verdicts(df)["word"].tolist() == ["faster"]
    assert any("machine is not recorded" in doubt for doubt in verdicts.doubts(df))


def test_baselines_are_not_mixed() -> None:
    other = rows({"veth": 1, "veth (again)": 1, "macvlan_bridge": 1.2}, run="b")
    with pytest.raises(BadInput, match="a group needs one baseline, not veth"):
        verdicts.verdicts(pd.DataFrame(rows() + other))
    with pytest.raises(BadInput, match="protocol=carrier pigeon cannot be compared"):
        verdicts.verdicts(pd.DataFrame(rows(protocol="carrier pigeon")))


def test_every_doubt_is_shown() -> None:
    some = rows(rounds=2, accelerator="tcg", steal_s=0.007)
    for row in some[::4]:
        row["doubts"] = "load was high; a flow began late"
    some[4]["offloads"] = "none"
    df = pd.DataFrame(some)
    df.attrs["unfinished"] = ["the run a is not finished"]
    lines = "\n".join(verdicts.doubts(df))
    for doubt in (
        "the run a is not finished",
        "1 comparison with 95 % intervals: if no arm differed from the baseline, chance would still put about 0.05 of"
        " them beside 1",
        "tcp, 1 pair, MTU 1500: fewer than 5 fresh set-ups",
        "a flow began late (veth_bridge: 12 of 48 rows; macvlan_bridge: 6 of 24 rows)",
        "load was high (veth_bridge: 12 of 48 rows; macvlan_bridge: 6 of 24 rows)",
        "steal: the hypervisor took 5 % of all CPU time, up to 5 %",
        "emulated CPU (TCG) in 72 of 72 rows",
        "compared rows differ in offloads of veth_bridge",
    ):
        assert doubt in lines
    assert verdicts.verdicts(df)["accelerator"].eq("tcg").all()


@pytest.mark.parametrize(("name", "one", "other"), [("mss_bytes", 500, 1000), ("affinity", None, "0,1")])
def test_different_parameters_are_judged_separately(name: str, one: object, other: object) -> None:
    some = [*rows(**{name: one}), *rows(run="b", **{name: other})]
    result = verdicts.verdicts(pd.DataFrame(some))
    assert len(result) == 2
    assert result["n_count"].tolist() == [60, 60]


def test_load(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", rows())
    df = load.load(folder)
    assert len(df) == 180
    assert set(df["folder"]) == {str(folder)}
    assert df["throughput_bps"].dtype == float
    assert df["parent"].isna().all()
    assert verdicts.verdicts(df)["word"].tolist() == ["faster"]
    assert not df.attrs
    save(tmp_path / "s" / "1", rows(run="1"))
    save(tmp_path / "s" / "2", rows(run="2", mtu_bytes=9000), finished=None)
    (tmp_path / "s" / "sweep.json").write_text(json.dumps({"points": ["1", "2", "3"]}))
    df = load.load(str(tmp_path / "s"))
    assert len(verdicts.verdicts(df)) == 2
    assert verdicts.doubts(df)[:2] == [
        "1 of 3 points of the sweep s are not measured yet",
        "the run 2 is not finished",
    ]
    assert load.load(save(tmp_path / "empty", [])).empty


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("run.json", None, "neither run.json nor sweep.json"),
        ("run.json", "{", "run.json cannot be read"),
        ("run.json", "[]", "run.json cannot be read: it does not contain a JSON object"),
        ("rows/1-r0.jsonl", '{"topology": "ve', "1-r0.jsonl"),
        ("rows/1-r0.jsonl", "[1]\n", "1-r0.jsonl"),
        ("rows/1-r0.jsonl", '{"point": "p", "topology": "a", "protocol": "tcp"}\n', "status has the invalid value"),
        ("rows/1-r0.jsonl", json.dumps(ROW | {"topology": "a", "pairs": "8"}) + "\n", "has the invalid value '8'"),
        ("rows/1-r0.jsonl", json.dumps(ROW | {"topology": "a", "cpu_s": 10**400}) + "\n", "an integer too large"),
    ],
)  # fmt: skip
def test_half_written_is_refused(tmp_path: Path, file: str, content: str | None, says: str) -> None:
    folder = save(tmp_path / "a", rows())
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(BadInput) as error:
        load.load(folder)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("rounds", "value"), [(1, 168e3), (2, 0.0), (5, 168e3)])
def test_starved_slice_does_not_decide_alone(rounds: int, value: float) -> None:
    """Also of few set-ups, with Student's t. A slice with one datagram used to make it [2e-47, 5e+36]."""
    result = verdict(starve(rows(rounds=rounds, slices=6), 1, value=value))
    assert 1.1 < result["ratio"] < 1.25
    assert result["low"] is None or math.isnan(result["low"]) or 0.5 < result["low"] < result["high"] < 2.5
    assert result["n_count"] == 6 * rounds, "starvation counts"


def test_a_short_time_is_no_starvation() -> None:
    """In two runs of ten, round trips took 5 µs, as within one CPU, and 1 ms in the others."""
    some = rows(slices=0, rounds=10, whole=10, protocol="ping", throughput_bps=None)
    own = [row for row in some if row["arm"] == "macvlan_bridge"]
    for row in own[:2]:
        row["latency_p50_s"] = 5e-6
    mean = np.exp(np.mean(np.log([row["latency_p50_s"] for row in own])))
    assert verdict(some)["ratio"] == pytest.approx(mean / 1e-3, rel=0.02)
    assert not any("almost nothing arrived" in doubt for doubt in verdicts.doubts(pd.DataFrame(some)))


def test_starved_slices_and_runs_count() -> None:
    fed, starved = (verdict(starve(rows(noise=0.1), count))["ratio"] for count in (0, 14))
    assert starved < fed
    result = verdict(starve(rows(slices=0, whole=9, rounds=9), 1))
    assert 0.9 < result["low"] < 1.2 < result["high"] < 1.5


def test_contradicting_medians_are_explained() -> None:
    """The machine runs at half speed in most of the arm's rounds, in which the baseline has few measurements.

    So the medians say faster, and the pairs say slower.
    """
    some = rows({"veth": 1.0, "veth (again)": 1.0, "macvlan_bridge": 0.9}, noise=0.005, rounds=6)
    assert verdicts.contradicting_medians(pd.DataFrame(some)) == []
    for row in some:
        row["throughput_bps"] *= 2.0 ** row["round"]
    left_out = [row for row in some if row["arm"].startswith("veth") and row["round"] > 3]
    for row in left_out:
        row |= {"status": "failed", "reason": "it broke"}
    [sentence] = verdicts.contradicting_medians(pd.DataFrame(some))
    assert "the medians of macvlan_bridge and veth alone give the ratio 1.8" in sentence
    assert "The verdict uses ratio 0.89" in sentence


def recorded_regimes(rounds: range) -> list[Row]:
    """Return rows of a recorded comparison of one UDP flow: bridge, bridge again and macvlan, twelve slices a round."""
    table = pd.read_csv(ROOT / "tests/samples/udp_one_pair_slices.csv.gz")
    of_arm = {"veth_bridge": "baseline", "veth_bridge_again": "control", "macvlan_bridge": "variant"}
    return [
        ROW
        | {"protocol": "udp", "method": "slice", "round": one["round"], "slice": one["slice"]}
        | {"role": of_arm[one["arm"]], "topology": one["arm"].removesuffix("_again"), "arm": one["arm"]}
        | {"throughput_bps": one["throughput_bps"], "cpu_s": one["cpu_s"], "point": str(one["round"])}
        for one in table[table["round"].isin(rounds)].to_dict("records")
    ]


def wandering(some: list[Row]) -> list[str]:
    """Return the doubts about ratios that differ between set-ups."""
    return [one for one in verdicts.doubts(pd.DataFrame(some)) if "varies between set-ups" in one]


@pytest.mark.long
def test_wandering_ratio_is_explained_by_the_busy_cpus() -> None:
    one_pair = recorded_regimes(range(75))
    [sentence] = wandering(one_pair)
    assert "the ratio of macvlan_bridge to veth_bridge varies between set-ups, from 0.9" in sentence
    fewer, more = map(float, re.findall(r"(?:is|and) ([\d.]+) where", sentence))
    assert 1.3 < fewer < 1.45
    assert 1.0 < more < 1.15
    assert "affinity=0,1" in sentence
    # All points of a run have the same rounds. With eight pairs, both CPUs are always busy.
    eight = [row | {"pairs": 8, "cpu_s": 2 * row["window_s"], "throughput_bps": 1e9} for row in one_pair]
    assert wandering([*one_pair, *eight]) == [sentence]
    placed = [row | {"placement": "balanced"} for row in one_pair]
    assert "it depends on how many CPUs the flows keep busy" in wandering(placed)[0]
    [sentence] = wandering([row | {"cpu_s": 0.1} for row in one_pair])
    assert "no recorded property of the machine explains it" in sentence
    assert wandering(rows(noise=0.1, cpu_s=0.1)) == []
    assert wandering(recorded_regimes(range(15, 20))) == []


@pytest.mark.parametrize(
    ("other", "places"),
    [
        ({"protocol": "udp", "mtu_bytes": 9000, "pairs": 4}, "tcp, 1 pair, MTU 1500; udp, 4 pairs, MTU 9000"),
        ({"mtu_bytes": 9000, "pairs": 4}, "tcp (1 pair, MTU 1500; 4 pairs, MTU 9000)"),
        ({}, "tcp, 1 pair, MTU 1500"),
    ],
)
def test_places_of_one_doubt_have_their_common_part_once(other: dict[str, Any], places: str) -> None:
    lines = verdicts.doubts(pd.DataFrame(rows(rounds=2) + rows(rounds=2, **other)))
    assert any(line.startswith(f"{places}: fewer than 5 fresh set-ups") for line in lines)


def test_slices_that_labkit_placed_have_a_narrower_interval() -> None:
    """Five set-ups that the scheduler placed may all be in one regime."""

    def line(placement: str | None, of_last: str | None) -> Any:
        some = [row | {"placement": placement} for row in recorded_regimes(range(5))]
        some[-1] = some[-1] | {"placement": of_last}
        [result] = verdicts.verdicts(pd.DataFrame(some)).to_dict("records")
        return result

    placed, partly, scheduled = line("0,1", "0,1"), line("0,1", None), line(None, None)
    assert placed["ratio"] == partly["ratio"] == scheduled["ratio"]
    assert partly["high"] == scheduled["high"] > placed["high"]
    assert scheduled["control_high"] > placed["control_high"]
    widths = [np.log(one["high"] / one["low"]) for one in (scheduled, placed)]
    assert widths[0] / widths[1] == pytest.approx(stdtrit(4 - stats.LOST_FREEDOM, 0.975) / stdtrit(4, 0.975))


def test_doubts_come_by_weight() -> None:
    """What contradicts a verdict precedes what is about many rows, and that what is about few."""
    some = rows(whole=4)
    for place, row in enumerate(some):
        row["doubts"] = "; ".join(["everywhere"] + ["seldom"] * (place == 7))
        if row["method"] == "whole" and row["role"] == "variant":
            row["throughput_bps"] /= 1.5
    lines = verdicts.doubts(pd.DataFrame(some))
    of = ["contradict", "everywhere", "seldom", "chance would still"]
    places = [next(place for place, line in enumerate(lines) if words in line) for words in of]
    assert places == sorted(places), lines
    assert places[-1] == len(lines) - 1


def test_busy_machine_is_reported_once() -> None:
    """Only the first run of each machine counts: before later ones, the kernel still cleans up after earlier runs."""
    early, late, in_vm = ({"time": f"2026-11-21T{hour}:00:00Z"} for hour in ("07", "08", "06"))
    words = "a busy machine: in the half second before the first run 1.2 of its 2 CPUs were busy"

    def report(*runs: list[Row]) -> list[str]:
        result = conditions.busy(load.complete(pd.DataFrame([row for each in runs for row in each])))
        return [doubt.partition(words)[0] for doubt in result]

    high, low = {"busy_before_share": 0.6}, {"busy_before_share": 0.2}
    for given, heads in (({"load1": 9.0}, []), (high, [""])):  # a run's own load is in load1
        told = verdicts.doubts(pd.DataFrame(rows(**given)))
        assert [one.partition(words)[0] for one in told if "busy" in one] == heads
    assert report(rows(**low)) == []
    assert report(rows(**late, **high), rows(run="b", seed=2, **early, **low)) == []
    assert report(rows(**late, **low), rows(run="b", seed=2, **early, **high)) == [""]
    other: dict[str, Any] = {"run": "b", "machine": "m2", "cpu": "Another CPU"}
    assert report(rows(**early, **low), rows(**late, **high, **other)) == [
        "Linux 6.1.0, machine m2, Another CPU: "
    ]
    vm: dict[str, Any] = {"run": "b", "where": "vm:6.1", "accelerator": "tcg"}
    assert report(rows(**high, **vm)) == [], "nobody else has work in a lab VM"
    assert report(rows(**high, **late), rows(**low, **in_vm, **vm)) == [], "a lab VM is load of its machine"


def test_doubts_differing_in_numbers_are_merged() -> None:
    some, words = rows(), "the hypervisor took away %s of the CPU time"
    for place, share in ((2, "21 %"), (5, "5.6 %"), (8, "21 %")):
        some[place]["doubts"] = words % share
    report = [doubt for doubt in verdicts.doubts(pd.DataFrame(some)) if "took away" in doubt]
    assert report == [f"macvlan_bridge: for example, {words % '21 %'} (in 3 of 60 rows)"]


CLASSES = {
    "compared": "topology endpoint change without_effect",
    "how it is measured": "duration_s omit_s rounds slices whole_runs half_width placement seed",
    "observed": "observe profile_rounds events sample_hz keep_perf_data events_of functions graph_functions probe"
    " tracepoint slow_function slow_s",
}
OF_OTHERS = "load ends_on frame flows_count vlan burst_frames loss_goal_ratio load_pps mult"


def test_every_parameter_is_classified() -> None:
    parameters = set(verdicts.GROUP) - {*RAN_ON, *PEER_RAN_ON, *OF_OTHERS.split()}
    classes = {name for names in CLASSES.values() for name in names.split()}
    assert set(DatapathParameters.__struct_fields__) == parameters | classes
