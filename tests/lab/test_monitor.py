"""The monitor agrees with tcpdump at the same interface, counts packets, and ends with its owner."""

import json
import re
import shlex
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitored_tunnels import inner_addresses_select
from sandbox import LABKIT, TOGETHER, ended_together, one_sentence, until

from labkit import live
from labkit.common.errors import BadInput, LabkitError
from labkit.common.packets import pcapng
from labkit.measure.endpoints import namespaces
from labkit.measure.observers.monitor import live_monitor
from labkit.measure.observers.monitor.live_monitor import LiveMonitor
from labkit.measure.topologies import MACHINE, Spec, Topology
from labkit.measure.topologies.state import read

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "veth", "bridge", "tcpdump")


@pytest.fixture(scope="module")
def net() -> Iterator[live.LiveTopology]:
    with live.build("veth_bridge", pairs=2) as made:
        yield made


def ping(net: live.LiveTopology, count: int = 20, *words: str) -> None:
    net.client0.run("ping", "-q", "-c", str(count), "-i", "0.002", *words, net.server0.address)


def tcpdump(
    net: live.LiveTopology, path: Path, interface: str, expression: str, at: str = "between"
) -> live.Program:
    words = ["tcpdump", "-Z", "root", "--immediate-mode", "-n", "-i", interface, "-w", str(path), expression]
    program = net.endpoints[at].start("sh", "-c", 'exec "$0" "$@" 2>&1', *words)
    deadline = time.monotonic() + 30
    while "listening on" not in program.output:
        assert program.is_running, program.output
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return program


def assert_complete(one: LiveMonitor) -> None:
    counts = one.counts
    parts = (counts.dropped_count, counts.waiting_count, counts.unsampled_count, counts.kept_count)
    assert (
        counts.selected_count
        == sum(parts) + counts.forgotten_count + counts.hidden_count + counts.unexamined_count
    )


@pytest.mark.parametrize(
    ("parameters", "expression"),
    [
        ({"protocol": "icmp"}, "icmp"),
        ({"source": "10.2.0.0/16", "protocol": "icmp"}, "icmp and src net 10.2.0.0/16"),
        ({"destination": "10.9.0.1"}, "dst host 10.9.0.1"),
        ({"expression": "icmp[icmptype] = icmp-echoreply"}, "icmp[icmptype] = icmp-echoreply"),
    ],
)
def test_same_packets_as_tcpdump(
    net: live.LiveTopology, tmp_path: Path, parameters: dict[str, str], expression: str
) -> None:
    path = tmp_path / "tcpdump.pcap"
    program = tcpdump(net, path, "port0", expression)
    with net.monitor("port0", **parameters) as one:  # type: ignore[arg-type]
        ping(net)
    ours = one.read()
    one.save(tmp_path / "ours.pcapng")
    theirs = int(re.findall(r"(\d+) packets captured", program.stop())[0])
    assert ours.counts.selected_count == ours.counts.kept_count == theirs
    assert theirs == {"protocol": 40, "destination": 0}.get(next(iter(parameters)), 20)
    assert 40 <= ours.counts.seen_count < 60  # the kernel itself sends a packet now and then (IGMP, MLD)
    frames = pcapng.read((tmp_path / "ours.pcapng").read_bytes()).frames
    there = subprocess.run(
        ["tcpdump", "-n", "-r", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert len(frames) == len(there.splitlines())
    assert [f"seq {one.data[40] << 8 | one.data[41]}" for one in frames] == re.findall(r"seq \d+", there)


@pytest.mark.parametrize(("sample", "count"), [("one_in:10", 4), ("first:200", 6)])
def test_samples_are_counted_exactly(net: live.LiveTopology, sample: str, count: int) -> None:
    with net.monitor("port0", protocol="icmp", sample=sample) as one:
        ping(net)
        report = one.stop()
    assert (report.counts.selected_count, report.counts.sampled_count) == (40, count)
    assert report.counts.unsampled_count == 40 - count
    assert sum(packets for packets, _bytes in report.classes.values()) == count
    assert_complete(one)


def test_without_a_filter_all_that_the_interface_counts_is_seen(net: live.LiveTopology) -> None:
    with net.monitor("port0") as one:
        ping(net)
        counts = one.stop().counts
    assert counts.seen_count == counts.selected_count >= 40
    assert_complete(one)


def test_all_kept_packets_are_there_after_the_topology(tmp_path: Path) -> None:
    """More packets than one request returns, of a monitor that nobody closed."""
    with live.build("veth") as other:
        one = other.monitor("client0:eth0", protocol="icmp", keep_count=25_000)
        other.client0.run("ping", "-q", "-f", "-c", "15000", other.server0.address, timeout_s=60)
    assert one.counts.kept_count == 25_000
    numbers = [packet.number for packet in one.packets]
    assert numbers == list(range(numbers[-1] - 24_999, numbers[-1] + 1))
    one.save(tmp_path / "all.pcapng")
    assert len(pcapng.read((tmp_path / "all.pcapng").read_bytes()).frames) == 25_000


SEND_TAGGED = """
import socket
end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
end.bind(("eth0", 0))
for _ in range(3):
    end.send(bytes.fromhex("ffffffffffff 020000000001 8100 0007 0800") + bytes(46))
"""


def test_vlan_tags_that_the_kernel_keeps_beside_the_packet(net: live.LiveTopology) -> None:
    """The kernel removes the tag from a received frame, so a filter on the bytes of the frame alone never matches."""
    with net.monitor("port2", vlan=7) as right, net.monitor("port2", vlan=8) as wrong:
        net.client1.run(sys.executable, "-P", "-c", SEND_TAGGED)
        assert right.stop().counts.selected_count == 3
        assert wrong.stop().counts.selected_count == 0
        assert {packet.stack.split(" / ")[1] for packet in right.packets} == {"802.1Q 7"}


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        pytest.param(kind, family, marks=pytest.mark.needs(kind))
        for kind, family in (("vxlan", 6), ("gre", 4), ("ipip", 4))
    ],
)
def test_inner_addresses_of_a_tunnel(kind: str, family: int) -> None:
    inner_addresses_select(kind, family=family)


