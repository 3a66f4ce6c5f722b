"""How much of an arm's throughput remains under an observer, and which observers are reported as disturbing."""

from __future__ import annotations

import os
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.experiments import profiled_runs
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Arm

ONE, OTHER = Arm("veth", "baseline"), Arm("veth_bridge", "variant")


def ran(observer: str | None, speed: float, status: str = "ok", **more: Any) -> dict[str, Any]:
    """Return the result of a run with datagrams or with pings."""
    return {
        "observer": observer,
        "status": status,
        "throughput_bps": speed,
        "latency_p50_s": speed and 1 / speed,
        **more,
    }


def report(protocol: str) -> list[dict[str, Any]]:
    """Return the runs of two arms with the observer's overhead added."""
    result = [
        (ONE, ran("function_times", 50, doubts="loaded")),
        (ONE, ran(None, 100)),
        (OTHER, ran(None, 200)),
        (OTHER, ran("function_times", 180)),
        (OTHER, ran("perf_record", 20)),
        (OTHER, ran("counters", 0, "failed")),
        (OTHER, {"status": "unsupported"}),
    ]
    profiled_runs._report_overhead(DatapathParameters.of({"protocol": protocol}), result)
    return [metrics for _, metrics in result]


def test_overhead_reference_is_the_same_arm() -> None:
    for protocol in ("udp", "ping"):
        rows = report(protocol)
        ratios = [None if (one := row.get("overhead_ratio")) is None else round(one, 9) for row in rows]
        assert ratios == [0.5, None, None, 0.9, 0.1, None, None]


def test_disturbance_doubt() -> None:
    first, *others = report("udp")
    assert first["doubts"] == "loaded; disturbed: function_times reduced the speed to 50 %"
    assert not any("doubts" in row for row in others)


def test_no_overhead_ratio_without_a_reference() -> None:
    result = [(ONE, ran("perf_record", 50)), (ONE, ran(None, 100, "failed"))]
    profiled_runs._report_overhead(DatapathParameters.of({"protocol": "udp"}), result)
    assert "overhead_ratio" not in result[0][1]


def built(arm: Arm) -> LocalArm:
    """Return an arm whose ends are namespaces."""
    end = SimpleNamespace(runtime=None)
    topology: Any = SimpleNamespace(pairs=[SimpleNamespace(client=end, server=end)])
    return LocalArm(arm=arm, topology=topology, offloads={}, server_offloads={}, qdisc="noqueue")


def test_profiled_runs_of_a_round_have_the_same_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    parameters = DatapathParameters.of({"topology": "veth,veth_bridge", "slices": 4})

    def turns(seed: str) -> list[Any]:
        live = profiled_runs._with_moving_ends(parameters, [built(ONE), built(OTHER)], seed)
        assert all(one.placements is not None for one in live)
        runs = [list(islice(one.placements(), 8)) for one in (*live, *live) if one.placements]
        assert all(run == runs[0] for run in runs)
        return runs[0]

    everywhere = [[(client, server)] for client in (0, 1) for server in (0, 1)]
    assert sorted(turns("1 1-p0")[:4]) == everywhere == sorted(turns("1 1-p0")[4:])
    assert len({str(turns(f"1 1-p{number}")) for number in range(8)}) > 1


@pytest.mark.parametrize(
    "given",
    [
        {"slices": 0},
        {"placement": "scheduler"},
        {"affinity": "0,0"},
        {"streams": 2},
        {"protocol": "ping", "slices": 0},
    ],
)
def test_the_scheduler_places_profiled_runs_like_slices(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    parameters = DatapathParameters.of({"topology": "veth,veth_bridge", **given})
    live = profiled_runs._with_moving_ends(parameters, [built(ONE), built(OTHER)], "1 1-p0")
    assert [one.placements for one in live] == [None, None]
