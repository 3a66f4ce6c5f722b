"""Endpoints: where programs run in an experiment. Each has a command line prefix and an address."""

from labkit.measure.endpoints.kernel import Kernel
from labkit.measure.endpoints.namespace import (
    Endpoint,
    Namespace,
    Pair,
    RemoteEnd,
    RemotePair,
    namespaces,
    of_guests,
)

__all__ = ["Endpoint", "Kernel", "Namespace", "Pair", "RemoteEnd", "RemotePair", "namespaces", "of_guests"]
