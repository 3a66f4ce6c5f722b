"""The state of a topology, from what a made-up kernel lists."""

import struct
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from example_states import LO, bridged, tunnelled, veth

from labkit.analysis import drawing
from labkit.common.topology_state import PROGRAM, Namespace, NextHop, PairEnd, Place, Route
from labkit.measure.existing import clone
from labkit.measure.topologies import Network, check_network
from labkit.measure.topologies.base import Spec, Topology
from labkit.measure.topologies.network import impairments, parts
from labkit.measure.topologies.state import packet_path, read
from labkit.system import netlink
from labkit.system.netlink import ethtool


def test_any_kind_of_cable_joins_two_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's list is made up. As lower devices of each other, the ends would make a path without an end."""
    names = ("client0", "server0")
    mode, mac = {"IFLA_NETKIT_MODE": 1}, "02:00:00:00:00:0"
    links = {
        name: netlink.Link(
            100 + at, "eth0", "netkit", True, True, 1500, f"{mac}{at}", None, 101 - at, 7, mode
        )
        for at, name in enumerate(names)
    }
    monkeypatch.setattr(netlink, "links", lambda kernel: [links[kernel]])
    monkeypatch.setattr(netlink, "id_of", lambda kernel, fd: 7 if kernel != fd else None)
    monkeypatch.setattr(netlink, "addresses", lambda _kernel: [])
    monkeypatch.setattr(netlink, "routes", lambda _kernel: [])
    spaces: Any = [SimpleNamespace(name=name, fd=name, netlink=name) for name in names]
    ends: Any = [
        SimpleNamespace(name=space.name, namespace=space, interface="eth0", tap=None, address="")
        for space in spaces
    ]
    pair: Any = SimpleNamespace(client=ends[0], server=ends[1])
    state = read.state(Topology("netkit", Spec(), [pair], spaces))
    [[one], [other]] = [space.interfaces for space in state.namespaces]
    assert (one.peer, one.lower, one.mode) == (Place("server0", "eth0"), None, "l3")
    assert (other.peer, other.lower) == (Place("client0", "eth0"), None)
    [steps] = packet_path.packet_paths(state)
    assert [(step.namespace, step.direction) for step in steps] == [("client0", "out"), ("server0", "in")]


def test_path_through_bridge_and_tunnel() -> None:
    for state, steps in (
        (bridged(1), ["client0:eth0 out", "between:port0 in", "between:port1 out", "server0:eth0 in"]),
        (tunnelled(), ["client0:eth0 out", "client0:under out", "server0:under in", "server0:eth0 in"]),
    ):
        [way] = packet_path.packet_paths(state)
        assert [f"{step.namespace}:{step.interface} {step.direction}" for step in way] == steps


