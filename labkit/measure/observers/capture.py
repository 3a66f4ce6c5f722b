"""Capture packets at any set of interfaces at once, during any traffic."""

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from labkit.common import packets, run_folder, safe_files
from labkit.common.errors import BadInput, Failed, Unsupported, did_you_mean
from labkit.common.limits import Within
from labkit.common.packets import journey, pcapng
from labkit.common.packets.pcapng import Counts
from labkit.measure.endpoints import Namespace
from labkit.measure.parameters import MAX_INTEGER
from labkit.system import netlink, process
from labkit.system.recording.packet_ring import Ring
from labkit.system.recording.recorder import DRAIN_S, Limits, Recorder, RecorderReport

SNAP_BYTES = 256  # holds the headers of a tunnel in a tunnel, and the start of the payload
MIN_SNAP_BYTES, MAX_SNAP_BYTES = 192, 1 << 18
RATE_PPS = 10_000
TOTAL_BYTES = 64 << 20
BUFFER_BYTES = 4 << 20
SETTLE_S, MAX_SETTLE_S = 1.0, 3600.0
WRITE_S = 60.0  # limit for a slow disk


@dataclass(frozen=True)
class CapturePoint:
    """A place to capture at: an interface in a namespace."""

    namespace: Namespace
    interface: str

    @property
    def name(self) -> str:
        """namespace:interface; interface names contain no colon."""
        return f"{self.namespace.name}:{self.interface}"


def every_interface(namespaces: Sequence[Namespace], *, made_only: bool = True) -> list[CapturePoint]:
    """Return every interface of these namespaces; with `made_only`, those that were created in them.

    `made_only` leaves out interfaces that every namespace has (lo, gre0 …), unless a namespace has nothing else.
    """
    result = []
    for space in namespaces:
        links = netlink.links(space.netlink)
        made = [link for link in links if link.index >= netlink.FIRST_INDEX] or links[:1]
        result += [CapturePoint(space, link.name) for link in (made if made_only else links)]
    return result


class Capture:
    """A running capture. `path`: its file. `pid`: the recorder's process. `counts`: by capture point, after the
    block."""

    def __init__(self, path: Path, pid: int, rate_pps: int) -> None:
        self.path = path
        self.pid = pid
        self.counts: dict[str, Counts] = {}
        self._rate_pps = rate_pps

    @property
    def doubt(self) -> str | None:
        """One sentence if packets are missing, else None."""
        return doubt(self.counts, self._rate_pps)

    def recorded(self) -> pcapng.Recorded:
        """Return the frames in time order; during the block, those that the file holds so far."""
        return pcapng.read(self.path.read_bytes())

    def journeys(self, ports: Mapping[int, str] = packets.PORTS) -> list[journey.Journey]:
        """Return every packet with the points that saw it, after the block. `ports`: UDP ports of vxlan and geneve."""
        return journey.journeys(self.recorded().frames, ports)

    def comment(self, journeys: Sequence[journey.Journey], names: Mapping[str, str]) -> None:
        """Write into the file what happened to each packet, after the block; Wireshark shows it.

        `names`: the namespaces of addresses. Raises Failed if the disk is full; the file then stays as it was.
        """
        with run_folder.write_errors(self.path):
            pcapng.sort(self.path, journey.comments(journeys, names))


def doubt(counts: Mapping[str, Counts], rate_pps: int, unseen: Sequence[str] = ()) -> str | None:
    """Return one sentence if packets are missing in a capture, else None. `unseen`: the points where what
    BPF programs redirect cannot be captured."""
    lost = []
    for name, one in counts.items():
        if one.dropped_count:
            lost.append(f"{one.dropped_count} at {name} (the recorder was too slow)")
        if one.skipped_count:
            lost.append(f"{one.skipped_count} at {name} (beyond {rate_pps} a second, or the file was full)")
    if unseen:
        lost.append(f"those that BPF programs redirect past {', '.join(unseen)}")
    return f"the capture lacks packets: {', '.join(lost)}" if lost else None


