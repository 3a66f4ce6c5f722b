"""Filters on the headers inside a tunnel: the kernel runs them on frames of every form that a tunnel has."""

import socket
import struct
import time
from contextlib import closing, suppress

import pytest
from example_frames import echo, ethernet, geneve, gre, ip, ip6, tcp, udp, vxlan

from labkit.common.errors import BadInput
from labkit.common.packets import ETHERNET, RAW_IP
from labkit.measure.observers.monitor import Selection
from labkit.measure.observers.monitor.inner_headers import IN_IP, IN_UDP
from labkit.system import libpcap
from labkit.system.recording.packet_ring import attach

OUTER4, OUTER6 = "192.168.0.1 > 192.168.0.2", "fd99::1 > fd99::2"
ENDS = {4: "10.9.0.1 > 10.9.0.2", 6: "fd00::a:1 > fd00::b:2"}
TYPES = {4: 0x0800, 6: 0x86DD}


def packet(version: int, inner: bytes, protocol: int) -> bytes:
    return (ip if version == 4 else ip6)(inner, ENDS[version], protocol)


def outside(version: int, inner: bytes, protocol: int) -> bytes:
    packet = ip(inner, OUTER4, protocol) if version == 4 else ip6(inner, OUTER6, protocol)
    return ethernet(packet, TYPES[version])


def frames(kind: str, inner: bytes, version: int) -> list[bytes]:
    """Return an inner packet in every form that the tunnel has."""
    tagged = struct.pack("!HH", 5, TYPES[version]) + inner
    bridged = [ethernet(inner, TYPES[version]), ethernet(tagged, 0x8100), ethernet(tagged, 0x88A8)]
    if kind in IN_UDP:
        options = (b"", bytes(4), bytes(range(60)))
        of_geneve = [udp(geneve(content, options=each), 6081) for each in options for content in bridged]
        of_udp = of_geneve if kind == "geneve" else [udp(vxlan(content), 4789) for content in bridged]
        return [outside(outer, one, 17) for outer in (4, 6) for one in of_udp]
    if kind == "ipip":
        return [outside(outer, inner, {4: 4, 6: 41}[version]) for outer in (4, 6)]
    fields: list[dict[str, int]] = [{}, {"key": 7}, {"checksum": 1, "key": 7, "sequence": 9}]
    return [
        outside(outer, gre(content, number, **each), 47)
        for outer in (4, 6)
        for each in fields
        for content, number in ((inner, TYPES[version]), *((one, 0x6558) for one in bridged))
    ]


