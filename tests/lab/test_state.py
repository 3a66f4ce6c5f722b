"""The state of every topology agrees with what `ip` says in each of its namespaces, including links between them."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import Need
from sandbox import printed
from topology_kinds import IPV4_ALONE, PAIRED_TOPOLOGIES, require_kind

from labkit.common.topology_state import State

pytestmark = pytest.mark.needs("namespaces", "ip", "veth")

Answer = dict[str, Any]
SPECS = [(1, 4), (3, 6)]  # pairs and family


def ask(*requests: tuple[str | int | None, ...]) -> list[Answer]:
    program = Path(__file__).with_name("dump_states.py")
    result: list[Answer] = printed(program, json.dumps(requests), timeout_s=400)
    return result


@functools.cache
def built() -> list[tuple[str, Answer]]:
    """Return the answers for each topology and each of SPECS, with its name, all from one process."""
    named = [(name, *spec) for name, spec in itertools.product(PAIRED_TOPOLOGIES, SPECS)]
    requests = [one for one in named if one[2] == 4 or one[0] not in IPV4_ALONE]
    return [
        (one[0], answer)
        for one, answer in zip(requests, ask(*((*one, None) for one in requests)), strict=True)
    ]


def answers(name: str) -> list[Answer]:
    """Return the answers for each of SPECS, or none if the kernel lacks the topology or it refuses by design."""
    result = [answer for each, answer in built() if each == name]
    assert all(one["error"] in ("Unsupported", "Isolated") for one in result if "error" in one), result
    return [one for one in result if "error" not in one]


def states(name: str) -> list[tuple[State, dict[str, Any]]]:
    """Return the states of one topology, and the interfaces of each by `namespace/interface`."""
    result = [msgspec.convert(one["state"], State) for one in answers(name)]
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
def test_interfaces_agree_with_ip(name: str, need: Need) -> None:
    require_kind(name, need)
    for answer in answers(name):
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


@pytest.mark.parametrize("name", PAIRED_TOPOLOGIES)
def test_routes_agree_with_ip(name: str, need: Need) -> None:
    require_kind(name, need)
    for answer in answers(name):
        for space in answer["state"]["namespaces"]:
            report = [*answer["ip"][space["name"]]["routes"], *answer["ip"][space["name"]]["routes6"]]
            names = ("dst", "gateway", "dev", "prefsrc", "metric")
            expected = [tuple(one.get(name) for name in names) for one in report]
            result = [
                (route["to"], hop["via"], hop["interface"], route["source"], route["metric"])
                for route in space["routes"]
                for hop in route["hops"]
            ]
            assert sorted(result, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("name", ["veth", "veth_bridge", "veth_routed", "vxlan", "macvlan_bridge"])
def test_veth_peers(name: str, need: Need) -> None:
    require_kind(name, need)
    for _, interfaces in states(name):
        veths = {place: one for place, one in interfaces.items() if one.kind == "veth"}
        assert veths
        assert {place: shown(interfaces[shown(one.peer)].peer) for place, one in veths.items()} == {
            place: place for place in veths
        }


def test_peer_interfaces(need: Need) -> None:
    need("vxlan")
    for state, interfaces in states("veth"):
        for number in range(len(state.pairs)):
            assert shown(interfaces[f"client{number}/eth0"].peer) == f"server{number}/eth0"
    for state, interfaces in states("vxlan"):
        for number in range(len(state.pairs)):
            one = interfaces[f"client{number}/eth0"]
            assert shown(one.lower) == f"client{number}/under"
            assert [shown(peer) for peer in one.tunnel.peers] == [f"server{number}/eth0"]
            assert (one.tunnel.id, one.tunnel.port) == (42, 4789)
            assert (one.tunnel.local, one.tunnel.remotes) == ("192.168.0.0", ["192.168.0.1"])


@pytest.mark.needs("macvlan")
def test_lower_device_in_another_namespace() -> None:
    for state, interfaces in states("macvlan_bridge"):
        lower = {shown(interfaces[f"{end.namespace}/eth0"].lower) for pair in state.pairs for end in pair}
        assert lower == {"between/parent"}


@pytest.mark.needs("macvlan", "root")
def test_machine_parent_is_the_only_machine_interface() -> None:
    [answer] = ask(("macvlan_bridge", 1, 4, "nic0"))
    state = msgspec.convert(answer["state"], State)
    machine = state.namespaces[-1]
    assert (machine.name, [one.name for one in machine.interfaces], machine.routes) == (
        "machine",
        ["nic0"],
        [],
    )
    assert {
        shown(one.lower) for space in state.namespaces for one in space.interfaces if one.kind == "macvlan"
    } == {"machine/nic0"}


@pytest.mark.needs("bridge")
def test_many_namespaces() -> None:
    [answer] = ask(("veth_bridge", 128, 4, None, False))
    state = msgspec.convert(answer["state"], State)
    ports = {one.name: shown(one.peer) for one in state.namespaces[-1].interfaces if one.master is not None}
    ends = [end.namespace for pair in state.pairs for end in pair]
    assert ports == {f"port{number}": f"{end}/eth0" for number, end in enumerate(ends)}
