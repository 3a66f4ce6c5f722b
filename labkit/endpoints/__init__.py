"""Where programs run inside an experiment: words to put in front of a command, and addresses."""

from labkit.endpoints.namespace import Endpoint, Namespace, Pair, namespaces

__all__ = ["Endpoint", "Namespace", "Pair", "namespaces"]