def selected(selection: Selection, sent: list[bytes], link_type: int = ETHERNET) -> list[bytes]:
    """Return the frames that the kernel lets through: a unix socket takes the same programs as a packet socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with closing(ours), closing(theirs):
        attach(theirs, libpcap.compiled(selection.filter(), link_type, 2048))
        theirs.setblocking(False)
        result = []
        for frame in sent:
            ours.send(frame)
            with suppress(BlockingIOError):
                result.append(theirs.recv(4096))
        return result


def test_interfaces_without_a_link_header_have_filters() -> None:
    """Those of GRE, IPIP, WireGuard and tun."""
    of_udp, of_icmp = (packet(4, udp(b"x", 53), 17), packet(4, echo(), 1))
    for selection in (Selection(protocol="icmp"), Selection(expression="icmp[icmptype] = icmp-echo")):
        assert selected(selection, [of_udp, of_icmp], RAW_IP) == [of_icmp]


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("kind", [*IN_UDP, *IN_IP])
def test_inner_headers_select(kind: str, version: int) -> None:
    of_tcp, of_udp = packet(version, tcp(b"x"), 6), packet(version, udp(b"x", 53), 17)
    of_icmp = packet(version, echo(), 1 if version == 4 else 58)
    wanted = frames(kind, of_tcp, version)
    every = [*wanted, *frames(kind, of_udp, version), *frames(kind, of_icmp, version)]
    every += [frame[:40] for frame in wanted]  # cut off
    other = ip6(tcp(b""), "::1 > ::2", 6) if version == 4 else ip(tcp(b""), "1.1.1.1 > 1.1.1.2", 6)
    every += frames(kind, other, 10 - version)
    every += [ethernet(of_tcp, TYPES[version])]  # not in a tunnel
    source, destination = ENDS[version].split(" > ")
    prefix = {4: "10.9.0.0/30", 6: "fd00::b:0/112"}[version]
    for selection in (
        Selection(inside=kind, source=source, destination=prefix, protocol="tcp"),
        Selection(inside=kind, destination=destination, port="5200-5210"),
        Selection(inside=kind, source=source, port=40000, protocol="tcp"),
    ):
        assert selected(selection, every) == wanted
    icmp = Selection(inside=kind, protocol="icmp" if version == 4 else "icmp6")
    assert selected(icmp, every) == frames(kind, of_icmp, version)
    swapped = Selection(inside=kind, source=destination)
    assert selected(swapped, every) == []
    assert selected(Selection(source=source), wanted) == []


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("kind", ["gre", "ipip"])
def test_destination_options_outside(kind: str, version: int) -> None:
    """Linux puts a limit of tunnels in tunnels (RFC 2473) before GRE and IP in IPv6, unless a device has none."""
    inner = packet(version, tcp(b"x"), 6)
    protocol, content = (47, gre(inner, TYPES[version])) if kind == "gre" else ({4: 4, 6: 41}[version], inner)
    limit, more = bytes((protocol, 0, 4, 1, 4, 1, 0, 0)), bytes((protocol, 1, 4, 1, 4, 1, 8)) + bytes(9)
    wanted, longer = (outside(6, options + content, 60) for options in (limit, more))
    other = outside(6, bytes((17, *limit[1:])) + content, 60)
    selection = Selection(inside=kind, source=ENDS[version].split(" > ")[0], port=40000)
    assert selected(selection, [wanted, longer, other]) == [wanted]


@pytest.mark.parametrize(("protocol", "content"), [("udp", udp(b"x", 53)), ("tcp", tcp(b"x"))])
def test_ports_behind_an_extension_header(protocol: str, content: bytes) -> None:
    """Later fragments have none; a longer header is in the way of ports, not of the protocol."""
    number, port = (17, 53) if protocol == "udp" else (6, 5201)

    def behind(kind: int, *header: int) -> bytes:
        return outside(6, bytes((number, *header)) + bytes(8 * header[0]) + content, kind)

    options, longer = (
        [behind(kind, 0, 1, 4, 0, 0, 0, 0) for kind in (0, 43, 60)],
        behind(60, 1, 1, 12, 0, 0, 0, 0),
    )
    first, later = behind(44, 0, 0, 1, 0, 0, 0, 7), behind(44, 0, 5, 0x98, 0, 0, 0, 7)
    plain, other = outside(6, content, number), outside(6, bytes((58, 0, 1, 4, 0, 0, 0, 0)) + content, 60)
    sent = [*options, longer, first, later, plain, other, outside(4, content, number)]
    having = [*options, first, plain, sent[-1]]
    for selection in (Selection(port=port), Selection(port=f"{port - 1}-{port + 1}", protocol=protocol)):
        assert selected(selection, sent) == having
    assert selected(Selection(port=port + 1), sent) == []
    assert selected(Selection(protocol=protocol), sent) == [one for one in sent if one != other]


@pytest.mark.parametrize("kind", ["gre", "geneve", "vxlan", "ipip"])
def test_programs_are_small_enough_for_a_socket(kind: str) -> None:
    """Linux 6.1 refused one of 938 instructions: a socket has 20 kB there for what the kernel makes of them."""
    given = Selection(inside=kind, source="fd99::1", protocol="icmp6")
    assert len(libpcap.compiled(given.filter(), ETHERNET, 256)) < 700 * 8


def test_ports_of_fragments() -> None:
    first = ip(udp(b"x", 53), ENDS[4], 17, place=0x2000)
    later = ip(udp(b"x", 53), ENDS[4], 17, place=1)  # its bytes only look like ports
    sent = [one for each in (first, later) for one in frames("vxlan", each, 4)]
    assert selected(Selection(inside="vxlan", port=53), sent) == frames("vxlan", first, 4)


def test_impossible_inner_selection_is_refused() -> None:
    for given, words in (
        ({"source": "10.0.0.1", "destination": "fd00::1"}, "give IPv4 only, or IPv6 only"),
        ({"source": "10.0.0.1", "protocol": "ip6"}, "give IPv4 only, or IPv6 only"),
        ({"protocol": "arp"}, "protocol=arp cannot be inside=vxlan"),
        ({"protocol": "icmp", "port": "2048"}, "port cannot be given with protocol=icmp, which has no ports"),
    ):
        with pytest.raises(BadInput, match=words):
            Selection(inside="vxlan", **given).filter()  # type: ignore[arg-type]


def test_the_longest_filter_compiles_at_once() -> None:
    """GRE has the most forms, and two IPv6 addresses are the most words to compare."""
    selection = Selection(
        inside="gre", source="fd00::1", destination="fd00::2", port="1-2", expression="ip or arp", vlan=7
    )
    begun = time.monotonic()
    program = libpcap.compiled(selection.filter(), ETHERNET, 256)
    assert time.monotonic() - begun < 2
    assert len(program) // 8 < 4096  # BPF_MAXINSNS
