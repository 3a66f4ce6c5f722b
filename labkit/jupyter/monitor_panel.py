"""Show the live monitor as a notebook widget: controls, moving charts, talkers, conversations, and the last packets.

    from labkit.jupyter.monitor_panel import MonitorPanel
    MonitorPanel(net)

The page shows packet contents as text, never as HTML (monitor_panel.js).
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import anywidget
import msgspec
import traitlets

from labkit.common import units
from labkit.common.errors import BadInput, LabkitError, choose
from labkit.measure.observers.monitor import live_monitor

UPDATE_S = 0.1  # ten updates a second
# a viewer that is silent for so long has left; even a hidden page answers reports each second
VIEWER_S = 10.0
MAX_PACKETS = 50  # in an update
MAX_CHARACTERS = 5000  # in a text from the browser
HEX_BYTES = 16  # in a line


class Monitored(Protocol):
    """A monitor as a panel uses it: a LiveMonitor, or one that several viewers share."""

    def read(self, since: int = -1, limit: int = 100) -> Any:
        """Return the newest report."""

    def pcapng(self) -> bytes:
        """Return the packets in memory as a file."""

    def clear(self) -> Any:
        """Forget packets and totals."""

    def close(self) -> Any:
        """End the monitor."""


class Watched(Protocol):
    """What a panel watches: a live topology, or the client of a hub."""

    @property
    def monitor(self) -> Callable[..., Monitored]:
        """Start a monitor of an interface, with the parameters of `LiveTopology.monitor`."""


class MonitorPanel(anywidget.AnyWidget):
    """A panel for the interfaces of a live topology.

    It captures while a page shows it: the capture starts with the first viewer, is shared by all, and ends with the
    last.
    """

    _esm = Path(__file__).with_suffix(".js")
    interfaces = traitlets.List(traitlets.Unicode()).tag(sync=True)
    choice = traitlets.Dict().tag(sync=True)
    is_page = traitlets.Bool(False).tag(sync=True)

    def __init__(
        self,
        watched: Watched,
        interfaces: Sequence[str] | None = None,
        choice: Mapping[str, str] | None = None,
    ) -> None:
        names = list(interfaces_of(watched) if interfaces is None else interfaces)
        if not names:
            raise BadInput("a panel needs an interface to watch: build a topology that has one")
        super().__init__(interfaces=names, choice={"interface": names[0], **(choice or {})})
        # A page can change what it shows, but not what is watched.
        self._watched, self._names = watched, names
        self._viewers: dict[str, float] = {}
        self._lock = threading.Lock()  # protects _monitor and _since
        self._monitor: Monitored | None = None
        self._since = -1
        self._is_closed = False
        # After a failure only another choice or a new viewer tries again, and not each update.
        self._has_failed = False
        self._waits = threading.Event()
        self.on_msg(self._hear)
        threading.Thread(target=self._run, daemon=True, name="labkit monitor panel").start()

    def __repr__(self) -> str:
        return f"the live monitor of {', '.join(self.interfaces)}, which needs this notebook's kernel"

    def _hear(self, _widget: Any, message: Any, _buffers: Any) -> None:
        """Check and handle a message of a page, which may only request what the panel was made for."""
        if not isinstance(message, dict):
            return
        viewer = str(message.get("viewer", ""))[:64]
        if message.get("do") == "alive" and len(self._viewers) < 1000:
            self._viewers[viewer] = time.monotonic()
        elif message.get("do") == "bye":
            self._viewers.pop(viewer, None)
        elif message.get("do") == "apply":
            self._apply(message.get("choice"))
        elif message.get("do") == "save":
            self._save(viewer)
        elif message.get("do") == "clear":
            self._clear()

    @contextmanager
    def _showing_problems(self) -> Iterator[None]:
        """Show on every page what goes wrong in the block."""
        try:
            yield
        except LabkitError as error:
            self.send({"do": "problem", "text": str(error)})

    def _apply(self, choice: Any) -> None:
        with self._showing_problems():
            self.choice = check_choice(choice, self._names)
            self._stop()
            self._start()

    def _clear(self) -> None:
        """Forget what was seen. Every page of this panel empties itself when the monitor has done so."""
        with self._lock, self._showing_problems():
            if self._monitor is not None:
                self._monitor.clear()
                self._since = -1
                self.send({"do": "cleared"})

    def _save(self, viewer: str) -> None:
        with self._showing_problems():
            with self._lock:
                content = None if self._monitor is None else self._monitor.pcapng()
            if content is not None:
                self.send({"do": "file", "viewer": viewer}, buffers=[content])

    def _start(self) -> None:
        with self._lock, self._showing_problems():
            if self._monitor is not None:
                return
            self._has_failed = True  # unless the monitor starts below
            choice = check_choice(self.choice, self._names)
            self._monitor = self._watched.monitor(choice["interface"], **live_monitor.typed(choice))
            self._since, self._has_failed = -1, False

    def _stop(self) -> None:
        with self._lock, self._showing_problems():
            one, self._monitor = self._monitor, None
            if one is not None:
                one.close()

    def _run(self) -> None:
        """Send reports while there are viewers."""
        while not self._is_closed:
            self._waits.wait(UPDATE_S)
            now = time.monotonic()
            self._viewers = {name: at for name, at in list(self._viewers.items()) if now - at < VIEWER_S}
            if not self._viewers:
                if self._monitor is not None:
                    self._stop()
                self._has_failed = False
                continue
            if self._monitor is None and not self._has_failed:
                self._start()
            self._send_report()
        self._stop()

    def _send_report(self) -> None:
        with self._lock, self._showing_problems():
            if self._monitor is None:
                return
            try:
                report = self._monitor.read(self._since, MAX_PACKETS)
            except LabkitError:
                self._monitor, self._has_failed = None, True
                raise
            if report.packets:
                self._since = report.packets[-1].number
            self.send(message(report))  # with the lock, so that no older report follows "cleared"

    def close(self) -> None:
        """Close the widget and end its capture."""
        self._is_closed = True
        self._waits.set()
        super().close()


def interfaces_of(watched: Any) -> list[str]:
    """Return the interfaces of a live topology as NAMESPACE:INTERFACE; loopback only if there is no other."""
    spaces = watched.state.namespaces
    all_names = [(f"{space.name}:{one.name}", one.kind) for space in spaces for one in space.interfaces]
    return [name for name, kind in all_names if kind != "loopback"] or [name for name, _kind in all_names]


def check_choice(choice: Any, interfaces: Sequence[str]) -> dict[str, str]:
    """Return a page's choice as parameters of a monitor, which are texts; those that are empty are left out.

    Raises BadInput for an interface that the panel does not have, an unknown name, or a value that is not text.
    """
    if not isinstance(choice, dict) or choice.get("interface") not in interfaces:
        raise BadInput(f"this panel watches {', '.join(interfaces)}: choose one of them")
    known = ("interface", *live_monitor.TEXTS, *live_monitor.NUMBERS)
    for name, value in choice.items():
        if name not in known:
            raise BadInput(f"a monitor has no parameter {str(name)[:40]!r}: {choose(name, known)}")
        if not isinstance(value, str) or len(value) > MAX_CHARACTERS:
            raise BadInput(f"{name} must be a text of at most {MAX_CHARACTERS} characters")
    return {name: value for name, value in choice.items() if value}


def message(report: Any) -> dict[str, Any]:
    """Return a report for the page, as numbers and texts."""
    return {
        "do": "report",
        "time_s": time.monotonic(),
        "counts": msgspec.to_builtins(report.counts),
        "classes": {name: list(counts) for name, counts in report.classes.items()},
        "conversations": [list(one) for one in report.conversations],
        "talkers": [list(one) for one in report.talkers],
        "packets": [_row(one) for one in report.packets],
        "is_gone": report.is_gone,
        "problem": report.problem,
        "hint": live_monitor.hint(report),
    }


def _row(packet: Any) -> dict[str, Any]:
    layers = packet.layers
    return {
        "time": units.time_of_day(packet.time_ns),
        "direction": packet.direction,
        "length_bytes": packet.length_bytes,
        "stack": packet.stack,
        "fields": list(packet.fields),
        "layers": [f"{one.text} ({one.header_bytes} of {one.length_bytes} bytes)" for one in layers],
        "hex": hex_lines(packet.data),
    }


def hex_lines(data: bytes) -> str:
    """Return bytes as lines of hexadecimal numbers and ASCII."""
    lines = []
    for at in range(0, len(data), HEX_BYTES):
        part = data[at : at + HEX_BYTES]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:04x}  {part.hex(' '):{3 * HEX_BYTES}} {text}")
    return "\n".join(lines)
