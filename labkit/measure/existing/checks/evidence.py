"""What a check knows about two ends and the namespaces between them: configuration, probes, counters, a load."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from labkit.common import existing_names
from labkit.common.errors import Failed, LabkitError, Unsupported
from labkit.measure.endpoints.kernel import Listening
from labkit.measure.existing.checks import drops, load, probes
from labkit.measure.existing.checks.probes import Connection, End, OneWay
from labkit.measure.existing.endpoints import ExistingEndpoint, require
from labkit.measure.existing.path import Path
from labkit.measure.existing.spaces import Place, Space
from labkit.measure.observers.counters import kernel_counters
from labkit.measure.topologies.state.packet_path import IN
from labkit.system import netlink
from labkit.system.machine import cpu_quota
from labkit.system.netlink import ethtool

MAX_PORTS = 3
CARRIED_SHARE = 0.8  # of the packets of a probe: an interface that counted so many carried them
REDIRECTED = re.compile(r"mirred \(Egress Redirect to device (\S+?)\)")  # as to an ifb
RuleKey = tuple[str, str, str, int | str]  # of a rule: namespace, family, table, and its handle there


class Queued(NamedTuple):
    """An interface whose queue packets of the path pass: on the path, or the one to which a filter of `by` redirects
    them. filters: its own (`Printed.filters`). classes: as tc prints them."""

    space: Space
    name: str
    by: str
    filters: dict[str, str]
    classes: str


@dataclass(kw_only=True)
class Probed:
    """What packets of labkit's own between two ends showed.

    forward_probe, back_probe: in each direction. loads: empty without a load; load_s: of each. ports: each port of the
    server's programs to which the client connected, with the error, or "".
    """

    forward_probe: OneWay = field(default_factory=OneWay)
    back_probe: OneWay = field(default_factory=OneWay)
    connection: Connection | None = None
    round_trips_ms: list[float] = field(default_factory=list)
    loads: list[load.Load] = field(default_factory=list)
    load_s: int = 0
    ports: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sending:
    """How packets of labkit's own get from one end to the other, of one machine or of two.

    server, address: of the other end. forward: sends to it; back: from it. listening: the ports at which its programs
    listen. refused: returns why one takes no connection. loads: raises as `load.run`.
    """

    server: str
    address: str
    forward: Callable[[], OneWay]
    back: Callable[[], OneWay]
    connect: Callable[[], Connection]
    round_trips_ms: Callable[[], list[float]]
    listening: Callable[[], list[int]]
    refused: Callable[[int], str]
    loads: Callable[[int], Iterable[load.Load]]

    def probe(
        self, result: Probed, not_seen: list[str], load_s: int | None, port: int | None, sends: bool = True
    ) -> None:
        """Send small packets, connect to a port of the server's programs, and (with `load_s`) send a load.

        port: the one to connect to; None: if nothing of labkit's own connects, those at which the programs listen.
        Ports of this machine are tried only if asked for: a connection may start a service, or end one that takes only
        one. sends: whether anything but a connection to a port is sent.
        """
        if sends:
            result.forward_probe, result.back_probe = self.forward(), self.back()
            result.connection = self.connect()
            result.round_trips_ms = self.round_trips_ms() if result.forward_probe.icmp.arrived else []
        own = result.connection
        connected = own is not None and own.connected
        ports = [] if port is None else [port]
        if not (ports or connected or self.server == existing_names.HOST):
            ports = self.listening()[:MAX_PORTS]
        result.ports = {each: self.refused(each) for each in ports}
        taken = [str(each) for each, said in result.ports.items() if not said]
        if sends and taken and not connected:  # if only that is possible, nothing else has to arrive
            for way in (result.forward_probe, result.back_probe):
                way.icmp.exempt, way.udp.exempt = not way.icmp.arrived, not way.udp.arrived
            not_seen.append(
                f"{self.server} takes connections at port {', '.join(taken)} and not at others: what does not arrive is"
                " not judged"
            )
        if load_s is not None and not connected:
            not_seen.append(f"the load was not sent: no connection of labkit's own reached {self.address}")
        elif load_s is not None:
            try:
                result.load_s = load_s
                for one in self.loads(load_s):  # one that ran stays there if the next one does not
                    result.loads.append(one)
            except (Failed, Unsupported) as error:
                not_seen.append(f"the load did not run: {error}")


@dataclass
class Evidence(Probed):
    """Everything that the checks judge.

    forward, back: the paths of packets in both directions. changed: the counters that changed meanwhile
    (`kernel_counters`), `totals` as they then are, `hits` those of nftables' rules by namespace and rule. throttled_s:
    during the check, by end. not_seen: sentences about what cannot be seen. drops: packets that the kernel dropped
    meanwhile anywhere on the machine. queued_before: `queued` at its beginning. far: `client` or `server`, which then
    is on another machine; its namespace here is the one that routes packets there. beyond: whether the other machine
    counted the packets where they leave it or enter it, by direction; narrow: its interface with the smallest MTU, and
    this MTU. asked: the address to whose ports the client connected; "": the server's.
    """

    forward: Path
    back: Path
    spaces: list[Space]
    rulesets: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    changed: dict[str, Any] = field(default_factory=dict)
    totals: dict[str, Any] = field(default_factory=dict)
    hits: dict[RuleKey, int] = field(default_factory=dict)
    throttled_s: dict[str, float] = field(default_factory=dict)
    not_seen: list[str] = field(default_factory=list)
    drops: drops.Drops = field(default_factory=Counter)
    queued_before: dict[tuple[Space, str], Queued] = field(default_factory=dict)
    far: str | None = None
    beyond: dict[str, bool] = field(default_factory=dict)
    narrow: tuple[str, int] | None = None
    asked: str = ""

    @property
    def ends(self) -> dict[Space, str]:
        """The namespaces of the ends that are on this machine, as `client` or `server`."""
        both = {"client": self.client.space, "server": self.server.space}
        return {space: name for name, space in both.items() if name != self.far}

    def sends(self, path: Path) -> bool:
        """Return whether packets of a path begin on this machine."""
        return path is not {None: None, "client": self.forward, "server": self.back}[self.far]

    @property
    def client(self) -> End:
        """The end from which `forward` starts."""
        return End(self.forward.start, self.forward.source)

    @property
    def server(self) -> End:
        """The end from which `back` starts."""
        return End(self.back.start, self.back.source)

    @property
    def directions(self) -> tuple[tuple[Path, OneWay], tuple[Path, OneWay]]:
        """Both paths, each with what probes showed there."""
        return (self.forward, self.forward_probe), (self.back, self.back_probe)

    @cached_property
    def places(self) -> list[Place]:
        """Every interface that packets of either direction pass, once, with those of the network below a tunnel."""
        return list(dict.fromkeys((*self.forward.places, *self.back.places)))

    def names(self, space: Space) -> set[str]:
        """Return the names of interfaces in a namespace that packets of either direction pass, and of their VRFs."""
        own = {place.index: place.link.master for place in self.places if place.space is space}
        vrfs = {at for at in own.values() if at in space.links and space.links[at].kind == "vrf"}
        return {space.links[at].name for at in own.keys() | vrfs}

    @cached_property
    def queued(self) -> list[Queued]:
        """Every interface whose queue packets of either direction pass, once."""
        by = dict.fromkeys(((place.space, place.name) for place in self.places), "")
        waiting, result = list(by), list[Queued]()
        for space, name in waiting:
            filters = space.printed.filters(name, "-s")
            words = ("-s", "class", "show", "dev", name)
            classes = space.printed.text("tc", *words) if "" in filters else ""
            result.append(Queued(space, name, by[space, name], filters, classes))
            for to in REDIRECTED.findall(" ".join(filters.values())):
                if (space, to) not in by:
                    by[space, to] = name
                    waiting.append((space, to))
        return result

    @property
    def blocked(self) -> bool:
        """Whether in one direction neither UDP nor ICMP arrives, or no TCP connection comes about."""
        return any(not probe.arrives for _path, probe in self.directions) or not self.connects

    @property
    def connects(self) -> bool:
        """Whether a TCP connection comes about: to a port of the server's programs if one was tried."""
        if self.ports:
            return "" in self.ports.values()
        return self.connection is None or self.connection.connected

    @property
    def passes(self) -> bool:
        """Whether UDP, TCP and whole packets pass in both directions."""
        mtus = [probe.mtu for _path, probe in self.directions]
        whole = all(mtu is not None and mtu.passes_bytes >= mtu.full_bytes for mtu in mtus)
        return whole and not self.blocked and all(probe.udp.arrives for _path, probe in self.directions)

    @property
    def lossy(self) -> bool:
        """Whether a burst of probes lost something, or a TCP connection did not carry all."""
        lost, own = any(one.lost_share > probes.NOISE_SHARE for one in self.bursts), self.connection
        return lost or (own is not None and own.connected and own.carried_bytes < probes.TCP_BYTES)

    @property
    def bursts(self) -> list[probes.Sent]:
        """The small packets of each protocol in both directions."""
        return [one for _path, probe in self.directions for one in (probe.icmp, probe.udp)]

    @property
    def lost_count(self) -> int:
        """How many of them did not arrive, although they should."""
        return sum(one.sent - one.arrived for one in self.bursts if not one.exempt)

    @property
    def filtered(self) -> bool:
        """Whether netfilter dropped packets during the check, or whether that is not known."""
        reasons = {reason for reason, *_where in self.drops}
        unknown = reasons == {"NOT_SPECIFIED"} or any(drops.EVENT in text for text in self.not_seen)
        return unknown or "NETFILTER_DROP" in reasons

    def listeners(self) -> list[Listening]:
        """Return the sockets of the server's programs that take connections to its address."""
        every = self.server.space.namespace.listening()
        alike = (self.server.address, "::", *(("0.0.0.0",) if self.server.version == 4 else ()))
        return [one for one in every if one.address in alike]

    def listening(self) -> list[int]:
        """Return the ports at which programs of the server listen for its address."""
        return list(dict.fromkeys(one.port for one in self.listeners()))

    def mib(self, space: Space, group: str, name: str, total: bool = False) -> int:
        """Return by how much a counter of a namespace rose during the check; total: since the namespace exists."""
        of = (self.totals if total else self.changed).get("namespaces", {}).get(space.name, {})
        return int(of.get("mibs", {}).get(group, {}).get(name, 0))

    def interface(self, place: Place, name: str) -> int:
        """Return by how much a counter of an interface rose (`mibs.INTERFACE`)."""
        of = self.changed.get("namespaces", {}).get(place.space.name, {}).get("interfaces", {})
        return int(of.get(place.name, {}).get(name, 0))

    def counted(self, step: tuple[Any, str], count: float) -> bool:
        """Return whether an interface of a path, or its bond, counted so many packets; other steps count none."""
        place, direction = step
        name = "rx_packets" if direction == IN else "tx_packets"
        return not isinstance(place, Place) or self.interface(place.counted_at, name) >= count

    def edges(self) -> dict[str, bool]:
        """Return whether the packets of each direction were counted where they leave or enter this machine."""
        result = {}
        for name, (path, probe) in zip(("forward", "back"), self.directions, strict=True):
            steps = path.steps[-1:] if self.sends(path) else path.steps[:1]
            carried = [self.counted(step, CARRIED_SHARE * probe.sent_count) for step in steps]
            result[name] = bool(carried) and all(carried)
        return result

    def features(self, place: Place) -> dict[str, bool]:
        """Return the offloads of an interface; empty where they cannot be read."""
        with suppress(LabkitError), netlink.inside(place.space.fd):
            return ethtool.features(place.name)
        return {}


