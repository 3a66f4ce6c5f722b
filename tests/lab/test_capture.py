"""Captures agree with tcpdump at the same interfaces and with tshark's decoding, and lost packets are reported."""

import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import overlay_checks
import pytest
from conftest import ROOT
from overlay_checks import PORTS
from sandbox import until

from labkit import live
from labkit.common import packets
from labkit.common.errors import BadInput, Failed
from labkit.common.packets import Layer, journey, pcapng
from labkit.measure import topologies
from labkit.measure.endpoints import Pair
from labkit.measure.observers.capture import Capture, CapturePoint, capture, every_interface
from labkit.measure.topologies.network import build, leaf_spine_overlay
from labkit.system import netlink, process

pytestmark = pytest.mark.needs("root", "ip", "ping", "veth")

SAMPLE = ROOT / "tests" / "samples" / "tcpdump-4.99.3-gre.pcap"
BY_HAND = ("cs1:cs1_br1", "con_ns1:br1_cs1", "con_ns1:vxlan-cont", "lc1:lc1_br1", "sc2:sc2_lc2")


def ping(pair: Pair, *words: str) -> str:
    return process.output([*pair.client.prefix, "ping", "-q", *words, pair.server.address], 60)


def ends(pair: Pair) -> list[CapturePoint]:
    return [CapturePoint(end.namespace, end.interface) for end in (pair.client, pair.server)]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with topologies.build("veth", topologies.Spec()) as built:
        yield built.pairs[0]


@contextmanager
def by_hand(hop: CapturePoint, folder: Path) -> Iterator[None]:
    """Run tcpdump at a hop, writing to a file named after the hop."""
    words = ["tcpdump", "-Z", "root", "--immediate-mode", "-n", "-s", "65535", "-i", hop.interface]
    lines = folder / f"{hop.name}.txt"
    script = f'exec "$0" "$@" 2>{lines}'
    argv = [*hop.namespace.prefix, "sh", "-c", script, *words, "-w", str(folder / f"{hop.name}.pcap")]
    program = process.Running(argv)
    with process.all_ended([program]):
        assert until(lambda: lines.exists() and "listening on" in lines.read_text(), 60)
        yield
        program.signal(signal.SIGINT)
        assert not process.wait([program], time.monotonic() + 60)


FIELDS = (
    "ip.src", "ip.dst", "ip.len", "udp.dstport", "udp.length", "vxlan.vni", "geneve.vni", "gre.key", "icmp.seq",
)  # fmt: skip
LAYER_FIELDS = {
    "ip.src": ("ip", "source"), "ip.dst": ("ip", "target"), "udp.dstport": ("udp", "target_port"),
    "vxlan.vni": ("vxlan", "id"), "geneve.vni": ("geneve", "id"), "gre.key": ("gre", "key"),
    "icmp.seq": ("icmp", "sequence"),
}  # fmt: skip
LENGTHS = {"ip.len": "ip", "udp.length": "udp"}


def tshark(path: Path) -> list[list[str]]:
    """Return what tshark decodes of every frame: its interface, time, length, and all values of FIELDS."""
    parameters = ("frame.interface_name", "frame.time_epoch", "frame.len", *FIELDS)
    words = [word for name in parameters for word in ("-e", name)]
    argv = ["tshark", "-n", "-r", str(path), "-d", "udp.port==4900,vxlan", "-T", "fields"]
    argv += ["-E", "occurrence=a", *words]
    lines = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout
    return [line.split("\t") for line in lines.splitlines()]


def as_tshark(result: list[Layer]) -> list[str]:
    """Return the result of `layers` with tshark's field names."""

    def report(name: str) -> str:
        if name in LENGTHS:
            values = [one.length_bytes for one in result if one.name == LENGTHS[name]]
        else:
            kind, field = LAYER_FIELDS[name]
            values = [one.fields[field] for one in result if one.name == kind and field in one.fields]
        if name == "gre.key":
            return ",".join(f"0x{int(value):08x}" for value in values)
        if name == "geneve.vni":
            return ",".join(f"0x{int(value):06x}" for value in values)
        return ",".join(map(str, values))

    return [report(name) for name in FIELDS]


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Capture]:
    """Capture in the overlay with labkit at every interface, and with tcpdump at some."""
    folder = tmp_path_factory.mktemp("overlay")
    network = leaf_spine_overlay.leaf_spine_network(provider="routed")
    with build.build(network) as built, ExitStack() as stack:
        hops = {hop.name: hop for hop in every_interface(built.namespaces)}
        for name in BY_HAND:
            stack.enter_context(by_hand(hops[name], folder))
        with capture(list(hops.values()), folder, snap_bytes=65535) as made:
            ping(built.pairs[0], "-c5", "-i0.01")
            ping(built.pairs[0], "-c2", "-i0.01", "-s1300")
    return folder, made


