"""Load tests with TRex: shares of the line, histograms, and the published results beside them."""

import pandas as pd
import pytest

from studies import reference_tables
from studies.load_test import figure as trex_figure
from studies.load_test import finding as trex

BUCKETS = {"10": 5, "300": 15}


def rows() -> pd.DataFrame:
    """Return the rows of two load tests of one arm, of which the second is invalid."""
    shared = {
        "arm": "veth_bridge", "role": "baseline", "topology": "veth_bridge", "endpoint": "namespace", "frame": "64b",
        "trex_server": "labkit's own server", "line_pps": 1e6, "senders_count": 2, "loss_goal_ratio": 1e-4,
        "protocol": "udp", "pairs": 1, "where": "here", "cpu": "a CPU", "kernel": "6.1", "reason": None,
        "latency_buckets": None, "mtu_bytes": 1500, "nodes": "one", "line": "84 bytes on the line", "folder": "a",
    }  # fmt: skip
    result = {"part": "cost", "direction": "all", "ended": "the target was held"}
    step = {"part": "steps", "duration_s": 3.0, "offered_pps": 1e5, "requested_pps": 1e5, "loss_ratio": 0.0,
            "time_s": 2.0, "latency_p50_s": 1e-5, "latency_p99_s": 2e-5, "latency_max_s": 3e-5}  # fmt: skip
    return pd.DataFrame(
        [
            shared | result | {"point": "a", "round": 0, "status": "ok", "throughput_pps": 5e5},
            shared
            | step
            | {"point": "a", "round": 0, "direction": "all", "status": "ok", "throughput_pps": 1e5},
            shared
            | step
            | {"point": "a", "round": 0, "direction": "0→1", "status": "ok", "latency_buckets": BUCKETS},
            shared | result | {"point": "b", "round": 1, "status": "invalid", "reason": "TRex was the limit"},
            shared
            | step
            | {"point": "b", "round": 1, "direction": "0→1", "status": "invalid", "latency_buckets": BUCKETS},
        ]
    )


def test_shares_and_histogram() -> None:
    [own] = trex.shares(rows()).to_dict("records")
    assert (own["pps"], own["line_pps"], own["share"]) == (5e5, 2e6, 0.25)
    # 64 bytes: 1.48 of 1.488 Mpps on a cable, 1.42 of 1.42 Mpps with a VLAN tag in both directions together.
    table = reference_tables.trex_shares().set_index("test")
    of = {name.split(":")[0]: share for name, share in table["share"].items() if pd.notna(share)}
    assert of["baseline"] == pytest.approx(1.48 / 1.488, abs=0.001)
    assert of["64b"] == pytest.approx(1.42 / 1.4205, abs=0.001)
    assert of["imix"] == pytest.approx(0.988, abs=0.001)
    table = trex.histogram(rows())
    assert table.to_dict("records") == [
        {"arm": "64b through veth_bridge", "direction": "0→1", "bucket_us": 10, "count": 5},
        {"arm": "64b through veth_bridge", "direction": "0→1", "bucket_us": 300, "count": 15},
    ]
    both = trex.histogram(pd.concat([rows(), rows().assign(frame="imix")], ignore_index=True))
    assert dict(both.groupby("arm")["count"].sum()) == {
        "64b through veth_bridge": 20, "imix through veth_bridge": 20,
    }  # fmt: skip
    published = reference_tables.trex_histogram()
    assert set(published["direction"]) == {"published, port 0", "published, port 1"}
    assert published["count"].sum() == 805_871  # of both ports, as printed


def test_figures_show_own_and_published_results() -> None:
    table = rows()
    shown = trex_figure.line_shares(table, trex.shares(table), reference_tables.trex_shares())
    assert len(shown.data[0].x) == 1
    assert shown.data[1].name.startswith("published")
    # Points of a sweep have tests of the same name.
    table = pd.concat([rows(), rows().assign(folder="b")], ignore_index=True)
    shown = trex_figure.line_shares(table, trex.shares(table), reference_tables.trex_shares())
    places = [place for trace in shown.data for place in trace.y]
    assert len(set(places)) == len(places) == len(shown.layout.yaxis.ticktext)
    assert shown.layout.yaxis.ticktext[0] == shown.layout.yaxis.ticktext[1]
    table = rows()
    latency = trex_figure.probe_latency(table, trex.histogram(table), reference_tables.trex_histogram())
    assert [trace.name for trace in latency.data] == [
        "64b through veth_bridge: 0→1", "published, port 0", "published, port 1",
    ]  # fmt: skip
    assert sum(latency.data[0].y) == pytest.approx(1)
    many = pd.concat([trex.histogram(table).assign(arm=f"arm {number}") for number in range(12)])
    drawn = trex_figure.probe_latency(table, many, reference_tables.trex_histogram().iloc[:0]).data
    assert len({(trace.line.color, trace.line.dash) for trace in drawn}) == 12
    ramp = trex_figure.over_time(table)
    assert [trace.name for trace in ramp.data[:2]] == [
        "64b · veth_bridge · test 1: requested", "64b · veth_bridge · test 1: received",
    ]  # fmt: skip
    table = pd.concat([rows(), rows().assign(frame="imix", point="c")])
    received = [trace for trace in trex_figure.over_time(table).data if str(trace.name).endswith("received")]
    assert len({(trace.name, trace.line.color) for trace in received}) == 2
    assert len({trace.line.color for trace in received}) == 2
    # A point of a sweep has the name of another one, and lines of its own.
    table = pd.concat([rows(), rows().assign(folder="b", throughput_pps=2e5)], ignore_index=True)
    received = [
        list(one.y) for one in trex_figure.over_time(table).data if str(one.name).endswith("received")
    ]
    assert [1e5] in received
    assert [2e5] in received
    of_lines = [rows().assign(point=str(pps), line_pps=pps) for pps in (1e5, 2e4)]
    for table, count in (
        (of_lines[0], 1),
        (pd.concat(of_lines), 0),
    ):  # lines of two tests have no common rate
        assert str(trex_figure.over_time(table).layout.annotations).count("all lines full") == count
    table = rows().iloc[:0]
    for figure in (
        trex_figure.over_time(table),
        trex_figure.line_shares(table, trex.shares(table), reference_tables.trex_shares().iloc[:0]),
        trex_figure.probe_latency(table, trex.histogram(table), reference_tables.trex_histogram().iloc[:0]),
    ):
        assert "nothing to draw" in str(figure.layout.annotations)
