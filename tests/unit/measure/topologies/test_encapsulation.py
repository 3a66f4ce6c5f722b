"""Header sizes of tunnels agree with the RFCs and with the kernel's own arithmetic."""

from __future__ import annotations

import pytest

from labkit.common.errors import BadInput
from labkit.measure.topologies.network import encapsulation


@pytest.mark.parametrize(
    ("kind", "four", "six"),
    [  # drivers/net/vxlan.c VXLAN_HEADROOM, VXLAN6_HEADROOM; geneve.c; ip(8): gre's MTU is 1476, gretap's 1462
        ("vxlan", 50, 70),
        ("geneve", 50, 70),
        ("gre", 24, 44),
        ("gretap", 38, 58),
        ("ipip", 20, 40),
        ("vxlan_gre", 74, 94),
    ],
)
def test_overhead(kind: str, four: int, six: int) -> None:
    assert encapsulation.overhead_bytes(kind) == four
    assert encapsulation.overhead_bytes(kind, family=6) == six
    has_gre = "gre" in kind
    assert encapsulation.overhead_bytes(kind, key=True) == four + 4 * has_gre


def test_header_order() -> None:
    names = [header.name for header in encapsulation.headers("vxlan_gre", key=True)]
    assert names == ["IPv4", "GRE", "GRE key", "IPv4", "UDP", "VXLAN", "Ethernet"]
    assert all(header.source for kind in encapsulation.HEADERS for header in encapsulation.headers(kind))


def test_overhead_arithmetic_text() -> None:
    lines = encapsulation.arithmetic(1500, "lc1_sc2", encapsulation.headers("gre"))
    assert lines == "1500 (lc1_sc2) - 20 (IPv4) - 4 (GRE) = 1476"


def test_unknown_kind() -> None:
    with pytest.raises(BadInput, match="sit is not a kind of tunnel: choose vxlan, geneve, gre"):
        encapsulation.overhead_bytes("sit")
