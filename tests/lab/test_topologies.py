"""Every topology on a real kernel: both ends reach each other at the MTU, the kernel's view agrees with the name, and
the state with what `ip` says."""

import functools
import itertools
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Need
from sandbox import one_sentence, printed, sandbox, until
from topology_kinds import IPV4_ALONE, PAIRED_TOPOLOGIES, require_kind

from labkit.common.topology_state import State
from labkit.measure import topologies
from labkit.measure.endpoints import Pair
from labkit.measure.topologies import TABLE
from labkit.measure.topologies.linux_datapaths import ROUTED
from labkit.measure.topologies.state import read
from labkit.system import netlink, process
from labkit.system.machine import mibs

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "veth")

Answer = dict[str, Any]
PROGRAM = Path(__file__).with_name("build_topologies.py")
PARAMETERS = [(1, 9000, 4), (3, 1500, 6)]  # pairs, MTU and family
TALK = [name for name in PAIRED_TOPOLOGIES if TABLE[name].isolated is None and name != "macvlan_passthru"]


def ask(*requests: Answer) -> list[Answer]:
    answers: list[Answer] = printed(PROGRAM, json.dumps(requests), timeout_s=400)
    return answers


@functools.cache
def built() -> list[Answer]:
    """Return the findings for every topology and every (pairs, MTU, family), all from one process."""
    requests = [
        {"name": name, "isolated": TABLE[name].isolated is not None, "pairs": pairs, "mtu_bytes": mtu,
         "family": family, "state": "beside ip"}
        for name, (pairs, mtu, family) in itertools.product(PAIRED_TOPOLOGIES, PARAMETERS)
    ]  # fmt: skip
    return ask(*requests)


def answers(name: str) -> dict[tuple[int, int, int], Answer]:
    """Return the findings for this topology for every (pairs, MTU, family)."""
    begin = PAIRED_TOPOLOGIES.index(name) * len(PARAMETERS)
    return dict(zip(PARAMETERS, built()[begin:], strict=False))


def eth0(answer: Answer) -> dict[str, Any]:
    """Return the interface of every end, by the namespace's name."""
    return {space: result["eth0"] for space, result in answer["links"].items() if "eth0" in result}


@pytest.mark.parametrize("name", TALK)
def test_endpoints_reach_each_other_up_to_the_mtu(name: str, need: Need) -> None:
    require_kind(name, need)
    for (pairs, mtu, family), result in answers(name).items():
        if family == 6 and name in IPV4_ALONE:
            assert result["text"].startswith("ipip carries IPv4 only")
            continue
        assert "error" not in result, result
        assert [len(result["pairs"]), result["full"]] == [pairs, [True] * pairs]
        assert result["one_more"] == []
        assert result["one_more_refused"] == [True] * pairs
        assert result["reachable"] is None
        if pairs == 1:
            words = f"client0 gets no answer from server0 to a ping of {mtu + 1} bytes"
            assert result["too_large"].startswith(words)
            assert "message too long" in result["too_large"].lower()
        assert result["ttl"] == [63 if name in ROUTED else 64] * pairs
        addresses = {address for pair in result["pairs"] for address in (pair[1], pair[3])}
        assert [":" in address for address in addresses] == [family == 6] * 2 * pairs
        assert [pair[::2] for pair in result["pairs"]] == [[f"client{n}", f"server{n}"] for n in range(pairs)]
        if name == "loopback":
            assert sorted(result["links"]) == [f"both{n}" for n in range(pairs)]
            assert [list(links) for links in result["links"].values()] == [["lo"]] * pairs
            ends = [links["lo"] for links in result["links"].values()]
        else:
            assert set(eth0(result)) == {f"{side}{n}" for n in range(pairs) for side in ("client", "server")}
            assert result["interfaces"] == ["eth0"] * pairs
            ends = list(eth0(result).values())
        assert [end["mtu"] for end in ends] == [mtu] * len(ends)
        assert all("UP" in end["flags"] for end in ends)


def kinds(answer: Answer) -> set[str]:
    return {end["linkinfo"]["info_kind"] for end in eth0(answer).values()}


