"""MTUs that do not fit: measured, or of a tunnel whose packets are fragmented; routes that limit them."""

from __future__ import annotations

from collections.abc import Iterator

from labkit.measure.existing.checks.evidence import Evidence
from labkit.measure.existing.checks.findings import BETWEEN, LITTLE, MOST, MUCH, PRESENT, SEEN, SOME, Finding
from labkit.measure.existing.path import Path
from labkit.measure.topologies.network.kinds import headers, length_bytes, tunnels, within
from labkit.system.netlink import encryption

SMALL_WINDOW = 1 << 16


def measured(seen: Evidence) -> Iterator[Finding]:
    """The largest packet that passes is smaller than the sender's MTU, with or without an error that says so."""
    for path, probe in seen.directions:
        mtu = probe.mtu
        if mtu is None or mtu.passes_bytes >= mtu.full_bytes or not seen.sends(path):
            continue
        sender = path.places[0]
        plain_bytes, told_bytes = encryption.mtus(sender.space.fd, path.source, path.destination)
        if mtu.passes_bytes >= told_bytes < plain_bytes:
            continue  # the kernel tells TCP itself what IPsec leaves
        hole = mtu.is_hole
        says = (
            "no ICMP error comes back, so larger ones vanish (a black hole)"
            if hole
            else f"an ICMP error tells the sender of an MTU of {mtu.told_bytes} bytes"
        )
        yield Finding(
            cause="MTU black hole" if hole else "MTU does not fit",
            what=f"{sender.name} sends packets of up to {mtu.full_bytes} bytes, but only {mtu.passes_bytes} bytes pass"
            f" to {path.destination}: {says}",
            where=_narrowest(seen, path), certainty=SEEN, weight=MOST + 0.1 if hole else SOME,
            cost="connections stop after the handshake" if hole else "the first packets of each destination are lost",
            undo=sender.space.command(f"ip link set {sender.name} mtu {mtu.passes_bytes}"),
            change=f"mtu: mtu {mtu.passes_bytes} at both",
        )  # fmt: skip


def _narrowest(seen: Evidence, path: Path) -> str:
    """Return the interface with the smallest MTU on a path, of several the first."""
    place = min(path.places, key=lambda one: one.link.mtu_bytes)
    full_bytes, least_bytes = path.places[0].link.mtu_bytes, place.link.mtu_bytes
    if seen.narrow is not None and seen.narrow[1] < least_bytes:
        return f"{seen.narrow[0]} (MTU {seen.narrow[1]})"
    if least_bytes == full_bytes:
        return str(path.places[0]) if seen.far is None else BETWEEN
    return f"{place} (MTU {least_bytes})"


def differing(seen: Evidence) -> Iterator[Finding]:
    """Interfaces of one path with a smaller MTU than its sender, where no probe passed that could measure it."""
    for path, probe in seen.directions:
        if probe.mtu is not None or not path.complete or not path.places or not seen.sends(path):
            continue
        first, least = path.places[0], min(path.places, key=lambda one: one.link.mtu_bytes)
        if least.link.mtu_bytes < first.link.mtu_bytes:
            yield Finding(
                cause="MTU does not fit",
                what=f"{first.name} has an MTU of {first.link.mtu_bytes} bytes, {least} on its way only"
                f" {least.link.mtu_bytes}",
                where=str(least), certainty=PRESENT, weight=SOME,
            )  # fmt: skip


def fragmented(seen: Evidence) -> Iterator[Finding]:
    """Packets that were fragmented on the path although their sender forbade it, as a tunnel's outer packets are."""
    if any(probe.mtu and probe.mtu.passes_bytes < probe.mtu.full_bytes for _path, probe in seen.directions):
        return  # the answers to probes are fragmented, too
    for space in seen.spaces:
        count = seen.mib(space, "Ip", "FragCreates") + seen.mib(space, "Ip6", "FragCreates")
        inner = [place for place in seen.places if place.space is space and place.link.kind in tunnels()]
        if count and inner:
            own = inner[0]
            outer = [one for path, _probe in seen.directions for one in path.outer]
            mtus = (place.link.mtu_bytes for one in outer for place in one.places)
            least = min(mtus, default=own.link.mtu_bytes)
            family = 6 if outer and ":" in outer[0].destination else 4
            key = bool(own.tunnel and own.tunnel.id)
            fits = least - length_bytes(within(headers(str(own.link.kind), family=family, key=key), least))
            yield Finding(
                cause="tunnel fragments",
                what=f"{own.name} has an MTU of {own.link.mtu_bytes} bytes, and with the outer header its packets do"
                f" not fit: {count} fragments during the check",
                where=str(own), certainty=SEEN, weight=MUCH, cost="two packets for each one, and no offload",
                undo=space.command(f"ip link set {own.name} mtu {fits}"),
            )  # fmt: skip


def routes(seen: Evidence) -> Iterator[Finding]:
    """Routes that limit the MTU, the segment size or the window."""
    for path, _probe in seen.directions:
        for space, route in path.routes:
            if (out := space.links.get(route.hops[0].index or 0)) is None:
                continue
            limits = [
                ("mtu", out.mtu_bytes, LITTLE), ("advmss", out.mtu_bytes - 60, SOME), ("window", SMALL_WINDOW, MUCH),
                ("cwnd", 10, MUCH),
            ]  # fmt: skip
            for name, least, weight in limits:
                if (value := route.metrics.get(name, least)) < least:
                    yield Finding(
                        cause="route limits", where=f"{space.name} {out.name}", weight=weight,
                        what=f"the route to {path.destination} limits {name} to {value}",
                        undo=space.command(f"ip route get {path.destination}  # then replace the route without {name}"),
                    )  # fmt: skip
