"""MTUs that do not fit: measured, or of a tunnel whose packets are fragmented; routes that limit them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labkit.measure.existing.checks.evidence import Evidence
from labkit.measure.existing.checks.findings import LITTLE, MOST, MUCH, PRESENT, SEEN, SOME, Finding
from labkit.measure.existing.checks.path import Way
from labkit.measure.topologies.network.kinds import overhead_bytes, tunnels

SMALL_WINDOW = 1 << 16


def measured(seen: Evidence) -> Iterator[Finding]:
    """The largest packet that passes is smaller than the sender's MTU, with or without an error that says so."""
    for way, probe in seen.ways:
        mtu = probe.mtu
        if mtu is None or mtu.passes_bytes >= mtu.full_bytes:
            continue
        sender = way.places[0]
        hole = mtu.told_bytes is None
        says = (
            "no ICMP error comes back, so larger ones vanish (a black hole)"
            if hole
            else f"an ICMP error tells the sender of an MTU of {mtu.told_bytes} bytes"
        )
        yield Finding(
            cause="MTU black hole" if hole else "MTU does not fit",
            what=f"{sender.name} sends packets of up to {mtu.full_bytes} bytes, but only {mtu.passes_bytes} bytes pass"
            f" to {way.destination}: {says}",
            where=_narrowest(way), certainty=SEEN, weight=MOST + 0.1 if hole else SOME,
            cost="connections stop after the handshake" if hole else "the first packets of each destination are lost",
            undo=sender.space.command(f"ip link set {sender.name} mtu {mtu.passes_bytes}"),
            change=f"mtu: mtu {mtu.passes_bytes} at both",
        )  # fmt: skip


def _narrowest(way: Way) -> str:
    """Return the interface with the smallest MTU on a way, of several the first."""
    place = min(way.places, key=lambda one: one.link.mtu_bytes)
    same = place.link.mtu_bytes == way.places[0].link.mtu_bytes
    return str(way.places[0]) if same else f"{place} (MTU {place.link.mtu_bytes})"


def differing(seen: Evidence) -> Iterator[Finding]:
    """Interfaces of one way with a smaller MTU than its sender, where no probe passed that could measure it."""
    for way, probe in seen.ways:
        if probe.mtu is not None or not way.complete or not way.places:
            continue
        first, least = way.places[0], min(way.places, key=lambda one: one.link.mtu_bytes)
        if least.link.mtu_bytes < first.link.mtu_bytes:
            yield Finding(
                cause="MTU does not fit",
                what=f"{first.name} has an MTU of {first.link.mtu_bytes} bytes, {least} on its way only"
                f" {least.link.mtu_bytes}",
                where=str(least), certainty=PRESENT, weight=SOME,
            )  # fmt: skip


def fragmented(seen: Evidence) -> Iterator[Finding]:
    """Packets that were fragmented on the way although their sender forbade it, as a tunnel's outer packets are."""
    if any(probe.mtu and probe.mtu.passes_bytes < probe.mtu.full_bytes for _way, probe in seen.ways):
        return  # the answers to probes are fragmented, too
    for space in seen.spaces:
        count = seen.mib(space, "Ip", "FragCreates") + seen.mib(space, "Ip6", "FragCreates")
        inner = [place for place in seen.places if place.space is space and place.link.kind in tunnels()]
        if count and inner:
            own = inner[0]
            ways = [way for way, _probe in seen.ways if way.outer]
            least = min(
                (one.link.mtu_bytes for way in ways for one in way.tunnel_places), default=own.link.mtu_bytes
            )
            family = 6 if ways and ":" in ways[0].outer[0]["daddr"] else 4
            fits = least - overhead_bytes(str(own.link.kind), family=family)
            yield Finding(
                cause="tunnel fragments",
                what=f"{own.name} has an MTU of {own.link.mtu_bytes} bytes, and with the outer header its packets do"
                f" not fit: {count} fragments during the check",
                where=str(own), certainty=SEEN, weight=MUCH, cost="two packets for each one, and no offload",
                undo=space.command(f"ip link set {own.name} mtu {fits}"),
            )  # fmt: skip


def routes(seen: Evidence) -> Iterator[Finding]:
    """Routes that limit the MTU, the segment size, the window or the hops."""
    for way, _probe in seen.ways:
        for space, route in way.routes:
            metrics: list[Any] = route.get("metrics") or []  # type: ignore[assignment]
            values = {name: value for one in metrics for name, value in one.items()}
            index = space.index(str(route.get("dev")))
            own = space.links[index].mtu_bytes if index is not None else 0
            limits = [
                ("mtu", own, SOME), ("advmss", own - 60, SOME), ("window", SMALL_WINDOW, MUCH), ("cwnd", 10, MUCH),
                ("hoplimit", 16, MUCH),
            ]  # fmt: skip
            for name, least, weight in limits:
                if isinstance(value := values.get(name), int) and value < least:
                    yield Finding(
                        cause="route limits", what=f"the route to {way.destination} limits {name} to {value}",
                        where=f"{space.name} {route.get('dev')}", weight=weight if name != "mtu" else LITTLE,
                        undo=space.command(f"ip route get {way.destination}  # then replace the route without {name}"),
                    )  # fmt: skip
