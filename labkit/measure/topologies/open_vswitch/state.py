"""The switch ports' part of the state, from the switch's database: bridge, mirrored ports, tunnels.

The kernel knows no master of a userspace datapath's port, and no interface of its tunnels.
"""

from typing import Any

from msgspec.structs import replace

from labkit.common.topology_state import InterfaceState, Namespace, Place, TunnelState
from labkit.measure.topologies.base import MONITOR
from labkit.measure.topologies.open_vswitch.switch import Switch

KIND = "openvswitch"


def with_switch(namespaces: list[Namespace], switch: Switch) -> list[Namespace]:
    """Return the namespaces, with the switch's own completed from its database, and ports that moved to the monitor."""
    report = _Database(switch)
    parts = {switch.space.name: report.interfaces, MONITOR: report.moved}
    return [
        replace(space, interfaces=parts[space.name](space)) if space.name in parts else space
        for space in namespaces
    ]


class _Database:
    """The rows of the switch's database."""

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
        """Note a mirror's source ports at each of its output ports."""
        chosen = {*_several(row["select_src_port"]), *_several(row["select_dst_port"])}
        outputs = [self._ports[one]["name"] for one in _several(row["output_port"])]
        sources = [self._ports[one]["name"] for one in chosen]
        if row["select_all"]:
            sources = [name for name in ports if name.startswith("port")]
        for output in outputs or ["trunk"]:
            self._copies.setdefault(output, []).extend(Place(self._space, name) for name in sorted(sources))

    def interfaces(self, space: Namespace) -> list[InterfaceState]:
        """Return the interfaces of the switch's namespace, and tunnels that the kernel does not know."""
        result = [self._port(one) for one in space.interfaces]
        there = {one.name for one in result}
        return result + [
            self._tunnel(name)
            for name in sorted(self._bridge_of, key=_in_order)
            if name not in there and "remote_ip" in self._interfaces[name]["options"]
        ]

    def moved(self, space: Namespace) -> list[InterfaceState]:
        """Return the interfaces of the monitor, with what mirrors copy to ports of the switch that are there."""
        return [
            replace(one, copies=self._copies.get(one.name, []))
            if self._interfaces.get(one.name, {}).get("type") == "internal"
            else one
            for one in sorted(space.interfaces, key=lambda one: _in_order(one.name))
        ]

    def _port(self, one: InterfaceState) -> InterfaceState:
        bridge = self._bridge_of.get(one.name)
        if bridge is None:
            return one
        if bridge == one.name:
            return replace(one, kind=KIND, master=None)
        return replace(one, master=bridge, copies=self._copies.get(one.name, []))

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


def _in_order(name: str) -> tuple[int, str]:
    """Return the key that sorts names by their numbers: mirror2 before mirror10."""
    return len(name), name


def _several(value: Any) -> list[str]:
    """Return the list of an OVSDB set, in which a single value has no brackets."""
    return value if isinstance(value, list) else [value]
