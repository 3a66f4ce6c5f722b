"""Check that a monitor selects the packets in a tunnel by their inner addresses, on this kernel and in a lab VM."""

from __future__ import annotations

from labkit import live

PINGS = 3


def inner_addresses_select(kind: str, where: str = "here", family: int = 4) -> None:
    """Ping through a tunnel, and watch its outer interface with the inner source address and with a wrong one."""
    with live.build(kind, where=where, family=family) as tunnel:
        outer = next(
            f"{space.name}:{link.name}"
            for space in tunnel.state.namespaces
            for link in space.interfaces
            if link.kind == "veth" and space.name == "client0"
        )
        wrong = {4: "10.99.0.1", 6: "fd99::1"}[family]
        protocol = {4: "icmp", 6: "icmp6"}[family]
        with (
            tunnel.monitor(outer, inside=kind, source=tunnel.client0.address, protocol=protocol) as inner,
            tunnel.monitor(outer, inside=kind, source=wrong) as other,
        ):
            tunnel.client0.run("ping", "-q", "-c", str(PINGS), "-i", "0.01", tunnel.server0.address)
            inner.stop()
            # Other packets of the client are of IPv6's neighbour discovery.
            requests = [one.stack for one in inner.packets if "echo request" in one.stack]
            assert len(requests) == PINGS
            assert all(f"{tunnel.client0.address} > " in stack for stack in requests)
            assert other.stop().counts.selected_count == 0
