"""The output of Open vSwitch 3.1 is parsed (userspace datapath here, kernel datapath of Debian 12)."""

import pytest
from conftest import sample

from labkit.measure.observers import switch

STATS = sample("ovs-3.1-pmd-stats-show.txt")


def test_output_of_open_vswitch() -> None:
    ports, own, state = switch.datapaths(sample("ovs-3.1-dpctl-show.txt"))
    assert list(ports) == ["ovs-netdev", "port0"]
    assert (ports["port0"]["rx_packets"], ports["port0"]["tx_packets"]) == (250, 251)
    assert (ports["port0"]["rx_dropped"], ports["ovs-netdev"]["tx_dropped"]) == (1, 7)
    assert own == {"hit": 502, "missed": 2, "lost": 3}
    assert state == {"flows": 2}
    _ports, own, state = switch.datapaths(sample("ovs-3.1-dpctl-show-kernel.txt"))
    assert own == {"hit": 18, "missed": 6, "lost": 0, "masks_hit": 47}
    assert state == {"flows": 4, "masks": 2}
    [flow] = switch.flows(sample("ovs-3.1-dpctl-dump-flows.txt")).values()
    assert (flow["packets"], flow["actions"]) == (251, "port0,mirror0,mirror1")
    assert flow["match"].startswith("recirc_id(0),in_port(port1),packet_type(ns=0,id=0),eth(src=")
    assert "skb_priority" not in flow["match"]
    assert switch.caches(STATS) == {
        "packets received": 504, "emc hits": 360, "megaflow hits": 143, "miss with success upcall": 2,
        "idle cycles": 300, "processing cycles": 100,
    }  # fmt: skip
    text = "xlate_actions              0.0/sec     0.000/sec        0.0000/sec   total: 4\n109 events never hit\n"
    assert switch.coverage(text) == {"xlate_actions": 4}


def test_averages_of_all_threads_are_weighted() -> None:
    """The second thread got a third of the packets of the first, and no packet of it hit a megaflow."""
    text = STATS.replace("packets received: 504", "packets received: 30") + "  packets received: 10\n"
    text += "  avg. datapath passes per packet: 2.50\n  avg. packets per output batch: 2.00\n"
    assert switch.averages(text) == {
        "datapath passes per packet": pytest.approx((3 * 1.5 + 2.5) / 4),
        "subtable lookups per megaflow hit": 1.25,
        "packets per output batch": pytest.approx(4 / (3 / 4 + 1 / 2), abs=1e-4),
        "cycles per packet": 40.0,
        "processing cycles per packet": 10.0,
    }


def test_drops_by_port() -> None:
    counted = {
        "ports": {"port0": {"rx_packets": 9, "rx_dropped": 2}, "port1": {"tx_packets": 7}},
        "sockets_dropped": {"port0": 5},
        "coverage": {"datapath_drop_upcall_error": 3, "netdev_sent": 9},
        "datapath": {"hit": 9, "lost": 4},
    }
    assert switch.drops(counted) == {
        "port0": {"Open vSwitch rx_dropped": 2, "packet socket dropped": 5},
        "": {"datapath_drop_upcall_error": 3, "upcalls lost": 4},
    }
    assert switch.drops({}) == {}


def test_full_flow_table_is_a_doubt() -> None:
    assert switch.overflow({"coverage": {"netdev_sent": 9}}, {"flows": 4}) == []
    [words] = switch.overflow({"coverage": {switch.FULL: 7}}, {"flows": 2, "flow_limit": 2})
    assert words.startswith(
        "the switch's flow table is full: 7 flows did not fit beside the 2 that are there (limit 2)"
    )
