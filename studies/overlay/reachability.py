"""Reachability and paths: pings between all containers, with the path that each request took and the expected
paths."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from labkit.common.packets import Journey
from labkit.measure.endpoints import Namespace
from labkit.measure.observers.capture import capture, every_interface
from labkit.measure.topologies import Topology
from labkit.measure.topologies.network.model import address_of
from labkit.measure.topologies.network.parts import Network, Node
from labkit.measure.topologies.state import read
from studies.overlay import ping_probes
from studies.overlay.expected_paths import no_path, paths
from studies.overlay.ping_probes import Answers
from studies.overlay.spine_failure import spines

ATTEMPTS = 3  # until neighbours are known and bridges forward
INTERVAL_S = 0.05

NodePath = tuple[str, ...]


class PingPair(NamedTuple):
    """The source and the target of a ping, by names and addresses."""

    source: str
    target: str
    source_address: str
    target_address: str


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

    `topology` was built from `network`. `path`: the nodes that most requests passed. `expected_paths`: those that the
    description allows; a packet takes one of the equal-cost paths. `spine`: the interchangeable node on the path.
    `ttl`: of the replies on arrival. `as_expected`: every request was answered, on an expected path and with the
    expected TTL; or none was and no path is expected. `reason` says why not. The capture is in `folder`; missing
    packets are a doubt. Raises as `capture`.
    """
    spaces = {space.name: space for space in topology.namespaces}
    order = rounds(network)
    _resolve_neighbours(
        spaces, [one for ends in order for one in ends if paths(network, one.source, one.target)]
    )
    with capture(every_interface(topology.namespaces), folder) as seen:
        answered = [_ping_all(spaces, ends, count) for ends in order]
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
    names = list(spaces)
    return [result[ends] for ends in sorted(result, key=lambda ends: [names.index(name) for name in ends])]


def _ping_all(spaces: dict[str, Namespace], ends: Sequence[PingPair], count: int) -> list[Answers]:
    return ping_probes.echo([(spaces[one.source], one.target_address) for one in ends], count, INTERVAL_S)


def _resolve_neighbours(spaces: dict[str, Namespace], ends: Sequence[PingPair]) -> None:
    """Ping each pair once, so that neighbours and bridges on the path are known and nothing is flooded."""
    for _ in range(ATTEMPTS if ends else 0):
        answered = _ping_all(spaces, ends, 1)
        ends = [one for one, answers in zip(ends, answered, strict=True) if not answers.received_count]
        if not ends:
            return


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
        fine = answers.received_count == answers.sent_count == len(went) and set(went) <= expected
        fine = fine and set(answers.ttls) <= ttls and not answers.duplicates_count
    else:
        fine = not answers.received_count
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
