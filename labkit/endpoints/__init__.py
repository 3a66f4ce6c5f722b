"""Where programs run inside an experiment: words to put in front of a command, and addresses."""

from labkit.endpoints.namespace import Endpoint, FarEnd, FarPair, Namespace, Pair, namespaces

__all__ = ["Endpoint", "FarEnd", "FarPair", "Namespace", "Pair", "namespaces"]
