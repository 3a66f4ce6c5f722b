"""Links, folders with labkit's names, and projects that other users of a machine prepare have no effect."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Need

from labkit.commands import new
from labkit.common import run_folder, safe_files
from labkit.common.errors import BadInput, Failed
from labkit.measure.hosts import debian_kernels
from labkit.runner import papermill_run, run
from labkit.runner.cluster import folders
from labkit.runner.progress import Bar
from labkit.system import process, temporary_files

PREFIX = "labkit-vm-"
NOBODY = 65534


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    path.chmod(0o600)
    return path


def killed(top: Path) -> Path:
    """Return the folder that a killed process left."""
    before = {*top.iterdir()}
    with warnings.catch_warnings(
        action="ignore", category=DeprecationWarning
    ):  # of other threads, Python 3.12
        pid = os.fork()
    if pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        [left] = {*top.iterdir()} - before
        return left
    try:
        with safe_files.own_folder(top, PREFIX) as (folder, *_):
            (folder / "a/b").mkdir(parents=True)
            (folder / "a/b/c").symlink_to(top)
            os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)


def test_write_follows_no_planted_link(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "environment.json"
    path.symlink_to(victim)
    for name in (f".{path.name}.{os.getpid()}", f".{path.name}.1", f".{path.name}"):
        (tmp_path / name).symlink_to(victim)
    run_folder.write(path, b"new")
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1-r0.unfinished").symlink_to(victim)
    with pytest.raises(Failed, match="cannot write"):
        run_folder.keep_unfinished(tmp_path, "1-r0", [{}], first=False)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_write_follows_no_link_with_a_guessed_name(
    link: Callable[[Path, Path], None], tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_files.secrets, "token_hex", lambda _: "guessed")
    link(victim, tmp_path / ".guessed")
    with pytest.raises(Failed, match="cannot write"):
        run_folder.write(tmp_path / "run.json", b"new")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("write", [safe_files.replacing, safe_files.create_new])
def test_devices_and_pipes_are_not_replaced(
    write: Callable[[Path], AbstractContextManager[Any]], tmp_path: Path
) -> None:
    """As root, labkit would otherwise put a regular file in the place of /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    before = {path.name: path.lstat().st_mode for path in tmp_path.iterdir()}
    for name in before:
        with pytest.raises(OSError, match="it is a device or a pipe"), write(tmp_path / name):
            pytest.fail(f"{name} was replaced")
    assert {path.name: path.lstat().st_mode for path in tmp_path.iterdir()} == before
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("nothing")
    for name in ("loop", "nowhere", "new"):
        with write(tmp_path / name) as file:
            file.write(b"content")
        assert (tmp_path / name).read_bytes() == b"content"


def test_stale_folder_of_a_killed_owner_is_removed(tmp_path: Path) -> None:
    left = killed(tmp_path)
    assert (left / "a/b/c").is_symlink()
    with safe_files.own_folder(tmp_path, PREFIX) as (living, *_):
        assert not left.exists()
        safe_files.remove_leftovers(tmp_path, PREFIX)
        assert [*tmp_path.iterdir()] == [living]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("writes", [1, 1000])
