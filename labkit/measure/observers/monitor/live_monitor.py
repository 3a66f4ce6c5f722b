"""A monitor of an interface for users: counts, classes, conversations, and the last packets decoded."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import asdict, replace

from labkit.common import packets, run_folder
from labkit.common.errors import BadInput, LabkitError
from labkit.common.packets import pcapng
from labkit.measure.observers import monitor
from labkit.measure.observers.monitor.kept import Row
from labkit.measure.observers.monitor.monitor import MonitorCounts, Report

Ask = Callable[..., dict[str, Any]]
PAGE_COUNT = 10_000
SAVED_COUNT = 100_000  # packets that the command writes at once
# The parameters of a monitor
TEXTS = ("source", "destination", "port", "protocol", "inside", "expression", "sample", "display", "fields")
NUMBERS = ("vlan", "keep_count", "snap_bytes")


@dataclass(frozen=True)
class MonitoredPacket:
    """A sampled packet.

    `number`: since the monitor began. `time_ns`: the kernel's time (since 1970). `direction`: in or out.
    `length_bytes`: length of the whole packet. `data`: its first bytes. `fields`: the values of the monitor's fields,
    in their order. `ports`: the UDP ports of vxlan and geneve.
    """

    number: int
    time_ns: int
    direction: str
    length_bytes: int
    data: bytes
    link_type: int
    fields: tuple[str, ...] = ()
    ports: Mapping[int, str] = field(default_factory=lambda: packets.PORTS)

    @property
    def layers(self) -> list[packets.Layer]:
        """Its headers from the outside in."""
        return packets.layers(self.data, self.link_type, self.ports, self.length_bytes)

    @property
    def stack(self) -> str:
        return packets.stack(self.layers)


MonitorReport = Report[MonitoredPacket]


def hint(report: MonitorReport) -> str | None:
    """Return one sentence if the filter selected nothing, or port= only the first fragments of datagrams, or if BPF
    programs redirect packets past the interface; else None."""
    places = [place for one in report.packets for place in re.findall(r" fragment at (\d+)", one.stack)]
    if report.selects_ports and places and not any(map(int, places)):
        return "only first fragments are here: later ones have no ports, so port= cannot select them; leave it out"
    return report.unseen or report.counts.hint


class LiveMonitor:
    """A monitor that goes on until it is closed, or its topology is. Several threads may use it.

    What it kept can be read and saved afterwards. `unseen`: as of `State.unseen`.
    """

    def __init__(self, ask: Ask, hop: str, request: monitor.Request, unseen: Mapping[str, str]) -> None:
        monitor.check_request(request)
        self._ask = ask
        answer = ask("monitor", hop=hop, request=msgspec.to_builtins(request))
        self._number = answer["number"]
        self.hop: str = answer["hop"]
        self.request = request
        self._unseen = unseen.get(self.hop)
        self._lock = threading.Lock()
        self._last: MonitorReport | None = None

    def read(self, since: int = -1, limit: int = 100) -> MonitorReport:
        """Return the counts and the newest `limit` kept packets after number `since`; after `close` the last ones."""
        with self._lock:
            if self._last is not None:
                new = [one for one in self._last.packets if one.number > since]
                return replace(self._last, packets=new[max(len(new) - limit, 0) :])
            return self._read(since, limit)

    def _read(self, since: int, limit: int) -> MonitorReport:
        """Read page by page: the answer to a request has a time limit, and 300,000 packets take 7 s."""
        before, pages, result = None, [], None
        while result is None or (limit > 0 and len(pages[-1]) == PAGE_COUNT):
            wanted = min(limit, PAGE_COUNT)
            page = self._report("monitor read", since=since, limit=wanted, before=before)
            pages.append(page.packets)
            result, limit = result or page, limit - wanted
            before = page.packets[0].number if page.packets else None
        return replace(result, packets=[one for page in reversed(pages) for one in page])

    @property
    def counts(self) -> MonitorCounts:
        """The current counts; after `close` the last ones."""
        return self.read(limit=0).counts

    @property
    def packets(self) -> list[MonitoredPacket]:
        """All kept packets, the oldest first; after `close`, those that were in memory at the end."""
        return self.read(limit=self.request.keep_count).packets

    def stop(self) -> MonitorReport:
        """Stop capturing, and handle all captured packets. Packets in memory can still be read and saved."""
        with self._lock:
            return self._last or self._report("monitor stop")

    def clear(self) -> None:
        """Forget the packets in memory and the totals of classes and conversations. The counts go on."""
        with self._lock:
            if self._last is None:
                self._report("monitor clear")

    def save(self, path: str | Path) -> None:
        """Write the kept packets as a pcapng file, for example for Wireshark, also after `close`. Each packet's
        comment describes its headers."""
        run_folder.write(Path(path), self.pcapng())

    def pcapng(self) -> bytes:
        """Return the kept packets as the content of a pcapng file."""
        report = self.read(limit=self.request.keep_count)
        head = pcapng.header([(self.hop, report.link_type)], self.request.snap_bytes)
        return head + b"".join(blocks(report.packets))

    def close(self) -> MonitorReport:
        """End the monitor: handle all captured packets, and return the last counts and all kept packets."""
        with self._lock:
            if self._last is None:
                try:
                    self._report("monitor stop")
                    kept = self._read(-1, self.request.keep_count)
                finally:
                    last = self._report("monitor end")
                self._last = replace(last, packets=kept.packets)
            return self._last

    def _report(self, do: str, **more: Any) -> MonitorReport:
        answer = self._ask(do, monitor=self._number, **more)
        report, ports = msgspec.convert(answer["report"], Report[Row]), dict(self.request.tunnel_ports)
        seen = [
            MonitoredPacket(number, time_ns, direction, length_bytes, data, report.link_type, fields, ports)
            for number, time_ns, direction, length_bytes, data, fields in report.packets
        ]
        by_port = self.request.selection.port is not None
        own = {"packets": seen, "selects_ports": by_port, "unseen": self._unseen}
        return MonitorReport(**asdict(report) | own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        with suppress(LabkitError):
            self.close()

    def __repr__(self) -> str:
        report = self.read(limit=0)
        counts, advice = report.counts, hint(report)
        return (
            f"monitor of {self.hop}: {counts.seen_count} seen, {counts.selected_count} selected,"
            f" {counts.sampled_count} sampled, {counts.kept_count} kept, {counts.dropped_count} dropped"
            + (f"; {advice}" if advice else "")
        )


def blocks(there: list[MonitoredPacket]) -> Iterator[bytes]:
    """Yield each packet as a block of a pcapng file, with its headers as a comment."""
    for one in there:
        flag = pcapng.DIRECTION_FLAGS[one.direction]
        yield pcapng.packet(0, one.time_ns, flag, one.length_bytes, one.data, one.stack)


def typed(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of `LiveTopology.monitor` among texts of a command line or a page, with numbers converted.

    Raises BadInput for an invalid number.
    """
    result: dict[str, Any] = {name: given[name] for name in TEXTS if name in given}
    for name in NUMBERS:
        if name in given:
            try:
                result[name] = int(given[name])
            except ValueError:
                raise BadInput(f"{name}={given[name][:80]!r} is not a number: write {name}=N") from None
    return result
