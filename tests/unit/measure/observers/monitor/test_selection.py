"""What the monitor takes: built filter expressions, rejected input, libpcap's acceptance, and samplers."""

import time
from typing import Any

import pytest

from labkit.common.errors import BadInput, Unsupported
from labkit.common.packets import ETHERNET
from labkit.measure.observers.monitor import Selection, sampler
from labkit.measure.observers.monitor.sampling import MAX_FLOWS
from labkit.system import libpcap, netlink

HOSTILE = [
    "$(id)", "`id`", "10.0.0.1; id", "-w /tmp/x", "10.0.0.1\n10.0.0.2", "10.0.0.1 or ip", "../..", "", "x" * 100_000,
]  # fmt: skip


def test_expression_of_a_selection() -> None:
    for selection, expression in (
        (Selection(), ""),
        (Selection(source="10.0.0.1", destination="10.0.0.0/8"), "src net 10.0.0.1/32 and dst net 10.0.0.0/8"),
        (Selection(protocol="icmp", source="10.0.0.1"), "icmp and src net 10.0.0.1/32"),
        (Selection(protocol="arp", vlan=7), "vlan 7 and arp"),
        (Selection(vlan=7, source="10.0.0.1"), "vlan 7 and src net 10.0.0.1/32"),
        (Selection(expression="tcp or arp", protocol="ip"), "ip and (tcp or arp)"),
    ):  # fmt: skip
        assert selection.filter() == expression
        program = libpcap.compiled(expression, ETHERNET, 256)
        assert program
        assert len(program) % 8 == 0


@pytest.mark.parametrize("name", ["source", "destination", "port", "protocol", "inside"])
def test_hostile_values_are_refused(name: str) -> None:
    for value in HOSTILE:
        with pytest.raises(BadInput) as raised:
            Selection(**{name: value}).filter()  # type: ignore[arg-type]
        assert len(str(raised.value)) < 500


def test_hostile_expressions_are_refused_at_once() -> None:
    for expression, words in (
        ("ip) or (ip", "parentheses that do not match"),
        ("(" * 100_000, "characters"),
        ("(" * 1000 + "ip" + ")" * 1000, "nests more than"),
        ("ip \n or arp", "plain ASCII"),
        ("-w /tmp/x", "syntax error"),
    ):
        begun = time.monotonic()
        with pytest.raises(BadInput, match=words):
            libpcap.compiled(Selection(expression=expression).filter(), ETHERNET, 256)
        assert time.monotonic() - begun < 2


def test_vlan_out_of_range() -> None:
    with pytest.raises(BadInput, match="vlan=4096"):
        Selection(vlan=4096).filter()


@pytest.mark.needs("root", "veth")
def test_a_filter_is_for_an_interface_that_is_down_too(namespace: Any) -> None:
    """It may come up while the monitor runs. libpcap asks an interface that is up: lo, if that is."""
    fd, kernel = namespace
    kernel.do(netlink.new_link("veth", "v0", index=7, up=False, peer={"name": "v1"}))
    with netlink.inside(fd), pytest.raises(Unsupported, match="for v0: That device is not up"):
        libpcap.compiled("vlan 7 and icmp", ETHERNET, 256, "v0")
    kernel.do(netlink.set_link(1))
    with netlink.inside(fd):
        down = libpcap.compiled("vlan 7 and icmp", ETHERNET, 256, "v0")
        kernel.do(netlink.set_link(7))
        assert libpcap.compiled("vlan 7 and icmp", ETHERNET, 256, "v0") == down
    # A file has no tags beside packets.
    assert libpcap.compiled("vlan 7 and icmp", ETHERNET, 256) != down


MS = 1_000_000


def chosen(text: str, packets: list[tuple[int, int, bytes]]) -> list[int]:
    sample = sampler(text)
    return [number for number, packet in enumerate(packets) if sample(*packet)]


def every_ms(count: int) -> list[tuple[int, int, bytes]]:
    return [(number * MS, 100, b"flow") for number in range(count)]


def test_samplers() -> None:
    assert chosen("all", every_ms(3)) == [0, 1, 2]
    assert chosen("one_in:4", every_ms(10)) == [3, 7]
    assert chosen("interval:2:0.01", every_ms(30)) == [0, 1, 10, 11, 20, 21]
    count = len(chosen("random:0.1", every_ms(10_000)))
    assert 850 < count < 1150  # 5 standard deviations of a binomial distribution
    assert chosen("random:0.1:7", every_ms(1000)) == chosen("random:0.1:7", every_ms(1000))
    assert chosen("random:0", every_ms(1000)) == []
    assert len(chosen("random:1", every_ms(1000))) == 1000
    packets = [(0, 100, flow) for _ in range(5) for flow in (b"a", b"b")]
    assert chosen("first:250", packets) == [0, 1, 2, 3, 4, 5]
    packets = [(0, 100, number.to_bytes(4)) for number in range(MAX_FLOWS + 1)]
    assert len(chosen("first:100", [*packets, packets[0]])) == MAX_FLOWS + 2


def test_invalid_sampler_is_refused() -> None:
    fractions = ("one_in:1.5", "random:0.1:0.5", "interval:1.5:1", "first:1.5")
    for text in (*fractions, "some", "one_in:0", "one_in:nan", "random:2", "interval:1:1:1", "x" * 10_000):
        with pytest.raises(BadInput, match="choose all, one_in:N") as raised:
            sampler(text)
        assert len(str(raised.value)) < 600
