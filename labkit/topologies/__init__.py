"""Topologies: context managers that build the endpoints and what joins them.

A new topology is one function in a module of this package and one entry in TABLE.
"""

from labkit.topologies.base import Spec, Topology
from labkit.topologies.state import State, state
from labkit.topologies.table import TABLE, build, check_names

__all__ = ["TABLE", "Spec", "State", "Topology", "build", "check_names", "state"]
