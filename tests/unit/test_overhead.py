"""What an observer left of an arm's throughput, and of which it is said that it disturbed."""

from __future__ import annotations

from typing import Any

from labkit.experiments import profiles
from labkit.experiments.asked import Datapaths
from labkit.experiments.columns import Arm

ONE, OTHER = Arm("veth", "baseline"), Arm("veth_bridge", "variant")


def ran(observer: str | None, speed: float, status: str = "ok", **more: Any) -> dict[str, Any]:
    """What a run measured, of datagrams or of pings."""
    return {
        "observer": observer,
        "status": status,
        "throughput_bps": speed,
        "latency_p50_s": speed and 1 / speed,
        **more,
    }


def told(protocol: str) -> list[dict[str, Any]]:
    """Runs of two arms, after they were told what observing cost."""
    found = [
        (ONE, ran("function_times", 50, doubts="loaded")),
        (ONE, ran(None, 100)),
        (OTHER, ran(None, 200)),
        (OTHER, ran("function_times", 180)),
        (OTHER, ran("perf_record", 20)),
        (OTHER, ran("counters", 0, "failed")),
        (OTHER, {"status": "unsupported"}),
    ]
    profiles._tell_overhead(Datapaths.of({"protocol": protocol}), found)
    return [metrics for _, metrics in found]


def test_an_observer_is_held_against_its_own_arm_without_one() -> None:
    for protocol in ("udp", "ping"):
        rows = told(protocol)
        ratios = [None if (one := row.get("overhead_ratio")) is None else round(one, 9) for row in rows]
        assert ratios == [0.5, None, None, 0.9, 0.1, None, None]


def test_a_tracer_that_disturbs_is_doubted_and_a_sampler_is_not() -> None:
    first, *others = told("udp")
    assert first["doubts"] == "loaded; disturbed: function_times left only 50 % of the speed"
    assert not any("doubts" in row for row in others)


def test_an_arm_that_did_not_run_without_an_observer_has_no_ratio() -> None:
    found = [(ONE, ran("perf_record", 50)), (ONE, ran(None, 100, "failed"))]
    profiles._tell_overhead(Datapaths.of({"protocol": "udp"}), found)
    assert "overhead_ratio" not in found[0][1]
