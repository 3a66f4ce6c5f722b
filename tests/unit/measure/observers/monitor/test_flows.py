"""Classes and conversations of frames, and 10,000 mutated frames through all code of a monitor that reads bytes."""

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from example_frames import PAYLOAD, V6, echo, ethernet, geneve, gre, ip, ip6, tcp, udp, vxlan
from monitored_frames import mutants
from sandbox import output

from labkit.commands import monitor as command
from labkit.commands.console import new_console
from labkit.common.packets import ETHERNET, RAW_IP, pcapng
from labkit.measure.observers.monitor import flows
from labkit.measure.observers.monitor.flows import Totals, identify
from labkit.measure.observers.monitor.live_monitor import (
    MonitorCounts,
    MonitoredPacket,
    MonitorReport,
    blocks,
    hint,
)


def counted(frames: list[bytes], link_type: int = ETHERNET) -> Totals:
    totals = Totals()
    for data in frames:
        name, addresses, _ports = identify(data, link_type)
        totals.add(name, addresses, 1, len(data))
    return totals


def test_classes_and_conversations() -> None:
    datagram = ip(bytes(8), "10.0.0.1 > 10.0.0.2", 17)
    plain, tagged = ethernet(datagram), ethernet(b"\x00\x07\x08\x00" + datagram, 0x8100)
    icmp = ethernet(ip(bytes(8), "10.0.0.2 > 10.0.0.1", 1))
    other = ethernet(bytes(20), 0x1234)
    totals = counted([plain, tagged, icmp, other])
    assert totals.classes() == {"udp": [2, 88], "icmp": [1, 42], "other": [1, 34]}
    assert totals.conversations(2) == [
        ("udp", "10.0.0.1", "10.0.0.2", 2, 88),
        ("icmp", "10.0.0.2", "10.0.0.1", 1, 42),
    ]
    assert counted([datagram], RAW_IP).conversations(1) == [("udp", "10.0.0.1", "10.0.0.2", 1, 28)]


def test_the_class_is_the_inner_protocol_whatever_came_first() -> None:
    """In GRE, IP, options and fragments the order of packets changes no class, and fragments of a flow are one flow."""
    ends = "10.0.0.1 > 10.0.0.2"
    inner = {"icmp": ip(echo(), ends, 1), "tcp": ip(tcp(b""), ends, 6)}
    options = {name: bytes((number, 0, *bytes(6))) for name, number in (("icmp6", 58), ("tcp", 6))}
    kinds = [
        {name: ethernet(ip(gre(data, 0x0800), ends, 47)) for name, data in inner.items()},
        {name: ethernet(ip(data, ends, 4)) for name, data in inner.items()},
        {name: ethernet(ip6(data + PAYLOAD, V6, 60), 0x86DD) for name, data in options.items()},
    ]
    for kind in kinds:
        for order in (list(kind.items()), list(kind.items())[::-1]):
            totals = counted([data for name, data in order for _ in range(1 + (name == "tcp"))])
            assert {name: row[0] for name, row in totals.classes().items()} == {
                name: 1 + (name == "tcp") for name in kind
            }
    whole = ethernet(ip(udp(PAYLOAD, 9), ends, 17))
    places = (0x2000, 0x2006, 12)
    parts = [ethernet(ip(bytes([at]) * 48, ends, 17, place=place)) for at, place in enumerate(places)]
    for frames in ([whole, *parts], [*parts, whole]):
        assert list(counted(frames).classes().items()) == [("udp", [4, sum(map(len, frames))])]
    assert len({identify(data, ETHERNET) for data in parts}) == 1
    assert identify(whole, ETHERNET)[2] == struct.pack("!HH", 40809, 9)


