"""The output of --json has exactly the fields that `labkit COMMAND --help` explains."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import example_states
import msgspec
import nbformat
import pandas as pd
import pytest
import synthetic_rows
from conftest import ROOT
from synthetic_why_run import run as profiled_run

from labkit import cli, commands
from labkit.commands import arguments, compare, draw, json_output, kernels, monitor, report, sweep, why
from labkit.commands.messages import json_text
from labkit.measure.observers.monitor.live_monitor import MonitorCounts, MonitorReport

pytestmark = pytest.mark.long


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def fields_of(command: str, field: str) -> set[str]:
    """Return the field names in backquotes in an explanation. An ending … stands for several."""
    return set(re.findall(r"`(\w+…?)`", getattr(commands, command).JSON[field]))


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [synthetic_rows.save(tmp_path / name, synthetic_rows.rows(seed=len(name))) for name in ("a", "bb")]
    result = printed(capsys, "compare", *map(str, runs))
    assert result.keys() == compare.JSON.keys()
    [line, *_] = result["lines"]
    assert fields_of("compare", "lines") - {"group", "host", "relative_…", "judged_…"} <= line.keys()
    ratio = {True: "relative_ratio", False: "ratio"}  # what word and sentence are about
    assert all(one["judged_ratio"] == one[ratio[one["baseline"] is not None]] for one in result["lines"])
    assert line["low"] <= line["ratio"] <= line["high"]
    assert all(isinstance(doubt, str) for doubt in result["doubts"])
    assert result["claims"] == [], "neither run is published"


@pytest.mark.long
def test_compare_with_a_published_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run is equal to itself in speed, also where its points differ in a parameter, and in counts of bytes."""
    published = ROOT / "data/results/overlay"
    copy = shutil.copytree(published, tmp_path / "overlay")
    result = printed(capsys, "compare", str(copy), str(published))
    assert {line["ratio"] for line in result["lines"]} == {1.0}
    assert not any("differ in duration_s" in doubt for doubt in result["doubts"])
    claims = {claim["name"]: claim for claim in result["claims"]}
    assert claims["overlay-overhead"]["right"]["word"] == "confirmed"
    claim = claims["overlay-headers"]
    assert fields_of("compare", "claims") == {*claim, *claim["left"]}
    assert claim["left"] == claim["right"] == {"word": "confirmed", "evidence": "ratio 1: 9 agree"}


def test_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = profiled_run(tmp_path / "run")
    words = ["why", f"{folder}:veth_bridge", "macvlan_bridge", "--out", str(tmp_path / "why.html")]
    result = printed(capsys, *words)
    assert result.keys() == why.JSON.keys()
    [point] = result["points"]
    assert point.keys() == {"point", "sentence", "cause", "notes", "next", "candidates"}
    assert {"point", "sentence", "cause", "notes", "next", "candidates"} <= fields_of("why", "points")
    assert Path(result["page"]).is_file()
    assert result["exported"] is None


def test_sweep(tmp_path: Path) -> None:
    folder = synthetic_rows.save(tmp_path / "run", synthetic_rows.rows())
    result = json.loads(json_text(json_output.sweep_result(folder, tmp_path / "report.html", {"b": "why"})))
    assert result.keys() == sweep.JSON.keys()
    [line] = result["verdicts"]
    assert fields_of("sweep", "verdicts") - {"group", "host", "control_…", "whole_…"} <= line.keys()
    assert line["word"] == "faster"


def test_kernels_monitor_and_draw(capsys: pytest.CaptureFixture[str]) -> None:
    for kernel in printed(capsys, "kernels"):
        assert kernel.keys() == kernels.JSON.keys()
    counts = MonitorCounts(*range(9))
    seen = MonitorReport(counts, {"tcp": (1, 60)}, [], [], False, 1, None)
    assert monitor.summary("client0:eth0", seen).keys() == monitor.JSON.keys()
    state = json.loads(msgspec.json.encode(example_states.bridged(1)))
    assert state.keys() == draw.JSON.keys()
    assert state["pairs"][0][0].keys() == fields_of("draw", "pairs")
    known = fields_of("draw", "namespaces")
    for space in state["namespaces"]:
        assert space.keys() <= known
        for one in (*space["interfaces"], *space["routes"]):
            assert one.keys() <= known


def test_every_json_is_documented_and_has_null() -> None:
    for parser in arguments.command_parser().commands():
        prints = any(one.option_strings == ["--json"] and one.nargs == 0 for one in parser._actions)
        assert prints == bool(parser.json or parser.rows), parser.name
    table = pd.DataFrame({"a": [1.5, float("nan")], "b": ["x", None], "c": [True, False]})
    expected = [{"a": 1.5, "b": "x", "c": True}, {"a": None, "b": None, "c": False}]
    assert json.loads(json_text(json_output.records(table))) == expected


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = synthetic_rows.save(tmp_path / "run", synthetic_rows.rows())
    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Found")])
    nbformat.write(document, folder / "notebook.ipynb")
    result = printed(capsys, "report", str(folder))
    assert result.keys() == report.JSON.keys()
    assert "Found" in Path(result["report"]).read_text()
    assert result["figures"] == []
