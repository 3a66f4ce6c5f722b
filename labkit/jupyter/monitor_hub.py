"""Share the captures of one process between several pages: a socket in a private folder, and its client.

Each page of `labkit monitor --serve` has its own kernel. Kernels request monitors over the socket. Equal requests share
a monitor, which ends when its last user disconnects for any reason. A page reaches only the interfaces that the hub was
started for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from labkit.common.errors import BadInput, Failed, LabkitError, error_by_name
from labkit.jupyter.monitor_panel import Monitored, Watched, check_choice
from labkit.measure.observers.monitor import live_monitor
from labkit.measure.observers.monitor.live_monitor import MonitorReport

MAX_PAGES = 32
ANSWER_S = 60.0
OWN = b"\n"  # in the key of a monitor that is not shared, before its number


class _Error(msgspec.Struct):
    kind: str
    text: str


class _Answer(msgspec.Struct, omit_defaults=True):
    """One answer: a report, a file, or an error."""

    report: MonitorReport | None = None
    file: bytes | None = None
    error: _Error | None = None


class Hub:
    """Serves the monitors of `watched` at `interfaces` on a unix socket at `path`, until the block ends."""

    def __init__(self, watched: Watched, interfaces: Sequence[str], path: str) -> None:
        self._watched, self._interfaces, self._path = watched, list(interfaces), path
        self._shared: dict[bytes, tuple[Monitored, int]] = {}
        self._own_count = 0
        self._lock = threading.Lock()
        self._pages = threading.BoundedSemaphore(MAX_PAGES)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    @property
    def captures_count(self) -> int:
        """The number of running captures."""
        return len(self._shared)

    def __enter__(self) -> Self:
        self._socket.bind(self._path)
        os.chmod(self._path, 0o600)
        self._socket.listen(MAX_PAGES)
        threading.Thread(target=self._accept, daemon=True, name="labkit monitor hub").start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            for one, _count in self._shared.values():
                with contextlib.suppress(LabkitError):
                    one.close()
            self._shared.clear()

    def _accept(self) -> None:
        while True:
            try:
                page, _ = self._socket.accept()
            except OSError:
                return
            if not self._pages.acquire(blocking=False):
                page.close()
                continue
            threading.Thread(target=self._serve, args=(page,), daemon=True, name="labkit page").start()

    def _serve(self, page: socket.socket) -> None:
        """Answer one page until it disconnects."""
        key: bytes | None = None
        try:
            with page, page.makefile("rwb") as lines:
                for line in lines:
                    try:
                        request, answer = msgspec.json.decode(line, type=dict[str, Any]), _Answer()
                        if key is None:
                            key = self._take_viewer(request)
                        elif request.get("do") == "clear":
                            key = self._clear(key)
                        else:
                            answer = self._answered(key, request)
                    except LabkitError as error:
                        answer = _Answer(error=_Error(type(error).__name__, str(error)))
                    except msgspec.MsgspecError as error:
                        answer = _Answer(error=_Error("BadInput", f"this is not a request: {error}"))
                    lines.write(msgspec.json.encode(answer) + b"\n")
                    lines.flush()
        except OSError:
            pass  # the page has disconnected
        finally:
            if key is not None:
                self._release(key)
            self._pages.release()

    def _take_viewer(self, request: dict[str, Any]) -> bytes:
        choice = check_choice(request.get("choice"), self._interfaces)
        key = msgspec.json.encode(sorted(choice.items()))
        with self._lock:
            if key in self._shared:
                return self._joined(key)
        # With a display filter this takes seconds, and other pages must get their answers meanwhile.
        one = self._watched.monitor(choice["interface"], **live_monitor.typed(choice))
        with self._lock:
            if key not in self._shared:
                self._shared[key] = one, 1
                return key
            self._joined(key)  # another page has asked for the same meanwhile
        one.close()
        return key

    def _joined(self, key: bytes) -> bytes:
        one, count = self._shared[key]
        self._shared[key] = one, count + 1
        return key

    def _answered(self, key: bytes, request: dict[str, Any]) -> _Answer:
        with self._lock:
            if key not in self._shared:
                raise Failed("the monitor has ended")
            one = self._shared[key][0]
        if request.get("do") == "file":
            return _Answer(file=one.pcapng())
        since, limit = int(request.get("since", -1)), int(request.get("limit", 0))
        return _Answer(report=one.read(since, min(limit, 1000)))

    def _clear(self, key: bytes) -> bytes:
        """Forget what one page has seen, and return the key of its monitor.

        A page that shares its monitor gets one of its own, because the others go on with theirs.
        """
        with self._lock:
            if key not in self._shared:
                raise Failed("the monitor has ended")
            one, count = self._shared[key]
            if count == 1:
                one.clear()
                return key
            self._own_count += 1
            own = key.partition(OWN)[0] + OWN + str(self._own_count).encode()
        choice = dict(msgspec.json.decode(key.partition(OWN)[0], type=list[tuple[str, str]]))
        fresh = self._watched.monitor(choice["interface"], **live_monitor.typed(choice))
        with self._lock:
            self._shared[own] = fresh, 1
        self._release(key)
        return own

    def _release(self, key: bytes) -> None:
        with self._lock:
            if key not in self._shared:
                return
            one, count = self._shared.pop(key)
            if count > 1:
                self._shared[key] = one, count - 1
                return
        with contextlib.suppress(LabkitError):
            one.close()


class HubClient:
    """The client side of a hub, as a panel uses it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def monitor(self, interface: str, **parameters: Any) -> SharedMonitor:
        """Return a monitor of the hub, shared with equal requests. Raises as `LiveTopology.monitor`."""
        texts = {name: str(value) if isinstance(value, int) else value for name, value in parameters.items()}
        return SharedMonitor(self._path, {"interface": interface, **texts})


class SharedMonitor:
    """A monitor of a hub. It ends when its last user closes it."""

    def __init__(self, path: str, choice: Mapping[str, Any]) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_S)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            why = f"the monitor's process cannot be reached ({error.strerror})"
            raise Failed(f"{why}: start it again") from None
        self._lines = self._socket.makefile("rwb")
        try:
            self._ask({"choice": choice})
        except LabkitError:
            self.close()
            raise

    def _ask(self, request: dict[str, Any]) -> _Answer:
        try:
            self._lines.write(msgspec.json.encode(request) + b"\n")
            self._lines.flush()
            line = self._lines.readline()
            answer = msgspec.json.decode(line, type=_Answer)
        except (OSError, ValueError, msgspec.MsgspecError):
            raise Failed("the monitor's process has ended: start it again") from None
        if answer.error is not None:
            raise error_by_name(answer.error.kind, answer.error.text)
        return answer

    def read(self, since: int = -1, limit: int = 100) -> MonitorReport:
        """Return the newest report."""
        report = self._ask({"do": "read", "since": since, "limit": limit}).report
        if report is None:
            raise BadInput("the monitor's process gave no report: start it again")
        return report

    def pcapng(self) -> bytes:
        """Return the packets in memory as a file."""
        return self._ask({"do": "file"}).file or b""

    def clear(self) -> None:
        """Forget packets and totals for this user only."""
        self._ask({"do": "clear"})

    def close(self) -> None:
        """Close the connection to the hub."""
        with contextlib.suppress(OSError):
            self._lines.close()
        self._socket.close()
