"""Reachability and paths: pings between all containers, with the path that each request took and the expected
paths."""

import errno
import select
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import groupby, permutations
from pathlib import Path
from typing import Any, NamedTuple

from labkit.common.errors import Failed
from labkit.common.packets.journey import Journey
from labkit.measure.endpoints import Namespace
from labkit.measure.observers.capture import capture, every_interface
from labkit.measure.topologies import Topology
from labkit.measure.topologies.network.model import address_of
from labkit.measure.topologies.network.parts import Network, Node
from labkit.measure.topologies.state import read
from labkit.measure.traffic.ping import Echo
from labkit.system import netlink
from studies.overlay.expected_paths import no_path, paths
from studies.overlay.spine_failure import spines
from studies.probes import LENGTH_BYTES

ATTEMPTS = 3  # until neighbours are known and bridges forward
INTERVAL_S = 0.05  # between two echo requests
PATIENCE_S = 2.0  # time for the last reply

NodePath = tuple[str, ...]


class PingPair(NamedTuple):
    """The source and the target of a ping, by names and addresses."""

    source: str
    target: str
    source_address: str
    target_address: str


@dataclass
class Answers:
    """The result of some echo requests: when each was sent (nanoseconds since 1970), the round-trip time of its first
    reply by its number, and the TTLs of all replies."""

    sent_ns: list[int] = field(default_factory=list)
    rtts_s: dict[int, float] = field(default_factory=dict)
    ttls: set[int | None] = field(default_factory=set)
    duplicates_count: int = 0

    def send(self, by: Echo) -> None:
        """Send a request, which counts as sent even if the kernel has no route for it."""
        self.sent_ns.append(time.time_ns())
        with suppress(OSError):
            by.send()

    def receive(self, by: Echo) -> None:
        """Take what has arrived. An error instead of a reply, such as `Destination Host Unreachable`, is no answer."""
        with suppress(OSError):
            while answer := by.answer():
                number, received_ns = answer
                self.duplicates_count += number in self.rtts_s
                self.rtts_s.setdefault(number, (received_ns - self.sent_ns[number - 1]) / 1e9)
                self.ttls.add(by.ttl)

    def row(self) -> dict[str, int | float | None]:
        """Return the columns of a row: counts, the TTL of the replies (None if there is none, or more than one), and
        round-trip times (None without a reply)."""
        times = self.rtts_s.values()
        return {
            "sent_count": len(self.sent_ns),
            "received_count": len(times),
            "ttl": next(iter(self.ttls)) if len(self.ttls) == 1 else None,
            "rtt_min_s": min(times, default=None),
            "rtt_p50_s": statistics.median(times) if times else None,
            "rtt_max_s": max(times, default=None),
        }


def rounds(network: Network) -> list[list[PingPair]]:
    """Return all ordered pairs of containers in rounds.

    In each round a container pings one other and is pinged by one, so that concurrent pings hardly disturb each other.
    """
    containers = [part.name for part in network.parts if isinstance(part, Node) and part.container]
    at = {name: address_of(network, name) for name in containers}
    return [
        [
            PingPair(one, other, at[one], at[other])
            for one, other in zip(containers, containers[step:] + containers[:step], strict=True)
        ]
        for step in range(1, len(containers))
    ]


def reachability(network: Network, topology: Topology, count: int, folder: Path) -> list[dict[str, Any]]:
    """Return the columns of a row for every ordered pair of containers, after `count` echo requests each.

    `topology` was built from `network`. A packet takes one of the equal-cost paths. `as_expected`: every request was
    answered, on an expected path and with the expected TTL; or none was and no path is expected. `reason` says why not.
    The capture is in `folder`; missing packets are a doubt. Raises as `capture`.
    """
    spaces = {space.name: space for space in topology.namespaces}
    order = rounds(network)
    _resolve_neighbours(
        spaces, [one for ends in order for one in ends if paths(network, one.source, one.target)]
    )
    with capture(every_interface(topology.namespaces), folder) as seen:
        answered = [echo(spaces, ends, count) for ends in order]
    now = read.state(topology)
    journeys = seen.journeys(now.ports())
    seen.comment(journeys, now.owners())
    paths_taken = _paths_taken(journeys)
    about = {"doubts": seen.doubt, "artefact": str(seen.path.relative_to(folder.parents[1]))}
    result = {}
    for ends, all_answers in zip(order, answered, strict=True):
        for one, answers in zip(ends, all_answers, strict=True):
            went = paths_taken.get((one.source_address, one.target_address), [])
            result[one.source, one.target] = _row(network, one, answers, went) | about
    return [result[ends] for ends in permutations(spaces, 2) if ends in result]


