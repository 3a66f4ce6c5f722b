"""Which part of a datagram's cost differs between arms: planted differences are found, and no others."""

import numpy as np
import pandas as pd
import pytest
import synthetic_packet_sizes

from labkit.analysis import load
from studies.packet_size import cost_comparison, cost_model
from studies.packet_size import finding as packet_size
from studies.packet_size.cost_comparison import Comparison


def reports(count: int, arms: dict[str, tuple[float, float, float]]) -> list[list[Comparison]]:
    """Return the comparisons of this many reports, each with five rounds of the same arms."""
    parts = [
        synthetic_packet_sizes.rows(rounds=5, seed=seed, arms=arms, places=1, where=f"vm:{seed}")
        for seed in range(count)
    ]
    # Keep one cost only. The other has the same numbers, because both CPUs are always busy.
    result = cost_model.curves(pd.concat(parts, ignore_index=True).assign(cpu_s=np.nan))
    by_report: dict[load.Key, list[cost_model.Curve]] = {}
    for curve in result:
        by_report.setdefault(curve.key, []).append(curve)
    assert len(by_report) == count
    return [cost_comparison.comparisons(some) for some in by_report.values()]


def named(report: list[Comparison]) -> set[tuple[str, str]]:
    return {
        (one.curve.arm, part)
        for one in report
        for part in one.parts
        if one.word(part) in ("more expensive", "cheaper")
    }


@pytest.mark.long
def test_false_alarm_rate_of_reports() -> None:
    result = reports(200, dict.fromkeys(("veth", "veth (again)", "one", "two"), synthetic_packet_sizes.NONE))
    assert sum(len(one.parts) for one in result[0]) == 2 * 4
    alarms_count = sum(bool(named(report)) for report in result)
    # 26 of 400 seeds raise an alarm, 6.5 %. With a true rate of 5 %, one in six hundred choices of seeds would be
    # outside the bounds. No alarm at all would be as wrong as too many.
    assert 0.005 * len(result) < alarms_count <= 0.1 * len(result)


@pytest.mark.long
def test_planted_differences_are_found_in_five_rounds() -> None:
    result = [named(report) for report in reports(50, synthetic_packet_sizes.ARMS)]
    for planted in (("veth_bridge", "fragment"), ("vxlan", "byte")):
        assert sum(planted in report for report in result) >= 0.9 * len(result)


def test_only_the_planted_part_differs() -> None:
    """A step at fragmentation is not taken for a cost per byte, nor a cost per byte for a fixed cost."""
    curves = cost_model.curves(synthetic_packet_sizes.rows(rounds=10))
    words = {
        (one.curve.arm, part): one.word(part)
        for one in cost_comparison.comparisons(curves)
        if one.curve.cost == "time_per_packet_s"
        for part in cost_model.PARTS
    }
    assert {key for key, word in words.items() if word == "more expensive"} == {
        ("veth_bridge", "fragment"),
        ("vxlan", "byte"),
    }
    assert set(words.values()) == {"more expensive", cost_comparison.SAME}
    *lines, judged = packet_size.differences(curves)
    [bridge] = [line for line in lines if "veth_bridge against" in line and "time from" in line]
    assert "for each further fragment more expensive by" in bridge
    assert judged.startswith("16 differences judged together: at 95 % each, about 0.8")


def test_a_control_without_large_datagrams_leaves_the_other_parts() -> None:
    good = synthetic_packet_sizes.rows(rounds=10)
    lacking = good["arm"].eq("veth (again)") & good["length_bytes"].gt(1473)
    report = cost_comparison.comparisons(cost_model.curves(good[~lacking]))
    assert {frozenset(one.parts) for one in report} == {frozenset({"fixed", "byte"})}
    assert named(report) == {("vxlan", "byte")}


def test_no_evidence_without_a_good_control_or_enough_rounds() -> None:
    good = synthetic_packet_sizes.rows()
    again = good["arm"].eq("veth (again)")
    bad = good.assign(received_bytes=good["received_bytes"].mask(again, 0.8 * good["received_bytes"]))
    for rows, why in (
        (bad, "the baseline differs from itself"),
        (good[~again], "the baseline was not measured twice"),
        (good[good["round"].lt(4)], "fewer than 5 rounds have both"),
        (good[good["round"].eq(0)], "fewer than 5 rounds have both"),
    ):
        curves = cost_model.curves(rows)
        [first, *_] = cost_comparison.comparisons(curves)
        assert (first.word("fixed"), first.why["fixed"]) == (cost_comparison.NO_EVIDENCE, why)
        assert why in packet_size.differences(curves)[0]


def test_no_evidence_when_the_line_does_not_fit() -> None:
    rows = synthetic_packet_sizes.rows(rounds=8)
    rows.loc[rows["length_bytes"].eq(64) & rows["arm"].eq("vxlan"), "received_bytes"] *= 0.7
    bent = [one for one in cost_comparison.comparisons(cost_model.curves(rows)) if one.curve.arm == "vxlan"]
    for one in bent:
        assert one.word("byte") == cost_comparison.NO_EVIDENCE
        assert one.why["byte"] == "the costs of vxlan do not lie on a line"
        assert one.word("fragment") == cost_comparison.SAME
