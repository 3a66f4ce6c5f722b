"""The path of packets from one existing end to another through the namespaces of this machine, interface by interface.

A packet is followed as the kernels would forward it. Each namespace is asked for its route to the other end's address.
From the interface of that route, frames are followed through cables, bridges and devices on a lower device, to the
interface that answers for the next hop's address. A tunnel's frames are followed in the same way between its outer
addresses. Nothing is sent, and nothing changed.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from itertools import pairwise

from labkit.common import units
from labkit.common.errors import BadInput, Unsupported
from labkit.measure.existing.spaces import MASTERS, NO_MAC, UPPERS, Place, Space, Spaces
from labkit.measure.topologies.network.kinds import KINDS
from labkit.measure.topologies.state.packet_path import IN, OUT
from labkit.system import netlink

MAX_HOPS, MAX_PLACES = 64, 4096
# The lists of a path, which continue where another one follows it.
JOINED = ("places", "steps", "arrivals", "problems", "domains", "hops", "routes", "circles", "outer")
MOST_PAIRS = 4  # of addresses in a sentence
NEAR = 4  # interfaces of a link that are asked for programs
SHOW_PROGRAMS = "bpftool net show dev "
DEEPEST = 4  # tunnels within tunnels
REFUSALS = {errno.EACCES: "a route prohibits them", errno.EINVAL: "a blackhole route drops them"}
VLAN_PROTOCOLS, DOT1Q = ("IFLA_VLAN_PROTOCOL", "IFLA_BR_VLAN_PROTOCOL"), 0x8100
VLAN_ACTION = re.compile(r"\bvlan +(push|pop|modify)\b")  # as tc(8) prints it
# Modes of macvlan in which two of them do not reach each other
PRIVATE = {"private", "vepa", "source", 1, 2, 16}

# What frames reach, each with the interface before it, and how.
Domain = dict[Place, tuple[Place, str] | None]
# The paths of the outer packets of tunnels, by both ends; None: no end is visible.
Tunnels = dict[tuple[Place, Place | None], "Path"]


@dataclass(frozen=True)
class Problem:
    """Why a path ends, or goes on only in theory: the cause's name, a sentence, where, and a command that helps."""

    cause: str
    what: str
    where: str
    undo: str | None = None


@dataclass(frozen=True)
class PublishedPort:
    """A port of a namespace that leads to an end: a rule of the kernel replaces the address, or a program copies data.

    name: of the rule or the program. what: a sentence about it; "" for a rule that is shown as it is printed.
    address: the end's; "" if it is unknown. listens: the address at which the port is open; None: all of the namespace.
    not_from: packets that arrive at this interface do not match the rule. copies: whether it is a program. enters: the
    end's interface that the program holds open. others: further addresses to which it leads, of which one is chosen at
    random. protocol: which the rule takes, TCP if several.
    """

    space: Space
    port: int
    name: str
    what: str
    address: str = ""
    listens: str | None = None
    not_from: str | None = None
    copies: bool = False
    enters: Place | None = None
    others: tuple[str, ...] = ()
    protocol: str = "tcp"

    def __str__(self) -> str:
        return f"{self.space.name} {self.name}"


@dataclass(frozen=True)
class Exit:
    """Where a path leaves this machine: the interface that routes packets out, and what they pass from there."""

    out: Place
    places: list[Place]
    steps: list[tuple[Place | PublishedPort, str]]