def test_veth_bridge_structure(need: Need) -> None:
    need("bridge")
    for (pairs, mtu, _family), result in answers("veth_bridge").items():
        assert kinds(result) == {"veth"}
        between = result["links"]["between"]
        assert (between["bridge"]["linkinfo"]["info_kind"], between["bridge"]["mtu"]) == ("bridge", mtu)
        assert between["bridge"]["linkinfo"]["info_data"]["stp_state"] == 0
        assert between["bridge"]["linkinfo"]["info_data"]["vlan_filtering"] == 0
        ports = [link for link in between.values() if link.get("master") == "bridge"]
        assert len(ports) == 2 * pairs
        assert {(port["linkinfo"]["info_kind"], port["mtu"]) for port in ports} == {("veth", mtu)}
        assert {port["linkinfo"]["info_slave_data"]["state"] for port in ports} == {"forwarding"}


@pytest.mark.needs("macvlan")
def test_macvlan_modes() -> None:
    for mode in ("private", "vepa", "bridge"):
        for (_pairs, mtu, _family), result in answers(f"macvlan_{mode}").items():
            assert kinds(result) == {"macvlan"}
            assert {end["linkinfo"]["info_data"]["mode"] for end in eth0(result).values()} == {mode}
            parent = result["links"]["between"]["parent"]
            assert (parent["mtu"], parent["linkinfo"]["info_kind"]) == (mtu, "veth")
            assert {end["link_index"] for end in eth0(result).values()} == {parent["ifindex"]}
            assert mode != "private" or result["silent"] is True
    for result in answers("macvlan_passthru").values():
        assert result["error"] == "Isolated"
        refused = "macvlan passthru takes one device on a parent; the kernel refused the second"
        assert result["text"].startswith(refused)


@pytest.mark.parametrize("mode", ["l2", "l3", "l3s"])
def test_ipvlan_or_unsupported(mode: str) -> None:
    for result in answers(f"ipvlan_{mode}").values():
        if "error" in result:
            assert result["error"] == "Unsupported"
            assert result["text"].startswith("this kernel has no ipvlan (CONFIG_IPVLAN is not set")
            assert "use a kernel that has it" in result["text"]
        else:
            assert kinds(result) == {"ipvlan"}
            assert {end["linkinfo"]["info_data"]["mode"] for end in eth0(result).values()} == {mode}


@pytest.mark.needs("vxlan")
def test_vxlan_underlay_mtu() -> None:
    for (_pairs, mtu, _family), result in answers("vxlan").items():
        assert kinds(result) == {"vxlan"}
        for space, end in eth0(result).items():
            report = end["linkinfo"]["info_data"]
            assert (report["id"], report["port"], report["link"]) == (42, 4789, "under")
            under = result["links"][space]["under"]
            assert (under["mtu"], under["linkinfo"]["info_kind"]) == (mtu + 50, "veth")
        assert (result["headers"]["computed_bytes"], result["headers"]["measured_bytes"]) == (50, 50)


def states(name: str) -> list[tuple[State, dict[str, Any]]]:
    """Return the states of one topology, and the interfaces of each by `namespace/interface`."""
    result = [msgspec.convert(one["state"], State) for one in answers(name).values() if "state" in one]
    return [
        (state, {f"{space.name}/{one.name}": one for space in state.namespaces for one in space.interfaces})
        for state in result
    ]


def shown(place: Any) -> str | None:
    return None if place is None else f"{place.namespace}/{place.interface}"


def facts(one: Answer) -> Answer:
    """Return the facts of an interface from `ip` that a state also has."""
    info = one.get("linkinfo", {})
    return {
        "name": one["ifname"], "index": one["ifindex"], "kind": info.get("info_kind", "loopback"),
        "up": "UP" in one["flags"], "carrier": "LOWER_UP" in one["flags"], "mtu_bytes": one["mtu"],
        "mac": one["address"] if one["link_type"] == "ether" else None, "master": one.get("master"),
    }  # fmt: skip


