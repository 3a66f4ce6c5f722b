"""Invalid networks are refused with one sentence each, and every interface has the right MTU.

Header sizes of tunnels agree with the RFCs and with the kernel's own arithmetic.
"""

from types import SimpleNamespace
from typing import Any

import example_networks
import msgspec
import pytest
from example_networks import changed, of_parts

from labkit.common.errors import BadInput, Failed
from labkit.measure.topologies import Spec, check_network, linux_datapaths
from labkit.measure.topologies.network import build, kinds, leaf_spine_overlay, validate
from labkit.measure.topologies.network.model import NetworkIndex
from labkit.measure.topologies.network.parts import (
    Bridge,
    Cable,
    CableEnd,
    Esp,
    Network,
    Node,
    Part,
    Redirect,
    Route,
    Tunnel,
)

VXLAN = {"kind": "vxlan", "id": 30}


def mtus(network: Network) -> dict[str, int]:
    described, result = validate.check(network)
    return {f"{one.at}:{one.name}": result.of(one) for one in described.interfaces.values()}


def with_parts(network: Network, *more: Part) -> Network:
    return of_parts(network, (*network.parts, *more))


def refused(network: Network) -> str:
    with pytest.raises(BadInput) as caught:
        check_network(network)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_overlay_is_valid() -> None:
    tunnels = {"gre": (1476, 1426), "ipip": (1480, 1430), "routed": (None, 1450)}
    assert tunnels.keys() == {*leaf_spine_overlay.PROVIDERS}
    for provider, own in tunnels.items():
        for routes in leaf_spine_overlay.ROUTES:
            result = mtus(leaf_spine_overlay.leaf_spine_network(routes, provider=provider))
            assert (result.get("lc1:gretun-cont"), result["con_ns1:vxlan-cont"]) == own
            assert (result["cs1:cs1_br1"], result["lc1:lc1_sc1"]) == (1426, 1500)


def test_mtu_error_shows_the_arithmetic() -> None:
    sum_ = "1500 (lc1_sc2) - 20 (IPv4) - 4 (GRE) - 20 (IPv4) - 8 (UDP) - 8 (VXLAN) - 14 (Ethernet) = 1426"
    parameters = changed(leaf_spine_overlay.leaf_spine_network(), "vxlan-cont", mtu_bytes=1450)
    assert refused(parameters) == f"the MTU 1450 of vxlan-cont (con_ns1) does not fit: {sum_}"
    assert refused(leaf_spine_overlay.leaf_spine_network(mtu_bytes=1427)) == (
        f"the MTU 1427 of cs1_br1 (cs1) does not fit through vxlan-cont (con_ns1) on the same link: {sum_}"
    )
    assert mtus(changed(leaf_spine_overlay.leaf_spine_network(), "vxlan-cont", mtu_bytes=1426)) == mtus(
        leaf_spine_overlay.leaf_spine_network()
    )
    narrower = changed(leaf_spine_overlay.leaf_spine_network(mtu_bytes=1300), "gretun-cont", mtu_bytes=1400)
    assert mtus(narrower)["con_ns1:vxlan-cont"] == 1350
    assert refused(changed(narrower, "vxlan-cont", mtu_bytes=1351)).endswith(
        "does not fit: 1400 (gretun-cont) - 20 (IPv4) - 8 (UDP) - 8 (VXLAN) - 14 (Ethernet) = 1350"
    )


@pytest.mark.parametrize(("routes", "fits"), [("static", 1426), ("metric", 1226), ("ecmp", 1226)])
def test_narrowest_path_limits_the_mtu(routes: str, fits: int) -> None:
    network = leaf_spine_overlay.leaf_spine_network(routes, mtu_bytes=1200)
    parts = list(network.parts)
    [at] = [at for at, part in enumerate(parts) if isinstance(part, Cable) and part.one.name == "lc2_sc1"]
    parts[at] = msgspec.structs.replace(parts[at], mtu_bytes=1300)
    assert mtus(of_parts(network, parts))["con_ns1:vxlan-cont"] == fits


