"""The servers' host as the far end of mirrors' tunnels, when clients and servers are both on the clients' host."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from labkit.measure import topologies
from labkit.measure.experiments.context import Peer, RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters


@dataclass(frozen=True)
class PeerMonitor:
    """A `topologies.RemoteMonitor` that asks the other one of two hosts."""

    peer: Peer
    parent: str | None

    def receive(self, switch: str, mtu_bytes: int) -> str:
        """Let the other host count and read the copies of this switch that arrive at its NIC. Return the NIC's MAC
        address."""
        return str(self.peer.ask("monitor", switch=switch, mtu_bytes=mtu_bytes)["mac"])

    def counts(self) -> topologies.Copies:
        """Return the copies that have arrived there."""
        return msgspec.convert(self.peer.ask("copies")["copies"], topologies.Copies)

    def stop(self) -> None:
        """Let the other host end its readers and give its NIC back."""
        self.peer.ask("clear")


def peer_monitor(parameters: DatapathParameters, run_context: RunContext) -> PeerMonitor | None:
    """Return the monitor on the other host; None if there is no other host, or if it has the servers."""
    if run_context.peer is None or not parameters.has_remote_monitor:
        return None
    return PeerMonitor(run_context.peer, parameters.nic(topologies.CLIENTS))
