"""What a run of virtual_tap shows beside the thesis: its tables, the drop by size, and where copies were lost."""

from typing import Any

import pandas as pd
import pytest
import synthetic_rows

from labkit.analysis import load, verdicts
from studies import reference_tables
from studies.virtual_tap import figure as virtual_tap_figure
from studies.virtual_tap import finding as virtual_tap

LEFT = {0: 1.0, 1: 0.8, 4: 0.5}  # of the throughput, by the number of mirrors


def row(topology: str, **given: Any) -> dict[str, Any]:
    return {
        "experiment": "virtual_tap", "run": "made", "point": "1-r0", "round": 0, "method": "slice", "slice": 0,
        "arm": topology, "role": "variant", "where": "here", "topology": topology, "protocol": "udp", "status": "ok",
        "kernel": "6.1", "nodes": "one", "endpoint": "namespace", "pairs": 1, "mtu_bytes": 1500, "length_bytes": 1024,
        "family": 4, "streams": 1, "window_s": 1.0, "throughput_bps": 1e9, **given,
    }  # fmt: skip


def mirrored(length_bytes: int) -> list[dict[str, Any]]:
    """Return slices of six rounds in which mirrors take their part of the throughput, with a little noise."""
    ratios = {f"ovs_netdev+mirrors={mirrors}": left for mirrors, left in LEFT.items() if mirrors}
    return synthetic_rows.rows(
        {"ovs_netdev": 1.0, "ovs_netdev (again)": 1.0} | ratios, rounds=6, slices=4, noise=0.002,
        experiment="virtual_tap", protocol="udp", length_bytes=length_bytes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return load.complete(pd.DataFrame([*mirrored(512), *mirrored(1024)]))


@pytest.fixture(scope="module")
def lines(rows: pd.DataFrame) -> pd.DataFrame:
    return virtual_tap.against_none(rows, verdicts.verdicts(rows))


@pytest.mark.parametrize(
    ("protocol", "rate_bps", "thesis"), [("tcp", None, "up to 20 %"), ("udp", None, ""), ("tcp", 1e9, "")]
)
def test_drop_by_size_beside_the_thesis(
    rows: pd.DataFrame, protocol: str, rate_bps: float | None, thesis: str
) -> None:
    """The thesis' number is of unlimited TCP in writes of 1,024 bytes, and of no other load."""
    rows = rows.assign(protocol=protocol, rate_bps=rate_bps)
    result = virtual_tap.drops(rows, verdicts.verdicts(rows))
    loads = [load.partition(" bytes")[0] for load in result["load"]]
    assert loads == [f"{protocol}, {size}" for size in (512, 1024)]
    assert list(result["thesis"]) == ["", thesis]
    for text in result["drop"]:
        drop, low, high = (float(word.strip("[],%")) for word in text.split()[:3])
        assert low <= drop <= high
        assert drop == pytest.approx(20, abs=0.5)


def test_throughput_against_mirrors_beside_the_thesis(rows: pd.DataFrame, lines: pd.DataFrame) -> None:
    thesis = reference_tables.thesis_count()
    figure = virtual_tap_figure.mirror_count(rows, lines, thesis)
    # There is a panel for each load, and none of them is the thesis'.
    assert [trace.name for trace in figure.data] == ["ovs_netdev"] * 2
    for trace in figure.data:
        assert list(trace.x) == list(LEFT)
        assert list(trace.y) == pytest.approx(list(LEFT.values()), abs=0.01)
    alone = lines[lines["length_bytes"].eq(512) & lines["mirrors"].eq(1)]
    both = pd.concat([lines, alone.assign(curve="ovs_netdev+output=gre")])
    assert len(virtual_tap_figure.mirror_count(rows, both, thesis).data) == 2
    likewise = lines[lines["length_bytes"].eq(512)].assign(protocol="tcp", length_bytes=64.0)
    figure = virtual_tap_figure.mirror_count(rows, likewise, thesis)
    published = [trace for trace in figure.data if "Senanayake" in trace.name]
    assert [list(trace.x) for trace in published] == [[0, 1, 2, 4, 8]] * 2
    assert [trace.y[-1] for trace in published] == pytest.approx([233 / 235, 234 / 235])


def test_tables_of_the_thesis(rows: pd.DataFrame, lines: pd.DataFrame) -> None:
    counted = reference_tables.thesis_count().set_index("mirrors")
    assert dict(counted.loc[8]) == {
        "with ifstat": 233, "without ifstat": 234, "CPI with ifstat": 1.53321, "CPI without ifstat": 1.45719
    }  # fmt: skip
    assert counted.loc[0, "with ifstat"] == counted.loc[0, "without ifstat"] == 235
    left = reference_tables.thesis_uplink()
    assert len(left) == 15
    assert left["captured_bps"].iloc[0] == pytest.approx(0.783e9 * 8 / 60)
    # iperf3's GBytes have 2^30 bytes: what was sent is what was offered (the first number has three digits alone).
    assert list(left["sent_bps"] / left["offered_bps"]) == pytest.approx([1] * 15, abs=0.025)
    assert list(left["sent_bps"] / left["offered_bps"])[1:] == pytest.approx([1] * 14, abs=0.003)
    assert left["offered_bps"].iloc[-1] == 1.5e9
    nothing = reference_tables.thesis_count().iloc[:0]
    assert len(virtual_tap_figure.mirror_count(rows, lines, nothing).data) == 2


def counted(topology: str, cycles: int | None, instructions: int | None, **given: Any) -> dict[str, Any]:
    """Return the row of a run beside perf_stat of the switch."""
    reason = "this machine has no such counter"
    events = {
        name: {"count": count, "running_ratio": 1.0, "reason": None if count is not None else reason}
        for name, count in (("cycles", cycles), ("instructions", instructions))
    }
    report = {"scope": "processes 17", "events": events}
    return row(topology, method="profile", observer="perf_stat", observed=report, **given)


def test_cycles_per_instruction_of_the_switch() -> None:
    """Those of other scopes and without an observer do not count."""
    mirrored = [
        counted("ovs_netdev+mirrors=1", cycles, 1000, round=at) for at, cycles in enumerate((1500, 1700))
    ]
    plain = counted("ovs_netdev", 1200, 1000)
    machine = counted("ovs_netdev", 9000, 1000)
    machine["observed"]["scope"] = "whole machine"
    table, why = virtual_tap.cycles_per_instruction(
        load.complete(pd.DataFrame([plain, *mirrored, machine, row("ovs_netdev")]))
    )
    assert why == ""
    # The interval of two rounds: 1.6 plus and minus 12.706 times the standard error 0.1.
    assert list(table["cycles per instruction"]) == ["1.20", "1.60 [0.33, 2.87]"]
    assert list(table["switch"]) == ["ovs_netdev", "ovs_netdev+mirrors=1"]
    table, why = virtual_tap.cycles_per_instruction(pd.DataFrame([counted("ovs_netdev", None, None)]))
    assert not len(table)
    assert (
        why == "Cycles and instructions of ovs-vswitchd were not counted: this machine has no such counter."
    )
    _table, why = virtual_tap.cycles_per_instruction(pd.DataFrame([row("ovs_netdev", observer=None)]))
    assert why == virtual_tap.NO_CYCLES


def test_where_copies_are_lost() -> None:
    """Of 1,000 copies, 600 arrive, and the link's queue drops 300. The rest is lost elsewhere."""
    name = "ovs_netdev+mirrors=1+output=gre+uplink_bps=100000000"
    counts = {"copies_expected_count": 1000, "copies_count": 600, "copies_dropped_count": 300}
    plain = row("ovs_netdev", rate_bps=1.6e8, role="baseline")
    made = load.complete(pd.DataFrame([row(name, rate_bps=1.6e8, **counts), plain]))
    table = virtual_tap.uplink(made).set_index("topology")
    assert table.loc[name, "arrived_share"] == pytest.approx(0.6)
    assert table.loc[name, "link_lost_share"] == pytest.approx(0.3)
    assert table.loc[name, "other_lost_share"] == pytest.approx(0.1)
    assert pd.isna(table.loc["ovs_netdev", "link_lost_share"])
    often = virtual_tap.uplink(made.assign(copies_dropped_count=[500, None])).set_index("topology").loc[name]
    assert often["link_lost_share"] == pytest.approx(0.4), "no more than what did not arrive"
    assert often["other_lost_share"] == pytest.approx(0)
    figure = virtual_tap_figure.uplink(made, virtual_tap.uplink(made), reference_tables.thesis_uplink())
    assert {trace.line.dash for trace in figure.data} >= {"solid", "dot", "dash", "longdash"}
    # Another kernel, and another size, are lines of their own.
    others = [made.assign(kernel="6.18", copies_count=900), made.assign(length_bytes=64, copies_count=300)]
    both = pd.concat([made, *others], ignore_index=True)
    table = virtual_tap.uplink(both)
    shares = table.loc[table["topology"].eq(name), "arrived_share"]
    assert sorted(shares) == pytest.approx([0.3, 0.6, 0.9])
    figure = virtual_tap_figure.uplink(both, table, reference_tables.thesis_uplink())
    arrived = [one for one in figure.data if one.legendgroup == name and one.line.dash == "solid"]
    assert sorted(one.y[0] for one in arrived) == pytest.approx([0.3, 0.6, 0.9])
    assert len({one.xaxis for one in arrived}) == 3, "each has its own panel"
    for rate_bps, is_drawn in ((1e9, True), (1e10, False)):
        fast = table.assign(uplink_bps=rate_bps)
        figure = virtual_tap_figure.uplink(both, fast, reference_tables.thesis_uplink())
        assert any("Senanayake" in one.name for one in figure.data) == is_drawn
