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


def test_updates_are_rare(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "SHOW_S", 60.0)
    bar = NotebookBar()
    for done_s in range(100):
        bar.see({"event": "progress", "what": "a", "done_s": float(done_s), "total_s": 100.0})
    assert len(handle.shown) == 1
    bar.end("interrupted")
    assert "interrupted" in handle.shown[-1]["text/plain"]
