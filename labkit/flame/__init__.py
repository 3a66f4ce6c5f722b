"""Profiles in the reading wing: folded stacks, flame graphs of thousands of frames, and why one arm is dearer than
another.

    left, right = flame.Arm("veth_bridge", rounds), flame.Arm("macvlan_bridge", others)
    why = flame.difference(left, right)      # per packet; a control (A/A) is worth having
    why.functions()                          # the functions that explain most, adding up to the whole
    flame.drawn(why)                         # the differential flame graph
    flame.packets(rows, "veth_bridge")[0]    # the calls of one packet, as function_graph saw them
    flame.beside([packets, others])          # those of several arms on one scale, and what they took
"""

from __future__ import annotations

from labkit.flame.arm import PER, Arm, Round
from labkit.flame.beside import beside
from labkit.flame.difference import Difference, difference
from labkit.flame.folded import read, text
from labkit.flame.packet import Packet, packets, packets_compared
from labkit.flame.table import sentence, shown
from labkit.flame.view import MIME, Flame, drawn, graph, script, style

__all__ = [
    "MIME", "PER", "Arm", "Difference", "Flame", "Packet", "Round",
    "beside", "difference", "drawn", "graph", "packets", "packets_compared", "read", "script", "sentence", "shown",
    "style", "text",
]  # fmt: skip
