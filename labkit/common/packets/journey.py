"""One packet followed over the hops that saw it.

A packet is recognised by what no hop changes: the addresses, protocol, identifier and ports of its innermost headers,
and the beginning of its payload. Hops change TTL, checksums, MAC addresses, outer headers, length and order.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common.packets.headers import PORTS, UNKNOWN, Layer, layers, stack
from labkit.common.packets.pcapng import IN, OUT, Counts, Frame

PAYLOAD_BYTES = 32  # of the payload; ping and iperf3 begin theirs with the time
WITHIN_S = 0.9  # an equal packet after that time is another one: ARP repeats a request after a second
_LINKS = ("ethernet", "802.1q")


@dataclass(frozen=True)
class Sighting:
    """A packet at one hop.

    `hop`: namespace:interface. `direction`: in or out. `time_ns`: the kernel's time (since 1970). `length_bytes`: of
    the frame as the interface saw it. `number`: of the frame among all frames in the order of time.
    """

    hop: str
    direction: str
    time_ns: int
    length_bytes: int
    layers: Sequence[Layer]
    number: int

    @property
    def stack(self) -> str:
        return stack(self.layers)


@dataclass(frozen=True)
class Journey:
    """A packet and its sightings in the order of time.

    `inner`: the layers by which it is recognised, the innermost IP (or ARP) and what follows.
    """

    inner: Sequence[Layer]
    sightings: Sequence[Sighting]

    @property
    def source(self) -> str | None:
        """The innermost sender's address; None if there is none."""
        result = self.inner[0].fields.get("source")
        return None if result is None else str(result)

    @property
    def target(self) -> str | None:
        """The innermost receiver's address; None if there is none."""
        result = self.inner[0].fields.get("target")
        return None if result is None else str(result)

    def what(self, names: Mapping[str, str] | None = None) -> str:
        """Describe the packet in one line: `cs1 > cs5 echo request`. `names`: namespaces by address."""
        names = names or {}
        if self.inner[0].name not in ("ip", "ip6"):
            return stack(self.inner)
        ends = (str(end) for end in (self.source, self.target))
        between = " > ".join(names.get(end, end) for end in ends)
        rest = stack(self.inner[1:]) or f"fragment at {self.inner[0].fields['offset']}"
        return f"{between} {rest.removeprefix('ICMP ').removeprefix('ICMPv6 ')}"


class _Open:
    """A journey that may get further sightings."""

    def __init__(self, inner: Sequence[Layer]) -> None:
        self.inner = inner
        self.sightings: list[Sighting] = []
        self.slots: set[Hashable] = set()


def journeys(frames: Iterable[Frame], ports: Mapping[int, str] = PORTS) -> list[Journey]:
    """Return every packet in the order of its first sighting. `ports`: as for `layers`.

    Packets that are equal to the byte (ARP, a copy that the network made) are separate journeys: a hop sees one packet
    only once in one direction, unless with another TTL (a loop) or in another number of headers. Two sightings of a
    packet are at most WITHIN_S apart.
    """
    result: list[_Open] = []
    alike: dict[Hashable, deque[_Open]] = {}
    for number, frame in enumerate(sorted(frames, key=lambda frame: frame.time_ns)):
        seen = layers(frame.data, frame.link_type, ports, frame.length_bytes)
        first = _innermost(seen)
        inner = seen[first:]
        slot = (frame.hop, frame.direction, len(seen), inner[0].fields.get("ttl"))
        same = alike.setdefault(_key(seen, first, frame.data), deque())
        while same and frame.time_ns - same[0].sightings[-1].time_ns > WITHIN_S * 1e9:
            same.popleft()
        taker = next((one for one in same if slot not in one.slots), None)
        if taker is None:
            taker = _Open(inner)
            result.append(taker)
            same.append(taker)
        taker.slots.add(slot)
        taker.sightings.append(
            Sighting(frame.hop, frame.direction, frame.time_ns, frame.length_bytes, seen, number)
        )
    return [Journey(one.inner, sorted(one.sightings, key=_when)) for one in result]


def _when(seen: Sighting) -> tuple[int, int]:
    """Return a sort key: the time, and the order of sightings with equal times.

    While a program wants timestamps (as ping does), the kernel gives a packet one timestamp in a namespace until it is
    forwarded. Of these sightings an arriving packet had its outer headers first.
    """
    return seen.time_ns, len(seen.layers) if seen.direction == OUT else -len(seen.layers)