@pytest.mark.needs("tshark")
def test_the_class_and_ports_behind_extension_headers_are_those_of_tshark(tmp_path: Path) -> None:
    """Each extension header of IPv6, chains of them, and AH, which IPv4 has too; also inside of tunnels."""
    ends = "10.0.0.1 > 10.0.0.2"
    inner = {6: tcp(PAYLOAD), 17: udp(PAYLOAD, 9999), 58: echo(128), 4: ip(echo(), ends, 1)}
    frames = []
    for number, data in inner.items():
        ah = struct.pack("!BBHII", number, 4, 0, 1, 2) + bytes(12) + data
        six: list[tuple[int, bytes]] = [(number, data), (51, ah)]
        six += [(kind, bytes((number, 1, *bytes(14))) + data) for kind in (0, 60)]
        six += [(43, bytes((number, 2, 4, 0, 0, 0, 0, 0, *bytes(16))) + data)]  # segment routing
        six += [(44, bytes((number, 0, *bytes(6))) + data), (0, bytes((51, 0, 1, 4, *bytes(4))) + ah)]
        behind = struct.pack("!BBHII", 60, 4, 0, 1, 2) + bytes(12) + bytes((number, 0, 1, 4, *bytes(4)))
        six += [(51, behind + data), (60, bytes((44, 0, 1, 4, *bytes(4), number, 0, *bytes(6))) + data)]
        plain = [ip6(content, V6, kind) for kind, content in six]
        frames += [ethernet(one, 0x86DD) for one in plain]
        frames += [ethernet(ip(gre(one, 0x86DD), ends, 47)) for one in plain]
        frames += [ethernet(ip(ah, ends, 51))]
    path = tmp_path / "extensions.pcapng"
    recorded = (pcapng.packet(0, 1, 1, len(one), one) for one in frames)
    path.write_bytes(pcapng.header([("x", ETHERNET)], 1 << 18) + b"".join(recorded))
    fields = ["frame.protocols", "tcp.dstport", "udp.dstport"]
    argv = ["tshark", "-n", "-r", str(path), "-T", "fields"]
    argv += [word for one in fields for word in ("-e", one)]
    lines = output(argv, 60).splitlines()
    names = {"tcp": "tcp", "udp": "udp", "icmp": "icmp", "icmpv6": "icmp6"}
    for data, line in zip(frames, lines, strict=True):
        protocols, *ports = line.split("\t")
        expected = [names[one] for one in protocols.split(":") if one in names][-1]
        name, _addresses, own = identify(data, ETHERNET)
        assert name == expected, line
        is_cut = "gre" in protocols or "fraghdr" in protocols  # outer ports only, and none of a fragment
        port = [str(int.from_bytes(own[2:]))] * bool(own)
        assert port == [one for one in ports if one and not is_cut], line


def test_talkers_are_hosts_in_both_directions() -> None:
    one, other, third = "10.0.0.1", "10.0.0.2", "fd00::3"
    sent = [(f"{one} > {other}", 17)] * 3 + [(f"{other} > {one}", 1), (f"{one} > 10.0.0.9", 6)]
    frames = [ethernet(ip(bytes(8), *ends)) for ends in sent]
    totals = counted([*frames, ethernet(bytes(20), 0x1234)])
    size = len(frames[0])
    assert totals.talkers(2) == [(one, 4, 4 * size, 1, size), (other, 1, size, 3, 3 * size)]
    assert totals.talkers(9)[2] == ("10.0.0.9", 0, 0, 1, size)
    assert sum(row[1] for row in totals.talkers(9)) == len(frames)  # that without addresses is of no host
    six = ethernet(ip6(b"", f"{third} > {third}", 17), 0x86DD)
    assert counted([six]).talkers(1) == [(third, 1, len(six), 1, len(six))]
    totals.clear()
    assert totals.talkers(9) == []


def test_mutants_of_frames_raise_nothing() -> None:
    for link_type in (ETHERNET, RAW_IP):
        frames = mutants(10_000, seed=18)
        totals = counted(frames, link_type)
        assert sum(count for count, _bytes in totals.classes().values()) == len(frames)
        rows = [
            MonitoredPacket(number, 0, "in", len(data) * (number % 3), data[:256], link_type)
            for number, data in enumerate(frames)
        ]
        assert all(one.stack or not one.data for one in rows)
        assert sum(len(block) > 44 for block in blocks(rows)) == len(rows)
        classes = {name: (count, size) for name, (count, size) in totals.classes().items()}
        counts = MonitorCounts(1, 1, 0, 0, 0, 1, 0, 0, 0)
        of_hosts, talkers = totals.conversations(20), totals.talkers(20)
        report = MonitorReport(counts, classes, of_hosts, rows[:200], False, link_type, talkers=talkers)
        console = new_console()
        with console.capture() as printed:
            console.print(command.tables("x", report, (1.0, None)))
        assert "\x1b[2J" not in printed.get()


