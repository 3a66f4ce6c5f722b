"""What keeps packets from arriving: routes, forwarding, interfaces, bridges, addresses, neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address, ip_network
from itertools import pairwise

from labkit.common import units
from labkit.common.errors import LabkitError
from labkit.measure.existing.checks import rules
from labkit.measure.existing.checks.evidence import Evidence
from labkit.measure.existing.checks.findings import (
    ALL,
    LITTLE,
    MOST,
    MUCH,
    POSSIBLE,
    PRESENT,
    SEEN,
    SOME,
    Finding,
)
from labkit.measure.existing.path import PRIVATE, Path
from labkit.measure.existing.spaces import NO_MAC, STATIC, UPPERS, Place
from labkit.measure.topologies.network.kinds import KINDS, cables
from labkit.measure.topologies.state.packet_path import OUT
from labkit.system import netlink
from labkit.system.netlink import encryption

FORWARDING = "forwarding"
SILENT = 8  # the value of arp_ignore with which an interface answers no request
# Options of a bridge's port (ip-link(8)) with what their unusual value does; all but `locked` are on by default.
PORT_OPTIONS = {"learning": "learns no addresses", "flood": "gets no frames to unknown addresses",
                "bcast_flood": "gets no broadcasts, as ARP sends",
                "mcast_flood": "gets no multicasts, as IPv6 sends to find neighbours",
                "locked": "takes no frames from addresses that nobody entered for it"}  # fmt: skip
FLOODED = {"bcast_flood": 4, "mcast_flood": 6}  # with which version of IP neighbours are found so
_SELECTOR = re.compile(r"(\S+) dst (\S+)")
_TEMPLATE = re.compile(r"tmpl src (\S+) dst (\S+)")
_INTERFACE_ID = re.compile(r" if_id (\S+)")
_FLOW = re.compile(r"in_port\((?P<port>[^)]+)\).* packets:(?P<count>[1-9]\d*),.* actions:drop")


def paths(seen: Evidence) -> Iterator[Finding]:
    """Why a path ends: missing routes, forwarding, the reverse path filter, nobody with the next address."""
    for path, probe in seen.directions:
        if probe.arrives and (path.published is None or seen.connects):
            continue
        for one in path.problems:
            yield Finding(
                cause=one.cause, what=one.what, where=one.where, certainty=SEEN, weight=ALL, undo=one.undo,
                cost=None if probe.arrives else f"nothing from {path.source} arrives at {path.destination}",
            )  # fmt: skip


def next_hops(seen: Evidence) -> Iterator[Finding]:
    """Routes with several next hops, of which some do not answer: the kernel chooses one for each flow."""
    for path in (one for along, _probe in seen.directions for one in (along, *along.outer)):
        for space, into in path.routers.items():
            try:
                kernel = space.namespace.netlink
                mark = 0 if into else path.mark
                route = netlink.route_to(kernel, path.destination, path.source or None, into, mark, True)
            except netlink.LinkError:  # `paths` says why
                continue
            hops = [
                (one.via, Place(space, one.index))
                for one in route.hops
                if one.via and one.index in space.links and "dead" not in (one.state or "")
            ]
            every = {f"{via} dev {out.name}": _dead(path, out, via) for via, out in hops}
            dead = {name: certain for name, certain in every.items() if certain}
            if dead and len(route.hops) > 1:
                is_seen = SEEN in dead.values() and (seen.blocked or seen.lossy)
                yield Finding(
                    cause="dead next hop", certainty=SEEN if is_seen else PRESENT, weight=ALL, where=space.name,
                    what=f"of the {len(route.hops)} next hops of the route to {path.destination}, these do not answer:"
                    f" {', '.join(dead)}",
                    undo=space.command(f"ip route show {route.to}  # then replace the route without what is dead"),
                )  # fmt: skip


def _dead(path: Path, out: Place, via: str) -> str:
    """Return how certain it is that a next hop does not answer: SEEN if the kernel asked in vain, PRESENT if nobody on
    a link of the path has its address (one with a NIC may have others), "" if neither is known, or if the kernel leaves
    out what does not answer (fib_multipath_use_neigh)."""
    if rules.unanswered(out, via):
        return "" if out.space.number("net/ipv4/fib_multipath_use_neigh") else SEEN
    domain = next((one for one in path.domains if one[0] == out), [])
    return PRESENT if domain and all(one.link.kind and not one.owns(via) for one in domain) else ""


def filtered(seen: Evidence) -> Iterator[Finding]:
    """Packets that the reverse path filter dropped, which are others' if fewer than half of those that were lost."""
    for space in seen.spaces:
        if count := seen.mib(space, "TcpExt", "IPReversePathFilter"):
            is_own = 2 * count >= seen.lost_count > 0
            yield Finding(
                cause="reverse path filter",
                what=f"the reverse path filter (rp_filter) dropped {count} packets during the check: their way back is"
                " over another interface",
                where=space.name, certainty=SEEN if is_own else POSSIBLE,
                weight=SOME if not is_own else ALL if seen.blocked else MUCH,
                undo=space.command("sysctl -w net.ipv4.conf.all.rp_filter=2"),
            )  # fmt: skip


