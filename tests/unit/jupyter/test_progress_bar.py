"""A notebook's progress bar is one output, updated in place, with the current step, the time left and ratios so far."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.jupyter import progress_bar
from labkit.jupyter.progress_bar import NotebookBar


class Handle:
    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(bundle)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    made = Handle()

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        assert not made.shown, "one output only"
        made.shown.append(bundle)
        return made

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(progress_bar, "SHOW_S", 0.0)
    return made


def row(arm: str, value: float, role: str = "variant", **more: Any) -> dict[str, Any]:
    known = {"arm": arm, "role": role, "status": "ok", "method": "slice", "throughput_bps": value}
    return known | {"protocol": "tcp", "pairs": 1} | more


def test_bar_is_updated_in_place(handle: Handle) -> None:
    bar = NotebookBar()
    bar.see({"event": "log", "text": "the run is in <folder>"})
    bar.see(
        {"event": "progress", "what": "round 1 of 4", "done_s": 30.0, "total_s": 120.0, "elapsed_s": 70.0}
    )
    last = handle.shown[-1]
    assert last["text/plain"].startswith("[#####...............] round 1 of 4, about 3 min 0 s left")
    assert 'value="0.2500"' in last["text/html"]
    assert "&lt;folder&gt;" in last["text/html"]
    bar.see({"event": "finished", "elapsed_s": 61.0})
    assert handle.shown[-1]["text/plain"].startswith("[####################] measured in 1 min 1 s")
    assert len(handle.shown) == 3


def test_ratios_so_far(handle: Handle) -> None:
    bar = NotebookBar()
    rows = [row("veth", 10.0, "baseline"), row("macvlan", 12.0), row("macvlan", 14.0), row("macvlan", 50.0)]
    bar.see({"event": "rows", "rows": rows})
    ignored = [row("macvlan", 99.0, status="invalid"), row("macvlan", 99.0, method="profile")]
    bar.see({"event": "rows", "rows": ignored})
    assert bar.ratios() == ["macvlan: 1.4 times veth (3 measurements)"]
    assert "(tcp, 1 pair), no verdict yet: macvlan: 1.4 times veth" in handle.shown[-1]["text/plain"]


def test_ratios_of_a_search_are_of_one_goal_at_one_point(handle: Handle) -> None:
    """A search yields its trials with latencies, and a rate for each loss goal."""
    bar = NotebookBar()
    common = {
        "part": "cost",
        "method": "search",
        "frame": "64",
        "flows_count": 1000,
        "protocol": "udp",
        "mtu_bytes": 1500,
    }
    rows = [
        {**row(arm, rate, role, **common), "loss_goal_ratio": goal, "latency_p50_s": None}
        for arm, role, rates in (("veth", "baseline", (1e8, 4e8)), ("ovs", "variant", (2e8, 2e8)))
        for goal, rate in zip((0.0, 0.005), rates, strict=True)
    ]
    trial = {**row("ovs", 0.0, **common), "part": "trials", "method": "trial", "latency_p50_s": 2e-5}
    bar.see({"event": "rows", "rows": [*rows, trial]})
    assert bar.ratios() == ["ovs: 0.5 times veth (1 measurement)"]
    text = handle.shown[-1]["text/plain"]
    assert "(udp, 1 pair, MTU 1500, frames 64, 1000 flows, PDR 0.5 %), no verdict yet: ovs: 0.5" in text


def test_ratios_of_loads_with_rates(handle: Handle) -> None:
    bar = NotebookBar()
    for rate_bps in (1e8, 2e8):
        pair = [row("ovs", rate_bps, "baseline"), row("ovs+mirrors=1", rate_bps / 2)]
        bar.see({"event": "rows", "rows": [one | {"protocol": "udp", "rate_bps": rate_bps} for one in pair]})
    assert bar.ratios() == ["ovs+mirrors=1: 0.5 times ovs (1 measurement)"]
    assert "200 Mbit/s" in handle.shown[-1]["text/plain"]


def test_ratios_of_pings_are_of_latency(handle: Handle) -> None:
    bar = NotebookBar()
    rows = [row("veth", 9.0, "baseline", latency_p50_s=1e-5), row("macvlan", 9.0, latency_p50_s=2e-5)]
    bar.see({"event": "rows", "rows": [one | {"protocol": "ping"} for one in rows]})
    assert bar.ratios() == ["macvlan: 2 times veth (1 measurement)"]


def test_updates_are_rare(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "SHOW_S", 60.0)
    bar = NotebookBar()
    for done_s in range(100):
        bar.see({"event": "progress", "what": "a", "done_s": float(done_s), "total_s": 100.0})
    assert len(handle.shown) == 1
    bar.end("interrupted")
    assert "interrupted" in handle.shown[-1]["text/plain"]
