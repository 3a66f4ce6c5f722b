"""The output of --json has exactly the fields that docs/COMMANDS.md explains."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import example_states
import msgspec
import nbformat
import pandas as pd
import pytest
import synthetic_rows
from synthetic_why_run import run as profiled_run

from labkit import cli
from labkit.commands import arguments, json_output, monitor
from labkit.measure.observers.monitor.live_monitor import MonitorCounts, MonitorReport


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fields_of(command: str, field: str) -> set[str]:
    """Return the field names in backquotes in an explanation. An ending … stands for several."""
    return set(re.findall(r"`(\w+…?)`", json_output.FIELDS[command][field]))


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [synthetic_rows.save(tmp_path / name, synthetic_rows.rows(seed=len(name))) for name in ("a", "bb")]
    result = printed(capsys, "compare", *map(str, runs))
    assert result.keys() == json_output.FIELDS["compare"].keys()
    [line, *_] = result["lines"]
    assert fields_of("compare", "lines") - {"group", "host", "relative_…"} <= line.keys()
    assert line["low"] <= line["ratio"] <= line["high"]
    assert all(isinstance(doubt, str) for doubt in result["doubts"])


def test_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = profiled_run(tmp_path / "run")
    words = ["why", f"{folder}:veth_bridge", "macvlan_bridge", "--out", str(tmp_path / "why.html")]
    result = printed(capsys, *words)
    assert result.keys() == json_output.FIELDS["why"].keys()
    [point] = result["points"]
    assert point.keys() == {"point", "sentence", "cause", "notes", "next", "candidates"}
    assert {"point", "sentence", "cause", "notes", "next", "candidates"} <= fields_of("why", "points")
    assert Path(result["page"]).is_file()
    assert result["exported"] is None


def test_sweep(tmp_path: Path) -> None:
    folder = synthetic_rows.save(tmp_path / "run", synthetic_rows.rows())
    result = json.loads(
        json_output.text(json_output.of_sweep(folder, tmp_path / "report.html", {"b": "why"}))
    )
    assert result.keys() == json_output.FIELDS["sweep"].keys()
    [line] = result["verdicts"]
    assert fields_of("sweep", "verdicts") - {"group", "host", "control_…", "whole_…"} <= line.keys()
    assert line["word"] == "faster"


def test_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    for kernel in printed(capsys, "kernels"):
        assert kernel.keys() == json_output.FIELDS["kernels"].keys()


def test_monitor() -> None:
    counts = MonitorCounts(*range(9))
    report = MonitorReport(counts, {"tcp": (1, 60)}, [], [], False, 1, None)
    assert monitor.summary("client0:eth0", report).keys() == json_output.FIELDS["monitor"].keys()


def test_draw() -> None:
    state = json.loads(msgspec.json.encode(example_states.bridged(1)))
    assert state.keys() == json_output.FIELDS["draw"].keys()
    assert state["pairs"][0][0].keys() == fields_of("draw", "pairs")
    known = fields_of("draw", "namespaces")
    for space in state["namespaces"]:
        assert space.keys() <= known
        for one in (*space["interfaces"], *space["routes"]):
            assert one.keys() <= known


def test_every_json_is_documented() -> None:
    commands = arguments.command_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    printing = {
        name
        for name, parser in commands.items()
        if any(action.option_strings == ["--json"] and action.nargs == 0 for action in parser._actions)
    }
    assert printing == json_output.FIELDS.keys() | json_output.ROWS


def test_missing_values_are_null() -> None:
    table = pd.DataFrame({"a": [1.5, float("nan")], "b": ["x", None], "c": [True, False]})
    expected = [{"a": 1.5, "b": "x", "c": True}, {"a": None, "b": None, "c": False}]
    assert json.loads(json_output.text(json_output.records(table))) == expected


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = synthetic_rows.save(tmp_path / "run", synthetic_rows.rows())
    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Found")])
    nbformat.write(document, folder / "notebook.ipynb")
    result = printed(capsys, "report", str(folder))
    assert result.keys() == json_output.FIELDS["report"].keys()
    assert "Found" in Path(result["report"]).read_text()
    assert result["figures"] == []
