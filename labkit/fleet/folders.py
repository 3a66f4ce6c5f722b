"""A point's folder on its way back: packed where it was measured, unpacked in one step where it belongs."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from labkit import records
from labkit.errors import Failed

MOST_BYTES = 1 << 30  # of a point, packed; it is in memory as a whole on both sides
MOST_UNPACKED_BYTES = 4 << 30
_active: set[Path] = set()  # the attempts of this process


@contextmanager
def attempt(root: Path) -> Iterator[Path]:
    """A folder below `root` for one attempt to measure a point, removed at the end. What earlier ones of this machine
    left is removed first: of workers that were killed, or of notebooks that lived a moment longer than their end."""
    mine = f".fleet-{os.uname().nodename}-"
    folder = root / f"{mine}{os.getpid()}-{secrets.token_hex(4)}"
    with records.told(folder):
        root.mkdir(parents=True, exist_ok=True)
        for left in set(root.glob(f"{mine}*")) - _active:
            pid = left.name.removeprefix(mine).split("-")[0]
            if pid == str(os.getpid()) or not Path("/proc", pid).exists():
                shutil.rmtree(left, ignore_errors=True)
        _active.add(folder)
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _active.discard(folder)


def pack(folder: Path) -> bytes:
    """Every file of a folder as tar.gz; empty, when it is not there. Raises Failed for what is too large."""
    packed = folder.with_name(f".{folder.name}.tar.gz")
    with records.told(packed):
        with tarfile.open(packed, "w:gz", compresslevel=1) as tar:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    tar.add(path, str(path.relative_to(folder)))
        if packed.stat().st_size > MOST_BYTES:
            raise Failed(
                f"the point {folder.name} left {packed.stat().st_size >> 20} MiB, and no more than"
                f" {MOST_BYTES >> 20} MiB travel: measure it where it is, without --dask"
            )
        return packed.read_bytes()


def place(packed: bytes, folder: Path, was: str) -> None:
    """Unpack into `folder`, which then holds this and nothing else; or what it held before, when that fails.

    In notebooks the folder's path where it was measured, `was`, becomes that of `folder`. Raises Failed when the disk
    is full, and when there is anything but files below the folder in the archive.
    """
    fresh = folder.with_name(f".placed-{os.getpid()}-{folder.name}")
    old = fresh.with_name(f"{fresh.name}.old")
    with records.told(folder / "notebook.ipynb"), _gone_at_the_end(fresh, old):
        fresh.mkdir(parents=True)
        for name, content in _files(packed):
            records.write(fresh / name, _moved(name, content, was, folder))
        if folder.exists():
            folder.rename(old)  # killed after this line, the point is not there, and is measured again
        fresh.rename(folder)


def place_file(packed: bytes, name: str, folder: Path, was: str) -> None:
    """The same for one file alone, if it is in the archive; what the folder holds beside it stays."""
    for found, content in _files(packed):
        if found == name:
            records.write(folder / name, _moved(name, content, was, folder))


def clean(folder: Path) -> None:
    """Remove what a caller that was killed had begun to unpack in a sweep's folder."""
    for left in folder.glob(".placed-*"):
        if not Path("/proc", left.name.split("-")[1]).exists():
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _gone_at_the_end(*leavings: Path) -> Iterator[None]:
    try:
        yield
    finally:
        for folder in leavings:
            shutil.rmtree(folder, ignore_errors=True)


def _files(packed: bytes) -> Iterator[tuple[str, bytes]]:
    left = MOST_UNPACKED_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r|gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                left -= member.size
                file = tar.extractfile(member) if member.isreg() else None
                if file is None or path.is_absolute() or ".." in path.parts or left < 0:
                    raise Failed(
                        f"a worker sent back what is no point's folder: {member.name[:100]!r} is in it"
                    )
                yield str(path), file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Failed(f"a worker sent back what is no point's folder: {error}") from None


def _moved(name: str, content: bytes, was: str, folder: Path) -> bytes:
    return content.replace(was.encode(), str(folder).encode()) if name.endswith(".ipynb") else content