@contextmanager
def observed(forward: Path, back: Path, far: str | None = None) -> Iterator[Evidence]:
    """Read two paths, and what changes there until the block ends. Nothing is changed."""
    spaces = dict.fromkeys(
        (forward.start, back.start, *(place.space for place in (*forward.places, *back.places)))
    )
    result = Evidence(forward, back, list(spaces), far=far)
    result.rulesets = {space.name: space.ruleset for space in result.spaces}
    for space in result.spaces:
        for name in space.missing_programs(result.rulesets[space.name]):
            result.not_seen.append(f"rules of {space.name} that only {name} lists: it is missing or fails")
        of_routing = space.json("ip", f"-{result.client.version}", "-j", "rule", "show")
        if any("fwmark" in one for one in of_routing):
            by = "marks that programs (SO_MARK) or filters of tc give to packets"
            result.not_seen.append(f"{by}, for which rules of routing of {space.name} ask")
    namespaces = [space.namespace for space in result.spaces]
    before, throttled = kernel_counters.read(namespaces), _throttled(*result.ends)
    for space in result.spaces:
        space.details  # noqa: B018  (read before packets of labkit's own are counted)
    result.queued_before = {(one.space, one.name): one for one in result.queued}
    del result.queued
    names = {place.name for place in result.places}
    with drops.recorded(result.not_seen, names) as result.drops:
        yield result
    result.totals = kernel_counters.read(namespaces)
    result.changed = kernel_counters.changes(before, result.totals)
    after = _throttled(*result.ends)
    result.throttled_s = {name: after[name] - was_s for name, was_s in throttled.items() if name in after}
    for name in throttled.keys() - after.keys():
        result.not_seen.append(f"the program of {name} ended during the check: its CPU quota is not known")
    for space in result.spaces:
        result.hits |= _hits(space.name, result.rulesets[space.name], space.ruleset)


