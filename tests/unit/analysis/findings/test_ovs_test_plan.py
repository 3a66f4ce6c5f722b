"""Findings and figures of the OVS test plan, from rows with known factors."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic_rows import rows as synthetic_rows
from synthetic_rows import save

from labkit import notebook
from labkit.analysis import load
from labkit.analysis import verdicts as verdict_tables
from labkit.analysis.findings import registry
from studies import reference_tables
from studies.ovs_test_plan import figure as ovs_test_plan_figure
from studies.ovs_test_plan import finding as ovs_test_plan
from studies.ovs_test_plan.finding import by_vm, factors, rates

NOISE = (0.99, 1.0, 1.01)  # of the three rounds
AGAIN = (1.03, 0.98, 1.0)  # the control relative to the baseline in these rounds
FRAMES = {"64": 1.0, "1514": 0.8}
USE_CASES = {"net_to_vm": 1.0, "vm_to_vm": 0.9}
RULES = {"l2": 1.0, "l3": 0.5}


def search(use_case: str, rules: str, frame: str, number: int, goal: float, **more: Any) -> dict[str, Any]:
    pps = 100e3 * USE_CASES[use_case] * RULES[rules] * FRAMES[frame] * NOISE[number] * (1.1 if goal else 1)
    arm = f"ovs_netdev+case={use_case}" + ("+rules=l3" if rules == "l3" else "")
    return {
        "experiment": "ovs_test_plan", "run": "a", "folder": "a", "arm": arm, "topology": arm, "endpoint": "namespace",
        "role": "baseline" if arm == "ovs_netdev+case=net_to_vm" else "variant", "status": "ok", "method": "search",
        "part": "cost", "protocol": "udp", "round": number, "frame": frame, "frame_bytes": float(frame),
        "flows_count": 64000, "pairs": 4, "mtu_bytes": 1500, "family": 4, "loss_goal_ratio": goal, "time": "2026",
        "throughput_pps": pps, "throughput_bps": pps * 8 * float(frame), "repeated_count": 0, "trials_count": 30,
        "datapath": "netdev", "use_case": use_case, "rules": rules, "rules_count": 1000, "tunnel": "off",
        "window_s": 2.0, "received_by": {f"vm{vm}": round(pps / 2) for vm in range(4)}, "datapath_cpu_s": 1.0,
        "cpu_per_packet_s": 1e-5, "upcalls_count": 10, "megaflows_count": 1024, "masks_count": 2, **more,
    }  # fmt: skip


def made() -> pd.DataFrame:
    rows = [
        search(use_case, rules, frame, number, goal)
        for use_case in USE_CASES
        for rules in RULES
        for frame in FRAMES
        for number in range(3)
        for goal in (0.0, 0.005)
    ]
    again = [
        row | {"role": "control", "arm": f"{row['arm']} (again)"}
        | {name: row[name] * AGAIN[row["round"]] for name in ("throughput_pps", "throughput_bps")}
        for row in rows
        if row["role"] == "baseline"
    ]  # fmt: skip
    return load.complete(pd.DataFrame(rows + again))


ROWS = made()


def test_planted_factors_are_found_ranked_and_have_intervals() -> None:
    table = factors(ROWS)
    assert list(table["factor"]) == [
        "rules match", "frame size (bytes)", "use case", ovs_test_plan.CONTROL
    ]  # fmt: skip
    assert list(table["ratio"]) == pytest.approx([0.5, 0.8, 0.9, 1.003], rel=1e-3)
    assert list(table["ratios_count"]) == [12, 12, 12, 6]
    assert set(table["rounds_count"]) == {3}
    assert (table["low"] <= table["ratio"]).all()
    assert (table["high"] >= table["ratio"]).all()
    assert list(table[["level", "other"]].iloc[2]) == ["network to VM", "VM to VM"]
    noisy = ROWS.copy()
    chosen = noisy["rules"].eq("l3") & noisy["round"].eq(1)
    noisy.loc[chosen, "throughput_pps"] = noisy.loc[chosen, "throughput_pps"] * 3
    [line] = factors(noisy).query("factor == 'rules match'").to_dict("records")
    assert line["low"] < 0.5 < line["high"]
    assert "the interval includes 1" in " ".join(ovs_test_plan.report(noisy))
    rows = ROWS.copy()
    rows.loc[rows["rules"].eq("l3"), "status"] = "invalid"
    assert "rules match" not in set(factors(rows)["factor"])
    assert len(factors(rows.iloc[:0])) == 0
    lost = ROWS["rules"].eq("l3") & ROWS["round"].ne(0)
    lossy = ROWS.assign(
        constant_loss_ratio=lost.map({True: 0.01}), status=ROWS["status"].mask(lost, "invalid")
    )
    assert "rules match" not in set(factors(lossy)["factor"]), "most searches with l3 found no rate"
    table = factors(ROWS[ROWS["round"].eq(0)])
    assert table["low"].isna().all()
    assert "(1 round: no interval)" in ovs_test_plan.report(ROWS[ROWS["round"].eq(0)])[0]


def test_rates_of_each_vm_and_switch() -> None:
    rows = ROWS[ROWS["arm"].eq("ovs_netdev+case=net_to_vm") & ROWS["frame"].eq("64")].copy()
    rows["received_by"] = [{"vm0": 100_000, "vm1": 110_000} for _ in range(len(rows))]
    for line in by_vm(rows).to_dict("records"):
        assert line["each receiver, packets/s"] == "50 kpps to 55 kpps"
        assert line["each receiver, bit/s"] == "25.6 Mbit/s to 28.2 Mbit/s"
        assert line["spread"] == "10 %"
        assert line["CPU ns per packet, switch"] == pytest.approx(1e9 / 210_000)
        assert (line["megaflows"], line["masks"]) == (1024, 2)
    of_arm = {
        "status": "invalid",
        "reason": "the path loses 0.2 % at every load",
        "constant_loss_ratio": 2e-3,
    }
    rows.loc[rows["round"].gt(0), list(of_arm)] = list(of_arm.values())
    assert not len(by_vm(rows)), "two of three searches found no rate, so the arm has none"
    table = rates(ROWS)
    [line] = table[
        table["arm"].eq("ovs_netdev+case=vm_to_vm+rules=l3")
        & table["frame"].eq("64")
        & table["loss_goal_ratio"].eq(0)
    ].to_dict("records")
    assert (line["use_case"], line["rules"], line["frame_bytes"]) == ("vm_to_vm", "l3", 64)
    assert line["mean_pps"] == pytest.approx(45e3, rel=1e-4)


def test_numbers_of_vms_and_of_flows_are_apart() -> None:
    """Two VMs received twice as much each as four, and 1,000 flows 1.5 times as much as 64,000."""
    rows = ROWS[ROWS["arm"].eq("ovs_netdev+case=net_to_vm") & ROWS["loss_goal_ratio"].eq(0)]
    few = rows.assign(
        pairs=2, folder="b", throughput_pps=2 * rows["throughput_pps"],
        received_by=[{name: 2 * one[name] for name in ("vm0", "vm1")} for one in rows["received_by"]],
    )  # fmt: skip
    flows = rows.assign(flows_count=1000, folder="c", throughput_pps=1.5 * rows["throughput_pps"])
    both = pd.concat([rows, few, flows], ignore_index=True)
    table = by_vm(both[both["frame"].eq("64")]).set_index(["VMs", "flows"])["each receiver, packets/s"]
    assert dict(table) == {
        ("4", "64000"): "25 kpps to 25 kpps", ("2", "64000"): "50 kpps to 50 kpps", ("4", "1000"): "25 kpps to 25 kpps",
    }  # fmt: skip
    figure = ovs_test_plan_figure.use_cases(both, rates(both), reference_tables.ovs_test_plan())
    lines = {
        trace.name: list(trace.y) for trace in figure.data if trace.showlegend and trace.mode != "markers"
    }
    assert lines == {
        f"ovs_netdev, {words}": pytest.approx([100e3 * factor, 80e3 * factor], rel=1e-4)
        for words, factor in (
            ("64000 flows, 4 VMs", 1),
            ("64000 flows, 2 VMs", 2),
            ("1000 flows, 4 VMs", 1.5),
        )
    }


def test_published_readouts_are_64_bytes() -> None:
    table = reference_tables.ovs_test_plan().set_index("use_case")
    assert list(table["frame_bytes"]) == [64, 64]
    assert table.loc["net_to_vm", "total_pps"] == 28.319e6
    assert table.loc["vm_to_net", "total_bps"] == 14.177e9


def test_figure_of_use_cases() -> None:
    figure = ovs_test_plan_figure.use_cases(ROWS, rates(ROWS), reference_tables.ovs_test_plan())
    titles = [note.text for note in figure.layout.annotations]
    assert any("network to VM" in title and "packets/s" in title for title in titles)
    [star] = [trace for trace in figure.data if trace.legendgroup == "published" and trace.showlegend]
    assert list(star.y) == [28.319e6]
    assert "namespace of this machine" in figure.layout.title.subtitle.text
    # The panel names the case, so a switch has the same style in all panels: packets and bits of two cases.
    _, _, points, _ = (trace for trace in figure.data if trace.name == "ovs_netdev")
    assert points.xaxis == "x3"
    assert list(points.x) == [64, 1514]
    assert list(points.y) == pytest.approx([99e3, 79.2e3], rel=1e-4)
    rows = ROWS.assign(
        status="invalid",
        throughput_pps=None,
        reason="generator-limited: no loss up to 200 kpps",
        lower_bound_pps=200e3,
    )
    triangles = [
        trace
        for trace in ovs_test_plan_figure.use_cases(rows, rates(rows), reference_tables.ovs_test_plan()).data
        if trace.marker.symbol == "triangle-up-open"
    ]
    assert triangles
    assert set(triangles[0].y) == {200e3}


def test_figure_of_ranked_factors() -> None:
    figure = ovs_test_plan_figure.ranked_factors(ROWS, factors(ROWS))
    line = figure.data[0]
    assert line.y[0] == "rules match: l2 → l3"
    assert list(line.x) == pytest.approx([0.5, 0.8, 0.9])
    assert list(figure.data[1].y) == [ovs_test_plan.CONTROL]
    assert ovs_test_plan_figure.ranked_factors(ROWS.iloc[:0], factors(ROWS.iloc[:0])).layout.annotations


def test_sentences_in_the_terminal() -> None:
    sentences = registry.sentences(ROWS.assign(experiment="ovs_test_plan"), lambda: ROWS.iloc[:0])
    assert any(
        line.startswith("- **rules match** l2 → l3: the rate is 0.5 times as high") for line in sentences
    )
    assert any("NDR" in line for line in sentences)


def test_two_switches_are_compared_by_ndr_and_pdr_with_the_control() -> None:
    """`labkit run throughput topology=A,B` and this experiment end with this comparison."""
    table = verdict_tables.verdicts(ROWS)
    some = table[table["topology"].eq("ovs_netdev+case=net_to_vm+rules=l3") & table["frame"].eq("64")]
    assert set(some["loss_goal_ratio"]) == {0.0, 0.005}
    assert list(some["ratio"]) == pytest.approx([0.5 / 1.003**0.5] * 2, rel=1e-3)
    assert list(some["control_ratio"]) == pytest.approx([1.003] * 2, rel=1e-3)
    assert set(some["word"]) == {"slower"}


def test_headline_of_a_search(tmp_path: Path) -> None:
    """A search has no load with a protocol parameter, because it sends frames."""
    parameters = {"mtu_bytes": 1500, "frame_bytes": ["64"]}
    folder = save(
        tmp_path / "run",
        synthetic_rows(),
        parameters=parameters,
        why_stopped={"4": "all 3 rounds were searched"},
    )
    assert (
        "4 pairs: all 3 rounds were searched (frames at MTU 1500)"
        in notebook.open_run(folder).headline().data
    )
