"""Receive counters where a tunnel ends beside the server: the tunnel's own datagrams, which the kernel counts, are
subtracted."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.endpoints import Namespace, namespace
from labkit.measure.observers.counters import receive_counters
from labkit.measure.observers.counters.receive_counters import ReceiveCounts
from labkit.system.netlink import LinkCounters

SNMP = "Udp: InDatagrams NoPorts InErrors OutDatagrams\nUdp: {} 0 0 7\n"


def server(taken_out: Iterator[int]) -> Any:
    """Return an endpoint whose namespace has decapsulated these numbers of packets, one for each reading."""
    kernel = SimpleNamespace(counters=lambda _index: LinkCounters(0, next(taken_out)))
    read = lambda _path: SNMP.format(100)  # noqa: E731
    return SimpleNamespace(kernel=SimpleNamespace(read=read), namespace=SimpleNamespace(netlink=kernel))


@pytest.mark.parametrize(
    ("interface", "kind", "address", "local", "payload_bytes"),
    [
        ("eth0", "veth", "10.2.0.1", True, 1448),
        ("eth0", "veth", "fd00::2:1", True, 1428),
        ("eth0", "vxlan", "10.2.0.1", True, 1462),  # its counters leave out the Ethernet header
        ("eth0", "ipvlan", "10.2.0.1", True, 1434),  # its counters count it twice
        ("eth0", "ipvlan", "10.2.0.1", False, 1448),
        ("lo", None, "127.0.0.1", True, 1462),
    ],
)
def test_headers_of_tcp_are_no_payload(
    interface: str,
    kind: str | None,
    address: str,
    local: bool,
    payload_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without segmentation offload every frame has headers, and would seem to carry 4.6 % more."""
    links = [SimpleNamespace(index=7, kind=kind), SimpleNamespace(index=8, kind="vxlan")]
    monkeypatch.setattr(receive_counters.netlink, "links", lambda _kernel: links)
    end: Any = SimpleNamespace(
        interface=interface, index=7, address=address, kernel=SimpleNamespace(is_here=True),
        namespace=SimpleNamespace(netlink=None),
        counters=lambda: LinkCounters(1514 * 1000, 1000),
    )  # fmt: skip
    counts = receive_counters.Receivers([end, end], "tcp", None, [end] * local).read()
    assert counts == ReceiveCounts(2 * payload_bytes * 1000, 2000)


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


def test_clients_that_share_a_namespace_count_once() -> None:
    def end() -> Any:
        text = "Ip6FragCreates 5\nUdp6InDatagrams 100\nUdp6OutDatagrams 7\n"
        return SimpleNamespace(
            kernel=SimpleNamespace(read=lambda _path: text), address="fd00::1", namespace=None
        )

    shared, other = end(), end()
    counters = receive_counters.Receivers([other], "udp", 100, [shared, shared, other])
    assert counters.read() == ReceiveCounts(10_000, 100, 14, 10)
