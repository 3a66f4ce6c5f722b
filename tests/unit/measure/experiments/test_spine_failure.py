"""Spine failures: which nodes of a network can replace each other, and how routes are restored."""

from labkit.measure.topologies.network import leaf_spine_overlay
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node
from labkit.system.netlink.dumps import RTNH_F_LINKDOWN, RTNH_F_ONLINK, _as_request, _decode
from labkit.system.netlink.messages import new_route
from labkit.system.netlink.rtnl import rtmsg
from studies.overlay.spine_failure import spines


def test_spine_detection() -> None:
    assert spines(leaf_spine_overlay.leaf_spine_network()) == ["sc1", "sc2"]
    line = [Node("one", forwards=True), Node("two", forwards=True), Node("three")]
    cable = Cable(CableEnd("one", "a", "10.0.0.1/24"), CableEnd("two", "b", "10.0.0.2/24"))
    assert spines(Network("line", (*line, cable), ())) == []


def test_restored_routes_have_no_state_flags() -> None:
    """The kernel reports state flags on a two-hop route while one hop has no carrier, but rejects them in requests."""
    report = bytearray(new_route("10.9.2.0/24", [(7, "10.1.2.1"), (8, "10.1.1.1")], metric=5).body)
    at = [
        report.index(bytes([16, 0, 0, 0, index, 0, 0, 0])) for index in (7, 8)
    ]  # struct rtnexthop and its gateway
    report[at[0] + 2], report[at[1] + 2], report[24] = RTNH_F_LINKDOWN, RTNH_F_ONLINK, RTNH_F_LINKDOWN
    again = _decode(rtmsg, _as_request(bytes(report)))
    assert [
        (hop["flags"], hop["oif"], hop.get_attr("RTA_GATEWAY")) for hop in again.get_attr("RTA_MULTIPATH")
    ] == [(0, 7, "10.1.2.1"), (RTNH_F_ONLINK, 8, "10.1.1.1")]
    assert (again["flags"], again.get_attr("RTA_DST"), again.get_attr("RTA_PRIORITY")) == (0, "10.9.2.0", 5)
