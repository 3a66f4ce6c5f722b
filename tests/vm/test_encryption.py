"""Encrypted links in a kernel that has them: nothing readable leaves, the kernel's tools agree, and wrong keys are
said."""

import re
import sys
from pathlib import Path
from typing import Any

import example_networks
import pytest
from clone_macsec import SETTINGS
from conftest import ROOT, SharedVm, printed_at
from sandbox import also

from labkit import live
from labkit.common import packets
from labkit.common.packets import pcapng
from labkit.measure.topologies.linux_datapaths import ENCRYPTED
from labkit.measure.topologies.state import packet_path

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "wg", "qemu", "full kernel")

PATTERN = "5ca1ab1e"
# ESP makes and gives its keys in one way for both modes.
KINDS = [name for name in ENCRYPTED if name != "esp_transport"]
ADDED = """
import os, sys
from labkit.system.netlink import encryption
print(encryption.added_bytes(os.open("/proc/self/ns/net", os.O_RDONLY), *sys.argv[1:]))
"""
OUTSIDE = {
    "wireguard": "udp wireguard", "esp_transport": "ip esp", "esp_tunnel": "ip esp", "macsec": "ethernet macsec",
}  # fmt: skip
TOOLS = {
    "wireguard": (("wg", "show", "all", "dump"), "\t51820\t"),
    "esp_transport": (("ip", "xfrm", "state"), "rfc4106(gcm(aes))"),
    "esp_tunnel": (("ip", "xfrm", "state"), "mode tunnel"),
    "macsec": (("ip", "macsec", "show"), "encrypt on"),
}


def ping(net: live.LiveTopology, client: str, server: str, *words: str) -> str:
    address = net.endpoints[server].address or ""
    return net.endpoints[client].run("ping", "-n", "-c3", "-i0.2", "-w20", *words, address)


# WireGuard always encrypts.
@pytest.mark.parametrize("kind", ["esp_tunnel", "macsec", *also("exhaustive", "wireguard", "esp_transport")])
def test_nothing_readable_leaves(kind: str, shared_vm: SharedVm, tmp_path: Path) -> None:
    """test_tunnels.py measures the headers of VXLAN inside of each kind, and those of ESP's transport mode."""
    cable = "eth0" if kind == "esp_transport" else "under"
    with live.build(kind, where=shared_vm.where) as net:
        with net.capture(*{"client0:eth0", f"client0:{cable}"}) as seen:
            assert " 0% packet loss" in ping(net, "client0", "server0", "-p", PATTERN, "-s200")
        words, expected = TOOLS[kind]
        assert expected in net.client0.run(*words)
        [path] = packet_path.packet_paths(net.state)
        if kind == "esp_transport":  # header, IV, trailer and ICV of AES-GCM (RFC 4106): 8 + 8 + 2 + 16 bytes
            ends = [str(net.endpoints[name].address) for name in ("client0", "server0")]
            assert int(net.client0.run("env", f"PYTHONPATH={ROOT}", sys.executable, "-c", ADDED, *ends)) == 34
    seen.save(file := tmp_path / "seen.pcapng")
    sent = [frame for frame in pcapng.read(file.read_bytes()).frames if frame.direction == "out"]
    outside = [frame for frame in sent if frame.hop == f"client0:{cable}"]
    layers = [
        " ".join(layer.name for layer in packets.layers(frame.data, frame.link_type)) for frame in outside
    ]
    assert sum(one.endswith(OUTSIDE[kind]) for one in layers) >= 3, layers
    readable = {frame.hop for frame in sent if bytes.fromhex(PATTERN) in frame.data}
    assert readable == ({"client0:eth0"} if cable == "under" else set())
    assert path[0].interface == "eth0"
    assert {"client0", "server0"} == {step.namespace for step in path}
    assert cable in {step.interface for step in path}


@pytest.fixture(scope="module")
def report(shared_vm: SharedVm) -> dict[str, Any]:
    """Return what encrypted_links.py prints. Its experiment measures the kinds with keys of their own."""
    load = "protocol=udp rate_bps=1000000 length_bytes=200 rounds=1 slices=0 duration_s=1 omit_s=0"
    words = (f"topology={','.join(KINDS)}", *load.split(), "observe=counters", "profile_rounds=1")
    result: dict[str, Any] = printed_at(shared_vm.where, "vm/encrypted_links.py", *words)
    return result


def test_wrong_keys_are_said(report: dict[str, Any]) -> None:
    said = report["wrong keys"]
    assert list(said) == list(ENCRYPTED)
    for words in said.values():
        assert words.startswith("client0 gets no answer from server0 to a ping of 1500 bytes; ")
        assert "cannot read what" in words
        assert "their keys differ" in words


@pytest.mark.needs("iperf3")
def test_no_key_is_stored(report: dict[str, Any]) -> None:
    stored = report["stored keys"]
    assert stored["measured"] == sorted(KINDS)
    assert stored["keys"] >= 2 * 2 * len(KINDS), "at least two set-ups of two ends"
    assert stored["files"] > 3
    assert (stored["found"], stored["planted"]) == ([], ["planted.gz"])


@pytest.mark.parametrize(
    ("settings", "copied"), [*zip(SETTINGS, ("", "cipher: GCM-AES-256, encrypts: false"), strict=True)]
)
def test_macsec_of_others_is_cloned_with_new_keys(settings: str, copied: str, report: dict[str, Any]) -> None:
    cloned = report["cloned"][settings]
    text = cloned["clone"]
    assert "# It lacks" not in text
    assert text.count("kind: macsec") == 2
    assert text.count(copied) >= 2
    assert text.count("replay_window: 64") == 2 * ("window 64" in settings)
    assert not re.search(r"\b[12]c[12]c", text), "a key of the original"
    assert cloned["copy"] == cloned["original"]
    assert cloned["silent"] is None
    steps = [f"{one['interface']} {one['direction']}" for one in cloned["drawn"]["forward"]]
    assert steps == ["macsec0 out", "eth0 out", "eth0 in", "macsec0 in"]


def test_network_of_ones_own(shared_vm: SharedVm) -> None:
    """The ends have different ports, as in people's own networks, and are drawn as peers."""
    network = example_networks.changed(example_networks.encrypted("wireguard"), "tun", "n2", port=51821)
    with live.build(network, where=shared_vm.where) as net:
        assert " 0% packet loss" in ping(net, "c1", "c2", "-Mdo", "-s1372")
        interfaces = [one for space in net.state.namespaces for one in space.interfaces]
        tunnel = next(one for one in interfaces if one.name == "tun")
    assert (tunnel.mtu_bytes, tunnel.kind) == (1440, "wireguard")
    assert tunnel.tunnel is not None
    assert [(place.namespace, place.interface) for place in tunnel.tunnel.peers] == [("n2", "tun")]
