"""How much of an arm's throughput remains under an observer, and which observers are reported as disturbing."""

from __future__ import annotations

from typing import Any

from labkit.measure.experiments import profiled_runs
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