def test_layer_2_tunnels() -> None:
    for tunnel, mtu_bytes in (
        ({"kind": "vxlan", "id": 0}, 1450),
        ({"kind": "geneve", "id": 5, "port": 1}, 1450),
        ({"kind": "gretap"}, 1462),
        ({"kind": "gretap", "id": (1 << 32) - 1}, 1458),
    ):
        assert mtus(example_networks.routed(tunnel, 1400))["n1:tun"] == mtu_bytes
        assert mtus(example_networks.routed(tunnel, mtu_bytes))["c1:eth0"] == mtu_bytes
        assert f"= {mtu_bytes}" in refused(example_networks.routed(tunnel, mtu_bytes + 1))


def test_ipv6_outside_and_inside() -> None:
    for group in ("239.1.1.1", None):
        assert mtus(example_networks.switched(group))["n1:tun"] == 1450
    assert mtus(example_networks.switched("ff0e::1:1", outside=6))["n1:tun"] == 1430
    inside = [Node("a", container=True), Node("b", container=True)]
    cable = Cable(CableEnd("a", "eth0", "fd00::1/64"), CableEnd("b", "eth0", "fd00::2/64"))
    network = Network("two", (*inside, cable), (("a", "b"),), 1280)
    assert mtus(network) == {"a:eth0": 1280, "b:eth0": 1280}
    assert refused(msgspec.structs.replace(network, mtu_bytes=1279)) == (
        "the MTU 1279 of eth0 (a) is too small, IPv6 needs 1280 (RFC 8200)"
    )
    carried = [
        Tunnel("gre", "a", "tun", "10.0.0.2", local="10.0.0.1", address="fd00:1::1/64"),
        Tunnel("gre", "b", "tun", "10.0.0.1", local="10.0.0.2", address="fd00:1::2/64"),
    ]
    cable = Cable(CableEnd("a", "eth0", "10.0.0.1/24"), CableEnd("b", "eth0", "10.0.0.2/24"))
    network = Network("two", (*inside, cable, *carried), (("a", "b"),), 1304)
    assert mtus(network)["a:tun"] == 1280
    assert refused(msgspec.structs.replace(network, mtu_bytes=1303)) == (
        "the MTU 1279 of tun (a) is too small, IPv6 needs 1280 (RFC 8200): 1303 (eth0) - 20 (IPv4) - 4 (GRE) = 1279"
    )


def test_mtu_limits() -> None:
    assert mtus(example_networks.routed(VXLAN, 68, 118))["n1:tun"] == 68
    assert refused(example_networks.routed(VXLAN, 68, 117)).endswith("- 14 (Ethernet) = 67")
    too_large = refused(example_networks.routed(VXLAN, 1450, 65536))
    assert "is too large: the limit of a veth is 65535" in too_large


def test_remotes_are_reached_from_outside() -> None:
    network = example_networks.routed(VXLAN)
    circle = Tunnel("gre", "n1", "round", "192.168.2.1"), Route("n1", "192.168.2.0/25", out="round")
    assert refused(with_parts(network, *circle)) == (
        "round (n1) carries its own outer packets: give its remote another route"
    )
    without = [part for part in network.parts if not isinstance(part, Route)]
    assert refused(of_parts(network, without)) == (
        "tun (n1) cannot reach its remote 192.168.2.1: give n1 and the nodes between a route to it"
    )
    elsewhere = refused(changed(network, "tun", remote="192.168.7.1"))
    assert elsewhere.startswith("the remote 192.168.7.1 of tun (n1) is not an address of another node")