INNER = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20, 0, 0, 64, 17, 0, bytes([10, 9, 0, 1]), bytes([10, 9, 0, 2]))
INNER_ETHERNET = bytes(12) + b"\x08\x00" + INNER
VXLAN = struct.pack("!HHHH", 5000, 4789, 0, 0) + bytes.fromhex("0800000000000100")
SEND_FRAME = """
import socket, sys
end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
end.bind(("eth0", 0))
for _ in range(3):
    end.send(bytes.fromhex(sys.argv[1]))
"""


@pytest.mark.parametrize(("inside", "count"), [("vxlan:8472", 3), ("vxlan", 0), ("geneve:8472", 0)])
def test_a_tunnel_at_another_port_is_named_or_missed_with_a_hint(
    net: live.LiveTopology, inside: str, count: int
) -> None:
    content = VXLAN[:2] + struct.pack("!H", 8472) + VXLAN[4:] + INNER_ETHERNET
    outer = struct.pack("!BBHHHBBH8x", 0x45, 0, 20 + len(content), 0, 0, 64, 17, 0)
    frame = bytes([255] * 6 + [2, 0, 0, 0, 0, 1]) + b"\x08\x00" + outer + content
    with net.monitor("port2", inside=inside, source="10.9.0.1") as one:
        net.client1.run(sys.executable, "-P", "-c", SEND_FRAME, frame.hex())
    assert one.counts.selected_count == count
    assert ("none was selected" in repr(one)) == (count == 0)


@pytest.mark.needs("vxlan")
def test_ports_of_the_tunnels_of_a_topology_are_known(tmp_path: Path) -> None:
    path = tmp_path / "port_8472.yaml"
    ends = (("a", 1, 2), ("b", 2, 1))
    parts = [f"{{type: node, name: {name}, container: true}}" for name, _own, _other in ends]
    parts += ["{type: cable, one: [a, eth0, 192.0.2.1/30], other: [b, eth0, 192.0.2.2/30]}"]
    parts += [
        f"{{type: tunnel, kind: vxlan, at: {name}, name: vx, id: 1, port: 8472, local: 192.0.2.{own},"
        f" remote: 192.0.2.{other}, address: 10.9.0.{own}/24}}"
        for name, own, other in ends
    ]
    path.write_text("name: port 8472\npairs: [[a, b]]\nparts:\n" + "".join(f"  - {one}\n" for one in parts))
    with live.build(str(path)) as other:
        with other.monitor("b:eth0", inside="vxlan", source="10.9.0.1", protocol="icmp") as one:
            other.a.run("ping", "-q", "-c", "3", "-i", "0.01", "10.9.0.2")
    assert one.counts.selected_count == 3
    assert "VXLAN 1 / Ethernet / IP 10.9.0.1 > 10.9.0.2 / ICMP" in one.packets[0].stack


