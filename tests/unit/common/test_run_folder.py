"""Run folders: every file is complete or missing, and each read or write error is one sentence."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from labkit.common import run_folder
from labkit.common.errors import BadInput, Failed

ROWS = [{"a": 1, "b": None, "c": 1.5}, {"a": 2, "b": "x", "c": 1e10}]


def test_row_round_trip(tmp_path: Path) -> None:
    run_folder.write_rows(tmp_path, "2-r0", ROWS)
    run_folder.write_rows(tmp_path, "1-r0", ROWS[:1])
    assert run_folder.read_rows(tmp_path) == [ROWS[0], *ROWS]
    assert run_folder.finished_points(tmp_path) == {"1-r0", "2-r0"}


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk of .* is full: free some space and repeat the command"),
        (errno.EDQUOT, "is full"),
        (errno.EIO, "cannot write .*run.json: Input/output error"),
    ],
)
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_write_keeps_the_old_file(
    number: int, words: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    run_folder.write_json(path, {"a": 1})

    def fails(*_: Any, **_folders: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(Failed, match=words):
        run_folder.write_json(path, {"a": 2})
    assert run_folder.read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["run.json"]


def test_what_cannot_be_read_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no file .*run.json"):
        run_folder.read_json(tmp_path / "run.json")
    (tmp_path / "run.json").write_text('{"half": ')
    for path in (tmp_path / "run.json", tmp_path):
        with pytest.raises(BadInput, match=f"{path} cannot be read: "):
            run_folder.read_json(path)
    for line in (b'{"half": 1', b"[1]", b"5", b"\xff\xfe"):
        run_folder.write_rows(tmp_path, "1-r0", ROWS)
        with open(tmp_path / "rows" / "1-r0.jsonl", "ab") as file:
            file.write(line)
        with pytest.raises(
            BadInput, match=r"1-r0\.jsonl contains a line that is not a row .*: delete the file"
        ):
            run_folder.read_rows(tmp_path)


def test_data_folder_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.delenv(run_folder.PROJECT, raising=False)
    for name in (
        "project/notebooks/data/both",
        "project/params",
        "project/data/both",
        "project/data/one",
        "elsewhere",
    ):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project/notebooks")
    data = tmp_path / "project/data"
    assert run_folder.data_root() == data
    # The cells of a notebook run in its folder; its runs are in `data` of the project.
    for given, named in (
        ("one", data / "one"),
        ("both", Path("data/both")),
        ("neither", Path("data/neither")),
    ):
        assert run_folder.named(f"data/{given}") == named
    assert run_folder.named(tmp_path / "data/neither") == tmp_path / "data/neither"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_folder.data_root() == tmp_path / "elsewhere/data"
    monkeypatch.setenv("LABKIT_DATA", "there")
    assert run_folder.data_root() == tmp_path / "elsewhere/there"


def test_concurrent_runs_have_different_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    made = {run_folder.new_run("datapaths") for _ in range(20)}
    assert len(made) == 20
    assert {path.parent for path in made} == {tmp_path / "datapaths"}
    assert os.listdir(tmp_path) == []


def test_unfinished_rows_decide_nothing(tmp_path: Path) -> None:
    """A failed one is no failed point, half of one is left out, and finished rows of the point stay until then."""
    run_folder.keep_unfinished(tmp_path, "1-r0", [{"status": "failed"}], first=True)
    with open(tmp_path / "rows" / "1-r0.unfinished", "ab") as file:
        file.write(b'{"half": 1')
    assert run_folder.has_rows(tmp_path)
    run_folder.write_rows(tmp_path, "0-r0", [{"status": "ok"}])
    assert run_folder.read_rows(tmp_path) == [{"status": "ok"}, {"status": "failed"}]
    assert run_folder.failed_points(tmp_path) == []
    run_folder.write_rows(tmp_path, "1-r0", [{"status": "failed"}])
    run_folder.keep_unfinished(tmp_path, "1-r0", ROWS, first=True)
    assert run_folder.read_rows(tmp_path) == [{"status": "ok"}, {"status": "failed"}]
    assert run_folder.failed_points(tmp_path) == ["1-r0"]
