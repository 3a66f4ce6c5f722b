"""Header sizes of tunnels agree with the RFCs and with the kernel's own arithmetic."""

import pytest

from labkit.common.errors import BadInput
from labkit.measure.topologies.linux_datapaths import TUNNELS, outside_bytes
from labkit.measure.topologies.network import kinds
from labkit.measure.topologies.network.validate import MAX_BYTES


def test_overhead() -> None:
    for nested, four, six in (
        # drivers/net/vxlan.c VXLAN_HEADROOM, VXLAN6_HEADROOM; geneve.c; ip(8): gre's MTU is 1476, gretap's 1462
        (["vxlan"], 50, 70),
        (["gre"], 24, 44),
        (["gretap"], 38, 58),
        (["gre", "vxlan"], 74, 94),
        (["wireguard"], 60, 80),  # drivers/net/wireguard/messages.h, MESSAGE_MINIMUM_LENGTH
        (["macsec"], 32, 32),  # drivers/net/macsec.c, macsec_extra_len and the ICV
    ):
        assert kinds.overhead_bytes(*nested) == four
        assert kinds.overhead_bytes(*nested, family=6) == six
        has_gre = bool({"gre", "gretap"} & set(nested))
        assert kinds.overhead_bytes(*nested, key=True) == four + 4 * has_gre


def test_esp_pads() -> None:
    """The kernel's formula, xfrm_state_mtu (net/xfrm/xfrm_state.c)."""
    for path in range(1300, 1310):
        for mode, outer, inner in (("xfrm", 20, 0), (kinds.TRANSPORT, 0, 20)):
            expected = ((path - outer - 32 - inner) & ~3) + inner - 2
            added = kinds.within(kinds.headers(mode), path)
            assert path - kinds.length_bytes(added) == expected
            assert kinds.length_bytes(kinds.around(added, expected)) + expected <= path + 3


def test_headers_and_their_arithmetic() -> None:
    names = [header.name for header in kinds.headers("gre", "vxlan", key=True)]
    assert names == ["IPv4", "GRE", "GRE key", "IPv4", "UDP", "VXLAN", "Ethernet"]
    assert all(header.source for kind in kinds.tunnels() for header in kinds.headers(kind))
    lines = kinds.arithmetic(1500, "lc1_sc2", kinds.headers("gre"))
    assert lines == "1500 (lc1_sc2) - 20 (IPv4) - 4 (GRE) = 1476"
    with pytest.raises(BadInput, match="sit is not a kind of tunnel: choose vxlan, geneve, gre"):
        kinds.overhead_bytes("sit")


@pytest.mark.parametrize("name", TUNNELS)
def test_refusal_names_the_largest_mtu_that_fits(name: str) -> None:
    with pytest.raises(BadInput, match="does not fit") as refused:
        outside_bytes(name, 65535)
    largest = int(str(refused.value).rpartition(" = ")[2])
    assert outside_bytes(name, largest) <= MAX_BYTES
    with pytest.raises(BadInput, match="does not fit"):
        outside_bytes(name, largest + 1)
