"""Create files and folders that other users of this machine cannot redirect.

A file is written completely or not at all, and never through a link. A temporary folder contains a marker; labkit
removes a folder only if the marker proves that labkit created it. Code is read only from places that no other user can
write.
"""

import contextlib
import errno
import fcntl
import grp
import gzip
import io
import json
import os
import pwd
import secrets
import stat
import time
import zlib
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from labkit.common.errors import BadInput, did_you_mean
from labkit.common.privileges import is_root

MARKER = ".labkit-made-this"
# A marker from another boot may belong to a running lab VM that shares the folder, whose locks are invisible here. So
# only old ones count as left behind.
OTHER_BOOT_S = 7 * 86400.0
# A child of a killed owner (a program that unpacks) may write for a moment after it.
TRIES_TO_EMPTY = 20
MAX_INPUT_BYTES = 64 << 20  # of a file that a person names, unless its reader says otherwise
PIECE_BYTES = 1 << 20  # read at once: a size that a file only claims to have takes no memory
OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
LINKS = 40  # the kernel's limit (path_resolution(7))
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
COMPONENT = os.O_PATH | os.O_NOFOLLOW
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def meant(path: Path) -> str:
    """Return ` (did you mean …?)` with a name in the folder of a path that does not exist, or nothing."""
    try:
        there = [] if path.exists() else os.listdir(path.parent)
    except OSError:
        return ""
    stem = path.name.removesuffix(path.suffix)  # all names of one kind end alike
    return did_you_mean(
        path.name, [name for name in there if did_you_mean(stem, [Path(name).stem]) or stem in name]
    )


@contextmanager
def replacing(path: Path, within: int | None = None) -> Iterator[IO[bytes]]:
    """Yield a file to write; it replaces `path` when the block ends, and is removed if the block raises. `within`: the
    descriptor of the folder that `path` is relative to.

    The temporary name is unguessable and the file is created exclusively, so a prepared link is never followed. Raises
    OSError, also if `path` is a device or a pipe (`_check_replaceable`), and like `opened_folder` for its folder.
    """
    with opened_folder(path.parent, within=within) as folder:
        _check_replaceable(path, folder)
        fresh = f".{secrets.token_hex(12)}"
        descriptor = os.open(fresh, NEW, 0o666, dir_fd=folder)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
            os.replace(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=folder)
            raise


def create_new(path: Path) -> IO[bytes]:
    """Open a new unbuffered file at `path` for incremental writing.

    An existing file is removed first, and a prepared link is not followed. Raises OSError, also if `path` is a device
    or a pipe (`_check_replaceable`), and like `opened_folder` for its folder.
    """
    with opened_folder(path.parent) as folder:
        _check_replaceable(path, folder)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)
        return open(os.open(path.name, NEW, 0o666, dir_fd=folder), "wb", buffering=0)


def remove(path: Path) -> None:
    """Remove a file, if it exists. Raises OSError like `opened_folder` for its folder."""
    with contextlib.suppress(FileNotFoundError), opened_folder(path.parent, make=False) as folder:
        os.unlink(path.name, dir_fd=folder)


def append(path: Path, content: bytes) -> None:
    """Append to the regular file at `path`. Raises OSError, also like `opened_folder` for its folder."""
    with (
        opened_folder(path.parent) as folder,
        _open_checked(path.name, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, folder) as own,
        open(own, "ab", closefd=False) as file,
    ):
        file.write(content)


@contextmanager
def opened_folder(path: Path, *, make: bool = True, within: int | None = None) -> Iterator[int]:
    """Yield a descriptor (O_PATH) of a folder. `make`: it and those above it are made if they do not exist. `within`:
    the descriptor of the folder that `path` is relative to.

    Names that are relative to it stay in this folder, whatever takes its place meanwhile. Raises OSError, also where
    another user could lead the path elsewhere (`_redirection`).
    """
    with contextlib.closing(_steps(path, make=make, within=within)) as steps:
        for at, state, on_the_way, descriptor in steps:
            if reason := _redirection(at, state):
                raise OSError(errno.EPERM, f"{reason}: choose a folder of your own", str(path))
            if not on_the_way and not stat.S_ISLNK(state.st_mode):
                yield descriptor


