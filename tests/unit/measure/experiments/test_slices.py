"""Slices begin when every flow carries data, and counters cover one window, however long guests take to answer."""

import os
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.common.errors import Failed
from labkit.measure.experiments import server_counters, slices
from labkit.measure.observers.counters.receive_counters import ReceiveCounts
from labkit.system.machine.cpu_time import TICKS_PER_S


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


SLOW_S = 0.2
SLACK_S = 0.1  # on a loaded machine


class Stat:
    """The kernel of a guest that answers late and whose single CPU is always busy."""

    is_here = False

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, _path: str) -> str:
        time.sleep(SLOW_S / 2)
        ticks = round(time.monotonic() * TICKS_PER_S)
        time.sleep(SLOW_S / 2)
        return f"cpu  {ticks} 0 0 0 0 0 0 0 0 0\n"


def end(name: str) -> Any:
    return SimpleNamespace(kernel=Stat(name))


def with_guests() -> server_counters.LocalServer:
    counters = SimpleNamespace(per_server=lambda: [0], read=lambda: ReceiveCounts(1, 1))
    flows = SimpleNamespace(wait=lambda until: time.sleep(max(0.0, until - time.monotonic())))
    return server_counters.LocalServer(
        cast(Any, flows), cast(Any, counters), [end("client0"), end("server0")]
    )


def test_slow_reading_does_not_count() -> None:
    with pytest.raises(Failed, match="make duration_s longer"):
        with_guests().window(time.monotonic() + SLOW_S)


def test_cpu_time_of_the_window() -> None:
    here = with_guests()
    begun = time.monotonic()
    seen = here.window(begun + 1.0)
    # Reading the counters neither shortened nor extended it.
    assert 1.0 - SLACK_S <= seen.window_s <= 1.0 + SLACK_S
    tick = 1 / TICKS_PER_S
    assert seen.cpu_s <= (os.cpu_count() or 1) * (seen.window_s + tick + SLACK_S)
    report = here.report()
    assert abs(report["guest_cpu_s"] - 2 * seen.window_s) <= 2 * (2 * tick + SLACK_S)


def test_no_guest_columns_without_guests() -> None:
    assert server_counters.guests_cpu([])(1.0) == {}
