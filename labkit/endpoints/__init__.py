"""Where programs run inside an experiment: words to put in front of a command, and addresses."""

from labkit.endpoints.namespace import Endpoint, Namespace, namespaces

__all__ = ["Endpoint", "Namespace", "namespaces"]
