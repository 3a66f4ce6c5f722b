"""The schema describes every column of every row with its type. `labkit rows --columns` prints it, and the
examples of docs/ROWS.md run."""

import csv
import dataclasses
import itertools
import json
import re
import statistics
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from labkit import cli
from labkit.commands import rows as rows_command
from labkit.common import extensions, run_folder, schema
from labkit.common.errors import Failed
from studies.latency_under_load.course import Course, Interval

# Rows of all experiments that run without guests: labkit run EXPERIMENT on Linux 6.18, long lists cut.
RECORDED = [json.loads(line) for line in (ROOT / "tests/samples/rows.jsonl").read_text().splitlines()]
PAGE = (ROOT / "docs/ROWS.md").read_text()
POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["labkit.columns"]
OF_STUDIES: list[Any] = [extensions.EntryPoint("", "", point, "", "").load() for point in POINTS.values()]
COLUMNS = [*schema.COLUMNS, *itertools.chain.from_iterable(OF_STUDIES)]
BY_NAME = {one.name: one for one in COLUMNS}
KINDS = {"text": str, "number": (int, float), "integer": int, "flag": bool, "list": list, "object": dict}
UNITS = {"s": "s", "bytes": "byte", "bps": "bit/s", "pps": "1/s", "count": "1", "ratio": "1", "share": "1"}


def test_names_of_columns_end_with_their_units() -> None:
    assert len(BY_NAME) == len(COLUMNS)
    for one in COLUMNS:
        assert one.unit == UNITS.get(one.name.rpartition("_")[2], one.unit), one
        assert (one.type in ("number", "integer")) or not one.unit, one


def test_recorded_rows_have_no_other_column_and_no_other_type() -> None:
    for row in RECORDED:
        assert set(row) <= set(BY_NAME), row["experiment"]
        for name, value in row.items():
            kind: Any = KINDS[BY_NAME[name].type]
            right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            assert value is None or right, (row["experiment"], name, value)


@pytest.mark.parametrize("change", [{}, {"name": "pairs"}, {"use": "group"}])
def test_packages_add_columns_and_change_none(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    one = schema.Column("new_s", "s", "number", "a time", "a package", "measures")
    columns = (dataclasses.replace(one, **change),)
    monkeypatch.setattr(extensions, "names", lambda *_: {"toys": columns})
    monkeypatch.setattr(extensions, "load", lambda entry, _kind: entry)
    added = schema.added.__wrapped__
    if not change:
        assert added() == added("toys") == {"new_s": one}
        assert not added("other")
        return
    with pytest.raises(Failed, match="of toys"):
        added()


def test_columns_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rows", "--columns"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for one in schema.COLUMNS:
        [line] = [each for each in lines if each.startswith(f"| `{one.name}` |")]
        assert line.startswith(f"| `{one.name}` | {one.unit} | {one.type} | {one.role} | ")
    assert cli.main(["rows", "--csv", "-"]) == 2
    assert "no run is named" in capsys.readouterr().err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run with the throughputs 1 to 4 of arm a, 7 and 9 of arm b, and rows that must be left out."""
    a, b = ({"status": "ok", "method": "slice", "arm": arm} for arm in "ab")
    points = (
        [
            *(a | {"throughput_bps": value} for value in (4, 1, 2, 3)),
            a | {"status": "failed", "reason": "no"},
        ],
        [
            b | {"method": method, "throughput_bps": value}
            for method, value in (("slice", 7), ("whole", 9), ("profile", 5))
        ],
    )
    for name, rows in enumerate(points):
        run_folder.write_rows(tmp_path, str(name), rows)
    return tmp_path


def _example(kind: str, number: int = 0) -> str:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)[number]


def _medians(printed: str) -> dict[tuple[str, ...], float]:
    return {tuple(names): float(value) for *names, value in csv.reader(printed.splitlines())}


EXPECTED = {("a", "slice"): statistics.median([1, 2, 3, 4]), ("b", "slice"): 7, ("b", "whole"): 9}


def test_pandas_example(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUN", str(run))
    exec(_example("python"), {})
    assert _medians(capsys.readouterr().out) == EXPECTED


def test_course_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probes = [(-1.0, 9.0), (2.0, 3.0), (2.5, None), (3.0, 5.0), (5.0, 9.0)]
    phases = {"idle": (-2.0, 0.0), "loaded": (2.0, 4.0), "after": (4.5, 6.0)}
    path = tmp_path / "artefacts/1-r0/a-course.json.gz"
    run_folder.write_artefact(path, Course([Interval(0.1, 1e6, 1e4)], probes, phases))
    names = {"status": "ok", "method": "whole", "arm": "a", "throughput_bps": None}
    run_folder.write_rows(tmp_path, "1-r0", [names | {"artefact": str(path.relative_to(tmp_path))}])
    monkeypatch.setenv("RUN", str(tmp_path))
    exec(_example("python") + _example("python", 1), {})
    assert float(capsys.readouterr().out.split()[-1]) == 5.0, (
        "as in the row: the lost probe is the slowest of three"
    )


def _queried(run: Path, query: str) -> dict[tuple[str, ...], float]:
    """Return what DuckDB answers. Its shell has the function getenv, and its Python package has not."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"CREATE MACRO getenv(name) AS CASE name WHEN 'RUN' THEN '{run}' END")
    return {tuple(names): float(value) for *names, value in connection.execute(query).fetchall()}


@pytest.mark.needs("duckdb")
def test_duckdb_example(run: Path) -> None:
    assert _queried(run, _example("sql")) == EXPECTED


@pytest.mark.needs("duckdb")
def test_duckdb_reads_parquet_of_runs(run: Path, tmp_path: Path) -> None:
    """The page's query also reads an export, and DuckDB the published rows."""
    out = tmp_path / "rows.parquet"
    out.write_bytes(rows_command.parquet(run_folder.read_rows(run)))
    start, rest = re.split(r"read_json_auto\(.*\)\n", _example("sql"))
    assert _queried(run, f"{start}'{out}'\n{rest}") == EXPECTED
    for path in sorted((ROOT / "data/results").glob("*/rows.parquet")):
        described = json.loads(path.with_name("run.json").read_text())
        assert _queried(run, f"SELECT 'rows', count(*) FROM '{path}'") == {("rows",): described["rows_count"]}


@pytest.mark.needs("jq")
def test_jq_example(run: Path) -> None:
    (run / "median.jq").write_text(_example("jq"))
    files = sorted(map(str, (run / "rows").glob("*.jsonl")))
    argv = ["jq", "--slurp", "--raw-output", "--from-file", str(run / "median.jq"), *files]
    assert f"`{' '.join(argv[:4])} median.jq " in PAGE
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert _medians(printed) == EXPECTED