def make_folder(path: Path) -> Path:
    """Make a folder and those above it, if they do not exist; return its path without links. Raises OSError like
    `opened_folder`."""
    with opened_folder(path) as folder:
        return Path(os.readlink(f"/proc/self/fd/{folder}"))


def _check_replaceable(path: Path, folder: int) -> None:
    """Raise OSError if a device, a pipe or a socket is at `path`, or a link to one (/dev/null, /dev/stdout).

    A new file would take its place, for root also in /dev, and every other program would find that file. `folder` is
    the descriptor of its folder.
    """
    try:
        is_link = stat.S_ISLNK(os.lstat(path.name, dir_fd=folder).st_mode)
        is_of_process = is_link and os.readlink(path.name, dir_fd=folder).startswith("/proc/")
        kind = os.stat(path.name, dir_fd=folder).st_mode
    except (OSError, ValueError):  # nothing is there, or a link that leads nowhere
        return
    if is_of_process or not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        what = "it is a device or a pipe, and labkit writes regular files only"
        raise OSError(errno.EINVAL, what, str(path))


@contextmanager
def open_regular(path: Path) -> Iterator[gzip.GzipFile | io.BufferedReader]:
    """Open a file that a person or a row names; it is decompressed if its name ends in .gz.

    Raises BadInput if it cannot be read, in the block too, and for a pipe, a socket or a device: reading it might never
    end.
    """
    try:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except ValueError as error:  # a null character, or half a pair of surrogates
            raise BadInput(f"{str(path)!r} cannot be the name of a file: {error}") from None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise BadInput(f"{path} cannot be read: it is not a regular file")
        with open(descriptor, "rb") as file:
            yield gzip.open(file) if path.suffix == ".gz" else file
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}{meant(path)}") from None
    except (OSError, EOFError, zlib.error) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadInput(f"{path} cannot be read: {words}") from None


