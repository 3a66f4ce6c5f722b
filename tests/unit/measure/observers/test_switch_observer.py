"""The output of Open vSwitch 3.1 is parsed (userspace datapath here, kernel datapath of Debian 12)."""

from __future__ import annotations

from labkit.measure.observers import switch

SHOW = """\
netdev@ovs-netdev:
  lookups: hit:502 missed:2 lost:3
  flows: 2
  port 0: ovs-netdev (tap)
    RX packets:0 errors:0 dropped:0 overruns:0 frame:0
    TX packets:0 errors:0 dropped:7 aborted:0 carrier:0
    collisions:0
    RX bytes:0  TX bytes:0
  port 2: port0
    RX packets:250 errors:0 dropped:1 overruns:0 frame:0
    TX packets:251 errors:0 dropped:0 aborted:0 carrier:0
    collisions:0
    RX bytes:24570 (24.0 KiB)  TX bytes:24570 (24.0 KiB)
"""
SHOW_KERNEL = """\
system@ovs-system:
  lookups: hit:18 missed:6 lost:0
  flows: 4
  masks: hit:47 total:2 hit/pkt:1.96
  caches:
    masks-cache: size:256
  port 0: ovs-system (internal)
"""
FLOWS = """\
flow-dump from the main thread:
ufid:10a679af-1b01-4fe9-8394-8276a1e9590c, skb_priority(0/0),recirc_id(0),dp_hash(0/0),in_port(port1),\
packet_type(ns=0,id=0),eth(src=02:76:8b:00:00:01,dst=02:76:8b:00:00:00),eth_type(0x0800),ipv4(src=10.2.0.1/0.0.0.0,\
frag=no), packets:251, bytes:24570, used:0.062s, dp:ovs, actions:port0,mirror0,mirror1, dp-extra-info:miniflow_bits(5,1)
"""
STATS = """\
main thread:
  packets received: 504
  avg. datapath passes per packet: 1.00
  emc hits: 359
  megaflow hits: 143
  miss with success upcall: 2
pmd thread numa_id 0 core_id 1:
  emc hits: 1
"""


def test_ports_and_datapath() -> None:
    ports, own, state = switch.datapaths(SHOW)
    assert list(ports) == ["ovs-netdev", "port0"]
    assert (ports["port0"]["rx_packets"], ports["port0"]["tx_packets"]) == (250, 251)
    assert (ports["port0"]["rx_dropped"], ports["ovs-netdev"]["tx_dropped"]) == (1, 7)
    assert own == {"hit": 502, "missed": 2, "lost": 3}
    assert state == {"flows": 2}


def test_masks_of_the_kernels_datapath() -> None:
    _ports, own, state = switch.datapaths(SHOW_KERNEL)
    assert own == {"hit": 18, "missed": 6, "lost": 0, "masks_hit": 47}
    assert state == {"flows": 4, "masks": 2}


def test_flow_without_wildcards() -> None:
    [flow] = switch.flows(FLOWS).values()
    assert (flow["packets"], flow["actions"]) == (251, "port0,mirror0,mirror1")
    assert flow["match"].startswith("recirc_id(0),in_port(port1),packet_type(ns=0,id=0),eth(src=")
    assert "skb_priority" not in flow["match"]


def test_caches_of_all_threads() -> None:
    assert switch.caches(STATS) == {
        "packets received": 504, "emc hits": 360, "megaflow hits": 143, "miss with success upcall": 2,
    }  # fmt: skip


def test_coverage() -> None:
    text = "xlate_actions              0.0/sec     0.000/sec        0.0000/sec   total: 4\n109 events never hit\n"
    assert switch.coverage(text) == {"xlate_actions": 4}


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
