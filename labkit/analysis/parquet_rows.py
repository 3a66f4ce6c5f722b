"""Rows as Parquet, compressed with zstd. The field metadata of a column has its unit, meaning, role and use.

Types are those of the schema. Lists, objects, and columns outside the schema are JSON texts. pyarrow is imported when
it is needed, because the measuring wing does without.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from labkit.common import schema
from labkit.common.errors import BadInput

Row = dict[str, Any]
AS_JSON = ("list", "object")


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of these rows: those of the schema in its order, then others in order of appearance."""
    there = dict.fromkeys(name for row in rows for name in row)
    return [
        *(name for name in schema.BY_NAME if name in there),
        *(name for name in there if name not in schema.BY_NAME),
    ]


def encode(rows: Sequence[Row], version: str) -> bytes:
    """Return the rows as Parquet; `version` is labkit's. Raises BadInput for a value of another type than its
    column."""
    import pyarrow

    kinds = {
        "text": pyarrow.string(), "number": pyarrow.float64(), "integer": pyarrow.int64(), "flag": pyarrow.bool_(),
    }  # fmt: skip
    fields, arrays = [], []
    for name in columns(rows):
        column = schema.BY_NAME.get(name)
        kind = kinds.get(column.type if column else "object")
        values = [row.get(name) for row in rows]
        if kind is None:
            values = [None if value is None else as_json(value) for value in values]
        try:
            arrays.append(pyarrow.array(values, kind or pyarrow.string()))
        except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
            expected = column.type if column else "JSON"
            what = f"a value that is no {expected}: {str(error)[:200]}"
            raise BadInput(f"the column {name} has {what}") from None
        fields.append(pyarrow.field(name, arrays[-1].type, metadata=_metadata(column)))
    about = {"labkit": version, "columns": "the metadata of each field has its unit, meaning, role and use"}
    return as_file(pyarrow.table(arrays, schema=pyarrow.schema(fields, metadata=about)))


def as_file(table: Any) -> bytes:
    """Return a table of pyarrow as the content of a Parquet file."""
    import pyarrow
    from pyarrow import parquet

    sink = pyarrow.BufferOutputStream()
    # Level 9 halves the bytes of published stacks, and is as fast for rows.
    parquet.write_table(table, sink, compression="zstd", compression_level=9)
    return bytes(sink.getvalue().to_pybytes())


def decode(content: bytes) -> list[Row]:
    """Return the rows of `encode`; a column that a row lacked is None in it. Raises BadInput for anything else."""
    import pyarrow
    from pyarrow import parquet as files

    try:
        rows: list[Row] = files.read_table(pyarrow.BufferReader(content)).to_pylist()
        for name in columns(rows[:1]):
            column = schema.BY_NAME.get(name)
            if column is None or column.type in AS_JSON:
                for row in rows:
                    row[name] = None if row[name] is None else msgspec.json.decode(row[name])
    except (pyarrow.ArrowException, OSError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise BadInput(f"these are not rows that labkit wrote as Parquet: {str(error)[:200]}") from None
    return rows


def as_json(value: Any) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


def _metadata(column: schema.Column | None) -> dict[str, str]:
    if column is None:
        return {"meaning": "not in the schema of this version of labkit; JSON text"}
    text = "; JSON text" if column.type in AS_JSON else ""
    return {"unit": column.unit, "meaning": f"{column.meaning}{text}", "role": column.role, "use": column.use}
