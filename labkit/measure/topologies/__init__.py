"""Topologies: context managers that build the endpoints and what joins them.

A new topology is one function in a module of this package and one entry in TABLE.
"""

from labkit.measure.topologies.base import (
    CLIENTS,
    MACHINE,
    SERVERS,
    BuiltSide,
    Copies,
    RemoteMonitor,
    Spec,
    Topology,
)
from labkit.measure.topologies.network.build import build as build_network
from labkit.measure.topologies.network.parts import Network
from labkit.measure.topologies.network.validate import check as check_network
from labkit.measure.topologies.registry import (
    ENDPOINTS,
    IN_GUESTS,
    TABLE,
    build,
    check,
    check_names,
    check_tags,
    half,
    kind_of,
    usual,
)

__all__ = [
    "CLIENTS", "ENDPOINTS", "IN_GUESTS", "MACHINE", "SERVERS", "TABLE", "BuiltSide", "Copies", "Network",
    "RemoteMonitor", "Spec", "Topology", "build", "build_network", "check", "check_names", "check_network",
    "check_tags", "half", "kind_of", "usual",
]  # fmt: skip
