"""In which part of a datagram's cost arms differ: what was planted is found, and nothing is found where nothing was."""

from __future__ import annotations

import made_sizes
import numpy as np
import pandas as pd

from labkit import contrasts, loading, packet_size, sizes
from labkit.contrasts import Comparison


def reports(count: int, arms: dict[str, tuple[float, float, float]]) -> list[list[Comparison]]:
    """What so many reports of five rounds of the same arms would compare."""
    parts = [
        made_sizes.rows(rounds=5, seed=seed, arms=arms, places=1, where=f"vm:{seed}") for seed in range(count)
    ]
    # One cost: the other is the same numbers twice, for both CPUs are always busy.
    found = sizes.curves(pd.concat(parts, ignore_index=True).assign(cpu_s=np.nan))
    by_report: dict[loading.Key, list[sizes.Curve]] = {}
    for curve in found:
        by_report.setdefault(curve.key, []).append(curve)
    assert len(by_report) == count
    return [contrasts.comparisons(some) for some in by_report.values()]


def named(report: list[Comparison]) -> set[tuple[str, str]]:
    """The arms and parts that are said to differ."""
    return {
        (one.curve.arm, part)
        for one in report
        for part in one.parts
        if one.word(part) in ("dearer", "cheaper")
    }


def test_where_nothing_differs_few_reports_say_that_something_does() -> None:
    alike = {
        "veth": made_sizes.NONE,
        "veth (again)": made_sizes.NONE,
        "one": made_sizes.NONE,
        "two": made_sizes.NONE,
    }
    found = reports(200, alike)
    assert sum(len(one.parts) for one in found[0]) == 2 * 4
    alarms_count = sum(bool(named(report)) for report in found)
    # Of 400 seeds 26 alarm, 6.5 %. Of 5 % one in six hundred choices of seeds would lie outside; no alarm at all would
    # be as wrong as many.
    assert 0.005 * len(found) < alarms_count <= 0.1 * len(found)


def test_what_was_planted_is_found_in_five_rounds() -> None:
    found = [named(report) for report in reports(50, made_sizes.ARMS)]
    for planted in (("veth_bridge", "fragment"), ("vxlan", "byte")):
        assert sum(planted in report for report in found) >= 0.9 * len(found)


def test_only_the_part_that_differs_is_said_to() -> None:
    """No step of fragments is taken for a cost of bytes, no cost of bytes for a fixed one."""
    curves = sizes.curves(made_sizes.rows(rounds=10))
    words = {
        (one.curve.arm, part): one.word(part)
        for one in contrasts.comparisons(curves)
        if one.curve.cost == "time_per_packet_s"
        for part in sizes.PARTS
    }
    assert {key for key, word in words.items() if word == "dearer"} == {
        ("veth_bridge", "fragment"),
        ("vxlan", "byte"),
    }
    assert set(words.values()) == {"dearer", contrasts.SAME}
    [bridge] = [
        line
        for line in packet_size.differences(curves)
        if "veth_bridge against" in line and "time from" in line
    ]
    assert "for each further one dearer by" in bridge
    assert bridge.index("dearer") < bridge.index(contrasts.SAME)
    assert packet_size.differences(curves)[-1].startswith(
        "16 differences judged together: at 95 % each, about 0.8"
    )


def test_nothing_is_concluded_where_the_baseline_differs_from_itself_or_was_measured_once() -> None:
    rows = made_sizes.rows()
    again = rows["arm"].eq("veth (again)")
    rows.loc[again, "received_bytes"] *= 0.8
    [first, *_] = contrasts.comparisons(sizes.curves(rows))
    assert first.word("fixed") == contrasts.NO_EVIDENCE
    assert "the baseline differs from itself" in packet_size.differences(sizes.curves(rows))[0]
    [once, *_] = contrasts.comparisons(sizes.curves(rows[~again]))
    assert once.word("fixed") == contrasts.NO_EVIDENCE
    [few, *_] = contrasts.comparisons(sizes.curves(made_sizes.rows(rounds=4)))
    assert few.why["byte"] == "fewer than 5 rounds have both"
    [single, *_] = contrasts.comparisons(sizes.curves(made_sizes.rows(rounds=1)))
    assert single.word("fixed") == contrasts.NO_EVIDENCE


def test_nothing_is_concluded_from_a_line_that_does_not_fit() -> None:
    rows = made_sizes.rows(rounds=8)
    rows.loc[rows["length_bytes"].eq(64) & rows["arm"].eq("vxlan"), "received_bytes"] *= 0.7
    bent = [one for one in contrasts.comparisons(sizes.curves(rows)) if one.curve.arm == "vxlan"]
    for one in bent:
        assert one.word("byte") == contrasts.NO_EVIDENCE
        assert one.why["byte"] == "no line describes vxlan"
        assert one.word("fragment") == contrasts.SAME
