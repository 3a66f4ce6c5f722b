"""Write an existing network as a network of parts, which can be built again, and say what the copy lacks.

The copy is built once, without traffic. What it then has otherwise than the original (offloads, sysctls, rules) becomes
further parts. They are tried on this copy, so this kernel takes them, but for the queues, which are part of cables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any, get_args

import msgspec

from labkit.common import existing_names, units
from labkit.common.errors import BadInput, Failed, LabkitError
from labkit.common.topology_state import RULE, InterfaceState, State, TunnelState
from labkit.common.topology_state import Namespace as NamespaceState
from labkit.measure import topologies
from labkit.measure.endpoints import Namespace
from labkit.measure.endpoints.namespace import first_sysctls
from labkit.measure.existing.network import ExistingNetwork
from labkit.measure.existing.spaces import STATIC, programs
from labkit.measure.topologies import Network
from labkit.measure.topologies.network import impairments, parts, settings
from labkit.measure.topologies.network.kinds import KINDS, MACSEC_CIPHERS, cables, tunnels, uppers
from labkit.measure.topologies.network.model import ShortNames
from labkit.system import machine, netlink
from labkit.system.machine import netfilter
from labkit.system.machine.printed import Printed, entries
from labkit.system.machine.settings import STATES, flat, sysctls
from labkit.system.netlink import ethtool

Ports = dict[str, dict[str, Any]]  # settings of bridges and their ports by the names of interfaces
KEPT_PORT_SETTINGS = {
    *get_args(parts.PortOption), "hairpin", "state", "priority", "cost", "fastleave", "proxy_arp", "mcast_to_unicast",
    "multicast_router", "locked", "mab", "stp_state", "ageing_time", "vlan_filtering", "vlan_protocol",
    "vlan_default_pvid", "mcast_snooping", "mcast_querier", "group_fwd_mask", "fdb_max_learned",
}  # fmt: skip
# What `ip` prints of a namespace and should print of its copy.
PRINTED = {
    "routes": ("-4 route show table all", "-6 route show table all"),
    "rules of routing": ("-4 rule show", "-6 rule show"),
    "policies of IPsec": ("xfrm policy show",),
    "permanent neighbours": ("neighbour show nud permanent",),
}
STATIC_ENTRIES = "static entries of forwarding databases"
NEIGHBOUR = re.compile(r"^(\S+) dev (\S+) lladdr (\S+) PERMANENT$", re.MULTILINE)
# Words of these lines that each copy chooses, or that limit nothing, and what follows from addresses.
CHOSEN = re.compile(
    r" (proto (?!esp|ah|comp|tcp|udp|sctp|icmp|ipv6)\w+|pref medium|onlink|nhid \d+|linkdown|dead|expires \w+"
    r"|(reqid|spi) \w+(\(\w+\))?)(?= |$)"
)
# Routes that the kernel derived from addresses, and nobody gave a limit or a metric.
DERIVED = re.compile(
    r" proto kernel( (scope|src|pref|expires) \S+| metric (0|256)| linkdown| dead)*$|^local fe80:"
)
FLAGS = ("NOARP", "PROMISC", "ALLMULTI")
OFF = ("off", "False")  # as versions of `ip -j` print a flag
# Fields of `ip -d link` that are not the interface's own, are copied, or depend on who looks.
OTHER_FIELDS = STATES | {
    "mtu", "min_mtu", "max_mtu", "promiscuity", "allmulti", "group", "ifalias", "altnames", "inet6_addr_gen_mode",
    "master", "xdp", "linkmode", "info_slave_kind", "info_slave_data", "usedbcqueuelen",
}  # fmt: skip
MOST = 6  # lines in a sentence
OUTSIDE = "outside"  # the node at the far end of a NIC, whose real one is not on this machine
FORWARDING = ("/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding")
PLAIN_TABLE = r"table [a-z0-9]+ [A-Za-z0-9_][A-Za-z0-9_.-]*"
# Rules of iptables-nft that nft shows and does not read, as its own words for a match or a target of iptables.
FOREIGN_RULE = re.compile(r"\bxt (match|target)\b|# (match|target|xt)")
# What sysctls other than those of an interface itself say of it, or of all.
UNSEEN_SYSCTLS = re.compile(
    r"net\.ipv[46]\.(conf\.(default|lo)\.|neigh\.|ip_forward$)|net\.netfilter\.nf_log"
)


class Facts(msgspec.Struct, frozen=True):
    """What a namespace has beside its state, as plain values, which also come from another machine.

    `forwards`: packets of the path's version of IP. `others`: the interfaces that are not on the path, with their
    addresses. `ports`: bridges and their ports (`_ports`). `queues`: by interface, what `tc -j qdisc show` prints.
    `attached`: by interface, the programs and filters that see its packets. `links`: by interface, fields of
    `ip -d link`. `printed`: lines by what they are (PRINTED, STATIC_ENTRIES). `quota_cpus`: of a process there
    (`_quota_cpus`). `tables`: those of nftables as nft(8) lists them, by their names. `unread`: of rules that it does
    not list, the reason.
    """

    forwards: bool
    others: dict[str, list[str]]
    ports: Ports
    queues: dict[str, list[dict[str, Any]]]
    attached: dict[str, list[str]]
    links: dict[str, dict[str, str]]
    printed: dict[str, list[str]]
    quota_cpus: float | None
    sysctls: dict[str, str]
    tables: dict[str, str]
    unread: dict[str, str]


def facts(path: ExistingNetwork) -> dict[str, Facts]:
    """Return what the namespaces of a path have, by their names."""
    forwarding = FORWARDING[":" in path.pair.server.address]
    result: dict[str, Facts] = {}
    for space, state in zip(path.topology.namespaces, path.state.namespaces, strict=True):
        names = {one.name for one in state.interfaces}
        tables, unread = _tables(space) if any(map(netfilter.is_nftables, state.rules)) else ({}, {})
        printed = Printed(space.run)
        result[space.name] = Facts(
            forwards=space.read(forwarding).strip() == "1",
            others=_others(space, names),
            ports=_ports(printed),
            queues=printed.qdiscs,
            attached={one.name: _attached(space.fd, printed, one) for one in state.interfaces if one.index},
            links=_links(printed),
            printed=_printed(printed),
            quota_cpus=_quota_cpus(path.pids.get(space.name)),
            sysctls=_sysctls(space),
            tables=tables,
            unread=unread,
        )
    return result


def cloned(state: State, of: Mapping[str, Facts], gap: str | None, name: str) -> dict[str, Any]:
    """Return a network like an existing one (`network`), and a sentence about each thing that it lacks (`lacks`).

    of: the facts of each namespace of the state that is to have them. gap: as of `ExistingNetwork`.

    Raises BadInput if labkit cannot build such a network, and the errors of `topologies.build_network`.
    """
    copy = _Copy(state, of)
    client, server = state.pairs[0]
    every = copy.as_parts({OUTSIDE, *(at for at, one in of.items() if one.forwards)})
    ends_reached = ((state.forward, server), (state.back, client))
    if gap and any(not way or way[-1].namespace != end.namespace for way, end in ends_reached):
        copy.lacks.append(f"what is behind the end of the visible path: {gap}")
    ends = (copy.nodes[client.namespace], copy.nodes[server.namespace])
    mtu_bytes = next(one.mtu_bytes for one in copy.interfaces.values() if one.addresses)
    network = Network(name, tuple(every), (ends,), mtu_bytes)
    try:
        topologies.check_network(network)
    except BadInput:  # the real one may lose packets
        network = msgspec.structs.replace(network, as_is=True)
        topologies.check_network(network)
    with topologies.build_network(network) as built:
        made = {space.name: space for space in built.namespaces}
        for at, one in of.items():
            every += copy.differences(at, one, made[copy.nodes[at]])
    network = msgspec.structs.replace(network, parts=tuple(every))
    topologies.check_network(network)
    return {"network": msgspec.to_builtins(network), "lacks": list(dict.fromkeys(copy.lacks))}


class _Copy:
    """The parts of a network, by the state of the existing one, and the facts of its namespaces.

    `nodes`: the names of the copy's nodes by those of namespaces. `lacks`: what has no part.
    """

    def __init__(self, state: State, of: Mapping[str, Facts]) -> None:
        self._state = state
        self._ports = {at: one.ports for at, one in of.items()}
        self._links = {at: one.links for at, one in of.items()}
        self.lacks: list[str] = []
        names = ShortNames()
        self.nodes = {space.name: node_name(space.name, names) for space in state.namespaces}
        self.interfaces = {
            (space.name, one.name): one for space in state.namespaces for one in space.interfaces
        }

    def as_parts(self, forwarding: set[str]) -> list[parts.Part]:
        """Return all parts: nodes first, then interfaces in the order in which they can be made, then routes."""
        ends = {end.namespace for pair in self._state.pairs for end in pair}
        result: list[parts.Part] = [
            parts.Node(node, container=name in ends, forwards=name in forwarding and name not in ends)
            for name, node in self.nodes.items()
        ]
        if OUTSIDE not in self.nodes and any(map(self._is_nic, self.interfaces.values())):
            result.append(parts.Node(OUTSIDE))
        of_kind: dict[int, list[parts.Part]] = {}
        for space in self._state.namespaces:
            for one in space.interfaces:
                order, part = self._interface(space, one)
                of_kind.setdefault(order, []).extend([] if part is None else [part])
        result += [part for order in sorted(of_kind) for part in of_kind[order]]
        for space in self._state.namespaces:
            result += self._routes(space)
        of_esp = [key for key, one in self.interfaces.items() if one.mode == "esp"]
        protected = [(self.nodes[at], name) for at, name in of_esp]
        return [*result, parts.Esp(*protected)] if len(protected) == 2 else result

    def _is_nic(self, one: InterfaceState) -> bool:
        return one.kind in ("nic", "dummy") or (one.kind in cables() and not self._is_shown(one))

    def _is_shown(self, one: InterfaceState) -> bool:
        return one.peer is not None and (one.peer.namespace, one.peer.interface) in self.interfaces

    def _interface(self, space: NamespaceState, one: InterfaceState) -> tuple[int, parts.Part | None]:
        """Return the part of an interface, and its place in the order. A cable is that of its first end."""
        at, here = self.nodes[space.name], (space.name, one.name)
        if one.kind == RULE:  # it is one of the node's rules
            return 4, None
        if one.kind == "bridge":
            return 0, parts.Bridge(at, one.name, self._address(space, one), one.mac)
        if self._is_nic(one):
            far = parts.CableEnd(OUTSIDE, f"far{len(self.lacks)}")
            self.lacks.append(
                f"what is behind {one.name} of {space.name}, which is a cable to {OUTSIDE} in the copy"
            )
            return 1, parts.Cable(self._end(space, one), far, one.mtu_bytes)
        if one.kind in cables() and one.peer is not None:
            there = (one.peer.namespace, one.peer.interface)
            if list(self.interfaces).index(there) < list(self.interfaces).index(here):
                return 1, None
            far_space = next(each for each in self._state.namespaces if each.name == there[0])
            far_end = self.interfaces[there]
            both = (one.mtu_bytes, far_end.mtu_bytes)
            mtu_bytes = both if len(set(both)) > 1 else one.mtu_bytes
            mode = str(one.mode) if KINDS[one.kind].modes else None
            return 1, parts.Cable(
                self._end(space, one), self._end(far_space, far_end), mtu_bytes, one.kind, mode
            )
        if one.kind in uppers() and one.lower is not None and one.mode is not None:
            lower = (self.nodes.get(one.lower.namespace, OUTSIDE), one.lower.interface)
            mac = one.mac if one.kind != "ipvlan" else None
            return 2, parts.UpperDevice(
                one.kind, at, one.name, lower, str(one.mode), self._address(space, one), mac
            )
        if one.kind in tunnels() and (remotes := self._remotes(space, one)):
            own = one.tunnel or TunnelState()
            # Permanent neighbours of others have its address.
            mac = one.mac if KINDS[one.kind].carries_frames else None
            return 3, parts.Tunnel(
                one.kind, at, one.name, remotes[0] if len(remotes) == 1 else tuple(remotes), own.local, own.id,
                own.port, address=self._address(space, one), master=one.master, mtu_bytes=one.mtu_bytes, ttl=own.ttl,
                mac=mac, **self._macsec(space, one),
            )  # fmt: skip
        self.lacks.append(f"{one.name} of {space.name}, because labkit copies no {one.kind} of this form")
        return 4, None

    def _macsec(self, space: NamespaceState, one: InterfaceState) -> dict[str, Any]:
        """Return what only a tunnel of MACsec has: its cable and its settings. Nothing reads its keys."""
        if one.kind != "macsec" or one.lower is None:
            return {}
        own = self._links.get(space.name, {}).get(one.name, {})
        result: dict[str, Any] = {"link": one.lower.interface, "encrypts": own.get("encrypt") not in OFF}
        if own.get("cipher_suite") in MACSEC_CIPHERS:
            result["cipher"] = own["cipher_suite"]
        if own.get("replay_protect", "off") not in OFF and "window" in own:
            result["replay_window"] = int(own["window"])
        return result

    def _remotes(self, space: NamespaceState, one: InterfaceState) -> list[str]:
        """Return the remotes of a tunnel that are in the copy; all if it has one, or none of them is.

        MACsec has no remotes. Its one is an address of the node at the other end of the cable, if that has MACsec, too.
        """
        if one.kind == "macsec" and one.lower is not None and one.lower.namespace == space.name:
            lower = self.interfaces.get((space.name, one.lower.interface))
            far = None if lower is None else lower.peer
            every = self.interfaces.items() if far is not None else ()
            ends = [at for (at, _), each in every if (each.kind, each.lower) == ("macsec", far)]
            there = (self._copied_address(each) for (at, name), each in every if at in ends and name != "lo")
            return [str(ip_interface(address).ip) for address in there if address][:1]
        remotes = one.tunnel.remotes if one.tunnel is not None else []
        known = {str(ip_interface(each).ip) for other in self.interfaces.values() for each in other.addresses}
        kept = [to for to in remotes if to in known]
        if len(remotes) < 2 or not kept:
            return remotes
        gone = [to for to in remotes if to not in known]
        self.lacks += [f"what is at {to}, another end of {one.name} of {space.name}" for to in gone]
        return kept

    def _end(self, space: NamespaceState, one: InterfaceState) -> parts.CableEnd:
        mac = one.mac if one.mode != "l3" else None  # a netkit in layer 3 mode takes none
        hairpin = bool(self._ports.get(space.name, {}).get(one.name, {}).get("hairpin"))
        return parts.CableEnd(
            self.nodes[space.name], one.name, self._address(space, one), one.master, mac, hairpin
        )

    def _address(self, space: NamespaceState, one: InterfaceState) -> str | None:
        address = self._copied_address(one)
        usable = [each for each in one.addresses if not ip_interface(each).is_link_local]
        if others := [each for each in usable if each != address]:
            self.lacks.append(f"further addresses of {one.name} of {space.name}: {', '.join(others)}")
        return address

    def _copied_address(self, one: InterfaceState) -> str | None:
        family = 6 if ":" in self._state.pairs[0][1].address else 4
        for address in one.addresses:
            own = ip_interface(address)
            if own.version == family and not own.is_link_local:
                return address
        return None

    def _routes(self, space: NamespaceState) -> Iterator[parts.Route]:
        family = 6 if ":" in self._state.pairs[0][1].address else 4
        for route in space.routes:
            hops = (hop.via for hop in route.hops if hop.via is not None)
            # A copy resolves the address itself where a route of IPv4 has a gateway of IPv6 (RFC 5549).
            vias = tuple(one for one in hops if route.to == "default" or (":" in one) == (":" in route.to))
            version = ip_interface((*vias, route.to)[0].replace("default", "::")).version
            every = ((field, route.limits.get(name)) for field, name in parts.ROUTE_LIMITS.items())
            limits: dict[str, Any] = {field: value for field, value in every if value}
            if version == family and (limits or not route.connected):
                copied = [*map(ip_interface, filter(None, map(self._copied_address, space.interfaces)))]
                known = all(any(ip_address(via) in each.network for each in copied) for via in vias)
                out = route.hops[0].interface if not vias or (not known and len(vias) == 1) else None
                via = vias[0] if len(vias) == 1 else vias
                if route.source in [str(each.ip) for each in copied]:
                    limits["source"] = route.source
                # The copy's kernel makes a route to its subnet, without a metric: that one gets the limits.
                is_only = not vias and [one.to for one in space.routes].count(route.to) == 1
                at = (one for one in space.interfaces if one.name == route.hops[0].interface)
                addresses = [*map(ip_interface, filter(None, map(self._copied_address, at)))]
                own = is_only and route.to in [str(each.network) for each in addresses]
                metric = None if own else route.metric
                yield parts.Route(self.nodes[space.name], route.to, via, out, metric, **limits)

    def differences(self, at: str, was: Facts, made: Namespace) -> Iterator[parts.Part]:
        """Yield what makes a node of the built copy like a namespace of the original, as far as it can be made."""
        [state] = (each for each in self._state.namespaces if each.name == at)
        links = {link.name: link for link in netlink.links(made.netlink)}
        now = Printed(made.run)
        made_links = _links(now)
        if at in [end.namespace for end in self._state.pairs[0]]:
            others = {name: " ".join(on) for name, on in was.others.items() if on or name not in links}
            self._list(
                f"interfaces of {at} that are not on the path",
                [" ".join(one).strip() for one in others.items()],
            )
            if was.quota_cpus is not None:
                self.lacks.append(f"the CPU quota of the programs of {at}: {was.quota_cpus:.3g} CPUs")
        for one in (each for each in state.interfaces if each.name in links):
            self.lacks += [f"{what} of {one.name} of {at}" for what in was.attached.get(one.name, ())]
            own, there = was.links.get(one.name, {}), made_links.get(one.name, {})
            differ = {key: value for key, value in own.items() if there.get(key) != value}
            limits = {name: int(differ.pop(name)) for name in parts.LINK_LIMITS if name in differ}
            if own.get("linkinfo info_kind") == there.get("linkinfo info_kind"):
                self._list(f"settings of {one.name} of {at}", [" ".join(pair) for pair in differ.items()])
            if links[one.name].mtu_bytes != one.mtu_bytes:
                self.lacks.append(f"the MTU of {one.name} of {at}, {one.mtu_bytes} bytes")
            if not one.up:
                self.lacks.append(f"that {one.name} of {at} is down")
            elif one.qdisc != made.qdisc(one.name, links[one.name].index):
                queues = was.queues.get(one.name, [])
                try:
                    yield _impairment(made.name, one, queues)
                    self._list(f"the limit of netem of {one.name} of {at}", _limits(queues))
                except (ValueError, KeyError):
                    words = f"tc qdisc show dev {one.name} has its options"
                    self.lacks.append(f"the qdisc {one.qdisc} of {one.name} of {at}: {words}")
            yield from self._offloads(made, one, limits)
        yield from self._bridge_ports(at, was, _ports(now), made)
        yield from self._sysctls(at, was.sysctls, made)
        neighbours = "\n".join(was.printed.get("permanent neighbours", ()))
        for address, out, mac in re.findall(NEIGHBOUR, neighbours):
            part = parts.Neighbour(made.name, out, address, mac)
            if (at, out) in self.interfaces and out in links:
                message = netlink.new_neighbour(links[out].index, address, mac)
                if self._tries(lambda *_given, message=message: made.netlink.do(message), part, made):
                    yield part
        printed = _printed(now)
        for what, lines in was.printed.items():
            self._list(f"{what} of {at}", [one for one in lines if one not in printed.get(what, ())])
        yield from self._rules(at, was, made)
        if legacy := [name for name in state.rules if not netfilter.is_nftables(name)]:
            self.lacks.append(f"the rules of {', '.join(legacy)} of {at}: iptables-legacy-save shows them")

    def _list(self, what: str, lines: list[str]) -> None:
        self.lacks += [f"{what}: {units.shortened(lines, MOST, '; ')}"] if lines else []

    def _tries(self, apply: Any, part: parts.Part, made: Namespace) -> bool:
        """Apply a part to the copy; say what it lacks if that is refused."""
        try:
            apply(part, made)
        except LabkitError as error:
            self.lacks.append(f"what cannot be applied to a copy: {error}")
            return False
        return True

    def _offloads(self, made: Namespace, one: InterfaceState, limits: dict[str, int]) -> Iterator[parts.Part]:
        """Yield the offloads and limits that the copy takes. They are tried one by one: it may refuse some of them."""
        now, was = made.offloads(one.name), one.offloads
        differ = [
            (short, was[name])
            for short, name in ((short, ethtool.SHORT_NAMES[short]) for short in get_args(parts.OffloadName))
            if name in was
            and was[name] != now.get(name)
            and one.kind != "bridge"  # which has those of its ports
        ]
        off, on = (tuple(short for short, value in differ if value == wanted) for wanted in (False, True))
        tried: list[dict[str, Any]] = [{"disable": off, "enable": on}] if differ else []
        kept: dict[str, Any] = {}
        for given in [*tried, *({name: value} for name, value in limits.items())]:
            if self._tries(settings.set_offloads, parts.Offloads(made.name, one.name, **given), made):
                kept |= given
        if kept:
            yield parts.Offloads(made.name, one.name, **kept)

    def _bridge_ports(self, at: str, was: Facts, now: Ports, made: Namespace) -> Iterator[parts.Part]:
        """Yield the settings of bridges and their ports that differ from those of the copy, `now`."""
        for name, own in was.ports.items():
            differ = {key for key in own if name in now and own[key] != now[name].get(key)}
            options = differ.intersection(get_args(parts.PortOption))
            off, on = (
                tuple(key for key in get_args(parts.PortOption) if key in differ and own[key] is value)
                for value in (False, True)
            )
            filters = bool(own.get("vlan_filtering"))
            vlans = tuple(parts.Vlan(*one) for one in own["vlans"]) if "vlans" in differ or filters else None
            part = parts.BridgePort(made.name, name, off, on, vlans, filters)
            if (options or vlans is not None or filters) and self._tries(settings.set_port, part, made):
                yield part
            if others := sorted(differ - options - {"vlans", "vlan_filtering"}):
                words = ", ".join(f"{key} {own[key]}" for key in others)
                self.lacks.append(f"settings of the bridge or port {name} of {at}: {words}")

    def _sysctls(self, at: str, there: Mapping[str, str], made: Namespace) -> Iterator[parts.Part]:
        here = _sysctls(made)
        own = {name.rpartition("/")[2] for family in (4, 6) for name in first_sysctls(family)}
        others = []
        # Some of all interfaces set those of each. The lower limit of fragments is at most the upper one.
        both = there.keys() & here.keys()
        lowered = {one for one in both if "frag_low" in one and int(there[one]) < int(here[one])}
        for name in sorted(both, key=lambda one: (".all." not in one, one not in lowered, one)):
            if there[name] == here[name] or UNSEEN_SYSCTLS.match(name):
                continue
            value = there[name]
            part = parts.Sysctl(made.name, name, int(value) if re.fullmatch(r"-?\d+", value) else value)
            if settings.is_allowed(part):
                if self._tries(settings.set_sysctl, part, made):
                    here |= _sysctls(made) if ".all." in name else {}
                    yield part
            elif name.rpartition(".")[2] not in own and not name.startswith("net.ipv6.conf."):
                others.append(f"{name}={value}")
        if others:
            self.lacks.append(f"sysctls of {at} that no network can have: {', '.join(others)}")

    def _rules(self, at: str, was: Facts, made: Namespace) -> Iterator[parts.Part]:
        texts = []
        self.lacks += [f"the {what} of {at}: {reason}" for what, reason in was.unread.items()]
        for table, listed in was.tables.items():
            text, foreign = _table(listed)
            if foreign:
                self.lacks.append(f"{foreign} rules of the {table} of {at}, which only iptables can load")
            if self._tries(settings.load_rules, parts.Rules(made.name, text), made):
                texts.append(text)
        if texts:
            yield parts.Rules(made.name, "".join(texts))


def node_name(name: str, names: ShortNames | None = None) -> str:
    """Return the name of a namespace as a node has it: without its kind; `ssh:a/host` is `a`."""
    machine, _, own = name.rpartition("/")
    if machine and own == existing_names.HOST:
        own = machine.removeprefix("ssh:")
    return (names or ShortNames()).new(re.sub(r"^(container|netns):", "", own))


def _others(space: Namespace, names: Collection[str]) -> dict[str, list[str]]:
    """Return all interfaces but these, with the addresses that others may use."""
    links = {link.index: link.name for link in netlink.links(space.netlink)}
    result: dict[str, list[str]] = {name: [] for name in links.values() if name not in names}
    for index, address in netlink.addresses(space.netlink):
        usable = not (ip_interface(address).is_loopback or ip_interface(address).is_link_local)
        if usable and links.get(index) in result:
            result[links[index]].append(address)
    return result


def _attached(fd: int, printed: Printed, one: InterfaceState) -> list[str]:
    result = [f"the BPF program at {hook}" for hook in programs(fd, printed, one.name, one.index)]
    for side, text in printed.filters(one.name).items():
        if kinds := set(re.findall(r"^filter .*?\bpref \d+ (\w+)", text, re.MULTILINE)) - {"bpf"}:
            result.append(f"tc's filters ({', '.join(sorted(kinds))}) at {side or 'the root qdisc'}")
    return result


def _links(printed: Printed) -> dict[str, dict[str, str]]:
    result = {}
    for one in printed.links:
        if (info := one.get("linkinfo", {})).get("info_kind") == "bridge":  # `_ports` has its data
            one = {**one, "linkinfo": {**info, "info_data": {}}}
        flags = " ".join(flag for flag in FLAGS if flag in one.get("flags", ()))
        result[str(one.get("ifname"))] = {
            **{key.removeprefix("linkinfo info_data "): value for key, value in flat(one, OTHER_FIELDS)},
            "flags": flags,
        }
    return result


def _printed(printed: Printed) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for what, commands in PRINTED.items():
        lines = (line for words in commands for line in entries(printed.text("ip", *words.split())))
        result[what] = [CHOSEN.sub("", line) for line in lines if not DERIVED.search(line)]
    own = {one.get("ifname"): one.get("address") for one in printed.links}  # each port has an entry for it
    result[STATIC_ENTRIES] = [
        f"{one['mac']} at {one['ifname']}"
        for one in printed.objects("bridge", "-j", "fdb", "show")
        if one.get("master") and one.get("state") in STATIC and own.get(one["ifname"]) != one["mac"]
    ]
    return result


def _quota_cpus(pid: int | None) -> float | None:
    """Return the CPU quota of a process; None without one, or if this process has the same."""
    with suppress(OSError):  # it has ended
        quota = None if pid is None else machine.quota_cpus(pid)
        return None if quota == machine.quota_cpus() else quota
    return None


def _tables(space: Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Return the tables of nftables as nft(8) lists them, and why it does not list others, by their names."""
    tables, unread = dict[str, str](), dict[str, str]()
    try:
        names = _listed(space, "list", "tables").splitlines()
    except LabkitError as error:
        return {}, {"rules": str(error)}
    for name in names:
        try:
            if re.fullmatch(PLAIN_TABLE, name):
                tables[name] = _listed(space, "-s", "list", *name.split())
            else:
                unread[name] = "nft would read its name as more than a name"
        except LabkitError as error:
            unread[name] = str(error)
    return tables, unread


