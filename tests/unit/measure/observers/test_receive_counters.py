"""Receive counters: what is no payload, and datagrams of tunnels that end beside the server."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.endpoints import Namespace, namespace
from labkit.measure.observers.counters import receive_counters
from labkit.measure.observers.counters.receive_counters import ReceiveCounts
from labkit.system.netlink import LinkCounters, encryption


def test_headers_of_tcp_are_no_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without segmentation offload every frame has headers, and would seem to carry 4.6 % more."""
    for interface, kind, address, local, payload_bytes, more_bytes, *timestamps in (
        ("eth0", "veth", "10.2.0.1", True, 1448, 0),
        ("eth0", "veth", "fd00::2:1", True, 1428, 0),
        ("eth0", "vxlan", "10.2.0.1", True, 1462, 0),  # its counters leave out the Ethernet header
        ("eth0", "ipvlan", "10.2.0.1", True, 1434, 0),  # its counters count it twice
        ("eth0", "ipvlan", "10.2.0.1", False, 1448, 0),
        ("lo", None, "127.0.0.1", True, 1462, 0),
        ("eth0", "macsec", "10.2.0.1", True, 1448, 0),
        ("eth0", "wireguard", "10.2.0.1", True, 1430, 0),  # it counts its own 32 bytes
        ("eth0", "veth", "10.2.0.1", True, 1412, 36),
        ("br0", "bridge", "10.2.0.1", True, 1462, 0),
        ("eth0.5", "vlan", "10.2.0.1", True, 1462, 0),
        ("tun0", "tun", "10.2.0.1", True, 1462, 0),  # it has no Ethernet header
        ("tap0", "tun", "10.2.0.1", True, 1448, 0),
        ("tap0", "tun", "10.2.0.1", True, 1460, -12),  # of a program that sends no timestamps
        ("tap0", "tun", "10.2.0.1", True, 1460, -12, "0"),
        ("eth0", "veth", "10.2.0.1", True, 1460, 0, "0"),
        ("eth0", "veth", "10.2.0.1", True, 1424, 36, "0"),
        ("eth0", "ip6gretap", "fd00::2:1", True, 1442, 0),
    ):
        mac = None if kind == "wireguard" or interface in ("lo", "tun0") else "02:00:00:00:00:07"
        links = [SimpleNamespace(index=at, kind=of, mac=mac) for at, of in ((7, kind), (8, "vxlan"))]
        monkeypatch.setattr(receive_counters.netlink, "links", lambda _kernel, links=links: links)
        end: Any = SimpleNamespace(
            interface=interface, index=7, address=address,
            kernel=SimpleNamespace(is_here=True, read=lambda _path, own=timestamps: "".join(own) or "1\n"),
            namespace=SimpleNamespace(netlink=None), more_header_bytes=more_bytes,
            counters=lambda: LinkCounters(1514 * 1000, 1000),
        )  # fmt: skip
        counts = receive_counters.Receivers([end, end], "tcp", None, [end] * local).read()
        assert counts == ReceiveCounts(2 * payload_bytes * 1000, 2000), (interface, kind)


def test_long_files_of_the_kernel_are_read_to_their_end() -> None:
    """A read of a file that the kernel makes record by record ends with a page."""
    path = "/proc/kallsyms"
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    kernel = Namespace("client0", here, Any)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(namespace.netlink, "inside", lambda _fd: nullcontext())  # which needs root
        patch.setattr(namespace, "KEPT_OPEN", (path,))
        assert len(kernel.read(path)) == len(Path(path).read_bytes().decode()) > 1 << 16
        assert len(kernel.read(path)) > 1 << 16, "the next reading begins anew"


@pytest.mark.parametrize(
    ("address", "names"), [("10.2.0.1", {"four", "wg4"}), ("fd00::2:1", {"six", "own", "wg6"})]
)
def test_outer_datagrams_have_an_ip_version(
    address: str, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts datagrams of IPv4 and of IPv6 apart: only those of the load's version are taken out."""
    links = [
        SimpleNamespace(name=name, kind=kind, index=index, data=data)
        for index, (name, kind, data) in enumerate((
            ("four", "vxlan", {"IFLA_VXLAN_GROUP": "192.0.2.1", "IFLA_VXLAN_UDP_ZERO_CSUM6_RX": 0}),
            ("six", "geneve", {"IFLA_GENEVE_REMOTE6": "fd00::1"}), ("own", "vxlan", {"IFLA_VXLAN_LOCAL6": "fd00::2"}),
            ("wg4", "wireguard", {}), ("wg6", "wireguard", {}), ("eth0", "veth", {}),
        ))
    ]  # fmt: skip
    remotes = {3: ["192.0.2.1"], 4: ["fd00::1"]}
    monkeypatch.setattr(receive_counters.netlink, "links", lambda _kernel: links)
    monkeypatch.setattr(
        encryption, "wireguard", lambda _netns, index: SimpleNamespace(remotes=remotes[index])
    )
    space: Any = SimpleNamespace(netlink=None, fd=0)
    assert {link.name for link in receive_counters.udp_tunnels(space, address)} == names


def end(index: int, received: int, sent: int = 0, discarded: int = 0, fragments: int = 0) -> Any:
    """Return an end whose kernel has counted these packets of IPv6."""
    text = f"Ip6FragCreates {fragments}\nIp6OutDiscards {discarded}\n"
    text += f"Udp6InDatagrams {received}\nUdp6OutDatagrams {sent}\n"
    kernel, space = SimpleNamespace(read=lambda _path: text), SimpleNamespace(netlink=None)
    return SimpleNamespace(kernel=kernel, index=index, address="fd00::1", namespace=space)


def test_clients_that_share_a_namespace_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receive_counters.netlink, "links", lambda _kernel: [])
    shared, other = (end(number, 100, 7, discarded=3, fragments=5) for number in (1, 2))
    counters = receive_counters.Receivers([other], "udp", 100, [shared, shared, other])
    # What a queue refused was sent, too.
    assert counters.read() == ReceiveCounts(10_000, 100, 20, 10)


def test_payload_of_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One interface at both ends counts both directions together."""
    monkeypatch.setattr(receive_counters.netlink, "links", lambda _kernel: [])
    pairs: Any = [SimpleNamespace(client=end(1, 30), server=end(2, 7)) for _ in range(2)]
    for direction, received_count, reverse_bytes in (
        ("forward", 14, None), ("reverse", 60, None), ("both", 74, 6000),
    ):  # fmt: skip
        read = receive_counters.receivers(pairs, "udp", 100, direction).read()
        assert (read.received_count, read.reverse_bytes) == (received_count, reverse_bytes)
    one = end(1, 30)
    shared: Any = [SimpleNamespace(client=one, server=one)]
    assert receive_counters.receivers(shared, "udp", 100, "both").read().reverse_bytes is None
