"""Build states of topologies as a kernel would report them, without a kernel."""

from __future__ import annotations

import msgspec
from conftest import ROOT

from labkit.common.topology_state import (
    InterfaceState,
    Namespace,
    NextHop,
    PairEnd,
    Place,
    Route,
    State,
    TunnelState,
)

LO = InterfaceState(
    name="lo", index=1, kind="loopback", up=True, carrier=True, mtu_bytes=65536, addresses=["127.0.0.1/8"]
)


def veth(name: str, index: int, peer: Place, **more: object) -> InterfaceState:
    return msgspec.convert(
        {
            "name": name, "index": index, "kind": "veth", "up": True, "carrier": True, "mtu_bytes": 1500,
            "peer": msgspec.to_builtins(peer), **more,
        },
        InterfaceState,
    )  # fmt: skip


def bridged(pairs: int) -> State:
    """Return two ends on one bridge, as in veth_bridge."""
    bridge = InterfaceState(name="bridge", index=101, kind="bridge", up=True, carrier=True, mtu_bytes=1500)
    spaces, ports, ends = [], [LO, bridge], []
    for number in range(2 * pairs):
        name = f"{('client', 'server')[number % 2]}{number // 2}"
        address = f"10.{1 + number % 2}.0.{number // 2 + 1}"
        ends.append(PairEnd(name, name, "eth0", address))
        addresses = [f"{address}/8", "fe80::1/64"]
        eth0 = veth("eth0", 100, Place("between", f"port{number}"), addresses=addresses)
        spaces.append(Namespace(name, [LO, eth0], []))
        ports.append(veth(f"port{number}", 110 + number, Place(name, "eth0"), master="bridge"))
    between = Namespace("between", ports, [Route(to="default", hops=[NextHop("bridge", "10.9.9.9")])])
    return State("veth_bridge", "6.1", list(zip(ends[::2], ends[1::2], strict=True)), [*spaces, between])


def mirrored(mirrors: int, pairs: int = 1) -> State:
    """Return two ends on one switch, whose mirrors copy all ports of ends to veths in a namespace of their own."""
    state = bridged(pairs)
    *spaces, between = state.namespaces
    copied = [{"namespace": "between", "interface": f"port{number}"} for number in range(2 * pairs)]
    names = [f"mirror{number}" for number in range(mirrors)]
    outputs = [
        veth(name, 200 + number, Place("monitor", name), master="bridge", copies=copied)
        for number, name in enumerate(names)
    ]
    far = [veth(name, 200 + number, Place("between", name)) for number, name in enumerate(names)]
    switched = Namespace("between", [*between.interfaces, *outputs], between.routes)
    return State("ovs_netdev", "6.1", state.pairs, [*spaces, switched, Namespace("monitor", [LO, *far], [])])


def overlay() -> State:
    """Return the report's overlay, as `labkit draw overlay where=vm:debian --json` printed it on Linux 6.12."""
    return msgspec.json.decode((ROOT / "tests/samples/overlay-6.12.json").read_bytes(), type=State)


def tunnelled() -> State:
    """Return two ends of a VXLAN tunnel over a veth."""
    spaces, ends = [], []
    for number, (name, other) in enumerate((("client0", "server0"), ("server0", "client0"))):
        local, remote = f"192.168.0.{number}", f"192.168.0.{1 - number}"
        tunnel = TunnelState(id=42, local=local, remotes=[remote], port=4789, peers=[Place(other, "eth0")])
        eth0 = InterfaceState(
            name="eth0", index=100, kind="vxlan", up=True, carrier=True, mtu_bytes=1450,
            lower=Place(name, "under"), tunnel=tunnel, addresses=[f"10.{number + 1}.0.1/8"],
        )  # fmt: skip
        under = veth("under", 101, Place(other, "under"), addresses=[f"{local}/31"])
        spaces.append(Namespace(name, [LO, eth0, under], []))
        ends.append(PairEnd(name, name, "eth0", f"10.{number + 1}.0.1"))
    return State("vxlan", "6.1", [(ends[0], ends[1])], spaces)
