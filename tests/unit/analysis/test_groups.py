"""Dividing and completing tables takes short cuts, and gives what the plain way gives."""

import pandas as pd
import pytest
from conftest import ROOT

from labkit.analysis import load


@pytest.mark.parametrize("name", ["container_vs_vm", "switched", "virtual_tap"])
def test_groups_are_those_of_all_columns(name: str) -> None:
    table = load.load(ROOT / "data/results" / name)
    plain = [
        (tuple(None if pd.isna(value) else value for value in key), list(rows.index))
        for key, rows in table.groupby(load.GROUP, dropna=False)
    ]
    assert [(key, list(rows.index)) for key, rows in load.groups(table)] == plain
    first = next(rows for _, rows in load.groups(table))
    [(key, rows)] = load.groups(first)  # no column has several values
    assert (key, list(rows.index)) == plain[0]
    assert list(load.groups(table[:0])) == []


def test_complete_table_stays_what_it_is() -> None:
    table = load.load(ROOT / "data/results/switched")
    pd.testing.assert_frame_equal(load.complete(table), table)
    few = table[table["status"].eq("ok")][3:]
    pd.testing.assert_frame_equal(load.complete(few), few.reset_index(drop=True))
    without = table.drop(columns="reason")
    assert load.complete(without)["reason"].isna().all()


def test_numbers_of_an_experiment_are_in_its_tables_and_in_no_others() -> None:
    row = {"topology": "veth", "protocol": "tcp", "status": "failed", "run": "r", "arm": "veth"} | {
        "role": "variant"
    }
    own = load.complete(pd.DataFrame([row | {"experiment": "latency_under_load"}]))
    assert own["increase_p50_s"].dtype.kind == "f"
    assert own["increase_p50_s"].isna().all()
    assert "increase_p50_s" not in load.complete(pd.DataFrame([row | {"experiment": "datapaths"}]))


def test_second_measurements_are_a_column_which_older_rows_get_from_the_name() -> None:
    own = {"topology": "veth", "protocol": "tcp", "status": "ok", "run": "r", "role": "variant"}
    arms = [("veth", False), ("second", True), ("veth (again)", None), ("x", None)]
    rows = [own | {"arm": arm, "again": again} for arm, again in arms]
    table = load.complete(pd.DataFrame(rows))
    assert list(table["again"]) == [False, True, True, False]
    assert list(load.complete(table)["again"]) == [False, True, True, False]
    older = pd.DataFrame([{name: value for name, value in row.items() if name != "again"} for row in rows])
    assert list(load.complete(older)["again"]) == [False, False, True, False]
