"""Two runs compared point by point: a common baseline cancels drift, and incomparable runs are rejected."""

import functools
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_rows import PREPARED, Row, rows, save

from labkit.analysis import verdicts
from labkit.analysis.compare_runs import COLUMNS, compare
from labkit.analysis.load import GROUP, PROVENANCE
from labkit.common.errors import BadInput

ALONE = {"veth_bridge": 1.0}


def drifted(some: list[Row], factor: float) -> list[Row]:
    """Return the same rows on a machine that is `factor` times as fast today."""
    return [row | {"throughput_bps": row["throughput_bps"] * factor} for row in some]


def compared(tmp_path: Path, left: list[Row], right: list[Row]) -> tuple[Any, Callable[[], str]]:
    """Return the comparison by topology, and a function that returns all doubts as one text."""
    table, doubts = compare(save(tmp_path / "monday", left), save(tmp_path / "tuesday", right))
    return table.set_index("topology"), functools.cache(lambda: "\n".join(doubts()))


def test_common_baseline_cancels_drift(tmp_path: Path) -> None:
    table, doubts = compared(tmp_path, rows(rounds=8), drifted(rows(rounds=8, seed=4), 0.95))
    arm, baseline = table.loc["macvlan_bridge"], table.loc["veth_bridge"]
    assert (arm["word"], arm["how"]) == ("no difference beyond 5 %", "Welch's t over 8 and 8 set-ups")
    assert (arm["ratio"], arm["relative_ratio"]) == pytest.approx((0.95, 1), rel=0.01)
    assert arm["sentence"].startswith(
        "tcp, 1 pair, MTU 1500: no difference beyond 5 % between"
        " macvlan_bridge to veth_bridge in tuesday and in monday: ratio "
    )
    assert baseline["word"] == "no evidence"  # drift alone can cause 5 %
    assert math.isnan(baseline["relative_ratio"])
    assert (baseline["left_setups_count"], baseline["method"]) == (8, "slice")
    assert baseline["left_median"] == pytest.approx(1e10, rel=0.01)
    assert "1 of 2 points have no common baseline: 2 to 5 % of drift between runs is normal" in doubts()
    assert "not interleaved" in doubts()


def test_plain_ratio_needs_more_than_drift(tmp_path: Path) -> None:
    words = {}
    for factor in (1.03, 1.2, 0.8):
        right = drifted(rows(ALONE, rounds=8, seed=4), factor)
        table, _ = compared(tmp_path / str(factor), rows(ALONE, rounds=8), right)
        words[factor] = table.loc["veth_bridge", "word"]
        assert "widened by 5 % for the drift" in str(table.loc["veth_bridge", "how"])
    assert words == {1.03: "no evidence", 1.2: "faster", 0.8: "slower"}


@pytest.mark.parametrize(
    ("ratio", "noise", "word"),
    [(1.22, 0.01, "no difference beyond 5 %"), (1.245, 0.05, "no evidence"), (1.3, 0.01, "faster")],
)
def test_small_differences_may_be_drift(tmp_path: Path, ratio: float, noise: float, word: str) -> None:
    """An interval beside 1 is no difference if it is within the margin, and may be drift if its ratio is within 5 %."""
    quiet: dict[str, Any] = {"rounds": 8, "noise": noise}
    table, _ = compared(tmp_path, rows(**quiet), rows(PREPARED | {"macvlan_bridge": ratio}, seed=4, **quiet))
    line = table.loc["macvlan_bridge"]
    assert line["relative_low"] > 1
    assert line["word"] == word
    assert ("two runs drift by up to 5 %" in line["sentence"]) == (word == "no evidence")
    assert "differs from itself" not in line["sentence"]


def test_conditions_of_arms_that_differ_are_doubts(tmp_path: Path) -> None:
    placed, free = (
        rows(rounds=8, whole=2, placement=None, offloads=offloads, seed=seed)
        for offloads, seed in (("tso", 3), ("tso gro", 4))
    )
    for row in placed:
        if row["method"] == "slice":
            row["placement"] = f"{row['slice'] % 2},{row['slice'] // 2 % 2}"
    table, doubts = compared(tmp_path, placed, free)
    assert "monday and tuesday differ in placement: by labkit and by the scheduler" in doubts()
    assert "monday and tuesday differ in offloads of macvlan_bridge: tso and tso gro" in doubts()
    same, doubts = compared(tmp_path / "same", placed, [row | {"seed": 9} for row in placed])
    assert "differ in" not in doubts()
    assert len(table) == len(same) == 2


