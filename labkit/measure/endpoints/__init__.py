"""Where programs run inside an experiment: words to put in front of a command, and addresses."""

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