@pytest.mark.parametrize(
    ("helper", "hook", "unseen", "uncounted"),
    [
        ("bpf_redirect", "tc", [], ""),
        ("bpf_redirect_neigh", "tc", [], ""),
        ("bpf_redirect_peer", "tc", ["port1"], "port1"),
        ("bpf_redirect", "netkit", ["port0"], "port0"),
        ("bpf_redirect_neigh", "netkit", ["port0"], "port0"),
        ("bpf_redirect", "xdp", ["port0", "port1"], ""),
        ("bpf_redirect", "xdp_generic", ["port0", "port1"], ""),
    ],
)
def test_the_hop_that_a_redirect_skips_is_named(
    helper: Any, hook: Any, unseen: list[str], uncounted: str
) -> None:
    state = bridged(1)
    both = [parts.Redirect("between", f"port{at}", f"port{1 - at}", helper, hook) for at in (0, 1)]
    topology = Topology("veth_redirect", Spec(), [], [], redirects=tuple(both))
    spaces = [read._with_programs(space, topology) for space in state.namespaces]
    state = msgspec.structs.replace(state, namespaces=spaces)
    [port0] = [one for space in spaces for one in space.interfaces if one.name == "port0"]
    assert port0.redirect is not None
    assert port0.redirect.unseen == [Place("between", name) for name in unseen]
    [way] = packet_path.packet_paths(state)
    whole = ["client0/eth0", "between/port0", "between/port1", "server0/eth0"]
    assert [f"{step.namespace}/{step.interface}" for step in way] == [
        one for one in whole if one != f"between/{uncounted}"
    ]
    assert [step.skips for step in way if step.skips] == [Place("between", uncounted)] * bool(uncounted)
    tree = drawing.tree(msgspec.structs.replace(state, forward=way))
    [line] = [line for line in tree.splitlines() if line.startswith("  port0 ")]
    names = ", ".join(f"between/{name}" for name in unseen)
    assert line.partition("; captures do not see it at ")[2].partition(" (")[0] == names
    assert ("(counters do)" in line) == hook.startswith("xdp")
    assert (f"(skips between/{uncounted})" in tree.splitlines()[-1]) == bool(uncounted)
    assert (f"not seen at {', '.join(unseen)}" in drawing.mermaid(state)) == bool(unseen)
    # A monitor says the same in the same words, where it does not see it.
    said = state.unseen()
    # The way back skips the other port.
    assert set(said) == {f"between:port{int(name[-1]) ^ back}" for back in (0, 1) for name in unseen}
    for at in unseen:
        assert f"what arrives at between/port0: {', '.join(port0.redirect.facts)}" in said[f"between:{at}"]
        assert all(one in line for one in port0.redirect.facts)


def test_a_program_that_relays_data_is_on_the_path() -> None:
    """Its tap has no peer in the kernel."""
    state = bridged(1)
    _client, server, between = state.namespaces
    tap = msgspec.structs.replace(LO, name="eth0", kind="tun", addresses=[])
    port = [one for one in between.interfaces if one.name == "port1"]
    pasta = msgspec.structs.replace(
        LO,
        name="pasta0",
        index=0,
        kind=PROGRAM,
        peer=Place("client0", "eth0"),
        lower=Place("between", "port1"),
    )
    topology = Topology("pasta", Spec(), [], [], relays=[pasta])
    spaces = [Namespace("client0", [tap], []), server, Namespace("between", port, [])]
    spaces = [read._with_programs(space, topology) for space in spaces]
    there, back = (
        msgspec.structs.replace(state, namespaces=spaces, pairs=[pair])
        for pair in (state.pairs[0], state.pairs[0][::-1])
    )
    for one, steps in (
        (there, ["client0/eth0 out", "between/pasta0 in", "between/port1 out", "server0/eth0 in"]),
        (back, ["server0/eth0 out", "between/port1 in", "between/pasta0 out", "client0/eth0 in"]),
    ):
        [way] = packet_path.packet_paths(one)
        assert [f"{step.namespace}/{step.interface} {step.direction}" for step in way] == steps
        drawn = msgspec.structs.replace(one, forward=way)
        assert sorted(join.kind for join in drawing.joins(drawn)) == ["published", "published", "veth"]


def test_endpoint_of_another_kernel() -> None:
    """Endpoints in a shared guest are an example."""
    ends = [PairEnd(name, "shared", "eth0", "10.1.0.1") for name in ("client0", "server0")]
    state = bridged(1)
    (_, server), inside = state.pairs[0], Namespace("shared", [LO], [])
    pairs = [(ends[0], ends[1]), (ends[0], server), (server, ends[1])]
    state = msgspec.structs.replace(state, pairs=pairs, namespaces=[*state.namespaces, inside])
    assert packet_path.packet_paths(state) == [[], [], []]