@dataclass
class Path:
    """The path from an address of `start` to another address, which `goal` should have (None: whoever has it).

    depth: within how many tunnels. mark: of the packet where it begins. packet: what else is known of it
    (`rules.may_match`). places: each interface in order, with those of the network below a tunnel. steps: those that
    count packets, each with their direction there (`packet_path`). arrivals: where a packet enters each namespace that
    routes it, or the last one. problems: why it ends or would be refused. complete: the other end was reached. domains:
    the interfaces of each link layer that it crosses. hops: senders, the next address, and its owners. outer: the paths
    of the outer packets of its tunnels. published: the port that it passes, and how many of `places` are before it.
    outward: whether the address is on another machine; exit: where it then leaves this one. translated: whether a rule
    of the goal replaces the address.
    """

    start: Space
    source: str
    destination: str
    goal: Space | None = None
    depth: int = 0
    mark: int = 0
    packet: dict[str, str] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    steps: list[tuple[Place | PublishedPort, str]] = field(default_factory=list)
    arrivals: list[Place] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    domains: list[list[Place]] = field(default_factory=list)
    hops: list[tuple[Place, str, Place]] = field(default_factory=list)
    routes: list[tuple[Space, netlink.Route]] = field(default_factory=list)
    circles: list[Place] = field(default_factory=list)  # where frames come back to an interface
    outer: list[Path] = field(default_factory=list)
    published: tuple[int, PublishedPort] | None = None
    outward: bool = False
    translated: bool = False
    exit: Exit | None = None
    complete: bool = False

    @property
    def whole(self) -> bool:
        """Whether nothing is known that keeps packets from arriving."""
        return self.complete and not self.problems

    @property
    def routers(self) -> dict[Space, int]:
        """The namespaces that route the packet, with the index of the interface of its arrival; 0 where it starts."""
        into = {self.start: 0, **{place.space: place.index for place in self.arrivals}}
        return {space: into[space] for space, _route in self.routes if space in into}

    @property
    def router_count(self) -> int:
        """How many namespaces are known to forward the packet. Each takes one from its hop limit (TTL)."""
        return len(self.arrivals) - (self.complete and self.exit is None)

    def then(self, port: PublishedPort, other: Path | None = None) -> Path:
        """Return this path to a published port, and another one from there."""
        result = replace(self, published=(len(self.places), port), steps=[*self.steps, (port, IN)])
        if other is not None:
            result.destination, result.complete = other.destination, self.complete and other.complete
            for name in JOINED:
                setattr(result, name, [*getattr(result, name), *getattr(other, name)])
        return result

    def past(self, port: PublishedPort) -> Path:
        """Return this path with the port after the step that enters the port's namespace; else unchanged."""
        for number, (place, _direction) in enumerate(self.steps, 1):
            if place in self.arrivals and place.space is port.space:
                steps = [*self.steps[:number], (port, IN), *self.steps[number:]]
                return replace(self, steps=steps)
        return self

    def names(self) -> list[str]:
        """Return the names of all interfaces, and of the published port where it is passed."""
        result: list[object] = list(self.places)
        if self.published is not None:
            result.insert(*self.published)
        return [str(one) for one in result]

    def add_outer(self, outer: Path) -> None:
        """Add what the outer packets of a tunnel pass."""
        self.outer.append(outer)
        for name in ("outer", "problems", "hops", "domains", "routes"):
            getattr(self, name).extend(getattr(outer, name))


def paths(spaces: Spaces, family: int | None = None, only: Collection[str] = ()) -> list[tuple[Path, Path]]:
    """Return the paths from client to server and back between each two addresses by which they may reach each other.

    Those that are whole or in one subnet come first, and IPv4 before IPv6. family: the only version of IP. only: the
    addresses of an end that count, if it has one of them. Raises Unsupported if an end has no such address, and
    BadInput if none has one of `only`.
    """
    client, server = spaces.client, spaces.server
    addresses = chosen(usable(client, family), usable(server, family), only)
    own = dict(zip((client, server), addresses, strict=True))
    found = []
    for destination in own[server]:
        version, source = ip_address(destination).version, source_for(client, destination, own[client])
        if not source or destination in client.addresses:
            continue
        forward = followed(spaces, Path(client, source, destination, server))
        back = followed(spaces, Path(server, destination, source, client))
        close = client.is_beside(destination)
        found.append((not fits(forward, back), version, not close, (forward, back)))
    if not found:
        what = "have no version of IP in common, or only equal addresses"
        raise Unsupported(f"{client.name} and {server.name} {what}")
    return [each for *_order, each in sorted(found, key=lambda one: one[:3])]


