"""ftrace sessions: the tracer's settings are restored, and errors say why tracing is not possible."""

from pathlib import Path

import msgspec
import pytest

from labkit.common.errors import Failed, Unsupported
from labkit.measure.observers.ftrace import kernel_functions, perf_tools, session
from labkit.system import machine, process
from labkit.system.machine import tracing_journal


def test_setting_round_trip() -> None:
    filtered = "ip_rcv\nbr_handle_frame [bridge]\nip_rcv:traceoff:unlimited\n"
    for name, text, written in (
        ("trace_clock", "local [global] mono\n", "global"),
        ("buffer_size_kb", "7 (expanded: 1408)\n", "1408"),
        ("set_ftrace_filter", "#### all functions enabled ####\n", ""),
        ("set_ftrace_filter", filtered, "ip_rcv\nbr_handle_frame"),
    ):
        assert tracing_journal.writable(name, text) == written


def test_lost_events() -> None:
    """Events that remain after reading everything count as lost."""
    stats = "entries: 5\noverrun: 10\ncommit overrun: 1\nbytes: 400\ndropped events: 3\nread events: 7\n"
    assert session.lost(stats) == 19


@pytest.fixture
def tracing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tracing_journal, "PLACES", (tmp_path / "tracing",))
    monkeypatch.setattr(tracing_journal, "JOURNAL", tmp_path / "journal")
    monkeypatch.setattr(tracing_journal, "PERF_TOOLS_LOCK", tmp_path / "lock")
    files = {"available_tracers": "function_graph nop", "current_tracer": "nop", "set_event": "",
             "kprobe_events": "", "tracing_on": "0", "options/funcgraph-proc": "0"}  # fmt: skip
    for name, text in files.items():
        path = tmp_path / "tracing" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tracing"


def test_perf_tools_leftovers_are_restored(tracing: Path) -> None:
    """Active probes are disabled before they are removed. Options and the lock are restored as well."""
    with session.exclusive_tracefs() as top:
        (top / "events/kprobes").mkdir(parents=True)
        for name in ("events/kprobes/enable", "options/funcgraph-proc"):
            (top / name).write_text("1")
        tracing_journal.PERF_TOOLS_LOCK.write_text("123\n")
        lines = tracing_journal.JOURNAL.read_text().splitlines()
        noted = [msgspec.json.decode(line)["path"] for line in lines]
        assert noted.index(f"{top}/events/kprobes/enable") > noted.index(f"{top}/kprobe_events")
    assert (tracing / "events/kprobes/enable").read_text() == "0"
    assert (tracing / "options/funcgraph-proc").read_text() == "0"
    assert not tracing_journal.PERF_TOOLS_LOCK.exists()
    tracing_journal.PERF_TOOLS_LOCK.write_text("123\n")
    with pytest.raises(Unsupported, match="perf-tools are tracing"), session.exclusive_tracefs():
        pass
    assert tracing_journal.PERF_TOOLS_LOCK.exists()


def test_other_tracers_are_reported(tracing: Path) -> None:
    """For another labkit the message says to wait, because its settings must not be restored by hand."""
    (tracing / "current_tracer").write_text("function_graph")
    by_labkit = pytest.raises(Unsupported, match="another labkit process is tracing")
    by_another = pytest.raises(Unsupported, match="another program is tracing: the tracer function_graph")
    with tracing_journal.journal(), by_labkit, session.exclusive_tracefs():
        pass
    with by_another, session.exclusive_tracefs():
        pass


def step(path: Path | str, value: str) -> bytes:
    return msgspec.json.encode(tracing_journal.JournalStep(str(path), value)) + b"\n"


def test_journal_with_an_invalid_line(tracing: Path) -> None:
    there, gone = (step(tracing / name, "1") for name in ("tracing_on", "gone"))
    tracing_journal.JOURNAL.write_bytes(b"\0\0{\n" + gone + there + b'{"path')
    tracing_journal.restore_leftovers()
    assert (tracing / "tracing_on").read_text() == "1"
    assert not (tracing / "gone").exists()
    assert not tracing_journal.JOURNAL.exists()


@pytest.mark.parametrize(
    "way", ["tracing/../victim", "tracing/link", "tracing/folder/../../victim", "tracing", "victim"]
)
def test_journal_is_limited_to_tracing(tracing: Path, tmp_path: Path, way: str) -> None:
    """Otherwise anyone who can write the journal could make root write any file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tracing / "folder").mkdir()
    (tracing / "link").symlink_to(victim)
    tracing_journal.JOURNAL.write_bytes(step(f"{tmp_path}/{way}", "theirs"))
    assert tracing_journal.restore_leftovers() == []
    assert victim.read_text() == "precious"


def test_linked_journal_is_ignored(tracing: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(step(tracing / "tracing_on", "theirs"))
    before = (tracing / "tracing_on").read_text()
    tracing_journal.JOURNAL.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        tracing_journal.restore_leftovers()
    assert (tracing / "tracing_on").read_text() == before


def test_kernel_without_function_tracer(tracing: Path) -> None:
    with pytest.raises(Unsupported, match="this kernel has no "):
        session.functions()
    assert "ip_rcv" in kernel_functions.resolved(["ip_rcv"])  # by kallsyms, for BPF


def test_unreadable_tracefs_gives_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uid 0 of a user namespace is not the machine's root, so it cannot read a mounted tracefs."""
    monkeypatch.setattr(tracing_journal, "PLACES", (tmp_path / "tracing",))
    with pytest.raises(Unsupported, match="not mounted: as root, mount -t tracefs none "):
        session.place()

    def denied(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", denied)
    for is_root, way in (
        (False, "forbids reading it: run as root, or run with where=vm"),
        (True, "reading it: run with where=vm"),
    ):
        monkeypatch.setattr(machine, "is_root", lambda is_root=is_root: is_root)
        with pytest.raises(Unsupported, match=way):
            session.place()


def test_perf_tool_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_tools, "ARMING_S", 0.1)
    waits = process.Running(["tail", "-f", "/dev/null"])
    with process.all_ended([waits]), pytest.raises(Failed, match=r"null does not trace after 0\.1 s"):
        perf_tools.wait_until_armed(waits)
