"""A notebook's progress bar is one output, updated in place: the current step, the time left, the verdicts so far."""

import math
import re
import time
from typing import Any

import pytest
import synthetic_rows

from labkit.jupyter import progress_bar
from labkit.jupyter.progress_bar import NotebookBar


class Handle:
    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def update(self, bundle: dict[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(bundle)

    @property
    def text(self) -> str:
        return self.shown[-1]["text/plain"]

    def finished(self, bar: NotebookBar) -> str:
        """Return the text once the run is finished."""
        bar.see({"event": "finished", "elapsed_s": 61.0})
        return self.text


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
    assert handle.finished(bar).startswith("[####################] measured in 1 min 1 s")
    assert len(handle.shown) == 3


def see_rounds(bar: NotebookBar, some: list[dict[str, Any]]) -> None:
    """Pass rows on as a run does: an event for each round of a point."""
    points = {row["point"]: None for row in some}
    for point in points:
        bar.see({"event": "rows", "rows": [row for row in some if row["point"] == point]})


def test_verdicts_so_far(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "VERDICT_SHARE", math.inf)
    bar = NotebookBar()
    some = synthetic_rows.rows({"veth": 1.0, "veth (again)": 1.0, "macvlan_bridge": 1.4}, rounds=6)
    see_rounds(bar, some[:36])
    first = handle.text
    assert "Verdicts so far (tcp, 1 pair, MTU 1500): macvlan_bridge: no evidence, ratio 1.4" in first
    see_rounds(bar, some[36:])
    assert re.search(r"macvlan_bridge: faster, ratio 1\.\d+ \[1\.\d+, 1\.\d+\] to veth", handle.text)
    ignored = synthetic_rows.rows({"veth": 1.0, "veth (again)": 1.0, "macvlan_bridge": 9.0}, rounds=1)
    see_rounds(bar, [row | {"method": "profile"} for row in ignored])
    see_rounds(bar, [row | {"status": "invalid"} for row in ignored])
    assert "Verdicts (tcp, 1 pair, MTU 1500): macvlan_bridge: faster, ratio 1.4" in handle.finished(bar)


def test_verdicts_of_a_resumed_run_are_of_all_its_rows(handle: Handle) -> None:
    some = synthetic_rows.rows({"veth": 1.0, "veth (again)": 1.0, "macvlan_bridge": 1.4}, rounds=6)
    texts = []
    for kept in (0, 72):
        handle.shown.clear()
        bar = NotebookBar()
        bar.see({"event": "kept", "rows": some[:kept]})
        see_rounds(bar, some[kept:])
        texts.append(handle.finished(bar))
    assert texts[0] == texts[1]


def test_verdicts_are_about_the_point_and_load_that_were_measured_last(
    handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bar, "VERDICT_SHARE", math.inf)
    bar = NotebookBar()
    ratios = {"ovs": 1.0, "ovs (again)": 1.0, "ovs+mirrors=1": 0.5}
    for number in range(3):
        for pairs, rate_bps in ((1, 1e8), (2, 1e8), (2, 2e8)):
            some = synthetic_rows.rows(ratios, protocol="udp", pairs=pairs, rate_bps=rate_bps, rounds=3)
            see_rounds(bar, [row for row in some if row["round"] == number])
    assert re.search(r"\(udp, 2 pairs, .*200 Mbit/s.*\): ovs\+mirrors=1: slower, ratio 0\.[45]", handle.text)


def test_verdicts_take_little_time_from_the_measurement(
    handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []

    def judge(rows: list[Any]) -> str:
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass
        judged.append(len(rows))
        return "a verdict"

    monkeypatch.setattr(progress_bar, "verdict_text", judge)
    bar = NotebookBar()
    see_rounds(bar, synthetic_rows.rows(rounds=50, slices=1))
    assert len(judged) == 1  # the next one is due after a second
    bar.see({"event": "finished", "elapsed_s": 61.0})
    assert judged == [3, 150]


def test_verdicts_of_a_search_are_of_one_goal_at_one_point(handle: Handle) -> None:
    """A search yields its trials, and a rate for each loss goal."""
    common = {"part": "cost", "method": "search", "frame": "64", "flows_count": 1000, "protocol": "udp"}
    ratios = {"veth": 1.0, "veth (again)": 1.0, "ovs": 0.5}
    bar = NotebookBar()
    for goal in (0.0, 0.005):
        see_rounds(bar, synthetic_rows.rows(ratios, slices=0, whole=5, loss_goal_ratio=goal, **common))
    trials = synthetic_rows.rows({"ovs": 0.1}, part="trials", method="trial", protocol="udp")
    see_rounds(bar, trials)
    text = handle.finished(bar)
    assert "frames 64, 1000 flows, PDR 0.5 %): ovs: slower, ratio 0." in text


def test_verdicts_that_fail_do_not_end_the_run(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_table: Any) -> Any:
        raise ValueError("broken here")

    monkeypatch.setattr("labkit.analysis.verdicts.verdicts", fail)
    bar = NotebookBar()
    see_rounds(bar, synthetic_rows.rows(rounds=2))
    assert "Verdicts" not in handle.finished(bar)


def test_rows_without_a_baseline_have_no_verdict(handle: Handle) -> None:
    bar = NotebookBar()
    bar.see({"event": "rows", "rows": [{"part": "cost", "protocol": "udp", "status": "ok"}]})
    assert "Verdicts" not in handle.finished(bar)


def test_updates_are_rare(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "SHOW_S", 60.0)
    bar = NotebookBar()
    for done_s in range(100):
        bar.see({"event": "progress", "what": "a", "done_s": float(done_s), "total_s": 100.0})
    assert len(handle.shown) == 1
    bar.end("interrupted")
    assert "interrupted" in handle.text
