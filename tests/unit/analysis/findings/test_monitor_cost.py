"""What readers cost: known costs are recovered from rows, with their losses, verdicts, table, sentences and figure."""

import re

import numpy as np
import pandas as pd
import pytest
from synthetic_rows import ROW

from labkit.analysis import load, verdicts
from labkit.analysis.findings import registry
from studies.monitor_cost import figure as monitor_cost_figure
from studies.monitor_cost import finding as monitor_cost

pytestmark = pytest.mark.long

PACKET_S = 2e-6
ADDED_S = {"socket": 1e-7, "monitor": 1.1e-7, "tshark": 25e-6, "tcpdump": 4e-7}
LOADS = (10_000.0, 50_000.0, None)
COUNT = 100_000
NAMES = {"none": "veth", "again": "veth (again)"}
FOUND = {"tshark": 75, "socket": 100, "monitor": 100}
OBSERVED = {"tcpdump": 0.9}  # a tenth of the flow's throughput is gone, of the other flows nothing


def rows(rounds: int = 5) -> pd.DataFrame:
    rng = np.random.default_rng(18)
    result = []
    for number in range(rounds):
        drift_s = rng.normal(0, 2e-7)  # of the machine, from round to round
        for load_pps in LOADS:
            for reader in ("none", "again", *ADDED_S):
                usual = reader in ("none", "again")
                cost_s = PACKET_S + drift_s + ADDED_S.get(reader, 0) + rng.normal(0, 1e-9)
                slowed = 0.8 if reader == "tshark" and load_pps is None else 1.0
                pps = (load_pps or 5e5) * slowed * np.exp(rng.normal(0, 1e-3))
                result.append(
                    ROW
                    | {
                        "experiment": "monitor_cost", "protocol": "udp", "generator": "packets", "method": "whole",
                        "topology": "veth", "arm": NAMES.get(reader, f"veth+{reader}"),
                        "role": {"none": "baseline", "again": "control"}.get(reader, "variant"),
                        "change": None if usual else reader, "changed": None if usual else [],
                        "round": number, "point": f"1-r{number}", "load_pps": load_pps, "offered_pps": pps,
                        "offered_count": COUNT, "throughput_pps": pps, "throughput_bps": pps * 512, "window_s": 1.0,
                        "cpu_s": cost_s * COUNT, "cpu_per_sent_s": cost_s, "part": "cost", "frame": "64",
                        "flows_count": 1000, "reader_cpu_s": None if usual else ADDED_S[reader] * COUNT,
                        "reader_late_s": None if usual else 3.0 * (reader == "tshark"),
                        "reader_taken_count": {"tcpdump": 90_000, "socket": 100, "monitor": 100}.get(reader),
                        "reader_dropped_count": {"tcpdump": 10_000, "socket": 0, "monitor": 0}.get(reader),
                        "wanted_count": 100, "wanted_found_count": FOUND.get(reader),
                        "wanted_received_count": 100, "wanted_throughput_pps": OBSERVED.get(reader, 1) * pps / 1000,
                    }
                )  # fmt: skip
    return load.complete(pd.DataFrame(result))


def test_added_cost_and_loss_of_each_reader() -> None:
    known = monitor_cost.costs(rows()).set_index(["reader", "offered_pps"])
    table = monitor_cost.costs(rows())
    assert len(known) == len(table) == 3 * (1 + len(ADDED_S))
    for one in table[table["reader"].ne("nobody")].to_dict("records"):
        assert one["added"].value == pytest.approx(ADDED_S[one["reader"]], abs=5e-9)
        assert one["added"].low < ADDED_S[one["reader"]] < one["added"].high or one["added"].high < 1e-6
        assert one["reader_cpu"].value == pytest.approx(ADDED_S[one["reader"]])
        assert one["rounds_count"] == 5
    assert list(dict.fromkeys(table["load_pps"].fillna(0))) == [10_000, 50_000, 0]  # the most comes last
    table = monitor_cost.costs(rows()).groupby("reader")["lost_share"].max()
    assert table["tshark"] == pytest.approx(0.25)
    assert table["tcpdump"] == pytest.approx(0.1)
    assert table["monitor"] == 0
    assert np.isnan(table["nobody"])


def test_verdicts_are_about_throughput_and_about_cpu_time() -> None:
    df = rows()
    throughput = verdicts.verdicts(df).set_index(["topology", "load_pps"])["word"]
    cpu = monitor_cost.cpu_verdicts(df).set_index(["topology", "load_pps"])
    assert throughput["tshark"].tolist() == ["no difference beyond 5 %"] * 2 + ["slower"]
    assert set(throughput["monitor"]) == {"no difference beyond 5 %"}
    assert set(cpu.loc["tshark", "word"]) == {"slower"}
    assert cpu.loc["tshark", "ratio"].between(10, 20).all()
    assert "tshark is slower than veth: it takes" in cpu.loc["tshark", "sentence"].iloc[0]