SEND_FRAGMENTED = """
import socket, sys, time
end = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(20):
    end.sendto(bytes(4000), (sys.argv[1], 9))
    time.sleep(0.001)
"""


@pytest.mark.parametrize("family", [4, 6])
def test_first_fragments_have_ports_and_the_others_a_hint(family: int) -> None:
    with live.build("veth", family=family) as cable:
        with cable.monitor("server0:eth0", port=9, protocol="udp") as one:
            cable.client0.run(sys.executable, "-P", "-c", SEND_FRAGMENTED, cable.server0.address)
    last = one.read(limit=5)
    assert last.counts.selected_count == 20
    assert "later ones have no ports" in str(live_monitor.hint(last))


@pytest.mark.needs("vxlan")
def test_ports_of_the_tunnels_of_the_machine_are_known() -> None:
    """The machine is a namespace of its own."""
    with namespaces(["machine"], family=4) as [space]:
        done = space.run(
            "ip", "link", "add", "vx", "type", "vxlan", "id", "1", "dstport", "8999", "dev", "lo"
        )
        assert done.returncode == 0, done.message()
        found = read.state(Topology(MACHINE, Spec(), [], [space]))
    assert found.ports() == {4789: "vxlan", 6081: "geneve", 8999: "vxlan"}


def test_interface_that_goes_away(net: live.LiveTopology) -> None:
    net.between.run("ip", "link", "add", "short", "type", "veth", "peer", "name", "short2")
    with net.monitor("short") as one:
        assert not one.read().is_gone
        net.between.run("ip", "link", "delete", "short")
        assert one.read().is_gone
        assert one.stop().counts.selected_count == one.counts.selected_count


def test_what_cannot_be_watched_is_refused(net: live.LiveTopology) -> None:
    with pytest.raises(BadInput, match="endpoint=guest is for measuring only"):
        live.build("veth_bridge", endpoint="guest")
    with pytest.raises(BadInput, match="name one kind of endpoint"):
        live.build("veth", endpoint=["namespace", "container"])
    for interface, words in (
        ("eth0", "several namespaces have an interface eth0: write one of client0:eth0"),
        ("nope", "veth_bridge has no interface 'nope'"),
        ("between:nope", "between has no interface nope"),
        ("$(id)", "has no interface"),
    ):
        with pytest.raises(BadInput, match=re.escape(words)):
            net.monitor(interface)
    with pytest.raises(BadInput, match="keep_count=0"):
        net.monitor("port0", keep_count=0)
    with pytest.raises(BadInput, match="syntax error"):
        net.monitor("port0", expression="-w /tmp/x")
    with live.build("veth") as short:
        pass
    with pytest.raises(LabkitError, match="is closed"):
        short.monitor("client0:eth0")


@pytest.mark.needs("root")
def test_command_on_an_interface_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "seen.pcapng"
    argv = [*LABKIT, "monitor", "lo", "protocol=icmp", "--json", "--pcapng", str(path)]
    running = subprocess.Popen([*argv, "--seconds", "2"], stdout=subprocess.PIPE, text=True)
    # A packet socket for all protocols
    assert until(lambda: " 0003 " in Path("/proc/thread-self/net/packet").read_text(), 50, 0.05)
    subprocess.run(["ping", "-q", "-c", "5", "-i", "0.01", "127.0.0.1"], check=True, capture_output=True)
    output, _ = running.communicate(timeout=60)
    answer = json.loads(output)
    assert running.returncode == 0
    assert answer["selected_count"] == 20  # requests and replies, each outgoing and incoming
    assert len(pcapng.read(path.read_bytes()).frames) == 20


