"""Networks that are already there: their ends, the path between these, and the same path as an arm."""

from labkit.measure.existing.network import ExistingNetwork, between

__all__ = ["ExistingNetwork", "between"]
