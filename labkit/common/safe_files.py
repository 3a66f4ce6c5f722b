"""Files and folders that other users of this machine cannot redirect.

A file is written whole or not at all, and never through a link. A folder for a while carries a marker, and only a
folder whose marker proves that labkit made it is removed. Code is read only from where nobody else can write.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import json
import os
import pwd
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

MARKER = ".labkit-made-this"
# A marker of another boot may be that of a lab VM, which shares the folder and lives: this one's locks do not show it.
OTHER_BOOT_S = 7 * 86400.0
LINKS = 40  # as many as the kernel follows (path_resolution(7))
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which is at `path` when the block ends, and nowhere when the block raises.

    Its name until then cannot be guessed, and it is made anew: a link that somebody prepared is never followed. Raises
    OSError.
    """
    fresh = path.with_name(f".{secrets.token_hex(12)}")
    descriptor = os.open(fresh, NEW, 0o666)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        os.replace(fresh, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def anew(path: Path) -> IO[bytes]:
    """A new file at `path`, unbuffered, to be written bit by bit; what was there before is removed, and a link that
    somebody prepared is not followed. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return open(os.open(path, NEW, 0o666), "wb", buffering=0)


def untrusted(path: Path) -> str | None:
    """Why somebody else could have put what is at `path`, or could replace it; None when nobody can.

    Every component counts, also those of links on the way: its owner is root or this user (with sudo: the user who
    called it), and nobody else can write it. The sticky bit excuses a folder on the way, as /tmp, because nobody else
    can replace in it what this user owns; it does not excuse `path` itself, into which anybody could put more.
    """
    at, left, links = Path("/"), list(path.absolute().parts[1:]), 0
    while True:
        try:
            state = at.lstat()
        except OSError as error:
            return f"{at} cannot be read ({error.strerror})"
        if stat.S_ISLNK(state.st_mode):
            links += 1
            if links > LINKS:
                return f"{path} leads through too many links"
            target = Path(os.readlink(at))
            left = [*(target.parts[1:] if target.is_absolute() else target.parts), *left]
            at = Path("/") if target.is_absolute() else at.parent
            continue
        if reason := _faults(at, state, on_the_way=bool(left)):
            return reason
        if not left:
            return None
        part = left.pop(0)
        at = at.parent if part == ".." else at / part


def _faults(at: Path, state: os.stat_result, *, on_the_way: bool) -> str | None:
    if state.st_uid not in trusted_users():
        return f"{at} belongs to {_name(state.st_uid)}"
    others = state.st_mode & stat.S_IWOTH
    if state.st_mode & stat.S_IWGRP and not _is_private(at, state):
        others |= stat.S_IWGRP
    if others and not (on_the_way and state.st_mode & stat.S_ISVTX):
        return f"other users can write {at}"
    return None


def trusted_users() -> set[int]:
    """Root, this user, and with sudo the user who called it."""
    users = {0, os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        users.add(int(os.environ["SUDO_UID"]))
    return users


def _is_private(at: Path, state: os.stat_result) -> bool:
    """Whether the group that can write has its owner as the only member, as each user's own group has by default on
    many systems. With an access list the group's bits mean others as well."""
    with contextlib.suppress(OSError):
        if "system.posix_acl_access" in os.listxattr(at, follow_symlinks=False):
            return False
    try:
        group, owner = grp.getgrgid(state.st_gid), pwd.getpwuid(state.st_uid)
    except KeyError:
        return False
    return (
        group.gr_gid == owner.pw_gid and group.gr_name == owner.pw_name and {*group.gr_mem} <= {owner.pw_name}
    )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def runtime_folder() -> Path:
    """Where sockets and the like of this user belong: $XDG_RUNTIME_DIR when it is this user's, else /tmp."""
    given = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp")
    with contextlib.suppress(OSError):
        if given.is_absolute() and given.lstat().st_uid == os.geteuid() and untrusted(given) is None:
            return given
    return Path("/tmp")


@contextmanager
def own_folder(top: Path, prefix: str) -> Iterator[Path]:
    """A new folder of this user's in `top`, with an unguessable name, removed with its content when the block ends.

    Its marker is locked (flock(2)) as long as its owner lives. What killed owners left under this prefix is removed
    first. Raises OSError.
    """
    remove_left(top, prefix)
    with _opened(top, os.O_RDONLY | os.O_DIRECTORY) as parent:
        name = f"{prefix}{secrets.token_hex(6)}"
        os.mkdir(name, 0o700, dir_fd=parent)
        with _opened(name, FOLDER, parent) as folder, _marked(folder):
            try:
                yield top / name
            finally:
                _remove(parent, name, folder)


def remove_left(top: Path, prefix: str) -> None:
    """Remove the folders in `top` under this prefix that a marker proves to be labkit's and this user's, and whose
    owner has ended. Everything else stays, whatever its name."""
    with contextlib.suppress(OSError), _opened(top, os.O_RDONLY | os.O_DIRECTORY) as parent:
        for name in os.listdir(parent):
            if name.startswith(prefix):
                with contextlib.suppress(OSError), _opened(name, FOLDER, parent) as folder:
                    with _opened(MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, folder) as marker:
                        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else its owner lives
                        if _is_left(folder, marker):
                            _remove(parent, name, folder)


@contextmanager
def _opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove(parent: int, name: str, folder: int) -> None:
    """Remove the folder that is open, and no other that has its name by now. The marker goes last, so that the next one
    can go on where this one was killed."""
    with contextlib.suppress(OSError):
        _empty(folder, _mount(folder), MARKER)
        os.unlink(MARKER, dir_fd=folder)
        os.rmdir(name, dir_fd=parent)  # removes nothing that is not empty


def _empty(folder: int, mount: str, kept: str | None = None) -> None:
    """Remove what is in a folder that is open: no link is followed, and nothing that is mounted there is touched."""
    for name in os.listdir(folder):
        if name == kept:
            continue
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            with _opened(name, FOLDER, folder) as below:
                if _mount(below) == mount:
                    _empty(below, mount)
            os.rmdir(name, dir_fd=folder)


def _mount(descriptor: int) -> str:
    """The mount that an open file is in (proc(5)); a bind mount has the device of what it shows, but not its number."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next(line for line in lines if line.startswith("mnt_id:"))


@contextmanager
def _marked(folder: int) -> Iterator[None]:
    """The folder has a marker, which is locked. Device and inode tie it to this folder: a copy of it proves nothing."""
    with _opened(MARKER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, folder) as marker:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it says anything
        content = {**_identity(folder), "pid": os.getpid(), "boot": _boot()}
        os.write(marker, json.dumps(content).encode())
        yield


def _identity(folder: int) -> dict[str, Any]:
    state = os.fstat(folder)
    return {"made by": "labkit", "user": state.st_uid, "device": state.st_dev, "inode": state.st_ino}


def _is_left(folder: int, marker: int) -> bool:
    """Whether the marker proves that labkit made this folder for this user."""
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
    """What tells this run of the kernel from all others (random(4))."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
