"""One session of the kernel's function tracer (Documentation/trace/ftrace.rst), undone on every way out.

tracefs is not namespaced: whoever traces, traces the whole machine. So a session has an instance of its own where the
kernel has function_graph in instances (Linux 6.11), else the one that all share, if nobody uses that. Before a
session changes a setting, it records the old value in a journal (labkit.system.machine.tracing_journal). A guard
restores the settings when the session is killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labkit.common import errors
from labkit.common.errors import Failed, Unsupported
from labkit.system import machine
from labkit.system.machine import tracing_guard, tracing_journal

TRACER = "function_graph"
OTHERWISE = "run with where=vm:debian,profile=tracing"
# Of all instances: whoever traces with one function_graph has them in all.
SHARED = {
    "set_graph_function",
    "set_graph_notrace",
    "max_graph_depth",
    "tracing_thresh",
    "saved_cmdlines_size",
}
OPTIONS = "options/funcgraph-"  # written in an instance, they are so in all (tried with 6.12)
# What is otherwise than here, and would leave out calls or change what a time is.
PLAIN = {
    "tracing_thresh": "0",
    "max_graph_depth": "0",
    "set_graph_notrace": "",
    "set_ftrace_notrace": "",
    "set_ftrace_pid": "",
    "saved_cmdlines_size": "16384",
    "options/funcgraph-irqs": "1",
    "options/sleep-time": "1",
    "options/overwrite": "1",
}
# What perf-tools change beside that.
PERF_TOOLS_OPTIONS = (
    *(f"{OPTIONS}{name}" for name in ("abstime", "proc", "tail", "duration")),
    "options/stacktrace",
)


class Session:
    """The tracer, armed: `folder` is its instance, or `top`, the folder of tracefs."""

    def __init__(self, top: Path, folder: Path) -> None:
        self.top, self.folder = top, folder

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Trace until the block ends."""
        switch = self.folder / "tracing_on"
        switch.write_text("1")
        try:
            yield
        finally:
            switch.write_text("0")

    def cpus(self) -> list[Path]:
        """The folders of the CPUs' buffers: trace_pipe_raw, stats."""
        result = (self.folder / "per_cpu").glob("cpu[0-9]*")
        return sorted(result, key=lambda path: int(path.name.removeprefix("cpu")))

    def lost_count(self) -> int:
        """Events that the buffers could not take, since it was armed, and those that nobody read: entries and exits of
        functions. For who reads the buffers, not for who reads `trace`."""
        return sum(lost((cpu / "stats").read_text()) for cpu in self.cpus())

    def names(self) -> dict[int, str]:
        """Processes by their number outside of all namespaces, as far as the kernel remembers them."""
        lines = (self.top / "saved_cmdlines").read_text(errors="replace").splitlines()
        result = {int(number): name for number, _, name in (line.partition(" ") for line in lines)}
        return result | {0: "swapper"}


@errors.reading("per_cpu/stats of tracefs")
def lost(stats: str) -> int:
    """Events that were lost, from per_cpu/cpuN/stats: overwritten, dropped, and left there after all was read."""
    result = dict(re.findall(r"^([\w ]+): (\d+)$", stats, re.MULTILINE))
    return sum(
        int(result.get(name, 0)) for name in ("entries", "overrun", "commit overrun", "dropped events")
    )


def place() -> Path:
    """The folder of tracefs. Raises Unsupported; nothing is mounted."""
    why = f"it is not mounted: as root, mount -t tracefs none {tracing_journal.PLACES[0]}"
    for path in tracing_journal.PLACES:
        try:
            (path / "available_tracers").read_text()
            return path
        except PermissionError:
            why = f"the kernel does not let it be read: {_tracing_mode()}"
        except OSError:
            pass
    raise Unsupported(
        f"the kernel's function tracer cannot be reached, tracefs is not in {tracing_journal.PLACES[0]}: {why}"
    )


def functions() -> list[str]:
    """The functions that this kernel can trace now, in the order of their addresses; those of a module only while it is
    loaded. Raises Unsupported."""
    return [line.split()[0] for line in _read(place() / "available_filter_functions").splitlines()]


def check() -> None:
    """Raise Unsupported, in one sentence, where a session cannot be had: it is had for a moment."""
    _check(place())
    with session(filters=functions()[:1], buffer_kib=64):
        pass