def test_sentences_and_ratios() -> None:
    lines = registry.sentences(rows().assign(experiment="monitor_cost"), pd.DataFrame)
    text = "\n".join(lines)
    assert "- **tshark**, 10 kpps: 25 µs" in text
    assert "it lost 25 % of the packets; it went on for more than 3 s after the traffic" in text
    assert "At 10 kpps the monitor adds 1.1 times what a bare packet socket adds." in text
    assert "times what tshark on everything adds" in text
    assert "the watched traffic changed by −20 %" in text
    [tcpdump] = [line for line in lines if line.startswith("- **tcpdump**, 10 kpps")]
    assert "the observed flow changed by −10 %" in tcpdump
    assert "watched traffic" not in tcpdump
    df = rows()
    noise = np.random.default_rng(3).normal(0, 1e-3, len(df))
    lines = monitor_cost.findings(df.assign(cpu_per_sent_s=df["cpu_per_sent_s"] + noise))
    silent = [line for line in lines if "no cost of" in line]
    assert (
        "10 kpps: no cost of socket, monitor is shown (each interval includes 0), and they lost nothing."
        in silent
    )
    assert any(line.startswith("**tcpdump**, 10 kpps: ") and "it lost 10 %" in line for line in lines)
    counts = ["reader_taken_count", "wanted_found_count"]
    unknown = df.assign(cpu_per_sent_s=df["cpu_per_sent_s"] + noise)
    unknown.loc[unknown["change"].eq("monitor"), counts] = np.nan
    lines = monitor_cost.findings(unknown)
    assert any(line.startswith("**monitor**, 10 kpps: ") and "includes 0" in line for line in lines)
    unsure = df.assign(cpu_per_sent_s=df["cpu_per_sent_s"] + 1e-3 * noise * df["change"].eq("monitor"))
    assert "the monitor adds" not in " ".join(monitor_cost.findings(unsure)), "its interval includes 0"


def test_two_measurements_without_a_reader_that_differ_widen_the_costs() -> None:
    """By 0.1 µs, which with TIMES_CONTROL hides what cheap readers add, and not what tshark adds."""
    df = rows()
    again = df["role"].eq("control")
    noisy = df.assign(cpu_per_sent_s=df["cpu_per_sent_s"] + 1e-7 * again)
    known = monitor_cost.costs(noisy).set_index("reader")["added"].dropna()
    assert {name for name, one in known.items() if one.excludes_zero} == {"tshark"}
    usual = monitor_cost.costs(df).set_index("reader")["added"].dropna()
    assert {name for name, one in usual.items() if one.excludes_zero} == set(ADDED_S)


def test_hosts_and_frames_are_apart() -> None:
    """A reader costs ten times as much in an emulated kernel, and a frame of another size three times."""
    df = rows()
    there = {"kernel": "6.1", "accelerator": "tcg", "folder": "b"}
    emulated = df.assign(**there, cpu_per_sent_s=10 * df["cpu_per_sent_s"])
    large = df.assign(frame="1514", folder="c", cpu_per_sent_s=3 * df["cpu_per_sent_s"])
    both = pd.concat([df, emulated, large], ignore_index=True)
    known = monitor_cost.costs(both)
    of_tshark = known[known["reader"].eq("tshark") & known["load_pps"].eq(10_000)]
    factors = [one.value / ADDED_S["tshark"] for one in of_tshark["added"]]
    assert sorted(factors) == pytest.approx([1, 3, 10], rel=0.01)
    assert of_tshark["point"].nunique() == 3
    lines = [line for line in monitor_cost.findings(both) if line.startswith("**tshark**, 10 kpps (udp")]
    assert len(lines) == 3
    drawn = monitor_cost_figure.monitor_cost(both, known)
    assert len({trace.legendgroup for trace in drawn.data}) == 3 * len(ADDED_S)


def test_table_and_figures() -> None:
    df = rows()
    table = monitor_cost.table(df)
    assert table.iloc[0]["reader"] == "nobody"
    assert table.iloc[0]["CPU of the machine, added per packet"] == ""
    observed = dict(zip(table["reader"], table["observed flow"], strict=True))  # at the last load
    assert observed["nobody"].endswith(" pps")
    assert re.fullmatch(r"(39|40)\d pps \(−20 % \[.+\]\)", observed["tshark"])
    drawn = monitor_cost_figure.monitor_cost(df, monitor_cost.costs(df))
    assert {trace.name for trace in drawn.data} == set(ADDED_S)
    [tshark] = [one for one in drawn.data if one.name == "tshark" and one.yaxis == "y"]
    assert list(tshark.y) == pytest.approx([25, 25, 25], rel=0.01)
    changes = {one.name: list(one.y) for one in drawn.data if one.yaxis == "y3"}
    assert changes.keys() == ADDED_S.keys()
    assert changes["tcpdump"] == pytest.approx([-10, -10, -10], abs=0.3)
    assert changes["tshark"] == pytest.approx([0, 0, -20], abs=0.3)
    assert changes["monitor"] == pytest.approx([0, 0, 0], abs=0.3)
    old = load.complete(rows().drop(columns=["wanted_received_count", "wanted_throughput_pps"]))
    assert set(monitor_cost.table(old)["observed flow"]) == {""}
    assert not any(
        one.yaxis == "y3" for one in monitor_cost_figure.monitor_cost(old, monitor_cost.costs(old)).data
    )
    none = rows().assign(status="failed", reason="no reader")
    assert len(monitor_cost.costs(none)) == 0
    assert monitor_cost.findings(none) == []
    assert not monitor_cost_figure.monitor_cost(none, monitor_cost.costs(none)).data
    drawn = monitor_cost_figure.selected([0.0, 0.5, 1.0], {"seen": [0, 100, 300], "selected": [0, 10, 30]})
    assert [list(trace.y) for trace in drawn.data] == [[200, 400], [20, 40]]
