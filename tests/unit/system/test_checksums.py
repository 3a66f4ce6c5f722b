"""Checksums of packets that labkit makes are right also where adding the carry makes another one (RFC 1071)."""

from ipaddress import IPv6Address
from types import SimpleNamespace
from typing import Any

from labkit.measure.existing.checks import probes
from labkit.measure.traffic.ping import Echo
from labkit.system.netlink import address_probe


def is_right(data: bytes) -> bool:
    total = sum(int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


def test_of_a_neighbour_solicitation() -> None:
    for address in ("fd00::3ed4", "fd00::3ed5", "2001:db8::ffff"):
        packet = address_probe._solicitation(bytes(6), IPv6Address(address))[14:]
        assert is_right(packet[8:40] + bytes((0, 24, 0, 58)) + packet[40:]), address  # with the pseudo-header


def test_of_echo_requests() -> None:
    sent = list[bytes]()
    echo: Any = object.__new__(Echo)
    echo._family, echo._identifier, echo._length_bytes = 4, 0xFFFF, 16
    echo._socket = SimpleNamespace(send=sent.append)
    for before in (0xF7FF, 7):  # 0x0800 + 0xFFFF + 0xF800 is 0x1FFFF
        echo._sequence = before
        echo.send()
    sent += [probes._echo_request(4, number, b"token678\xff") + b"\0" for number in range(0xFF00, 0xFFFF)]
    assert all(map(is_right, sent))
