"""The parameter panel: validation while typing, the estimate, start, stop and resume."""

import html
import threading
from pathlib import Path
from typing import Any

import pytest
import synthetic_rows

import labkit
from labkit import parameter_panel as panels
from labkit.common.errors import BadInput


@pytest.fixture
def panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> panels.Panel:
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    made: panels.Panel = labkit.panel("datapaths", rounds=3)
    return made


def test_fields_have_values_and_meanings(panel: panels.Panel) -> None:
    assert list(panel.fields) == list(panel._experiment.parameters().asdict())
    assert panel.given()["rounds"] == "3"
    with pytest.raises(BadInput, match="there is no parameter turns"):
        panels.Panel("datapaths", turns=3)
    given = panel.given()
    assert given["topology"] == "veth_bridge,macvlan_bridge"
    assert panels.Panel("datapaths").given()["rounds"] == "5"
    assert panel.verdict.value.startswith("It takes about ")
    lines: dict[str, str] = {}
    boxes = [panel.box]
    while boxes:
        children = boxes.pop().children
        boxes += [child for child in children if hasattr(child, "children")]
        if children and children[0] in panel.fields.values():
            lines[children[0].description] = html.unescape(children[1].value)
    assert lines.keys() == panel.fields.keys()
    assert all(text in lines[name] for name, text in panel._experiment.help.items())


def test_validation_and_known_values_while_typing(panel: panels.Panel) -> None:
    assert not panel.start.disabled
    panel.fields["topology"].value = "<nope>"
    assert "&lt;nope&gt; is not a topology" in panel.verdict.value
    assert panel.start.disabled
    panel.fields["topology"].value = "veth,vxlan"
    assert not panel.start.disabled
    before = panel.verdict.value
    panel.fields["rounds"].value = "300"
    assert panel.verdict.value != before
    assert {"tcp", "udp", "ping"} <= set(panel.fields["protocol"].options)
    panel.fields["topology"].value = "veth,vx"
    assert "veth,vxlan" in panel.fields["topology"].options
    assert not hasattr(panel.fields["rounds"], "options"), "a number"


def test_stop_is_acknowledged_and_ends_a_wait(panel: panels.Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may wait long for another measurement. Stop says at once that it was heard, and ends the wait."""
    shown: list[str] = []

    def measure(experiment: str, parameters: Any, folder: Path, watch: Any) -> Path:
        shown.append(panel.text.value)
        watch({"event": "waiting"})
        panel.stop.click()
        shown.append(panel.text.value)
        assert panel.stop.disabled
        watch({"event": "waiting"})
        raise AssertionError("it still waits")

    monkeypatch.setattr(panels.running, "measure", measure)
    panel.start.click()
    panel.wait()
    assert shown == ["starting", "stopping after the measurement that is under way"]
    assert "stopped: finished rows are kept" in panel.text.value


def test_unexpected_error_is_shown(panel: panels.Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []

    def measure(*_words: Any) -> Path:
        raise ValueError("<no>")

    monkeypatch.setattr(panels.running, "measure", measure)
    monkeypatch.setattr(threading, "excepthook", lambda about: raised.append(about.exc_type))
    panel.start.click()
    panel.wait()
    assert "the run failed (ValueError: &lt;no&gt;)" in panel.text.value
    assert raised == [ValueError]
    assert not panel.start.disabled


def test_start_stop_resume(panel: panels.Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def measure(experiment: str, parameters: Any, folder: Path, watch: Any) -> Path:
        seen.append((experiment, parameters, folder))
        if len(seen) == 1:
            panel.stop.click()
        watch({"event": "progress", "what": "round 1", "done_s": 1.0, "total_s": 4.0})
        return synthetic_rows.save(folder, synthetic_rows.rows())

    monkeypatch.setattr(panels.running, "measure", measure)
    panel.start.click()
    panel.wait()
    assert "stopped: finished rows are kept" in panel.text.value
    assert panel.run is None
    panel.start.click()
    panel.wait()
    assert seen[0] == seen[1], "the same parameters in the same folder"
    assert seen[0][1]["rounds"] == "3"
    assert len(panel.run.rows) == 180
    assert "panel.run" in panel.text.value
    assert panel.stop.disabled
    assert not panel.start.disabled