@contextmanager
def capture(
    hops: Sequence[CapturePoint],
    folder: Path,
    *,
    name: str = "capture",
    snap_bytes: int = SNAP_BYTES,
    rate_pps: int = RATE_PPS,
    total_bytes: int = TOTAL_BYTES,
    buffer_bytes: int = BUFFER_BYTES,
    settle_s: float = SETTLE_S,
) -> Iterator[Capture]:
    """Record the packets that pass these points during the block, to `folder`/`name`.pcapng.

    Recording starts before the block does. After the block it continues until nothing arrived for 50 ms, at most
    `settle_s`; then all packets are written. `snap_bytes` of each packet are kept, `rate_pps` packets per second and
    point, and `total_bytes` in all; packets beyond are counted as skipped. A ring of `buffer_bytes` per point holds
    what the recorder process has not read yet; packets that do not fit are counted as dropped.

    Raises BadInput for a point that does not exist or an invalid limit, Unsupported if packets cannot be captured.
    Raises Failed at the end if the recorder died or the disk was full; the file then holds what was written before.
    """
    names = [hop.name for hop in hops]
    if not hops:
        raise BadInput("a capture needs at least one interface")
    if twice := [each for each in names if names.count(each) > 1]:
        raise BadInput(f"{twice[0]} is named twice: name each interface once")
    check_limits(snap_bytes, rate_pps, total_bytes, settle_s)
    path = folder / f"{name}.pcapng"
    with ExitStack() as stack:
        rings = [stack.enter_context(open_ring(hop, snap_bytes, buffer_bytes)) for hop in hops]
        named = [(hop.name, ring.link_type) for hop, ring in zip(hops, rings, strict=True)]
        with run_folder.write_errors(path):
            file = stack.enter_context(safe_files.create_new(path))
            file.write(pcapng.header(named, snap_bytes))
        recorder = Recorder(rings, path, file, Limits(snap_bytes, rate_pps, total_bytes, settle_s))
        forked = process.Forked(recorder.record, recorder.descriptors())
        stack.callback(forked.kill)
        made = Capture(path, forked.pid, rate_pps)
        yield made
        report = _stop(forked, settle_s, path)
        made.counts = dict(zip(names, report.counts, strict=True))


def check_limits(snap_bytes: float, rate_pps: float, total_bytes: float, settle_s: float) -> None:
    """Raise BadInput for the first invalid limit of a capture."""
    snaps = Within(MIN_SNAP_BYTES, MAX_SNAP_BYTES, "the headers of a tunnel in a tunnel are the least")
    snaps.check("snap_bytes", snap_bytes)
    Within(1, MAX_INTEGER).check("rate_pps", rate_pps)
    Within(1, TOTAL_BYTES, "a capture is passed on at once").check("total_bytes", total_bytes)
    Within(0, MAX_SETTLE_S).check("settle_s", settle_s)


@contextmanager
def open_ring(
    hop: CapturePoint, snap_bytes: int, buffer_bytes: int, program: Callable[[int], bytes] | None = None
) -> Iterator[Ring]:
    """Open a ring at a hop for the block; `program` selects packets as in `Ring`.

    Raises BadInput for a hop that is not there, Unsupported where packets cannot be captured, Failed for what else the
    kernel refuses."""
    try:
        ring = Ring(hop.namespace.fd, hop.interface, snap_bytes, buffer_bytes, program)
    except OSError as error:
        raise _refusal(hop, error) from None
    with contextlib.closing(ring):
        yield ring


def _refusal(hop: CapturePoint, error: OSError) -> BadInput | Unsupported | Failed:
    if error.errno in (errno.ENODEV, errno.ENXIO):
        there = [link.name for link in netlink.links(hop.namespace.netlink)]
        near = did_you_mean(hop.interface, there)
        return BadInput(f"{hop.namespace.name} has no interface {hop.interface} to capture at{near}")
    if error.errno in (errno.EPERM, errno.EACCES):
        text = "packets cannot be captured without CAP_NET_RAW"
        return Unsupported(f"{text}: run as root, or allow user namespaces")
    if error.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ENOPROTOOPT):
        text = f"packets cannot be captured at {hop.name} on this kernel ({error.strerror})"
        return Unsupported(f"{text}: leave it out, or boot a kernel with CONFIG_PACKET")
    return Failed(f"packets cannot be captured at {hop.name}: {error.strerror}")


def _stop(forked: process.Forked, settle_s: float, path: Path) -> RecorderReport:
    """Stop the recorder and return its report. Raises Failed."""
    try:
        reply = forked.stop(settle_s + DRAIN_S + WRITE_S)
        report = msgspec.json.decode(reply, type=RecorderReport)
    except (Failed, msgspec.DecodeError) as error:
        raise Failed(f"the packet recorder {error}; {path} contains what it wrote before") from None
    if report.error:
        raise Failed(f"packets could not be recorded: {report.error}")
    return report