def test_netem_is_copied_or_refused() -> None:
    """What tc -j prints of netem (iproute2 6.1) is an impairment, but for what none has."""
    for more, known in (
        ({"ecn": False, "gap": 0}, True),
        ({"reorder": {"reorder": 0.1, "correlation": 0}, "gap": 1}, True),
        ({"ecn": True}, False),
        ({"loss-random": {"loss": 0.1, "correlation": 0.25}}, False),
        ({"limit": 50, "seed": 7}, True),
    ):
        options = {"limit": 1000, "delay": {"delay": 0.02, "jitter": 0, "correlation": 0}, **more}
        shown = [{"kind": "netem", "handle": "1:", "root": True, "options": options}]
        eth0 = veth("eth0", 2, Place("server0", "eth0"))
        with nullcontext() if known else pytest.raises(ValueError, match="netem"):
            assert clone._impairment("client0", eth0, shown).delay_s == 0.02
            # The copy's netem holds more, so that it does not limit the rate: that is said.
            assert clone._limits(shown) == [f"{options['limit']} packets"]
    shown[0]["options"]["limit"] = impairments.LIMIT
    assert clone._limits(shown) == []


@pytest.mark.parametrize(("kind", "off"), [("veth", ("tso",)), ("bridge", ())])
def test_offloads_and_limits_are_kept_one_by_one(kind: str, off: tuple[str, ...]) -> None:
    """The copy has those that it did not refuse. A bridge has the offloads of its ports."""
    eth0 = msgspec.structs.replace(
        veth("eth0", 2, Place("server0", "eth0")), kind=kind, offloads={ethtool.SHORT_NAMES["tso"]: False}
    )

    def run(*words: str) -> Any:
        return SimpleNamespace(returncode=int("gso_max_size" in words), message=lambda: "ip ended with 2")

    made: Any = SimpleNamespace(
        name="client0", run=run, offloads=lambda _name: {ethtool.SHORT_NAMES["tso"]: True}
    )
    copy = clone._Copy(bridged(1), {})
    [part] = copy._offloads(made, eth0, {"gso_max_size": 9000, "gro_max_size": 8000})
    assert part == parts.Offloads("client0", "eth0", off, gro_max_size=8000)
    assert copy.lacks == [
        "what cannot be applied to a copy: eth0 (client0) does not take its offloads: ip ended with 2"
    ]


def test_the_hop_limit_of_a_tunnel_is_copied() -> None:
    data = {"IFLA_VXLAN_ID": 42, "IFLA_VXLAN_GROUP": "192.168.0.1", "IFLA_VXLAN_TTL": 5}
    link = netlink.Link(2, "eth0", "vxlan", True, True, 1450, None, None, None, None, data)
    tunnel = read.tunnel_of(link, [])
    assert tunnel is not None
    state = tunnelled()
    for space in state.namespaces:
        space.interfaces[1] = msgspec.structs.replace(space.interfaces[1], tunnel=tunnel)
    made = clone._Copy(state, {}).as_parts(set())
    assert [one.ttl for one in made if isinstance(one, parts.Tunnel)] == [5, 5]


# What `ip -d -j link` of iproute2 6.1 prints of a MACsec interface, as far as its copy can differ.
MACSEC = {
    "sci": "0200000000010001", "protect": "on", "cipher_suite": "GCM-AES-256", "icv_len": "16", "encoding_sa": "0",
    "validation": "strict", "encrypt": "off", "inc_sci": "on", "es": "off", "scb": "off", "replay_protect": "on",
    "window": "32",
}  # fmt: skip


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.parametrize(
    ("shown", "settings"),
    [
        (MACSEC, ("GCM-AES-256", False, 32)),
        (MACSEC | {"cipher_suite": "GCM-AES-XPN-256", "encrypt": "True"}, ("GCM-AES-128", True, 32)),
        (
            {"cipher_suite": "GCM-AES-128", "encrypt": "on", "replay_protect": "off"},
            ("GCM-AES-128", True, None),
        ),
    ],
)
def test_macsec_is_copied_with_its_settings(
    shown: dict[str, str], settings: tuple[Any, ...], outside: bool
) -> None:
    """Whether or not the cable below has addresses of its own."""
    state = tunnelled()
    for space in state.namespaces:
        eth0, under = space.interfaces[1:]
        space.interfaces[1:] = [
            msgspec.structs.replace(eth0, kind="macsec", mtu_bytes=1468, tunnel=None),
            under if outside else msgspec.structs.replace(under, addresses=[]),
        ]
    facts: Any = SimpleNamespace(ports={}, links={"eth0": shown})
    copy = clone._Copy(state, {space.name: facts for space in state.namespaces})
    every = copy.as_parts(set())
    ends = [one for one in every if isinstance(one, parts.Tunnel)]
    assert [(one.cipher, one.encrypts, one.replay_window) for one in ends] == [settings] * 2
    assert [(one.kind, one.link, one.mtu_bytes) for one in ends] == [("macsec", "under", 1468)] * 2
    check_network(Network("copy", tuple(every), (("client0", "server0"),)))
    assert {one.split()[0] for one in copy.lacks} == {"lo"}


