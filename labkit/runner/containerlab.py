"""Read containerlab's topology files (containerlab.dev/manual/topo-def-file) as networks of parts, as far as they
describe nodes and links."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network, ip_address, ip_network
from typing import Any

import msgspec

from labkit.common import units
from labkit.common.errors import BadInput
from labkit.common.plain_types import wrong_type
from labkit.measure.topologies import Network
from labkit.measure.topologies.network.kinds import KINDS
from labkit.measure.topologies.network.model import ShortNames
from labkit.measure.topologies.network.parts import Bridge, Cable, CableEnd, Node, Part, Tunnel, UpperDevice

MTU_BYTES = 9500  # of links without their own, as containerlab has it
ADDRESSES = IPv4Network("198.18.0.0/15")  # for benchmarks (RFC 2544): the files have no addresses
MAX_PARTS = 1000  # nodes, and links
BRIDGES = ("bridge", "ovs-bridge")
HOST, MANAGEMENT, OUTSIDE, MACVLAN = "host", "mgmt-net", "outside", "macvlan"
CABLES = ("veth", HOST, MANAGEMENT)  # the types of links that are cables


class _End(msgspec.Struct):
    node: str
    interface: str
    mac: str | None = None


class _Link(msgspec.Struct, rename="kebab"):
    """A link in the brief format (`endpoints` are texts) or in the extended one."""

    type: str = "veth"
    endpoints: list[_End | str] = []
    endpoint: _End | str | None = None
    host_interface: str = ""
    mtu: int | None = None
    mode: str = "bridge"
    remote: str = ""
    vni: int | None = None
    udp_port: int | None = None


class _Lab(msgspec.Struct):
    nodes: dict[str, dict[str, Any] | None]
    links: list[_Link] = []
    defaults: dict[str, Any] | None = None
    kinds: dict[str, dict[str, Any] | None] | None = None
    groups: dict[str, dict[str, Any] | None] | None = None


def network(content: Mapping[str, Any], name: str) -> tuple[Network, str]:
    """Return the network of a file, and a sentence about what it lacks. Raises BadInput.

    Addresses are labkit's, one subnet for each link or bridge. The first two nodes on one link are the pair.
    """
    try:
        lab = msgspec.convert(content["topology"], _Lab)
    except msgspec.ValidationError as error:
        raise BadInput(f"{name} is no topology file of containerlab: {wrong_type(error)}") from None
    if max(len(lab.nodes), len(lab.links)) > MAX_PARTS:
        raise BadInput(f"{name} has more than {MAX_PARTS:,} nodes or links")
    reader = _Reader(lab)
    for read in (reader.join, reader.add):
        for number, link in enumerate(lab.links, 1):
            try:
                read(link)
            except ValueError as error:
                raise BadInput(f"{name}, link {number}: {error}") from None
    described = (*lab.nodes.values(), *(lab.kinds or {}).values(), *(lab.groups or {}).values(), lab.defaults)
    of_nodes = {str(key) for own in described for key in own or ()} - {"kind", "group"}
    of_file = set(map(str, content)) - {"name", "topology"}
    left = [*sorted(of_nodes | of_file), *sorted(reader.left | _unread(content["topology"]))]
    sentence = (
        f"{name} is a file of containerlab, of which labkit reads nodes and links; it leaves out"
        f" {units.listed(left) if left else 'nothing else'}, and gives the interfaces addresses of {ADDRESSES}"
    )
    own_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", str(content.get("name") or name)).strip("-_.")[:60]
    return Network(own_name or "lab", reader.parts(), (reader.pair(name),), MTU_BYTES, as_is=True), sentence


def _unread(topology: Mapping[str, Any]) -> set[str]:
    """Return the keys of a topology, its links and their ends that nothing here reads."""
    links = topology.get("links", [])
    ends = [end for link in links for end in (*link.get("endpoints", []), link.get("endpoint"))]
    result: set[str] = set()
    for what, kind, given in (("topology", _Lab, [topology]), ("links", _Link, links), ("ends", _End, ends)):
        known = {one.encode_name for one in msgspec.structs.fields(kind)}
        result |= {
            f"{key} of {what}" for one in given if isinstance(one, Mapping) for key in one.keys() - known
        }
    return result


class _Reader:
    """Collects parts link by link. `left`: what has none."""

    def __init__(self, lab: _Lab) -> None:
        self._lab = lab
        # Of nodes (None), and of the interfaces of each
        self._names: defaultdict[str | None, ShortNames] = defaultdict(ShortNames)
        self._joined: dict[str, str] = {}  # a bridge to another one of the same segment
        self._nodes: dict[str, str] = {}  # names as the file has them, to those of the network
        self._taken: dict[str, dict[tuple[str, str], str]] = {}  # the same of interfaces, by node
        self._bridges: dict[str, Bridge] = {}
        self._links: list[Cable | UpperDevice | Tunnel] = []
        self._subnets = ADDRESSES.subnets(new_prefix=24)
        self._of_segment: dict[str, Iterator[str]] = {}
        self._segments: dict[str, list[str]] = {}  # the nodes with an address in each segment
        self.left: set[str] = set()
        for node in lab.nodes:
            self._node(node)

    def parts(self) -> tuple[Part, ...]:
        """Return all parts, nodes first."""
        ends = {node for nodes in self._segments.values() for node in nodes}
        nodes = [Node(node, container=node in ends) for node in self._nodes.values()]
        return (*nodes, *self._bridges.values(), *self._links)

    def pair(self, name: str) -> tuple[str, str]:
        """Return the first two nodes that one link or bridge joins. Raises BadInput if there are none."""
        first: set[str] = set()
        found = []
        for nodes in self._segments.values():
            own = list(dict.fromkeys(nodes))
            # The load is carried by the first interface of each.
            found += [(not first.isdisjoint(own[:2]), own[:2])] if len(own) > 1 else []
            first.update(own)
        if not found:
            raise BadInput(f"{name} has no link between two nodes, so there is nothing to draw")
        one, other = min(found, key=lambda each: each[0])[1]
        return one, other

    def join(self, link: _Link) -> None:
        """Note that a link between two bridges makes one segment of theirs. Raises ValueError as `add`."""
        kind, _lower, ends = self._read(link)
        if kind in CABLES and len(ends) == 2 and all(self._is_bridge(one.node) for one in ends):
            one, other = (self._segment(each.node) for each in ends)
            if one != other:
                self._joined[one] = other

    def _segment(self, bridge: str) -> str:
        while bridge in self._joined:
            bridge = self._joined[bridge]
        return bridge

    def _read(self, link: _Link) -> tuple[str, str, list[_End]]:
        """Return the kind of a link, its interface of the host, and its ends."""
        ends = [self._end(one) for one in ([link.endpoint] if link.endpoint is not None else link.endpoints)]
        kind, lower = link.type, link.host_interface
        if len(ends) == 2 and ends[1].node == MACVLAN:
            kind, lower, ends = MACVLAN, ends[1].interface, ends[:1]
        if kind in (HOST, MANAGEMENT) and len(ends) == 1:
            ends.append(_End(kind, lower))
        return kind, lower, ends

    def add(self, link: _Link) -> None:
        """Add the parts of a link. Raises ValueError for one that names no node or interface."""
        kind, lower, ends = self._read(link)
        if kind in CABLES and len(ends) == 2:
            joined = [self._segment(one.node) for one in ends if self._is_bridge(one.node)]
            segment = joined[0] if joined else f"{ends[0]} {ends[1]}"
            near, far = (self._cable_end(one, segment) for one in ends)
            self._links.append(Cable(near, far, link.mtu))
        elif kind == MACVLAN and len(ends) == 1 and link.mode in KINDS[MACVLAN].modes:
            at = self._node(ends[0].node)
            address = self._address(f"{MACVLAN} {lower}", at)
            name, mac = self._interface(ends[0]), _mac(ends[0])
            self._links.append(UpperDevice(MACVLAN, at, name, self._outward(lower), link.mode, address, mac))
        elif kind in ("vxlan", "vxlan-stitch") and len(ends) == 1:
            self._tunnel(ends[0], link)
        else:
            self.left.add(
                f"links of the type {kind}" + (f" in the mode {link.mode}" if kind == MACVLAN else "")
            )

    def _end(self, given: _End | str) -> _End:
        if isinstance(given, str):
            node, _, interface = given.partition(":")
            given = _End(node, interface)
        if given.node not in (*self._lab.nodes, HOST, MANAGEMENT, MACVLAN) or not given.interface:
            raise ValueError(f"{given.node}:{given.interface} is no interface of a node of the file")
        return given

    def _node(self, name: str) -> str:
        if name not in self._nodes:
            self._nodes[name] = self._names[None].new(name)
            if self._is_bridge(name):
                self._bridges[name] = Bridge(self._nodes[name], self._named(name, (name, ""), name))
        return self._nodes[name]

    def _is_bridge(self, name: str) -> bool:
        lab, own = self._lab, self._lab.nodes.get(name) or {}
        group = (lab.groups or {}).get(str(own.get("group"))) or {}
        kind = own.get("kind") or group.get("kind") or (lab.defaults or {}).get("kind")
        return name == MANAGEMENT or kind in BRIDGES

    def _interface(self, end: _End) -> str:
        return self._named(end.node, (end.node, end.interface), end.interface)

    def _named(self, node: str, key: tuple[str, str], wanted: str) -> str:
        taken = self._taken.setdefault(node, {})
        if key in taken:
            raise ValueError(f"{node}:{wanted} has another link already")
        taken[key] = self._names[node].new(wanted)
        return taken[key]

    def _address(self, segment: str, at: str) -> str:
        if segment not in self._of_segment:
            subnet = next(self._subnets, None)
            if subnet is None:
                raise ValueError(f"there are more links than subnets of {ADDRESSES}")
            self._of_segment[segment] = (f"{host}/{subnet.prefixlen}" for host in subnet.hosts())
        address = next(self._of_segment[segment], None)
        if address is None:
            raise ValueError(f"more than 254 interfaces are on one link with {at}")
        self._segments.setdefault(segment, []).append(at)
        return address

    def _cable_end(self, end: _End, segment: str) -> CableEnd:
        at, bridge = self._node(end.node), self._bridges.get(end.node)
        address = None if bridge else self._address(segment, at)
        return CableEnd(at, self._interface(end), address, None if bridge is None else bridge.name, _mac(end))

    def _outward(self, interface: str, address: str | None = None, far: str | None = None) -> tuple[str, str]:
        """Return an interface of the host, behind which is what the file does not have."""
        if (HOST, interface) not in self._taken.get(HOST, {}):
            own = CableEnd(self._node(HOST), self._interface(_End(HOST, interface)), address)
            other = CableEnd(self._node(OUTSIDE), self._interface(_End(OUTSIDE, f"far-{interface}")), far)
            self._links.append(Cable(own, other))
        return self._nodes[HOST], self._taken[HOST][HOST, interface]

    def _tunnel(self, end: _End, link: _Link) -> None:
        """Add a VXLAN from the host to its remote, which a bridge joins with the link of the node."""
        remote = ip_address(link.remote)
        length = remote.max_prefixlen - 1
        own = next(one for one in ip_network(f"{remote}/{length}", strict=False) if one != remote)
        self._outward(f"to-{remote}", f"{own}/{length}", f"{remote}/{length}")
        name = f"vxlan{link.vni}"
        bridge = Bridge(self._nodes[HOST], self._named(HOST, (HOST, f"bridge of {name}"), f"br-{name}"))
        self._bridges[f"{bridge.at} {bridge.name}"] = bridge
        port = CableEnd(
            bridge.at, self._named(HOST, (HOST, f"port of {name}"), f"{name}-port"), None, bridge.name
        )
        tunnel = self._named(HOST, (HOST, name), name)
        self._links.append(Cable(self._cable_end(end, name), port, link.mtu))
        self._links.append(
            Tunnel(
                "vxlan", bridge.at, tunnel, str(remote), id=link.vni, port=link.udp_port, master=bridge.name
            )
        )


def _mac(end: _End) -> str | None:
    return None if end.mac is None else end.mac.lower()