def read_regular(path: Path, max_bytes: int = MAX_INPUT_BYTES) -> bytes:
    """Return the content of a file. Raises BadInput like `open_regular`, and for more than `max_bytes`."""
    content, left = list[bytes](), max_bytes + 1
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > max_bytes:
            left = 0
        while left > 0 and (piece := file.read(min(left, PIECE_BYTES))):
            content.append(piece)
            left -= len(piece)
    if left <= 0:
        raise BadInput(f"{path} cannot be read: it has more than {max_bytes >> 20} MiB")
    return b"".join(content)


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file in UTF-8, one by one. Raises BadInput like `open_regular`, and for an overlong line."""
    with open_regular(path) as file, io.TextIOWrapper(file, encoding="utf-8") as lines:
        try:
            while line := lines.readline(PIECE_BYTES):
                if len(line) == PIECE_BYTES:
                    raise BadInput(f"{path} cannot be read: a line has more than {PIECE_BYTES >> 20} MiB")
                yield line
        except UnicodeDecodeError:
            raise BadInput(f"{path} cannot be read: it contains bytes that are not text") from None


def untrusted(path: Path) -> str | None:
    """Return why another user could have created or could replace what is at `path`, or None if nobody can.

    Every component of the path is checked, including those of links on the way. Each must be owned by root or this user
    (with sudo: the calling user) and must not be writable by others. A parent folder with the sticky bit, such as /tmp,
    is accepted, because others cannot replace this user's files in it. `path` itself is not, because anybody could add
    files to it.
    """
    users = trusted_users()
    try:
        for at, state, on_the_way, _descriptor in _steps(path):
            is_link = stat.S_ISLNK(state.st_mode)  # where it leads is checked, and who may replace it
            if not is_link and (reason := _faults(at, state, users, on_the_way=on_the_way)):
                return reason
    except OSError as error:
        return f"{error.filename} cannot be read ({error.strerror})"
    return None


def _redirection(at: Path, state: os.stat_result) -> str | None:
    """Return why another user could lead elsewhere what is written below a component of a path, or None if nobody can.

    A link of another user leads wherever its owner likes, in whatever folder it lies. A folder of another user, or one
    that others can write, can be replaced at any time. A link in its place is not followed, but root refuses it all the
    same, because its owner could take the results away. A folder with the sticky bit (/tmp) does no harm: nobody else
    can replace this user's files in it.
    """
    if stat.S_ISLNK(state.st_mode):
        if state.st_uid not in trusted_users():
            return f"{at} is a link of another user, who can change its target"
    elif is_root() and (reason := _faults(at, state, trusted_users(), on_the_way=True)):
        return f"{reason}, who could replace it while root writes there"
    return None


def _steps(
    path: Path, *, make: bool = False, within: int | None = None
) -> Generator[tuple[Path, os.stat_result, bool, int], None, None]:
    """Yield every component of a path with its state, whether it is on the way to others, and a descriptor of it
    (O_PATH); links are followed. `make`: folders that do not exist are made.

    Each is opened relative to the one before, so that nobody can exchange what has been looked at. Raises OSError for a
    component that does not exist, and for too many links.
    """
    with contextlib.ExitStack() as stack:
        root = here = above = stack.enter_context(_open_checked("/", COMPONENT))
        at, left, links = Path("/"), list(path.absolute().parts[1:]), 0
        if within is not None:
            at, left, here, above = Path(), list(path.parts), within, within
        while True:
            state = os.fstat(here)
            yield at, state, bool(left), here
            if stat.S_ISLNK(state.st_mode):
                links += 1
                if links > LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                target = Path(os.readlink("", dir_fd=here))
                left = [*(target.parts[1:] if target.is_absolute() else target.parts), *left]
                at, here = (Path("/"), root) if target.is_absolute() else (at.parent, above)
                continue
            if not left:
                return
            part, above = left.pop(0), here
            at = at.parent if part == ".." else at / part
            try:
                if make and not _is_there(part, above):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=above)
                here = stack.enter_context(_open_checked(part, COMPONENT, above))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(at)) from None


def _is_there(name: str, folder: int) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _faults(at: Path, state: os.stat_result, users: set[int], *, on_the_way: bool) -> str | None:
    if state.st_uid not in users:
        return f"{at} belongs to {user_name(state.st_uid)}"
    others = state.st_mode & stat.S_IWOTH
    if state.st_mode & stat.S_IWGRP and not _is_private(at, state):
        others |= stat.S_IWGRP
    if others and not (on_the_way and state.st_mode & stat.S_ISVTX):
        return f"other users can write {at}"
    return None


def trusted_users() -> set[int]:
    """Return the ids of root, this user, and with sudo the calling user.

    In a user namespace, one id stands for all users of the machine, root among them (user_namespaces(7)): labkit checks
    paths before it enters one.
    """
    users = {0, os.geteuid()}
    if os.geteuid() == 0 and not is_root():
        users.add(int(OVERFLOW_UID.read_text()))
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        users.add(int(os.environ["SUDO_UID"]))
    return users


def _is_private(at: Path, state: os.stat_result) -> bool:
    """Return whether the owner is the only member of the group with write permission, as with per-user groups.

    With an access control list, the group bits also apply to other users and groups.
    """
    with contextlib.suppress(OSError):
        if "system.posix_acl_access" in os.listxattr(at, follow_symlinks=False):
            return False
    try:
        group, owner = grp.getgrgid(state.st_gid), pwd.getpwuid(state.st_uid)
    except KeyError:
        return False
    is_own = (group.gr_gid, group.gr_name) == (owner.pw_gid, owner.pw_name)
    return is_own and {*group.gr_mem} <= {owner.pw_name}


def user_name(user: int) -> str:
    """Return the name of a user id, or `user ID` for one without a name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def runtime_folder() -> Path:
    """Return the folder for this user's sockets: $XDG_RUNTIME_DIR if this user owns it, else /tmp."""
    given = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    with contextlib.suppress(OSError):
        if given.is_absolute() and given.lstat().st_uid == os.geteuid() and untrusted(given) is None:
            return given
    return Path("/tmp")


class OwnFolder(NamedTuple):
    """A folder that is removed at the end: its path, for other programs, its descriptor, and that of `top`."""

    path: Path
    descriptor: int
    top: int


