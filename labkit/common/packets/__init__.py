"""Packets: a frame as its layers, files of captured frames, and one packet followed over the hops that saw it.

A plain run reads constants of headers only; journey and pcapng are imported by whoever uses them.
"""

from labkit.common.packets.headers import (
    ETHERNET,
    ETHERNET_BYTES,
    FCS_BYTES,
    PORTS,
    RAW_IP,
    Layer,
    internet_checksum,
    layers,
    stack,
)

__all__ = [
    "ETHERNET", "ETHERNET_BYTES", "FCS_BYTES", "PORTS", "RAW_IP", "Layer", "internet_checksum", "layers", "stack",
]  # fmt: skip