def asymmetric(seen: Evidence) -> Iterator[Finding]:
    """Ways back that differ, which rules with states and filters of the reverse path may refuse."""
    forward, back = seen.forward, seen.back
    only = [place for place in forward.places if place not in back.places]
    instead = [place for place in back.places if place not in forward.places]
    if only and instead and forward.complete and back.complete:
        yield Finding(
            cause="asymmetric routes", certainty=POSSIBLE, weight=LITTLE, where=str(instead[0]),
            what=f"packets to {forward.destination} pass {only[-1]}, and those back pass {instead[0]}",
            cost="rules that know connections see one direction only",
        )  # fmt: skip


def interfaces(seen: Evidence) -> Iterator[Finding]:
    """Interfaces of the path, or with an address at an end, that are down, have no carrier, or use no ARP."""
    both = (seen.client, seen.server)
    ends = [end.space.place(end.address) for end in both if end.address in end.space.addresses]
    for place in dict.fromkeys([*seen.places, *ends]):
        link, certain = place.link, SEEN if seen.blocked else PRESENT
        if not link.up:
            yield Finding(
                cause="interface down", what=f"the interface {place.name} is down", where=str(place),
                certainty=certain, weight=ALL, undo=place.space.command(f"ip link set {place.name} up"),
            )  # fmt: skip
        elif not link.carrier and seen.blocked and link.kind not in ("tun",):
            yield Finding(
                cause="no carrier", what=f"the interface {place.name} has no carrier: its other end is down or missing",
                where=str(place), certainty=SEEN, weight=MOST,
            )  # fmt: skip
        names = ("all", place.name)
        ignoring = {one: place.space.number(f"net/ipv4/conf/{one}/arp_ignore") for one in names}
        ignores, held = max(ignoring.values()), place.space.addresses
        elsewhere = [one.address for one in both if held.get(one.address, place.index) != place.index]
        own = bool(elsewhere and link.master is None and link.kind and ignores)  # as with an address of lo
        if (ignores >= SILENT or own) and seen.blocked and seen.client.version == 4:
            of = f" for {elsewhere[0]}, an address of another interface" if own else ""
            yield Finding(
                cause="ARP off", what=f"{place.name} answers no request of ARP{of} (arp_ignore {ignores})",
                where=str(place), certainty=SEEN, weight=ALL,
                undo=place.space.command(" ".join(["sysctl -w", *(
                    f"net.ipv4.conf.{name.replace('.', '/')}.arp_ignore=0"
                    for name, value in ignoring.items() if value
                )])),
            )  # fmt: skip
        flags = place.details.get("flags", ())
        if "NOARP" in flags and seen.blocked and link.kind in (*cables(), "bridge", "macvlan", "vlan"):
            yield Finding(
                cause="ARP off", what=f"{place.name} uses no ARP, so it finds no neighbours and none find it",
                where=str(place), certainty=SEEN, weight=ALL,
                undo=place.space.command(f"ip link set {place.name} arp on"),
            )  # fmt: skip


