"""A packed point's folder arrives unchanged, and nothing else can be unpacked."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from conftest import ROOT

from labkit.common.errors import BadInput, Failed
from labkit.runner import papermill_run, sweep
from labkit.runner.cluster import folders, point_process
from labkit.runner.cluster.request import Request, other_labkit, source_digest
from labkit.runner.progress import Bar


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Create a folder like that of a measured point."""
    folder = tmp_path / "there" / "tcp"
    for name, text in {
        "notebook.ipynb": f'{{"folder": "{folder}"}}',
        "run.json": "{}",
        "rows/1-r0.jsonl": f'{{"seen": "{folder}"}}\n',
        "artefacts/a/b.gz": "b",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if not path.is_dir()
    }


def archive(**members: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for member in members.values():
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return packed.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, 1 if kind == tarfile.REGTYPE else 0
    return made


def test_folder_is_replaced(measured: Path, tmp_path: Path) -> None:
    here = tmp_path / "sweep" / "tcp"
    here.mkdir(parents=True)
    (here / "failed.ipynb").write_text("of an earlier attempt")
    folders.unpack(folders.pack(measured), here, str(measured))
    assert files(here) == files(measured) | {"notebook.ipynb": f'{{"folder": "{here}"}}'}
    assert [path.name for path in here.parent.iterdir()] == ["tcp"]


def test_folder_above_that_is_exchanged_meanwhile(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The point stays in the folder that was opened, and the one that took its name gets nothing."""
    sweep, theirs, kept = (tmp_path / name for name in ("sweep", "theirs", "kept"))
    (sweep / "tcp").mkdir(parents=True)
    theirs.mkdir()
    found = folders._files

    def exchanging(packed: bytes) -> Iterator[tuple[str, bytes]]:
        sweep.rename(kept)
        sweep.symlink_to(theirs)
        yield from found(packed)

    monkeypatch.setattr(folders, "_files", exchanging)
    folders.unpack(folders.pack(measured), sweep / "tcp", str(measured))
    assert [*theirs.iterdir()] == []
    assert [path.name for path in kept.iterdir()] == ["tcp"]
    assert files(kept / "tcp").keys() == files(measured).keys()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Create the folder of a point whose run is this machine's."""
    here = tmp_path / "sweep" / "tcp"
    here.mkdir(parents=True)
    (here / "run.json").write_text("ours")
    return here


def test_single_file_is_added(measured: Path, here: Path) -> None:
    folders.unpack_file(folders.pack(measured), "notebook.ipynb", here, str(measured))
    assert files(here) == {"run.json": "ours", "notebook.ipynb": f'{{"folder": "{here}"}}'}


@pytest.mark.parametrize(
    "bad",
    [
        member("../outside"),
        member("rows/../../outside"),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("link", tarfile.LNKTYPE, "../../outside"),
        member("folder", tarfile.DIRTYPE),
    ],
    ids=lambda bad: f"{bad.name} {bad.type.decode()}",
)
def test_archive_members_outside_are_refused(bad: tarfile.TarInfo, here: Path, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="sent back an invalid folder"):
        folders.unpack(archive(good=member("good"), bad=bad), here, "/there")
    assert files(tmp_path) == {"sweep/tcp/run.json": "ours"}


def test_truncated_archive_is_refused(measured: Path, tmp_path: Path) -> None:
    packed = folders.pack(measured)
    for half in (packed[: len(packed) // 2], b"", b"nothing of the kind"):
        with pytest.raises(Failed, match="sent back an invalid folder"):
            folders.unpack(half, tmp_path / "sweep" / "tcp", "/there")
    assert not (tmp_path / "sweep" / "tcp").exists()


def test_oversized_archive_is_refused(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = folders.pack(measured)
    monkeypatch.setattr(folders, "MAX_UNPACKED_BYTES", 10)
    with pytest.raises(Failed, match="an invalid folder"):
        folders.unpack(packed, tmp_path / "sweep" / "tcp", "/there")
    monkeypatch.setattr(folders, "MAX_BYTES", 10)
    with pytest.raises(Failed, match="measure it on that machine, without --dask"):
        folders.pack(measured)


def test_leftovers_of_killed_attempts_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from labkit.runner.cluster import folders\n"
        "with folders.attempt_folder(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with folders.attempt_folder(tmp_path) as first:
        with folders.attempt_folder(tmp_path) as second:
            assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name}
    assert list(tmp_path.iterdir()) == []


def parameters(**change: object) -> Request:
    from labkit import __version__

    known: dict[str, object] = {
        "labkit": __version__, "source": source_digest(), "notebook": "01_words", "text": "{}",
        "point": "one", "parameters": {},
    }  # fmt: skip
    return Request(**(known | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"notebook": "../01_words"}, {"point": "../one"}, {"point": ".one"}, {"point": "a/b"}]
)
def test_escaping_name_is_refused(change: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a valid name of a notebook or a point"):
        point_process.measure(parameters(**change), tmp_path, Bar())
    assert list(tmp_path.iterdir()) == []


def test_percentile_of_the_sweep_reaches_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str | None]()
    monkeypatch.setenv("LABKIT_PERCENTILE", "")
    monkeypatch.setattr(sweep, "parameters_of", lambda _notebook: {})
    monkeypatch.setattr(sweep, "check", lambda *_: None)
    monkeypatch.setattr(papermill_run, "execute", lambda *_: seen.append(os.environ["LABKIT_PERCENTILE"]))
    for chosen in (None, "p99"):
        request = msgspec.json.encode(parameters(percentile=chosen))
        point_process.measure(msgspec.json.decode(request, type=Request), tmp_path, Bar())
    assert seen == ["", "p99"]


def test_version_mismatch_is_reported() -> None:
    assert other_labkit(parameters()) is None
    for change in ({"labkit": "0.0.1"}, {"source": "0" * 12}):
        assert "install the same one on both" in str(other_labkit(parameters(**change)))