def test_latency_is_better_when_lower(tmp_path: Path) -> None:
    ping: dict[str, Any] = {"protocol": "ping", "slices": 0, "whole": 8, "rounds": 8}
    table, _ = compared(tmp_path, rows(**ping), rows(PREPARED | {"macvlan_bridge": 0.9}, seed=4, **ping))
    assert (table.loc["macvlan_bridge", "word"], table.loc["macvlan_bridge", "method"]) == ("faster", "whole")


@pytest.mark.parametrize(
    ("control", "rounds", "says"),
    [
        ({"veth_bridge (again)": 1.2}, 8, "widened because the baseline in tuesday differs from itself"),
        ({}, 8, "in tuesday veth_bridge was not measured twice"),
        ({"veth_bridge (again)": 1.0}, 1, "one of the two runs has a single set-up, so there is no interval"),
    ],
)
def test_no_evidence(tmp_path: Path, control: dict[str, float], rounds: int, says: str) -> None:
    right = rows({"veth_bridge": 1.0, "macvlan_bridge": 1.2} | control, rounds, seed=4)
    table, _ = compared(tmp_path, rows(rounds=8), right)
    assert table.loc["macvlan_bridge", "word"] == "no evidence"
    assert says in str(table.loc["macvlan_bridge", "sentence"])


@pytest.mark.parametrize(
    ("left", "right", "why"),
    [
        ({"latency_p50_s": 1e-3}, {"latency_p50_s": None, "lost_count": 9}, "too many round trips were lost"),
        ({}, {"slices": 4, "whole": 0}, "different methods: slices on one side"),
    ],
)
def test_nothing_to_compare_has_a_reason(
    left: dict[str, Any], right: dict[str, Any], why: str, tmp_path: Path
) -> None:
    usual: dict[str, Any] = {"protocol": "ping", "slices": 0, "whole": 3, "rounds": 3}
    with pytest.raises(BadInput, match=f"{why}.*: nothing to compare"):
        compared(tmp_path, rows(**usual | left), rows(seed=4, **usual | right))


@pytest.mark.parametrize("arm", ["macvlan_bridge", "veth_bridge (again)"])
def test_requests_in_two_groups_are_no_evidence(arm: str, tmp_path: Path) -> None:
    """As within a run: the mean of round trips on one CPU and on two describes neither."""
    requests: dict[str, Any] = {"protocol": "udp_rr", "slices": 0, "whole": 8, "rounds": 8}
    requests |= {"transaction_rate": 1e4}
    left, right = rows(**requests), rows(PREPARED | {"macvlan_bridge": 3.0}, seed=4, **requests)
    assert compared(tmp_path / "one", left, right)[0].loc["macvlan_bridge", "word"] == "slower"
    for row in right:
        row["latency_p50_s"] *= 12 if row["arm"] == arm and row["round"] % 2 else 1
    line = compared(tmp_path / "two", left, right)[0].loc["macvlan_bridge"]
    assert line["word"] == verdicts.verdicts(pd.DataFrame(right)).iloc[0]["word"] == "no evidence"
    assert re.search(
        r"in tuesday a round trip took [\d.]+ ms in \d+ of \d+ runs and .* in the others", line["why"]
    )


GUESTS = {"endpoint": "guest", "guest_kernel": "6.1.0"}


@pytest.mark.parametrize(
    ("name", "own"), [(PROVENANCE[0], {}), (PROVENANCE[-1], {}), ("guest_kernel", GUESTS)]
)
def test_other_machines_and_guests_are_refused(tmp_path: Path, name: str, own: dict[str, Any]) -> None:
    words = f"monday and tuesday are not comparable because they differ in {name}: .* and another"
    with pytest.raises(BadInput, match=words):
        compared(tmp_path, rows(rounds=2, **own), rows(rounds=2, **own | {name: "another"}))


def test_nothing_in_common_is_refused(tmp_path: Path) -> None:
    left, right = rows(rounds=2), rows({"loopback": 1}, rounds=2, mtu_bytes=9000)
    for name, other, words in (
        (
            "a",
            right,
            r"no point in common: they differ in mtu_bytes \(1500 and 9000\), topology \(veth_bridge",
        ),
        ("b", rows(rounds=2, slices=0, whole=2), "slices on one side, whole runs on the other"),
        ("c", [row | {"status": "failed"} for row in right], "no valid measurement"),
    ):
        with pytest.raises(BadInput, match=words):
            compared(tmp_path / name, left, other)
    with pytest.raises(BadInput, match="there is no run folder"):
        compare(tmp_path / "a" / "monday", tmp_path / "never")


