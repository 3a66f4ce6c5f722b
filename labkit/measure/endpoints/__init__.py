"""Endpoints: where programs run in an experiment. Each has a command line prefix and an address."""

from labkit.measure.endpoints.namespace import (
    Endpoint,
    EndpointRuntime,
    Namespace,
    Pair,
    Reading,
    RemoteEnd,
    RemotePair,
    namespaces,
)

__all__ = [
    "Endpoint",
    "EndpointRuntime",
    "Namespace",
    "Pair",
    "Reading",
    "RemoteEnd",
    "RemotePair",
    "namespaces",
]