# Each entry: parts added to two sites that VXLAN joins, and how the error begins.
ADDED: list[tuple[list[Any], str]] = [
    ([Node("n1")], "two nodes are called n1"),
    ([Node("a b")], "'a b' is not a valid node name: use at most 15 letters"),
    ([Node("machine")], "'machine' is not a valid node name: drawings use it for things outside the network"),
    ([Bridge("n9", "br9")], "br9 is in n9, which is not a node; there are c1, n1, c2, n2, r"),
    ([Bridge("n1", "br")], "two interfaces in n1 are called br"),
    ([Bridge("n1", "a" * 16)], "'aaaaaaaaaaaaaaaa' (n1) is not a valid interface name"),
    ([Bridge("n1", "gre0")], "'gre0' (n1) is not a valid interface name"),
    ([Bridge("n1", "b2", "10.5.0.300/24")], "the address 10.5.0.300/24 of b2 (n1) is not a valid address"),
    ([Bridge("n1", "b2", "10.5.0.1")], "the address 10.5.0.1 of b2 (n1) has no prefix length"),
    ([Cable(CableEnd("n1", "x"), CableEnd("r", "x", master="no"))],
     "x (r) is a port of no, but r has no such bridge"),
    ([Cable(CableEnd("n1", "x", "10.5.0.1/24", "br"), CableEnd("r", "x"))],
     "x (n1) is a port of br, so it cannot have an address"),
    ([Cable(CableEnd("n1", "x", "192.168.0.1/16"), CableEnd("r", "x"))],
     "the subnets 192.168.1.0/24 of up (n1) and 192.168.0.0/16 of x (n1) overlap, but they are different links"),
    ([Cable(CableEnd("n1", "x"), CableEnd("r", "x"), mode="l3")], "x (n1) has the mode l3: veth has none"),
    ([Cable(CableEnd("n1", "x", master="br"), CableEnd("r", "x"), kind="netkit", mode="l3")],
     "x (n1) has the mode l3, without MAC addresses: leave out mac and master"),
    ([Redirect("n1", "up", "p9")], "the redirect of up (n1) to p9 needs the end of a cable called p9"),
    ([Cable(CableEnd("n1", "x"), CableEnd("r", "x")), Redirect("n1", "x", "up", hook="netkit")],
     "the redirect of x (n1) at the hook netkit needs a cable of kind netkit"),
    ([Bridge("n1", "b2", "10.0.0.1/24")], "10.0.0.1 is the address of eth0 (c1) and of b2 (n1)"),
    ([Tunnel("sit", "n1", "t", "192.168.2.1")], "t (n1) has the unknown kind sit: choose vxlan, geneve, gre"),
    ([Tunnel("vxlan", "n1", "t", "192.168.2.1")], "t (n1) has no id: give its VNI"),
    ([Tunnel("gre", "n1", "t", "192.168.2.1", id=1 << 32)],
     "the key 4294967296 of t (n1) does not fit: it is outside 0 to 2^32 - 1"),
    ([Tunnel("ipip", "n1", "t", "192.168.2.1", id=1)], "t (n1) has the id 1, but ipip has no field for it"),
    ([Tunnel("gre", "n1", "t", "192.168.2.1", port=1)], "the port 1 of t (n1) is invalid"),
    ([Tunnel("gre", "n1", "t", ("192.168.2.1", "192.168.2.2"))], "t (n1) has 2 remotes"),
    ([Tunnel("gre", "n1", "t", "fd00::1")], "t (n1) has IPv6 outer addresses: only vxlan, geneve, wireguard"),
    ([Tunnel("vxlan", "n1", "t", "239.1.1.1", id=1)], "t (n1) sends to a multicast group: only vxlan can"),
    ([Tunnel("vxlan", "n1", "t", "nowhere", id=1)], "nowhere of t (n1) is not a valid address"),
    ([Tunnel("vxlan", "n1", "t", "192.168.2.1", id=1, link="eth7")], "t (n1) cannot be bound to eth7"),
    ([Tunnel("gre", "n1", "t", "192.168.2.1", local="192.168.1.9")],
     "the local address 192.168.1.9 of t (n1) is not an address of n1: it has 192.168.1.1/24"),
    ([Tunnel("geneve", "n1", "t", "192.168.2.1", local="192.168.1.1", id=1)], "t (n1) cannot have the local address"),
    ([Route("n9", "10.9.0.0/24", via="192.168.1.254")], "a route to 10.9.0.0/24 is in n9, which is not a node"),
    ([Route("n1", "10.9.0.1/24", via="192.168.1.254")], "10.9.0.1/24 in a route of n1 is not a valid prefix"),
    ([Route("n1", "10.9.0.0/24", via="10.77.0.1")],
     "the gateway 10.77.0.1 of the route of n1 to 10.9.0.0/24 is in no connected subnet of n1: it has 192.168.1.1/24"),
    ([Route("n1", "10.9.0.0/24", via="fd00::1")], "the route of n1 to 10.9.0.0/24 has the gateway fd00::1 of another"),
    ([Route("n1", "10.9.0.0/24", out="eth7")], "the route of n1 to 10.9.0.0/24 uses the interface eth7, but n1 has"),
    ([Route("n1", "10.9.0.0/24")], "the route of n1 to 10.9.0.0/24 has no next hop"),
    ([Route("n1", "10.9.0.0/24", via="192.168.1.254", source="192.168.2.1")],
     "the route of n1 to 10.9.0.0/24 has the source 192.168.2.1, but it has 192.168.1.1/24"),
    ([Route("n1", "10.9.0.0/24", via="192.168.1.254", metric=-1)], "the metric -1 of the route of n1"),
    ([Bridge("n1", "b2", "fe80::1%up/64")], "fe80::1%up/64 has a scope (%)"),
    ([Bridge("n1", "b2", "127.0.0.1/8")], "the address 127.0.0.1/8 of b2 (n1) is a loopback address: choose another"),
    ([Bridge("n1", "b2", "239.1.1.1/24")], "the address 239.1.1.1/24 of b2 (n1) is a multicast address"),
    ([Bridge("n1", "b2", "10.5.0.0/24")], "the address 10.5.0.0/24 of b2 (n1) is the network address of its subnet"),
    ([Bridge("n1", "b2", "10.5.0.255/24")], "the address 10.5.0.255/24 of b2 (n1) is the broadcast address"),
    ([Cable(CableEnd("n1", "x", "10.5.0.1/24"), CableEnd("r", "x", "10.6.0.1/24"))],
     "10.5.0.1/24 of x (n1) and 10.6.0.1/24 of x (r) are in different subnets on one cable"),
    ([Route("n1", "10.9.0.0/24", via="192.168.1.1")],
     "the gateway 192.168.1.1 of the route of n1 to 10.9.0.0/24 is the node's own address"),
    (["n1"], "the network routed is invalid: parts[15]: a mapping with names and values is needed, not a text"),
]  # fmt: skip