def test_doubts_of_both_runs(tmp_path: Path) -> None:
    right = rows(rounds=2, labkit="0.2.0", doubts="load was high") + rows({"loopback": 1}, rounds=2, pairs=8)
    _, doubts = compared(tmp_path, rows(), right)
    for doubt in (
        "monday and tuesday differ in labkit: 0.1.0 and 0.2.0",
        "1 of 3 points are in tuesday only: loopback (tcp, 8 pairs, MTU 1500)",
        "tuesday: load was high (veth_bridge: 48 of 48 rows; macvlan_bridge: 24 of 24 rows)",
        "2 of 2 points have fewer than 5 fresh set-ups on a side",
    ):
        assert doubt in doubts()


@pytest.mark.parametrize("name", ["throttled_share", "steal_s"])
def test_what_one_run_did_not_record_explains_nothing(name: str, tmp_path: Path) -> None:
    left = taken(rows(ALONE, rounds=9), name, [None])
    right = taken(drifted(rows(ALONE, rounds=9, seed=4), 0.88), name, [0.1])
    assert compared(tmp_path, left, right)[0].loc["veth_bridge", "word"] == "slower"


def test_a_quota_at_one_of_many_points_explains_that_point_alone(tmp_path: Path) -> None:
    """Throttled for 30 % of the time, one point of eight is slower: a mean of 4 % would not explain it."""
    both = []
    for seed, factor, share in ((1, 1.0, 0.0), (100, 0.7, 0.3)):
        made = [row for pairs in range(1, 9) for row in rows(ALONE, rounds=8, seed=seed + pairs, pairs=pairs)]
        for row in made:
            throttled = row["pairs"] == 8
            row["throttled_share"] = share * throttled
            row["throughput_bps"] *= factor if throttled else 1.0
        both.append(made)
    why = compared(tmp_path, *both)[0].set_index("pairs")["why"].dropna()
    assert why.to_dict() == {
        8: "a CPU quota stopped the load for 0 % of the time in monday and 30 % in tuesday"
    }


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("changed", "changed of new: sysctl tcp_sack=0 (server) and sysctl tcp_timestamps=0 (server)"),
        ("network", "network of a: tcp_sack and tcp_timestamps"),
    ],
)
def test_arms_of_one_name_that_are_not_the_same_are_doubts(name: str, shown: str, tmp_path: Path) -> None:
    """A change and a network of one's own have a name, which says nothing about what they are."""
    both = []
    for seed, setting in ((1, "tcp_sack"), (2, "tcp_timestamps")):
        effect = {"at": "server", "kind": "sysctl", "setting": setting, "before": "1", "after": "0"}
        made = rows({"a": 1.0, "a (again)": 1.0, "a+new": 1.0}, rounds=6, seed=seed)
        for row in made:
            if row["arm"] == "a+new":
                row |= {"change": "new", "topology": "a", "changed": [effect]}
            if name == "network":
                row |= {"changed": None, "network": setting}
        both.append(made)
    assert f"monday and tuesday differ in {shown}" in compared(tmp_path, *both)[1]()


@pytest.mark.parametrize(("speed", "word"), [(0.075, "slower"), (0.15, "no difference beyond 5 %")])
def test_a_change_of_two_topologies_is_compared_by_its_effects(
    speed: float, word: str, tmp_path: Path
) -> None:
    """Both runs call the changed arm `tso`: it halves the bridge's speed, and leaves a quarter or a half of VXLAN's."""
    both = []
    for seed, (topology, usual, changed) in enumerate((("veth_bridge", 1.0, 0.5), ("vxlan", 0.3, speed))):
        arms = {topology: usual, f"{topology} (again)": usual, f"{topology}+tso": changed}
        made = rows(arms, rounds=8, seed=seed)
        changes = {"change": "tso", "topology": topology}
        both.append([row | changes if "+" in row["arm"] else row for row in made])
    table, doubts = compared(tmp_path, *both)
    [arm] = table.reset_index().to_dict("records")
    assert (arm["topology"], arm["baseline"], arm["change"]) == ("tso on vxlan", "tso on veth_bridge", "tso")
    assert arm["word"] == word
    assert arm["judged_ratio"] == pytest.approx(speed / 0.3 / 0.5, rel=0.02)
    said = {
        "slower": "tso slows down vxlan in tuesday more than veth_bridge in monday, or speeds it up less: both",
        "no difference beyond 5 %": f"{word} between tso on vxlan in tuesday and tso on veth_bridge in monday: ",
    }
    assert f"MTU 1500: {said[word]}" in arm["sentence"]
    assert "monday and tuesday differ in unchanged arm of tso: veth_bridge and vxlan" in doubts()


