"""A point's folder on its way back: packed where it was measured, unpacked in one step where it belongs."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from labkit.common import run_folder, safe_files
from labkit.common.errors import Failed

MOST_BYTES = 1 << 30  # of a point, packed; it is in memory as a whole on both sides
MOST_UNPACKED_BYTES = 4 << 30
PLACING = ".placed-"
_ended: set[Path] = set()  # the attempts of this process that are over


@contextmanager
def attempt(root: Path) -> Iterator[Path]:
    """A folder below `root` for one attempt to measure a point, removed at the end. What earlier ones of this machine
    left is removed first: of workers that were killed, or of notebooks that lived a moment longer than their end."""
    with ExitStack() as stack:
        with run_folder.write_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            for left in [*_ended]:
                shutil.rmtree(left, ignore_errors=True)  # this process made its name, and no other one has it
                _ended.discard(left)
            folder = stack.enter_context(safe_files.own_folder(root, f".fleet-{os.uname().nodename}-"))
            stack.callback(_ended.add, folder)
        yield folder


def pack(folder: Path) -> bytes:
    """Every file of a folder as tar.gz; empty, when it is not there. Raises Failed for what is too large."""
    packed = folder.with_name(f".{folder.name}.tar.gz")
    with run_folder.write_errors(packed):
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
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        run_folder.write_errors(folder / "notebook.ipynb"),
        safe_files.own_folder(folder.parent, PLACING) as scratch,
    ):
        fresh = scratch / "new"
        fresh.mkdir()
        for name, content in _files(packed):
            run_folder.write(fresh / name, _moved(name, content, was, folder))
        if folder.exists():
            folder.rename(
                scratch / "old"
            )  # killed after this line, the point is not there, and is measured again
        fresh.rename(folder)


def place_file(packed: bytes, name: str, folder: Path, was: str) -> None:
    """The same for one file alone, if it is in the archive; what the folder holds beside it stays."""
    for result, content in _files(packed):
        if result == name:
            run_folder.write(folder / name, _moved(name, content, was, folder))


def clean(folder: Path) -> None:
    """Remove what a caller that was killed had begun to unpack in a sweep's folder."""
    safe_files.remove_left(folder, PLACING)


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
