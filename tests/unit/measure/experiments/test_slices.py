"""Slices begin when every flow carries data; many flows may take longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from labkit.common.errors import Failed
from labkit.measure.experiments import server_counters, slices


@pytest.mark.parametrize(("flows_count", "within"), [(1, "10 s"), (128, "23 s")])
def test_many_flows_have_more_time_until_they_carry_data(
    flows_count: int, within: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def carrying(_counters: Any, _before: Any, within_s: float, _ended: Any) -> bool:
        waited.append(within_s)
        return False

    monkeypatch.setattr(server_counters, "carrying", carrying)
    counters: Any = SimpleNamespace(per_server=lambda: [0] * flows_count)
    flows: Any = SimpleNamespace(stage=lambda: None, go=lambda: None, early_end=lambda: None)
    live: Any = SimpleNamespace(arm=SimpleNamespace(label="veth"))
    with pytest.raises(Failed, match=f"not every flow of veth carried data within {within}"):
        slices.Sender(live, flows, counters).establish()
    assert waited == [slices.establish_s(flows_count)]
