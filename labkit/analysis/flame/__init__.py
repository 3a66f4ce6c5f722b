"""Analyse profiles: folded stacks, flame graphs of thousands of frames, and why one arm costs more than another.

left, right = flame.Arm("veth_bridge", rounds), flame.Arm("macvlan_bridge", others)
why = flame.difference(left, right)      # per packet; a control (A/A) is recommended
why.functions()                          # the functions that explain most, adding up to the total
flame.draw_difference(why)                         # the differential flame graph
flame.packets(rows, "veth_bridge")[0]    # the calls of one packet, as function_graph recorded them
flame.side_by_side([packets, others])    # those of several arms on one time scale, with their self times
"""

from labkit.analysis.flame.difference import Difference, difference
from labkit.analysis.flame.flame_graph import MIME, Flame, Flames, draw_difference, graph, script, style
from labkit.analysis.flame.folded_stacks import read, text
from labkit.analysis.flame.function_table import functions_as_text, sentence
from labkit.analysis.flame.packet_calls import PacketCalls, packets, packets_compared, side_by_side
from labkit.analysis.flame.profile import Arm, Round, process_pattern
from labkit.analysis.protocols import PER

__all__ = [
    "MIME", "PER", "Arm", "Difference", "Flame", "Flames", "PacketCalls", "Round", "difference", "draw_difference",
    "functions_as_text", "graph", "packets", "packets_compared", "process_pattern", "read", "script", "sentence",
    "side_by_side", "style", "text",
]  # fmt: skip
