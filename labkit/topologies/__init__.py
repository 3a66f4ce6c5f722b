"""Topologies: context managers that build the endpoints and what joins them.

A new topology is one function in a module of this package and one entry in TABLE.
"""

from labkit.topologies.base import CLIENTS, SERVERS, Spec, Topology
from labkit.topologies.half import ACROSS, far_ends
from labkit.topologies.network import build as build_network
from labkit.topologies.network import check as check_network
from labkit.topologies.parts import Network
from labkit.topologies.state import state
from labkit.topologies.table import (
    ENDPOINTS,
    IN_GUESTS,
    TABLE,
    build,
    check_carries,
    check_guests,
    check_names,
    half,
)
from labkit.topologies.told import State
from labkit.topologies.ways import Step, ways

__all__ = [
    "ACROSS", "CLIENTS", "ENDPOINTS", "IN_GUESTS", "SERVERS", "TABLE", "Network", "Spec", "State", "Step", "Topology",
    "build", "build_network", "check_carries", "check_guests", "check_names", "check_network", "far_ends", "half",
    "state", "ways",
]  # fmt: skip
