"""Checksums of packets that labkit makes are right also where adding the carry makes another one (RFC 1071)."""

from ipaddress import IPv6Address
from types import SimpleNamespace
from typing import Any

from example_frames import ones_sum

from labkit.measure.existing.checks import probes
from labkit.measure.traffic.ping import Echo
from labkit.system.netlink import address_probe


def test_of_a_neighbour_solicitation() -> None:
    for address in ("fd00::3ed4", "fd00::3ed5", "2001:db8::ffff"):
        packet = address_probe._solicitation(bytes(6), IPv6Address(address))[14:]
        with_pseudo_header = packet[8:40] + bytes((0, 24, 0, 58)) + packet[40:]
        assert ones_sum(with_pseudo_header) == 0xFFFF, address


def test_of_echo_requests() -> None:
    sent = list[bytes]()
    echo: Any = object.__new__(Echo)
    echo._family, echo._identifier, echo._length_bytes = 4, 0xFFFF, 16
    echo._socket = SimpleNamespace(send=sent.append)
    for before in (0xF7FF, 7):  # 0x0800 + 0xFFFF + 0xF800 is 0x1FFFF
        echo._sequence = before
        echo.send()
    sent += [probes._echo_request(4, number, b"token678\xff") + b"\0" for number in range(0xFF00, 0xFFFF)]
    assert {ones_sum(one) for one in sent} == {0xFFFF}