@pytest.mark.needs("bridge", "vxlan", "tcpdump")
class TestOverlay:
    def test_same_packets_as_tcpdump(self, overlay: tuple[Path, Capture]) -> None:
        folder, made = overlay
        assert made.doubt is None
        frames = pcapng.read((folder / "capture.pcapng").read_bytes()).frames
        files = sorted(folder.glob("*.pcap"))
        assert len(files) == 5
        for file in files:
            ours = [(one.length_bytes, one.data) for one in frames if one.hop == file.stem]
            theirs = overlay_checks.pcap(file.read_bytes())
            assert len(ours) >= 14, file.stem  # 7 requests, 7 replies
            begins = [at for at in range(len(theirs)) if theirs[at : at + len(ours)] == ours]
            assert begins, file.stem
            # tcpdump ran longer than labkit. In that time a kernel may have sent something (IGMP, ARP), but ping has
            # not.
            rest = [data for _, data in theirs[: begins[0]] + theirs[begins[0] + len(ours) :]]
            assert not any(overlay_checks.is_ping(data) for data in rest), file.stem
            assert made.counts[file.stem].captured_count == len(ours)

    @pytest.mark.needs("tshark")
    def test_same_packets_in_tshark(self, overlay: tuple[Path, Capture]) -> None:
        path = overlay[0] / "capture.pcapng"
        frames = pcapng.read(path.read_bytes()).frames
        theirs = tshark(path)
        assert len(theirs) == len(frames)
        for frame, line in zip(frames, theirs, strict=True):
            at = f"{frame.time_ns // 10**9}.{frame.time_ns % 10**9:09d}"
            assert line[:3] == [frame.hop, at, str(frame.length_bytes)]
            assert line[3:] == as_tshark(
                packets.layers(frame.data, frame.link_type, PORTS, frame.length_bytes)
            )


@pytest.mark.needs("tshark")
def test_same_tunnel_headers_in_tshark() -> None:
    """Covers VXLAN and Geneve in GRE, gretap with key, checksum and sequence number, and IPIP, all captured in a lab
    VM."""
    frames = overlay_checks.pcap(SAMPLE.read_bytes())
    theirs = [line[3:] for line in tshark(SAMPLE)]
    assert theirs == [as_tshark(packets.layers(data, ports=PORTS)) for _, data in frames]


def received(pair: Pair) -> int:
    """Return how many packets both ends have received."""
    return sum(end.counters().received_count for end in (pair.client, pair.server))


def test_dropped_packets_are_counted(pair: Pair, tmp_path: Path) -> None:
    """More is sent than the buffer holds while the recorder is stopped, and more than the rate limit allows."""
    before = received(pair)
    with capture(ends(pair), tmp_path, rate_pps=20, buffer_bytes=1) as made:
        os.kill(made.pid, signal.SIGSTOP)
        ping(pair, "-f", "-c2000")
        os.kill(made.pid, signal.SIGCONT)
    assert received(pair) - before == 4000
    for one in made.counts.values():  # each end sends and receives all of 2000 pings
        assert one.captured_count + one.dropped_count + one.skipped_count == 4000
        assert min(one.captured_count, one.dropped_count, one.skipped_count) > 0
        assert one.captured_count < 200  # packets that fill the buffer pass within a few seconds
    assert str(made.doubt).startswith("the capture lacks packets: ")
    assert "at server0:eth0 (the recorder was too slow)" in str(made.doubt)
    assert "at server0:eth0 (beyond 20 a second, or the file was full)" in str(made.doubt)
    recorded = made.recorded().counts.values()
    assert [vars(one) for one in recorded] == [asdict(one) for one in made.counts.values()]
    with capture(ends(pair), tmp_path, name="full", total_bytes=2000) as full:
        ping(pair, "-f", "-c100")
    assert sum(one.captured_count + one.skipped_count for one in full.counts.values()) == 400
    assert 0 < sum(one.captured_count for one in full.counts.values()) < 20
    size = full.path.stat().st_size
    assert size < 2000 + 2 * 200  # the packet at the limit is complete, and statistics follow