def _ports(printed: Printed) -> Ports:
    """Return the settings of bridges and of their ports by the names of interfaces, as `ip -d -j` and `bridge -j` print
    them, and the VLANs: number, whether of untagged frames that arrive, and whether they leave untagged."""
    result: Ports = {}
    for one in printed.links:
        info = one.get("linkinfo", {})
        for kind, data in (("info_kind", "info_data"), ("info_slave_kind", "info_slave_data")):
            if info.get(kind) == "bridge":
                kept = {
                    key: value
                    for key, value in info.get(data, {}).items()
                    if key in KEPT_PORT_SETTINGS and value != "forwarding"
                }
                result.setdefault(str(one["ifname"]), {"vlans": []}).update(kept)
    for name, numbers in printed.vlans.items() if result else ():
        if name in result:
            result[name]["vlans"] = [[number, *flags] for number, flags in numbers.items()]
    return result


def _sysctls(space: Namespace) -> dict[str, str]:
    with netlink.inside(space.fd):
        return dict(sysctls(Path("/proc/sys"), ("net",)))


def _listed(space: Namespace, *words: str) -> str:
    """Return what nft(8) lists. Raises Failed with its reason, Unsupported without nft(8)."""
    ended = space.run("nft", *words)
    if ended.returncode:
        raise Failed(ended.message())
    return ended.stdout


