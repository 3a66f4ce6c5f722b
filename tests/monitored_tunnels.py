"""Check that a monitor selects the packets in a tunnel by their inner addresses, on this kernel and in a lab VM."""

from __future__ import annotations

from labkit import live

PINGS = 3


def inner_addresses_select(kind: str, where: str = "here") -> None:
    """Ping through a tunnel, and watch its outer interface with the inner source address and with a wrong one."""
    with live.build(kind, where=where) as tunnel:
        outer = next(
            f"{space.name}:{link.name}"
            for space in tunnel.state.namespaces
            for link in space.interfaces
            if link.kind == "veth" and space.name == "client0"
        )
        with (
            tunnel.monitor(outer, inside=kind, source=tunnel.client0.address) as inner,
            tunnel.monitor(outer, inside=kind, source="10.99.0.1") as other,
        ):
            tunnel.client0.run("ping", "-q", "-c", str(PINGS), "-i", "0.01", tunnel.server0.address)
            assert inner.stop().counts.selected_count == PINGS
            assert other.stop().counts.selected_count == 0