def _innermost(seen: Sequence[Layer]) -> int:
    """Return the position of the innermost network layer: IP, ARP, or what else an Ethernet header announces."""
    for at in range(len(seen) - 1, -1, -1):
        one = seen[at]
        if one.name in ("ip", "ip6", "arp") or (at and one.name == UNKNOWN and seen[at - 1].name in _LINKS):
            return at
    return len(seen) - 1


def _key(seen: Sequence[Layer], first: int, data: bytes) -> Hashable:
    """Return what no hop changes. Frames may have padding behind the packet (Ethernet's 60 bytes)."""
    begin = sum(one.header_bytes for one in seen[:first])
    payload = begin + sum(one.header_bytes for one in seen[first:])
    end = min(begin + seen[first].length_bytes, payload + PAYLOAD_BYTES)
    headers = tuple(
        (one.name, *((name, value) for name, value in one.fields.items() if name != "ttl"))
        for one in seen[first:]
    )
    return headers, data[payload:end]


def comments(all_journeys: Sequence[Journey], names: Mapping[str, str] | None = None) -> dict[int, str]:
    """Return a comment for every frame, by its number: which packet it is, at which hop, and what happened before.

    `names`: namespaces by address, which show whether a packet arrived.
    """
    return {
        seen.number: _comment(one, at, f"packet {number} of {len(all_journeys)}", names or {})
        for number, one in enumerate(all_journeys, 1)
        for at, seen in enumerate(one.sightings)
    }


def _comment(one: Journey, at: int, which: str, names: Mapping[str, str]) -> str:
    seen = one.sightings[at]
    parts = [
        f"{which}: {one.what(names)}",
        f"hop {at + 1} of {len(one.sightings)}: {seen.direction} at {seen.hop}",
    ]
    if at:
        after = (seen.time_ns - one.sightings[0].time_ns) / 1000
        parts += [f"{after:.1f} µs after the first", *_changes(one.sightings[at - 1], seen)]
    if seen is one.sightings[-1]:
        parts.append(_end(one, names))
    return "; ".join(parts)


def _changes(before: Sighting, seen: Sighting) -> list[str]:
    """Return what happened to a packet between two hops: added or removed headers, and a router's TTL."""
    result = []
    for word, more, less in (("added", seen, before), ("removed", before, seen)):
        rest = Counter(layer.name for layer in more.layers) - Counter(layer.name for layer in less.layers)
        outer = [layer.text for layer in more.layers if rest[layer.name] and not rest.subtract([layer.name])]
        if outer:
            size = abs(seen.length_bytes - before.length_bytes)
            result.append(f"{word} {' / '.join(outer)} ({size} bytes)")
    ttls = [_ttl(each) for each in (before, seen)]
    if None not in ttls and ttls[0] != ttls[1]:
        result.append(f"routed: TTL {ttls[0]} is now {ttls[1]}")
    return result


def _ttl(seen: Sighting) -> int | str | None:
    """Return the TTL of the innermost IP header."""
    return next((layer.fields["ttl"] for layer in reversed(seen.layers) if "ttl" in layer.fields), None)


def _end(one: Journey, names: Mapping[str, str]) -> str:
    receiver = names.get(one.target or "")
    if receiver is None:
        return "this is the last hop that saw it"
    # A switch that floods sends copies elsewhere, too, which may be seen last.
    if any(receiver == each.hop.rpartition(":")[0] and each.direction == IN for each in one.sightings):
        return f"arrived at {receiver}"
    return f"no later hop saw it, so it did not reach {receiver}"


def rows(
    all_journeys: Iterable[Journey], counts: Mapping[str, Counts], names: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return a row for every sighting, in the order of packets and of time.

    `time_s`: time since the packet's first sighting. `time_ns`: the kernel's time (since 1970), which orders packets
    and times answers. `counts`: by hop. `names`: namespaces by address.
    """
    texts = ("name", "text", "header_bytes", "length_bytes")
    return [
        {
            "packet": number,
            "what": one.what(names),
            "hop": seen.hop,
            "namespace": seen.hop.rpartition(":")[0],
            "interface": seen.hop.rpartition(":")[2],
            "position": position,
            "direction": seen.direction,
            "time_s": (seen.time_ns - one.sightings[0].time_ns) / 1e9,
            "time_ns": seen.time_ns,
            "length_bytes": seen.length_bytes,
            "stack": seen.stack,
            "layers": [{name: getattr(each, name) for name in texts} for each in seen.layers],
            "dropped_count": counts[seen.hop].dropped_count,
            "skipped_count": counts[seen.hop].skipped_count,
        }
        for number, one in enumerate(all_journeys)
        for position, seen in enumerate(one.sightings)
    ]
