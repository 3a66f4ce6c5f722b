"""Captures agree with tcpdump at the same interfaces and with tshark's decoding, and lost packets are reported."""

import subprocess
from pathlib import Path
from typing import Any

import overlay_checks
import pytest
from conftest import ROOT
from overlay_checks import PORTS
from sandbox import printed

from labkit.common import packets
from labkit.common.packets import Layer, journey, pcapng

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "veth")

SAMPLE = ROOT / "tests" / "samples" / "tcpdump-4.99.3-gre.pcap"
# Every interface that a request from cs1 to cs5 passes. `BY_HAND` in capture_scenarios.py names some of them.
WAY = [
    "cs1:cs1_br1 out", "con_ns1:br1_cs1 in", "con_ns1:vxlan-cont out", "con_ns1:br1_lc1 out", "lc1:lc1_br1 in",
    "lc1:lc1_sc2 out", "sc2:sc2_lc1 in", "sc2:sc2_lc2 out", "lc2:lc2_sc2 in", "lc2:lc2_br3 out", "con_ns3:br3_lc2 in",
    "con_ns3:vxlan-cont in", "con_ns3:br3_cs5 out", "cs5:cs5_br3 in",
]  # fmt: skip


def tried(what: str, folder: Path, *words: str) -> Any:
    """Return the results of capture_scenarios.py."""
    program = Path(__file__).with_name("capture_scenarios.py")
    return printed(program, what, str(folder), timeout_s=240, through=words)


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
def overlay(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Capture everywhere in the overlay on this kernel."""
    folder = tmp_path_factory.mktemp("overlay")
    return folder, tried("agrees", folder)


@pytest.mark.needs("bridge", "vxlan", "tcpdump")
class TestOverlay:
    def test_same_packets_as_tcpdump(self, overlay: tuple[Path, Any]) -> None:
        folder, report = overlay
        assert report["doubt"] is None
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
            assert report["counts"][file.stem]["captured_count"] == len(ours)

    @pytest.mark.needs("tshark")
    def test_same_packets_in_tshark(self, overlay: tuple[Path, Any]) -> None:
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

    def test_packets_followed_over_hops(self, overlay: tuple[Path, Any]) -> None:
        recorded = pcapng.read((overlay[0] / "capture.pcapng").read_bytes())
        result = journey.journeys(recorded.frames, PORTS)
        names = {"20.0.0.1": "cs1", "20.0.0.3": "cs5"}
        requests = [one for one in result if one.what(names) == "cs1 > cs5 echo request"]
        replies = [one for one in result if one.what(names) == "cs5 > cs1 echo reply"]
        assert (len(requests), len(replies)) == (7, 7)
        turned = {" in": " out", " out": " in"}
        back = [name.rpartition(" ")[0] + turned[f" {name.rpartition(' ')[2]}"] for name in WAY[::-1]]
        for way, some in ((WAY, requests), (back, replies)):
            for one in some:
                assert [f"{seen.hop} {seen.direction}" for seen in one.sightings] == way
        between = next(seen for seen in requests[0].sightings if seen.hop == "lc1:lc1_br1")
        assert between.stack == (
            "Ethernet / IP 21.0.0.1 > 23.0.0.1 / UDP 4900 / VXLAN 30 / Ethernet / IP 20.0.0.1 > 20.0.0.3"
            " / ICMP echo request"
        )
        assert [layer.length_bytes for layer in between.layers] == [148, 134, 114, 106, 98, 84, 64]


@pytest.mark.needs("tshark")
def test_same_tunnel_headers_in_tshark() -> None:
    """Covers VXLAN and Geneve in GRE, gretap with key, checksum and sequence number, and IPIP, all captured in a lab
    VM."""
    frames = overlay_checks.pcap(SAMPLE.read_bytes())
    theirs = [line[3:] for line in tshark(SAMPLE)]
    assert theirs == [as_tshark(packets.layers(data, ports=PORTS)) for _, data in frames]


def test_dropped_packets_are_counted(tmp_path: Path) -> None:
    report = tried("flood", tmp_path)
    assert report["passed"] == 4000
    for one in report["counts"]:  # each end sends and receives all of 2000 pings
        assert one["captured_count"] + one["dropped_count"] + one["skipped_count"] == 4000
        assert min(one["captured_count"], one["dropped_count"], one["skipped_count"]) > 0
        assert one["captured_count"] < 200  # packets that fill the buffer pass within a few seconds
    assert report["doubt"].startswith("the capture lacks packets: ")
    assert "at server0:eth0 (the recorder was too slow)" in report["doubt"]
    assert "at server0:eth0 (beyond 20 a second, or the file was full)" in report["doubt"]
    read = pcapng.read((tmp_path / "capture.pcapng").read_bytes())
    assert [vars(one) for one in read.counts.values()] == report["counts"]
    assert sum(one["captured_count"] + one["skipped_count"] for one in report["full"]) == 400
    assert 0 < sum(one["captured_count"] for one in report["full"]) < 20
    assert report["size"] < 2000 + 2 * 200  # the packet at the limit is complete, and statistics follow


def test_killed_recorder_keeps_its_file(tmp_path: Path) -> None:
    report = tried("killed", tmp_path)
    assert report["error"] == (
        f"the packet recorder was killed by signal 9; {tmp_path}/capture.pcapng contains what it wrote before"
    )
    assert (report["frames"], report["is_whole"]) == (12, False)


@pytest.mark.long
def test_first_and_last_packet_are_captured(tmp_path: Path) -> None:
    assert tried("repeated", tmp_path) == [[2] * 4] * 20


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    assert tried("refused", tmp_path) == [
        None,
        ["BadInput", "client0 has no interface eth9 to capture at (did you mean eth0?)"],
        ["BadInput", "a capture needs at least one interface"],
        ["BadInput", "client0:eth0 is named twice: name each interface once"],
        [
            "BadInput",
            "snap_bytes=60 is outside 192 to 262144: the headers of a tunnel in a tunnel are the least",
        ],
        ["BadInput", "rate_pps=0 is outside 1 to 4.61168601843e+18"],
        ["BadInput", "settle_s=inf is outside 0 to 3600"],
        ["BadInput", "settle_s=-1 is outside 0 to 3600"],
        ["BadInput", "total_bytes=100663296 is outside 1 to 67108864: a capture is passed on at once"],
    ]
    without = tried("refused", tmp_path, "setpriv", "--bounding-set", "-net_raw", "--")
    assert without[0] == [
        "Unsupported",
        "packets cannot be captured without CAP_NET_RAW: run as root, or allow user namespaces",
    ]


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    report = tried("full_disk", tmp_path)
    assert report["error"].startswith(f"packets could not be recorded: the disk of {tmp_path} is full")
    assert report["frames"] > 100


def test_vlan_tags_link_down_and_failing_blocks(tmp_path: Path) -> None:
    report = tried("odd", tmp_path)
    tagged = "ffffffffffff020000000001" + "8100002a88b5" + (b"labkit" * 10).hex()
    assert report["frames"][:2] == [["client0:eth0", "out", tagged], ["server0:eth0", "in", tagged]]
    assert len(report["frames"]) >= 2 + 4  # a ping after that
    assert not report["left"]


@pytest.mark.needs("openvswitch", "ethtool")
def test_packets_followed_through_a_switch(tmp_path: Path) -> None:
    """The userspace datapath sends each packet from a socket, and so its mirror the copies."""
    seen = tried("switched", tmp_path)
    hops = "client0:eth0 between:port0 between:mirror0 monitor:mirror0 between:port1 server0:eth0"
    request, reply = seen["client0 > server0 echo request"], seen["server0 > client0 echo reply"]
    assert (
        {hop.partition(" ")[0] for hop in request}
        == {hop.partition(" ")[0] for hop in reply}
        == set(hops.split())
    )
    assert (request[0], request[1]) == ("client0:eth0 out", "between:port0 in")
    assert (reply[0], reply[1]) == ("server0:eth0 out", "between:port1 in")
    assert {"between:port1 out", "server0:eth0 in", "monitor:mirror0 in"} <= set(request)
