"""Rows as Parquet, compressed with zstd. The field metadata of a column has its unit, meaning, role and use.

Types are those of the schema. Lists, objects, and columns outside the schema are JSON texts. pyarrow is imported when
it is needed, because the measuring wing does without.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from labkit.common import schema
from labkit.common.errors import BadInput

Row = dict[str, Any]
Known = Mapping[str, schema.Column]
AS_JSON = "; JSON text"  # the end of a column's meaning


def columns(rows: Sequence[Row], known: Known | None = None) -> dict[str, schema.Column | None]:
    """Return the columns of these rows: the known ones in their order (None: those of the schema), then others in order
    of appearance, which have no description."""
    there = dict.fromkeys(name for row in rows for name in row)
    known = schema.described(there) if known is None else known
    return {name: column for name, column in known.items() if name in there} | {
        name: None for name in there if name not in known
    }


def column_types() -> dict[str, Any]:
    """Return pyarrow's type for each type of the schema that needs no JSON."""
    import pyarrow

    return {
        "text": pyarrow.string(), "number": pyarrow.float64(), "integer": pyarrow.int64(), "flag": pyarrow.bool_(),
    }  # fmt: skip


def encode(rows: Sequence[Row], version: str, known: Known | None = None, **about: str) -> bytes:
    """Return the rows as Parquet; `version` is labkit's, and `about` more metadata of the file.

    Raises BadInput for a value of another type than its known column.
    """
    import pyarrow
    from pyarrow import parquet

    kinds, fields, arrays = column_types(), [], []
    for name, column in columns(rows, known).items():
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
    about |= {"labkit": version, "columns": "the metadata of each field has its unit, meaning, role and use"}
    table = pyarrow.table(arrays, schema=pyarrow.schema(fields, metadata=about))
    sink = pyarrow.BufferOutputStream()
    # Level 9 halves the bytes of published stacks, and is as fast for rows.
    parquet.write_table(table, sink, compression="zstd", compression_level=9)
    return bytes(sink.getvalue().to_pybytes())


def decode(content: bytes) -> list[Row]:
    """Return the rows of `encode`; a column that a row lacked is None in it. Raises BadInput for anything else."""
    import pyarrow
    from pyarrow import parquet as files

    try:
        table = files.read_table(pyarrow.BufferReader(content))
        rows: list[Row] = table.to_pylist()
        for field in table.schema:
            # The file says so: what wrote it may have known other columns.
            if (field.metadata or {}).get(b"meaning", b"").endswith(AS_JSON.encode()):
                for row in rows:
                    value = row[field.name]
                    row[field.name] = None if value is None else msgspec.json.decode(value)
    except (pyarrow.ArrowException, OSError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise BadInput(f"these are not rows that labkit wrote as Parquet: {str(error)[:200]}") from None
    return rows


def as_json(value: Any) -> str:
    """Return a value as JSON text."""
    return msgspec.json.encode(value).decode()


def _metadata(column: schema.Column | None) -> dict[str, str]:
    if column is None:
        return {"meaning": f"not in the schema of this version of labkit{AS_JSON}"}
    text = AS_JSON if column.type in ("list", "object") else ""
    return {"unit": column.unit, "meaning": f"{column.meaning}{text}", "role": column.role, "use": column.use}