@pytest.mark.parametrize("name", PAIRED_TOPOLOGIES)
def test_state_agrees_with_ip(name: str, need: Need) -> None:
    require_kind(name, need)
    for answer in answers(name).values():
        if "error" in answer:
            continue
        assert [space["name"] for space in answer["state"]["namespaces"]] == list(answer["ip"])
        for space in answer["state"]["namespaces"]:
            report = answer["ip"][space["name"]]
            expected = [facts(one) for one in report["links"]]
            if name.startswith("ovs"):  # the switch's database knows its ports and the state of its own port
                expected = [one for one in expected if one["name"].startswith("eth")]
            reported = [{key: one[key] for key in facts(report["links"][0])} for one in space["interfaces"]]
            assert [one for one in reported if one["name"] in {each["name"] for each in expected}] == expected
            addresses = {
                one["ifname"]: [f"{each['local']}/{each['prefixlen']}" for each in one["addr_info"]]
                for one in report["addresses"]
            }
            assert {one["name"]: one["addresses"] for one in space["interfaces"]} == addresses
            modes = [one.get("linkinfo", {}).get("info_data", {}).get("mode") for one in report["links"]]
            assert [one["mode"] for one in space["interfaces"]] == modes
            names = ("dst", "gateway", "dev", "prefsrc", "metric")
            routes = [*report["routes"], *report["routes6"]]
            result = [
                (route["to"], hop["via"], hop["interface"], route["source"], route["metric"])
                for route in space["routes"]
                for hop in route["hops"]
            ]
            assert sorted(result, key=str) == sorted((tuple(map(one.get, names)) for one in routes), key=str)


@pytest.mark.needs("bridge", "macvlan", "vxlan")
def test_other_ends_of_interfaces() -> None:
    for name in ("veth", "veth_bridge", "veth_routed", "vxlan", "macvlan_bridge"):
        for _, interfaces in states(name):
            veths = {place: one for place, one in interfaces.items() if one.kind == "veth"}
            assert veths
            assert all(shown(interfaces[str(shown(one.peer))].peer) == place for place, one in veths.items())
    for _, interfaces in states("veth"):
        assert shown(interfaces["client0/eth0"].peer) == "server0/eth0"
    for _, interfaces in states("vxlan"):
        one = interfaces["client0/eth0"]
        assert shown(one.lower) == "client0/under"
        assert [shown(peer) for peer in one.tunnel.peers] == ["server0/eth0"]
        assert (one.tunnel.id, one.tunnel.port) == (42, 4789)
        assert (one.tunnel.local, one.tunnel.remotes) == ("192.168.0.0", ["192.168.0.1"])
    for _, interfaces in states("macvlan_bridge"):
        assert shown(interfaces["client0/eth0"].lower) == "between/parent"


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", ["veth_bridge", "veth", "macvlan_bridge", "macvlan_vepa", "vxlan"])
def test_no_neighbour_is_learned(name: str, need: Need) -> None:
    """All namespaces share one table of learned ones, which four arms of 128 pairs would fill."""
    require_kind(name, need)
    with topologies.build(name, topologies.Spec()) as topology:
        [pair] = topology.pairs
        process.output([*pair.client.prefix, "ping", "-nc1", "-w20", pair.server.address])
        for end in (pair.client, pair.server):
            known = process.output([*end.prefix, "ip", "neighbour"]).splitlines()
            assert known
            assert all(line.endswith("PERMANENT") for line in map(str.strip, known)), known


@pytest.mark.long
@pytest.mark.needs("bridge")
def test_more_than_256_pairs() -> None:
    requests = ({"name": "veth_bridge", "pairs": 260, **more} for more in ({"family": 6}, {"state": "alone"}))
    built, of_state = ask(*requests)
    assert built["full"] == [True] * 260
    assert len(built["links"]) == 521
    state = msgspec.convert(of_state["state"], State)
    ports = {one.name: shown(one.peer) for one in state.namespaces[-1].interfaces if one.master is not None}
    ends = [end.namespace for pair in state.pairs for end in pair]
    assert ports == {f"port{number}": f"{end}/eth0" for number, end in enumerate(ends)}


