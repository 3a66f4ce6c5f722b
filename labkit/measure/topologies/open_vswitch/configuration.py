"""The configuration of a switch as operations on its database: ports, bridges, mirrors, sampling.

All are one transaction. Sources: RFC 7047, ovs-vswitchd.conf.db(5).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.common.switch_options import Datapath
from labkit.measure.topologies.open_vswitch import dpdk
from labkit.measure.topologies.open_vswitch.rpc import a_map, a_set, named_uuid

Row = dict[str, Any]  # by the names of ovs-vswitchd.conf.db(5)
Operation = dict[str, Any]


@dataclass(frozen=True)
class Port:
    """A port of a bridge.

    `kind`: the type of its interface, empty for an existing interface. `number`: its OpenFlow number. `vlan`: its
    access VLAN. `trunks`: the VLANs that it carries tagged; None: all.
    """

    name: str
    kind: str = ""
    options: dict[str, str] = field(default_factory=dict)
    number: int | None = None
    vlan: int | None = None
    trunks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Bridge:
    """A learning bridge without a controller.

    Ports with an existing interface get the kind that the datapath has for them. `mirrors`: their rows in the database.
    `vlan`: of its local port. `sampling`: (`sflow` or `ipfix`, N): one packet of N is sampled.
    """

    name: str
    datapath: Datapath
    ports: Sequence[Port]
    mirrors: Sequence[Row] = ()
    vlan: int | None = None
    sampling: tuple[str, int] | None = None


COLLECTOR = "127.0.0.1:6343"  # in the switch's namespace
# The table of each kind of sampling, and further columns
SAMPLERS: dict[str, tuple[str, Row]] = {
    "sflow": ("sFlow", {"agent": "lo", "header": 128}),
    "ipfix": ("IPFIX", {}),
}


def operations(
    bridges: Sequence[Bridge], flow_limit: int | None = None, cpu: int | None = None
) -> list[Operation]:
    """Return the operations that insert these bridges into an empty database.

    flow_limit: the most flows in a datapath's table. cpu: that of a thread that polls.
    """
    result: list[Operation] = []
    for bridge in bridges:
        result += _bridge(bridge)
    settings = {} if flow_limit is None else {"flow-limit": str(flow_limit)}
    if any(bridge.datapath.polls for bridge in bridges) and cpu is not None:
        settings["pmd-cpu-mask"] = f"{1 << cpu:#x}"
    if any(bridge.datapath is Datapath.DPDK for bridge in bridges):
        settings |= dpdk.SETTINGS
    own = references("bridge", [bridge.name for bridge in bridges])
    root = {"bridges": own, "next_cfg": 1, "other_config": a_map(settings)}
    return [*result, {"op": "insert", "table": "Open_vSwitch", "row": root}]


def _bridge(bridge: Bridge) -> list[Operation]:
    local = Port(bridge.name, "internal", vlan=bridge.vlan)
    ports = [local, *(_of_datapath(port, bridge.datapath) for port in bridge.ports)]
    row: dict[str, Any] = {
        "name": bridge.name,
        "datapath_type": bridge.datapath.type,
        "fail_mode": "standalone",
        "other_config": a_map({"disable-in-band": "true"}),
        "ports": references("port", [port.name for port in ports]),
        "mirrors": references("mirror", [mirror["name"] for mirror in bridge.mirrors]),
        # Copies in a VLAN carry the ends' addresses, so the switch must not learn from them.
        "flood_vlans": a_set([vlan for one in bridge.mirrors if (vlan := one["output_vlan"]) is not None]),
    }
    result = [operation for port in ports for operation in _port(port)]
    result += [_insert("Mirror", _id("mirror", mirror["name"]), mirror) for mirror in bridge.mirrors]
    if bridge.sampling is not None:
        kind, of = bridge.sampling
        table, own = SAMPLERS[kind]
        result.append(_insert(table, kind, {"targets": COLLECTOR, "sampling": of, **own}))
        row[kind] = named_uuid(kind)
    return [*result, _insert("Bridge", _id("bridge", bridge.name), row)]


def _of_datapath(port: Port, datapath: Datapath) -> Port:
    """Return the port with the kind that this datapath has for existing interfaces, if it has one."""
    if port.kind or not datapath.polls:
        return port
    if datapath is Datapath.DPDK:
        device = f"{dpdk.DRIVER}_{port.name},iface={port.name}"
        return replace(port, kind="dpdk", options={"dpdk-devargs": device})
    return replace(port, kind="afxdp")


def _port(port: Port) -> list[Operation]:
    interface = {
        "name": port.name, "type": port.kind, "options": a_map(port.options), "ofport_request": port.number,
    }  # fmt: skip
    row: dict[str, Any] = {
        "name": port.name, "interfaces": named_uuid(_id("interface", port.name)), "tag": port.vlan,
    }  # fmt: skip
    if port.trunks is not None:
        row |= {"trunks": a_set(list(port.trunks)), "vlan_mode": "trunk"}
    return [
        _insert("Interface", _id("interface", port.name), interface),
        _insert("Port", _id("port", port.name), row),
    ]


def references(kind: str, names: Sequence[str]) -> list[Any]:
    """Return a set of rows that the same transaction inserts: bridges, ports or mirrors of these names."""
    return a_set([named_uuid(_id(kind, name)) for name in names])


def _insert(table: str, name: str, row: Row) -> Operation:
    """Return the operation that inserts a row, without the columns that are None."""
    given = {column: value for column, value in row.items() if value is not None}
    return {"op": "insert", "table": table, "uuid-name": name, "row": given}


def _id(kind: str, name: str) -> str:
    """Return a row's name within the transaction. It has no dash or dot, as a NIC's name may have (RFC 7047, 3.1)."""
    return f"{kind}_{re.sub('[^0-9A-Za-z]', lambda other: f'_{ord(other[0]):x}', name)}"