def test_the_walk_through_tunnels_agrees_with_the_decoder() -> None:
    """Classes are found without decoding, because a decoded packet takes twenty times as long."""
    ends, v6 = "10.0.0.1 > 10.0.0.2", ip6(udp(PAYLOAD, 9), V6, 17)
    inner = ip(tcp(b""), ends, 6)
    for data, name in (
        (ip(ip(inner, ends, 4), ends, 4), "tcp"),
        (ip(v6, ends, 41), "udp"),
        (ip(gre(inner, 0x0800), ends, 47), "tcp"),
        (ip(gre(ethernet(v6, 0x86DD), 0x6558), ends, 47), "udp"),
        (ip(gre(ip(gre(inner, 0x0800), ends, 47), 0x0800), ends, 47), "tcp"),
        (ip(struct.pack("!HH", 0x4000, 0x0800) + inner, ends, 47), "ip GRE with routing"),
        (ip(udp(vxlan(ethernet(inner)), 4789), ends, 17), "tcp"),
        (ip(udp(vxlan(ethernet(v6, 0x86DD)), 4789), ends, 17), "udp"),
        (ip(udp(geneve(ethernet(inner), options=bytes(8)), 6081), ends, 17), "tcp"),
        (ip(udp(geneve(inner, kind=0x0800), 6081), ends, 17), "tcp"),
        (ip(udp(inner, 8472), ends, 17), "udp"),
    ):
        frame = ethernet(data)
        assert identify(frame, ETHERNET)[0] == name == flows._protocol_class(frame, ETHERNET)


def test_counters_fit_and_have_rates() -> None:
    def report(seen: int, selected: int) -> MonitorReport:
        counts = MonitorCounts(seen, selected, 0, 0, 0, selected, 0, 0, 0)
        return MonitorReport(counts, {"udp": (selected, 64 * selected)}, [], [], False, ETHERNET)

    console = new_console()
    before = (2.0, report(1_000_000, 1_000))
    with console.capture() as printed:
        console.print(command.tables("client0:eth0", report(5_000_000, 3_000), before))
    lines = printed.get().splitlines()
    assert max(map(len, lines)) <= 80
    cells = [line.split() for line in lines]
    assert ["seen", "5,000,000", "2", "Mpps"] in cells
    assert ["selected", "3,000", "1", "kpps"] in cells
    assert ["dropped", "0", "0", "pps"] in cells
    assert not any(line.startswith("forgotten") for line in lines), "it is 0"
    assert ["udp", "3,000", "192,000", "1", "kpps"] in cells


@pytest.mark.parametrize("selects_ports", [True, False])
def test_later_fragments_are_missing_only_where_ports_are_selected(selects_ports: bool) -> None:
    first = ethernet(ip(udp(PAYLOAD, 9), "10.0.0.1 > 10.0.0.2", 17, place=0x2000))
    row = MonitoredPacket(1, 0, "in", 98, first, ETHERNET)
    report = MonitorReport(
        MonitorCounts(2, 1, 0, 0, 0, 1, 0, 0, 0), {}, [], [row], False, ETHERNET, selects_ports=selects_ports
    )
    assert (hint(report) or "").startswith("only first fragments are here") is selects_ports


def test_a_redirect_past_the_interface_is_said_instead_of_a_condition_to_leave_out() -> None:
    """Counters of an interface count what XDP redirects, and the monitor sees nothing of it."""
    counts = MonitorCounts(9, 0, 0, 0, 0, 0, 0, 0, 0)
    said = "what arrives at n/p0: bpf_redirect at xdp to n/p1, captures do not see it at n/p0 (counters do)"
    console = new_console()
    for unseen, expected in ((said, said), (None, counts.hint)):
        report = MonitorReport(counts, {}, [], [], False, ETHERNET, unseen=unseen)
        assert hint(report) == command.summary("n:p0", report)["hint"] == expected
        with console.capture() as printed:
            console.print(command.tables("n:p0", report, (1.0, None)))
        assert expected[:60] in printed.get()


def test_packets_that_the_display_filter_hides_are_not_missed(tmp_path: Path) -> None:
    """Of ten packets seven are hidden, and one of the others left memory before it could be written."""
    counts = MonitorCounts(
        seen_count=12, selected_count=10, dropped_count=0, waiting_count=0, unsampled_count=0, kept_count=2,
        forgotten_count=1, hidden_count=7, unexamined_count=0,
    )  # fmt: skip
    packets = [MonitoredPacket(number, number, "in", 60, bytes(60), ETHERNET) for number in (7, 9)]
    report = MonitorReport(counts, {}, [], packets, False, ETHERNET)
    source: Any = SimpleNamespace(
        read=lambda _since, _limit: report, hop="a:b", request=SimpleNamespace(snap_bytes=256)
    )
    with command._writing(tmp_path / "file", source) as writer:
        writer.write(source)
    assert (writer.count, writer.missed) == (2, 1)
    assert len(pcapng.read((tmp_path / "file").read_bytes()).frames) == 2
