"""Files of a run that somebody else made: pipes, devices, and names of files outside of the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from labkit.analysis import load, published_runs
from labkit.analysis.flame import folded_stacks, load_profiles, packet_calls
from labkit.common import run_folder
from labkit.common.errors import BadInput

ROW = {"topology": "veth", "protocol": "tcp", "status": "ok", "run": "one"}
READERS = {
    "run.json": run_folder.read_begun,
    "sweep.json": run_folder.sweep_points,
    "rows/1.jsonl": run_folder.read_rows,
    "rows.parquet": published_runs.read_rows,
    "stacks": lambda folder: folded_stacks.read(folder / "stacks"),
    "stacks.gz": lambda folder: folded_stacks.read(folder / "stacks.gz"),
    "calls": lambda folder: packet_calls.read(folder / "calls"),
}


@pytest.mark.parametrize("name", READERS)
def test_pipes_and_devices_are_not_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(BadInput, match="not a regular file"):
        READERS[name](tmp_path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(BadInput, match="not a regular file"):
        READERS[name](tmp_path)


@pytest.mark.parametrize("name", ["/etc/passwd", "../secret", "link", "loop", 5, ["stacks"], None, "a\0b"])
def test_artefacts_are_in_the_folder_of_their_run(name: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    run = tmp_path / "run"
    run.mkdir()
    (run / "link").symlink_to("../secret")
    (run / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match="is no file of this run"):
        run_folder.artefact(run, name)
    assert run_folder.artefact(run, "artefacts/stacks.gz") == run / "artefacts/stacks.gz"


def test_stacks_outside_of_the_run_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("root:x 1\n")
    row = {"observer": "perf_record", "status": "ok", "observed": {}, "folder": str(tmp_path / "run")}
    with pytest.raises(BadInput, match="is no file of this run"):
        load_profiles.arm(load.complete(pd.DataFrame([row | {"artefact": "../secret"}])), "veth")


@pytest.mark.parametrize("name", ["..", "/etc", "a/b", ""])
def test_names_of_runs_are_no_paths(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder.write_json(tmp_path / "sweep.json", {"points": [name]})
    with pytest.raises(BadInput, match="does not list its points"):
        run_folder.sweep_points(tmp_path)
    run_folder.write_json(tmp_path / "run.json", {"finished": "now"})
    (tmp_path / "sweep.json").unlink()
    (tmp_path / "rows.parquet").touch()
    monkeypatch.setattr(published_runs, "read_rows", lambda _folder: [ROW | {"run": name}])
    with pytest.raises(BadInput, match="no name of a folder"):
        load.load(tmp_path)