def bridges(seen: Evidence) -> Iterator[Finding]:
    """Ports of bridges on the path that do not forward, do not flood, or are isolated, and full tables of them."""
    isolated: dict[tuple[str, str], list[Place]] = {}
    certain = SEEN if seen.blocked else PRESENT
    for place in seen.places:
        details = place.details.get("linkinfo", {})
        port = details.get("info_slave_data", {}) if details.get("info_slave_kind") == "bridge" else {}
        state = str(port.get("state", FORWARDING))
        set_port = place.space.command(f"bridge link set dev {place.name}")
        if state != FORWARDING and place.link.up and place.link.carrier:
            yield Finding(
                cause="bridge port", what=f"the port {place.name} of a bridge does not forward: it is {state}",
                where=str(place), certainty=certain, weight=ALL, undo=f"{set_port} state 3",
            )  # fmt: skip
        for name, why in PORT_OPTIONS.items():
            needed = seen.blocked and FLOODED.get(name, seen.client.version) == seen.client.version
            on = name == "locked"  # the value that is wrong
            if on:  # what arrives has an address that somebody entered
                needed = not all(probe.arrives for _path, probe in seen.directions)
            if port.get(name) is on and (needed or name == "learning"):
                yield Finding(
                    cause="bridge port", where=str(place), certainty=certain,
                    what=f"the port {place.name} of a bridge {why} ({name} {'on' if on else 'off'})",
                    weight=MOST if seen.blocked else SOME, undo=f"{set_port} {name} {'off' if on else 'on'}",
                )  # fmt: skip
        if port.get("isolated"):
            master = str(place.details.get("master"))
            isolated.setdefault((place.space.name, master), []).append(place)
        bridge = details.get("info_data", {}) if details.get("info_kind") == "bridge" else {}
        most, learned = int(bridge.get("fdb_max_learned") or 0), int(bridge.get("fdb_n_learned") or 0)
        count = sum(one.master == place.index for one in place.space.links.values())
        if bridge.get("ageing_time") == 0 and count > 2:  # to the only other one it sends anyway
            yield Finding(
                cause="bridge floods", weight=SOME, where=str(place),
                what=f"the bridge {place.name} forgets addresses at once (ageing 0), so it sends each frame to all of"
                f" its {count} ports",
                undo=place.space.command(f"ip link set {place.name} type bridge ageing_time 30000"),
            )  # fmt: skip
        if most and learned >= most:
            yield Finding(
                cause="forwarding database full",
                what=f"the bridge {place.name} has learned {learned} addresses, which is its limit: it floods frames to"
                " others through every port",
                where=str(place), weight=SOME,
                undo=place.space.command(f"ip link set {place.name} type bridge fdb_max_learned 0"),
            )  # fmt: skip
    for ports in isolated.values():
        if len(ports) > 1:
            names = " and ".join(one.name for one in ports)
            yield Finding(
                cause="isolated ports", what=f"the ports {names} of a bridge are isolated from each other",
                where=str(ports[0]), certainty=certain, weight=ALL,
                undo=ports[0].space.command(f"bridge link set dev {ports[0].name} isolated off"),
            )  # fmt: skip


