"""The servers' host as the far end of mirrors' tunnels, when clients and servers are both on the clients' host."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.measure import topologies
from labkit.measure.experiments.context import Peer, RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters


@dataclass(frozen=True)
class RemoteMonitor:
    """A `topologies.FarMonitor` that asks the other one of two hosts."""

    peer: Peer
    parent: str | None

    def receive(self, readers: str, mtu_bytes: int) -> str:
        """Let the other host count what arrives at its NIC, with these readers. Return the NIC's MAC address."""
        return str(self.peer.ask("monitor", readers=readers, mtu_bytes=mtu_bytes)["mac"])

    def counts(self) -> tuple[int, int | None]:
        """Return the packets that arrived, and those that readers lost; None: nobody can know."""
        report = self.peer.ask("copies")
        return report["arrived"], report["unread"]

    def stop(self) -> None:
        """Let the other host end its readers and give its NIC back."""
        self.peer.ask("clear")


def remote_monitor(parameters: DatapathParameters, run_context: RunContext) -> RemoteMonitor | None:
    """Return the monitor on the other host; None if there is no other host, or if it has the servers."""
    if run_context.peer is None or not parameters.has_remote_monitor:
        return None
    return RemoteMonitor(run_context.peer, parameters.nic(topologies.CLIENTS))
