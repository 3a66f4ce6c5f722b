"""Parameters of the OVS test plan: the compared switches, the load of each, and rejected values."""

import pytest

from labkit.common import switch_options
from labkit.common.errors import BadInput
from labkit.common.switch_options import options
from labkit.measure.observers.switch import masks
from labkit.measure.traffic.packet_sender import Mix
from studies.ovs_test_plan import experiment as ovs_test_plan
from studies.ovs_test_plan.experiment import OvsTestPlanParameters


def test_parameters_of_the_plan() -> None:
    made = OvsTestPlanParameters.of({})
    assert len(made.arms) == 14  # VXLAN and a VLAN for all cases but vm_to_vm: seven, with two rule sets
    assert made.arms[0] == "ovs_netdev+case=net_to_vm"
    assert "ovs_netdev+case=vm_to_net+rules=l3+tunnel=vxlan" in made.arms
    assert "vary" not in made.asdict()
    assert ovs_test_plan.EXPERIMENT.planned_s(made) > 3600
    made = OvsTestPlanParameters.of({"endpoint": "namespace,guest", "guest": "debian,offloads=off"})
    assert made.in_guests
    assert made.switch_parameters().endpoint == ("namespace", "guest")
    arms = OvsTestPlanParameters.of({"frame_bytes": "imix"}).switch_parameters()
    l2, l3 = (arms.for_topology(f"ovs+case=vm_to_vm{words}").mix("128", 64000) for words in ("", "+rules=l3"))
    assert l2 == Mix((128,), 64000, ("target_mac",), 2000, 10)
    assert l3 == Mix((128,), 64000, ("target_ip",), 2000, 10)
    given = {"case": "vm_to_net", "tunnel": "vxlan", "rules": "l3"}
    [arm] = OvsTestPlanParameters.of({"topology": "ovs", **given}).arms
    of = {"datapath": "system", "use_case": "vm_to_net", "rules_count": 1000, "rules": "l3"}
    assert (of | {"tunnel": "vxlan"}).items() <= switch_options.columns(arm).items()


def test_frames_on_the_network_are_longer_in_a_vlan_and_a_tunnel() -> None:
    made = OvsTestPlanParameters.of({"line_rate_bps": 1e9, "case": "net_to_vm", "rules": "l3"})
    of = {options(arm).tunnel: made.switch_parameters().for_topology(arm) for arm in made.arms}
    wire_bytes = {name: one.line().wire_bytes(64) for name, one in of.items()}
    assert wire_bytes == {"off": 84, "vxlan": 134, "vlan": 88}
    assert of["vlan"].bounds("64") == (1000, pytest.approx(1_420_454.5))
    # The network tags its frames itself: in one direction they have a tag, in the other the switch adds it.
    assert {(one.vlan, one.vary) for one in of.values()} == {(None, ("target_ip",))}
    with pytest.raises(BadInput, match=r"more than the link carries: 64 \+ 4 \(vlan\) \+ 20 = 88 bytes"):
        OvsTestPlanParameters.of(
            {"line_rate_bps": 1e9, "max_rate": "1.45Mpps", "tunnel": "off,vlan", "case": "vm_to_net"}
        )


DUMP = """flow-dump from the main thread:
recirc_id(0),in_port(2),packet_type(ns=0,id=0),eth(dst=02:47:1b:00:01:2d/00:00:00:00:03:ff),eth_type(0x0800),ipv4(frag=no), packets:18, bytes:1080, used:0.252s, actions:1
recirc_id(0),in_port(3),packet_type(ns=0,id=0),eth(dst=02:47:1b:00:01:c8/00:00:00:00:03:ff),eth_type(0x0800),ipv4(frag=no), packets:18, bytes:1080, used:0.245s, actions:4
recirc_id(0),in_port(2),packet_type(ns=0,id=0),eth(dst=02:47:1b:00:00:39/00:00:00:00:01:ff),eth_type(0x0800),ipv4(frag=no), packets:18, bytes:1080, used:0.252s, actions:1
recirc_id(0),in_port(4),packet_type(ns=0,id=0),eth(src=02:47:1b:00:00:03,dst=02:47:1b:00:00:00),eth_type(0x0800),ipv4(dst=10.2.0.0/0.0.0.255,proto=1,ttl=64,frag=no), packets:0, bytes:0, used:never, actions:set(ipv4(ttl=63)),2
recirc_id(0),in_port(3),packet_type(ns=0,id=0),eth(src=02:47:1b:00:00:02,dst=02:47:1b:00:00:03),eth_type(0x0800),ipv4(dst=10.2.0.46/0.0.0.255,proto=17,ttl=64,frag=no), packets:18, bytes:1080, used:0.311s, actions:set(ipv4(ttl=63)),4
"""  # noqa: E501


def test_masks_of_a_datapath() -> None:
    """Recorded from Open vSwitch 3.1: ten bits, nine bits, and whole MAC addresses with eight bits of an IP address."""
    assert len(masks(DUMP)) == 3
