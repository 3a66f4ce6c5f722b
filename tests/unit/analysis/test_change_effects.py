"""What a change does to each topology, against its own unchanged arm and against another topology."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_rows import Row, rows, save

from labkit.analysis import answer, change_effects, compare_runs, figures, load, verdicts

# GRO matters twice as much for vxlan as for the bridge.
ARMS = {
    "veth_bridge": 1.0,
    "veth_bridge (again)": 1.0,
    "veth_bridge+gro": 1.2,
    "vxlan": 0.5,
    "vxlan+gro": 1.2,
}


def changed_rows(ratios: dict[str, float] = ARMS, **given: Any) -> list[Row]:
    """Return rows of two topologies, each with and without the change gro."""
    return [
        row | ({"change": "gro", "topology": row["topology"].split("+")[0]} if "+" in row["arm"] else {})
        for row in rows(ratios, **given)
    ]


def with_equal_arm(some: list[Row], unchanged: str) -> list[Row]:
    """Return the rows with one of the changed arm of a topology, which says that it equals the unchanged arm."""
    arm, why = f"{unchanged}+gro", f"it equals {unchanged} by construction"
    equal = next(row for row in some if row["arm"] == arm)
    others = [row for row in some if row["arm"] != arm]
    return [*others, equal | {"status": "equal", "reason": why, "throughput_bps": None}]


def loaded(tmp_path: Path, some: list[Row], name: str = "run") -> pd.DataFrame:
    return load.load(save(tmp_path / name, some))


def judged(table: pd.DataFrame) -> dict[tuple[str, str], Any]:
    result = change_effects.change_verdicts(table)
    return {(line["topology"], line["baseline"]): line for _, line in result.iterrows()}


@pytest.mark.parametrize(("slices", "whole"), [(12, 0), (0, 5), (12, 5)])
def test_change_is_compared_with_its_own_topology_and_with_another(
    tmp_path: Path, slices: int, whole: int
) -> None:
    found = judged(loaded(tmp_path, changed_rows(slices=slices, whole=whole)))
    assert set(found) == {("vxlan+gro", "vxlan"), ("gro on vxlan", "gro on veth_bridge")}
    own, both = found.values()
    assert own["word"] == both["word"] == "faster"
    assert own["low"] < 1.2 / 0.5 < own["high"]
    assert both["low"] < 2 < both["high"]
    assert both["sentence"].startswith("gro speeds up vxlan more than veth_bridge, or slows it down less: ")


def test_ping_is_better_if_its_ratio_is_smaller(tmp_path: Path) -> None:
    found = judged(loaded(tmp_path, changed_rows(protocol="ping", throughput_bps=None)))
    both = found["gro on vxlan", "gro on veth_bridge"]
    assert both["word"] == "slower"
    assert both["sentence"].startswith("gro slows down vxlan more than veth_bridge, or speeds it up less: ")


@pytest.mark.parametrize(("unchanged", "ratio"), [("veth_bridge", 1.2 / 0.5), ("vxlan", 1 / 1.2)])
def test_arm_that_equals_its_unchanged_arm_counts_as_one(
    unchanged: str, ratio: float, tmp_path: Path
) -> None:
    table = loaded(tmp_path, with_equal_arm(changed_rows(), unchanged))
    both = judged(table)["gro on vxlan", "gro on veth_bridge"]
    assert both["low"] < ratio < both["high"]
    every = change_effects.all_verdicts(table)
    said = [one for one in answer.answer(every) if f"{unchanged}+gro is equal by construction" in one]
    assert [f" against {unchanged}: " in one for one in said] == [True]


def test_equal_arm_of_the_only_topology_equals_the_baseline(tmp_path: Path) -> None:
    some = [row for row in changed_rows() if "vxlan" not in row["arm"]]
    table = loaded(tmp_path, with_equal_arm(some, "veth_bridge"))
    [said] = answer.answer(change_effects.all_verdicts(table))
    assert said.startswith("TCP throughput against veth_bridge: ")
    assert said.endswith(" is equal by construction")


def test_a_third_arm_that_starves_says_nothing_about_a_change(tmp_path: Path) -> None:
    """Almost nothing arrived at `a_slow` in a third of its slices, and its rows come first."""
    some = changed_rows({"veth_bridge": 1.0, "veth_bridge (again)": 1.0, "a_slow": 1.0} | ARMS)
    for row in some:
        if row["arm"] == "a_slow" and row["slice"] % 3 == 0:
            row["throughput_bps"] = 1e3
    found = judged(loaded(tmp_path, some))
    assert found["gro on vxlan", "gro on veth_bridge"]["word"] == "faster"


@pytest.mark.long
def test_nothing_is_claimed_about_nothing(tmp_path: Path) -> None:
    claims = 0
    for seed in range(12):
        table = loaded(tmp_path, changed_rows(dict.fromkeys(ARMS, 1.0), seed=seed), str(seed))
        claims += sum(not line["word"].startswith("no ") for line in judged(table).values())
    assert claims <= 4  # of 24; 95 % intervals allow 1.2, and more than 4 have a probability of 1 in 100


def test_one_topology_has_no_such_verdicts(tmp_path: Path) -> None:
    arms = {name: ratio for name, ratio in ARMS.items() if name.startswith("veth")}
    table = loaded(tmp_path, changed_rows(arms))
    assert not len(change_effects.change_verdicts(table))
    pd.testing.assert_frame_equal(change_effects.all_verdicts(table), verdicts.verdicts(table))


def test_names_of_own_networks_are_no_grammar(tmp_path: Path) -> None:
    """Two networks of a person's own, whose names have the words that labkit puts between names."""
    own = {"veth_bridge": "rack on hill", "vxlan": "lab to attic"}
    text = json.dumps(changed_rows())
    for usual, name in own.items():
        text = text.replace(usual, name)
    table = loaded(tmp_path, json.loads(text))
    assert set(judged(table)) == {
        ("lab to attic+gro", "lab to attic"),
        ("gro on lab to attic", "gro on rack on hill"),
    }
    sentences = [line["sentence"] for line in judged(table).values()]
    assert sentences[0].startswith("lab to attic+gro is ")
    assert sentences[1].startswith("gro speeds up lab to attic more than rack on hill, or ")
    labels = figures.forest(change_effects.all_verdicts(table)).layout.yaxis.ticktext
    assert [label.split("<br>")[0] for label in labels][:3] == [
        "lab to attic",
        "lab to attic+gro",
        "rack on hill+gro",
    ]


def test_figure_names_both_arms(tmp_path: Path) -> None:
    figure = figures.forest(change_effects.all_verdicts(loaded(tmp_path, changed_rows())))
    assert figure.layout.xaxis.title.text == "ratio (log scale)"  # not all are to veth_bridge
    labels = figure.layout.yaxis.ticktext
    assert {label.split("<br>")[0] for label in labels} == {
        "vxlan", "veth_bridge+gro", "vxlan+gro", "vxlan+gro to vxlan", "gro on vxlan to veth_bridge",
    }  # fmt: skip


def test_two_runs_compare_what_the_change_does(tmp_path: Path) -> None:
    more = ARMS | {"vxlan+gro": 0.6}
    paths = [save(tmp_path / name, changed_rows(of)) for name, of in (("old", ARMS), ("new", more))]
    table, _ = compare_runs.compare(*paths)
    one = table.set_index("topology").loc["gro on vxlan"]
    assert (one["baseline"], one["word"]) == ("gro on veth_bridge", "slower")
    assert one["relative_low"] < 0.5 < one["relative_high"]
    assert pd.isna(one["left_median"])
