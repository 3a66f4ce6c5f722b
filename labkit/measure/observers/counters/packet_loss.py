"""Packet loss per hop on a pair's path, computed from counters before and after the traffic.

The hops add up: what the client's programs sent, minus the loss of each hop, is what the server's program received. UDP
is followed from socket to socket. With fragments or tunnels, interfaces count other units than datagrams; then
everything between the sockets is one hop, and frames are reported separately (`frames`). All other traffic is followed
from the client's interface to the server's, also that of a packet generator. Interfaces count every frame, including
the few of iperf3's TCP control connection; a difference between both sides is reported as `unexplained_count`.

Of a topology with an Open vSwitch, the hop between two of its ports has the drops of the switch and of its packet
sockets. The copies that its mirrors make are followed from the mirrors to their readers (`copies`). What the interface
by which a tunnel leaves the host (the uplink) did not send is a hop of its own.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from labkit.common import topology_state
from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint, Pair
from labkit.measure.observers import switch as switch_observer
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad, Observer
from labkit.measure.observers.counters import receive_counters
from labkit.measure.observers.counters.kernel_counters import since_now
from labkit.measure.topologies.network.kinds import TRANSPORT
from labkit.measure.topologies.state import packet_path, read
from labkit.measure.topologies.state.packet_path import IN, OUT

Step = tuple[str, str, str]  # namespace, interface, out or in
Counts = Mapping[str, Any]
# Linux counts some of IPv4's in groups of its own.
IP_RECEIVES = (
    "InHdrErrors",
    "InAddrErrors",
    "InDiscards",
    "InTruncatedPkts",
    "InNoRoutes",
    "IPReversePathFilter",
)
SOCKET = ("RcvbufErrors", "InCsumErrors", "MemErrors", "InErrors", "NoPorts")


class _CounterChanges:
    """The counter changes that `kernel_counters` reports, by place. A counter that is missing there is 0. `skips`: as
    of `losses`."""

    def __init__(self, changed: Counts, switched: Counts, skips: Mapping[Step, str]) -> None:
        self.skips = skips
        self._spaces = changed.get("namespaces", {})
        self._dropped, self._ports = switch_observer.drops(switched), switched.get("ports", {})

    def interface(self, step: Step, *names: str) -> int:
        """Return the sum of these counters of a step's interface."""
        counts = self._spaces.get(step[0], {}).get("interfaces", {}).get(step[1], {})
        return sum(counts.get(name, 0) for name in names)

    def mib(self, space: str, group: str, *names: str) -> int:
        """Return the sum of these counters of a group in a namespace."""
        counts = self._spaces.get(space, {}).get("mibs", {}).get(group, {})
        return sum(counts.get(name, 0) for name in names)

    def report(self, space: str, group: str, names: Sequence[str]) -> dict[str, int]:
        """Return those of these counters that changed."""
        counts = self._spaces.get(space, {}).get("mibs", {}).get(group, {})
        return {f"{group} {name}": counts[name] for name in names if name in counts}

    def queues(self, step: Step) -> dict[str, int]:
        """Return the drops of the queueing disciplines of a step's interface."""
        result = self._spaces.get(step[0], {}).get("qdiscs", {}).get(step[1], {})
        return {
            f"qdisc {name} dropped": one["drop"]
            for name, one in result.items()
            if "drop" in one
            and not name.endswith(" ffff:")  # clsact's and ingress's count what is received, too
        }

    def switched(self, *ports: str) -> dict[str, int]:
        """Return the drops of the switch at these interfaces and at no port; empty if one is not its port."""
        if not all(port in self._ports for port in ports):
            return {}
        at_ports = {
            f"{port}: {name}": count for port in ports for name, count in self._dropped.get(port, {}).items()
        }
        return at_ports | self._dropped.get("", {})

    def sender_drops(self, space: str, but: Collection[str]) -> dict[str, int]:
        """Return what the interfaces of a namespace dropped when they sent, except these interfaces."""
        result: dict[str, int] = {}
        for name in dict.fromkeys([*self._spaces.get(space, {}).get("interfaces", {}), *self._dropped]):
            if name not in but:
                step = (space, name, OUT)
                counts = _counts(self, step, "tx_dropped") | self.queues(step)
                counts |= {each: n for each, n in self._dropped.get(name, {}).items() if " tx_" in each}
                result |= {f"{name}: {each}": count for each, count in counts.items()}
        return result