def _table(listed: str) -> tuple[str, int]:
    """Return a table without the rules that nft lists but cannot load, and the number of these rules."""
    lines = [line.rstrip().expandtabs(4) for line in listed.splitlines() if not line.startswith("#")]
    kept = [line for line in lines if not FOREIGN_RULE.search(line)]
    return "\n".join(kept) + "\n", len(lines) - len(kept)


def _is_set(option: Any) -> bool:
    """Return whether an option, or one inside it, has a value: `tc -j` prints false and 0 of those that nobody set."""
    return any(map(_is_set, option.values())) if isinstance(option, dict) else bool(option)


def _limits(shown: list[dict[str, Any]]) -> list[str]:
    """Return how many packets netem holds. What a copy's holds is no limit, but 1,000 packets in 0.1 s may be one."""
    delayed = (one.get("options", {}) for one in shown if one["kind"] == "netem")
    held = [int(one.get("limit", 0)) for one in delayed if "delay" in one]
    return [f"{count} packets" for count in held if 0 < count < impairments.LIMIT]


def _impairment(at: str, one: InterfaceState, shown: list[dict[str, Any]]) -> parts.Impairment:
    """Return the queueing discipline of an interface, as `tc -j qdisc show` prints it, as an impairment.

    Raises ValueError or KeyError for one that no impairment is.
    """
    [only] = (each for each in shown if each["kind"] not in ("ingress", "clsact"))
    kind, options = str(only["kind"]), dict(only.get("options") or {})
    given: dict[str, Any] = {}
    if kind == "tbf":
        given = {"rate_bps": 8 * options.pop("rate"), "burst_bytes": options.pop("burst")}
        given["queue_s"] = options.pop("lat") / 1e6
    elif kind == "pfifo":
        given = {"queue_packets": options.pop("limit")}
    elif kind == "netem":
        options = {name: value for name, value in options.items() if name not in ("seed", "limit")}
        if "reorder" in options and options.get("gap") == 1:  # which is what reorder means without a gap
            del options["gap"]
        delay = options.get("delay", {})
        given = {"delay_s": delay.pop("delay", 0.0), "jitter_s": delay.pop("jitter", 0.0)}
        for word, name in (("loss-random", "loss"), ("duplicate", "duplicate"), ("reorder", "reorder")):
            given[name] = options.get(word, {}).pop(name, 0.0)
    if not given or _is_set(options) or one.kind not in cables():
        raise ValueError(kind)
    try:
        return msgspec.convert(
            {"type": "impairment", "at": at, "interface": one.name, **given}, parts.Impairment
        )
    except msgspec.ValidationError as error:
        raise ValueError(kind) from error
