"""`labkit rows` writes Parquet with units and meanings, CSV and JSON, for runs and sweeps."""

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pyarrow
import pytest
import synthetic_rows
from pyarrow import parquet

from labkit import cli
from labkit.analysis import parquet_rows
from labkit.commands import rows as command
from labkit.common import schema
from labkit.common.errors import BadInput

MADE = [
    row
    | {"changed": [{"at": "server", "kind": "offload"}], "zerocopy": True, "reason": 'a "b",\nc'}
    | {"seed": 7, "new": 1}
    for row in synthetic_rows.rows(rounds=2, slices=2)
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return synthetic_rows.save(tmp_path / "run", MADE, experiment="datapaths")


def test_parquet_has_rows_units_and_meanings(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.parquet"
    assert cli.main(["rows", str(run), "--parquet", str(out)]) == 0
    table = parquet.read_table(out)
    field = table.schema.field("throughput_bps")
    assert field.type == pyarrow.float64()
    assert field.metadata[b"unit"] == b"bit/s"
    assert field.metadata[b"meaning"].decode() == schema.BY_NAME["throughput_bps"].meaning
    assert table.schema.field("pairs").type == pyarrow.int64()
    assert b"not in the schema" in table.schema.field("new").metadata[b"meaning"]
    read = pd.read_parquet(out)
    by_place = {(row["arm"], row["round"], row["slice"]): row["throughput_bps"] for row in MADE}
    for row in read.to_dict("records"):
        assert row["throughput_bps"] == by_place[row["arm"], row["round"], row["slice"]]
        assert json.loads(row["changed"]) == MADE[0]["changed"]
        assert row["zerocopy"] is True


def test_csv_json_and_a_sweep_have_all_rows(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["rows", str(run), "--csv", "-"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert cli.main(["rows", str(run), "--json", "-"]) == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert objects == command.read(run)
    assert [float(line["throughput_bps"]) for line in lines] == [row["throughput_bps"] for row in objects]
    assert lines[0]["length_bytes"] == ""
    assert lines[0]["reason"] == MADE[0]["reason"]
    for name in ("a", "b"):
        synthetic_rows.save(tmp_path / "sweep" / name, MADE)
    (tmp_path / "sweep/sweep.json").write_text(json.dumps({"points": ["a", "b"]}))
    assert len(command.read(tmp_path / "sweep")) == 2 * len(MADE)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("run.json", '{"points": null}', "its points are not a list of names"),
        ("sweep.json", "null", "sweep.json cannot be read: it does not contain a JSON object"),
        ("sweep.json", '{"points": null}', "sweep.json does not list its points"),
    ],
)
def test_null_is_refused(
    run: Path, file: str, content: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / file).write_text(content)
    assert cli.main(["rows", str(run), "--csv", "-"]) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.out == ""


def test_value_of_another_type_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic_rows.save(tmp_path / "run", [MADE[0] | {"pairs": "two"}])
    assert cli.main(["rows", str(run), "--parquet", str(tmp_path / "x")]) == 2
    assert "the column pairs has a value that is no integer" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


ROW = {
    "arm": "veth", "pairs": 2, "throughput_bps": 1.5e9, "zerocopy": True, "reason": None,
    "changed": [{"at": "server", "kind": "offload"}], "observed": {"functions": {"ip_rcv": {"p50_s": 1e-6}}},
    "of_a_newer_labkit": {"a": [1]},
}  # fmt: skip


def test_rows_come_back() -> None:
    rows = [ROW, ROW | {"arm": "ä\n", "changed": None, "throughput_bps": None}]
    assert parquet_rows.decode(parquet_rows.encode(rows, "0.1.0")) == rows
    rows = [{"arm": "veth"}, {"arm": "veth", "pairs": 1}]
    assert parquet_rows.decode(parquet_rows.encode(rows, "0.1.0"))[0] == {"arm": "veth", "pairs": None}
    with pytest.raises(BadInput, match="not rows that labkit wrote as Parquet"):
        parquet_rows.decode(b"PAR1 and nothing else")


def test_rows_come_back_where_the_package_of_a_column_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [ROW | {"route": "static"}]
    with monkeypatch.context() as patch:
        route = schema.Column("route", "", "text", "which route", "a package", "describes")
        patch.setattr(schema, "added", lambda: {"route": route})
        content = parquet_rows.encode(rows, "0.1.0")
    assert parquet_rows.decode(content) == rows


def test_an_export_of_means_says_of_how_many_rows(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "means.json"
    assert cli.main(["rows", str(run), "--github", str(out)]) == 0
    assert f"means of {len(MADE)} rows in {out}" in capsys.readouterr().err
    assert len(json.loads(out.read_bytes())) < len(MADE)