def test_invalid_networks_are_refused() -> None:
    network = example_networks.routed(VXLAN)
    check_network(network)
    for added, words in ADDED:
        assert refused(with_parts(network, *added)).startswith(words)


def test_unusual_valid_networks() -> None:
    odd = [
        Cable(CableEnd("n1", "x", "10.5.0.0/31"), CableEnd("r", "x", "10.5.0.1/31")),
        Bridge("n1", "alone", "10.6.0.0/32"),
        Bridge("n1", "six", "fd00:5::1/64"),
        Route("n1", "10.6.0.0/32", via="192.168.1.254"),
        Route("n1", "192.168.1.0/24", via="192.168.1.254", metric=5),
        Route("n1", "fd00:5::/64", via="fd00:5::2"),
    ]
    network = with_parts(example_networks.routed(VXLAN), *odd)
    check_network(msgspec.structs.replace(network, name="My lab 2.0_b-1", pairs=(("c1", "c2"), ("c2", "c1"))))


def test_network_name() -> None:
    for name in ("", " x", "end\n", "\x1b[31m", "a" * 61, "ü"):
        network = msgspec.structs.replace(example_networks.routed(VXLAN), name=name)
        assert refused(network).startswith(f"{name!r} is not a valid network name: use at most 60 letters")


def test_settings_of_macsec_are_those_of_the_kernel() -> None:
    """The kernel takes replay protection only with a window (macsec_validate_attr, drivers/net/macsec.c)."""
    usual = {"IFLA_MACSEC_CIPHER_SUITE": 0x0080020001000001, "IFLA_MACSEC_ENCRYPT": 1}
    protected = {"IFLA_MACSEC_WINDOW": 0, "IFLA_MACSEC_REPLAY_PROTECT": 1}
    for fields, expected in (
        ({}, usual),
        ({"replay_window": 0}, usual | protected),
        (
            {"cipher": "GCM-AES-256", "encrypts": False},
            {"IFLA_MACSEC_CIPHER_SUITE": 0x0080C20001000002, "IFLA_MACSEC_ENCRYPT": 0},
        ),
    ):
        tunnel = msgspec.convert(
            {"type": "tunnel", "kind": "macsec", "at": "n", "name": "m", "remote": "10.0.0.2", **fields},
            Tunnel,
        )
        assert kinds.KINDS["macsec"].tunnel_attributes(tunnel, 7) == expected


