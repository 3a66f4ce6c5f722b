"""The price list: a known price is found, and none where the unchanged topology differs from itself."""

import re

import pandas as pd
import pytest
import synthetic_rows

from studies.what_does_it_cost.figure import price_sentences, prices

CHANGES = {"rules": 1.1, "gro": 0.8}


def priced(again: float = 1.0, of: dict[str, float] = CHANGES, **changes: object) -> pd.DataFrame:
    """Return the prices of changes; the CPU time of a packet is 10 µs without them, and `again` times as much in
    the second measurement."""
    arms = {"veth_bridge": 1.0, "veth_bridge (again)": again, **of}
    rows = synthetic_rows.rows(arms, noise=0.003, protocol="udp", **{"placement": "0,1"} | changes)
    for row in rows:
        row |= {"received_count": 1000, "cpu_s": row["throughput_bps"] / 1e10 / 100}
    return prices(pd.DataFrame(rows)).set_index("topology")


def test_known_price_is_found() -> None:
    table = priced()
    assert dict(table["word"]) == {"rules": "more expensive", "gro": "cheaper"}
    for name, ratio in CHANGES.items():
        assert table["low"][name] < ratio < table["high"][name]
        assert table["cost_s"][name] == pytest.approx(10e-6 * (ratio - 1), rel=0.05)
    first, last = price_sentences(table.reset_index())
    assert re.search(r": rules: (1\.0\d|1|0\.9\d+|9\d\d) (µs|ns) \[.+\] of CPU time for each packet;", first)
    assert re.search(r": gro: −(2|1\.9\d|2\.0\d) µs \[−.+, −.+\] of CPU time for each packet;", last)


def test_a_change_that_costs_nothing_is_said_to() -> None:
    table = priced(of={"rules": 1.1, "same": 1.0})
    assert dict(table["word"]) == {"rules": "more expensive", "same": "no difference beyond 5 %"}
    assert "no evidence" not in " ".join(price_sentences(table.reset_index()))


def test_a_baseline_that_differs_from_itself_hides_a_price() -> None:
    """By 4 %, which is within TIMES_CONTROL of each price here; no verdict is narrower than that of the throughput."""
    table = priced(again=1.04)
    assert set(table["word"]) == {"no evidence"}
    assert list(table["baseline_s"]) == pytest.approx([10e-6 * 1.04**0.5] * 2, rel=0.005)
    assert (table["low"] < 1).all()
    assert (table["high"] > 1).all()
    [line] = price_sentences(table.reset_index())
    assert "no evidence that rules and gro cost more or less" in line


def test_ends_that_the_scheduler_placed_widen_a_price() -> None:
    narrow, wide = (table["high"] - table["low"] for table in (priced(), priced(placement=None)))
    assert list(wide / narrow) == pytest.approx(
        [4.303 / 2.776] * 2, rel=0.02
    )  # Student's t of 2 and 4 degrees