def gather(
    forward: Path,
    back: Path,
    load_s: int | None = None,
    asked: tuple[str, int] | None = None,
    *,
    sends: bool = True,
    ends: Sequence[ExistingEndpoint] = (),
) -> Evidence:
    """Read, probe and (with `load_s`) load two ends. Nothing is changed.

    asked: address and port to which the client has to connect (`Sending.probe`). sends: whether labkit opens sockets at
    both ends and sends packets between them; otherwise it only connects. ends: those that were named. Raises Failed if
    one of them has ended.
    """
    with observed(forward, back) as result:
        one, other = result.client, result.server
        address, port = asked or (other.address, None)
        result.asked = address

        def one_way(here: End, there: End, along: Path) -> OneWay:
            return probes.one_way(lambda kind: probes.channel(kind, here, there), mtu_of(along))

        if not sends:
            result.not_seen.append(
                f"loss and MTU between {one.space.name} and {other.space.name}: one of them is no named end, so labkit"
                " only connects there"
            )
            for _path, probe in result.directions:
                probe.icmp.exempt = probe.udp.exempt = True
        sending = Sending(
            other.space.name,
            other.address,
            forward=lambda: one_way(one, other, forward),
            back=lambda: one_way(other, one, back),
            connect=lambda: probes.tcp(one, other),
            round_trips_ms=lambda: probes.round_trips_ms(one, other),
            listening=result.listening,
            refused=lambda each: probes.refused(one, address, each),
            loads=lambda seconds: load.run(one, other, seconds, ends),
        )
        sending.probe(result, result.not_seen, load_s, port, sends)
        for end in ends:  # whatever was found
            require(end.name, end.process)
    return result


