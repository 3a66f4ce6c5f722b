"""Where programs run inside an experiment: words to put in front of a command, and addresses."""

from labkit.endpoints.namespace import (
    Box,
    Endpoint,
    FarEnd,
    FarPair,
    Namespace,
    Pair,
    Reading,
    namespaces,
)

__all__ = ["Box", "Endpoint", "FarEnd", "FarPair", "Namespace", "Pair", "Reading", "namespaces"]