def echo(spaces: Mapping[str, Namespace], ends: Sequence[PingPair], count: int) -> list[Answers]:
    """Send `count` echo requests from each source to its target, all at once.

    A source without a route to its target sends them in vain. Raises Failed if one cannot send for another reason.
    """
    result = [Answers() for _ in ends]
    with ExitStack() as stack:
        there: dict[Echo, Answers] = {}
        for pair, answers in zip(ends, result, strict=True):
            try:
                with netlink.inside(spaces[pair.source].fd):
                    one = stack.enter_context(closing(Echo(pair.target_address, LENGTH_BYTES)))
            except OSError as error:
                if error.errno != errno.ENETUNREACH:
                    raise Failed(f"{pair.source} cannot ping {pair.target}: {error.strerror}") from None
                answers.sent_ns = [time.time_ns()] * count
            else:
                there[one] = answers
        for left in reversed(range(count)):
            for one, answers in there.items():
                answers.send(one)
            until_s = time.monotonic() + (INTERVAL_S if left else PATIENCE_S)
            while (wait_s := until_s - time.monotonic()) > 0 and (
                left or any(len(answers.rtts_s) < count for answers in there.values())
            ):
                for one in select.select([*there], [], [], wait_s)[0]:
                    there[one].receive(one)
    return result


def _resolve_neighbours(spaces: dict[str, Namespace], ends: Sequence[PingPair]) -> None:
    """Ping each pair once, so that neighbours and bridges on the path are known and nothing is flooded."""
    for _ in range(ATTEMPTS):
        answered = echo(spaces, ends, 1)
        ends = [one for one, answers in zip(ends, answered, strict=True) if not answers.rtts_s]


def _paths_taken(journeys: Iterable[Journey]) -> dict[tuple[str, str], list[NodePath]]:
    """Return, by source and target address, the nodes that each echo request entered, in order."""
    result: dict[tuple[str, str], list[NodePath]] = {}
    for one in journeys:
        if one.inner[-1].text.endswith("echo request") and one.source and one.target:
            nodes = (seen.hop.rpartition(":")[0] for seen in one.sightings)
            result.setdefault((one.source, one.target), []).append(tuple(name for name, _ in groupby(nodes)))
    return result


def _row(network: Network, ends: PingPair, answers: Answers, went: Sequence[NodePath]) -> dict[str, Any]:
    there = paths(network, ends.source, ends.target_address)
    back = paths(network, ends.target, ends.source_address)
    expected = {path.nodes for path in there}
    ttls = {path.ttl for path in back}
    most = Counter(went).most_common(1)
    path = most[0][0] if most else ()
    if there and back:
        fine = len(answers.rtts_s) == len(answers.sent_ns) == len(went) and set(went) <= expected
        fine = fine and answers.ttls <= ttls and not answers.duplicates_count
    else:
        fine = not answers.rtts_s
    return {
        **ends._asdict(),
        **answers.row(),
        "duplicates_count": answers.duplicates_count,
        "expected_ttl": min(ttls) if len(ttls) == 1 else None,
        "path": list(path),
        "expected_paths": sorted(map(list, expected)),
        "spine": " then ".join(dict.fromkeys(node for node in path if node in spines(network))) or None,
        "as_expected": fine,
        "reason": no_path(network, ends.source, ends.target_address)
        or no_path(network, ends.target, ends.source_address),
    }