def losses(
    changed: Counts,
    pairs: Sequence[tuple[str, str, Sequence[Step]]],
    protocol: str,
    family: int,
    outside: Collection[tuple[str, str]] = (),
    switched: Counts = MappingProxyType({}),
    protected: Collection[tuple[str, str]] = (),
    skips: Mapping[Step, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return the loss of each pair, where `pairs` are (client's name, server's name, path).

    Each result has unit, sent_count, received_count, lost_count, the hops in order (at, lost_count, why) and
    unexplained_count; the hops' losses plus unexplained_count are lost_count. Frames also have received_bytes.
    Datagrams that cannot be followed one by one also have `frames`. `outside`: interfaces (namespace, name) that
    decapsulate UDP of this version of IP. `switched`: the changes of an Open vSwitch's counters (`observers.switch`).
    `protected`: interfaces whose packets have ESP in transport mode, because IP counts these before and after it.
    `skips`: by step, the interface before it that a redirect skips.
    """
    seen = _CounterChanges(changed, switched, skips)
    shared = _shared_steps([path for _client, _server, path in pairs])
    result = []
    for client, server, path in pairs:
        own = [step for step in path if step not in shared]
        if not own:
            reason = "the path between the endpoints is unknown, or a program relays the data of the packets"
            report: dict[str, Any] = {"unit": None, "reason": reason, "hops": []}
        else:
            at_ends = (own[0][0], own[-1][0])
            simple = sum(step[0] in at_ends for step in own) == 2  # in a tunnel there are more
            simple &= not any(step[:2] in protected for step in own)
            # If the path starts or ends at a guest's tap, the sockets are in the guest.
            sockets = protocol == "udp" and (own[0][2], own[-1][2]) == ("out", "in")
            # Frames of a packet generator are of no socket.
            sockets &= _sent_datagrams(seen, own[0][0], family) > 0
            if not sockets:
                report = _frames(seen, own)
            elif simple and not seen.mib(own[0][0], _groups(family)[0], "FragCreates"):
                report = _datagrams(seen, own, family)
            else:
                report = _whole(seen, own, family, simple, outside)
            report["through"] = [f"{step[0]}:{step[1]}" for step in path if step in shared]
        result.append({"pair": f"{client} > {server}", **report})
    return result


def _shared_steps(paths: Sequence[Sequence[Step]]) -> set[Step]:
    """Return the steps that several pairs take, or both directions of one pair: their counters mix both."""
    turned = {"out": "in", "in": "out"}
    taken = Counter(step for path in paths for step in path)
    taken += Counter(
        (space, interface, turned[direction])
        for path in paths
        for space, interface, direction in path
        if (path[0][:2] != path[-1][:2])
    )
    return {step for step, count in taken.items() if count > 1}


def _frames(seen: _CounterChanges, path: Sequence[Step]) -> dict[str, Any]:
    """Follow frames from the first interface to the last.

    If the first step is `in`, the frames come from a guest's tap: its received frames were sent. If the last step is
    `out`, the frames go to a guest's tap: its transmitted frames are received.
    """
    first, last = path[0], path[-1]
    sent = seen.interface(first, *(("tx_packets", "tx_dropped") if first[2] == "out" else ("rx_packets",)))
    hops, queued = _between(seen, path), seen.queues(first) if first[2] == "out" else {}
    if queued:
        # A queue of classes counts what its classes drop (qdisc_tree_reduce_backlog), so its count is the largest.
        refused = max(queued.values())
        sent += refused
        hops.insert(0, _hop(f"{first[0]}: queue of {first[1]}", refused, queued))
    received = seen.interface(last, "rx_packets" if last[2] == "in" else "tx_packets")
    received_bytes = seen.interface(last, "rx_bytes" if last[2] == "in" else "tx_bytes")
    return _loss_summary("frames", sent, received, hops) | {"received_bytes": received_bytes}


def _between(seen: _CounterChanges, path: Sequence[Step]) -> list[dict[str, Any]]:
    """Return the hops from the first interface to the last: what each dropped, and what did not reach the next."""
    hops = [_sent(seen, path[0])] if path[0][2] == "out" else []
    for here, there in pairwise(path):
        left = seen.interface(here, "tx_packets" if here[2] == "out" else "rx_packets")
        if there[2] == "out":
            came = seen.interface(there, "tx_packets", "tx_dropped")
            dropped = seen.queues(there) | seen.switched(here[1], there[1])
        else:
            came = seen.interface(there, "rx_packets")
            dropped = _counts(seen, there, "rx_dropped", "rx_errors", "rx_fifo_errors")
        joined = f"{here[0]}:{here[1]} to {'' if here[0] == there[0] else there[0] + ':'}{there[1]}"
        joined += f" (skips {seen.skips[there]})" if there in seen.skips else ""
        hops.append(_hop(joined, left - came, dropped))
        if there[2] == "out":
            hops.append(_sent(seen, there))
    return hops


def _hop(at: str, lost_count: int, why: Mapping[str, int] = MappingProxyType({})) -> dict[str, Any]:
    return {"at": at, "lost_count": lost_count, "why": dict(why)}


def _sent(seen: _CounterChanges, step: Step) -> dict[str, Any]:
    where = f"{step[0]}:{step[1]} sends"
    return _hop(where, seen.interface(step, "tx_dropped"), _counts(seen, step, "tx_dropped"))


def _counts(seen: _CounterChanges, step: Step, *names: str) -> dict[str, int]:
    return {name: count for name in names if (count := seen.interface(step, name))}


def _groups(family: int) -> tuple[str, str, str]:
    return ("Ip", "Icmp", "Udp") if family == 4 else ("Ip6", "Icmp6", "Udp6")


def _sent_datagrams(seen: _CounterChanges, client: str, family: int) -> int:
    """Return what the client's sockets sent, including what IP could not hand on: a queue or a rule refused it.

    The kernel counts a refused datagram in OutDiscards of IP instead of OutDatagrams (udp_send_skb, ip_send_skb), and
    in SndbufErrors of UDP only if the program does not learn of it. SndbufErrors also has what never left the socket.
    """
    ip, _icmp, udp = _groups(family)
    return seen.mib(client, udp, "OutDatagrams") + seen.mib(client, ip, "OutDiscards")


def _datagrams(seen: _CounterChanges, path: Sequence[Step], family: int) -> dict[str, Any]:
    """Follow datagrams from the client's sockets to the server's, where one frame is one datagram."""
    (client, *_), (server, *_) = path[0], path[-1]
    ip, icmp, udp = _groups(family)
    sent, received = _sent_datagrams(seen, client, family), seen.mib(server, udp, "InDatagrams")
    offered = seen.interface(path[0], "tx_packets", "tx_dropped")
    arrived, ip_received = seen.interface(path[-1], "rx_packets"), seen.mib(server, ip, "InReceives")
    delivered = seen.mib(server, ip, "InDelivers")
    refused = seen.mib(server, udp, "InErrors", "NoPorts")
    others = seen.mib(server, "Tcp", "InSegs") + seen.mib(server, icmp, "InMsgs")
    why_out = seen.queues(path[0]) | seen.report(client, ip, ["OutDiscards", "OutNoRoutes"])
    why_in: dict[str, int] = {}
    for group in (ip, "IpExt", "TcpExt"):
        why_in |= seen.report(server, group, IP_RECEIVES)
    unread = delivered - others - received - refused
    hops = [
        _hop(f"{client}: IP to {path[0][1]}", seen.mib(client, ip, "OutRequests") - offered, why_out),
        *_between(seen, path),
        _hop(f"{server}: {path[-1][1]} to IP", arrived - ip_received),
        _hop(f"{server}: IP", ip_received - delivered, why_in),
        _hop(f"{server}: UDP socket", refused, seen.report(server, udp, SOCKET)),
        _hop(f"{server}: left unread in the socket", unread),
    ]
    return _loss_summary("datagrams", sent, received, hops)


def _whole(
    seen: _CounterChanges,
    path: Sequence[Step],
    family: int,
    simple: bool,
    outside: Collection[tuple[str, str]],
) -> dict[str, Any]:
    """Follow datagrams from socket to socket where frames are fragments or encapsulated.

    What did not arrive complete is one loss. IP delivers a tunnel's payload twice, so with a tunnel unread datagrams
    cannot be separated from it.
    """
    (client, *_), (server, *_) = path[0], path[-1]
    ip, icmp, udp = _groups(family)
    # A tunnel's datagrams also count as read (udp_queue_rcv_one_skb).
    tunnels = [(space, name, "in") for space, name in outside if space == server]
    carried = sum(seen.interface(step, "rx_packets") for step in tunnels)
    sent = _sent_datagrams(seen, client, family)
    received = seen.mib(server, udp, "InDatagrams") - carried
    refused = seen.mib(server, udp, "InErrors", "NoPorts")
    others = seen.mib(server, "Tcp", "InSegs") + seen.mib(server, icmp, "InMsgs")
    came = seen.mib(server, ip, "InDelivers") - others if simple else received + refused
    why = seen.report(client, ip, ["FragFails", "OutDiscards", "OutNoRoutes"]) | seen.report(
        server, ip, ["ReasmFails", "ReasmTimeout", "InDiscards"]
    )
    where = f"{client} to {server}: lost on the way" + ("" if simple else ", or left unread in the socket")
    hops = [
        _hop(where, sent - came, why),
        _hop(f"{server}: UDP socket", refused, seen.report(server, udp, SOCKET)),
    ]
    if simple:
        hops.append(_hop(f"{server}: left unread in the socket", came - received - refused))
    return _loss_summary("datagrams", sent, received, hops) | {"frames": _frames(seen, path)}


def _loss_summary(unit: str, sent: int, received: int, hops: list[dict[str, Any]]) -> dict[str, Any]:
    lost = sent - received
    unexplained = lost - sum(hop["lost_count"] for hop in hops)
    counts = {"sent_count": sent, "received_count": received, "lost_count": lost}
    return {"unit": unit, **counts, "hops": hops, "unexplained_count": unexplained}


def lost_copies(
    changed: Counts,
    switched: Counts,
    metered: Counts,
    space: str,
    ports: Collection[str],
    uplink: str | None = None,
) -> Counts:
    """Return what became of the copies of a switch's mirrors, in the form of a pair's loss.

    `mirrors` has the counts of each mirror, if they are told apart. Counts that depend on what the readers lost are
    None if nobody can know that (tcpdump).

    metered: the columns of the topology's meter. space: the switch's namespace. ports: its interfaces on the paths of
    pairs, whose drops are not those of copies. uplink: its interface by which copies leave in a tunnel.
    """
    sent, arrived = metered["copies_expected_count"], metered["copies_count"]
    seen = _CounterChanges(changed, switched, {})
    dropped = seen.sender_drops(space, ports)
    if uplink is None:
        hops = [_hop("mirrors to the monitor", sent - arrived, dropped)]
    else:
        # What left is counted, not what the uplink's queue refused: the userspace datapath gives up the rest of a batch
        # whose first packet was refused, and the queue has not seen that rest.
        left = seen.interface((space, uplink, OUT), "tx_packets")
        hops = [
            _hop(f"mirrors to {space}:{uplink}", sent - left, dropped),
            _hop(f"{space}:{uplink} to the monitor", left - arrived),
        ]
    unread = metered.get("copies_unread_count")
    if unread is None:
        unknown = dict.fromkeys(("received_count", "lost_count", "unexplained_count"))
        return {"unit": "copies", "sent_count": sent, **unknown, "hops": hops, **_mirror_counts(metered)}
    read = _hop("the readers' sockets", unread)
    return _loss_summary("copies", sent, arrived - unread, [*hops, read]) | _mirror_counts(metered)


def _mirror_counts(metered: Counts) -> dict[str, Any]:
    """Return what became of the copies of each mirror; {} if they are not told apart."""
    if (arrived := metered.get("copies_of_mirrors")) is None:
        return {}
    each = metered["copies_expected_count"] // len(arrived)
    unread = metered.get("unread_of_mirrors") or [None] * len(arrived)
    counts = zip(arrived, unread, strict=True)
    return {
        "mirrors": {
            f"mirror{number}": {"sent_count": each, "arrived_count": came, "unread_count": lost}
            for number, (came, lost) in enumerate(counts)
        }
    }


@contextmanager
def _armed(parameters: ObservedLoad, topology: topologies.Topology, _stem: Path) -> Iterator[ArmedObserver]:
    """Read the counters. It reports their changes by place, and under `loss` the hops of each pair."""
    counts, switch = since_now(topology.namespaces, _guests(topology)), topology.switch
    of_switch = switch_observer.since_now(switch)
    meter = topology.meter() if topology.meter is not None else dict[str, Any]
    followed = _FollowedPaths(topology, parameters.family, parameters.direction)

    def report() -> Observation:
        changed, own, metered = counts(), of_switch().observed, meter()
        result = followed.losses(changed, parameters.protocol, own)
        if switch is None or "copies_expected_count" not in metered:
            return Observation({**changed, "loss": result})
        space = switch.space.name
        ports = {interface for *_, path in followed.ways[0] for at, interface, _ in path if at == space}
        copies = lost_copies(changed, own, metered, space, ports, switch.uplink)
        return Observation({**changed, "loss": result, "copies": copies})

    yield ArmedObserver(report)


class _FollowedPaths:
    """What `losses` takes of a topology: for each way that data takes, the pairs from sender to receiver with their
    paths (`ways`), and the interfaces at which counters mean something else."""

    def __init__(self, topology: topologies.Topology, family: int, direction: str) -> None:
        there, pairs = read.state(topology), topology.pairs
        back = msgspec.structs.replace(
            there, pairs=[pair[::-1] for pair in there.pairs], forward=there.back, back=there.forward
        )
        each = (there, pairs), (back, [pair.turned for pair in pairs])
        self.ways = [
            [
                (sender.name, receiver.name, _pair_path(pair, [] if topology.relays else steps))
                for pair, (sender, receiver), steps in zip(
                    ends, state.pairs, packet_path.packet_paths(state), strict=True
                )
            ]
            for state, ends in {"forward": each[:1], "reverse": each[1:], "both": each}[direction]
        ]
        self._skips = {
            (step.namespace, step.interface, step.direction): f"{step.skips.namespace}:{step.skips.interface}"
            for state, _ends in each for path in packet_path.packet_paths(state) for step in path if step.skips
        }  # fmt: skip
        self._family = family
        self._outside = {
            (end.namespace.name, link.name)
            for end in topology.ends
            for link in receive_counters.udp_tunnels(end.namespace, end.address)
        }
        links = ((space.name, link) for space in there.namespaces for link in space.interfaces)
        self._protected = [(at, link.name) for at, link in links if link.mode == TRANSPORT]

    def losses(
        self, changed: Counts, protocol: str, switched: Counts = MappingProxyType({})
    ) -> list[dict[str, Any]]:
        more = self._outside, switched, self._protected, self._skips
        return [one for pairs in self.ways for one in losses(changed, pairs, protocol, self._family, *more)]


def counted_losses(
    topology: topologies.Topology, family: int, direction: str
) -> Callable[[], list[dict[str, Any]]]:
    """Read the counters now; return a function that reads them again and returns the datagrams' `losses` since."""
    counts = since_now(topology.namespaces, _guests(topology))
    return lambda: _FollowedPaths(topology, family, direction).losses(counts(), "udp")


def refusals(topology: topologies.Topology) -> Callable[[], str]:
    """Read the counters now; return a function that names those that have since counted packets IP refused."""
    counts = since_now(topology.namespaces, _guests(topology))

    def since() -> str:
        names = {*IP_RECEIVES, "OutDiscards", "OutNoRoutes"}
        return ", ".join(
            f"{space}: {group} {name}"
            for space, own in counts().get("namespaces", {}).items()
            for group, each in own.get("mibs", {}).items()
            for name in each
            if name in names
        )

    return since


def _guests(topology: topologies.Topology) -> list[Endpoint]:
    return [end for end in topology.ends if not end.kernel.is_here]


def _pair_path(pair: Pair, steps: Sequence[topology_state.Step]) -> list[tuple[str, str, str]]:
    """Return the path of a pair, with the interfaces inside guests, which this kernel does not see."""
    path = [(step.namespace, step.interface, step.direction) for step in steps]
    if not pair.client.kernel.is_here:
        path.insert(0, (pair.client.name, pair.client.interface, OUT))
    if not pair.server.kernel.is_here:
        path.append((pair.server.name, pair.server.interface, IN))
    return path


COUNTERS = Observer(_armed)