def forwarding(seen: Evidence) -> Iterator[Finding]:
    """Static entries of a bridge or a VXLAN that send frames elsewhere than to the interface that has their address."""
    for path, _probe in seen.directions if seen.blocked else ():
        owners = [owner for *_hop, owner in path.hops]
        below = [place for one in path.outer for place in one.places]  # where no frame of a tunnel ends
        for number, (at, port) in enumerate(pairwise(path.places), 2):
            later = [one for one in path.places[number:] if at in below or one not in below]
            owner = next((one for one in later if one in owners), None)
            is_port = Place(port.space, port.link.master or 0) == at and at.link.kind == "bridge"
            sends = at.link.kind == "vxlan" and (at, OUT) in path.steps
            if owner is None or not (is_port or sends):
                continue
            mac, right = owner.link.mac, [port.name] if is_port else [one.destination for one in path.outer]
            leads = _leads(at, mac)
            for to, entry in leads.items() if leads.keys().isdisjoint(right) else ():
                yield Finding(
                    cause="forwarding entry", certainty=SEEN, weight=ALL, where=str(at),
                    what=f"a static entry of the {at.link.kind} {at.name} sends frames for {mac} ({owner}) to {to}, not"
                    f" to {units.listed(right)}",
                    undo=at.space.command(f"bridge fdb del {entry}"),
                )  # fmt: skip


def _leads(at: Place, mac: str | None) -> dict[str, str]:
    """Return where static entries of a bridge or a VXLAN send frames for an address, each with the entry's name."""
    result, is_bridge = {}, at.link.kind == "bridge"
    for one in at.space.json("bridge", "-j", "fdb", "show"):
        name, state = str(one.get("ifname")), one.get("state")
        is_own = at.space.details.get(name, {}).get("address") == mac  # of a port, which has one for itself
        of = one.get("master") if is_bridge else one.get("dst") and name
        if of == at.name and one.get("mac") == mac and state in STATIC and not is_own:
            to = str(one.get("dst") or ("itself" if state == "permanent" else name))
            result[to] = f"{mac} dev {name} {'self' if name == at.name else 'master'}"
    return result


def loops(seen: Evidence) -> Iterator[Finding]:
    """Bridges that are joined in a circle, of which none speaks the spanning tree protocol."""
    for path, _probe in seen.directions:
        domains = [place for domain in path.domains for place in domain]
        kinds = {place.link.kind for place in domains}
        speaks = any(place.link.data.get("IFLA_BR_STP_STATE") for place in domains)
        if path.circles and not speaks and not kinds & {"bond", "team", "openvswitch"}:
            yield Finding(
                cause="bridge loop", weight=MOST, certainty=SEEN if seen.lossy or seen.blocked else PRESENT,
                what=f"bridges are joined in a circle at {path.circles[0]}, and none speaks STP: broadcasts never end",
                where=str(path.circles[0]), undo="remove one of the links of the circle, or set stp_state 1",
            )  # fmt: skip


def policies(seen: Evidence) -> Iterator[Finding]:
    """IPsec policies that block packets, or need a security association that does not exist."""
    for space in seen.spaces:
        listed = space.namespace.run("ip", "xfrm", "policy").stdout
        have = {(one.source, one.target) for one in encryption.associations(space.fd)} if listed else set()
        numbers = {one.link.data.get("IFLA_XFRM_IF_ID") for one in seen.places if one.space is space}
        for one in (" ".join(each.split()) for each in re.split("^src ", listed, flags=re.M)):
            # Without addresses, those of the packet are meant; at the level `use`, packets may go without.
            lacks = {*_TEMPLATE.findall(one)} - have if seen.blocked and "level use" not in one else set()
            lacks = {ends for ends in lacks if not ip_address(ends[0]).is_unspecified}
            selected, of_interface = _SELECTOR.match(one), _INTERFACE_ID.search(one)
            stops = bool(lacks) or "action block" in one
            is_other = of_interface and int(of_interface[1], 0) not in numbers  # for another interface
            if selected is None or not stops or is_other or not _selects(seen, *selected.groups()):
                continue
            of_all = one[selected.end() :].startswith(" dir ")  # without a protocol or a device
            why = "needs a security association that does not exist" if lacks else "blocks packets"
            yield Finding(
                cause="IPsec policy", certainty=SEEN if seen.blocked and of_all and " mark " not in one else POSSIBLE,
                what=f"a policy of IPsec {why}: src {one[:120]}", weight=ALL - 0.03, where=space.name,
                undo=space.command("ip xfrm policy  # shows it: delete it"),
            )  # fmt: skip


