"""Rows survive Parquet: numbers, texts, flags, null, lists and objects."""

from __future__ import annotations

import pytest

from labkit.analysis import parquet_rows
from labkit.common.errors import BadInput

ROW = {
    "arm": "veth", "pairs": 2, "throughput_bps": 1.5e9, "zerocopy": True, "reason": None,
    "changed": [{"at": "server", "kind": "offload"}], "observed": {"functions": {"ip_rcv": {"p50_s": 1e-6}}},
    "of_a_newer_labkit": {"a": [1]},
}  # fmt: skip


def test_rows_come_back() -> None:
    rows = [ROW, ROW | {"arm": "ä\n", "changed": None, "throughput_bps": None}]
    assert parquet_rows.decode(parquet_rows.encode(rows, "0.1.0")) == rows


def test_column_that_a_row_lacks_is_none() -> None:
    rows = [{"arm": "veth"}, {"arm": "veth", "pairs": 1}]
    assert parquet_rows.decode(parquet_rows.encode(rows, "0.1.0"))[0] == {"arm": "veth", "pairs": None}


def test_other_files_are_refused() -> None:
    with pytest.raises(BadInput, match="not rows that labkit wrote as Parquet"):
        parquet_rows.decode(b"PAR1 and nothing else")