@pytest.mark.needs("root")
def test_without_the_capability_one_sentence() -> None:
    """Namespaces and interfaces can be made, but no packet socket."""
    without = ["setpriv", "--bounding-set", "-net_raw", "--"]
    words = ["monitor", "veth", "interface=client0:eth0", "protocol=icmp", "--seconds", "1"]
    argv = [*without, *LABKIT, *words]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "labkit: packets cannot be captured without CAP_NET_RAW: run as root, or allow user namespaces"
    ]


SMALL_DISK = 'mount -t tmpfs -o size=16k none "$0" && exec "$@"'


@pytest.mark.needs("root")
def test_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """The packets are written while they come, and the disk has room for a few of them."""
    small = tmp_path / "small"
    small.mkdir()
    argv = [*LABKIT, "monitor", "veth", "interface=client0:eth0", "--ping"]
    words = [*argv, "--seconds", "5", "--pcapng", str(small / "seen.pcapng")]
    ended = subprocess.run(
        ["unshare", "--mount", "sh", "-c", SMALL_DISK, str(small), *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert "is full: free some space" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.needs("tshark")
class TestDisplayFilter:
    def test_keeps_what_tshark_lets_through(self, net: live.LiveTopology) -> None:
        display = "icmp.type == 8 and icmp.seq > 15"
        with net.monitor("port0", protocol="icmp", display=display, fields="icmp.seq,ip.src") as one:
            ping(net)
            counts = one.stop().counts
            kept = one.packets
        assert (counts.selected_count, counts.kept_count, counts.hidden_count) == (40, 5, 35)
        assert (counts.unexamined_count, counts.waiting_count) == (0, 0)
        assert [packet.data[41] for packet in kept] == [16, 17, 18, 19, 20]
        assert [packet.fields for packet in kept] == [
            (str(number), net.client0.address) for number in range(16, 21)
        ]
        with pytest.raises(BadInput, match=r"foo\.bar.*at character 1"):
            net.monitor("port0", display="foo.bar == 1")

    def test_saved_packets_in_wireshark(self, net: live.LiveTopology, tmp_path: Path) -> None:
        """tshark, which is not labkit's reader, sees the interface's name and the headers as comments."""
        with net.monitor("port0", protocol="icmp") as one:
            ping(net, 3)
            one.stop()
            one.save(tmp_path / "saved.pcapng")
            stacks = [packet.stack for packet in one.packets]
        assert "IP 10.1.0.1 > 10.2.0.1 / ICMP echo request" in stacks[0]
        fields = ["-T", "fields", "-e", "frame.interface_name", "-e", "frame.comment"]
        argv = ["tshark", "-n", "-r", str(tmp_path / "saved.pcapng"), *fields]
        read = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        assert read.splitlines() == [f"between:port0\t{stack}" for stack in stacks]
        assert len(stacks) == 6

    def test_killed_tshark_is_reported_and_packets_are_counted(self, net: live.LiveTopology) -> None:
        with net.monitor("port0", protocol="icmp", display="icmp") as one:
            ping(net, 2)
            # These are only processes of the topology's own PID namespace. tshark may still be starting.
            there = 'for each in /proc/[0-9]*; do [ "$(cat $each/comm)" = tshark ] && kill -9 ${each#/proc/}; done; :'
            deadline = time.monotonic() + 60
            while (report := one.read()).problem is None:
                net.between.run("sh", "-c", there)
                assert time.monotonic() < deadline
                time.sleep(0.1)
            ping(net, 3)
            counts = one.stop().counts
        assert "tshark" in str(report.problem)
        assert "start the monitor again" in str(report.problem)
        assert counts.selected_count == 10
        assert counts.unexamined_count >= 6
        assert_complete(one)


BAD = {
    "veth": "veth has several interfaces: name one",
    "lo foo=1": "foo is not a parameter of a monitor",
    "lo vlan=x": "vlan='x' is not a number",
    "lo --seconds -1": "--seconds -1: give more than 0",
    "lo 'source=$(id)'": "source='$(id)' is not an address",
}


@pytest.mark.long
def test_bad_input_of_the_command() -> None:
    argvs = json.dumps([shlex.split(f"monitor {words}") for words in BAD])
    argv = [sys.executable, "-P", "-c", TOGETHER, argvs]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    for ended, sentence in zip(ended_together(done, list(BAD)), BAD.values(), strict=True):
        assert sentence in one_sentence(ended)
        assert len(ended.stderr.splitlines()) == 1