def handshakes(seen: Evidence) -> Iterator[Finding]:
    """WireGuard interfaces of which no peer has answered lately, where packets do not arrive."""
    for place in (one for one in seen.places if seen.blocked and one.link.kind == "wireguard"):
        with suppress(OSError, netlink.LinkError):  # another user's
            if not encryption.wireguard(place.space.fd, place.index).handshakes:
                yield Finding(
                    cause="WireGuard handshake", certainty=POSSIBLE, weight=MOST, where=str(place),
                    what=f"no peer of {place.name} has answered a handshake in the last {encryption.SESSION_S} s: a key"
                    " is wrong, or the outer packets do not arrive",
                )  # fmt: skip


def _selects(seen: Evidence, source: str, target: str) -> bool:
    """Return whether both networks of a policy have the addresses of a path, or of the outer packets of a tunnel."""
    every = [one for path, _probe in seen.directions for one in (path, *path.outer)]
    ends = [(ip_address(one.source), ip_address(one.destination)) for one in every if one.source]
    networks = [ip_network(each, strict=False) for each in (source, target)]
    return any(one in networks[0] and other in networks[1] for one, other in ends)


def _switch_ports(seen: Evidence) -> set[str]:
    """Return the names of interfaces that may be ports of a switch. If it is in the kernel, only the path's count."""
    ends = {path.places[0] for path, _probe in seen.directions if path.places}
    return {
        one.name
        for path, _probe in seen.directions
        for domain in path.domains
        for one in {*domain} - ends
        if one in path.places or not any(other.link.kind == "openvswitch" for other in domain)
    }


def switches(seen: Evidence) -> Iterator[Finding]:
    """Ports of Open vSwitch at the path's links that are in different VLANs, and its flows that drop what arrives
    there."""
    names, certainty = _switch_ports(seen), SEEN if seen.blocked else POSSIBLE
    for space in (one for one in seen.spaces[:1] if seen.blocked or seen.lossy):
        with suppress(LabkitError):
            ports = space.namespace.run(
                "ovs-vsctl", "-f", "csv", "--no-headings", "--columns=name,tag", "list", "port"
            )
            tags = dict(line.split(",") for line in ports.stdout.splitlines() if line.split(",")[0] in names)
            if len(set(tags.values())) > 1:
                words = units.listed([f"{name} in {tag.replace('[]', 'none')}" for name, tag in tags.items()])
                yield Finding(
                    cause="VLANs differ", certainty=certainty, weight=ALL, where=" and ".join(tags),
                    what=f"ports of Open vSwitch are in different VLANs: {words}",
                    undo=f"ovs-vsctl set port {next(iter(tags))} tag=VLAN",
                )  # fmt: skip
            listed = space.namespace.run("ovs-appctl", "dpctl/dump-flows", "--names").stdout
            for flow in (one for one in _FLOW.finditer(listed) if one["port"] in names):
                yield Finding(
                    cause="Open vSwitch", certainty=certainty, weight=ALL, where=flow["port"],
                    what=f"Open vSwitch dropped {flow['count']} packets that arrived at {flow['port']}",
                    undo="ovs-appctl ofproto/trace BRIDGE FLOW  # shows which of its flows or VLANs drops them",
                )  # fmt: skip


def macvlans(seen: Evidence) -> Iterator[Finding]:
    """Two macvlan devices of one lower device in a mode that keeps them apart."""
    for path, probe in seen.directions:
        for upper in path.places:
            mode = upper.link.data.get("IFLA_MACVLAN_MODE")
            if upper.link.kind == "macvlan" and mode in PRIVATE and not probe.arrives:
                yield Finding(
                    cause="macvlan mode",
                    what=f"{upper.name} is a macvlan in the mode {mode}, which passes nothing to others on its device",
                    where=str(upper), certainty=SEEN, weight=ALL,
                )  # fmt: skip


def _owners(path: Path) -> dict[tuple[Place, str], list[Place]]:
    """Return the interfaces that answer for each next address, by the interface that asks and the address."""
    result: dict[tuple[Place, str], list[Place]] = {}
    for sender, address, owner in path.hops:
        result.setdefault((sender, address), []).append(owner)
    return result


