"""All counters of a whole run cover the same window, however long guests take to answer."""

import os
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.common.errors import Failed
from labkit.measure.experiments import server_counters
from labkit.measure.observers.counters.receive_counters import ReceiveCounts
from labkit.system.machine.cpu_time import TICKS_PER_S

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
