"""Endpoints: where programs run in an experiment. Each has a command line prefix and an address."""

from labkit.measure.endpoints.namespace import (
    Endpoint,
    EndpointRuntime,
    FarEnd,
    FarPair,
    Namespace,
    Pair,
    Reading,
    namespaces,
)

__all__ = ["Endpoint", "EndpointRuntime", "FarEnd", "FarPair", "Namespace", "Pair", "Reading", "namespaces"]
