"""Packets: a frame as its layers, files of captured frames, and one packet followed over the hops that saw it."""

from labkit.common.packets.headers import ETHERNET, ETHERNET_BYTES, PORTS, RAW_IP, Layer, layers, stack
from labkit.common.packets.journey import Journey, Sighting, comments, journeys, rows
from labkit.common.packets.pcapng import Counts, Frame, Recorded, read

__all__ = [
    "ETHERNET", "ETHERNET_BYTES", "PORTS", "RAW_IP", "Counts", "Frame", "Journey", "Layer", "Recorded", "Sighting",
    "comments", "journeys", "layers", "read", "rows", "stack",
]  # fmt: skip
