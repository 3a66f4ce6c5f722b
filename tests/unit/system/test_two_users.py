"""Two users of one machine: the journals of root's changes, and the measuring lock."""

import fcntl
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import ROOT

from labkit.common.errors import Failed
from labkit.measure.hosts import local
from labkit.system.machine import sysctl_journal, tracing_journal

pytestmark = pytest.mark.long

# It reads root's Python and this test's folder, and writes into neither.
SOMEBODY = ["setpriv", "--reuid", "65533", "--regid", "65533", "--clear-groups",
            "--bounding-set", "-all,+dac_read_search", "--inh-caps", "-all,+dac_read_search",
            "--ambient-caps", "-all,+dac_read_search", "--", sys.executable, "-P", "-c"]  # fmt: skip

OPENS_JOURNALS = """
import sys
from pathlib import Path
from labkit.common.errors import Unsupported
from labkit.system.machine import sysctl_journal, tracing_journal
sysctl_journal.JOURNAL, tracing_journal.JOURNAL = map(Path, sys.argv[1:])
print(sysctl_journal.restore_leftovers())
for opened in (sysctl_journal._lock, tracing_journal.journal):
    try:
        with opened():
            print("opened")
    except Unsupported as error:
        print(error)
"""
TAKES_THE_LOCK = """
import sys
from labkit.common.errors import Failed
from labkit.measure.hosts import local
try:
    with local.measuring_lock(lambda text: print(text, flush=True), patience_s=float(sys.argv[1])):
        print("taken", flush=True)
        sys.stdin.read()
except Failed as error:
    print(error)
"""


@pytest.fixture
def journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    paths = [tmp_path / "sysctl.jsonl", tmp_path / "tracing.jsonl"]
    for module, path in zip((sysctl_journal, tracing_journal), paths, strict=True):
        monkeypatch.setattr(module, "JOURNAL", path)
    return paths


def test_journal_with_an_invalid_byte_is_restored(
    journals: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysctl_journal, "ROOT", tmp_path)
    (tmp_path / "net/core").mkdir(parents=True)
    (tmp_path / "net/core/rmem_max").write_text("2")
    good = b'{"name":"net.core.rmem_max","value":"1"}\n'
    journals[0].write_bytes(b'{"name":"net.core.\xff","value":"9"}\n' + good + b'{"name":"net.co')
    assert sysctl_journal.restore_leftovers() == ["net.core.rmem_max"]
    assert (tmp_path / "net/core/rmem_max").read_text() == "1"
    assert journals[0].read_bytes() == b""


def ran(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.needs("root")
@pytest.mark.parametrize("held", [False, True])
def test_another_user_does_not_touch_the_journals(held: bool, journals: list[Path]) -> None:
    """Whether root's process that changes the machine lives or not, its notes stay, and the sentence says why."""
    line = b'{"name":"net.core.rmem_max","value":"212992"}\n'
    with ExitStack() as stack:
        if held:
            descriptor = stack.enter_context(sysctl_journal._lock())
            stack.enter_context(tracing_journal.journal())
        journals[0].write_bytes(line)
        journals[0].chmod(0o600)
        done = ran(*SOMEBODY, OPENS_JOURNALS, *map(str, journals))
        assert journals[0].read_bytes() == line
        if held:
            os.ftruncate(descriptor, 0)
    assert done.returncode == 0, done.stderr
    left, sysctl, tracing = done.stdout.splitlines()
    assert left == "[]"
    assert sysctl == f"{journals[0]} cannot be written (Permission denied): run as root"
    assert tracing == (
        f"{journals[1]}, the journal of tracer settings, cannot be written (Permission denied): run as root"
    )


def interrupt() -> None:
    raise InterruptedError


@pytest.mark.needs("root")
def test_root_waits_for_root_alone() -> None:
    """Another user waits for a run of root, and cannot hold one up."""
    with local.measuring_lock(print):
        done = ran(*SOMEBODY, TAKES_THE_LOCK, "0.2")
    assert done.returncode == 0, done.stderr
    assert "another measurement is using this machine (process " in done.stdout.splitlines()[0]
    assert "taken" not in done.stdout
    with subprocess.Popen(
        [*SOMEBODY, TAKES_THE_LOCK, "60"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "taken\n"
        lines: list[str] = []
        with local.measuring_lock(lines.append, patience_s=0.2):
            assert f"another user measures on this machine, too (process {other.pid}: " in lines[0]
            held_here = pytest.raises(Failed, match=f"process {os.getpid()}: ")
            with held_here, local.measuring_lock(print, patience_s=0.2):
                pass
            with pytest.raises(InterruptedError), local.measuring_lock(print, still_waits=interrupt):
                pass
        other.communicate("")
    with local.measuring_lock(print, patience_s=1):
        pass


HELD_BY_ANOTHER = """
import os, socket, sys
from labkit.common.errors import Failed
from labkit.measure.hosts import local
held = socket.socket(socket.AF_UNIX)
held.bind(local.LOCK)
os.seteuid(65533)
if sys.argv[1] == "listens":
    held.listen()
os.seteuid(0)
os.setresuid(65532, 65532, 65532)
try:
    with local.measuring_lock(print, patience_s=1.5):
        pass
except Failed:
    pass
"""


@pytest.mark.needs("root")
@pytest.mark.parametrize(
    ("how", "words"),
    [("listens", r"process \d+: .*, which only user 65533 or root can end"),
     ("is silent", "a process that cannot be seen from here")],
)  # fmt: skip
def test_who_holds_up_a_user_is_said(how: str, words: str) -> None:
    """Any user can hold the lock of those who are not root, also with a socket that answers nobody."""
    done = ran("unshare", "--net", sys.executable, "-P", "-c", HELD_BY_ANOTHER, how)
    sentence = rf"another measurement is using this machine \({words}\); waiting for its end\n"
    assert re.fullmatch(sentence, done.stdout, re.DOTALL), done.stderr


@pytest.mark.needs("root")
def test_a_journal_that_others_can_read_is_replaced(journals: list[Path]) -> None:
    """A file of an earlier version: whoever can read it can lock it, and root's notes would never be used."""
    journals[0].write_text("")
    journals[0].chmod(0o644)
    with journals[0].open() as others:
        fcntl.flock(others, fcntl.LOCK_SH)
        with sysctl_journal._lock():
            assert journals[0].stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_restored_is_said_and_kept(
    journals: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysctl_journal, "ROOT", tmp_path)
    line = b'{"name":"net.core.rmem_max","value":"1"}\n'
    journals[0].write_bytes(line)
    with pytest.raises(Failed, match=r"could not be restored: net\.core\.rmem_max=1 \(No such file"):
        sysctl_journal.restore_leftovers()
    assert journals[0].read_bytes() == line


GUARDED = """
import time
from labkit.system.machine import sysctl_journal, tracing_guard
with tracing_guard.start_guard():
    sysctl_journal.JOURNAL.touch(0o600)
    sysctl_journal.JOURNAL.write_text('{"name":"net.core.no_such","value":"1"}\\n')
"""


@pytest.mark.needs("root")
def test_guard_says_what_it_cannot_restore() -> None:
    """It outlives the experiment, so nobody else can say it."""
    own_run = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]
    done = ran(*own_run, sys.executable, "-P", "-c", GUARDED)
    assert done.stderr == (
        "labkit: sysctls of the machine could not be restored: net.core.no_such=1 (No such file or directory):"
        " set them by hand\n"
    )