def test_folder_keeps_its_marker_until_it_is_empty(
    writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that unpacks outlives a killed owner. The folder goes once it ends, and keeps its marker until then."""
    left = killed(tmp_path)
    empty, remaining = safe_files._empty, [writes]

    def empty_then_write(folder: int, mount: str, kept: str | None = None) -> None:
        empty(folder, mount, kept)
        if kept and remaining[0]:
            remaining[0] -= 1
            (left / "new").touch()

    monkeypatch.setattr(safe_files, "_empty", empty_then_write)
    safe_files.remove_leftovers(tmp_path, PREFIX)
    assert left.exists() == (left / safe_files.MARKER).exists() == bool(remaining[0])
    remaining[0] = 0
    safe_files.remove_leftovers(tmp_path, PREFIX)
    assert [*tmp_path.iterdir()] == []


def _forged(top: Path, change: dict[str, object]) -> None:
    left = killed(top)
    marker = left / safe_files.MARKER
    marker.write_text(json.dumps(json.loads(marker.read_text()) | change))


def _copy(top: Path) -> None:
    left = killed(top)
    shutil.copytree(left, top / f"{PREFIX}copy", symlinks=True)
    shutil.rmtree(left)


def _link_to_left(top: Path) -> None:
    (top / "elsewhere").mkdir()
    (top / f"{PREFIX}link").symlink_to(killed(top / "elsewhere"))


def _linked_marker(top: Path) -> None:
    left = killed(top)
    (left / safe_files.MARKER).rename(top / "marker")
    (left / safe_files.MARKER).symlink_to(top / "marker")


def _pipe(top: Path) -> None:
    (top / f"{PREFIX}pipe").mkdir()
    os.mkfifo(top / f"{PREFIX}pipe" / safe_files.MARKER)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "notes": lambda top: (top / f"{PREFIX}my-notes").mkdir(),
    "an empty marker": lambda top: (killed(top) / safe_files.MARKER).write_text(""),
    "a file": lambda top: (top / f"{PREFIX}file").write_text("mine"),
    "a copy": _copy,
    "a link to what is left": _link_to_left,
    "a linked marker": _linked_marker,
    "a marker with two names": lambda top: os.link(killed(top) / safe_files.MARKER, top / "marker"),
    "a pipe as marker": _pipe,
    "another user's folder": lambda top: os.chown(killed(top), NOBODY, NOBODY),  # with our marker in it
    "another user's marker": lambda top: os.chown(killed(top) / safe_files.MARKER, NOBODY, NOBODY),
    "another user's number": lambda top: _forged(top, {"user": NOBODY}),
    "another inode": lambda top: _forged(top, {"inode": 1}),
    "another boot": lambda top: _forged(top, {"boot": "00000000-0000-0000-0000-000000000000"}),
    "no number of a process": lambda top: _forged(top, {"pid": "1"}),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_unproven_folder_is_kept(kind: str, tmp_path: Path, need: Need) -> None:
    need(*["root"] * kind.startswith("another user's "))
    FOREIGN[kind](tmp_path)
    for path in tmp_path.iterdir():  # of any age, except with a marker of another boot
        os.utime(path, (0, 0), follow_symlinks=False)
    before = sorted(tmp_path.rglob("*"))
    with temporary_files.short_folder(PREFIX, tmp_path):
        pass
    assert sorted(tmp_path.rglob("*")) == before


def test_old_folder_of_an_earlier_boot_is_removed(tmp_path: Path) -> None:
    _forged(tmp_path, {"boot": "00000000-0000-0000-0000-000000000000"})
    [marker] = tmp_path.glob(f"*/{safe_files.MARKER}")
    os.utime(marker, (0, 0))
    safe_files.remove_leftovers(tmp_path, PREFIX)
    assert [*tmp_path.iterdir()] == []


def test_mounted_content_is_not_removed(tmp_path: Path, need: Need) -> None:
    need("root")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/rows").write_text("precious")
    left = killed(tmp_path)
    script = 'mount --bind "$1" "$2/a/b" && exec "$3" -c "$4" "$5"'
    code = (
        "import pathlib, sys; from labkit.common import safe_files\n"
        f"safe_files.remove_leftovers(pathlib.Path(sys.argv[1]), {PREFIX!r})"
    )
    words = [tmp_path / "data", left, sys.executable, code, tmp_path]
    subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *map(str, words)], cwd=ROOT, check=True)
    assert (tmp_path / "data/rows").read_text() == "precious"


def test_worker_and_caller_keep_foreign_folders(tmp_path: Path) -> None:
    kept = {f".cluster-{os.uname().nodename}-4194999-abc", ".placed-4194999-x"}
    for name in kept:
        (tmp_path / name).mkdir()
    with folders.attempt_folder(tmp_path):
        pass
    safe_files.remove_leftovers(tmp_path, folders.PLACING)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_runtime_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: Need
) -> None:
    need("root")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert safe_files.runtime_folder() == tmp_path
    os.chown(tmp_path, NOBODY, NOBODY)
    assert safe_files.runtime_folder() == Path("/tmp")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a project with the current folder below it."""
    folder = tmp_path / "shared" / "project"
    for name in ("notebooks", "params", "below"):
        (folder / name).mkdir(parents=True)
    (folder / "notebooks/01_datapaths.ipynb").write_text("{}")
    monkeypatch.chdir(folder / "below")
    monkeypatch.delenv("LABKIT_PROJECT", raising=False)
    return folder


@pytest.mark.parametrize("bits", [0o777, 0o1757])
@pytest.mark.parametrize("place", ["", "notebooks", "params", "notebooks/01_datapaths.ipynb", ".."])
def test_shared_writable_project_is_refused(place: str, bits: int, project: Path) -> None:
    (project / place).chmod(bits)
    if place == ".." and bits & 0o1000:  # like /tmp: nobody else can replace this user's files
        assert run_folder.notebooks() == project / "notebooks"
        return
    assert run_folder.project_root() == project / "below"
    with pytest.raises(BadInput, match=r"not executed, because other users can write .*LABKIT_PROJECT="):
        run_folder.notebooks()


@pytest.mark.parametrize("place", ["", "notebooks", "notebooks/01_datapaths.ipynb", ".."])
def test_project_of_another_user_is_refused(place: str, project: Path, need: Need) -> None:
    need("root")
    os.chown(project / place, NOBODY, NOBODY)
    with pytest.raises(BadInput, match="belongs to nobody"):
        run_folder.notebooks()


def test_sudo_caller_project_is_found(project: Path, monkeypatch: pytest.MonkeyPatch, need: Need) -> None:
    need("root")
    for path in (project, *project.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert run_folder.project_root() == project


def test_links_in_the_path_are_checked(project: Path, tmp_path: Path) -> None:
    """A link in a folder that others can write may point elsewhere at any moment."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (project / "notebooks").rename(project / "real")
    (open_to_all / "there").symlink_to(project / "real")
    (project / "notebooks").symlink_to(open_to_all / "there")
    with pytest.raises(BadInput, match=f"other users can write {open_to_all}"):
        run_folder.notebooks()


def test_links_of_others_are_found(tmp_path: Path, need: Need) -> None:
    need("root")
    (tmp_path / "real").mkdir()
    tmp_path.chmod(0o1777)
    for name, target in (("own", "real"), ("other", "real"), ("through", "other/x"), ("loop", "loop")):
        (tmp_path / name).symlink_to(target)
    os.chown(tmp_path / "other", NOBODY, NOBODY, follow_symlinks=False)
    for name in ("real/x", "own/x", "nothing/x", "own"):
        assert safe_files.make_folder(tmp_path / name) == tmp_path / name.replace("own", "real")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        safe_files.make_folder(tmp_path / "loop")
    reason = f"{tmp_path / 'other'} is a link of another user, who can change its target"
    for mode in (0o1777, 0o755):
        tmp_path.chmod(mode)
        for name in ("other", "other/x/y", "through/y"):
            with pytest.raises(PermissionError, match=reason):
                safe_files.make_folder(tmp_path / name)


@pytest.mark.parametrize("owner", [NOBODY, 0])
def test_root_writes_nothing_below_a_folder_that_others_can_replace(
    owner: int, tmp_path: Path, need: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner can rename it while a run goes on, and put a link in its place."""
    need("root")
    theirs = tmp_path / "theirs"
    (theirs / "data").mkdir(parents=True)
    theirs.chmod(0o755 if owner else 0o777)
    os.chown(theirs, owner, owner)
    words = f"{theirs} belongs to nobody" if owner else f"other users can write {theirs}"
    reason = f"{words}, who could replace it while root writes there"
    with pytest.raises(Failed, match=re.escape(reason)):
        run_folder.write(theirs / "data/run/rows.csv", b"")
    if owner:
        monkeypatch.setenv("SUDO_UID", str(owner))
    else:
        theirs.chmod(0o1777)
    run_folder.write(theirs / "data/run/rows.csv", b"")


def test_link_that_takes_the_place_of_a_new_folder_is_found(
    tmp_path: Path, need: Need, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp another user can make what root looked for and did not find, before root makes it."""
    need("root")
    tmp_path.chmod(0o1777)
    (tmp_path / "precious").mkdir()
    make = os.mkdir

    def mkdir(*args: Any, **options: Any) -> None:
        if not (tmp_path / "data").is_symlink():
            (tmp_path / "data").symlink_to("precious")
            os.chown(tmp_path / "data", NOBODY, NOBODY, follow_symlinks=False)
        make(*args, **options)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(Failed, match="is a link of another user"):
        run_folder.write(tmp_path / "data/rows.csv", b"")
    assert list((tmp_path / "precious").iterdir()) == []


def let_others_in(path: Path) -> None:
    """Let other users pass the folders of pytest and of its workers (popen-)."""
    for folder in (path, *path.parents):
        if folder == path or folder.name.startswith(("pytest-", "popen-")):
            folder.chmod(0o755)


AS_NOBODY = """
import contextlib, ctypes, os, sys, time
from pathlib import Path
from labkit.common import run_folder, safe_files
from labkit.common.errors import Failed
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
"""
EXCHANGER = """
import ctypes, os, sys
os.setresuid(65533, 65533, 65533)
libc = ctypes.CDLL(None)
while True:
    libc.renameat2(-100, b"theirs/run", -100, b"theirs/link", 2)  # RENAME_EXCHANGE
"""
WRITER = f"""{AS_NOBODY}
end, path = time.monotonic() + 1, Path("theirs/run/rows/1-r0")
while time.monotonic() < end:
    with contextlib.suppress(Failed, OSError):
        run_folder.write(path, b"")
    with contextlib.suppress(Failed, OSError):
        safe_files.create_new(path).close()
    with contextlib.suppress(Failed, OSError):
        run_folder.keep_unfinished(path.parents[1], "1-r1", [{{}}], first=False)
    with contextlib.suppress(Failed, OSError):
        assert safe_files.make_folder(path.parents[1]).parent.name == "theirs"
"""


def test_links_that_others_exchange_meanwhile_are_not_followed(tmp_path: Path, need: Need) -> None:
    """A user who is not root writes into a folder of another one, who exchanges it and a link to the user's files."""
    need("root")
    let_others_in(tmp_path)
    own = tmp_path / "own/rows"
    for made in (own, tmp_path / "theirs/run/rows"):
        made.mkdir(parents=True)
        (made / "1-r1.unfinished").touch()
    (tmp_path / "theirs/link").symlink_to("../own")
    paths = [(made, NOBODY) for made in (own.parent, *own.parent.rglob("*"))]
    paths += [(made, NOBODY - 1) for made in (tmp_path / "theirs", *(tmp_path / "theirs").rglob("*"))]
    for made, user in paths:
        os.chown(made, user, user, follow_symlinks=False)
        if not made.is_symlink():
            made.chmod(0o777)
    before = own.stat().st_mtime_ns
    python = [sys.executable, "-c"]
    with subprocess.Popen([*python, EXCHANGER], cwd=tmp_path) as exchanging:
        written = subprocess.run(
            [*python, WRITER], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
        exchanging.kill()
    assert written.returncode == 0, written.stderr
    assert own.stat().st_mtime_ns == before
    assert (own / "1-r1.unfinished").stat().st_size == 0
    assert {one.stat().st_uid for one in (tmp_path / "theirs").rglob("1-r0")} == {NOBODY}


IN_A_USER_NAMESPACE = f"""{AS_NOBODY}
libc = ctypes.CDLL(None)
libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, to write the maps
if libc.unshare(0x10000000):  # CLONE_NEWUSER
    sys.exit("no user namespaces")
Path("/proc/self/uid_map").write_text("0 65534 1")
run_folder.write(Path(sys.argv[1]), b"rows")
"""


def test_root_of_a_user_namespace_writes_for_its_user(tmp_path: Path, need: Need) -> None:
    """There, the machine's root and every other user look like one and the same."""
    need("root", "user namespaces")
    let_others_in(tmp_path)
    (tmp_path / "link").symlink_to("own")
    (tmp_path / "own").mkdir()
    os.chown(tmp_path / "own", NOBODY, NOBODY)
    path = tmp_path / "link/run/rows.csv"
    subprocess.run([sys.executable, "-c", IN_A_USER_NAMESPACE, str(path)], cwd=ROOT, check=True)
    assert path.read_bytes() == b"rows"


def test_no_folder_is_made_where_a_link_of_others_leads(tmp_path: Path, need: Need) -> None:
    need("root")
    (tmp_path / "precious").mkdir()
    (tmp_path / "link").symlink_to("precious")
    os.chown(tmp_path / "link", NOBODY, NOBODY, follow_symlinks=False)
    there = tmp_path / "link/new"
    for make in (
        lambda: run_folder.write(there / "rows.csv", b""),
        lambda: safe_files.create_new(there / "rows.csv"),
        lambda: new.create(there),
        lambda: papermill_run.execute(there / "a.ipynb", there, {}, Bar(), "a"),
        lambda: folders.unpack(b"", there / "point", ""),
        lambda: folders.attempt_folder(there).__enter__(),
        lambda: debian_kernels._scratch(there).__enter__(),
        lambda: run.measure("datapaths", {"topology": "veth"}, there),
    ):
        with pytest.raises((BadInput, Failed, OSError), match="link is a link of another user"):
            make()
        assert [*(tmp_path / "precious").iterdir()] == []


def test_named_project_is_trusted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project.chmod(0o777)
    monkeypatch.setenv("LABKIT_PROJECT", str(project))
    assert run_folder.notebooks() == project / "notebooks"
    monkeypatch.setenv("LABKIT_PROJECT", str(project / "gone"))
    with pytest.raises(BadInput, match="there is no such folder"):
        run_folder.notebooks()


def test_pythonpath_keeps_absolute_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a:/b")
    assert process.python("-m", "x") == [sys.executable, "-P", "-m", "x"]
    monkeypatch.setenv("PYTHONPATH", ":/a:.::b/c")
    assert process.python("-m", "x") == ["env", "PYTHONPATH=/a", sys.executable, "-P", "-m", "x"]


@pytest.mark.parametrize("part", ["rows", "artefacts"])
def test_run_is_not_written_through_a_link(part: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / part).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match=f"{part} is a link"):
        run.measure("datapaths", {"topology": "veth"}, tmp_path / "run")
    assert not [*(tmp_path / "elsewhere").iterdir()]


@pytest.mark.parametrize("part", ["", "rows", "artefacts"])
def test_run_is_not_written_into_a_folder_of_others(part: str, tmp_path: Path, need: Need) -> None:
    """They may put links into it later."""
    need("root")
    theirs = tmp_path / "run" / part
    theirs.mkdir(parents=True)
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(BadInput, match=f"{part or 'run'} belongs to (nobody|another user)"):
        run.measure("datapaths", {"topology": "veth"}, tmp_path / "run")
    assert not [*theirs.iterdir()]
