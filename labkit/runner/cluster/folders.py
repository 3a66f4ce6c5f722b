"""Return a point's folder: pack it where it was measured, and unpack it atomically at its destination."""

import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath

from labkit.common import run_folder, safe_files
from labkit.common.errors import Failed

MAX_BYTES = 1 << 30  # of a packed point, which both sides hold in memory as a whole
MAX_UNPACKED_BYTES = 4 << 30
PLACING = ".placed-"
_ended: set[Path] = set()  # the finished attempts of this process


@contextmanager
def attempt_folder(root: Path) -> Iterator[Path]:
    """Create a folder below `root` for one attempt to measure a point; remove it at the end.

    This first removes leftovers of killed workers and of notebooks that ended late.
    """
    with ExitStack() as stack:
        with run_folder.write_errors(root):
            for left in [*_ended]:
                # This process chose the name, so no other process has it.
                shutil.rmtree(left, ignore_errors=True)
                _ended.discard(left)
            folder = stack.enter_context(safe_files.own_folder(root, f".cluster-{os.uname().nodename}-")).path
            stack.callback(_ended.add, folder)
        yield folder


def pack(folder: Path) -> bytes:
    """Return every file of a folder as tar.gz; empty if there is no folder. Raises Failed if it is too large."""
    packed = folder.with_name(f".{folder.name}.tar.gz")
    with run_folder.write_errors(packed):
        with tarfile.open(packed, "w:gz", compresslevel=1) as tar:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    tar.add(path, str(path.relative_to(folder)))
        if packed.stat().st_size > MAX_BYTES:
            raise Failed(
                f"the point {folder.name} has {packed.stat().st_size >> 20} MiB, and the limit for a transfer"
                f" is {MAX_BYTES >> 20} MiB: measure it on that machine, without --dask"
            )
        return packed.read_bytes()


def unpack(packed: bytes, folder: Path, origin: str) -> None:
    """Unpack into `folder`, replacing its content. On failure the old content stays.

    In notebooks, the path of the original folder `origin` is replaced by that of `folder`. Raises Failed if the disk is
    full, or the archive contains anything but files below the folder.
    """
    with (
        run_folder.write_errors(folder / "notebook.ipynb"),
        safe_files.own_folder(folder.parent, PLACING) as scratch,
    ):
        os.mkdir("new", dir_fd=scratch.descriptor)
        for name, content in _files(packed):
            run_folder.write(
                Path("new", name), _replace_path(name, content, origin, folder), scratch.descriptor
            )
        with suppress(FileNotFoundError):
            # If killed after this line, the point is missing and is measured again.
            os.rename(folder.name, "old", src_dir_fd=scratch.top, dst_dir_fd=scratch.descriptor)
        os.rename("new", folder.name, src_dir_fd=scratch.descriptor, dst_dir_fd=scratch.top)


def unpack_file(packed: bytes, name: str, folder: Path, origin: str) -> None:
    """Unpack one file only, if the archive has it; other files in the folder stay."""
    for path, content in _files(packed):
        if path == name:
            run_folder.write(folder / name, _replace_path(name, content, origin, folder))


def _files(packed: bytes) -> Iterator[tuple[str, bytes]]:
    left = MAX_UNPACKED_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r|gz") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                left -= member.size
                file = tar.extractfile(member) if member.isreg() else None
                if file is None or path.is_absolute() or ".." in path.parts or left < 0:
                    raise Failed(f"a worker sent back an invalid folder: it contains {member.name[:100]!r}")
                yield str(path), file.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Failed(f"a worker sent back an invalid folder: {error}") from None


def _replace_path(name: str, content: bytes, origin: str, folder: Path) -> bytes:
    return content.replace(origin.encode(), str(folder).encode()) if name.endswith(".ipynb") else content
