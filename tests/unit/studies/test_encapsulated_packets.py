"""TTLs of encapsulated packets, on a network that is long enough to use them up."""

from ipaddress import IPv4Address
from itertools import pairwise

import pytest

from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, Part, Route, Tunnel
from studies.overlay.expected_paths import no_path, paths

LAST = 79


def line(kind: str) -> Network:
    """Return a network of 80 nodes in a row, with a tunnel from n40 to the last."""

    def address(number: int, end: int) -> str:
        return str(IPv4Address(f"10.0.{number}.{end}"))

    parts: list[Part] = [Node(f"n{number}", forwards=True) for number in range(LAST + 1)]
    for one, other in pairwise(range(LAST + 1)):
        parts += [
            Cable(
                CableEnd(f"n{one}", "right", f"{address(one, 1)}/24"),
                CableEnd(f"n{other}", "left", f"{address(one, 2)}/24"),
            ),
            Route(f"n{one}", "default", via=address(one, 2)),
        ]  # fmt: skip
    near, far = address(40, 1), address(LAST - 1, 2)
    number = 9 if kind in ("vxlan", "geneve") else None
    parts += [
        Tunnel(kind, "n40", "tun", far, id=number, address="172.16.0.1/30"),
        Tunnel(kind, f"n{LAST}", "tun", near, id=number, address="172.16.0.2/30"),
    ]
    return Network("line", tuple(parts), ())


@pytest.mark.parametrize("kind", ["gre", "ipip", "gretap"])
def test_inherited_ttl(kind: str) -> None:
    """40 routers forward it before the tunnel, so a TTL of 24 is left. 38 more routers forward it inside the tunnel."""
    assert paths(line(kind), "n0", "172.16.0.2") == []
    assert no_path(line(kind), "n0", "172.16.0.2") == "the TTL expires at n64"


@pytest.mark.parametrize("kind", ["vxlan", "geneve"])
def test_own_ttl(kind: str) -> None:
    [path] = paths(line(kind), "n0", "172.16.0.2")
    assert path.ttl == 64 - 40
