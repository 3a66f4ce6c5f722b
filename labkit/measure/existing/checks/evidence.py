"""What a check knows about two ends and the namespaces between them: configuration, probes, counters, a load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import ip_address
from typing import Any

from labkit.common.errors import BadInput, Failed, LabkitError, Unsupported
from labkit.measure.existing.checks import drops, load, probes
from labkit.measure.existing.checks.path import Paths, Place, Way
from labkit.measure.existing.checks.probes import Connection, End, OneWay
from labkit.measure.existing.checks.spaces import Space
from labkit.measure.observers.counters import kernel_counters
from labkit.system import netlink
from labkit.system.machine import cpu_quota
from labkit.system.netlink import ethtool

MAX_PAIRS = 3
RuleKey = tuple[str, str, str, int]  # of a rule: namespace, family, table, and its handle there


@dataclass
class Evidence:
    """Everything that the checks judge.

    there, back: the ways of packets in both directions. forth, reverse: what probes showed. changed: the counters that
    changed meanwhile (`kernel_counters`), `hits` those of nftables' rules by namespace and rule. loads: empty without
    a load; load_s: of each. throttled_s: during the check, by end. not_seen: sentences about what cannot be seen.
    drops: packets that the kernel dropped meanwhile anywhere on the machine.
    """

    client: End
    server: End
    there: Way
    back: Way
    spaces: list[Space]
    rulesets: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    forth: OneWay = field(default_factory=OneWay)
    reverse: OneWay = field(default_factory=OneWay)
    connection: Connection | None = None
    round_trips_ms: list[float] = field(default_factory=list)
    loads: list[load.Load] = field(default_factory=list)
    load_s: int = 0
    changed: dict[str, Any] = field(default_factory=dict)
    hits: dict[RuleKey, int] = field(default_factory=dict)
    throttled_s: dict[str, float] = field(default_factory=dict)
    not_seen: list[str] = field(default_factory=list)
    drops: drops.Drops = field(default_factory=Counter)

    @property
    def ways(self) -> tuple[tuple[Way, OneWay], tuple[Way, OneWay]]:
        """Both directions, each with what probes showed there."""
        return (self.there, self.forth), (self.back, self.reverse)

    @cached_property
    def places(self) -> list[Place]:
        """Every interface that packets of either direction pass, once, with those of the network below a tunnel."""
        return list(
            dict.fromkeys(
                place for way in (self.there, self.back) for place in (*way.places, *way.tunnel_places)
            )
        )

    @property
    def blocked(self) -> bool:
        """Whether in one direction neither UDP nor ICMP arrives, or no TCP connection comes about."""
        one_way = any(not probe.icmp.arrived and not probe.udp.arrived for _way, probe in self.ways)
        return one_way or (self.connection is not None and not self.connection.connected)

    @property
    def passes(self) -> bool:
        """Whether UDP, TCP and whole packets pass in both directions."""
        mtus = [probe.mtu for _way, probe in self.ways]
        whole = all(mtu is not None and mtu.passes_bytes >= mtu.full_bytes for mtu in mtus)
        return whole and not self.blocked and all(probe.udp.arrived for _way, probe in self.ways)

    @property
    def lossy(self) -> bool:
        """Whether a burst of probes lost something, or the TCP connection did not carry all."""
        lost = any(
            one.lost_share > probes.NOISE_SHARE
            for _way, probe in self.ways
            for one in (probe.icmp, probe.udp)
        )
        connection = self.connection
        return lost or (connection is not None and connection.carried_bytes < probes.TCP_BYTES)

    @property
    def filtered(self) -> bool:
        """Whether netfilter dropped packets during the check, or whether that is not known."""
        reasons = {reason for reason, _function in self.drops}
        unknown = reasons == {"NOT_SPECIFIED"} or any(drops.EVENT in text for text in self.not_seen)
        return unknown or "NETFILTER_DROP" in reasons

    def mib(self, space: Space, group: str, name: str) -> int:
        """Return by how much a counter of a namespace rose during the check."""
        value = (
            self.changed.get("namespaces", {}).get(space.name, {}).get("mibs", {}).get(group, {}).get(name, 0)
        )
        return int(value)

    def interface(self, place: Place, name: str) -> int:
        """Return by how much a counter of an interface rose (`mibs.INTERFACE`)."""
        of = self.changed.get("namespaces", {}).get(place.space.name, {}).get("interfaces", {})
        return int(of.get(place.name, {}).get(name, 0))

    def features(self, place: Place) -> dict[str, bool]:
        """Return the offloads of an interface; empty where they cannot be read."""
        with suppress(LabkitError), netlink.inside(place.space.fd):
            return ethtool.features(place.name)
        return {}


def pairs(client: Space, server: Space, paths: Paths) -> list[tuple[End, End, Way, Way]]:
    """Return the addresses by which both ends reach each other or should, with the ways; at most MAX_PAIRS.

    These are pairs with whole ways, and those in one subnet; if there are none, the first. IPv4 comes first. Raises
    BadInput if an end has no address that others could use.
    """
    candidates = [usable(client), usable(server)]
    for space, own in zip((client, server), candidates, strict=True):
        if not own:
            raise BadInput(
                f"{space.name} has no address that another end could use: it has only loopback, or none"
            )
    tried: list[tuple[bool, int, tuple[End, End, Way, Way]]] = []
    for destination in candidates[1]:
        version = ip_address(destination).version
        sources = [one for one in candidates[0] if ip_address(one).version == version]
        if not sources or destination in client.addresses:
            continue
        route, _ = client.route(destination)
        chosen = str(route.get("prefsrc") or "")
        # the address that the kernel would choose; without a route, the most similar one
        source = chosen if chosen in sources else _nearest(sources, destination)
        there, back = paths.way(client, source, destination), paths.way(server, destination, source)
        whole = there.complete and back.complete and not there.problems and not back.problems
        close = any(ip_address(destination) in network for network in client.networks)
        tried.append((whole or close, version, (End(client, source), End(server, destination), there, back)))
    if not tried:
        raise BadInput(f"{client.name} and {server.name} have no different addresses of the same family")
    tried.sort(key=lambda one: (not one[0], one[1]))
    return [one for fits, _version, one in tried if fits][:MAX_PAIRS] or [tried[0][2]]


def usable(space: Space) -> list[str]:
    """Return the addresses of a namespace without loopback and link-local ones."""
    result = [one for one in space.addresses if space.links[space.addresses[one]].name != "lo"]
    return [one for one in result if not ip_address(one).is_link_local and not ip_address(one).is_loopback]


def _nearest(sources: list[str], destination: str) -> str:
    wanted = int(ip_address(destination))
    return min(sources, key=lambda one: int(ip_address(one)) ^ wanted)


def gather(one: End, other: End, there: Way, back: Way, load_s: int | None) -> Evidence:
    """Read, probe and (with `load_s`) load two ends. Nothing is changed."""
    client, server = one.space, other.space
    on_path = {client: None, server: None}
    for way in (there, back):
        on_path |= dict.fromkeys(place.space for place in (*way.places, *way.tunnel_places))
    result = Evidence(one, other, there, back, list(on_path))
    result.rulesets = {space.name: space.ruleset for space in result.spaces}
    namespaces = [space.namespace for space in result.spaces]
    before, throttled = kernel_counters.read(namespaces), _throttled(client, server)
    for space in result.spaces:
        space.details  # noqa: B018  (read before packets of labkit's own are counted)
    with drops.recorded(result.not_seen) as result.drops:
        result.forth = probes.one_way(one, other, _mtu(there))
        result.reverse = probes.one_way(other, one, _mtu(back))
        result.connection = probes.tcp(one, other)
        result.round_trips_ms = probes.round_trips_ms(one, other) if result.forth.icmp.arrived else []
        if load_s is not None and not result.connection.connected:
            result.not_seen.append(
                f"the load was not sent: no connection of labkit's own reached {other.address}"
            )
        elif load_s is not None:
            try:
                result.load_s, result.loads = load_s, load.run(one, other, load_s)
            except (Failed, Unsupported) as error:
                result.not_seen.append(f"the load did not run: {error}")
    result.changed = kernel_counters.changes(before, kernel_counters.read(namespaces))
    after = _throttled(client, server)
    result.throttled_s = {name: after[name] - was_s for name, was_s in throttled.items() if name in after}
    for name in throttled.keys() - after.keys():
        result.not_seen.append(f"the program of {name} ended during the check: its CPU quota is not known")
    for space in result.spaces:
        result.hits |= _hits(space.name, result.rulesets[space.name], space.ruleset)
    return result


def _mtu(way: Way) -> int:
    return way.places[0].link.mtu_bytes if way.places else 1500


def _throttled(*ends: Space) -> dict[str, float]:
    """Return for how many seconds quotas have stopped the programs of each end; without those that have ended."""
    result = {}
    for end in ends:
        with suppress(OSError):
            if end.pid is not None:
                result[end.name] = cpu_quota.throttled_s(end.pid)
    return result


def packets_of(rule: dict[str, Any]) -> int | None:
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
