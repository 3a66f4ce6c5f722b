"""The checks of an existing network judge recorded tables: rules, routes, neighbours, forwarding databases."""

import errno
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from ipaddress import ip_network
from pathlib import Path as FilePath
from socket import AF_UNIX, SOCK_DGRAM, socketpair
from threading import get_native_id
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from labkit.common.errors import BadInput, Failed
from labkit.common.topology_state import TunnelState
from labkit.measure.existing import endpoints, iptables, maps, path, published, spaces
from labkit.measure.existing import half as half_of
from labkit.measure.existing.checks import (
    load,
    mtu,
    probes,
    processing,
    queues,
    reach,
    registry,
    rules,
    sockets,
)
from labkit.measure.existing.checks.evidence import Evidence, Queued, mtu_of
from labkit.measure.existing.checks.findings import LITTLE, MUCH, POSSIBLE, PRESENT, SEEN, Finding
from labkit.measure.existing.checks.probes import Connection, End, OneWay, Sent
from labkit.measure.existing.endpoints import ExistingEndpoint, resolve
from labkit.measure.existing.half import Half
from labkit.measure.existing.path import Path, _is_proxy
from labkit.measure.existing.spaces import Place, Space, Spaces
from labkit.runner import across
from labkit.system import netlink, process
from labkit.system.netlink import Link, LinkError, Route, dumps, encryption
from labkit.system.netlink.dumps import DumpedNextHop
from labkit.system.netlink.sockets import attribute

CLIENT, SERVER = "10.1.0.1", "10.2.0.1"
MAC = "02:00:00:00:00:0%d"
UDP = {"saddr": CLIENT, "daddr": SERVER, "protocol": "udp"}
SYN = {**UDP, "protocol": "tcp", "flags": rules.SYN}
TO_PORT_80 = {**SYN, "dport": "80"}
ARRIVES, LOST = OneWay(Sent(31, 31), Sent(31, 31)), OneWay(Sent(31, 0), Sent(31, 0))