def test_killed_recorder_keeps_its_file(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "capture.pcapng"
    words = f"^the packet recorder was killed by signal 9; {path} contains what it wrote before$"
    with ExitStack() as stack:
        made = stack.enter_context(capture(ends(pair), tmp_path))
        ping(pair, "-c3", "-i0.01")
        assert until(lambda: len(made.recorded().frames) == 12, 60)
        os.kill(made.pid, signal.SIGKILL)
        with pytest.raises(Failed, match=words):
            stack.close()
    report = made.recorded()
    assert (len(report.frames), report.is_whole) == (12, False)


@pytest.mark.long
def test_first_and_last_packet_are_captured(pair: Pair, tmp_path: Path) -> None:
    for number in range(20):
        with capture(ends(pair), tmp_path, name=str(number)) as made:
            ping(pair, "-c2", "-i0.002")
        assert [len(one.sightings) for one in made.journeys()] == [2] * 4


def test_bad_input_is_one_sentence(pair: Pair, tmp_path: Path) -> None:
    hops = ends(pair)
    for points, more, words in (
        (
            [CapturePoint(hops[0].namespace, "eth9")],
            {},
            r"client0 has no interface eth9 .* \(did you mean eth0\?\)",
        ),
        ([], {}, "needs at least one interface"),
        ([hops[0]] * 2, {}, "client0:eth0 is named twice"),
        (hops, {"snap_bytes": 60}, "snap_bytes=60 is outside 192 to 262144"),
        (hops, {"settle_s": math.inf}, "settle_s=inf is outside"),
        (hops, {"settle_s": math.nan}, "settle_s=nan is outside"),
        (hops, {"total_bytes": 96 << 20}, "total_bytes=.* is outside"),
        (hops, {"rate_pps": 0}, "rate_pps=0 is outside"),
    ):
        parameters: dict[str, Any] = more
        with pytest.raises(BadInput, match=words), capture(points, tmp_path, **parameters):
            pass


def test_a_full_disk_is_one_sentence(pair: Pair, tmp_path: Path) -> None:
    process.output(["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(tmp_path)])
    try:
        words = f"^packets could not be recorded: the disk of {tmp_path} is full"
        with pytest.raises(Failed, match=words), capture(ends(pair), tmp_path) as made:
            ping(pair, "-f", "-c2000")
        assert len(made.recorded().frames) > 100
    finally:
        process.output(["umount", str(tmp_path)])


def test_vlan_tags_link_down_and_failing_blocks(pair: Pair, tmp_path: Path) -> None:
    """A tagged frame, an interface that goes down and up again, and a block that ends with an error."""
    space, interface = pair.client.namespace, pair.client.interface
    tagged = bytes.fromhex("ffffffffffff 020000000001 8100 002a 88b5") + b"labkit" * 10
    with capture(ends(pair), tmp_path) as made:
        with netlink.inside(space.fd), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind((interface, 0))
            sender.send(tagged)
        for state in ("down", "up"):
            process.output([*space.prefix, "ip", "link", "set", interface, state])
        once = [*pair.client.prefix, "ping", "-c1", "-W1", pair.server.address]
        assert until(lambda: process.run(once).returncode == 0, 60)
    frames = [(frame.hop, frame.direction, frame.data) for frame in made.recorded().frames]
    assert frames[:2] == [("client0:eth0", "out", tagged), ("server0:eth0", "in", tagged)]
    assert len(frames) >= 2 + 4  # a ping after that
    with pytest.raises(ZeroDivisionError), capture(ends(pair), tmp_path, name="other") as failing:
        raise ZeroDivisionError
    assert not Path(f"/proc/{failing.pid}").exists()


@pytest.mark.needs("openvswitch", "ethtool")
def test_packets_followed_through_a_switch(tmp_path: Path) -> None:
    """The userspace datapath sends each packet from a socket, and so its mirror the copies."""
    with live.build("ovs_netdev+mirrors=1") as net:
        with net.capture() as seen:
            net.client0.run("ping", "-q", "-c1", net.server0.address)
        seen.save(tmp_path / "seen.pcapng")
        names = {str(net.client0.address): "client0", str(net.server0.address): "server0"}
    journeys = journey.journeys(pcapng.read((tmp_path / "seen.pcapng").read_bytes()).frames)
    ways = {one.what(names): [f"{at.hop} {at.direction}" for at in one.sightings] for one in journeys}
    hops = "client0:eth0 between:port0 between:mirror0 monitor:mirror0 between:port1 server0:eth0"
    request, reply = ways["client0 > server0 echo request"], ways["server0 > client0 echo reply"]
    for way in (request, reply):
        assert {hop.partition(" ")[0] for hop in way} == set(hops.split())
    assert (request[0], request[1]) == ("client0:eth0 out", "between:port0 in")
    assert (reply[0], reply[1]) == ("server0:eth0 out", "between:port1 in")
    assert {"between:port1 out", "server0:eth0 in", "monitor:mirror0 in"} <= set(request)