def chosen(client: list[str], server: list[str], only: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the addresses of each end that count (`paths`). Raises BadInput for an address that neither has."""
    if strange := [one for one in only if one not in (*client, *server)]:
        there = ", ".join((*client, *server))
        raise BadInput(f"no end has the address {strange[0]}: they have {there}")
    kept = ([one for one in own if one in only] or own for own in (client, server))
    return next(kept), next(kept)


def others_than(used: list[tuple[str, str]], found: list[tuple[str, str]]) -> list[str]:
    """Return a sentence about pairs of addresses of the same version of IP that may take other paths, if any."""
    versions = {ip_address(one).version for one, _other in used}
    of_versions = [both for both in found if ip_address(both[0]).version in versions]
    left = [f"{one} to {other}" for one, other in of_versions if (one, other) not in used]
    words = units.shortened(left, MOST_PAIRS)
    return [f"the path between other addresses of the ends, {words}: --address chooses"] if left else []


def fits(forward: Path, back: Path) -> bool:
    """Return whether two ends should reach each other so: nothing keeps packets back, or they are in one subnet."""
    return (forward.whole and back.whole) or forward.start.is_beside(forward.destination)


def usable(space: Space, family: int | None) -> list[str]:
    """Return the addresses of an end that others may use, of a version of IP. Raises Unsupported without any."""
    every = space.usable()
    alike = [one for one in every if family in (None, ip_address(one).version)]
    if not alike:
        others = [link.name for link in space.links.values() if link.name != "lo" and link.up]
        if not others:
            raise Unsupported(f"{space.name} has no network: it has no interface but lo that is up")
        version = "" if family is None else f"v{family}"
        more = f": use family={10 - (family or 4)}" if every else f"; its interfaces are {', '.join(others)}"
        raise Unsupported(f"{space.name} has no address of IP{version}{more}")
    return alike


def source_for(start: Space, destination: str, sources: Collection[str], mark: int = 0) -> str:
    """Return the address that the kernel would choose; without a route, the most similar one of the same family; ""
    without any."""
    sources, chosen = [one for one in sources if (":" in one) == (":" in destination)], None
    with suppress(netlink.LinkError):
        chosen = netlink.route_to(start.namespace.netlink, destination, mark=mark).source
    wanted = int(ip_address(destination))
    if chosen is not None and chosen in sources:
        return chosen
    return min(sources, key=lambda one: int(ip_address(one)) ^ wanted, default="")


def inwards(spaces: Spaces, there: Path) -> Path:
    """Follow an answer to a packet that leaves this machine: it comes back by the same interface."""
    if (way := there.exit) is None:
        return Path(spaces.host, there.destination, there.source, there.start)
    turned = {IN: OUT, OUT: IN}
    steps = [(one, turned[direction]) for one, direction in reversed(way.steps)]
    result = Path(
        way.out.space, there.destination, there.source, there.start, places=way.places[::-1], steps=steps
    )
    result.arrivals.append(way.out)
    return followed(spaces, result, way.out)


def followed(spaces: Spaces, result: Path, arrived: Place | None = None) -> Path:
    """Follow a packet from where it begins, or has just arrived, and return its path with all that it passes."""
    at, destination = result.start, result.destination
    for _ in range(MAX_HOPS):
        if destination in at.addresses or (result.translated and at is result.goal):
            result.complete = result.goal in (None, at) and (not result.outward or result.depth > 0)
            if not result.complete:
                what = f"{at.name} has the address {destination} itself, so packets to it end there"
                result.problems.append(Problem("duplicate address", what, at.name))
            return result
        route = _route(result, at, arrived)
        out = route.hops[0].index if route else None
        if route is None or out not in at.links:
            return result
        if at.links[out].name == "lo":
            what = f"a route of {at.name} leads packets to {destination} to lo, so they end there"
            show = at.command(f"ip route get {destination}  # then delete this route")
            result.problems.append(Problem("local route", what, at.name, show))
            return result
        arrived = _across(spaces, result, Place(at, out), route.hops[0].via or destination)
        if arrived is None:
            return result
        at = arrived.space
        result.arrivals.append(arrived)
    what = f"packets to {destination} go round in circles: they come back to namespaces where they were"
    result.problems.append(Problem("routing loop", what, at.name))
    return result


def _route(along: Path, at: Space, arrived: Place | None) -> netlink.Route | None:
    """Return the route that the kernel takes; if it refuses the packet, the one that it would take for its own."""
    kernel, mark = at.namespace.netlink, 0 if arrived else along.mark
    try:
        route = netlink.route_to(
            kernel, along.destination, along.source or None, arrived.index if arrived else 0, mark
        )
        if arrived and not forwards(at, arrived, along.destination):  # IPv6 tells it only to packets
            along.problems.append(_refused(at, along, arrived, errno.EHOSTUNREACH))
    except netlink.LinkError as error:
        along.problems.append(_refused(at, along, arrived, error.errno))
        try:
            route = netlink.route_to(kernel, along.destination, mark=mark)
        except netlink.LinkError:
            return None
    along.routes.append((at, route))
    return route


def _across(spaces: Spaces, along: Path, out: Place, next_hop: str) -> Place | None:
    """Follow a link layer to the owner of an address; None if nobody there has it."""
    domain, through = _domain(spaces, along, out, next_hop)
    along.domains.append(list(domain))
    owners = [one for one in domain if one != out and one.owns(next_hop) and not _is_sealed(domain, one)]
    owners = owners or [place for place in domain if place != out and _is_proxy(place, next_hop)][:1]
    owners = owners or _receivers_of_unowned(domain, out, next_hop)
    apart = [one for one in owners if _is_apart(domain[one], out)]
    real = [one for one in owners if one not in apart]
    real.sort(key=lambda one: (one.space is not along.goal, one.space.addresses.get(next_hop) != one.index))
    alike = [one for one in real if not _is_in_other_vlan(domain, one)]
    if real and not alike and not apart:
        along.problems.append(_differ(_chain(domain, real[0])))
    real = alike or ([] if apart else real)
    along.hops += [(out, next_hop, one) for one in real]
    leaves = _way_out(spaces, domain, through) if along.outward and not owners else None
    begun = len(along.places), len(along.steps)
    # What a program does with the packets of a link is not known, but it has to be near.
    deciding = None if real or leaves else next((one for one in list(domain)[:NEAR] if one.programs), None)
    last = real[0] if real else leaves or deciding or next((near for near, _far in through), out)
    chain, came = _chain(domain, last), ""
    for number, (place, goes) in enumerate(chain):
        if came == "tunnel":
            outer = through[chain[number - 1][0], place]
            along.add_outer(outer)
            along.places += outer.places
            along.steps += outer.steps
        along.places.append(place)
        goes = goes or ("" if real or deciding else "tunnel")
        # A bridge, or the device below two others, passes frames on without counting them.
        if {came, goes} != {"up", "down"}:
            along.steps.append((place, OUT if goes in ("cable", "down", "tunnel") or not came else IN))
        came = goes
    if real:
        return last
    outers = [outer for (near, _far), outer in through.items() if leaves in (None, near)]
    for outer in outers:
        along.add_outer(outer)
        along.places += outer.places
    along.steps += next((outer.steps for outer in outers), [])
    if leaves is not None:
        along.exit = Exit(out, along.places[begun[0] :], along.steps[begun[1] :])
        along.complete = True
        return None
    leaves = _way_out(spaces, domain, through)
    nobody = _nobody(spaces, along, leaves, out, next_hop, apart)
    along.problems.append(nobody if deciding is None else _programmed(deciding))
    return None


def _is_proxy(place: Place, address: str) -> bool:
    """Return whether an interface answers for an address of others to which its namespace routes: for all (proxy_arp),
    or for this one (`ip neighbour add proxy`, with IPv6 if proxy_ndp is on)."""
    if place.link.master is not None:  # frames for the bridge's own address are its own
        return False
    at, switch = place.space, "ipv6/conf/%s/proxy_ndp" if ":" in address else "ipv4/conf/%s/proxy_arp"
    is_on = any(at.number(f"net/{switch % one}") for one in ("all", place.name))
    is_listed = (address, place.name) in at.proxied
    with suppress(netlink.LinkError):
        if (is_on and is_listed if ":" in address else is_on or is_listed) and forwards(at, place, address):
            return netlink.route_to(at.namespace.netlink, address).hops[0].index != place.index
    return False


def _receivers_of_unowned(domain: Domain, out: Place, next_hop: str) -> list[Place]:
    """Return who gets what is for an address that nobody on a link has: without MAC addresses, its other end, if it is
    the only one; else who has the MAC address that a permanent entry names, as for the gateway of pods in AWS."""
    if out.link.mac in (None, NO_MAC):
        far = [one for one, came in domain.items() if came in ((out, "cable"), (out, "tunnel"))]
        return far if len(far) == 1 and not far[0].programs else []
    known = out.space.json("ip", "-j", "neighbour", "show", "to", next_hop, "dev", out.name)
    macs = {one.get("lladdr") for one in known if "PERMANENT" in one.get("state", ())}
    return [one for one in domain if one != out and one.link.mac in macs and one.link.master is None]


def _way_out(spaces: Spaces, domain: Domain, through: Tunnels) -> Place | None:
    """Return the interface by which frames leave this machine: a tunnel whose outer packets do, else a NIC, else one
    whose other end is not visible."""
    for (near, _far), outer in through.items():
        if outer.exit is not None:
            return near
    tunnels = {near for near, _far in through}
    last = [
        place for place in domain
        if place.link.kind not in (*MASTERS, "dummy") and place.name != "lo" and place not in tunnels
        and all(how == "up" for _there, how in spaces.beside(place))
    ]  # fmt: skip
    last.sort(key=lambda one: (one.link.kind is not None, not one.link.carrier, not one.link.up))
    return last[0] if last else None


def _is_apart(came: tuple[Place, str] | None, out: Place) -> bool:
    """Return whether an interface is above or below the one that sends, which exchanges nothing with it."""
    if came is None:
        return False
    before, how = came
    below = how == "down" and before.link.kind in UPPERS and before.link.kind not in ("vlan", "macsec")
    return below or (how == "up" and before == out)


def _chain(domain: Domain, last: Place) -> list[tuple[Place, str]]:
    """Return the interfaces to one of a link layer, each with how frames get to the next one."""
    result = [(last, "")]
    while (before := domain[result[0][0]]) is not None:
        result = [before, *result]
    return result


def _is_sealed(domain: Domain, place: Place) -> bool:
    """Return whether a frame reaches an interface while MACsec still protects it, or reaches MACsec unprotected."""
    passed = pairwise(_chain(domain, place))
    ways = [how for (one, how), (two, _) in passed if (two if how == "up" else one).link.kind == "macsec"]
    return ways.count("down") != ways.count("up")


def _is_in_other_vlan(domain: Domain, place: Place) -> bool:
    """Return whether what reaches an interface is in another VLAN than its own: devices of VLANs and bridges that
    filter say so, and nothing else on the way changes tags."""
    chain = _chain(domain, place)
    return _tags_differ(chain, place) and not any(_may_tag(one) for one, _how in chain)


def _may_tag(place: Place) -> bool:
    """Return whether an interface may change tags in a way that is not known here."""
    link, filters = place.link, "".join(place.space.printed.filters(place.name).values())
    other = link.kind == "openvswitch" or {link.data.get(one, DOT1Q) for one in VLAN_PROTOCOLS} != {DOT1Q}
    return other or bool(VLAN_ACTION.search(filters) or place.programs)


def _tags_differ(chain: list[tuple[Place, str]], place: Place) -> bool:
    tags: list[int | None] = []
    for (here, how), (there, _how) in pairwise(chain):
        data = (there if how == "up" else here).link.data if how in ("up", "down") else {}
        if (own := data.get("IFLA_VLAN_ID")) is not None and how == "down":
            tags.append(own)
        elif own is not None:
            if not tags or tags.pop() != own:
                return True
        elif data.get("IFLA_BR_VLAN_FILTERING"):
            known = there.vlans
            if not known and not here.vlans:  # bridge(8) is missing
                return False
            tags = tags or [here.untagged]
            if how == "down" and tags[-1] not in known:
                return True
            if how == "down" and known[tags[-1]][1]:  # it leaves without a tag
                tags.pop()
    return bool(tags) and not place.vlans.get(tags[-1], (False, False))[1]


def _differ(chain: list[tuple[Place, str]]) -> Problem:
    """Return that the ends of a link layer are in different VLANs."""
    first, last = chain[0][0], chain[-1][0]
    own = {
        one: one.link.data.get("IFLA_VLAN_ID") or one.untagged
        for one, _how in chain
        if one.link.kind != "bridge"
    }
    words = ", ".join(f"{one} {number}" for one, number in own.items() if number)
    what = f"{first} and {last} are in different VLANs{words and f': {words}'}"
    return Problem("VLANs differ", what, str(first))


def _domain(spaces: Spaces, along: Path, start: Place, next_hop: str) -> tuple[Domain, Tunnels]:
    """Return every interface that frames of one can reach, and the paths below the tunnels among them.

    next_hop: to whom they go.
    """
    came: Domain = {start: None}
    through: Tunnels = {}
    waiting = deque([start])
    while waiting and len(came) < MAX_PLACES:
        here = waiting.popleft()
        outer = _through(spaces, here, along, _remotes(here, start, next_hop))
        through |= outer
        reached = [*spaces.beside(here), *((far, "tunnel") for _near, far in outer if far is not None)]
        for there, how in reached:
            # What a namespace itself sends by a port goes to no bridge.
            if here == start and how == "up" and there.link.kind in MASTERS:
                continue
            before = came.get(there)
            if there not in came:
                came[there] = here, how
                waiting.append(there)
            elif how != "tunnel" and (before or ("",))[0] != here and (came[here] or ("",))[0] != there:
                along.circles.append(there)
    return came, through


def _remotes(here: Place, sender: Place, next_hop: str) -> list[str]:
    """Return the remotes to which a tunnel sends frames: that of the next hop's MAC address if an entry has it, else
    all. The neighbours are asked for anew, because a check reads them once, after its packets."""
    remotes = here.tunnel.remotes if here.tunnel is not None else []
    if len(remotes) < 2 or here.link.kind != "vxlan":
        return remotes
    known = sender.space.json("ip", "-j", "neighbour", "show", "to", next_hop, "dev", sender.name)
    macs = {one["lladdr"] for one in known if "lladdr" in one}
    entries = here.space.json("bridge", "-j", "fdb", "show", "dev", here.name) if macs else []
    return [one["dst"] for one in entries if one.get("mac") in macs and one.get("dst") in remotes] or remotes


def _through(spaces: Spaces, here: Place, along: Path, remotes: list[str]) -> Tunnels:
    """Return the paths of a tunnel's outer packets to its remotes by its other ends; a problem of each says why there
    is none."""
    if (own := here.tunnel) is None or along.depth == DEEPEST:
        return {}
    result: Tunnels = {}
    outside, kind, mark = spaces.outside(here), str(here.link.kind), own.mark or 0
    for remote in remotes:
        source = own.local or source_for(outside, remote, outside.addresses, mark)
        outer = Path(outside, source, remote, depth=along.depth + 1, mark=mark, outward=along.outward)
        outer.packet = {"protocol": "udp", "dport": str(own.port)} if own.port else {"protocol": kind}
        followed(spaces, outer)
        ends: list[Place | None] = []
        if outer.complete and outer.exit is None:
            there = outer.arrivals[-1].space if outer.arrivals else outside
            others = [(one, one.tunnel) for one in spaces.tunnels_of(kind, there) if one != here]
            # The ends of an encrypted tunnel may have different ports, and know each other.
            is_encrypted, key = KINDS[kind].is_encrypted, (own.id, own.port)
            ends = [
                one
                for one, each in others
                if each and (source in each.remotes if is_encrypted else (each.id, each.port) == key)
            ]
            far_ports = {each.port for one, each in others if each and one in ends}
            if is_encrypted and own.port and len(far_ports) == 1:
                outer.packet |= {"sport": str(own.port), "dport": str(far_ports.pop())}
            if not ends:
                told = [f"{one.name} has id {each.id} and port {each.port}" for one, each in others if each]
                has = "; ".join(told)
                what = (
                    f"{here.name} has the {kind} id {own.id} and port {own.port} to {remote}, but"
                    f" {there.name} has {f'other ones: {has}' if has else 'no such tunnel'}"
                )
                if is_encrypted:
                    what = f"{here.name} is a {kind} to {remote}, but no {kind} of {there.name}"
                    what += f" has {source} as its other end"
                outer.problems.append(Problem("tunnel ends differ", what, str(here)))
        result |= {(here, far): outer for far in ends or [None]}
    return result


def _refused(at: Space, along: Path, arrived: Place | None, number: int) -> Problem:
    """Return why a namespace has no route for a packet, from the kernel's error (net/ipv4/route.c)."""
    to, where = along.destination, str(arrived or at.name)
    if arrived and (not along.source or ip_address(along.source).is_loopback):
        what = f"{along.start.name} has no address from which it could send to {to}"
        return Problem("missing address", what, along.start.name)
    if arrived and number == errno.EINVAL and along.source in at.addresses:
        what = f"{at.name} has the address {along.source} itself, so it takes no packets from it"
        return Problem("duplicate address", what, at.name)
    # Since Linux 6.13 the kernel says of all that it refuses at its entrance that it is invalid (inet_rtm_getroute).
    if arrived and (number == errno.EXDEV or (number == errno.EINVAL and ":" not in to)):
        mode = max(at.number(f"net/ipv4/conf/{one}/rp_filter") for one in ("all", arrived.name))
        back, why, undo = None, "no route leads back", None
        with suppress(netlink.LinkError):
            back = netlink.route_to(at.namespace.netlink, along.source).hops[0].index
            why = "the route back is another interface"
            undo = at.command(f"sysctl -w net.ipv4.conf.{arrived.name.replace('.', '/')}.rp_filter=2")
        if number == errno.EXDEV or (mode == 1 and back != arrived.index) or (mode and back is None):
            what = f"the reverse path filter (rp_filter) drops what arrives from {along.source} at {arrived.name}"
            return Problem("reverse path filter", f"{what}, because {why}", where, undo)
    if arrived and not forwards(at, arrived, to):
        family, switch = ("ipv6", "ipv6.conf.all.forwarding") if ":" in to else ("ipv4", "ipv4.ip_forward")
        if family == "ipv4" and at.number("net/ipv4/ip_forward"):
            switch = f"ipv4.conf.{arrived.name.replace('.', '/')}.forwarding"
        what = f"{at.name} does not forward packets to {to}: forwarding of {family} is off"
        return Problem("forwarding off", what, where, at.command(f"sysctl -w net.{switch}=1"))
    if arrived and number == errno.EINVAL:
        what = f"the routes of {at.name} drop packets from {along.source} to {to}"
        return Problem("route refuses", what, where)
    if not arrived and along.depth and along.source not in at.addresses:
        what = f"{at.name} does not have the address {along.source}, from which a tunnel sends to {to}"
        return Problem("missing address", what, where)
    why = REFUSALS.get(number, f"no route ({os.strerror(number)})")
    own = at.links.get(at.addresses.get(along.source, 0))
    vrf = at.links.get(own.master or 0) if own else None
    if vrf and vrf.kind == "vrf":
        why += f"; the routes of its VRF {vrf.name} are for programs that are bound to it (ip vrf exec), and no others"
    return Problem("missing route", f"{at.name} cannot send packets to {to}: {why}", where)


def forwards(at: Space, arrived: Place, to: str) -> bool:
    """Return whether a namespace forwards what arrives at an interface for an address."""
    if ":" in to:  # of one interface alone since Linux 6.17
        switches = ("all/forwarding", f"{arrived.name}/force_forwarding")
        return any(at.number(f"net/ipv6/conf/{one}") for one in switches)
    return at.number(f"net/ipv4/conf/{arrived.name}/forwarding", default=1) != 0


def _programmed(place: Place) -> Problem:
    hooks = " and ".join(place.programs)
    what = f"a BPF program at {hooks} of {place} decides where packets go, so what is behind it is not known"
    return Problem("BPF program", what, str(place), place.space.command(SHOW_PROGRAMS + place.name))


def _nobody(
    spaces: Spaces, along: Path, leaves: Place | None, out: Place, next_hop: str, apart: list[Place]
) -> Problem:
    if apart:
        upper, lower = (out, apart[0]) if spaces.referred(out) == apart[0] else (apart[0], out)
        what = (
            f"{upper} is a {upper.link.kind} of {lower}, and {next_hop} is the own address of the other one"
        )
        undo = "make a macvlan for the host, and give it the address"
        nothing = "the kernel passes nothing between the two"
        return Problem("macvlan and its lower device", f"{what}: {nothing}", str(out), undo)
    what = f"nobody that {out} reaches on its link has the address {next_hop}"
    if leaves is not None:
        what = f"nobody whom {out} reaches on this machine has the address {next_hop}, and {leaves} leads to others"
    elif along.goal is not None and next_hop in along.goal.addresses:
        owner = along.goal.place(next_hop)
        what += f": {spaces.referred(owner) or owner} leads to it, and is on another link"
    return Problem("missing neighbour", what, str(out))
