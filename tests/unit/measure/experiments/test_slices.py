"""Slices begin when every flow carries data; many flows may take longer."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.common.errors import Failed
from labkit.measure.experiments import server_counters, slices
from labkit.measure.observers.counters.receive_counters import ReceiveCounts


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
    calls: list[str] = []
    flows: Any = SimpleNamespace(
        stage=lambda: None, go=lambda: calls.append("go"), hold=lambda: calls.append("hold"), early_end=lambda: None,
        again=lambda: False,
    )  # fmt: skip
    live: Any = SimpleNamespace(arm=SimpleNamespace(label="veth"), metered=lambda: None)
    with pytest.raises(Failed, match=f"not every flow of veth carried data within {within}"):
        slices.Sender(live, flows, counters).establish()
    assert sum(waited) == pytest.approx(slices.establish_s(flows_count))
    assert calls == ["go", "hold"], "flows that do carry data must not send beside the other arms"


def sender(readings: list[list[int]], runtime: str | None = "a container") -> slices.Sender:
    """Return a sender whose servers have received these amounts at each look."""
    each = iter(readings)
    ends = [SimpleNamespace(runtime=None), SimpleNamespace(runtime=runtime)]
    live: Any = SimpleNamespace(topology=SimpleNamespace(ends=ends))
    counters: Any = SimpleNamespace(per_server=lambda: next(each))
    return slices.Sender(live, SimpleNamespace(), counters)  # type: ignore[arg-type]


@pytest.mark.parametrize(("delay_s", "doubted"), [(0.0, False), (2 * slices.SETTLE_S, True)])
def test_delay_beyond_what_a_slice_leaves_out_is_doubted(delay_s: float, doubted: bool) -> None:
    """The window of a slice begins SETTLE_S after its senders go on, so it would count a part of what they send."""
    gone: list[float] = []
    arrived = lambda: round(1e6 * max(0.0, time.monotonic() - gone[0] - delay_s)) if gone else 0  # noqa: E731
    live: Any = SimpleNamespace(
        topology=SimpleNamespace(ends=[SimpleNamespace(runtime=None)]),
        metered=lambda: dict,
        measured=lambda metrics, doubts: (metrics, doubts),
    )
    counters: Any = SimpleNamespace(
        per_server=lambda: [arrived()], read=lambda: ReceiveCounts(arrived(), arrived())
    )
    flows: Any = SimpleNamespace(
        go=lambda: gone.append(time.monotonic()), hold=lambda: None, early_end=lambda: None
    )
    one: Any = slices.Sender(live, flows, counters)
    assert (slices.LATE in one.slice(0)[1]) == doubted


def test_late_signals_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs in containers and guests get their signals by way of another process."""
    monkeypatch.setattr(slices, "SIGNAL_S", 0.1)
    monkeypatch.setattr(slices, "LOOK_S", 0.001)
    # Many programs go on at different times: the servers need not receive in the same step.
    assert sender([[5, 5], [5, 5], [9, 5], [9, 7]])._data_arrives()
    assert not sender([[5, 5]] + [[9, 5]] * 1000)._data_arrives()
    assert sender([[5, 5], [9, 5], [9, 9], [9, 9]])._data_stops()
    assert not sender([[number, 5] for number in range(1000)])._data_stops()
    assert sender([[5]], runtime=None)._data_arrives()
    assert sender([[5]], runtime=None)._data_stops()
