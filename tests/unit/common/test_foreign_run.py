"""Files of a run that somebody else made: pipes, devices, and names of files outside of the run."""

import contextlib
import copy
import functools
import gzip
import json
import logging
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import ROOT

from labkit.analysis import load, published_runs, report
from labkit.analysis.flame import folded_stacks, load_profiles, packet_calls
from labkit.analysis.report import notebook_cells
from labkit.common import run_folder, safe_files
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


def test_a_size_that_a_file_claims_takes_no_memory(tmp_path: Path) -> None:
    """A sparse file, a compressed one, and a line without an end: `labkit` holds a few MiB of each at most."""
    for name in READERS:
        folder = tmp_path / name.replace("/", "-")
        (folder / "rows").mkdir(parents=True)
        if name.endswith(".gz"):
            (folder / name).write_bytes(gzip.compress(bytes(64 << 20)))
        else:
            with (folder / name).open("wb") as file:
                file.truncate(1 << 40)
    code = (
        "import resource, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import test_foreign_run\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), used + (32 << 20)))\n"
        "for name, read in test_foreign_run.READERS.items():\n"
        "    try: read(Path(sys.argv[2]) / name.replace('/', '-'))\n"
        "    except test_foreign_run.BadInput as error: print(error)\n"
    )
    words = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == len(READERS)
    assert all("it has more than" in line or "a line has more than" in line for line in lines)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"])
def test_a_name_that_no_file_can_have_and_a_large_limit(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be the name of a file"):
        safe_files.read_regular(tmp_path / name, 10)
    (tmp_path / "small").write_bytes(b"1")
    assert safe_files.read_regular(tmp_path / "small", 1 << 50) == b"1"


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


NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# A run"},
        {
            "cell_type": "code", "id": "b", "metadata": {"tags": ["parameters"]}, "source": "x = 1",
            "execution_count": 1,
            "outputs": [
                {"output_type": "display_data", "metadata": {}, "data": {"text/html": "<b>1</b>", "text/plain": "1"}},
                {"output_type": "stream", "name": "stdout", "text": "1\n"},
            ],
        },
    ],
    "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
}  # fmt: skip
RUN = {
    "created": "2026-01-02T03:04:05Z", "experiment": "datapaths", "run": "one", "parameters": {"pairs": [1]}, "seed": 1,
    "why_stopped": {"1": "all rounds were measured"}, "points": ["1-r0"], "measuring_s": 1.5,
    "others": [{"name": "cc1", "cpu_share": 0.25}],
}  # fmt: skip
WRONG = (None, 1, 1.5, -1, "", "x", [], [1], {}, {"a": 1}, True, "\ud800", 1e308)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in keys for place in places(one, (*at, key)))]


def mutated(value: Any, rng: random.Random) -> bytes:
    """Return a document in which one value is of another kind or missing, or some of its bytes are others."""
    *way, last = rng.choice(places(value)[1:])
    result = copy.deepcopy(value)
    inside = functools.reduce(lambda one, key: one[key], way, result)
    if rng.random() < 0.2:
        del inside[last]
    else:
        inside[last] = rng.choice(WRONG)
    content = bytearray(json.dumps(result).encode())
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        content[rng.randrange(len(content))] = rng.choice((0, 0x80, 0xFF, 0x22, 0x7B, 0x5D))
    return bytes(content)


@pytest.fixture
def no_log() -> Iterator[None]:
    """nbconvert logs the values that are wrong. pytest-xdist ends for a report with half a pair of surrogates."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def rendered(folder: Path) -> object:
    return report.rendered([notebook_cells.read(folder / "notebook.ipynb")], [folder], "x")


@pytest.mark.usefixtures("no_log")
@pytest.mark.parametrize("count", [20, pytest.param(100, marks=pytest.mark.long)])
def test_no_mutated_file_of_a_run_is_a_fault(count: int, tmp_path: Path) -> None:
    """Foreign notebooks and run.json are read, or refused in one sentence; so many of each."""
    rng = random.Random(0)
    for _ in range(count):
        (tmp_path / "notebook.ipynb").write_bytes(mutated(NOTEBOOK, rng))
        (tmp_path / "run.json").write_bytes(mutated(RUN, rng))
        for read in (rendered, run_folder.read_run):
            with contextlib.suppress(BadInput), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # nbformat warns of cells without an id
                read(tmp_path)
