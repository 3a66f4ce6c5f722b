"""Every kind of tunnel on a kernel that supports them all: reachability, MTU, headers, and peers."""

import json
from typing import Any

import msgspec
import pytest
from conftest import SharedVm, printed_at
from sandbox import also

from labkit.analysis import drawing
from labkit.common.topology_state import Place, State
from labkit.measure.topologies.linux_datapaths import TUNNELS
from labkit.measure.topologies.network.kinds import TRANSPORT

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "qemu", "full kernel")

Answer = dict[str, Any]
ADDED = {
    "vxlan": 50, "geneve": 50, "gre": 24, "gretap": 38, "ipip": 20, "vxlan_gre": 74, "wireguard": 60,
    "esp_transport": 34, "esp_tunnel": 56, "macsec": 32, "vxlan_wireguard": 110, "vxlan_esp_transport": 84,
    "vxlan_esp_tunnel": 104, "vxlan_macsec": 82,
}  # fmt: skip
# ESP pads to 4 bytes: 1402 is a length at which not a byte more fits.
MTU = dict.fromkeys(TUNNELS, 1400) | {"esp_transport": 1402}
# Further padding of the short packets that are measured, by name and IP version.
PADDED = {
    ("wireguard", 4): 4, ("vxlan_wireguard", 4): 2, ("vxlan_wireguard", 6): 14, ("esp_transport", 4): 2,
    ("esp_transport", 6): 2,
}  # fmt: skip
KIND = {name: "vxlan" for name in TUNNELS if name.startswith("vxlan_")} | {
    "esp_transport": "veth",
    "esp_tunnel": "xfrm",
}
# IPv6 in VXLAN needs no other headers in each tunnel around it; WireGuard pads it in another way.
PARAMETERS = [(name, 4) for name in TUNNELS]
PARAMETERS += [(name, 6) for name in TUNNELS if not name.startswith("vxlan_") or name == "vxlan_wireguard"]
# One of each way to build them: ten seconds each on an emulated CPU. test_topologies.py measures VXLAN alone, which
# CI's own kernel has, test_overlay_built.py follows packets in GRE, and test_encryption.py those in ESP's tunnel mode
# and in MACsec.
IN_CI = (("geneve", 4), ("ipip", 4), ("ipip", 6), ("esp_transport", 4), ("vxlan_wireguard", 6))
# A tunnel around another one is built as the same one alone is.
ONE_PAIR = {name for name in TUNNELS if name.startswith("vxlan_")} - {"vxlan_gre"}


@pytest.fixture(scope="module")
def result(shared_vm: SharedVm, request: pytest.FixtureRequest) -> dict[tuple[str, int], Answer]:
    """Return the findings for each kind of tunnel that is tested, by its name and the inner IP version."""
    calls = [item.callspec.params for item in request.session.items if item.path == request.path]
    tested = [(one["name"], one["family"]) for one in calls]
    requests = [
        {"name": name, "mtu_bytes": MTU[name], "family": family,
         "pairs": 1 if family == 6 or name in ONE_PAIR else 2}
        for name, family in tested
    ]  # fmt: skip
    answers = printed_at(shared_vm.where, "lab/build_topologies.py", json.dumps(requests))
    return dict(zip(tested, answers, strict=True))


@pytest.mark.parametrize(
    ("name", "family"),
    [*IN_CI, *also("exhaustive", *(one for one in PARAMETERS if one not in IN_CI))],
)
def test_tunnel_reaches_and_measures(name: str, family: int, result: dict[tuple[str, int], Answer]) -> None:
    report = result[name, family]
    if (name, family) == ("ipip", 6):
        assert (report["error"], report["text"].partition(" (")[0]) == ("BadInput", "ipip carries IPv4 only")
        return
    assert "error" not in report, report
    reaches(name, family, report)
    outside(name, family, report)
    peers(name, msgspec.convert(report["state"], State))


def reaches(name: str, family: int, report: Answer) -> None:
    """Check that every pair is reachable at the MTU and not above it."""
    count = len(report["pairs"])
    assert report["full"] == [True] * count
    assert report["ttl"] == [64] * count
    assert report["one_more"] == []
    # In transport mode IPv6 looks at the path's own MTU first (ip6_setup_cork); then the packet is dropped.
    if (name, family) != ("esp_transport", 6):
        assert report["one_more_refused"] == [True] * count
    assert report["reachable"] is None


def outside(name: str, family: int, report: Answer) -> None:
    """Check that the underlay's MTU is larger by the headers' length, which the captures confirm."""
    for links in report["links"].values():
        if name == "esp_transport":
            assert links["eth0"]["mtu"] == MTU[name] + ADDED[name]
        else:
            assert (links["eth0"]["mtu"], links["under"]["mtu"]) == (MTU[name], MTU[name] + ADDED[name])
        assert links["eth0"]["linkinfo"]["info_kind"] == KIND.get(name, name)
        assert links["eth0"]["qdisc"] == "noqueue"
    measured = report["headers"]
    expected = ADDED[name] + PADDED.get((name, family), 0)
    assert measured["computed_bytes"] == measured["measured_bytes"] == expected
    assert sum(layer["header_bytes"] for layer in measured["layers"]) == expected


def peers(name: str, state: State) -> None:
    """Check that each end's tunnel is the peer of the other end's, in its own pair; with two tunnels, check both."""
    interfaces = {(space.name, one.name): one for space in state.namespaces for one in space.interfaces}
    kind, depth = KIND.get(name, name), len([one for one in TUNNELS[name] if one != TRANSPORT]) - 1
    if kind in ("veth", "macsec"):  # neither has an outer address
        assert kind == "macsec" or interfaces["client0", "eth0"].mode == "esp"
        return
    for number in range(len(state.pairs)):
        for near, far, side in (("client", "server", 0), ("server", "client", 1)):
            one = interfaces[f"{near}{number}", "eth0"].tunnel
            assert one is not None
            assert one.peers == [Place(f"{far}{number}", "eth0")]
            local = None if kind in ("geneve", "wireguard") else f"192.168.{depth}.{side}"
            assert (one.local, one.remotes) == (local, [f"192.168.{depth}.{1 - side}"])
            assert one.id == (42 if kind in ("vxlan", "geneve", "xfrm") else None)
            assert one.port == {"vxlan": 4789, "geneve": 6081, "wireguard": 51820}.get(kind)
            if depth and TUNNELS[name][0] != "macsec":
                outer = interfaces[f"{near}{number}", "outer"].tunnel
                assert outer is not None
                assert outer.peers == [Place(f"{far}{number}", "outer")]
    drawn = drawing.tree(state)
    assert "gre0" not in drawn
    assert f"(server{len(state.pairs) - 1}/eth0)" in drawn
