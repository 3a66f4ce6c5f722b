"""Temporary folders in the experiment's own mount namespace, which the kernel removes with it.

There is a folder in memory for the run (its files go back to the caller as events), a scratch folder in memory, a
short folder for sockets, and a read-only view of all files of the machine.
"""

import functools
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from labkit.common import run_folder, safe_files
from labkit.common.errors import Failed, LabkitError
from labkit.system import libc, process

LARGEST_BYTES = 64 << 20
SHARED_MEMORY = Path("/dev/shm")  # every Linux has this mount point, and labkit does not use it otherwise
# linux/mount.h, linux/fcntl.h; mount_setattr(2) needs Linux 5.12, and glibc 2.36 has no wrapper for it
SYS_MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
KEPT = ("environment.json", "artefacts")  # what goes back; rows travel as events


@functools.cache
def in_memory() -> Path | None:
    """Return a folder in memory that disappears with this process (PID 1 of its namespaces); None if it cannot be
    mounted."""
    try:
        process.output(["mount", "-t", "tmpfs", "-o", "mode=1777", "labkit", str(SHARED_MEMORY)])
    except LabkitError:
        return None
    return SHARED_MEMORY


def prepare(folder: Path, finished: Mapping[str, str]) -> None:
    """Create the run folder; `finished` are the rows of points that were measured before, by point."""
    process.output(["mount", "-t", "tmpfs", "-o", "mode=700", "labkit", str(folder.parent)])
    for point, lines in finished.items():
        run_folder.write(folder / "rows" / f"{point}.jsonl", lines.encode())


def with_written_files(events: Iterator[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """Pass on the events; before each event with rows, and at the end, add events with the files written since."""
    try:
        for event in events:
            if event["event"] == "rows":
                yield from _files(folder)
            yield event
    except LabkitError:
        yield from _files(folder)
        raise
    yield from _files(folder)


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(path for kept in KEPT for path in (folder / kept, *(folder / kept).rglob("*"))):
        if not path.is_file() or path.name.startswith("."):
            continue
        name, size = path.relative_to(folder).as_posix(), path.stat().st_size
        if size <= LARGEST_BYTES:
            yield {"event": "file", "path": name, "content": path.read_bytes()}
        else:
            text = (
                f"{name} has {size >> 20} MiB and is not copied back: the limit is {LARGEST_BYTES >> 20} MiB"
            )
            yield {"event": "log", "text": text}
        path.unlink()


@contextmanager
def covered(folder: Path) -> Iterator[bool]:
    """Put an empty folder in memory over this one, in the experiment's own mounts alone. Yield whether that worked.

    A folder that is missing is made, and removed in the end.
    """
    with ExitStack() as stack:
        with suppress(OSError):  # it is there already, or a user without privilege cannot make it
            folder.mkdir()
            stack.callback(_remove, folder)
        words = ["mount", "-t", "tmpfs", "-o", "mode=700", "labkit", str(folder)]
        done = False
        with suppress(LabkitError):  # a machine without mount
            done = folder.is_dir() and process.run(words).returncode == 0
        if done:
            stack.callback(process.run, ["umount", "--lazy", str(folder)])
        yield done


def _remove(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def short_folder(prefix: str, top: Path | None = None) -> Iterator[Path]:
    """Create a folder for sockets, whose paths must be short (see `safe_files.own_folder`), in `top` or the usual
    place."""
    with safe_files.own_folder(top or safe_files.runtime_folder(), prefix) as folder:
        yield folder.path


def bind_read_only(root: Path) -> None:
    """Mount all files of the machine read-only at `root`, with everything mounted below, in this mount namespace only.

    Raises Failed if the kernel cannot (before Linux 5.12).
    """
    process.output(["mount", "--make-rprivate", "/"])
    process.output(["mount", "--rbind", "/", str(root)])
    how = struct.pack("4Q", MOUNT_ATTR_RDONLY, 0, 0, 0)  # struct mount_attr
    try:
        libc.call("syscall", SYS_MOUNT_SETATTR, AT_FDCWD, os.fsencode(root), AT_RECURSIVE, how, len(how))
    except OSError as error:
        words = f"mount_setattr: {error.strerror}"
        raise Failed(f"the machine's files cannot be mounted read-only ({words})") from None


@contextmanager
def machines_files() -> Iterator[Path]:
    """Mount all files of the machine read-only for the block. Raises as `bind_read_only`."""
    with safe_files.own_folder(safe_files.runtime_folder(), "labkit-root-") as folder:
        root = folder.path / "root"
        root.mkdir()
        try:
            bind_read_only(root)
            yield root
        finally:
            # The content is never removed: it belongs to the machine. The mount is read-only and private to this
            # namespace.
            process.run(["umount", "--lazy", str(root)])
