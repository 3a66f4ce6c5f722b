"""The configuration of a switch as operations on its database: ports, bridges, mirrors, sampling (RFC 7047;
ovs-vswitchd.conf.db(5)). All of it is one transaction, however many ports there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.measure.topologies.open_vswitch.rpc import a_map, a_set, named

Operation = dict[str, Any]


@dataclass(frozen=True)
class Port:
    """A port of a bridge. `kind`: of its interface, empty for one that is there already. `number`: its OpenFlow number.
    `vlan`: the VLAN that it is an access port of; `trunks`: those that it carries tagged, None all."""

    name: str
    kind: str = ""
    options: dict[str, str] = field(default_factory=dict)
    number: int | None = None
    vlan: int | None = None
    trunks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Mirror:
    """A mirror. It copies what comes in at `arriving` and goes out at `leaving` (names of ports), or at every port
    where `everything`; of `vlans` only, if there are any. Copies go out at `port`, or in the VLAN `vlan`."""

    name: str
    arriving: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    everything: bool = False
    vlans: tuple[int, ...] = ()
    port: str | None = None
    vlan: int | None = None
    snaplen: int | None = None


@dataclass(frozen=True)
class Bridge:
    """A bridge with its ports, which learns MAC addresses and has no controller. `vlan`: of the port that is the host's
    own. `sampling`: `sflow` or `ipfix`, and of
    how many packets one is sampled."""

    name: str
    datapath: str
    ports: Sequence[Port]
    mirrors: Sequence[Mirror] = ()
    vlan: int | None = None
    sampling: tuple[str, int] | None = None


COLLECTOR = "127.0.0.1:6343"  # in the switch's namespace


def operations(bridges: Sequence[Bridge]) -> list[Operation]:
    """What inserts these bridges into an empty database, as its first configuration."""
    result: list[Operation] = []
    for bridge in bridges:
        result += _bridge(bridge)
    root = {"bridges": a_set([named(_id("bridge", bridge.name)) for bridge in bridges]), "next_cfg": 1}
    return [*result, {"op": "insert", "table": "Open_vSwitch", "row": root}]


def _bridge(bridge: Bridge) -> list[Operation]:
    local = Port(bridge.name, "internal", vlan=bridge.vlan)
    ports = [local, *bridge.ports]
    row: dict[str, Any] = {
        "name": bridge.name,
        "datapath_type": bridge.datapath,
        "fail_mode": "standalone",
        "other_config": a_map({"disable-in-band": "true"}),
        "ports": a_set([named(_id("port", port.name)) for port in ports]),
        "mirrors": a_set([named(_id("mirror", mirror.name)) for mirror in bridge.mirrors]),
        # What is mirrored into a VLAN has the addresses of the ends: nothing may be learned from it.
        "flood_vlans": a_set([mirror.vlan for mirror in bridge.mirrors if mirror.vlan is not None]),
    }
    result = [operation for port in ports for operation in _port(port)]
    result += [_mirror(mirror) for mirror in bridge.mirrors]
    if bridge.sampling is not None:
        kind, of = bridge.sampling
        result.append(_sampling(kind, of))
        row[kind] = named(kind)
    return [*result, _insert("Bridge", _id("bridge", bridge.name), row)]


def _port(port: Port) -> list[Operation]:
    interface: dict[str, Any] = {"name": port.name, "type": port.kind, "options": a_map(port.options)}
    if port.number is not None:
        interface["ofport_request"] = port.number
    row: dict[str, Any] = {"name": port.name, "interfaces": named(_id("interface", port.name))}
    if port.vlan is not None:
        row["tag"] = port.vlan
    if port.trunks is not None:
        row |= {"trunks": a_set(list(port.trunks)), "vlan_mode": "trunk"}
    return [
        _insert("Interface", _id("interface", port.name), interface),
        _insert("Port", _id("port", port.name), row),
    ]


def _mirror(mirror: Mirror) -> Operation:
    row: dict[str, Any] = {
        "name": mirror.name,
        "select_all": mirror.everything,
        "select_src_port": a_set([named(_id("port", name)) for name in mirror.arriving]),
        "select_dst_port": a_set([named(_id("port", name)) for name in mirror.leaving]),
        "select_vlan": a_set(list(mirror.vlans)),
    }
    if mirror.port is not None:
        row["output_port"] = named(_id("port", mirror.port))
    if mirror.vlan is not None:
        row["output_vlan"] = mirror.vlan
    if mirror.snaplen is not None:
        row["snaplen"] = mirror.snaplen
    return _insert("Mirror", _id("mirror", mirror.name), row)


def _sampling(kind: str, of: int) -> Operation:
    if kind == "sflow":
        return _insert("sFlow", kind, {"targets": COLLECTOR, "sampling": of, "agent": "lo", "header": 128})
    return _insert("IPFIX", kind, {"targets": COLLECTOR, "sampling": of})


def _insert(table: str, name: str, row: dict[str, Any]) -> Operation:
    return {"op": "insert", "table": table, "uuid-name": name, "row": row}


def _id(kind: str, name: str) -> str:
    """A name for a row within the transaction."""
    return f"{kind}_{name}"
