"""What a whole run reports about flows that did not overlap. For one pair it reports nothing that only several can
have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.experiments import whole_runs
from labkit.measure.experiments.datapaths_parameters import DatapathParameters

ROW = {"window_s": 0.2, "throughput_bps": 2e9, "iperf3_bps": 1e9}


@pytest.mark.parametrize(
    ("pairs", "ends"), [(1, "make duration_s longer"), (2, "longer, or use fewer pairs")]
)
def test_remedy_for_flows_that_ran_apart(pairs: int, ends: str) -> None:
    live: Any = SimpleNamespace(pairs=[None] * pairs)
    result = whole_runs._invalid(DatapathParameters(duration_s=1), SimpleNamespace(), live, ROW)  # type: ignore[arg-type]
    assert result is not None
    assert result.startswith("the flows ran together for only 0.20 of 1 s: ")
    assert result.endswith(ends)


@pytest.mark.parametrize(("flows", "several"), [(1, False), (2, True)])
def test_single_flow_is_not_compared(flows: int, several: bool) -> None:
    generator: Any = SimpleNamespace(name="iperf3", reported_bps="iperf3_bps")
    [doubt] = whole_runs._doubts(DatapathParameters(), generator, ROW, flows)
    assert ("at the same time" in doubt) is several