XFRM = {"kind": "xfrm", "id": 7, "local": "192.0.2.{n}"}


@pytest.mark.parametrize(
    ("fields", "four", "six"),
    [
        ({"kind": "wireguard"}, 1440, 1420),
        (XFRM, 1446, 1426),
        ({"kind": "macsec", "link": "wan"}, 1468, 1468),
    ],
)
def test_mtu_of_encrypted_tunnels(fields: dict[str, Any], four: int, six: int) -> None:
    assert mtus(example_networks.encrypted(**fields))["n1:tun"] == four
    if "local" in fields:
        fields = fields | {"local": "fd00:9::{n}"}
    assert mtus(example_networks.encrypted(**fields, outside=6))["n2:tun"] == six


def test_peers_of_wireguard_may_have_different_ports() -> None:
    network = changed(example_networks.encrypted("wireguard"), "tun", "n2", port=51821)
    assert mtus(network)["n2:tun"] == 1440
    more = [
        Tunnel("wireguard", f"n{own}", "two", f"192.0.2.{other}", address=f"10.8.0.{own}/24", port=port)
        for own, other, port in ((1, 2, 51822), (2, 1, 51823))
    ]
    assert "with the same port if there are several" in refused(with_parts(network, *more))
    each_with_one = changed(changed(with_parts(network, *more), "two", port=51822), "tun", port=51821)
    assert mtus(each_with_one)["n1:two"] == 1440


def test_esp_in_transport_mode_shortens_packets() -> None:
    """VXLAN over it, and containers whose own packets are in it."""
    plain = example_networks.routed(VXLAN, mtu_bytes=1416)
    network = with_parts(plain, Esp(("n1", "up"), ("n2", "up")))
    assert mtus(network)["n1:tun"] == 1416
    ends = (CableEnd("a", "eth0", "10.0.0.1/24"), CableEnd("b", "eth0", "10.0.0.2/24"))
    parts = (Node("a", True), Node("b", True), Cable(*ends), Esp(("a", "eth0"), ("b", "eth0")))
    assert build.usual(Network("two", parts, (("a", "b"),)))["mtu_bytes"] == 1466
    missing = (*parts[:-1], Esp(("a", "eth0"), ("b", "eth1")))
    assert "needs two interfaces with addresses" in refused(Network("two", missing, (("a", "b"),)))


