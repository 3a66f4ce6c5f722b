"""Export the rows of a run or a sweep as one file: Parquet, CSV or JSON lines (`labkit rows`).

The rows are exported unchanged; `--columns` explains the columns. In Parquet, the field metadata of a column has its
unit, meaning, role and use.
"""

import argparse
import csv
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit import __version__
from labkit.analysis import load, parquet_rows, published_runs
from labkit.analysis.benchmark_formats import bencher_metric_format, github_action_benchmark
from labkit.commands import arguments
from labkit.commands.messages import note
from labkit.common import run_folder, schema, units
from labkit.common.errors import BadInput
from labkit.common.printable import markdown_table, printable, printable_json
from labkit.runner import sweep

Row = run_folder.Row
STDOUT = Path("-")


def read(folder: Path) -> list[Row]:
    """Return all rows of a run or a sweep. Raises BadInput if the folder is neither."""
    run_folder.check_there(folder)
    if (folder / "sweep.json").exists():
        return sweep.rows(folder)
    run_folder.read_begun(folder)
    return published_runs.read_rows(folder)


def csv_text(rows: Sequence[Row]) -> bytes:
    """Return the rows as CSV (RFC 4180) with a header line. Null is empty; lists and objects are JSON."""
    names, file = parquet_rows.columns(rows), io.StringIO()
    writer = csv.writer(file)
    writer.writerow(names)
    writer.writerows([_text(row.get(name)) for name in names] for row in rows)
    return file.getvalue().encode()


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return parquet_rows.as_json(value) if isinstance(value, (list, dict)) else value


def parquet(rows: Sequence[Row]) -> bytes:
    """Return the rows as Parquet (`parquet_rows.encode`)."""
    return parquet_rows.encode(rows, __version__)


_MEAN = "a mean for each arm at each point"
FORMS: dict[str, tuple[Callable[[Any], bytes], str]] = {
    "parquet": (parquet, "Parquet, with units and meanings"),
    "csv": (csv_text, "CSV"),
    "json": (run_folder.as_lines, "JSON, one object per line"),
    "github": (github_action_benchmark, f"JSON for github-action-benchmark, {_MEAN}"),
    "bencher": (bencher_metric_format, f"JSON in the Bencher Metric Format, {_MEAN}"),
}
MEANS = ("github", "bencher")  # of what verdicts compare, in their metric


def write(folder: Path, form: str, out: Path) -> int:
    """Write the rows of a folder to a file in one of FORMS, and return their number.

    The file `-` is standard output, which is not possible for Parquet.
    """
    rows = read(folder)
    if out == STDOUT and form == "parquet":
        raise BadInput("--parquet - is not possible, because Parquet is not text: name a file")
    encode, _ = FORMS[form]
    content = encode(load.load(folder) if form in MEANS else rows)
    if out != STDOUT:
        run_folder.write(out, content)
    else:
        text = content.decode()
        sys.stdout.write(printable_json(text) if form != "csv" else printable(text.replace("\r\n", "\n")))
    return len(rows)


def column_tables() -> str:
    """Return every column of a row as Markdown: the roles and uses, and a table for each writer."""
    lines = [f"- `{name}`: {text}" for name, text in (*schema.ROLES.items(), *schema.USES.items())]
    parts = ["The role of a column, and its use in comparisons (in brackets):", "\n".join(lines)]
    columns = [*schema.COLUMNS, *schema.added().values()]
    for writer in dict.fromkeys([*schema.WRITERS, *(one.writer for one in columns)]):
        rows = [
            (f"`{one.name}`", one.unit, one.type, one.role, _meaning(one))
            for one in columns
            if one.writer == writer
        ]
        head = ("column", "unit", "type", "role", "meaning")
        text = schema.WRITERS.get(writer, writer)
        parts += [f"### Written by {text}", markdown_table(head, rows).rstrip("\n")]
    return "\n\n".join(parts)


def _meaning(column: schema.Column) -> str:
    return column.meaning + (f" ({column.use})" if column.use else "")


NOTES = """\
Parquet, CSV and JSON (one object per line) contain the rows as they are on disk, with profiles. In
Parquet each column contains its unit and its meaning. The file - is standard output.
docs/ROWS.md shows how to read a run folder without labkit.

    labkit rows --columns
    labkit rows RUN --parquet rows.parquet
    labkit rows RUN --csv - --json rows.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "the folder of a run or a sweep"
    parser.add_argument("run", type=run_folder.named, nargs="?", metavar="RUN", help=text)
    parser.add_argument("--columns", action="store_true", help="print every column, with unit and meaning")
    for form, (_encode, text) in FORMS.items():
        parser.add_argument(f"--{form}", type=Path, metavar="FILE", help=f"write the rows as {text}")


def run(given: argparse.Namespace) -> int:
    if given.columns:
        arguments.refuse(given, ("run", *FORMS), "with --columns")
        print(column_tables())
        return 0
    if given.run is None:
        raise BadInput("no run is named: write labkit rows RUN --csv FILE, or labkit rows --columns")
    wanted = {form: out for form in FORMS if (out := getattr(given, form)) is not None}
    if not wanted:
        raise BadInput(f"no output is named: write --{' FILE, --'.join(FORMS)} FILE")
    for form, out in wanted.items():
        count = write(given.run, form, out)
        if out != STDOUT:
            of = "means of " if form in MEANS else ""
            note(f"{of}{units.counted(count, 'row')} in {run_folder.display_path(out)}")
    return 0
