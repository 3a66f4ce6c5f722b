"""Filter expressions of the monitor: built expressions, rejected input, and libpcap's acceptance."""

import time
from typing import Any

import pytest

from labkit.common.errors import BadInput, Unsupported
from labkit.common.packets import ETHERNET
from labkit.measure.observers.monitor import Selection
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