@pytest.mark.needs("macvlan", "iperf3")
def test_nic_as_parent(tmp_path: Path) -> None:
    """All arms share it at once, and modes that need the NIC exclusively find it free."""
    with sandbox(tmp_path, nics=["nic0", "other"]) as machine:
        before = machine.interfaces()
        words = "topology=macvlan_passthru,macvlan_bridge,macvlan_private parent=nic0 pairs=2 rounds=2"
        rows = machine.rows(*words.split(), "slices=1", "whole_runs=1", "duration_s=1", "omit_s=0")
        # The kernel removes an unreferenced namespace a moment later.
        assert until(lambda: machine.interfaces() == before, 5)
        assert until(machine.only_namespace, 20)
    result = {(row["topology"], row["status"]): row["reason"] for row in rows}
    assert set(result) == {
        ("macvlan_passthru", "isolated"), ("macvlan_bridge", "ok"), ("macvlan_private", "isolated"),
    }  # fmt: skip
    assert {row["parent"] for row in rows} == {"nic0"}
    assert all(row["throughput_bps"] > 0 for row in rows if (row["status"], row["method"]) == ("ok", "whole"))


def requests_of(pair: Pair) -> int:
    """Return the number of echo requests that the server of a pair has received."""
    return mibs.mibs(pair.server.kernel.read("/proc/net/snmp"), "Icmp")["Icmp"]["InEchos"]


@pytest.mark.needs("root", "macvlan")
def test_two_arms_on_one_nic_are_isolated(tmp_path: Path) -> None:
    """Both have the same IP addresses on the same wire, but each client reaches only its own server. The state shows
    of the machine the NIC alone."""
    with sandbox(tmp_path, user=False, nics=["nic0"]) as machine:
        netns = os.open(f"/proc/{machine.keeper.pid}/ns/net", os.O_RDONLY)
        spec = topologies.Spec(parent="nic0", machine_netns=netns)
        with (
            topologies.build("macvlan_bridge", spec) as one,
            topologies.build("macvlan_bridge", spec) as other,
        ):
            pairs, counts = [one.pairs[0], other.pairs[0]], []
            for pair in pairs:
                before = [requests_of(at) for at in pairs]
                process.output([*pair.client.prefix, "ping", "-n", "-c20", "-i0.002", pair.server.address])
                counts.append([requests_of(at) - then for at, then in zip(pairs, before, strict=True)])
            shown_machine = read.state(one).namespaces[-1]
        os.close(netns)
    assert counts == [[20, 0], [0, 20]]
    assert (shown_machine.name, shown_machine.routes) == ("machine", [])
    assert [link.name for link in shown_machine.interfaces] == ["nic0"]


@pytest.mark.needs("macvlan")
def test_missing_nic_is_refused(tmp_path: Path) -> None:
    with sandbox(tmp_path, nics=["nic0"]) as machine:
        done = machine.labkit("run", "datapaths", "topology=macvlan_bridge", "parent=nic7")
        assert one_sentence(done) == (
            "parent=nic7: the machine has no such interface; it has far-nic0, lo, nic0"
        )


TOTAL_RETRANS = 100  # the place of tcpi_total_retrans in struct tcp_info (linux/tcp.h)


@pytest.mark.long
@pytest.mark.needs("root", "macvlan", "vxlan")
@pytest.mark.parametrize(
    ("name", "family", "builds"),
    [("loopback", 6, 60), ("veth", 6, 30), ("veth", 4, 100), ("macvlan_bridge", 4, 40), ("vxlan", 6, 30)],
)
def test_first_packet_arrives(name: str, family: int, builds: int) -> None:
    """The kernel reports carriers, and adds routes of IPv6 addresses, after it has answered: a build waits for both, so
    TCP sends nothing again."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    for _ in range(builds):
        with topologies.build(name, topologies.Spec(family=family)) as topology:
            [pair] = topology.pairs
            with netlink.inside(pair.server.namespace.fd):
                listener = socket.create_server((pair.server.address, 0), family=kind)
            with netlink.inside(pair.client.namespace.fd):
                client = socket.socket(kind)
            with listener, client:
                client.connect(listener.getsockname()[:2])
                told = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        assert struct.unpack_from("I", told, TOTAL_RETRANS) == (0,)