def _ignores(place: Place, address: str) -> bool:
    """Return whether an interface answers no ARP for an address of another one, as those of real servers of LVS."""
    modes = (place.space.number(f"net/ipv4/conf/{one}/arp_ignore") for one in ("all", place.name))
    return ":" not in address and place.space.addresses.get(address) != place.index and max(modes) > 0


def duplicates(seen: Evidence) -> Iterator[Finding]:
    """Addresses and MAC addresses that several interfaces of one link layer have."""
    certain = SEEN if seen.lossy or seen.blocked else PRESENT
    for path, _probe in seen.directions:
        for (_sender, address), found in _owners(path).items():
            names = {str(one.space.name) for one in found if one.link.up and not _ignores(one, address)}
            if len(names) > 1:
                yield Finding(
                    cause="duplicate address",
                    what=f"{len(names)} namespaces on one link have the address {address}: {', '.join(sorted(names))}",
                    where=", ".join(map(str, found)), certainty=certain, weight=MOST,
                )  # fmt: skip
        for domain in path.domains:
            for one, other in _same_macs(seen, list(domain)):
                yield Finding(
                    cause="duplicate MAC address",
                    what=f"{one} and {other} have the same MAC address {one.link.mac}, so a bridge sends frames to one"
                    " of them only",
                    where=str(one), certainty=certain, weight=MOST,
                    undo=other.space.command(f"ip link set {other.name} address NEW"),
                )  # fmt: skip


def _same_macs(seen: Evidence, domain: list[Place]) -> Iterator[tuple[Place, Place]]:
    """Yield pairs of interfaces with the same MAC, of which one is on the path and holds an address. Those that have
    something below both in one namespace share it, as a VLAN does with a bond and its ports."""
    pairs = set[frozenset[Place]]()
    holders = [
        place for place in domain
        if place in seen.places and place.index in place.space.addresses.values() and place.link.kind != "ipvlan"
        and place.link.mac != NO_MAC
    ]  # fmt: skip
    for one in holders:
        for other in (each for each in domain if each.link.kind != "ipvlan"):
            both = ((one, other), (other, one))
            upon = any(a.link.kind in UPPERS and a.link.link == b.index for a, b in both)
            lower = one.link.kind == other.link.kind == "vlan" and one.link.link == other.link.link
            same = other != one and other.link.mac and other.link.mac == one.link.mac and other.link.up
            inside = same and one.space is other.space and _below(one) & _below(other)
            if same and not (upon or lower or inside) and (pair := frozenset((one, other))) not in pairs:
                pairs.add(pair)
                yield min(one, other, key=str), max(one, other, key=str)


def _below(place: Place) -> set[int]:
    """Return an interface and what is below it in its namespace: the ports of a master, the device of an upper one."""
    links, result = place.space.links.values(), {place.index}
    pairs: list[tuple[int | None, int | None]] = [(one.master, one.index) for one in links]
    pairs += [(one.index, one.link) for one in links if one.kind in UPPERS and one.link_netnsid is None]
    while more := {below for above, below in pairs if above in result and below} - result:
        result |= more
    return result


