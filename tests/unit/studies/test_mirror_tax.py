"""The cost of a mirrored copy: found in made-up rounds with a known cost, and withheld where it cannot be known."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from labkit.analysis import load
from studies.virtual_tap import figure as virtual_tap_figure
from studies.virtual_tap import finding as virtual_tap
from studies.virtual_tap import mirror_tax

pytestmark = pytest.mark.long

MIRRORS = (0, 1, 2, 4, 8)
FIXED_S, COPY_S = 5e-6, 2e-6
PACKETS = 1000


def row(
    round_: int,
    mirrors: int,
    cost_s: float,
    *,
    switch: str = "ovs_netdev",
    options: str = "",
    plain: str = "",
    **given: Any,
) -> dict[str, Any]:
    name = switch + (f"+mirrors={mirrors}{options}" if mirrors else plain)
    return {
        "experiment": "virtual_tap", "run": "made", "point": f"1-r{round_}", "method": "slice", "arm": name,
        "role": "variant" if mirrors else "baseline", "where": "here", "topology": name, "protocol": "udp",
        "status": "ok", "kernel": "6.1", "nodes": "one", "endpoint": "namespace", "round": round_, "pairs": 1,
        "mtu_bytes": 1500, "length_bytes": 64, "family": 4, "streams": 1, "switched_count": PACKETS,
        "switch_cpu_s": cost_s * PACKETS, "cpu_s": 4 * cost_s * PACKETS, "received_count": PACKETS, "window_s": 0.07,
        "copies_count": mirrors * PACKETS, "copies_expected_count": mirrors * PACKETS, "copies_unread_count": 0,
        **given,
    }  # fmt: skip


def rounds(count: int = 6, *, bend: float = 0.0, options: str = "", **given: Any) -> pd.DataFrame:
    """Return rounds that vary as set-ups do, with a little noise in every arm."""
    rng = np.random.default_rng(1)
    result = []
    for number in range(count):
        common = rng.normal(1, 0.05)
        for mirrors in MIRRORS:
            cost = (FIXED_S + COPY_S * mirrors + bend * COPY_S * mirrors**2) * common * rng.normal(1, 0.01)
            result += [row(number, mirrors, cost, options=options, **given)] * 2
    return load.complete(pd.DataFrame(result))


def of(taxes: list[mirror_tax.Tax], cost: str) -> mirror_tax.Tax:
    [result] = [one for one in taxes if one.cost == cost]
    return result


def test_cost_of_a_packet_and_a_copy() -> None:
    result = of(mirror_tax.taxes(rounds()), "switch_per_packet_s")
    assert list(result.copies) == list(MIRRORS)
    for estimate, true in ((result.fixed, FIXED_S), (result.copy, COPY_S)):
        assert estimate.low < true < estimate.high
        assert estimate.value == pytest.approx(true, rel=0.1)
    assert not result.line.misfits
    assert of(mirror_tax.taxes(rounds()), "cpu_per_packet_s").copy.value == pytest.approx(4 * COPY_S, rel=0.1)  # type: ignore[union-attr]


def test_misfits_and_emulation_are_said() -> None:
    result = of(mirror_tax.taxes(rounds(bend=0.2)), "switch_per_packet_s")
    assert result.line.misfits
    assert "the points do not lie on a line" in virtual_tap.tax_sentences([result])[0]
    sentences = virtual_tap.tax_sentences(mirror_tax.taxes(rounds(accelerator="tcg")))
    assert all("udp, 64 bytes, emulated CPU" in one for one in sentences)
    assert "emulated" not in " ".join(virtual_tap.tax_sentences(mirror_tax.taxes(rounds(accelerator="kvm"))))


def test_counted_copies_decide() -> None:
    """Mirrors that copy only half of the packets make half of the copies. The cost is per copy."""
    half = rounds()["copies_count"] / 2
    halved = rounds().assign(copies_count=half, copies_expected_count=half)
    result = of(mirror_tax.taxes(halved), "switch_per_packet_s")
    assert list(result.copies) == [mirrors / 2 for mirrors in MIRRORS]
    assert result.copy.value == pytest.approx(2 * COPY_S, rel=0.1)


def test_readers_and_loads_are_separate() -> None:
    read = rounds(options="+readers=count")
    tables = [rounds(), read[read["role"].eq("variant")], rounds(length_bytes=512)]
    result = mirror_tax.taxes(pd.concat(tables, ignore_index=True))
    assert {(one.curve, one.of["length_bytes"]) for one in result} == {
        ("ovs_netdev", 64), ("ovs_netdev+readers=count", 64), ("ovs_netdev", 512),
    }  # fmt: skip
    assert {tuple(one.arms) for one in result} == {("0", "1", "2", "4", "8")}


@pytest.mark.parametrize(
    ("topology", "options", "role"),
    [("+watched", "", "variant"), ("/container", "", "variant"), ("", "+cpu=0", None)],
    ids=["a changed arm", "other ends", "a switch bound to a CPU"],
)
def test_other_switches_are_curves_of_their_own(topology: str, options: str, role: str | None) -> None:
    """Each costs twice as much as the switch alone, from its own baseline on."""
    other = rounds(options=options, plain=options)
    dear = other.assign(
        topology=other["topology"] + topology,
        role=role or other["role"],
        switch_cpu_s=2 * other["switch_cpu_s"],
    )
    result = mirror_tax.taxes(pd.concat([rounds(), dear], ignore_index=True))
    of_curve = {one.curve: one for one in result if one.cost == "switch_per_packet_s"}
    assert of_curve.keys() == {"ovs_netdev", f"ovs_netdev{topology}{options}"}
    for one, factor in zip(of_curve.values(), (1, 2), strict=True):
        assert one.arms == ["0", "1", "2", "4", "8"]
        assert one.fixed.value == pytest.approx(factor * FIXED_S, rel=0.1)  # type: ignore[union-attr]
        assert one.copy.value == pytest.approx(factor * COPY_S, rel=0.1)  # type: ignore[union-attr]


def test_rounds_and_costs_that_cannot_be_known() -> None:
    result = mirror_tax.taxes(rounds(switch="ovs"))
    assert {one.cost for one in result} == {"cpu_per_packet_s"}
    table = rounds()
    empty = table["round"].eq(2) & table["topology"].eq("ovs_netdev+mirrors=8")
    table = table.assign(switched_count=table["switched_count"].mask(empty, 3))
    result = of(mirror_tax.taxes(table), "switch_per_packet_s")
    assert result.left_out == ["1 of 6 rounds left out: an arm has fewer than 100 packets, or none measured"]
    assert len(result.values) == 5
    one = table[table["topology"].isin(["ovs_netdev", "ovs_netdev+mirrors=1"])]
    assert mirror_tax.taxes(one) == []
    two = table[table["topology"].isin(["ovs_netdev+mirrors=1", "ovs_netdev+mirrors=2"])]
    assert {tax.why for tax in mirror_tax.taxes(two)} == {
        "a line needs 3 numbers of mirrors, and there are 2"
    }


def test_only_rounds_of_the_curve_can_be_left_out() -> None:
    """Another grid point has the same switch and load, but no arm of this curve."""
    elsewhere = rounds(folder="elsewhere")
    both = pd.concat([rounds(), elsewhere[elsewhere["topology"].eq("ovs_netdev")]], ignore_index=True)
    result = of(mirror_tax.taxes(both), "switch_per_packet_s")
    assert not result.left_out
    assert len(result.values) == 6
    failed = both["folder"].ne("elsewhere") & both["round"].eq(2) & both["mirrors"].gt(0)
    both = both.assign(status=both["status"].mask(failed, "failed"))
    result = of(mirror_tax.taxes(both), "switch_per_packet_s")
    assert result.left_out == ["1 of 6 rounds left out: an arm has fewer than 100 packets, or none measured"]


def test_missing_and_unread_copies_are_reported() -> None:
    table = rounds()
    eight = table["topology"].eq("ovs_netdev+mirrors=8")
    worse = table.assign(
        copies_count=table["copies_count"].mask(eight, 0.5 * table["copies_count"]),
        copies_unread_count=table["copies_unread_count"].mask(eight, 0.1 * table["copies_count"]),
    )
    sentences = virtual_tap.copies(worse)
    assert sentences[0].startswith("At 3 of 4 points (arm and load) all copies of every mirror arrived")
    assert "50 % of the copies arrived" in sentences[1]
    assert "the reader did not get 20 % of the copies" in sentences[2]
    assert len(sentences) == 3


def test_mirror_without_copies_is_named() -> None:
    """The total hides it: mirror2 makes the copies that mirror1 does not make. Readers of two mirrors miss some."""
    table = rounds()
    two = table["topology"].eq("ovs_netdev+mirrors=2")
    lists = [([2 * PACKETS, 0], [400, 0]) if one else (None, None) for one in two]
    of_mirrors, unread = zip(*lists, strict=True)
    sentences = virtual_tap.copies(table.assign(copies_of_mirrors=of_mirrors, unread_of_mirrors=unread))
    assert sentences[0].startswith("At 3 of 4 points (arm and load) all copies of every mirror arrived")
    assert "100 % of the copies arrived: 0 % of mirror1's, 200 % of mirror0's." in sentences[1]
    assert len(sentences) == 3
    alike = virtual_tap.copies(
        table.assign(copies_of_mirrors=[[PACKETS] * 2 if one else None for one in two])
    )
    assert alike[0].startswith("At 4 of 4 points")
    assert len(alike) == 1


def test_figure_panels() -> None:
    table = pd.concat([rounds(), rounds(length_bytes=512)], ignore_index=True)
    taxes = mirror_tax.taxes(table)
    figure = virtual_tap_figure.mirror_tax(table, taxes)
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert len(lines) == len(taxes) == 4
    for trace, tax in zip(lines, taxes, strict=True):
        slope = (trace.y[1] - trace.y[0]) / (trace.x[1] - trace.x[0])
        assert slope * 1e-6 == pytest.approx(tax.copy.value)
