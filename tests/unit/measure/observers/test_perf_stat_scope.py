"""perf_stat counts the events of the whole machine, or those of a switch alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.common.errors import Unsupported
from labkit.measure.observers.perf import stat
from labkit.measure.observers.perf.control import WHOLE_MACHINE, Scope


@pytest.mark.parametrize(
    ("of", "switch", "scope"),
    [
        ("machine", None, WHOLE_MACHINE),
        ("machine", SimpleNamespace(pid=7), WHOLE_MACHINE),
        ("switch", SimpleNamespace(pid=7), Scope(pids=(7,))),
    ],
)
def test_scope_of_events(monkeypatch: pytest.MonkeyPatch, of: str, switch: Any, scope: Scope) -> None:
    monkeypatch.setattr(stat, "perf_stat", lambda _events, scope=WHOLE_MACHINE: scope)
    parameters: Any = SimpleNamespace(events=("cycles",), events_of=of)
    topology: Any = SimpleNamespace(name="ovs_netdev", switch=switch)
    assert stat.PERF_STAT.armed(parameters, topology, Path()) == scope


def test_arm_without_a_switch() -> None:
    parameters: Any = SimpleNamespace(events=("cycles",), events_of="switch")
    topology: Any = SimpleNamespace(name="veth_bridge", switch=None)
    with pytest.raises(Unsupported, match="veth_bridge has no switch whose events could be counted"):
        stat.PERF_STAT.armed(parameters, topology, Path())