@contextmanager
def session(
    *,
    filters: Sequence[str] = (),
    roots: Sequence[str] = (),
    buffer_kib: int = 65536,
    options: Mapping[str, bool] | None = None,
) -> Iterator[Session]:
    """function_graph, armed for the functions `filters` (none: all), within the functions `roots` (none: anywhere); it
    traces within `counting`. `buffer_kib` is of all CPUs together; `options` as in tracefs.

    Arm it before traffic. Raises Unsupported without privilege, where the kernel does not have it or does not let it
    be set, and while somebody else traces; Failed for a function that cannot be traced.
    """
    top = place()
    _check(top)
    with ExitStack() as stack:
        if os.getpid() != 1:  # in an experiment it was started outside, before
            stack.enter_context(tracing_guard.start_guard())
        arming = Arming(top, stack.enter_context(tracing_journal.journal()))
        arming.settle()
        for name, on in (options or {}).items():
            arming.set(f"options/{name}", "1" if on else "0")
        arming.set("trace_clock", "local")
        arming.buffer(max(64, buffer_kib // len(Session(top, arming.folder).cpus())))
        arming.set("set_ftrace_filter", "\n".join(filters))
        arming.set("set_graph_function", "\n".join(roots))
        arming.set("current_tracer", TRACER)
        arming.write(arming.folder / "trace", "")
        yield Session(top, arming.folder)


@contextmanager
def exclusive_tracefs() -> Iterator[Path]:
    """The shared folder of tracefs, for programs that trace on their own: afterwards everything is as it was, whatever
    they leave, also when we are killed. Raises Unsupported as `session`."""
    top = place()
    _check(top)
    if tracing_journal.PERF_TOOLS_LOCK.exists():
        raise Unsupported(
            f"somebody else traces with perf-tools: end that, or remove {tracing_journal.PERF_TOOLS_LOCK}"
        )
    with ExitStack() as stack:
        if os.getpid() != 1:
            stack.enter_context(tracing_guard.start_guard())
        journal = stack.enter_context(tracing_journal.journal())
        arming = Arming(top, journal)
        journal.note(tracing_journal.PERF_TOOLS_LOCK, None)
        for name in ("tracing_on", *PLAIN, *PERF_TOOLS_OPTIONS, "set_graph_function", "set_ftrace_filter"):
            arming.keep(name)
        for name in ("kprobe_events", "function_profile_enabled", "current_tracer"):
            arming.keep(name)
        # It is there while there are probes. Before they can be removed none may be on, as none is now (_check).
        journal.note(top / "events/kprobes/enable", "0")
        arming.set("tracing_on", "1")  # which perf leaves off, and perf-tools take for granted
        yield top


class Arming:
    """Settings of the tracer, each noted before it is changed."""

    def __init__(self, top: Path, journal: tracing_journal.Journal) -> None:
        self.top = self.folder = top
        self._journal = journal

    def settle(self) -> None:
        """Find a place, off, and nothing set that others have left."""
        if _in_instances(self.top, self._journal):
            self.folder = self.top / "instances" / f"labkit-{os.getpid():x}-{os.urandom(3).hex()}"
            self._journal.note(self.folder, None)
            self.folder.mkdir()
        self.set("tracing_on", "0")
        for name, text in PLAIN.items():
            self.set(name, text)

    def _path(self, name: str) -> Path:
        return (self.top if name in SHARED else self.folder) / name

    def keep(self, name: str) -> None:
        """Have it put back as it is now."""
        path = self.top / name
        if path.exists() and (self.folder == self.top or name in SHARED or name.startswith(OPTIONS)):
            self._journal.note(path, tracing_journal.writable(name, path.read_text()))

    def set(self, name: str, text: str) -> None:
        """Write a setting, unless it is so already; an option that the kernel does not have is as it is."""
        path = self._path(name)
        if path.exists() and tracing_journal.writable(name, _read(path)).split() != text.split():
            self.keep(name)
            self.write(path, text)

    def buffer(self, each_kib: int) -> None:
        """Give each CPU a buffer."""
        path = self.folder / "buffer_size_kb"
        text = _read(path).strip()
        if self.folder == self.top:
            parts = [
                f"{cpu.relative_to(self.top)}/buffer_size_kb" for cpu in Session(self.top, self.top).cpus()
            ]
            for name in parts if text == "X" else ["buffer_size_kb"]:
                self.keep(name)
        self.write(path, str(each_kib))

    def write(self, path: Path, text: str) -> None:
        """Write a file of tracefs. Raises Unsupported where the kernel does not let it, Failed for what it refuses."""
        try:
            path.write_text(text)
        except PermissionError as error:
            raise Unsupported(
                f"this kernel lists {TRACER} and does not let it be set ({error.strerror}): {OTHERWISE}"
            ) from None
        except OSError as error:
            words = f" in {path.name}" if len(text) > 100 else f": {path.name} = {text!r}"
            raise Failed(f"the kernel's tracer refuses ({error.strerror}){words}") from None


def _check(top: Path) -> None:
    tracers = _read(top / "available_tracers").split()
    if TRACER not in tracers:
        raise Unsupported(f"this kernel has no tracer {TRACER} (it has {', '.join(tracers)}): {OTHERWISE}")
    tracing_journal.restore_leftovers()
    tracer, events = _read(top / "current_tracer").strip(), _read(top / "set_event").split()
    if tracer != "nop" or events:
        if tracing_journal.is_held():
            raise Unsupported(tracing_journal.ANOTHER)
        what = f"the tracer {tracer} is on" if tracer != "nop" else f"the event {events[0]} is traced"
        raise Unsupported(
            f"somebody else traces: {what} in {top}; end that"
            " (echo nop > current_tracer; echo > set_event) and run again"
        )


_instances: dict[Path, bool] = {}  # what was found out


def _in_instances(top: Path, journal: tracing_journal.Journal) -> bool:
    """Whether this kernel has function_graph in instances; tried with one function, since all of them take long."""
    if top not in _instances:
        own = top / "instances" / f"labkit-{os.getpid():x}-try"
        journal.note(own, None)
        with tracing_journal.still_small(top):
            try:
                own.mkdir()
                with open(top / "available_filter_functions") as file:
                    (own / "set_ftrace_filter").write_text(file.readline().split()[0])
                (own / "current_tracer").write_text(TRACER)
                _instances[top] = True
            except OSError as error:  # EPERM where it is not let, in an instance or elsewhere
                _instances[top] = error.errno == errno.EPERM
            with contextlib.suppress(FileNotFoundError):
                own.rmdir()
    return _instances[top]


def _tracing_mode() -> str:
    return OTHERWISE if machine.is_root() else f"run as root, or {OTHERWISE}"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except PermissionError:
        raise Unsupported(f"the kernel does not let {path} be read: {_tracing_mode()}") from None
    except FileNotFoundError:
        raise Unsupported(f"this kernel has no {path}: {OTHERWISE}") from None
