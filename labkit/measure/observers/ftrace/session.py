"""A session of the kernel's function tracer (Documentation/trace/ftrace.rst), undone in every case.

tracefs has no namespaces: tracing affects the whole machine. A session therefore uses its own instance if the kernel
supports function_graph in instances (Linux 6.11), else the shared one if nobody uses it. Before a session changes a
setting, it records the old value in a journal (labkit.system.machine.tracing_journal). A guard restores the settings
when the session is killed.
"""

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
# Settings that all instances share with function_graph.
SHARED = {
    "set_graph_function",
    "set_graph_notrace",
    "max_graph_depth",
    "tracing_thresh",
    "saved_cmdlines_size",
}
OPTIONS = "options/funcgraph-"  # setting one in an instance sets it in all (tried with 6.12)
# Settings that would otherwise leave out calls or change what a time means.
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
# Further settings that perf-tools change.
PERF_TOOLS_OPTIONS = (
    *(f"{OPTIONS}{name}" for name in ("abstime", "proc", "tail", "duration")),
    "options/stacktrace",
)


class Session:
    """The armed tracer: `folder` is its instance or `top`, the folder of tracefs."""

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
        """Return the buffer folders of the CPUs (trace_pipe_raw, stats)."""
        result = (self.folder / "per_cpu").glob("cpu[0-9]*")
        return sorted(result, key=lambda path: int(path.name.removeprefix("cpu")))

    def lost_count(self) -> int:
        """Return the events that were lost or left unread since arming.

        It is meaningful for readers of the raw buffers, not of `trace`.
        """
        return sum(lost((cpu / "stats").read_text()) for cpu in self.cpus())


@errors.reading("per_cpu/stats of tracefs")
def lost(stats: str) -> int:
    """Parse the lost events from per_cpu/cpuN/stats: overwritten, dropped, and left unread."""
    result = dict(re.findall(r"^([\w ]+): (\d+)$", stats, re.MULTILINE))
    return sum(
        int(result.get(name, 0)) for name in ("entries", "overrun", "commit overrun", "dropped events")
    )


def process_names(text: str) -> dict[int, str]:
    """Return process names by pid of the initial namespace, as far as the kernel remembers them in saved_cmdlines."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return {int(number): name for number, _, name in pairs} | {0: "swapper"}


def place() -> Path:
    """Return the folder of tracefs. Raises Unsupported; nothing is mounted."""
    why = f"it is not mounted: as root, mount -t tracefs none {tracing_journal.PLACES[0]}"
    for path in tracing_journal.PLACES:
        try:
            (path / "available_tracers").read_text()
            return path
        except PermissionError:
            why = f"the kernel forbids reading it: {_tracing_mode()}"
        except OSError:
            pass
    raise Unsupported(
        f"the kernel's function tracer is not available, tracefs is not in {tracing_journal.PLACES[0]}: {why}"
    )


def functions() -> list[str]:
    """Return the functions that this kernel can trace now, by address; those of loaded modules only. Raises
    Unsupported."""
    return [line.split()[0] for line in _read(place() / "available_filter_functions").splitlines()]


def check() -> None:
    """Raise Unsupported, with one sentence, if no session can be opened; it is tried."""
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
    """Arm function_graph for the functions `filters` (empty: all) within the functions `roots` (empty: anywhere).

    It traces within `counting`. `buffer_kib` is for all CPUs together; `options` are those of tracefs. Arm it before
    the traffic. Raises Unsupported without privilege or support, and while another process traces; Failed for a
    function that cannot be traced.
    """
    top = place()
    _check(top)
    with ExitStack() as stack:
        if os.getpid() != 1:  # in an experiment, the guard was already started outside
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
    """Yield the shared tracefs folder for programs that trace on their own; restore all settings afterwards.

    The settings are also restored if this process is killed. Raises Unsupported as `session` does.
    """
    top = place()
    _check(top)
    if tracing_journal.PERF_TOOLS_LOCK.exists():
        raise Unsupported(f"perf-tools are tracing: end them, or remove {tracing_journal.PERF_TOOLS_LOCK}")
    with ExitStack() as stack:
        if os.getpid() != 1:
            stack.enter_context(tracing_guard.start_guard())
        journal = stack.enter_context(tracing_journal.journal())
        arming = Arming(top, journal)
        journal.note(tracing_journal.PERF_TOOLS_LOCK, None)
        for name in ("tracing_on", *PLAIN, *PERF_TOOLS_OPTIONS, "set_graph_function", "set_ftrace_filter"):
            arming.keep(name)
        for name in ("kprobe_events", "function_profile_enabled", "current_tracer", "set_event"):
            arming.keep(name)
        # The file exists while there are probes. Probes must be off before they are removed; none is on now (_check).
        journal.note(top / "events/kprobes/enable", "0")
        arming.set("tracing_on", "1")  # perf leaves it off, but perf-tools expect it on
        yield top


class Arming:
    """Changes of tracer settings; each old value is noted first."""

    def __init__(self, top: Path, journal: tracing_journal.Journal) -> None:
        self.top = self.folder = top
        self._journal = journal

    def settle(self) -> None:
        """Choose an instance of tracefs, switch its tracing off, and reset settings that other programs left."""
        if _in_instances(self.top, self._journal):
            self.folder = self.top / "instances" / f"labkit-{os.getpid():x}-{os.urandom(3).hex()}"
            self._journal.note(self.folder, None)
            self.folder.mkdir()
        self.set("tracing_on", "0")
        for name, text in PLAIN.items():
            self.set(name, text)

    def keep(self, name: str) -> None:
        """Note the current value of a setting, to restore it."""
        path = self.top / name
        if path.exists() and (self.folder == self.top or name in SHARED or name.startswith(OPTIONS)):
            self._journal.note(path, tracing_journal.writable(name, path.read_text()))

    def set(self, name: str, text: str) -> None:
        """Write a setting unless it already has the value; options that the kernel lacks are ignored."""
        path = (self.top if name in SHARED else self.folder) / name
        if path.exists() and tracing_journal.writable(name, _read(path)).split() != text.split():
            self.keep(name)
            self.write(path, text)

    def buffer(self, each_kib: int) -> None:
        """Set the buffer size of each CPU."""
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
        """Write a file of tracefs. Raises Unsupported if the kernel forbids it, Failed if it refuses the value."""
        try:
            path.write_text(text)
        except PermissionError as error:
            raise Unsupported(
                f"this kernel lists {TRACER} but forbids setting it ({error.strerror}): {OTHERWISE}"
            ) from None
        except OSError as error:
            value = "a long value" if len(text) > 100 else repr(text)
            raise Failed(f"the kernel's tracer refuses {value} in {path.name}: {error.strerror}") from None


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
            f"another program is tracing: {what} in {top}; end it"
            " (echo nop > current_tracer; echo > set_event) and run again"
        )


_instances: dict[Path, bool] = {}  # results of `_in_instances`


def _in_instances(top: Path, journal: tracing_journal.Journal) -> bool:
    """Return whether this kernel supports function_graph in instances; tried with one function, because all take
    long."""
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
            except OSError as error:  # EPERM: tracing is forbidden, in an instance and elsewhere
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
        raise Unsupported(f"the kernel forbids reading {path}: {_tracing_mode()}") from None
    except FileNotFoundError:
        raise Unsupported(f"this kernel has no {path}: {OTHERWISE}") from None
