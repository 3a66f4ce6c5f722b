"""The rate at which the arms of a search are observed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.experiments.throughput_search import profiles
from labkit.measure.experiments.throughput_search.parameters import Throughput

PARAMETERS = Throughput.of(
    {"observe": "perf_record", "profile_rounds": 2, "frame_bytes": "64,512", "loss": "0,0.005"}
)


def row(arm: str, pps: float | None, lower_pps: float | None = None, **more: Any) -> dict[str, Any]:
    """Return the row of a search."""
    return {
        "arm": arm, "pairs": 1, "frame": "64", "flows_count": 1000, "loss_goal_ratio": 0.0,
        "throughput_pps": pps, "lower_bound_pps": lower_pps, **more,
    }  # fmt: skip


def test_all_arms_are_observed_at_half_of_the_lowest_rate() -> None:
    rows = [row("a", 100e3), row("a", 110e3), row("a", 300e3), row("b", 200e3)]
    assert profiles.common_pps(PARAMETERS, rows, 1, "64", 1000) == 55e3


def test_lossless_arm_counts_with_its_highest_tried_rate() -> None:
    rows = [row("a", None, 80e3), row("b", 200e3), row("c", None, None)]
    assert profiles.common_pps(PARAMETERS, rows, 1, "64", 1000) == 40e3


@pytest.mark.parametrize(
    "other", [{"frame": "512"}, {"loss_goal_ratio": 0.005}, {"pairs": 2}, {"flows_count": 1}]
)
def test_other_searches_do_not_count(other: dict[str, Any]) -> None:
    assert profiles.common_pps(PARAMETERS, [row("a", 1e3, **other)], 1, "64", 1000) is None


def test_every_size_has_a_profile_in_each_round() -> None:
    names = [one.name for one in profiles.points(PARAMETERS)]
    assert names == ["64b-1000f-1-p0", "512b-1000f-1-p0", "64b-1000f-1-p1", "512b-1000f-1-p1"]
    assert profiles.points(Throughput.of({})) == []


def test_sizes_without_a_rate_are_not_observed() -> None:
    running: Any = SimpleNamespace(remembered=[row("a", None)])
    assert list(profiles.points(PARAMETERS)[0].measure(running)) == []