@contextmanager
def own_folder(top: Path, prefix: str) -> Iterator[OwnFolder]:
    """Yield a new folder in `top` with an unguessable name; remove it with its content when the block ends.

    Its marker is locked (flock(2)) as long as the owner runs. First, folders with this prefix that killed owners left
    behind are removed. Raises OSError, also like `opened_folder` for `top`.
    """
    with opened_folder(top) as parent:
        remove_leftovers(top, prefix)
        name = f"{prefix}{secrets.token_hex(6)}"
        try:  # before the folder is there: a signal can end this process at each of the next lines
            os.mkdir(name, 0o700, dir_fd=parent)
            with _open_checked(name, FOLDER, parent) as folder, _create_marker(folder):
                try:
                    yield OwnFolder(top / name, folder, parent)
                finally:
                    _remove(parent, name, folder)
        finally:
            with contextlib.suppress(OSError), _open_checked(name, FOLDER, parent) as folder:
                if os.listdir(folder) in ([], [MARKER]):
                    _remove(parent, name, folder)


def remove_leftovers(top: Path, prefix: str) -> None:
    """Remove folders in `top` with this prefix that a marker proves to be labkit's and this user's, and whose owner has
    ended.

    All other folders stay, whatever their names.
    """
    with contextlib.suppress(OSError), _open_checked(top, os.O_RDONLY | os.O_DIRECTORY) as parent:
        for name in os.listdir(parent):
            if name.startswith(prefix):
                with contextlib.suppress(OSError), _open_checked(name, FOLDER, parent) as folder:
                    with _open_checked(MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, folder) as marker:
                        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the owner runs
                        if _is_left(folder, marker):
                            _remove(parent, name, folder)


@contextmanager
def closed(descriptor: int) -> Iterator[int]:
    """Yield a descriptor, and close it when the block ends."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_checked(path: str | Path, flags: int, folder: int | None = None) -> AbstractContextManager[int]:
    return closed(os.open(path, flags | os.O_CLOEXEC, 0o600, dir_fd=folder))


def _remove(parent: int, name: str, folder: int) -> None:
    """Remove the open folder, but not another folder that has taken its name.

    The marker is removed last, so that a later call can finish the removal if this one is killed, or if a child of a
    killed owner still writes into the folder.
    """
    with contextlib.suppress(OSError):
        for _ in range(TRIES_TO_EMPTY):
            _empty(folder, _mount(folder), MARKER)
            if os.listdir(folder) in ([], [MARKER]):
                break
            time.sleep(0.05)
        else:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(MARKER, dir_fd=folder)
        os.rmdir(name, dir_fd=parent)  # rmdir fails unless the folder is empty


def _empty(folder: int, mount: str, kept: str | None = None) -> None:
    """Remove the content of an open folder, without following links and without touching other mounts."""
    for name in os.listdir(folder):
        if name == kept:
            continue
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            with _open_checked(name, FOLDER, folder) as below:
                if _mount(below) == mount:
                    _empty(below, mount)
            os.rmdir(name, dir_fd=folder)


def _mount(descriptor: int) -> str:
    """Return the id of the mount that contains an open file (proc(5)). The device number does not identify a bind
    mount."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))


@contextmanager
def _create_marker(folder: int) -> Iterator[None]:
    """Create a locked marker in the folder for the time of the block.

    It contains the folder's device and inode number, so a copy in another folder proves nothing.
    """
    with _open_checked(MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, folder) as marker:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it has content
        content = {**_identity(folder), "pid": os.getpid(), "boot": _boot()}
        os.write(marker, json.dumps(content).encode())
        yield


def _identity(folder: int) -> dict[str, Any]:
    state = os.fstat(folder)
    return {"made by": "labkit", "user": state.st_uid, "device": state.st_dev, "inode": state.st_ino}


def _is_left(folder: int, marker: int) -> bool:
    """Return whether the locked marker proves that labkit created this folder for this user and left it behind."""
    state, own = os.fstat(marker), _identity(folder)
    if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
        return False
    if not os.geteuid() == state.st_uid == own["user"]:
        return False
    try:
        result = json.loads(os.pread(marker, 4096, 0))
        pid, boot = result.pop("pid"), result.pop("boot")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return False
    if result != own or not isinstance(pid, int):
        return False
    return bool(boot == _boot()) or time.time() - state.st_mtime > OTHER_BOOT_S


def _boot() -> str:
    """Return the id of the current boot (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