def test_a_changed_baseline_that_two_runs_share_is_a_baseline(tmp_path: Path) -> None:
    """As in latency_under_load preset=bloat, whose arms are queueing disciplines. The topologies differ."""
    both = []
    for seed, topology in enumerate(("veth_bridge", "veth")):
        arms = {
            f"{topology}+pfifo": 1.0,
            f"{topology}+pfifo (again)": 1.0,
            f"{topology}+fq": 0.5 / (1 + seed),
        }
        made = rows(arms, rounds=8, seed=seed)
        both.append(
            [row | {"change": row["arm"].split("+")[1].split()[0], "topology": topology} for row in made]
        )
    table, _ = compared(tmp_path, *both)
    fq = table.reset_index().set_index("topology").loc["fq"]
    assert (fq["baseline"], fq["change"], fq["word"]) == ("pfifo", None, "slower")
    assert "fq to pfifo in tuesday is 50 % slower than in monday" in fq["sentence"]


def test_sweeps(tmp_path: Path) -> None:
    """Two points of a sweep may differ in nothing that is compared; they are no runs of their own."""
    points = {"1500": 1500, "again": 1500, "9000": 9000}
    for name in ("a", "b"):
        for seed, (point, mtu) in enumerate(points.items()):
            save(tmp_path / name / point, rows(run=name, mtu_bytes=mtu, seed=seed))
        (tmp_path / name / "sweep.json").write_text(json.dumps({"points": list(points)}))
    table, _ = compare(str(tmp_path / "a"), tmp_path / "b")
    assert list(table.columns) == [*GROUP, *COLUMNS]
    assert sorted(table["mtu_bytes"]) == [1500, 1500, 9000, 9000]
    assert table["ratio"].tolist() == pytest.approx([1.0] * 4)
    assert table["how"].str.contains("set-ups").all()
    itself, _ = compare(tmp_path / "a", tmp_path / "a")
    assert not itself["word"].isin(["faster", "slower"]).any()


def taken(some: list[Row], name: str, values: Sequence[float | None]) -> list[Row]:
    """Return the same rows with these values of a column, one for each round in turn."""
    return [row | {name: values[row["round"] % len(values)]} for row in some]


OTHERS = [0.05, 0.06, 0.055]
TAKEN = {
    "host_foreign_share": "of all CPU time in monday and 5.5 % in tuesday",
    "throttled_share": "a CPU quota stopped the load for 0 % of ",
    "steal_s": "the hypervisor took 0 % of ",
}


@pytest.mark.parametrize(
    ("name", "values", "factor", "word"),
    [
        ("host_foreign_share", OTHERS, 0.88, "no evidence"),
        ("host_foreign_share", OTHERS, 1.15, "faster"),  # other programs do not make it faster
        ("host_foreign_share", OTHERS, 0.5, "slower"),  # a twentieth of the CPU time does not halve a speed
        (
            "host_foreign_share",
            [0.0, 0.0, 0.05],
            0.88,
            "slower",
        ),  # rounds do not show that the runs differ in it
        ("throttled_share", [0.1], 0.88, "no evidence"),
        ("throttled_share", [0.1], 1.15, "faster"),
        ("throttled_share", [0.1], 0.5, "slower"),
        ("steal_s", [0.1 * 2 * 0.07], 0.88, "no evidence"),
        ("steal_s", [0.1 * 2 * 0.07], 0.5, "slower"),
    ],
)
def test_cpu_time_that_one_run_lacked(
    name: str, values: list[float], factor: float, word: str, tmp_path: Path
) -> None:
    """What takes CPU time makes a run slower, by no more than it took, and never faster."""
    left = taken(rows(ALONE, rounds=9, throttled_share=0.0), "host_foreign_share", [0.002, 0.004])
    right = taken(drifted(rows(ALONE, rounds=9, seed=4), factor), name, values)
    table, doubts = compared(tmp_path, left, right)
    line = table.loc["veth_bridge"]
    assert line["word"] == word
    assert (TAKEN[name] in f"{line['sentence']} {line['why']}") == (word == "no evidence")
    is_said = "tuesday: other processes took 5.5 % of all CPU time, up to 6 % in a round" in doubts()
    assert is_said == (values is OTHERS)
    assert "monday: other processes took" not in doubts()
