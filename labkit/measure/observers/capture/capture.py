"""Packets captured at any set of interfaces at once, around any traffic."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from labkit.common import packets, run_folder, safe_files
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.packets import Counts, pcapng
from labkit.measure.endpoints import Namespace
from labkit.measure.observers.capture.packet_ring import Ring
from labkit.measure.observers.capture.recorder import DRAIN_S, Limits, Recorder, RecorderReport
from labkit.system import netlink, process

SNAP_BYTES = 256  # headers of a tunnel in a tunnel, and the beginning of the payload
LEAST_SNAP_BYTES, MOST_SNAP_BYTES = 192, 1 << 18
RATE_PPS = 10_000
TOTAL_BYTES = 64 << 20
BUFFER_BYTES = 4 << 20
SETTLE_S, MOST_SETTLE_S = 1.0, 3600.0
WRITE_S = 60.0  # patience with a disk


@dataclass(frozen=True)
class CapturePoint:
    """A place where packets are seen: an interface in a namespace."""

    namespace: Namespace
    interface: str

    @property
    def name(self) -> str:
        """namespace:interface; no interface has a colon in its name."""
        return f"{self.namespace.name}:{self.interface}"


def everywhere(namespaces: Sequence[Namespace], *, made_only: bool = True) -> list[CapturePoint]:
    """Every interface of these namespaces; with `made_only` those that were made for them: not those that every
    namespace has (lo, gre0 and the like), unless one has nothing else."""
    result = []
    for space in namespaces:
        links = netlink.links(space.netlink)
        made = [link for link in links if link.index >= netlink.FIRST_INDEX] or links[:1]
        result += [CapturePoint(space, link.name) for link in (made if made_only else links)]
    return result


class Capture:
    """What is captured, from its beginning to the end of the block. `path`: the file; `pid`: the recorder's process;
    `counts` of every hop, by its name, after the block."""

    def __init__(self, path: Path, pid: int, rate_pps: int) -> None:
        self.path = path
        self.pid = pid
        self.counts: dict[str, Counts] = {}
        self._rate_pps = rate_pps

    @property
    def doubt(self) -> str | None:
        """What to know before believing it, in one sentence, when packets were lost."""
        return doubt(self.counts, self._rate_pps)

    def recorded(self) -> packets.Recorded:
        """The frames in the order of time; during the block those that are in the file by then."""
        return packets.read(self.path.read_bytes())

    def journeys(self, ports: Mapping[int, str] = packets.PORTS) -> list[packets.Journey]:
        """Every packet with the hops that saw it; after the block. `ports`: UDP ports that carry vxlan or geneve."""
        return packets.journeys(self.recorded().frames, ports)


def doubt(counts: Mapping[str, Counts], rate_pps: int) -> str | None:
    """One sentence when packets are missing in a capture."""
    lost = []
    for name, one in counts.items():
        if one.dropped_count:
            lost.append(f"{one.dropped_count} at {name} (the recorder was too slow)")
        if one.skipped_count:
            lost.append(f"{one.skipped_count} at {name} (beyond {rate_pps} a second, or the file was full)")
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
    """Record the packets that pass the hops during the block, to `folder`/`name`.pcapng.

    Recording has begun when the block begins. At its end it goes on until nothing came for 50 ms, `settle_s` at most;
    then all that was seen is written. Of each packet `snap_bytes` are kept; of each hop `rate_pps` packets in a second,
    of all `total_bytes`: what is beyond is counted as skipped. `buffer_bytes` for each hop hold what the recorder, a
    process of its own, has not read yet; what they cannot hold is counted as dropped.

    Raises BadInput for a hop that is not there or a limit that cannot be, Unsupported where packets cannot be captured,
    Failed, at the end, when the recorder died or the disk was full; what it wrote until then is in the file.
    """
    _check(hops)
    check_limits(snap_bytes, rate_pps, total_bytes, settle_s)
    path = folder / f"{name}.pcapng"
    with run_folder.write_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        rings = [stack.enter_context(open_ring(hop, snap_bytes, buffer_bytes)) for hop in hops]
        named = [(hop.name, ring.link_type) for hop, ring in zip(hops, rings, strict=True)]
        with run_folder.write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(safe_files.anew(path))
            file.write(pcapng.header(named, snap_bytes))
        recorder = Recorder(rings, path, file, Limits(snap_bytes, rate_pps, total_bytes, settle_s))
        forked = process.Forked(recorder.record, recorder.descriptors())
        stack.callback(forked.kill)
        made = Capture(path, forked.pid, rate_pps)
        yield made
        report = _stopped(forked, settle_s, path)
        made.counts = dict(zip((hop.name for hop in hops), report.counts, strict=True))


def _check(hops: Sequence[CapturePoint]) -> None:
    names = [hop.name for hop in hops]
    twice = [each for each in names if names.count(each) > 1]
    if not hops:
        raise BadInput("a capture needs at least one interface")
    if twice:
        raise BadInput(f"{twice[0]} is named twice: a capture sees an interface once")


def check_limits(snap_bytes: float, rate_pps: float, total_bytes: float, settle_s: float) -> None:
    """Raise BadInput for the first limit of a capture that cannot be one."""
    if not LEAST_SNAP_BYTES <= snap_bytes <= MOST_SNAP_BYTES:
        wanted = f"{LEAST_SNAP_BYTES} (the headers of a tunnel in a tunnel) to {MOST_SNAP_BYTES}"
        raise BadInput(f"snap_bytes={snap_bytes} cannot be: {wanted}")
    for each, value in (("rate_pps", rate_pps), ("total_bytes", total_bytes)):
        if value < 1:
            raise BadInput(f"{each}={value} would capture nothing: at least 1")
        if not value < 1 << 63:
            raise BadInput(f"{each}={value} cannot be: it is less than 2^63")
    if not 0 <= settle_s <= MOST_SETTLE_S:
        raise BadInput(f"settle_s={settle_s} cannot be: it is 0 to {MOST_SETTLE_S:.0f} seconds")


@contextmanager
def open_ring(
    hop: CapturePoint, snap_bytes: int, buffer_bytes: int, program: Callable[[int], bytes] | None = None
) -> Iterator[Ring]:
    """A ring at a hop for the block; `program` selects packets as in `Ring`.

    Raises BadInput for a hop that is not there, Unsupported where packets cannot be captured, Failed for what else the
    kernel refuses."""
    try:
        ring = Ring(hop.namespace.fd, hop.interface, snap_bytes, buffer_bytes, program)
    except OSError as error:
        raise _refused(hop, error) from None
    with contextlib.closing(ring):
        yield ring


def _refused(hop: CapturePoint, error: OSError) -> BadInput | Unsupported | Failed:
    if error.errno in (errno.ENODEV, errno.ENXIO):
        return BadInput(f"{hop.namespace.name} has no interface {hop.interface} to capture at")
    if error.errno in (errno.EPERM, errno.EACCES):
        words = "packets cannot be captured without CAP_NET_RAW"
        return Unsupported(f"{words}: run as root, or where users may make namespaces")
    if error.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ENOPROTOOPT):
        words = f"packets cannot be captured at {hop.name} on this kernel ({error.strerror})"
        return Unsupported(f"{words}: leave it out, or boot a kernel with CONFIG_PACKET")
    return Failed(f"packets cannot be captured at {hop.name}: {error.strerror}")


def _stopped(forked: process.Forked, settle_s: float, path: Path) -> RecorderReport:
    """What the recorder tells when it is told to stop. Raises Failed."""
    try:
        reply = forked.stop(settle_s + DRAIN_S + WRITE_S)
        report = msgspec.json.decode(reply, type=RecorderReport)
    except (Failed, msgspec.DecodeError) as error:
        raise Failed(f"the recorder of packets {error}; what it wrote until then is in {path}") from None
    if report.error:
        raise Failed(f"packets could not be recorded: {report.error}")
    return report
