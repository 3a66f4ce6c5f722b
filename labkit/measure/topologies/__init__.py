"""Topologies: context managers that build endpoints and what joins them; a new one is one function, and in TABLE."""

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