def match(left: dict[str, Any], right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def of(field: str, right: Any, op: str = "==", protocol: str = "ip") -> dict[str, Any]:
    return match({"payload": {"protocol": protocol, "field": field}}, right, op)


def rule(*expr: dict[str, Any], number: int = 1, **of: Any) -> dict[str, Any]:
    where = {"family": "ip", "table": "f", "chain": "w", "handle": number}
    return {**where, "expr": list(expr), **of}


def ports(first: int, last: int) -> dict[str, list[int]]:
    return {"range": [first, last]}


SUBNET = {"prefix": {"addr": "10.1.0.0", "len": 24}}
IFACE = {"meta": {"key": "iifname"}}


def test_matches() -> None:
    for expected, packet, expr in (
        (True, UDP, [of("saddr", CLIENT), of("daddr", SERVER)]),
        (False, UDP, [of("saddr", SERVER)]),
        (False, UDP, [of("saddr", SUBNET, "!=")]),
        (True, UDP, [of("saddr", {"set": ["192.0.2.1", SUBNET]})]),
        (None, UDP, [of("saddr", {"set": ["192.0.2.1", {"range": ["10.0.0.0", "10.3.0.0"]}]})]),
        (None, UDP, [of("saddr", "@filled")]),
        (None, UDP, [of("saddr", CLIENT), {"limit": {"rate": 9}}]),
        (None, UDP, [of("saddr", CLIENT, "<")]),
        (False, SYN, [of("dport", 53, protocol="udp")]),
        (True, UDP, [match({"meta": {"key": "l4proto"}}, {"set": ["tcp", "17"]})]),
        (False, UDP, [match({"meta": {"key": "l4proto"}}, "tcp")]),
        (True, UDP, [match(IFACE, "eth*")]),
        (None, UDP, [match(IFACE, "eth0")]),  # it passes eth1, too
        (False, UDP, [match(IFACE, "lan")]),
        (False, UDP, [match({"meta": {"key": "nfproto"}}, "ipv6")]),
        (False, UDP, [match({"meta": {"key": "protocol"}}, "ip6")]),
        (True, UDP, [match({"meta": {"key": "pkttype"}}, "host")]),
        (False, UDP, [match({"meta": {"key": "pkttype"}}, {"set": ["broadcast", "multicast"]})]),
        (None, UDP, [of("type", "arp", protocol="ether")]),  # a neighbour has to be found first
        (True, UDP, [of("type", {"set": ["ip", "arp"]}, protocol="ether")]),
        (False, UDP, [match({"ct": {"key": "state"}}, "invalid")]),
        (None, SYN, [match({"ct": {"key": "state"}}, "invalid")]),
        (True, TO_PORT_80, [of("dport", {"set": [22, ports(79, 81)]}, protocol="th")]),
        (False, TO_PORT_80, [of("dport", 443, protocol="tcp")]),
        # The kernel chooses the port of a probe, from 32768 to 60999.
        (False, SYN, [of("dport", 49152, protocol="tcp")]),
        (False, SYN, [of("dport", ports(1, 1023), protocol="tcp")]),
        (None, SYN, [of("dport", ports(49152, 65535), protocol="tcp")]),
        (None, SYN, [of("dport", {"set": [22, ports(50000, 50100)]}, protocol="tcp")]),
        (True, SYN, [of("dport", ports(1024, 65535), protocol="tcp")]),
    ):
        assert rules.matches(rule(*expr, {"accept": None}), packet, {"eth0", "eth1"}) is expected


def test_rules_of_another_family_and_those_of_iptables() -> None:
    assert rules.matches(rule(family="ip6"), UDP, set()) is False
    six = {**UDP, "saddr": "fd00::1", "daddr": "fd00::2"}
    of_all = rule(of("saddr", SUBNET, "!="), {"drop": None}, family="inet")
    assert rules.matches(of_all, six, set()) is False
    assert rules.matches(of_all, {**UDP, "saddr": SERVER}, set()) is True
    assert rules.matches(rule(of("hoplimit", 1, "!=", "ip6"), family="inet"), UDP, set()) is False
    for words, expected in (
        ("", True), ("-s 10.1.0.1/32 -p udp -m udp -m comment --comment --x", True), ("-p tcp -m tcp --syn", False),
        ("-m owner --uid-owner 0", None), ("-m socket", None), ("-f", None), ("-m mark --mask 1", None),
    ):  # fmt: skip
        saved = f"*filter\n[1:60] -A FORWARD {words} -j DROP\n"
        [*_, listed] = iptables.merged([], "iptables-nft-save", saved)
        assert rules.matches(listed["rule"], UDP, set()) is expected, words


BITS = ["fin", "syn", "rst", "ack"]


def test_flags() -> None:
    for expected, field, mask, right, op in (
        (True, "flags", BITS, "syn", "=="), (False, "flags", BITS, "syn", "!="),
        (False, "flags", BITS, 0, "=="), (False, "flags", ["ack"], "ack", "=="),
        (True, "flags", None, ["syn", "ack"], "in"), (False, "flags", None, ["syn", "ack"], "!"),
        (False, "frag-off", 0x1FFF, 0, "!="), (None, "flags", ["new"], "syn", "=="),
        (None, "flags", BITS, "syn", "<"), (None, "dscp", None, 1, "=="),
    ):  # fmt: skip
        assert rules._flags(field, mask, right, op, SYN) is expected


def listed_set(name: str, elements: list[Any], **of: Any) -> dict[str, Any]:
    return {"set": {"family": "ip", "table": "f", "name": name, "elem": elements, **of}}


def test_sets_stand_in_the_rules_that_name_them() -> None:
    named = [rule(of("saddr", f"@{name}"), {"drop": None}) for name in ("bad", "filled", "none")]
    other = rule(of("saddr", "@bad"), {"drop": None}, table="g")
    elements = [{"elem": {"val": "192.0.2.1", "counter": {"packets": 3}}}, SUBNET]
    listed = [
        listed_set("bad", elements), listed_set("filled", [CLIENT], flags=["dynamic"]),
        *({"rule": one} for one in (*named, other)),
    ]  # fmt: skip
    assert maps.resolved(listed) is listed
    rights = [one["expr"][0]["match"]["right"] for one in (*named, other)]
    assert rights == [{"set": ["192.0.2.1", SUBNET]}, "@filled", "@none", "@bad"]
    assert [rules.matches(one, UDP, set()) for one in (*named, other)] == [True, None, None, None]


def test_a_long_set_is_read_once_for_all_its_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()
    monkeypatch.setattr(rules, "ip_network", lambda text, strict: read.append(text) or ip_network(text))
    elements = [{"prefix": {"addr": f"192.0.{number}.0", "len": 24}} for number in range(200)]
    same = [rule(of("saddr", "@bad"), {"drop": None}) for _ in range(50)]
    maps.resolved([listed_set("bad", elements), *({"rule": one} for one in same)])
    assert [rules.matches(one, packet, set()) for one in same for packet in (UDP, SYN)] == [False] * 100
    assert len(read) == 200
    assert len(repr(same)) < 50 * 500  # nor does their text repeat it


def test_networks_of_a_policy_select_packets_of_a_path() -> None:
    for expected, source, target in (
        (True, "10.1.0.0/24", "10.2.0.1"),
        (True, "10.2.0.1/24", "0.0.0.0/0"),  # the way back
        (True, "192.0.2.1/32", "192.0.2.2/32"),  # of a tunnel's outer packets
        (False, "10.1.0.0/24", "10.1.0.0/24"),
        (False, "::/0", "::/0"),
    ):
        seen = routed()
        seen.forward.outer.append(Path(seen.forward.start, "192.0.2.1", "192.0.2.2"))
        assert reach._selects(seen, source, target) is expected


@pytest.mark.parametrize(
    ("more", "of_interface", "certainties"),
    [
        ("", "", [SEEN]),
        (" proto tcp dport 443", "", [POSSIBLE]),
        (" dev eth1", "", [POSSIBLE]),
        ("", "\tmark 0x7/0xff\n", [POSSIBLE]),
        ("", "\tif_id 0x2a\n", [SEEN]),
        ("", "\tif_id 0x2b\n", []),
    ],
)
def test_a_policy_is_for_its_packets_alone(more: str, of_interface: str, certainties: list[str]) -> None:
    """As strongSwan's, which has all addresses, and those of an interface."""
    listed = f"src 0.0.0.0/0 dst 0.0.0.0/0{more} \n\tdir out action block priority 399999 ptype main \n{of_interface}"
    seen = routed()
    router = seen.spaces[1]
    router.links[4] = link(4, "ipsec0", "xfrm", data={"IFLA_XFRM_IF_ID": 42})
    for one in seen.spaces:
        text = listed if one is router else ""
        one.namespace.run = lambda *words, text=text: process.Ended(words, 0, text, "", 0.0)
    assert [one.certainty for one in reach.policies(seen)] == certainties


def link(index: int, name: str, kind: str = "veth", **of: Any) -> Link:
    usual = {"master": None, "link": None, "link_netnsid": None, "data": {}}
    return Link(index, name, kind, True, True, 1500, MAC % index, **{**usual, **of})


def space(name: str, links: list[Link], addresses: dict[str, int], **listed: Any) -> Space:
    """Return a namespace with recorded tables. listed: what `fdb` and others print, and cached properties."""
    result = Space(name, -1, None)
    fdb = msgspec.json.encode(listed.pop("fdb", [])).decode()

    def run(*words: str) -> process.Ended:
        return process.Ended(words, 0, fdb if words[:1] == ("bridge",) else "", "", 0.0)

    def read(_path: str) -> str:
        raise FileNotFoundError

    known = {
        "namespace": SimpleNamespace(run=run, read=read, netlink=name), "links": {one.index: one for one in links},
        "addresses": addresses, "details": {one.name: {"address": one.mac} for one in links}, "neighbours": [],
        "chains": {},
    }  # fmt: skip
    vars(result).update(known | listed)
    return result


def routed(*ruleset: dict[str, Any], probe: OneWay = LOST, hook: str = "forward", **mid: Any) -> Evidence:
    """Return what is known of two ends in two subnets with a router between them, which has these rules."""
    client, server = (
        space(f"netns:{name}", [link(2, "eth0")], {own: 2})
        for name, own in (("client", CLIENT), ("server", SERVER))
    )
    gateways = {"10.1.0.254": 3, "10.2.0.254": 4}
    router = space("netns:mid", [link(3, "to-client"), link(4, "to-server")], gateways, **mid)
    ends, ways = (Place(client, 2), Place(server, 2)), (Place(router, 3), Place(router, 4))
    paths = [
        Path(here.space, own, to, there.space, places=[here, *between, there], arrivals=[between[0], there],
             domains=[[here, between[0]], [between[1], there]], complete=True)
        for here, there, own, to, between in (
            (*ends, CLIENT, SERVER, ways), (*ends[::-1], SERVER, CLIENT, ways[::-1]),
        )
    ]  # fmt: skip
    for each in paths:
        each.routes = [(one, route()) for one in (each.start, router)]
    chain = {"family": "ip", "table": "f", "name": "w", "hook": hook, "handle": 9}
    listed = [{"rule": one} for one in ruleset]
    return Evidence(
        *paths, [client, router, server], forward_probe=probe, back_probe=ARRIVES,
        rulesets={client.name: [], server.name: [], router.name: [{"chain": chain}, *listed]},
        connection=Connection(False, 0, 1.0, "timed out"),
    )  # fmt: skip


def route(*hops: tuple[Any, ...]) -> Route:
    each = (DumpedNextHop(one[0], one[1], *(one[2:] or [None])) for one in hops)
    return Route("default", tuple(each), None, None, False, {})


def routes(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Let the kernel of each namespace answer with hops, or with the number of an error."""

    def route_to(
        kernel: str, to: str, source: str = "", arrives_at: int = 0, mark: int = 0, all_hops: bool = False
    ) -> Route:
        found = answer(kernel, to, mark)
        if isinstance(found, int):
            raise LinkError("find a route", found, "")
        return route(*found)

    monkeypatch.setattr(netlink, "route_to", route_to)


def only(found: Any) -> Finding:
    [one] = found
    assert isinstance(one, Finding)
    return one


@pytest.mark.parametrize("ether_type", ["ip", "arp"])
def test_rules_for_arp_alone_take_no_packets_of_ip(ether_type: str) -> None:
    """Nor do those for IP take ARP: a bridge that accepts one of the two drops by its policy."""
    accept = rule(of("type", ether_type, protocol="ether"), {"accept": None}, family="bridge")
    seen = routed(accept)
    [chain, _rule] = seen.rulesets["netns:mid"]
    chain["chain"] |= {"family": "bridge", "policy": "drop"}
    assert [one.cause for one in rules.dropping(seen)] == ["drop policy"]


@pytest.mark.parametrize(
    ("missing", "expr", "count"),
    [
        (SERVER, [], 1),
        ("192.0.2.9", [], 0),
        (SERVER, [of("daddr ip", SERVER, protocol="arp")], 1),
        (SERVER, [of("daddr ip", "192.0.2.9", protocol="arp")], 0),
    ],
)
def test_rules_of_arp_of_a_router_count_where_a_neighbour_of_the_path_is_missing(
    missing: str, expr: list[dict[str, Any]], count: int
) -> None:
    seen = routed(rule(*expr, {"drop": None}, family="arp"), hook="input")
    [client, router, server] = seen.spaces
    seen.rulesets[router.name][0]["chain"]["family"] = "arp"
    out = Place(router, 4)
    vars(router)["neighbours"] = [{"dst": missing, "dev": out.name, "state": ["FAILED"]}]
    vars(client)["neighbours"] = [{"dst": "192.0.2.9", "dev": "eth0", "state": ["FAILED"]}]
    seen.forward.hops.append((out, SERVER, Place(server, 2)))
    assert [one.cause for one in rules.dropping(seen)] == ["drop rule"] * count


def test_long_sets_are_those_of_the_hooks_that_each_packet_passes() -> None:
    """A router passes packets on, an end receives or sends each; rules of nat see only the first of a connection."""
    saved = "*nat\n:POSTROUTING ACCEPT [0:0]\n" + "[1:60] -A POSTROUTING -j ACCEPT\n" * 99
    nat = iptables.merged([], "iptables-legacy-save", saved)
    ways = {"prerouting": 30, "input": 40, "forward": 70, "output": 60, "postrouting": 5}
    for at, count, most in (
        (1, 30 + 70 + 5, "70 of them from ip f forward"),
        (2, 30 + 40, "40 of them from ip f input"),
    ):
        seen = routed()
        seen.rulesets = {one.name: list(nat) for one in seen.spaces}
        for hook, own in ways.items():
            chain = {"family": "ip", "table": "f", "name": hook, "hook": hook, "type": "filter"}
            each = ({"rule": rule({"accept": None}, number=number, chain=hook)} for number in range(own))
            seen.rulesets[seen.spaces[at].name] += [{"chain": chain}, *each]
        assert only(rules.long_sets(seen)).what.startswith(f"up to {count} rules see each packet, {most}; ")


@pytest.mark.parametrize(("first", "hidden"), [(49152, False), (1024, True)])
def test_a_port_that_was_guessed_hides_no_drop(first: int, hidden: bool) -> None:
    """Only an accept rule that takes every port that a probe may have hides the rule behind it."""
    accept = [
        rule(of("dport", ports(first, 65535), protocol=name), {"accept": None}, number=number)
        for number, name in enumerate(("udp", "tcp"), 1)
    ]
    icmp = rule(match({"meta": {"key": "l4proto"}}, "icmp"), {"accept": None}, number=3)
    found = list(rules.dropping(routed(*accept, icmp, rule({"drop": None}, number=4))))
    assert [one.cause for one in found] == ([] if hidden else ["drop rule"])


def test_a_rule_that_surely_matches_comes_before_one_that_may() -> None:
    may, does = rule({"limit": {"rate": 9}}, {"drop": None}), rule({"drop": None}, number=2)
    found = sorted(rules.dropping(routed(may, does)), key=lambda one: -one.weight)
    assert [one.undo and one.undo[-1] for one in found] == ["2", "1"]


def test_ports_that_probes_get_are_those_of_the_receiver() -> None:
    seen = routed()
    vars(seen.server.space)["sysctl"] = lambda _name: "20000 20100"
    assert {one["dport"] for one in rules._packets(seen) if one["daddr"] == SERVER} == {"20000-20100"}


def test_outer_packets_of_a_tunnel_without_a_source_match_nothing() -> None:
    seen = routed()
    seen.forward.outer.append(Path(seen.forward.start, "", "192.0.2.2", packet={"protocol": "udp"}))
    assert {one["daddr"] for one in rules._packets(seen)} == {CLIENT, SERVER}
    assert not reach._selects(seen, "0.0.0.0/0", "192.0.2.2/32")


def test_programs_of_bpf_are_likely_where_something_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "programs", ["tc"])
    for certain, probe in (("possible", ARRIVES), (SEEN, LOST)):
        seen = routed(probe=probe)
        seen.connection = None
        assert {(one.cause, one.certainty) for one in processing.captures(seen)} == {("tc program", certain)}


SNAT = rule(of("saddr", SUBNET), {"snat": {"addr": {"range": ["10.2.0.77", "10.2.0.79"]}}})
SAVED = "*nat\n:POSTROUTING ACCEPT [0:0]\n[1:60] -A POSTROUTING -s 10.1.0.0/24 -j SNAT --to-source 10.2.0.77:1-9\n"


REWRITES = rule({"mangle": {"key": {"payload": {"protocol": "ip", "field": "daddr"}}, "value": "10.9.9.9"}})
NO_CHECKSUM = rule({"mangle": {"key": {"payload": {"protocol": "udp", "field": "checksum"}}, "value": 0}})
MARKS_DSCP = rule({"mangle": {"key": {"payload": {"protocol": "ip", "field": "dscp"}}, "value": 1}})


@pytest.mark.parametrize(("of", "count"), [(REWRITES, 1), (MARKS_DSCP, 0), (NO_CHECKSUM, 0)])
def test_rules_that_replace_addresses_without_connections(of: dict[str, Any], count: int) -> None:
    for probe, certain in ((LOST, SEEN), (ARRIVES, "possible")):  # another port may be blocked
        found = list(rules.translated(routed(of, probe=probe)))
        assert [(one.cause, one.certainty) for one in found] == [("address translation", certain)] * count


def test_answers_to_a_translated_address_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = iptables.merged([], "iptables-nft-save", SAVED)
    for certain, back, said in (
        (SEEN, [(None, 2)], "nobody on the path has 10.2.0.77"),
        (SEEN, 101, "netns:server has no route back to 10.2.0.77"),
        (SEEN, [("10.2.0.99", 2)], "nobody on the path has 10.2.0.99"),
        ("possible", [("10.2.0.254", 2)], "do not arrive: "),
    ):
        routes(monkeypatch, lambda _kernel, _to, _mark, back=back: back)
        for translates in (SNAT, listed[-1]["rule"]):
            found = only(rules.translated(routed(translates, probe=ARRIVES)))
            assert (found.certainty, said in found.what) == (certain, True), found.what


def test_an_address_that_rules_put_into_packets_may_be_of_ipv6() -> None:
    saved = "*nat\n[1:60] -A POSTROUTING -j SNAT --to-source %s\n"
    for given in ("2001:db8::9", "[2001:db8::9]:1-9", "2001:db8::9-2001:db8::a"):
        [counted, snat] = iptables.merged([], "ip6tables-nft-save", saved % given)[-1]["rule"]["expr"]
        of_port = {"port": ports(1, 9)} if given.endswith(":1-9") else {}
        address = {"range": given.split("-")} if given.endswith("::a") else "2001:db8::9"
        assert (counted, snat) == ({"counter": {"packets": 1}}, {"snat": {"addr": address} | of_port})
    for words, statement in (
        ("DNAT --to-destination [fd00::1]:80", {"dnat": {"addr": "fd00::1", "port": 80}}),
        ("DNAT --to-destination :8080", {"dnat": {"port": 8080}}),
        ("REDIRECT --to-ports 9999", {"redirect": {"port": 9999}}),
        ('REDIRECT -m comment --comment "--to-ports 99 x" --to-ports 80', {"redirect": {"port": 80}}),
    ):
        saved = f"*nat\n[1:60] -A PREROUTING -p tcp -j {words}\n"
        assert iptables.merged([], "ip6tables-nft-save", saved)[-1]["rule"]["expr"][-1] == statement
    counting = "*filter\n[2:9] -A INPUT\n"
    assert iptables.merged([], "iptables-save", counting)[-1]["rule"]["expr"] == [{"counter": {"packets": 2}}]


def test_rules_of_the_way_out_of_the_server_need_no_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """They replace the server's address in what it sends first, not the client's."""
    outward = rule(of("saddr", {"prefix": {"addr": "10.2.0.0", "len": 24}}), {"snat": {"addr": "10.2.0.77"}})
    routes(monkeypatch, lambda _kernel, _to, _mark: 101)
    assert all("no route back" not in one.what for one in rules.translated(routed(outward, probe=ARRIVES)))


@pytest.mark.parametrize(
    ("listed", "ways", "named"),
    [
        ("32765: from all ipproto udp lookup 100", {17: "other"}, ["udp possible"]),
        ("32765: from all ipproto 6 lookup 100", {6: "other"}, ["tcp possible"]),
        ("32765: from all ipproto udp blackhole", {17: ""}, ["udp seen"]),
        ("32765: from all ipproto tcp blackhole", {6: "", 17: ""}, ["udp seen", "tcp seen"]),
        ("32765: from all blackhole", {1: "", 6: "", 17: ""}, []),
        ("32765: from all lookup 100", {6: "other"}, []),  # several next hops
        ("", {}, []),
    ],
)
def test_rules_of_routing_for_a_protocol(listed: str, ways: dict[int, str], named: list[str]) -> None:
    """One that leads a protocol another way may be the cause, one that lets it no way is; the others are not led."""
    asked, seen = list[str](), routed()

    def run(*words: str) -> process.Ended:
        asked.append(text := " ".join(words))
        number = text.partition("ipproto ")[2].partition(" ")[0]
        out = listed if words[2] == "rule" else ways.get(int(number), "usual")
        return process.Ended(words, 0, out, "", 0.0)

    vars(seen.spaces[1])["namespace"].run = run
    seen.back.arrivals = []
    found = [f"{one.what.split()[5]} {one.certainty}" for one in rules.policy_routing(seen)]
    assert found == named
    assert any("route get" in one for one in asked) == ("ipproto" in listed)


MARK = {"key": {"meta": {"key": "mark"}}, "value": 7}
ORED = {**MARK, "value": {"|": [{"&": [{"meta": {"key": "mark"}}, 240]}, 7]}}
CT_MARK = {**MARK, "key": {"ct": {"key": "mark"}}}


def mark_of_a_map(of_server: int) -> dict[str, Any]:
    """Return a rule whose map gives the server's packets this mark, and others 7 or 8."""
    elements = {"set": [["192.0.2.9", 15 - of_server], [SUBNET, 9], [SERVER, of_server]]}
    daddr = {"payload": {"protocol": "ip", "field": "daddr"}}
    return rule({"mangle": {**MARK, "value": {"map": {"key": daddr, "data": elements}}}})


def of_iptables(target: str) -> dict[str, Any]:
    saved = f"*mangle\n[1:60] -A PREROUTING -d 10.2.0.0/24 -j {target} --set-xmark 0x7/0xff\n"
    return iptables.merged([], "iptables-legacy-save", saved)[-1]["rule"] | {"table": "f", "chain": "w"}


@pytest.mark.parametrize(
    ("named", "marking"),
    [
        (True, rule(of("daddr", SERVER), {"mangle": MARK})),
        (True, rule({"mangle": ORED})),
        (True, mark_of_a_map(7)),
        (False, mark_of_a_map(8)),
        (True, of_iptables("MARK")),
        (False, of_iptables("CONNMARK")),
        (False, rule({"mangle": CT_MARK})),
        (False, rule(of("daddr", SERVER), {"mangle": {**MARK, "value": 8}})),
        (False, rule(of("daddr", "10.9.9.9"), {"mangle": MARK})),
    ],
)
def test_marks_for_which_routing_refuses(
    named: bool, marking: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    routes(monkeypatch, lambda _kernel, _to, mark: 22 if mark == 7 else [(None, 2)])
    found = list(rules.marks(routed(marking, hook="prerouting")))
    assert {(one.cause, "mark 0x7" in one.what, one.certainty) for one in found} == {
        ("marked packets", True, SEEN) for _ in range(named)
    }
    # A chain behind the choice of the way changes none; and what is refused without the mark is not refused for it.
    assert not [*rules.marks(routed(marking, hook="postrouting"))]
    routes(monkeypatch, lambda _kernel, _to, _mark: 22)
    assert not [*rules.marks(routed(marking, hook="prerouting"))]


def test_next_hops_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the kernel asked for in vain, or that nobody on the link has."""
    for certain, state, also, hop in (
        (SEEN, ["FAILED"], "10.1.0.253", None),
        (PRESENT, [], "10.1.0.253", None),
        ("", [], "10.1.0.253", "dead linkdown"),  # the kernel does not choose it
        ("", [], "10.1.0.254", None),
    ):
        seen = routed()
        hops = {"netns:client": [("10.1.0.254", 2, None), (also, 2, hop)]}
        routes(monkeypatch, lambda kernel, _to, _mark, hops=hops: hops.get(kernel, [(None, 2)]))
        vars(seen.client.space)["neighbours"] = [{"dst": also, "dev": "eth0", "state": state}]
        found = [(one.cause, one.certainty, also in one.what) for one in reach.next_hops(seen)]
        assert found == [("dead next hop", certain, True)] * bool(certain)


@pytest.mark.parametrize(
    ("kind", "ago_s", "probe", "said"),
    [
        ("wireguard", 170, LOST, False),
        ("wireguard", 190, LOST, True),
        ("wireguard", None, LOST, True),
        ("wireguard", None, ARRIVES, False),
        ("veth", None, LOST, False),
    ],
)
def test_wireguard_without_a_recent_handshake(
    kind: str, ago_s: int | None, probe: OneWay, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    handshake = struct.pack("=qq", 0 if ago_s is None else int(time.time()) - ago_s, 0)
    peer = attribute(encryption.PEER_HANDSHAKE, handshake)
    device = attribute(encryption.WG_LISTEN_PORT, struct.pack("=H", 51820))
    device += attribute(encryption.WG_PEERS, attribute(0, peer))
    kernel = SimpleNamespace(ask=lambda _request: [bytes(20) + device])
    monkeypatch.setattr(encryption, "_socket", lambda *_at: nullcontext(kernel))
    monkeypatch.setattr(encryption, "family", lambda *_of: 16)
    seen = routed(probe=probe)
    seen.connection = None
    seen.client.space.links[2] = link(2, "eth0", kind)
    found = [(one.cause, one.certainty, one.where) for one in reach.handshakes(seen)]
    assert found == [("WireGuard handshake", POSSIBLE, "netns:client eth0")] * said


def bridged(fdb: list[dict[str, Any]], kind: str = "bridge", **bridge: Any) -> Evidence:
    """Return what is known of two ends at two ports of a bridge, or at two tunnels, with static entries."""
    ports = [link(number, f"port-{number}", master=5) for number in (3, 4, 6)]
    details = {"lan": {"linkinfo": {"info_kind": "bridge", "info_data": bridge}}}
    mid = space("netns:mid", [*ports, link(5, "lan", kind)], {}, fdb=fdb)
    mid.details.update(details)
    client, server = (space(f"netns:{name}", [link(number, "eth0")], {own: number})
                      for number, name, own in ((1, "client", CLIENT), (2, "server", SERVER)))  # fmt: skip
    here, there, lan = Place(client, 1), Place(server, 2), Place(mid, 5)
    way, hops, steps = (
        [here, Place(mid, 3), lan, Place(mid, 4), there],
        [(here, SERVER, there)],
        [(lan, "out")],
    )
    forward = Path(client, CLIENT, SERVER, server, places=way, hops=hops, steps=steps)
    if kind == "vxlan":  # its outer packets have a next hop, too
        near, far = Place(mid, 4), Place(mid, 6)
        forward.places = [here, lan, near, far, there]
        forward.hops.append((near, "192.0.2.2", far))
        forward.outer.append(Path(mid, "192.0.2.1", "192.0.2.2", places=[near, far]))
    back = Path(server, SERVER, CLIENT, client, places=way[::-1], hops=[(there, CLIENT, here)])
    return Evidence(forward, back, [client, mid, server], forward_probe=LOST, back_probe=ARRIVES)


def test_static_entries_that_lead_elsewhere() -> None:
    for to, entry in (
        ("port-3", {"ifname": "port-3", "master": "lan", "state": "static"}),
        ("itself", {"ifname": "port-4", "master": "lan", "state": "permanent"}),
        ("192.0.2.9", {"ifname": "lan", "dst": "192.0.2.9", "state": "permanent"}),
        ("", {"ifname": "lan", "dst": "192.0.2.2", "state": "permanent"}),
        ("", {"ifname": "port-4", "master": "lan", "state": "static"}),
        ("", {"ifname": "port-3", "master": "lan", "state": ""}),
        ("", {"ifname": "port-3", "master": "other", "state": "static"}),
    ):
        kind = "vxlan" if "dst" in entry else "bridge"
        found = list(reach.forwarding(bridged([{"mac": MAC % 2, **entry}], kind)))
        assert [one.cause for one in found] == ["forwarding entry"] * bool(to)
        assert all(f"(netns:server eth0) to {to}, not to" in one.what for one in found)


@pytest.mark.parametrize(("master", "answers"), [(None, True), (5, False)])
def test_a_port_of_a_bridge_answers_for_nobody(
    master: int | None, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its proxy_arp, the bridge takes its frames; for whom an interface answers, it need not have."""
    mid = space("netns:mid", [link(3, "port", master=master)], {}, sysctl=lambda _name: "1")
    routes(monkeypatch, lambda _kernel, _to, _mark: [(None, 4)])
    assert _is_proxy(Place(mid, 3), "169.254.1.1") is answers
    seen = routed()
    vars(seen.client.space)["neighbours"] = [{"dst": "169.254.1.1", "dev": "eth0", "state": ["FAILED"]}]
    seen.forward.hops.append((Place(seen.client.space, 2), "169.254.1.1", Place(mid, 3)))
    assert only(reach.neighbours(seen)).what.endswith("although netns:mid port answers for it")


def test_bridges_and_their_ports() -> None:
    four, six = (CLIENT, SERVER), ("fd00::1", "fd00::2")
    for port, bridge, probe, ends, causes in (
        ({"locked": True}, {}, LOST, four, ["bridge port"]),
        ({"locked": True}, {}, ARRIVES, four, []),  # the end's address may be entered for it
        ({"bcast_flood": False}, {}, LOST, four, ["bridge port"]),  # ARP needs it, and IPv6 multicasts
        ({"bcast_flood": False}, {}, LOST, six, []),
        ({"mcast_flood": False}, {}, LOST, four, []),
        ({"mcast_flood": False}, {}, LOST, six, ["bridge port"]),
        ({}, {"ageing_time": 0}, LOST, four, ["bridge floods"]),
        ({}, {"ageing_time": 30000}, LOST, four, []),
    ):
        seen = bridged([], **bridge)
        seen.forward_probe, seen.connection = probe, Connection(False, 0, 1.0, "timed out")
        seen.forward.source, seen.forward.destination = ends
        seen.back.source, seen.back.destination = ends[::-1]
        own = {"info_slave_kind": "bridge", "info_slave_data": port}
        seen.spaces[1].details["port-3"] = {"linkinfo": own}
        found = list(reach.bridges(seen))
        assert [one.cause for one in found] == causes, (port, bridge)
        assert all(one.certainty == SEEN or "its 3 ports" in one.what for one in found)


def htb(own: str, rate: str, sent: int, of: str = "root") -> str:
    head = f"class htb {own} {of} prio 0 rate 1Mbit ceil {rate} burst 1600b cburst 1600b\n"
    return f"{head} Sent {sent} bytes 9 pkt (dropped 0, overlimits 0 requeues 0)\n"


@pytest.mark.parametrize("major", ["1", "ffe"])
def test_classes_of_any_handle_limit_what_passes_them(major: str) -> None:
    """Of two classes, the slower one limits; tc prints handles in hexadecimal."""
    rates = htb(f"{major}:1", "50Mbit", 90) + htb(f"{major}:10", "20Mbit", 90, f"parent {major}:1 leaf b:")
    assert queues._class_rates(rates) == [50e6, 20e6]


HFSC = """class hfsc 1: root
 Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)
 period 0 level 2

class hfsc 1:1 parent 1: ls m1 0bit d 0us m2 20Mbit ul m1 0bit d 0us m2 20Mbit
 Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)
 period 3 work 980 bytes level 1

class hfsc 1:10 parent 1:1 leaf 8001: sc m1 0bit d 0us m2 10Mbit
 Sent 980 bytes 10 pkt (dropped 0, overlimits 0 requeues 0)
 period 1 work 980 bytes rtwork 980 bytes level 0

class hfsc 1:20 parent 1:1 rt m1 0bit d 0us m2 1500Kbit
 Sent {} bytes 0 pkt (dropped 0, overlimits 0 requeues 0)

class hfsc 1:30 parent 1: ul m1 0bit d 0us m2 1Mbit
 Sent 0 bytes 0 pkt (dropped 0, overlimits 0 requeues 0)
"""


def test_upper_limits_of_hfsc_are_rate_limits() -> None:
    """Its parents count no packets, and a real-time curve limits where it is the only one (tc-hfsc(7))."""
    assert queues._class_rates(HFSC.format(0)) == [20e6]
    assert queues._class_rates(HFSC.format(90)) == [20e6, 1.5e6]
    assert not queues._class_rates(HFSC.format(90), HFSC.format(90))
    assert list(queues._limits("hfsc", {}, [20e6])) == ["limits the rate to 20 Mbit/s"]


def test_offloads_of_a_path_through_a_program_may_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch in user space takes frames by packet sockets: the kernel shows no way, and packets arrive."""
    monkeypatch.setattr(Evidence, "features", lambda _seen, _place: {"tx-checksumming": False})
    for complete, causes in ((True, {"offload off"}), (False, set())):
        seen = routed(probe=ARRIVES)
        seen.forward.complete = seen.back.complete = complete
        assert {one.cause for one in processing.offloads(seen)} == causes


def test_probes_that_arrived_in_time_count_however_late_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy machine may let this process wait for longer than probes take."""
    now_s = iter(number / 10 for number in range(100))
    monkeypatch.setattr(probes.time, "monotonic", lambda: next(now_s))
    ours, theirs = socketpair(AF_UNIX, SOCK_DGRAM)
    with ours, theirs:
        for number in range(9):
            theirs.send(b"token678" + number.to_bytes(4))
        receiver = object.__new__(probes.Receiver)
        receiver._socket, receiver._token = ours, b"token678"
        assert receiver.arrived(probes.LAST_S, 9) == set(range(9))


class LongPath:
    """Both ends of a path that delays every packet, and passes those of up to 1,500 bytes."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s, self.on_their_way = delay_s, list[tuple[float, int]]()

    def send(self, number: int, length_bytes: int) -> str:
        if length_bytes <= 1500:
            self.on_their_way.append((time.monotonic() + self.delay_s, number))
        return ""

    def burst(self, count: int) -> None:
        for number in range(1, count + 1):
            self.send(number, probes.SMALL_BYTES)

    def told(self) -> tuple[str, None]:
        return "", None

    def arrived(self, wait_s: float, wanted: int) -> set[int]:
        until, result = time.monotonic() + wait_s, set[int]()
        while self.on_their_way and len(result) < wanted and self.on_their_way[0][0] <= until:
            at_s, number = self.on_their_way.pop(0)
            time.sleep(max(0.0, at_s - time.monotonic()))
            result.add(number)
        return result


def test_delay_is_no_loss() -> None:
    path: Any = LongPath(2 * probes.LAST_S)
    found = probes.one_way(lambda _kind: nullcontext((path, path)), 1500)
    assert found.summary == {"icmp": "301/301", "udp": "301/301", "mtu_bytes": 1500}


def test_a_load_ends_with_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """iperf3 would wait for many seconds."""
    monkeypatch.setattr(load, "_iperf3", lambda *_words: process.Running(["sleep", "60"]))
    monkeypatch.setattr(load, "listening", nullcontext)
    end, begun_s = End(space("netns:client", [], {}), CLIENT), time.monotonic()
    with process.all_ended([process.Running(["sleep", "60"])]) as [program]:
        program.kill()
        named = ExistingEndpoint("container:web", -1, program.pid, program.fileno())
        with pytest.raises(Failed, match="container:web has ended"):
            load.run(end, end, 30, [named])
    assert time.monotonic() - begun_s < 10


def ends_of(client: across._Side, server: across._Side) -> Any:
    ends: Any = object.__new__(across._Ends)
    ends.client, ends.server = ends.sides = [client, server]
    return ends


def test_a_load_between_two_machines_ends_with_the_servers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's machine sees its own end only: meanwhile the server's one is asked, too."""
    monkeypatch.setattr(load, "_iperf3", lambda *_words: process.Running(["sleep", "60"]))
    half: Any = object.__new__(Half)
    half._end, half._to, half._serving = End(space("netns:client", [], {}), CLIENT), SERVER, ExitStack()
    half._named = ExistingEndpoint("netns:client", -1, None, None)
    asked = list[str]()

    def server(ask: str, _given: dict[str, Any]) -> Any:
        asked.append(ask)
        if asked.count("listening") == 2:
            raise Failed("container:web has ended, and its network with it")
        return lambda: {"answer": ""}

    sides = [
        across._Side("ssh:a", "netns:client", lambda ask, given: lambda: half.answer(ask, given)),
        across._Side("ssh:b", "container:web", server),
    ]
    ends, begun_s = ends_of(*sides), time.monotonic()
    with half._serving, pytest.raises(Failed, match="container:web has ended"):
        across._load(ends, 30, "TCP")
    assert asked == ["serve", "listening", "listening", "served"]
    assert time.monotonic() - begun_s < 10


def test_what_is_no_question_is_not_answered() -> None:
    half: Any = object.__new__(Half)
    half._named, half.close, half._own = ExistingEndpoint("netns:client", -1, None, None), list, list
    for name in ("answer", "described", "close", "_own"):
        with pytest.raises(KeyError):
            half.answer(name, {})


def test_the_server_of_a_load_ends_where_the_load_does_not_start() -> None:
    asked = list[tuple[str, str]]()

    def side(name: str, **answers: str) -> across._Side:
        def begin(ask: str, _given: dict[str, Any]) -> Any:
            asked.append((name, ask))
            return lambda: {"answer": answers.get(ask, "")}

        return across._Side("ssh:a", name, begin)

    ends = ends_of(side("client", load="there is no iperf3"), side("server"))
    with pytest.raises(Failed, match=r"^there is no iperf3$"):
        across._load(ends, 30, "TCP")
    assert sorted(asked[2:]) == [("client", "served"), ("server", "served")]


ICMP = {**UDP, "protocol": "icmp"}
FIB = {"fib": {"result": "type", "flags": ["daddr"]}}


@pytest.mark.parametrize(
    ("probe", "count", "certainty"),
    [
        (LOST, 40, SEEN),
        (LOST, 3, POSSIBLE),
        (ARRIVES, 3, POSSIBLE),
        (OneWay(Sent(300, 250), Sent(300, 250)), 90, SEEN),
    ],
)
def test_the_reverse_path_filter_drops_packets_of_others(probe: OneWay, count: int, certainty: str) -> None:
    seen = routed(probe=probe)
    mibs = {"TcpExt": {"IPReversePathFilter": count}}
    seen.changed["namespaces"] = {"netns:mid": {"mibs": mibs}}
    assert only(reach.filtered(seen)).certainty == certainty


def test_rules_see_the_name_of_a_vrf() -> None:
    drops = [rule(match(IFACE, name), {"drop": None}, number=n) for n, name in enumerate(("blue", "other"))]
    seen = routed(*drops)
    seen.drops = Counter({("NETFILTER_DROP", "nf_hook_slow", "to-client"): 62})
    router = seen.spaces[1]
    router.links |= {
        3: replace(router.links[3], master=9), 4: replace(router.links[4], master=8),
        9: link(9, "blue", "vrf"), 8: link(8, "bond0", "bond"),
    }  # fmt: skip
    assert seen.names(router) == {"to-client", "to-server", "blue"}
    assert "handle 0" in only(rules.dropping(seen)).what


def test_conditions_that_no_packet_of_a_check_fulfils() -> None:
    arp = {**UDP, "asked": f"{SERVER} {CLIENT}"}
    for expected, packet, family, expr in (
        (False, ICMP, "ip", of("type", "redirect", protocol="icmp")),
        (False, ICMP, "ip", of("type", {"set": ["timestamp-request", 17]}, protocol="icmp")),
        (None, ICMP, "ip", of("type", {"set": ["redirect", "echo-request"]}, protocol="icmp")),
        (None, ICMP, "ip", of("type", "destination-unreachable", protocol="icmp")),  # of a black hole
        (True, ICMP, "ip", of("type", "redirect", "!=", "icmp")),
        (False, UDP, "ip", match(FIB, {"set": ["broadcast", "multicast"]})),
        (None, UDP, "ip", match(FIB, {"set": ["broadcast", "local"]})),
        (False, arp, "arp", of("daddr ip", "192.0.2.9", protocol="arp")),
        (None, arp, "arp", of("daddr ip", SERVER, protocol="arp")),
        (None, arp, "arp", of("saddr ip", SUBNET, protocol="arp")),
        (None, UDP, "arp", of("daddr ip", "192.0.2.9", protocol="arp")),
    ):
        found = rules.matches(rule(expr, {"drop": None}, family=family), packet, {"eth0"})
        assert found is expected, expr
    for number, expected in (("8", None), ("5/1", False)):
        saved = f"*filter\n[1:60] -A FORWARD -p icmp -m icmp --icmp-type {number} -j DROP\n"
        [*_, listed] = iptables.merged([], "iptables-nft-save", saved)
        assert rules.matches(listed["rule"], ICMP, set()) is expected


def test_a_tenth_is_lost_where_an_interface_counted_less() -> None:
    seen = routed(probe=OneWay(Sent(300, 270), Sent(300, 270)))
    seen.connection = None
    router = seen.spaces[1]
    server = seen.server.space
    seen.forward.steps = [(Place(router, 3), "in"), (Place(router, 4), "out"), (Place(server, 2), "in")]
    seen.changed["namespaces"] = {
        router.name: {"interfaces": {"to-client": {"rx_packets": 600}, "to-server": {"tx_packets": 540}}},
        server.name: {"interfaces": {"eth0": {"rx_packets": 540}}},
    }
    found = only(registry.unexplained(seen))
    assert found.cause == "loss"
    assert found.what.startswith("10 % of small packets from 10.1.0.1 to 10.2.0.1 are lost: ")
    assert found.what.endswith("they are lost between netns:mid to-client and netns:mid to-server")
    assert found.where == "netns:mid to-client"
    quota = Finding(cause="CPU quota", what="0.2 CPUs", where="", certainty=SEEN, weight=MUCH)
    shown = registry.judged([quota], registry.unexplained(seen))  # it need not be what loses them
    assert [(one.cause, one.weight) for one in shown] == [("CPU quota", MUCH), ("loss", LITTLE)]
    seen.forward_probe = OneWay(Sent(300, 298), Sent(300, 297))  # a busy machine loses a few
    assert not list(registry.unexplained(seen))
    seen.forward_probe = OneWay(Sent(300, 300), Sent(300, 295))
    assert only(registry.unexplained(seen)).what.startswith("1.7 % of small packets of UDP from 10.1.0.1 to ")


@pytest.mark.parametrize(
    ("data", "carriers", "ways"),
    [
        ({"IFLA_BOND_MODE": 1, "IFLA_BOND_ACTIVE_SLAVE": 4}, (True, True), ["nic4"]),
        ({"IFLA_BOND_MODE": 4}, (True, True), ["nic3", "nic4"]),
        ({"IFLA_BOND_MODE": 4}, (False, True), ["nic4", "nic3"]),
    ],
)
def test_a_packet_leaves_by_one_port_of_a_bond(
    data: dict[str, int], carriers: tuple[bool, bool], ways: list[str]
) -> None:
    """The one that is active, or one that has a carrier. Which one a hash chooses is not known, so all count it."""
    nics = [
        replace(link(number, f"nic{number}", master=9), kind=None, carrier=carrier)
        for number, carrier in zip((3, 4), carriers, strict=True)
    ]
    host = space("host", [*nics, link(9, "bond0", "bond", data=data)], {CLIENT: 9})
    every: Any = object.__new__(Spaces)
    every._uppers = {}
    ports = [there for there, _how in every.beside(Place(host, 9))]
    assert {one.name for one in ports} == {*ways}
    leaves = path._way_out(
        every, {Place(host, 9): None, **dict.fromkeys(ports, (Place(host, 9), "down"))}, {}
    )
    assert leaves is not None
    assert leaves.name == ways[0]
    assert [how for _there, how in every.beside(Place(host, 3))] == ["up"] * ("nic3" in ways)
    seen = routed()
    seen.changed["namespaces"] = {host.name: {"interfaces": {"bond0": {"tx_packets": 60}}}}
    for number in (3, 4):
        assert seen.counted((Place(host, number), "out"), 60)
        assert not seen.counted((Place(host, number), "out"), 61)


def test_the_largest_packet_is_that_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod of Cilium has an MTU of 1500, and routes with that of the tunnel."""
    seen = routed()
    monkeypatch.setitem(vars(seen.client.space), "sysctl", {"net/ipv6/conf/eth0/mtu": "1280"}.get)
    assert mtu_of(seen.forward) == 1500
    (at, own), *others = seen.forward.routes
    seen.forward.routes = [(at, replace(own, metrics={"mtu": 1450})), *others]
    assert mtu_of(seen.forward) == 1450
    seen.forward.source = "fd00::1"
    assert mtu_of(seen.forward) == 1280
    seen.forward.places = []
    assert mtu_of(seen.forward) == 1500


def test_what_ipsec_takes_is_no_black_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    for mtus, passes_bytes, causes in (
        ((1500, 1458), 1458, []),
        ((9000, 1458), 1458, []),  # without IPsec, packets would leave by another interface
        ((1500, 1458), 1358, ["MTU black hole"]),
        ((1500, 65536), 1400, ["MTU black hole"]),  # a policy without keys
        ((1400, 1400), 1400, ["MTU black hole"]),  # what the probes' errors told
        ((0, 0), 1400, ["MTU black hole"]),
    ):
        monkeypatch.setattr(mtu.encryption, "mtus", lambda *_of, mtus=mtus: mtus)
        probe = OneWay(Sent(31, 31), Sent(31, 31), probes.Mtu(max(mtus[0], 1500), passes_bytes, None))
        assert [one.cause for one in mtu.measured(routed(probe=probe))] == causes


def vlan(index: int, number: int, lower: int) -> Link:
    return link(index, f"eth0.{number}", "vlan", link=lower, data={"IFLA_VLAN_ID": number})


def switched(
    filters: bool, numbers: tuple[int | None, ...], own: dict[str, list[tuple[int, bool, bool]]],
    kind: str = "bridge", protocol: int = 0x8100, tc: str = "", programs: Sequence[str] = (),
) -> tuple[Path, list[str]]:  # fmt: skip
    """Return the path of a client's frames at a bridge, and who is asked for: the server, a third end with its address.

    numbers: the VLAN of the device that has the address of each end; None: its cable. own: the VLANs of ports.
    """
    names = ("client", "server", "third")
    ends = [
        space(
            f"netns:{name}",
            [link(2, "eth0", link=3 + at, link_netnsid=0), *([vlan(7, number, 2)] if number else [])],
            {(CLIENT if name == "client" else SERVER): 7 if number else 2},
        )
        for at, (name, number) in enumerate(zip(names, numbers, strict=True))
    ]
    ports = [link(3 + at, f"port-{name}", master=9, link=2, link_netnsid=at) for at, name in enumerate(names)]
    data = {"IFLA_BR_VLAN_FILTERING": int(filters), "IFLA_BR_VLAN_PROTOCOL": protocol}
    words = ("PVID", "Egress Untagged")
    vlans = [
        {"ifname": name, "vlans": [
            {"vlan": number, "flags": [word for word, on in zip(words, flags, strict=True) if on]}
            for number, *flags in of
        ]} for name, of in own.items()
    ]  # fmt: skip
    qdiscs = [{"kind": "ingress", "dev": one.name} for one in ports if tc]

    def run(*words: str) -> process.Ended:
        listed = {"bridge": vlans, "tc": qdiscs}.get(words[0], [])
        text = tc if "filter" in words else msgspec.json.encode(listed).decode()
        return process.Ended(words, 0, text, "", 0.0)

    mid = space("netns:mid", [*ports, link(9, "lan", kind, data=data)], {})
    mid.namespace.run = run
    every: Any = object.__new__(Spaces)
    every._uppers, every._all = None, dict(enumerate([*ends, mid]))
    every._numbers = {mid: dict(enumerate(ends)), **{end: {0: mid} for end in ends}}
    every._asked = {}
    along = Path(ends[0], CLIENT, SERVER, ends[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Place, "programs", programs)
        path._across(every, along, Place(ends[0], 7 if numbers[0] else 2), SERVER)
    return along, sorted({owner.space.name for *_hop, owner in along.hops})


PORT_10, PORT_20 = [(1, False, True), (10, True, True)], [(20, True, True)]
TRUNK = [(1, True, True), (10, False, False)]
BOTH, ONE = ["netns:server", "netns:third"], ["netns:server"]


@pytest.mark.parametrize(
    ("filters", "numbers", "ports", "asked"),
    [
        (False, (None, None, None), (), BOTH),
        (False, (10, 10, 20), (), ONE),
        (False, (10, 10, None), (), ONE),
        (False, (None, None, 10), (), BOTH),  # it answers for each of its addresses (arp_ignore)
        (False, (10, 20, 20), (), BOTH),  # nobody is in the client's VLAN, which is a problem of its own
        (True, (None, None, None), (PORT_10, PORT_10, PORT_10), BOTH),
        (True, (None, None, None), (PORT_10, PORT_10, PORT_20), ONE),
        (True, (None, 10, 10), (PORT_10, TRUNK, PORT_20), ONE),
        (True, (10, None, None), (TRUNK, PORT_10, TRUNK), ONE),
        (True, (None, None, None), (), BOTH),  # bridge(8) is not here
    ],
)
def test_an_address_in_another_vlan_is_no_duplicate(
    filters: bool, numbers: tuple[int | None, ...], ports: tuple[Any, ...], asked: list[str]
) -> None:
    names = ("port-client", "port-server", "port-third")
    along, found = switched(filters, numbers, dict(zip(names, ports, strict=False)))
    assert found == asked
    assert [one.what.partition(": ")[2] for one in along.problems] == [
        "netns:client eth0.10 10, netns:server eth0.20 20"
    ] * (numbers == (10, 20, 20))
    seen = routed()
    seen.forward.hops, seen.forward.domains = along.hops, []
    assert [one.cause for one in reach.duplicates(seen)] == ["duplicate address"] * (len(asked) - 1)


@pytest.mark.parametrize("is_plain", [False, True])
def test_frames_in_macsec_reach_only_macsec(is_plain: bool) -> None:
    """The server has an address at each of its interfaces, and only one of them opens what the client seals."""
    upon = link(7, "macsec0", "macsec", link=2)
    client = space("netns:client", [link(2, "eth0", link=2, link_netnsid=0), upon], {CLIENT: 7})
    links = [link(2, "eth0", link=2, link_netnsid=0), *([] if is_plain else [upon])]
    server = space("netns:server", links, {"10.2.0.9": 2, SERVER: 2 if is_plain else 7})
    every: Any = object.__new__(Spaces)
    every._uppers, every._asked, every._all = None, {}, {0: client, 1: server}
    every._numbers = {client: {0: server}, server: {0: client}}
    for sender, passed in (
        (7, ["macsec0 out", "eth0 out", "eth0 in", "macsec0 in"]),
        (2, ["eth0 out", "eth0 in"]),
    ):
        along = Path(client, CLIENT, SERVER, server)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Place, "programs", [])
            patch.setattr(Place, "tunnel", None)
            patch.setattr(path, "_is_proxy", lambda *_of: False)
            arrived = path._across(every, along, Place(client, sender), SERVER)
        if is_plain and sender == 7:
            assert (arrived, [one.cause for one in along.problems]) == (None, ["missing neighbour"])
            continue
        assert not along.problems
        assert [f"{place.name} {direction}" for place, direction in along.steps] == passed
        assert [owner.name for *_hop, owner in along.hops] == [passed[-1].split()[0]]


def on_a_vlan(kind: str) -> tuple[Any, list[Space]]:
    """Return two ends on the VLAN device of a machine, as engines put them there, and all their namespaces."""
    ends = [
        space(f"netns:{name}", [link(2, "eth0", kind, link=7, link_netnsid=0)], {own: 2})
        for name, own in (("client", CLIENT), ("server", SERVER))
    ]
    host = space("host", [link(3, "nic0", ""), vlan(7, 10, 3)], {"10.1.0.254": 7})
    every: Any = object.__new__(Spaces)
    every._uppers, every._asked, every._all = None, {}, dict(enumerate([*ends, host]))
    every._numbers = {end: {0: host} for end in ends}
    return every, [*ends, host]


def test_devices_on_a_vlan_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not the VLAN device itself."""
    monkeypatch.setattr(Place, "programs", [])
    monkeypatch.setattr(path, "_is_proxy", lambda *_of: False)
    for kind in ("macvlan", "ipvlan"):
        every, [client, server, host] = on_a_vlan(kind)
        along = Path(client, CLIENT, SERVER, server)
        assert path._across(every, along, Place(client, 2), SERVER) == Place(server, 2)
        assert [str(place) for place, _direction in along.steps] == ["netns:client eth0", "netns:server eth0"]
        own = Path(host, "10.1.0.254", SERVER, server)
        assert path._across(every, own, Place(host, 7), SERVER) is None
        assert only_problem(own).startswith(f"netns:server eth0 is a {kind} of host eth0.10, and")
        back = Path(server, SERVER, "10.1.0.254", host)
        assert path._across(every, back, Place(server, 2), "10.1.0.254") is None
        assert only_problem(back).startswith(f"netns:server eth0 is a {kind} of host eth0.10, and")


@pytest.mark.parametrize(("peers", "arrives"), [(1, True), (2, False)])
def test_the_other_end_of_a_tunnel_takes_what_is_for_a_subnet_behind_it(
    peers: int, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without MAC addresses nobody is asked for. Which of several peers takes a packet is not known."""
    near, *far = [
        space(f"netns:{name}", [replace(link(2, "wg0", "wireguard"), mac=None)], {f"10.9.0.{number}": 2})
        for number, name in enumerate(("client", "site", "other")[: peers + 1])
    ]
    here, ends = Place(near, 2), [Place(one, 2) for one in far]
    outer = [Path(near, "192.0.2.1", "192.0.2.2", complete=True) for _end in ends]
    monkeypatch.setattr(Place, "programs", [])
    monkeypatch.setattr(path, "_remotes", lambda *_of: [])
    monkeypatch.setattr(
        path,
        "_through",
        lambda _all, at, *_of: {(here, end): outer[n] for n, end in enumerate(ends)} if at == here else {},
    )
    every: Any = object.__new__(Spaces)
    every._uppers = {}
    along = Path(near, "10.9.0.0", SERVER)
    assert path._across(every, along, here, SERVER) == (ends[0] if arrives else None)
    assert [one.cause for one in along.problems] == ["missing neighbour"] * (not arrives)


@pytest.mark.parametrize(("state", "arrives"), [("PERMANENT", True), ("STALE", False)])
def test_a_permanent_neighbour_leads_to_a_gateway_of_nobody(
    state: str, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [{"dst": "169.254.1.1", "lladdr": MAC % 3, "state": [state]}]
    asked = {"json": lambda *words: known if "169.254.1.1" in words else []}
    pod = space("netns:client", [link(2, "eth0", link=3, link_netnsid=0)], {CLIENT: 2}, **asked)
    host = space("host", [link(3, "eni3", link=2, link_netnsid=1)], {})
    every: Any = object.__new__(Spaces)
    every._uppers, every._asked, every._all = {}, {}, {0: host, 1: pod}
    every._numbers = {pod: {0: host}, host: {1: pod}}
    monkeypatch.setattr(Place, "programs", [])
    along = Path(pod, CLIENT, SERVER)
    assert path._across(every, along, Place(pod, 2), "169.254.1.1") == (Place(host, 3) if arrives else None)
    assert [one.cause for one in along.problems] == ["missing neighbour"] * (not arrives)


def test_a_cable_to_a_namespace_that_is_not_visible_leads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only descriptors hold it, or it is another user's: who is there is not known."""
    monkeypatch.setattr(Place, "programs", [])
    pod = space("netns:client", [link(2, "eth0", link=3, link_netnsid=7)], {CLIENT: 2})
    every: Any = object.__new__(Spaces)
    every._uppers, every._asked, every._all, every._numbers = {}, {}, {}, {}
    along = Path(pod, CLIENT, SERVER)
    assert path._across(every, along, Place(pod, 2), SERVER) is None
    assert only_problem(along).endswith(f"has the address {SERVER}, and netns:client eth0 leads to others")


def only_problem(of: Path) -> str:
    [one] = of.problems
    return one.what


def test_vlans_of_a_namespace_are_read_once() -> None:
    asked = list[tuple[str, ...]]()

    def run(*words: str) -> process.Ended:
        asked.append(words)
        listed = '[{"ifname": "p", "vlans": [{"vlan": 7, "flags": ["PVID"]}]}]'
        return process.Ended(words, 0, listed, "", 0.0)

    mid = space("netns:mid", [link(3, "p")], {}, namespace=SimpleNamespace(run=run))
    assert [Place(mid, 3).untagged, Place(mid, 3).untagged, len(asked)] == [7, 7, 1]


def test_ports_of_a_bridge_in_different_vlans() -> None:
    own = {"port-client": PORT_10, "port-server": PORT_20, "port-third": PORT_20}
    along, _found = switched(True, (None, None, None), own)
    [one] = along.problems
    assert one.cause == "VLANs differ"
    assert one.what.endswith("are in different VLANs: netns:mid port-client 10, netns:mid port-server 20")
    along, _found = switched(True, (None, None, None), {name: [(10, False, True)] for name in own})
    assert [one.what.endswith("are in different VLANs") for one in along.problems] == [True]


@pytest.mark.parametrize("of", [
    {"kind": "openvswitch"}, {"protocol": 0x88A8}, {"programs": ["XDP"]},
    {"tc": "filter protocol all u32\n\taction order 1: vlan  push id 20 protocol 802.1Q priority 0 pipe\n"},
])  # fmt: skip
def test_what_else_changes_tags_says_nothing_of_vlans(of: dict[str, Any]) -> None:
    own = {"port-client": PORT_10, "port-server": PORT_20, "port-third": PORT_20}
    for filters, numbers in ((True, (None, None, None)), (False, (10, None, None))):
        assert not switched(filters, numbers, own, **of)[0].problems
        assert switched(filters, numbers, own)[0].problems


def test_a_vlan_on_a_bond_has_the_address_of_its_ports() -> None:
    """Those of one namespace are upon each other; two cables with one address are a fault."""
    seen = routed()
    [client, router, _server] = seen.spaces

    def add(*links: Link) -> list[Place]:
        """Add links with one MAC address."""
        client.links.update({one.index: replace(one, mac=MAC % 1) for one in links})
        return [Place(client, one.index) for one in links]

    nics = (link(number, f"nic{number}", "", master=8) for number in (5, 6))
    places = add(vlan(7, 10, 8), link(8, "bond0", "bond"), *nics)
    client.addresses["10.5.0.1"] = 7
    seen.forward.places = [*places[:1], Place(router, 3)]
    assert not list(reach._same_macs(seen, places))
    lan = add(link(9, "lan", "bridge"), replace(vlan(10, 20, 8), master=9))
    client.addresses["10.6.0.1"] = 9
    seen.forward.places.append(lan[0])
    assert not list(reach._same_macs(seen, [*places, *lan]))
    [twin] = add(link(11, "nic11", ""))  # a NIC of a virtual machine that was cloned
    assert list(reach._same_macs(seen, [*places, twin])) == [(places[0], twin)]
    at = [Place(router, number) for number in (3, 4)]
    router.links[3] = replace(router.links[3], mac=MAC % 1)
    assert list(reach._same_macs(seen, [places[0], at[0]])) == [(places[0], at[0])]
    router.links[4] = replace(router.links[4], mac=MAC % 1)
    assert list(reach._same_macs(seen, at)) == [(at[0], at[1])]


def test_what_a_router_refuses_at_its_entrance(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, modes, back, cause, has_undo in (
        (errno.EXDEV, ("1", "0"), [(None, 4)], "reverse path filter", True),  # until Linux 6.12
        (errno.EINVAL, ("0", "1"), [(None, 4)], "reverse path filter", True),  # since Linux 6.13
        (errno.EINVAL, ("2", "1"), errno.ENETUNREACH, "reverse path filter", False),  # a loose one is no help
        (errno.EINVAL, ("2", "0"), [(None, 4)], "route refuses", False),
        (errno.EINVAL, ("1", "0"), [(None, 3)], "route refuses", False),  # a blackhole
        (errno.EINVAL, ("0", "0"), [(None, 4)], "route refuses", False),
    ):
        values = dict(zip(("all", "to-client"), modes, strict=True))
        seen = routed(sysctl=lambda name, of=values: of[name.split("/")[3]] if "rp_filter" in name else "1")
        routes(monkeypatch, lambda _kernel, _to, _mark, back=back: back)
        router, arrived = seen.spaces[1], seen.forward.arrivals[0]
        found = path._refused(router, seen.forward, arrived, number)
        assert (found.cause, found.undo is not None) == (cause, has_undo)
        router.addresses[CLIENT] = 3
        assert path._refused(router, seen.forward, arrived, errno.EINVAL).cause == "duplicate address"


def test_routes_of_a_vrf_are_for_programs_in_it() -> None:
    seen = routed()
    at = seen.client.space
    for kind, said in (("vrf", True), ("bond", False)):
        at.links |= {2: replace(at.links[2], master=9), 9: link(9, "blue", kind)}
        what = path._refused(at, seen.forward, None, errno.ENETUNREACH).what
        assert ("the routes of its VRF blue are for programs" in what) is said


def test_a_tunnel_from_an_address_that_nobody_has() -> None:
    seen = routed()
    outer = Path(seen.spaces[1], "192.0.2.1", "192.0.2.2", depth=1)
    assert path._refused(seen.spaces[1], outer, None, errno.ENETUNREACH).cause == "missing address"


@pytest.mark.parametrize(("name", "count"), [("eth0", 2), ("all", 0)])
def test_hop_limits_of_ipv6_are_those_of_an_interface(name: str, count: int) -> None:
    """The kernel reads that of all interfaces for those alone that have none (ip6_dst_hoplimit)."""
    seen = routed()
    for one in (seen.forward, seen.back):
        one.source, one.destination = "fd00::1", "fd00::2"
        vars(one.start)["sysctl"] = lambda asked: "1" if asked == f"net/ipv6/conf/{name}/hop_limit" else "64"
    found = list(reach.hop_limits(seen))
    assert len(found) == count
    assert all("sysctl -w net/ipv6/conf/eth0/hop_limit=64" in str(one.undo) for one in found)


@pytest.mark.parametrize(
    ("own", "of_start", "of_router", "certainties"),
    [
        ("64", 1, 0, [SEEN]), ("64", 10, 0, []), ("64", 0, 1, []), ("10", 0, 0, []), ("1", 0, 0, [SEEN]),
        ("1", 64, 0, []),
    ],
)  # fmt: skip
def test_a_hop_limit_counts_if_the_path_has_as_many_routers(
    own: str, of_start: int, of_router: int, certainties: list[str]
) -> None:
    """The route's is before that of the namespace, and routers apply theirs to packets of their own only."""
    seen = routed()
    vars(seen.client.space)["sysctl"] = lambda asked: own if asked == "net/ipv4/ip_default_ttl" else "64"
    seen.back.routes = []
    seen.forward.routes = [
        (one, replace(route((None, 2)), metrics={"hoplimit": limit} if limit else {}))
        for (one, _route), limit in zip(seen.forward.routes, (of_start, of_router), strict=True)
    ]
    found = [*reach.hop_limits(seen), *mtu.routes(seen)]
    assert [one.certainty for one in found] == certainties
    assert all(("then replace" in str(one.undo)) is bool(of_start) for one in found)


def test_a_hop_limit_may_be_too_small_for_routers_that_are_not_known() -> None:
    seen = routed()
    seen.forward.complete = False
    for limit, certainties in (("1", [SEEN]), ("2", [SEEN]), ("3", [POSSIBLE]), ("16", [])):
        vars(seen.client.space)["sysctl"] = {"net/ipv4/ip_default_ttl": limit}.get
        assert [one.certainty for one in reach.hop_limits(seen)] == certainties


@pytest.mark.parametrize(("value", "at", "count"), [(1, 1, 1), (2, 1, 0), (10, 1, 0), (1, 2, 0)])
def test_a_rule_ends_hops_if_routers_follow(value: int, at: int, count: int) -> None:
    seen = routed()
    key = {"payload": {"protocol": "ip", "field": "ttl"}}
    seen.rulesets[seen.spaces[at].name] = [{"rule": rule({"mangle": {"key": key, "value": value}})}]
    seen.back = seen.forward
    found = [one for one in rules.clamps(seen) if one.cause == "hop limit"]
    assert [one.certainty for one in found] == [SEEN] * count


def test_an_interface_may_answer_for_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    routes(monkeypatch, lambda _kernel, _to, _mark: [(None, 4)])
    for address, on, dev, answers in (
        ("10.9.0.9", "", "port", True),
        ("10.9.0.9", "", "other", False),
        ("10.9.0.9", "proxy_arp", "other", True),
        ("fd00::9", "proxy_ndp", "port", True),
        ("fd00::9", "proxy_ndp", "other", False),
        ("fd00::9", "", "port", False),
    ):
        values = lambda name, on=on: str(int(name.rpartition("/")[2] in ("forwarding", on)))  # noqa: E731
        listed = [{"dst": address, "dev": dev, "proxy": None}]
        mid = space("netns:mid", [link(3, "port")], {}, sysctl=values, json=lambda *_words, of=listed: of)
        assert _is_proxy(Place(mid, 3), address) is answers


def test_one_interface_may_forward_ipv6() -> None:
    """Linux 6.17 and later have a switch for it."""
    for name, expected in (("port", True), ("other", False)):
        on = f"net/ipv6/conf/{name}/force_forwarding"
        mid = space("netns:mid", [link(3, "port")], {}, sysctl=lambda asked, on=on: str(int(asked == on)))
        assert path.forwards(mid, Place(mid, 3), "fd00::9") is expected


def test_an_address_of_ipv6_answers_at_its_own_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of IPv4 does at each, and so does one of IPv6 where nobody asks for neighbours, or a program answers."""
    for mac, programs, expected in ((MAC % 3, [], False), (MAC % 3, ["tc"], True), (None, [], True)):
        monkeypatch.setattr(Place, "programs", programs)
        links = [replace(link(3, "eth0"), mac=mac), link(4, "eth1")]
        prefixed = [(4, "fd00::9/64"), (4, "10.9.0.9/24")]
        mid = space("netns:mid", links, {"fd00::9": 4, "10.9.0.9": 4}, prefixed=prefixed)
        assert Place(mid, 3).owns("fd00::9") is expected
        assert Place(mid, 4).owns("fd00::9")
        assert Place(mid, 3).owns("10.9.0.9")


def test_marks_and_ports_of_a_tunnel_are_those_of_its_outer_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """wg-quick routes all but marked packets into the tunnel, and a peer may listen at another port."""
    seen = routed()
    here, far = Place(seen.client.space, 2), Place(seen.server.space, 2)
    for one in (here, far):
        one.space.links[2] = link(2, "eth0", "wireguard")
    own = {
        here: TunnelState(remotes=[SERVER], port=40000, mark=51820),
        far: TunnelState(remotes=[CLIENT], port=51820),
    }
    monkeypatch.setattr(Place, "tunnel", property(own.get))
    asked = list[int]()
    monkeypatch.setattr(netlink, "route_to", lambda *given, mark=0: asked.append(mark) or route((None, 2)))

    def followed(_spaces: Any, outer: Path) -> Path:
        outer.complete, outer.arrivals = True, [far]
        return outer

    monkeypatch.setattr(path, "followed", followed)
    every = SimpleNamespace(outside=lambda one: one.space, tunnels_of=lambda *_of: [here, far])
    [outer] = path._through(every, here, seen.forward, [SERVER]).values()
    assert (outer.mark, asked) == (51820, [51820])
    assert outer.packet == {"protocol": "udp", "sport": "40000", "dport": "51820"}


@pytest.mark.parametrize(
    ("asks", "state", "weights"),
    [("3", "FAILED", [0.5]), ("0", "STALE", [1.0]), ("0", "PERMANENT", []), ("3", "STALE", [])],
)
def test_who_asks_for_no_neighbour(asks: str, state: str, weights: list[float]) -> None:
    """It may have learned meanwhile the neighbour that asked for it."""
    seen = routed()
    [client, router, _server] = seen.spaces
    values = {"net/ipv4/neigh/eth0/mcast_solicit": asks, "net/ipv4/neigh/eth0/app_solicit": "0"}
    vars(client)["sysctl"] = values.get
    vars(client)["neighbours"] = [{"dst": "10.1.0.254", "dev": "eth0", "state": [state]}]
    seen.forward.hops.append((Place(client, 2), "10.1.0.254", Place(router, 3)))
    assert [one.weight for one in reach.neighbours(seen)] == weights


def test_classes_and_filters_count_what_passes_meanwhile() -> None:
    """Another host's class may have sent, and another filter have dropped, before."""
    before, now = (htb("1:1", "1Mbit", 90) + htb("1:2", "50Mbit", sent) for sent in (90, 500))
    assert queues._class_rates(now, before) == [50e6]
    assert queues._class_rates(now) == [1e6, 50e6]
    assert not queues._class_rates(before, before)


def tc_filter(action: str, number: int = 1) -> str:
    """Return what `tc -s filter show` prints of a filter with an action, before it fills in the counts."""
    at = f"filter protocol ip pref {number} u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 not_in_hw"
    counts = " \tAction statistics:\n\tSent %d bytes 9 pkt (dropped %d, overlimits 0 requeues 0) \n"
    return f"{at}  (rule hit %d success 9)\n\taction order 1: {action}\n \t index 1 ref 1 bind 1\n{counts}\n"


DROPS = tc_filter("gact action drop") + tc_filter("gact action drop", 2)
PASSES = tc_filter("gact action pass", 2)
PEDIT = " pedit action pipe keys 1\n\t key #0  at %s: val 0a000009 mask 00000000"


@pytest.mark.parametrize(
    ("text", "earlier", "then", "expected"),
    [
        (DROPS, (9, 9, 7, 9, 9, 0), (9, 9, 7, 9, 9, 0), []),
        (DROPS, (8, 8, 5, 9, 9, 0), (9, 9, 7, 9, 9, 0), ["drops"]),
        (DROPS, (9, 9, 7, 8, 8, 0), (9, 9, 7, 9, 9, 7), ["drops"]),
        (tc_filter("gact action pass\n\t random type netrand drop val 3"), (8, 8, 0), (9, 9, 7), ["drops"]),
        (tc_filter("police 0x1 rate 1Mbit"), (9, 9, 0), (9, 9, 0), []),
        (tc_filter("police 0x1 rate 1Mbit"), (8, 8, 0), (9, 9, 0), ["polices the rate"]),
        # A policer or a change that no packet reaches, beside a filter that all packets pass.
        (tc_filter("police 0x1 rate 1Mbit") + PASSES, (9, 0, 0, 8, 8, 0), (9, 0, 0, 9, 9, 0), []),
        (tc_filter(PEDIT % "ipv4+16") + PASSES, (8, 0, 0, 8, 8, 0), (9, 0, 0, 9, 9, 0), []),
        *(
            (tc_filter(action), (8, 8, 0), (9, 9, 0), [f"changes packets ({action.split()[0]})"] if changes else [])
            for action, changes in (
                (PEDIT % "ipv4+16", True), (PEDIT % "ipv6+8", True), (PEDIT % "eth+4", True), (PEDIT % "tcp+0", True),
                (PEDIT % "16", True), (PEDIT % "-16", True), (PEDIT % "ipv4+0", False), (PEDIT % "ipv4+8", False),
                (PEDIT % "ipv6+0", False), (PEDIT % "0", False), (PEDIT % "8", False), ("vlan  pop pipe", True),
                ("vlan  modify id 6 protocol 802.1Q priority 0 pipe", True),
                ("vlan  modify id 0 protocol 802.1Q priority 4 pipe", False),
                ("skbmod pipe set dmac 70:00:00:00:00:00 ", True), ("skbmod pipe ecn", False),
                (" nat egress 10.0.0.0/24 192.0.2.1 pass", True), ("mpls  dec_ttl pipe", False),
            )
        ),
    ],
)  # fmt: skip
def test_filters_that_packets_pass_and_what_they_do(
    text: str, earlier: tuple[int, ...], then: tuple[int, ...], expected: list[str]
) -> None:
    """A filter may have dropped before, or be one for other packets. Marks, priorities and hops lead nowhere else."""
    found = filtered(("ingress", text, earlier, then))
    assert len(found) == len(expected)
    assert all(words in one.what for words, one in zip(expected, found, strict=True)), found
    assert all(one.certainty == (PRESENT if "polices" in one.what else SEEN) for one in found)


def filtered(*filters: tuple[str, str, tuple[int, ...], tuple[int, ...]]) -> list[Finding]:
    """Return what is found of filters of a router: where each is, its text, and its counts before and after."""
    seen = routed()
    at, name = seen.spaces[1], "to-client"
    vars(seen)["queued"] = [
        Queued(at, name, "", {side: text % then for side, text, _was, then in filters}, "")
    ]
    was = {side: text % earlier for side, text, earlier, _then in filters}
    seen.queued_before = {(at, name): Queued(at, name, "", was, "")}
    return list(queues.filters(seen))


def test_a_tag_that_another_filter_takes_away_is_possible_only() -> None:
    push, pop = tc_filter("vlan  push id 5 protocol 802.1Q priority 0 pipe"), tc_filter("vlan  pop pipe")
    counts = (8, 8, 0), (9, 9, 0)
    assert [one.certainty for one in filtered(("ingress", push, *counts), ("egress", pop, *counts))] == [
        POSSIBLE
    ] * 2
    assert [
        one.certainty for one in filtered(("ingress", push, *counts), ("egress", pop, *counts[:1] * 2))
    ] == [SEEN]


def test_the_load_has_the_addresses_and_the_segments_of_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[str]()
    total = {"bytes": 8948 * 1000, "retransmits": 30, "bits_per_second": 1.0}
    report = {"start": {"tcp_mss_default": 8948}, "end": {"sum_sent": total, "sum_received": total}}

    def iperf3(_end: End, *words: str) -> process.Running:
        given.extend(words)
        return process.Running(["echo", msgspec.json.encode(report).decode()])

    monkeypatch.setattr(load, "_iperf3", iperf3)
    with load.sending(End(space("netns:client", [], {}), CLIENT), SERVER, 1, "TCP") as loaded:
        found = loaded()
    assert found is not None
    assert given[given.index("-B") + 1] == CLIENT
    assert (found.again_count, found.sent_count) == (30, 1000)


BASE = {"family": "ip", "table": "f", "name": "w", "type": "nat", "hook": "prerouting", "prio": -100}
DNAT = {"dnat": {"addr": SERVER, "port": 80}}
DPORT = {"payload": {"protocol": "th", "field": "dport"}}
L4 = {"meta": {"key": "l4proto"}}
TCP_OR_UDP = match(L4, {"set": ["tcp", "udp"]})


@pytest.fixture
def publishing() -> Iterator[Any]:
    """Return a machine with these rules, as nft and iptables-legacy-save print them, and an end."""
    with FilePath("/dev/null").open() as none:  # a namespace that no process has

        def made(*listed: dict[str, Any], saved: str = "") -> tuple[Space, Space]:
            chain = {"chain": BASE}
            printed = msgspec.json.encode({"nftables": [chain, *listed]}).decode()

            def run(*words: str) -> process.Ended:
                return process.Ended(words, 0, printed if words[0] == "nft" else saved, "", 0.0)

            host = space(
                "host", [], {"10.1.0.254": 3}, chains={"iptables nat": "loaded"} if saved else {},
                namespace=SimpleNamespace(run=run, listening=list),
            )  # fmt: skip
            server = space("netns:server", [], {SERVER: 2})
            host.fd = server.fd = none.fileno()
            return host, server

        yield made


@pytest.mark.parametrize(
    ("rule_of", "expected"),
    [
        (
            rule(of("dport", {"set": [8080, ports(9000, 9002)]}, protocol="tcp"), DNAT),
            [8080, 9000, 9001, 9002],
        ),
        (rule(of("dport", ports(1, 65535), protocol="tcp"), DNAT), list(range(1, 65))),
        (rule(match(DPORT, 22, "!="), DNAT), []),
        (rule(match(DPORT, 1000, ">"), DNAT), []),
        (rule(of("dport", 80, protocol="tcp"), {"dnat": {"addr": "10.2.0.9"}}), []),
        (rule(of("dport", 80, protocol="tcp"), DNAT, chain="nobody-calls-it"), []),
        (rule(of("dport", 80, protocol="tcp"), {"jump": {"target": "called"}}), [80]),
        (rule(of("dport", 80, protocol="tcp"), {"accept": None}), []),
    ],
)
def test_ports_that_rules_publish(publishing: Any, rule_of: dict[str, Any], expected: list[int]) -> None:
    """Also where one rule tests the port, and another one of a chain that it calls replaces the address."""
    called = rule(match(L4, "tcp"), DNAT, chain="called")
    found = published.ports(*publishing({"rule": rule_of}, {"rule": called}))
    assert [one.port for one in found] == expected
    assert {(one.name, one.what) for one in found} == {
        (f"nftables dnat {port} to {SERVER}", "") for port in expected
    }


def test_an_open_port_is_as_narrow_as_all_rules_on_its_way(publishing: Any) -> None:
    """What one rule does with some packets says nothing of those that the next one takes."""
    first = [
        rule(of("dport", 22, protocol="tcp"), {"accept": None}),
        rule(of("dport", 80, protocol="tcp"), {"mangle": {"key": OWN_MARK, "value": 1}}),
        rule({"vmap": {"key": DPORT, "data": {"set": [[23, {"return": None}], [24, {"accept": None}]]}}}),
    ]
    last = rule(
        of("daddr", "192.0.2.1"),
        match(IFACE, "lan", "!="),
        match(OWN_MARK, 1),
        of("dport", 80, protocol="tcp"),
        DNAT,
    )
    host, server = publishing(*({"rule": one} for one in (*first, last)))
    [found] = published.ports(host, server)
    assert (found.port, found.listens, found.not_from, found.address) == (80, "192.0.2.1", "lan", SERVER)
    docker = (
        "*nat\n:PREROUTING ACCEPT [0:0]\n:DOCKER - [0:0]\n[1:60] -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n"
        "[1:60] -A DOCKER -d 127.0.0.1/32 ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.2.0.1:90\n"
    )
    [found] = published.ports(*publishing(saved=docker))
    assert (found.name, found.listens, found.not_from) == (
        "iptables dnat 80 to 10.2.0.1",
        "127.0.0.1",
        "docker0",
    )


def test_ports_that_maps_publish(publishing: Any) -> None:
    """As kube-proxy writes rules: an address and a port choose the chain of a service, which chooses one at random."""
    service = {"concat": [{"payload": {"protocol": "ip", "field": "daddr"}}, L4, DPORT]}
    elements = [
        [{"concat": ["10.96.0.10", "tcp", 80]}, {"goto": {"target": "service"}}],
        [{"concat": ["10.96.0.10", "udp", 53]}, {"goto": {"target": "two"}}],
    ]
    each = {"set": [[0, {"goto": {"target": "one"}}], [1, {"goto": {"target": "two"}}]]}
    every = (
        rule({"vmap": {"key": service, "data": "@services"}}),
        rule({"vmap": {"key": RANDOM, "data": each}}, chain="service"),
        *(
            rule(match(L4, "tcp"), {"dnat": {"addr": to, "port": 8080}}, chain=chain)
            for chain, to in (("one", SERVER), ("two", "10.2.0.9"))
        ),
    )
    named = {"map": {"family": "ip", "table": "f", "name": "services", "elem": elements}}
    [found] = published.ports(*publishing(named, *({"rule": one} for one in every)))
    assert found.what == (
        "nftables: a map leads port 80 of 10.96.0.10 through service, one to 10.2.0.1"
        "; or, chosen at random, to 10.2.0.9"
    )
    assert (found.port, found.listens, found.others) == (80, "10.96.0.10", ("10.2.0.9",))
    [found] = published.ports(*publishing({"rule": OF_A_MAP}))
    assert (found.port, found.what) == (80, "nftables: a map leads port 80 of host to 10.2.0.1")


OF_A_MAP = rule(
    match(L4, "tcp"),
    {
        "dnat": {"addr": {"map": {"key": DPORT, "data": {"set": [
            [80, {"concat": [SERVER, 81]}], [443, {"concat": ["10.2.0.9", 444]}],
        ]}}}}
    },
)  # fmt: skip


def test_a_map_gives_address_and_port_to_a_packet() -> None:
    for port, given in (
        (80, {"addr": SERVER, "port": 81}),
        (443, {"addr": "10.2.0.9", "port": 444}),
        (9, {}),
    ):
        listed = [{"chain": BASE}, {"rule": OF_A_MAP}]
        found = rules.translation(listed, "prerouting", {**SYN, "dport": str(port)}, set())
        assert found == (OF_A_MAP if given else {}, given, True)


def test_ports_that_rules_publish_for_udp_alone_are_not_connected_to(
    publishing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = (rule(of("dport", 53, protocol="udp"), DNAT), rule(TCP_OR_UDP, match(DPORT, 54), DNAT))
    host, server = publishing(*({"rule": one} for one in listed))
    monkeypatch.setattr(published, "_through", lambda _spaces, port, _address: port)
    every = SimpleNamespace(host=host, client=space("netns:client", [], {}, prefixed=[]), server=server)
    for number, port, protocol in ((None, 54, "tcp"), (53, 53, "udp")):
        found: Any = published.through(every, number)
        assert (found.port, found.protocol) == (port, protocol)


def test_commands_for_a_namespace_of_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: FilePath) -> None:
    """ip-netns(8) does not know the names of its networks."""
    (tmp_path / "1-overlay").touch()
    monkeypatch.setattr(spaces, "NAMES", (spaces.NAMED, tmp_path))
    for name, words in (("1-overlay", f"nsenter --net={tmp_path}/1-overlay"), ("a;b", "ip netns exec 'a;b'")):
        assert space(f"netns:{name}", [], {}).command("ip link") == f"{words} ip link"


def test_programs_that_are_missing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces.machine, "program", lambda name: name)
    mid = space("netns:mid", [], {}, chains={"nftables ip f w": "base chain", "ip6tables filter": "loaded"})
    assert mid.missing_programs([]) == ["ip6tables-legacy-save", "nft"]
    assert mid.missing_programs([{"chain": {}}]) == ["ip6tables-legacy-save"]
    monkeypatch.setattr(spaces.machine, "program", lambda name: f"/usr/sbin/{name}")
    vars(mid)["namespace"].run = lambda *words: process.Ended(words, -9, '{"nftables": [', "", 20.0, True)
    assert mid.missing_programs(mid.ruleset) == ["nft"]


def test_a_thread_is_no_end() -> None:
    """Linux says EINVAL of it, or since 6.16 that there is none."""
    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(get_native_id).result()
        with pytest.raises(BadInput, match="is a thread: name its process"):
            resolve(f"pid:{thread}")


def test_a_name_of_an_interface_may_be_no_text() -> None:
    body = struct.pack("=BxHiII", 0, 1, 7, 1, 0) + attribute(3, b"e\xff\0")  # struct ifinfomsg, IFLA_IFNAME
    message = struct.pack("=IHHII", 16 + len(body), 16, 0, 0, 0) + body
    odd = dumps._link(dumps._decode(dumps.ifinfmsg, message))
    assert odd.name == "e\\xff"
    assert space("netns:mid", [odd], {}).command(f"ip link set {odd.name} up").startswith("by hand: ")


def test_a_name_whose_mount_has_gone_is_no_end(tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").touch()
    monkeypatch.setattr(endpoints, "NAMED", tmp_path)
    with pytest.raises(BadInput, match="netns:old is a plain file and no namespace"):
        resolve("netns:old")


@pytest.mark.parametrize(
    ("name", "listed", "expected"),
    [
        ("web", "0123456789abcdef", 41),
        ("0123456789abc", "", 41),  # an id is no name
        (
            "app",
            "0123456789abcdef fedcba9876543210",
            "2 containers .* the id of one, 0123456789abc, fedcba9876543$",
        ),
        ("none", "", "no such container"),
    ],
)
def test_containers_of_several_pods_may_have_one_name(
    name: str, listed: str, expected: int | str, tmp_path: FilePath
) -> None:
    crictl = tmp_path / "crictl"
    answer = """{"info": {"pid": 41}}"""
    crictl.write_text(
        f"#!/bin/sh\ncase $* in ps*) printf '{listed}' | tr ' ' '\\n';; *0123456789abc*) echo '{answer}';;"
        " *) echo no such container >&2; exit 1;; esac\n"
    )
    crictl.chmod(0o755)
    if isinstance(expected, int):
        assert endpoints._of_cri(str(crictl), name) == expected
    else:
        with pytest.raises((BadInput, Failed), match=expected):
            endpoints._of_cri(str(crictl), name)


@pytest.mark.parametrize(
    ("kind", "outside_bytes", "fits_bytes"),
    [
        ("gre", 1500, 1472),  # 20 (IPv4), 4 (GRE), 4 (key)
        (
            "xfrm",
            1500,
            1446,
        ),  # 20 (IPv4), 8 and 8 (ESP, IV), 16 (ICV), 2 (trailer): all of it is a multiple of 4
        ("xfrm", 1502, 1446),  # ESP pads to 4 bytes
    ],
)
def test_fragments_of_a_tunnel(
    kind: str, outside_bytes: int, fits_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Place, "tunnel", TunnelState(id=7))
    seen = routed()
    client = seen.client.space
    client.links[2] = replace(link(2, "eth0", kind), mtu_bytes=outside_bytes)
    seen.forward.outer.append(Path(client, CLIENT, SERVER, places=[Place(client, 2)]))
    seen.changed = {"namespaces": {client.name: {"mibs": {"Ip": {"FragCreates": 9}}}}}
    assert str(only(mtu.fragmented(seen)).undo).endswith(f" mtu {fits_bytes}")


TO_81 = "-p tcp --dport 80 -j DNAT --to-destination 10.2.0.1:81"
LEADS = f"-A PREROUTING {TO_81}"


def refused(*nat: str, asked: str = "", mangle: Sequence[str] = (), server: Sequence[str] = ()) -> Evidence:
    """Return what is known where port 80 refuses connections, and a router, or also the server, has rules of NAT."""
    seen = routed(probe=ARRIVES)
    seen.spaces = [seen.spaces[at] for at in (0, 2, 1)]  # as they are read: both ends first
    for at, of_nat in ((2, nat), (1, server)):
        lines = ["*nat", ":PREROUTING ACCEPT [0:0]", ":A - [0:0]", *(f"[1:60] {one}" for one in of_nat)]
        lines += ["*mangle", ":PREROUTING ACCEPT [0:0]", *(f"[1:60] {one}" for one in mangle)]
        seen.rulesets[seen.spaces[at].name] = iptables.merged([], "iptables-legacy-save", "\n".join(lines))
    seen.ports, seen.asked = {80: "Connection refused", 81: ""}, asked
    vars(seen.server.space.namespace)["listening"] = list
    return seen


LOCAL = ("-A PREROUTING -m addrtype --dst-type LOCAL -j A", f"-A A {TO_81}")  # as Docker writes it
REDIRECTS = "-A PREROUTING -p tcp --dport 80 -j REDIRECT --to-ports 99"
OF_MARK = LEADS.replace("-j", "-m mark --mark 0x2 -j")
GIVES_MARK = "-A PREROUTING -j MARK --set-xmark"


@pytest.mark.parametrize(
    ("port", "nat", "more"),
    [
        (80, [], {}),
        (81, [LEADS], {}),
        (None, [LEADS.replace("1:81", "1:81-89")], {}),  # any of them
        (None, [LEADS.replace("1:81", "9:81")], {}),
        (None, [LEADS.replace("1:81", "1-10.2.0.9:81")], {}),  # any of them
        (None, ["-A PREROUTING -p tcp -j NETMAP --to 10.9.0.0/24"], {}),
        (81, ["-A PREROUTING -j A", "-A A -m socket -g B", "-A A -m socket -j RETURN", LEADS], {}),
        (80, LOCAL, {}),
        (81, LOCAL, {"asked": "10.1.0.254"}),
        (81, ["-A PREROUTING -i to-server -j RETURN", LEADS], {"asked": "10.1.0.254"}),
        (None, ["-A PREROUTING -i to-client -j RETURN", LEADS], {"asked": "10.1.0.254"}),
        (None, [REDIRECTS], {}),  # such a packet ends at the router
        (99, [], {"server": [REDIRECTS]}),
        (81, [LEADS], {"server": [REDIRECTS]}),
        (99, [LEADS], {"server": [REDIRECTS.replace("80", "81")]}),
        (None, [LEADS.replace("1:81", "9:81")], {"server": [REDIRECTS.replace("80", "81")]}),
        (80, ["-A PREROUTING -g A", LEADS], {}),
        (81, ["-A PREROUTING -j A", LEADS], {}),
        (81, [LEADS.replace("-p tcp", "-m comment --comment --mark -p tcp")], {}),
        (81, [OF_MARK], {"mangle": [f"{GIVES_MARK} 0x1/0xffffffff", f"{GIVES_MARK} 0x2/0xffffffff"]}),
        (80, [OF_MARK], {"mangle": [f"{GIVES_MARK} 0x1/0xffffffff", f"{GIVES_MARK} 0x2/0x2"]}),
    ],
)
def test_ports_that_are_closed_where_rules_lead(
    port: int | None, nat: Sequence[str], more: dict[str, Any]
) -> None:
    found = rules.closed_ports(refused(*nat, **more))
    assert [(to, is_sure) for to, _why, _undo, is_sure in found.values()] == (
        [] if port is None else [(port, True)]
    )


@pytest.mark.parametrize(
    "unknown", ["-m owner --uid-owner 0", "-m statistic --mode random", "-m socket", "-f"]
)
def test_conditions_of_nat_that_are_not_understood_make_nothing_certain(unknown: str) -> None:
    goes, returns = LEADS.replace("-p", f"{unknown} -p"), f"-A PREROUTING {unknown} -j RETURN"
    mark = f"{GIVES_MARK} 0x2/0xffffffff"
    marks = mark.replace("-j", f"{unknown} -j")
    accepts = ["-A PREROUTING -j A", f"-A A {unknown} -j ACCEPT"]
    gone = ["-A PREROUTING -j A", f"-A A {unknown} -g B", "-A B -j ACCEPT"]
    for nat, mangle in (([goes], []), ([returns, LEADS], []), ([f"-A PREROUTING {unknown} -g A", LEADS], []),
                        ([OF_MARK], [marks]), ([LEADS], [returns]), ([*accepts, LEADS], []),
                        ([*gone, LEADS], []), ([OF_MARK], [*accepts, mark])):  # fmt: skip
        seen = refused(*nat, mangle=mangle)
        [(to, why, _undo, is_sure)] = rules.closed_ports(seen).values()
        assert (to, is_sure, "may lead port 80 there" in why) == (81, mangle == [returns], not is_sure)
        assert only(sockets.connection(seen)).certainty == (SEEN if is_sure else POSSIBLE)


RANDOM = {"numgen": {"mode": "random", "mod": 2, "offset": 0}}
OWN_MARK = {"meta": {"key": "mark"}}


@pytest.mark.parametrize(
    ("values", "is_sure"),
    [
        ([2], True),
        ([RANDOM], False),
        ([{"map": {"key": RANDOM, "data": {"set": [[0, 1], [1, 2]]}}}], False),
        ([RANDOM, {"|": [OWN_MARK, 2]}], False),
        ([RANDOM, 2], True),
    ],
)
def test_marks_that_are_not_known_make_nothing_certain(values: list[Any], is_sure: bool) -> None:
    base = {"family": "ip", "table": "f", "name": "w", "hook": "prerouting", "prio": -100}
    leads = rule(match(OWN_MARK, 2), {"dnat": {"addr": SERVER, "port": 81}})
    marks = [rule({"mangle": {"key": OWN_MARK, "value": one}}) for one in values]
    listed = [{"chain": base}, *({"rule": one} for one in (*marks, leads))]
    packet = dict(TO_PORT_80)
    assert rules.translation(listed, "prerouting", packet, set()) == (
        leads,
        leads["expr"][-1]["dnat"],
        is_sure,
    )
    assert packet["mark"] == ("2" if is_sure else "")


def test_the_mark_of_a_connection_is_not_known() -> None:
    mangle = [f"{GIVES_MARK} 0x2/0xffffffff", "-A PREROUTING -j CONNMARK --restore-mark"]
    assert [is_sure for *_where, is_sure in rules.closed_ports(refused(OF_MARK, mangle=mangle)).values()] == [
        False
    ]


MASKS = "-A POSTROUTING -o to-server -j MASQUERADE"
BY_MARK = MASKS.replace("-j", "-m mark --mark 0x1 -j")


@pytest.mark.parametrize(
    ("address", "word", "mangle", "nat"),
    [
        ("", "", "", MASKS.replace("-server", "-client")),
        ("10.2.0.254", "is", "", MASKS),
        ("10.2.0.254", "may be", "", MASKS.replace("-j", "-m set --match-set pools dst -j")),
        ("10.2.0.254", "may be", "", MASKS.replace("-j", "-m policy --dir out --pol none -j")),
        ("10.2.0.254", "is", "-A PREROUTING -i to-client -j MARK --set-xmark 0x1/0xffffffff", BY_MARK),
        ("10.2.0.254", "is", "-A FORWARD -j MARK --set-xmark 0x1/0xffffffff", BY_MARK),
        ("", "", "-A PREROUTING -i to-server -j MARK --set-xmark 0x1/0xffffffff", BY_MARK),
        ("", "is", "", MASKS.replace("MASQUERADE", "SNAT --to-source 10.2.0.7-10.2.0.9")),
        (
            "",
            "may be",
            "",
            MASKS.replace("-j MASQUERADE", "-m set --match-set p dst -j NETMAP --to 10.9.0.0/24"),
        ),
        ("", "", "", MASKS.replace("MASQUERADE", f"SNAT --to-source {CLIENT}")),
    ],
)
def test_a_sender_is_behind_an_address_only_as_far_as_rules_are_understood(
    address: str, word: str, mangle: str, nat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "source_for", lambda *_: "10.2.0.254")
    seen = routed()
    [client, router, _server] = seen.spaces
    seen.forward.routes = [(client, route((None, 2))), (router, route((None, 4)))]
    lines = [
        "*mangle",
        ":PREROUTING ACCEPT [0:0]",
        ":FORWARD ACCEPT [0:0]",
        *([f"[1:60] {mangle}"] * bool(mangle)),
    ]
    lines += ["*nat", ":POSTROUTING ACCEPT [0:0]", f"[1:60] {nat}"]
    saved = {"iptables-legacy-save": "\n".join(lines)}
    vars(router)["chains"] = {"iptables nat": "loaded"}
    router.namespace.run = lambda *words: process.Ended(words, 0, saved.get(words[0], ""), "", 0.0)
    behind = f"{word} behind {address or 'another address'}" if word else ""
    assert half_of._hidden(seen.forward) == (address, behind)
    ends, told = ends_of(across._Side("ssh:a", "a", dict), across._Side("here", "b", dict)), list[str]()
    if behind:
        across._sending(ends, SimpleNamespace(destination=SERVER, behind=behind), told).back()
        assert told == [f"what b sends by itself to a, which {behind}"]


def test_rules_of_nat_of_a_namespace_that_only_bridges_take_no_connection() -> None:
    seen = refused(LEADS)
    for one in (seen.forward, seen.back):
        del one.arrivals[0]
    assert rules.closed_ports(seen) == {80: (80, "", None, True)}
    client = seen.client.space  # routes what another machine sends
    seen.rulesets = {
        one.name: seen.rulesets["netns:mid" if one is client else client.name] for one in seen.spaces
    }
    assert rules.closed_ports(seen) == {80: (80, "", None, True)}
    seen.far = "client"
    assert [to for to, *_why in rules.closed_ports(seen).values()] == [81]
    seen.far = None
    vars(seen.server.space.namespace)["listening"] = lambda: [SimpleNamespace(address=SERVER, port=80)]
    assert only(sockets.connection(seen)).what == "port 80 of 10.2.0.1 does not answer: Connection refused"


def test_what_is_sent_on_keeps_its_source_unless_the_rule_is_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "source_for", lambda *_: "10.2.0.254")
    saved = (
        "*nat\n:POSTROUTING ACCEPT [0:0]\n[1:60] -A POSTROUTING -m addrtype --src-type LOCAL -j MASQUERADE\n"
    )
    unknown = saved.replace("-j", "-m socket -j")
    both = [iptables.merged([], "iptables-legacy-save", one) for one in (saved, unknown)]
    out = SimpleNamespace(name="to-server")
    onwards: Any = SimpleNamespace(places=[out])
    for listed, source, given in (
        (both[0], CLIENT, ""), (both[0], "10.1.0.254", "10.2.0.254"), (both[1], "10.1.0.254", ""),
    ):  # fmt: skip
        at: Any = SimpleNamespace(ruleset=listed, addresses={"10.1.0.254": 3}, usable=list)
        sent = {**TO_PORT_80, "saddr": source}
        assert published._given(at, sent, SERVER, onwards.places[0], onwards) == given


@pytest.mark.parametrize(("mode", "index", "count"), [("0", 9, 1), ("1", 9, 0), ("1", 2, 1)])
def test_an_address_that_is_kept_from_arp_is_no_second_one(mode: str, index: int, count: int) -> None:
    """Real servers of LVS have the address of the service at lo."""
    seen = routed(probe=ARRIVES)
    here, there = Place(seen.server.space, 2), Place(seen.spaces[1], 4)
    third = space("netns:third", [link(2, "eth0")], {SERVER: index}, sysctl=lambda _name: mode)
    seen.forward.hops += [(there, SERVER, here), (there, SERVER, Place(third, 2))]
    assert [one.cause for one in reach.duplicates(seen)] == ["duplicate address"] * count


@pytest.mark.parametrize(("call", "count"), [(1, 1), (0, 0)])
def test_one_bridge_may_call_rules(call: int, count: int) -> None:
    seen = bridged([], nf_call_iptables=call)
    chain = {"family": "ip", "table": "f", "name": "w", "hook": "forward", "handle": 9}
    listed = [{"chain": chain}, {"rule": rule({"drop": None})}]
    seen.rulesets = {one.name: listed if one is seen.spaces[1] else [] for one in seen.spaces}
    assert [one.cause for one in rules.dropping(seen)] == ["drop rule"] * count


@pytest.mark.parametrize(
    ("command", "change"),
    [
        ("ip link set eth0 mtu 1450", "mtu: mtu 1450 at client:eth0"),
        ("ethtool -K eth0 tso on gso on", "offload: offload tso on gso on at client:eth0"),
        ("sysctl -w net.ipv4.tcp_rmem='1 2 3'", "sysctl: sysctl net.ipv4.tcp_rmem=1 2 3 at client:eth0"),
        ("sysctl -w net.ipv4.neigh.default.gc_thresh3=9", None),  # of the whole machine
        ("sysctl -w net.core.somaxconn=4096, and a larger backlog in the program", None),
        ("nft delete rule ip f c handle 3", None),
    ],
)
def test_commands_that_a_change_of_the_copy_repeats(command: str, change: str | None) -> None:
    seen = routed()
    finding = Finding(cause="", what="", where="", undo=seen.client.space.command(command))
    assert registry.with_change(seen, finding).change == change


def test_changes_are_of_the_namespace_of_their_command() -> None:
    seen, command = routed(), "sysctl -w net.ipv4.ip_forward=1"
    seen.spaces.append(space("host", [link(5, "docker0")], {}))
    finding = Finding(cause="", what="", where="host", undo=command)
    assert registry.with_change(seen, finding).change is None  # no interface of the path is there
    seen.places.append(Place(seen.spaces[-1], 5))
    made = registry.with_change(seen, finding)
    assert made.change == "sysctl: sysctl net.ipv4.ip_forward=1 at host:docker0"
    far, here = (across._Side(where, "host", lambda *_: dict) for where in ("ssh:a", "here"))
    placed, none = (next(across._placed(far, here, [asdict(made)], Counter(a=count))) for count in (1, 2))
    assert (placed.change, placed.where) == (str(made.change).replace("host", "a"), "ssh:a/host")
    assert none.change is None  # the other machine has a node of this name, too
    seen.spaces.append(space("container:host", [], {}))
    assert registry.with_change(seen, finding).change is None  # two nodes of this name
