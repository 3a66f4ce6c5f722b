"""Every kind of tunnel on a kernel that has them all."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
import pytest
from conftest import ROOT, SharedVm

from labkit import drawing, live
from labkit.topologies import State
from labkit.topologies.encapsulation import overhead_bytes
from labkit.topologies.told import Place
from labkit.topologies.tunnels import ARMS

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "qemu", "full kernel")

Answer = dict[str, Any]
PATIENCE_S = 400
ADDED = {"vxlan": 50, "geneve": 50, "gre": 24, "gretap": 38, "ipip": 20, "vxlan_gre": 74}
KIND = {"vxlan_gre": "vxlan"}


@pytest.fixture(scope="module")
def found(shared_vm: SharedVm) -> dict[tuple[str, int], Answer]:
    """What was found in each kind of tunnel, by its name and the version of IP inside."""
    asked = [(name, family) for name in ARMS for family in (4, 6)]
    requests = [
        {"name": name, "mtu_bytes": 1400, "family": family, "pairs": 2 if family == 4 else 1}
        for name, family in asked
    ]
    built = [sys.executable, str(ROOT / "tests/lab/built.py"), json.dumps(requests)]
    with live.build("veth", where=shared_vm.where) as net:
        told = net.client0.run("env", f"PYTHONPATH={ROOT}", *built, timeout_s=PATIENCE_S)
    return dict(zip(asked, json.loads(told), strict=True))


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("name", ARMS)
def test_a_tunnel(name: str, family: int, found: dict[tuple[str, int], Answer]) -> None:
    told = found[name, family]
    if (name, family) == ("ipip", 6):
        assert (told["error"], told["text"].partition(" (")[0]) == ("BadInput", "ipip carries IPv4 alone")
        return
    assert "error" not in told, told
    reaches(told)
    outside(name, told)
    peers(name, msgspec.convert(told["state"], State))


def reaches(told: Answer) -> None:
    """Every pair, at the MTU and not beyond."""
    count = len(told["pairs"])
    assert told["full"] == [True] * count
    assert told["ttl"] == [64] * count
    assert told["one_more"] == []
    assert told["one_more_refused"] == [True] * count
    assert told["reachable"] is None


def outside(name: str, told: Answer) -> None:
    """The way is larger by what the headers add; as much is measured on it."""
    for links in told["links"].values():
        assert (links["eth0"]["mtu"], links["under"]["mtu"]) == (1400, 1400 + ADDED[name])
        assert links["eth0"]["linkinfo"]["info_kind"] == KIND.get(name, name)
        assert links["eth0"]["qdisc"] == "noqueue"
    measured = told["headers"]
    assert measured["computed_bytes"] == measured["measured_bytes"] == ADDED[name] == overhead_bytes(name)
    assert sum(layer["header_bytes"] for layer in measured["layers"]) == ADDED[name]


def peers(name: str, state: State) -> None:
    """Each end's tunnel is the other end's peer, in its own pair; where there are two tunnels, both are."""
    interfaces = {(space.name, one.name): one for space in state.namespaces for one in space.interfaces}
    for number in range(len(state.pairs)):
        for near, far, side in (("client", "server", 0), ("server", "client", 1)):
            one = interfaces[f"{near}{number}", "eth0"].tunnel
            assert one is not None
            assert one.peers == [Place(f"{far}{number}", "eth0")]
            depth = int(name == "vxlan_gre")
            local = None if name == "geneve" else f"192.168.{depth}.{side}"
            assert (one.local, one.remotes) == (local, [f"192.168.{depth}.{1 - side}"])
            assert one.id == (42 if name in ("vxlan", "geneve", "vxlan_gre") else None)
            assert one.port == {"vxlan": 4789, "vxlan_gre": 4789, "geneve": 6081}.get(name)
            if name == "vxlan_gre":
                way = interfaces[f"{near}{number}", "way"].tunnel
                assert way.peers == [Place(f"{far}{number}", "way")]
    drawn = drawing.tree(state)
    assert "gre0" not in drawn
    assert f"(server{len(state.pairs) - 1}/eth0)" in drawn
