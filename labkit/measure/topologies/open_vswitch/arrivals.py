"""The copies of mirrors where they arrive, counted for each mirror.

A mirror with a port of its own has an interface of its own at the monitor, whose counter is its count. Mirrors that
share a cable (the trunk of VLANs, the uplink of tunnels) mark their copies. nftables counts each mark where the cable
arrives, behind the sockets of readers, and drops the copy there, because nobody else receives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from labkit.common.errors import Unsupported
from labkit.common.switch_options import SwitchOptions
from labkit.measure.endpoints import Namespace
from labkit.measure.endpoints.ingress_counters import count_at_ingress
from labkit.measure.topologies.base import Copies
from labkit.system.netlink.nft_counters import NftCounters

RSPAN_VLAN = 4000  # the VLAN of the first mirror's copies
TABLE = "mirrors"
# Where a copy has its mirror's mark, as nft(8) writes it. In tunnels that is the key (RFC 2890, after four bytes), the
# network identifier (RFC 7348, after eight bytes of UDP and four of VXLAN), or the session (draft-foschiano-erspan-03,
# the last ten bits of four bytes, after four bytes of GRE and the sequence number).
MARKS = {
    "vlan": "vlan id",
    "gre": "@th,32,32",
    "vxlan": "@th,96,24",
    "erspan": "@th,80,16 & 0x3ff",
}
ONLY = {"gre": "meta l4proto 47", "erspan": "meta l4proto 47", "vxlan": "meta l4proto 17"}


def mark(output: str, number: int) -> int:
    """Return the mark of a mirror's copies: their VLAN, or the key of their tunnel."""
    return RSPAN_VLAN + number if output == "vlan" else number + 1


@contextmanager
def counting(
    options: SwitchOptions, space: Namespace, ends: Sequence[tuple[str, int]]
) -> Iterator[Callable[[], Copies]]:
    """Count the copies that arrive at these interfaces (name, index) of a namespace until the block ends.

    Yields a function that returns those up to now. They are not told apart (`of_mirrors` is None) if several mirrors
    share a cable and there is no nft(8), or the kernel has no such hook.
    """

    def arrived() -> list[int]:
        return [space.netlink.counters(index).received_count for _name, index in ends]

    if len(ends) == options.mirrors:
        yield lambda: _separate(arrived())
        return
    [(cable, _index)] = ends
    names = [f"mirror{number}" for number in range(options.mirrors)]
    of_marks = ", ".join(f'{mark(options.output, number)} : "{one}"' for number, one in enumerate(names))
    rule = f"{ONLY.get(options.output, '')} counter name {MARKS[options.output]} map {{ {of_marks} }} drop"
    with closing(NftCounters(space.fd, TABLE)) as counters:
        try:
            count_at_ingress(space, cable, TABLE, names, rule)
        except Unsupported:
            names = []

        def counts() -> Copies:
            counted = counters.read() if names else {}
            return Copies(sum(arrived()), tuple(counted[one] for one in names) or None)

        yield counts


def _separate(counts: Sequence[int]) -> Copies:
    return Copies(sum(counts), tuple(counts))
