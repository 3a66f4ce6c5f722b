"""Which nodes of a network may stand in for each other."""

from __future__ import annotations

from labkit.experiments.failure import spines
from labkit.topologies import overlay
from labkit.topologies.parts import Cable, End, Network, Node


def test_spines_are_routers_with_the_same_neighbours() -> None:
    assert spines(overlay.seed()) == ["sc1", "sc2"]
    line = [Node("one", forwards=True), Node("two", forwards=True), Node("three")]
    cable = Cable(End("one", "a", "10.0.0.1/24"), End("two", "b", "10.0.0.2/24"))
    assert spines(Network("line", (*line, cable), ())) == []