def test_encrypted_tunnel_that_cannot_be() -> None:
    for network, words in (
        (example_networks.encrypted("wireguard", link="wan"), "geneve, wireguard cannot be bound"),
        (example_networks.encrypted("xfrm", id=7), "no local address"),
        (example_networks.encrypted("xfrm", local="192.0.2.{n}"), "give its interface ID"),
        (example_networks.encrypted("macsec"), "needs the cable to n2 below it"),
        (
            changed(example_networks.encrypted("macsec", link="wan"), "tun", "n2", cipher="GCM-AES-256"),
            "tun (n1) and tun (n2) have different ciphers: give both the same",
        ),
        (example_networks.encrypted("wireguard", replay_window=0), "are of macsec, not of wireguard"),
    ):
        assert words in refused(network)
    network = example_networks.encrypted("wireguard")
    one_sided = [part for part in network.parts if not (isinstance(part, Tunnel | Route) and part.at == "n2")]
    assert "has no other end" in refused(of_parts(network, one_sided))


@pytest.mark.parametrize(
    ("network", "silent"),
    [
        (example_networks.routed(VXLAN), {("n2", "br"): "down", ("n2", "up"): "lowerlayerdown"}),
        # What the kernel answers before Linux 6.8 until it has reported a first carrier
        (example_networks.routed(VXLAN), {("n2", "br"): "unknown", ("n2", "up"): "unknown"}),
        (example_networks.encrypted("macsec", link="wan"), {("n1", "tun"): "unknown"}),
    ],
)
def test_interface_without_carrier_is_reported(
    network: Network, silent: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's report is made up, because a real cable whose ends are both up carries."""
    described, result = validate.check(network)
    spaces: Any = [
        SimpleNamespace(name=name, netlink=name, wait_for_addresses=list) for name in described.nodes
    ]
    built = build.BuiltNetwork(described, result, spaces)
    # As real tunnels
    kept = {built.index[one.key]: "unknown" for one in described.tunnels if one.kind == "vxlan"}
    states: dict[int, str] = dict(kept)
    monkeypatch.setattr(build.netlink, "operstate", lambda _at, index: states.get(index, "up"))
    monkeypatch.setattr(build, "SETTLE_S", 0.0)
    built.settle()
    for (at, name), state in silent.items():
        states[built.index[at, name]] = state
        with pytest.raises(Failed, match=rf"^{name} \({at}\) carries nothing after 0 s, although it is up"):
            built.settle()
        states = dict(kept)


def test_settings_of_strangers() -> None:
    """What would touch more than the network's own namespaces, or run a program, is refused."""
    for part, words in (
        ({"type": "sysctl", "at": "c1", "name": "kernel.core_pattern", "value": "|id"}, "none that a network may set"),
        ({"type": "sysctl", "at": "c1", "name": "net.ipv4.ip_forward/../x", "value": 1}, "none that a network may set"),
        ({"type": "sysctl", "at": "c1", "name": "net.ipv4.conf./x.rp_filter", "value": 1}, "of the interface /x, but"),
        ({"type": "sysctl", "at": "c1", "name": "net.ipv4.tcp_rmem", "value": 9}, "write three numbers"),
        ({"type": "sysctl", "at": "c1", "name": "net.ipv4.ip_default_ttl", "value": 0}, "is outside 1 to 255"),
        ({"type": "sysctl", "at": "c1", "name": "net.ipv4.tcp_ecn", "value": "x"}, "a whole number is needed"),
        ({"type": "sysctl", "at": "no", "name": "net.ipv4.tcp_ecn", "value": 1}, "no, which is not a node"),
        ({"type": "rules", "at": "c1", "text": 'include "/etc/shadow"'}, "include is not allowed"),
        ({"type": "rules", "at": "c1", "text": "x" * ((1 << 20) + 1)}, "is invalid"),
        ({"type": "offloads", "at": "c1", "interface": "eth9", "disable": ["tso"]}, "c1 has no interface eth9"),
        ({"type": "offloads", "at": "c1", "interface": "eth0", "disable": ["rx-all; id"]}, "is invalid"),
        ({"type": "offloads", "at": "c1", "interface": "eth0", "disable": ["tx"], "enable": ["tx"]}, "both enabled"),
        ({"type": "impairment", "at": "c1", "interface": "eth0", "queue_packets": 9, "loss": 0.1}, "leave it out"),
    ):  # fmt: skip
        whole = msgspec.to_builtins(example_networks.routed(VXLAN))
        try:
            network = msgspec.convert({**whole, "parts": [*whole["parts"], part]}, Network)
        except msgspec.ValidationError:
            assert words == "is invalid"
        else:
            assert words in refused(network)


def test_a_copy_of_what_is_broken_is_built_as_it_is() -> None:
    broken = example_networks.routed(VXLAN, provider_mtu_bytes=1400)
    assert "does not fit" in refused(broken)
    assert mtus(msgspec.structs.replace(broken, as_is=True))["c1:eth0"] == 1450


def test_interface_with_esp_counts_its_headers() -> None:
    """The path's MTU is 1536: 34 bytes of ESP, and 2 that no longer packet could use (test_esp_pads)."""
    network = linux_datapaths.esp_transport("esp_transport", Spec())
    described = NetworkIndex(network)
    spaces: Any = [SimpleNamespace(name=name, netlink=None) for name in described.nodes]
    built = build.BuiltNetwork(described, validate.Mtus(described), spaces)
    assert built.endpoint("server0").more_header_bytes == 34


def test_overhead() -> None:
    for nested, four, six in (
        # drivers/net/vxlan.c VXLAN_HEADROOM, VXLAN6_HEADROOM; geneve.c; ip(8): gre's MTU is 1476, gretap's 1462
        (["vxlan"], 50, 70),
        (["gre"], 24, 44),
        (["gretap"], 38, 58),
        (["gre", "vxlan"], 74, 94),
        (["wireguard"], 60, 80),  # drivers/net/wireguard/messages.h, MESSAGE_MINIMUM_LENGTH
        (["macsec"], 32, 32),  # drivers/net/macsec.c, macsec_extra_len and the ICV
    ):
        assert kinds.overhead_bytes(*nested) == four
        assert kinds.overhead_bytes(*nested, family=6) == six
        has_gre = bool({"gre", "gretap"} & set(nested))
        assert kinds.overhead_bytes(*nested, key=True) == four + 4 * has_gre


def test_esp_pads() -> None:
    """The kernel's formula, xfrm_state_mtu (net/xfrm/xfrm_state.c)."""
    for path in range(1300, 1310):
        for mode, outer, inner in (("xfrm", 20, 0), (kinds.TRANSPORT, 0, 20)):
            expected = ((path - outer - 32 - inner) & ~3) + inner - 2
            added = kinds.within(kinds.headers(mode), path)
            assert path - kinds.length_bytes(added) == expected
            assert kinds.length_bytes(kinds.around(added, expected)) + expected <= path + 3


def test_headers_and_their_arithmetic() -> None:
    names = [header.name for header in kinds.headers("gre", "vxlan", key=True)]
    assert names == ["IPv4", "GRE", "GRE key", "IPv4", "UDP", "VXLAN", "Ethernet"]
    assert all(header.source for kind in kinds.tunnels() for header in kinds.headers(kind))
    lines = kinds.arithmetic(1500, "lc1_sc2", kinds.headers("gre"))
    assert lines == "1500 (lc1_sc2) - 20 (IPv4) - 4 (GRE) = 1476"
    with pytest.raises(BadInput, match="sit is not a kind of tunnel: choose vxlan, geneve, gre"):
        kinds.overhead_bytes("sit")


@pytest.mark.parametrize("name", linux_datapaths.TUNNELS)
def test_refusal_names_the_largest_mtu_that_fits(name: str) -> None:
    with pytest.raises(BadInput, match="does not fit") as refused:
        linux_datapaths.outside_bytes(name, 65535)
    largest = int(str(refused.value).rpartition(" = ")[2])
    assert linux_datapaths.outside_bytes(name, largest) <= validate.MAX_BYTES
    with pytest.raises(BadInput, match="does not fit"):
        linux_datapaths.outside_bytes(name, largest + 1)
