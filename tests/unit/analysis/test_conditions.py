"""Doubts about the machine itself: whether it was busy before the measurement."""

from __future__ import annotations

from typing import Any

import pandas as pd
from synthetic_rows import Row, rows

from labkit.analysis import verdicts


def test_busy_machine_is_reported_once() -> None:
    """Only the first run of each machine counts: before later ones, the kernel still cleans up after earlier runs."""
    early, late, in_vm = ({"time": f"2026-11-21T{hour}:00:00Z"} for hour in ("07", "08", "06"))
    words = "a busy machine: in the half second before the first run 1.2 of its 2 CPUs were busy"

    def report(*runs: list[Row]) -> list[str]:
        result = verdicts.doubts(pd.DataFrame([row for each in runs for row in each]))
        return [doubt.partition(words)[0] for doubt in result if "busy" in doubt]

    high, low = {"busy_before_share": 0.6}, {"busy_before_share": 0.2}
    assert report(rows(load1=9.0)) == [], "rows that do not tell it: their own load is in load1"
    assert report(rows(**low)) == []
    assert report(rows(**high)) == [""]
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
    some = rows()
    for place, share in ((2, "21 %"), (5, "5.6 %"), (8, "21 %")):
        some[place] |= {"doubts": f"the hypervisor took away {share} of the CPU time"}
    report = [doubt for doubt in verdicts.doubts(pd.DataFrame(some)) if "took away" in doubt]
    assert report == [
        "macvlan_bridge: the hypervisor took away 21 % of the CPU time, for example (in 3 of 60 rows)"
    ]