def test_macsec_without_its_other_end_is_lacking() -> None:
    state = tunnelled()
    for space, kind in zip(state.namespaces, ("macsec", "dummy"), strict=True):
        space.interfaces[1] = msgspec.structs.replace(space.interfaces[1], kind=kind, tunnel=None)
    copy = clone._Copy(state, {})
    assert not [one for one in copy.as_parts(set()) if isinstance(one, parts.Tunnel)]
    assert "eth0 of client0, because labkit copies no macsec of this form" in copy.lacks


@pytest.mark.parametrize(("metrics", "copied"), [((100,), [None]), ((0, 100), [0, 100])])
def test_limits_of_the_only_route_to_a_subnet_are_those_of_the_copys_own(
    metrics: tuple[int, ...], copied: list[int | None]
) -> None:
    """NetworkManager gives it a metric: the copy's kernel has one without, which would go before it."""
    state, hops = tunnelled(), [NextHop("eth0")]
    state.namespaces[0].routes[:] = [
        Route(to="10.0.0.0/8", hops=hops, metric=one, connected=True, limits={"mtu": 1400}) for one in metrics
    ]
    made = [one for one in clone._Copy(state, {}).as_parts(set()) if isinstance(one, parts.Route)]
    assert [(one.metric, one.mtu_bytes) for one in made] == [(one, 1400) for one in copied]
    other, same = (
        netlink.new_route("fd00::/64", [(2, None)], metric=metric, family=6, replaces=True)
        for metric in (256, None)
    )
    assert same.body == other.body


def test_the_mark_of_a_tunnel_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, data in (("wireguard", {}), ("gre", {"IFLA_GRE_REMOTE": "192.0.2.2", "IFLA_GRE_FWMARK": 7})):
        link = netlink.Link(2, "eth0", kind, True, True, 1450, None, None, None, None, data)
        device = SimpleNamespace(remotes=["192.0.2.2"], port=51820, mark=7)
        monkeypatch.setattr(read.encryption, "wireguard", lambda *_at, device=device: device)
        tunnel = read.encrypted(-1, link, []) or read.tunnel_of(link, [])
        assert (tunnel.remotes, tunnel.mark) == (["192.0.2.2"], 7)


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def test_gateways_and_limits_of_a_route() -> None:
    """A gateway of IPv6 may lead to IPv4, and what an ICMP error told limits no route."""
    gateway = struct.pack("=H", 10) + b"\xfe\x80" + bytes(13) + b"\1"
    for flags, expires, expected in ((0x200, 600, {}), (0x200, 0, {"mtu": 1300}), (0, 600, {"mtu": 1300})):
        body = struct.pack("=8BI", 2, 32, 0, 0, 254, 3, 0, 1, flags) + attribute(1, bytes((10, 2, 0, 1)))
        body += attribute(4, struct.pack("=I", 3)) + attribute(18, gateway)
        body += attribute(8, attribute(2, struct.pack("=I", 1300)))  # RTA_METRICS, RTAX_MTU
        body += attribute(12, struct.pack("=IIi5I", 0, 0, expires, 0, 0, 0, 0, 0))
        answer = struct.pack("=IHHII", 16 + len(body), 24, 0, 0, 0) + body
        kernel: Any = SimpleNamespace(ask=lambda _asked, answer=answer: [answer])
        route = netlink.route_to(kernel, "10.2.0.1")
        assert (route.hops[0].via, route.hops[0].index, route.metrics) == ("fe80::1", 3, expected)