def neighbours(seen: Evidence) -> Iterator[Finding]:
    """Neighbour entries of the path that are wrong or unresolved."""
    for path, probe in seen.directions:
        arrives = probe.arrives
        for (sender, address), found in _owners(path).items():
            owner, known = found[0], (address, sender.name)
            entries = [one for one in sender.space.neighbours if (one.get("dst"), one.get("dev")) == known]
            switch = f"net/ipv{6 if ':' in address else 4}/neigh/{sender.name}/%s_solicit"
            asks = any(sender.space.number(switch % one, default=1) for one in ("mcast", "app"))
            if not (asks or arrives or any("PERMANENT" in one.get("state", ()) for one in entries)):
                yield Finding(
                    cause="missing neighbour", where=str(sender), certainty=SEEN, weight=ALL,
                    what=f"{sender.name} asks nobody for the neighbour {address} (mcast_solicit 0)",
                    undo=sender.space.command(f"sysctl -w {switch % 'mcast'}=3"),
                )  # fmt: skip
            for entry in entries:
                states, mac = entry.get("state", []), entry.get("lladdr")
                owned = {link.mac for one in found for link in one.space.links.values()}
                if mac and owner.link.mac and mac not in owned:
                    yield Finding(
                        cause="wrong neighbour entry",
                        what=f"{sender.name} sends what is for {address} to {mac}"
                        f"{' (a permanent entry)' if 'PERMANENT' in states else ''}, but {owner} has {owner.link.mac}",
                        where=str(sender), certainty=PRESENT if arrives else SEEN, weight=ALL,
                        undo=sender.space.command(f"ip neighbour del {address} dev {sender.name}"),
                    )  # fmt: skip
                elif not arrives and rules.UNANSWERED & set(states):
                    yield Finding(
                        cause="missing neighbour",
                        what=f"{sender.name} asks for the neighbour {address} and gets no answer, although {owner}"
                        f" {'has this address' if owner.owns(address) else 'answers for it'}",
                        where=str(sender), certainty=SEEN, weight=MUCH,
                    )  # fmt: skip


def detection(seen: Evidence) -> Iterator[Finding]:
    """IPv6 addresses whose duplicate detection has failed or not ended."""
    for space in seen.ends:
        for name, one in space.details.items():
            for address in one.get("addr_info", ()):
                used = address.get("local") in (seen.client.address, seen.server.address)
                failed, tentative = address.get("dadfailed"), address.get("tentative")
                if (address.get("scope") == "link" and not failed) or not (failed or tentative):
                    continue
                state = "failed: another interface has it" if failed else "has not ended"
                yield Finding(
                    cause="duplicate address detection",
                    what=f"duplicate address detection of {address.get('local')} {state}, so nothing uses the address",
                    where=f"{space.name} {name}", certainty=SEEN if used and seen.blocked else PRESENT,
                    weight=ALL if used else SOME,
                )  # fmt: skip


def hop_limits(seen: Evidence) -> Iterator[Finding]:
    """A first hop limit, of an end or a tunnel, so small that packets die on the path, or may die beyond it."""
    found = list[tuple[Path, str, str, int, str]]()
    for path in (one for one in (seen.forward, seen.back) if one.places and seen.sends(one)):
        at, out = path.start, path.places[0].name
        name = f"net/ipv6/conf/{out}/hop_limit" if ":" in path.source else "net/ipv4/ip_default_ttl"
        undo = at.command(f"sysctl -w {name}=64")
        limit = path.routes[0][1].metrics.get("hoplimit", 0) if path.routes else 0
        if limit:  # the kernel prefers that of the route
            undo = at.command(f"ip route get {path.destination}  # then replace the route without hoplimit")
        found.append((path, at.name, at.name, limit or at.number(name, default=64), undo))
    for place in seen.places:
        data = KINDS[place.link.kind].tunnel_data if place.link.kind in KINDS else None
        own = [int(place.link.data.get(name) or 0) for name, holds in (data or {}).items() if holds == "ttl"]
        undo = place.space.command(f"ip link set {place.name} type {place.link.kind} ttl 64")
        starts = [one for path, _probe in seen.directions for one in path.outer if one.start is place.space]
        found += [(one, place.name, str(place), limit, undo) for one in starts for limit in own]
    for path, of, where, limit, undo in found:
        if limit > 0 and (certain := rules.ends_hops(seen, path, limit, path.start)):
            count = path.router_count
            routers = units.counted(count, "router") if limit <= count else "routers that are not all known"
            yield Finding(
                cause="hop limit", where=where, certainty=certain, weight=MOST, undo=undo,
                what=f"packets of {of}, which pass {routers}, begin with a hop limit (TTL) of {limit}",
            )  # fmt: skip
