"""What of a Network cannot be, told in one sentence before anything is built."""

from __future__ import annotations

from labkit.topologies import mtu
from labkit.topologies.described import Described
from labkit.topologies.mtu import Mtus
from labkit.topologies.parts import Network


def check(network: Network) -> tuple[Described, Mtus]:
    """The description, and every MTU of it. Raises BadInput for the first thing that cannot be."""
    described = Described(network)
    mtus = Mtus(described)
    mtu.check(described, mtus)
    return described, mtus
