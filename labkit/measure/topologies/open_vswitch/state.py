"""What a switch's own database tells of the interfaces that are its ports: the bridge, what is copied to them, tunnels.

The kernel knows no master of a port of the userspace datapath, and no interface for a tunnel of it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from labkit.common.topology_state import InterfaceState, Namespace, Place, TunnelState
from labkit.measure.topologies.open_vswitch.switch import Switch

KIND = "openvswitch"


def with_switch(namespaces: list[Namespace], switch: Switch) -> list[Namespace]:
    """The namespaces, the switch's own with what the database tells of its ports."""
    report = _Database(switch)
    return [
        msgspec.structs.replace(space, interfaces=report.interfaces(space))
        if space.name == switch.space.name
        else space
        for space in namespaces
    ]


class _Database:
    """The rows of the database, by identifiers."""

    def __init__(self, switch: Switch) -> None:
        rows = switch.database.rows
        self._space = switch.space.name
        self._ports = {row["_uuid"]: row for row in rows("Port", "_uuid", "name", "interfaces")}
        self._interfaces = {row["name"]: row for row in rows("Interface", "name", "type", "options")}
        self._bridge_of: dict[str, str] = {}
        self._copies: dict[str, list[Place]] = {}
        mirrors = {row["_uuid"]: row for row in rows("Mirror", *_MIRROR)}
        for bridge in rows("Bridge", "name", "ports", "mirrors"):
            ports = [self._ports[one]["name"] for one in _several(bridge["ports"])]
            self._bridge_of |= dict.fromkeys(ports, bridge["name"])
            for one in _several(bridge["mirrors"]):
                self._mirror(mirrors[one], ports)

    def _mirror(self, row: dict[str, Any], ports: list[str]) -> None:
        """Where a mirror copies from, at each port where its copies go out."""
        chosen = {*_several(row["select_src_port"]), *_several(row["select_dst_port"])}
        outputs = [self._ports[one]["name"] for one in _several(row["output_port"])]
        sources = [self._ports[one]["name"] for one in chosen]
        if row["select_all"]:
            sources = [name for name in ports if name.startswith("port")]
        for output in outputs or ["trunk"]:
            self._copies.setdefault(output, []).extend(Place(self._space, name) for name in sorted(sources))

    def interfaces(self, space: Namespace) -> list[InterfaceState]:
        """The interfaces of the switch's namespace, and the tunnels that the kernel does not know."""
        result = [self._port(one) for one in space.interfaces]
        there = {one.name for one in result}
        return result + [
            self._tunnel(name) for name in self._bridge_of if name not in there and self._is_tunnel(name)
        ]

    def _port(self, one: InterfaceState) -> InterfaceState:
        bridge = self._bridge_of.get(one.name)
        if bridge is None:
            return one
        if bridge == one.name:
            return msgspec.structs.replace(one, kind=KIND, master=None)
        return msgspec.structs.replace(one, master=bridge, copies=self._copies.get(one.name, []))

    def _is_tunnel(self, name: str) -> bool:
        return "remote_ip" in self._interfaces[name]["options"]

    def _tunnel(self, name: str) -> InterfaceState:
        row = self._interfaces[name]
        options = row["options"]
        tunnel = TunnelState(
            id=int(options["key"]) if "key" in options else None,
            local=options.get("local_ip"),
            remotes=[options["remote_ip"]],
        )
        return InterfaceState(
            name=name, index=0, kind=row["type"], up=True, carrier=True, mtu_bytes=0, mac=None,
            master=self._bridge_of[name], tunnel=tunnel, copies=self._copies.get(name, []),
        )  # fmt: skip


_MIRROR = ("_uuid", "select_all", "select_src_port", "select_dst_port", "output_port")


def _several(value: Any) -> list[str]:
    """A set of the database, which has one value without brackets."""
    return value if isinstance(value, list) else [value]