def mtu_of(path: Path) -> int:
    """Return the length of the largest packet that programs send on a path: the MTU of its first interface, or less if
    its route or IPv6 there has a smaller one. Probes could be longer than these two allow."""
    if not path.places:
        return 1500
    first = path.places[0]
    of_route = path.routes[0][1].metrics.get("mtu", 0) if path.routes else 0
    of_ipv6 = first.space.number(f"net/ipv6/conf/{first.name}/mtu") if ":" in path.source else 0
    return min(filter(None, (first.link.mtu_bytes, of_route, of_ipv6)))


def _throttled(*ends: Space) -> dict[str, float]:
    """Return for how many seconds quotas have stopped the programs of each end; without those that have ended."""
    result = {}
    for end in ends:
        with suppress(OSError):
            if end.pid is not None:
                result[end.name] = cpu_quota.throttled_s(end.pid)
    return result


def packets_of(rule: Mapping[str, Any]) -> int | None:
    """Return the packets that a rule of nftables has counted; None if it has no counter of its own."""
    for expression in rule.get("expr", ()):
        if isinstance(counter := expression.get("counter"), dict):
            return int(counter.get("packets", 0))
    return None


def rule_key(space: str, rule: Mapping[str, Any]) -> RuleKey:
    """Return what only one rule has: each table counts its handles from 1."""
    return space, rule["family"], rule["table"], rule["handle"]


def _hits(name: str, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[RuleKey, int]:
    counts = [
        {rule_key(name, one["rule"]): packets_of(one["rule"]) for one in listed if "rule" in one}
        for listed in (before, after)
    ]
    return {key: now - (counts[0].get(key) or 0) for key, now in counts[1].items() if now is not None}
