"""Find the ends of an existing network: containers, named namespaces, processes, this machine itself."""

from __future__ import annotations

import errno
import os
import re
import select
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from labkit.common import errors, existing_names
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.system import machine, netlink, process

NAMED = Path("/run/netns")  # where ip-netns(8) keeps names
OWN = "/proc/self/ns/net"
ENGINE_S = 30.0
ID_LETTERS = 13  # of an id, as crictl(1) prints it


@dataclass(frozen=True)
class ExistingEndpoint:
    """An end of an existing network.

    `name`: as it was given, for example `container:web`. `namespace`: an open file descriptor of its network namespace.
    `pid`: a process in it, of a container its first one, and `process`: its descriptor (pidfd_open(2)); None for
    `netns:NAME`.
    """

    name: str
    namespace: int
    pid: int | None
    process: int | None

    def close(self) -> None:
        """Close the descriptors."""
        for one in (self.namespace, self.process):
            if one is not None:
                os.close(one)


def require(name: str, process: int | None) -> None:
    """Raise Failed if the process of an end, by its descriptor, has ended."""
    if process is not None and select.select([process], [], [], 0)[0]:
        raise Failed(f"{name} has ended, and its network with it")


@contextmanager
def reporting_ended(ends: Iterable[ExistingEndpoint]) -> Iterator[None]:
    """Raise Failed with the name of an end that has ended, if the block fails: that is why."""
    try:
        yield
    except Exception:
        for end in ends:
            require(end.name, end.process)
        raise


def resolve(name: str) -> ExistingEndpoint:
    """Find an end by its name; close it after use. Nothing is changed.

    Raises BadInput if there is no such thing, and Unsupported if this user may not enter its network namespace.
    """
    kind, own = existing_names.parse(name)
    if kind == "netns":
        return _opened(name, f"{NAMED}/{own}", None)
    if kind == existing_names.HOST:
        return _opened(name, OWN, os.getpid())
    pid = container_pid(own) if kind == "container" else int(own)
    return _opened(name, f"/proc/{pid}/ns/net", pid)


def _opened(name: str, path: str, pid: int | None) -> ExistingEndpoint:
    process = None
    try:
        process = None if pid is None else os.pidfd_open(pid)
        result = ExistingEndpoint(name, os.open(path, os.O_RDONLY | os.O_CLOEXEC), pid, process)
    except OSError as error:
        if process is not None:
            os.close(process)
        elif pid is not None and error.errno in (errno.EINVAL, errno.ENOENT) and os.path.exists(path):
            raise BadInput(f"{name} is a thread: name its process") from None
        if isinstance(error, FileNotFoundError | ProcessLookupError):
            there = ", ".join(sorted(os.listdir(NAMED))) if NAMED.is_dir() else ""
            known = f"; there are {there}" if there and pid is None else ""
            raise BadInput(f"{name} does not exist, or has just ended{known}") from None
        raise Unsupported(_not_allowed(name, error.strerror or str(error))) from None
    try:
        if name != existing_names.HOST and os.fstat(result.namespace).st_ino == os.stat(OWN).st_ino:
            raise BadInput(f"{name} has no network of its own: it is in that of {existing_names.HOST}")
        with netlink.inside(result.namespace):
            pass
    except BadInput:
        result.close()
        raise
    except netlink.LinkError as error:
        result.close()
        if error.errno == errno.EINVAL:  # its mount has gone, or is not visible here
            raise BadInput(f"{name} is a plain file and no namespace: name a process in it, pid:N") from None
        raise Unsupported(_not_allowed(name, os.strerror(error.errno))) from None
    return result


def _not_allowed(name: str, reason: str) -> str:
    return (
        f"this user may not enter the network namespace of {name} ({reason}), and nothing of it is visible from"
        " outside: run labkit as root of this machine"
    )


def container_pid(container: str) -> int:
    """Return the process id of the first process of a running container, as its engine reports it.

    Raises BadInput if no container of this name runs, and Unsupported if no engine is installed.
    """
    existing_names.parse(f"container:{container}")
    engines = {name: path for name in ENGINES if os.path.isabs(path := machine.program(name))}
    if not engines:
        raise Unsupported(f"none of {', '.join(ENGINES)} is installed, so there is no container")
    said = []
    for name, path in engines.items():
        try:
            pid = ENGINES[name](path, container)
        except Failed as error:
            said.append(str(error))
            continue
        if not pid:
            raise BadInput(f"the {name} container {container} is not running: start it first")
        return pid
    others = (
        "another user's container is visible to that user's engine only: name a process of it, pid:NUMBER"
    )
    raise BadInput(f"there is no container {container}: {'; '.join(said)}; {others}")


def _inspected(path: str, container: str) -> int:
    """Ask Docker or Podman. Return 0 for a container that does not run. Raises Failed with the engine's words."""
    argv = [path, "inspect", "--type", "container", "--format", "{{.State.Pid}}", container]
    ended = process.run(argv, ENGINE_S)
    text = ended.stdout.strip()
    if ended.returncode or not text.isdigit():
        raise Failed(ended.message())
    return int(text)


@errors.reading("the answer of crictl")
def _of_cri(path: str, container: str) -> int:
    """Ask an engine with the interface CRI (containerd, CRI-O) for a name or an id. Containers of several pods may have
    one name: raises BadInput."""
    ids = process.run([path, "ps", "--quiet", "--name", f"^{re.escape(container)}$"], ENGINE_S)
    if ids.returncode:
        raise Failed(ids.message())
    if len(found := ids.stdout.split() or [container]) > 1:
        words = ", ".join(one[:ID_LETTERS] for one in found)
        raise BadInput(f"{len(found)} containers have the name {container}: give the id of one, {words}")
    inspected = process.run([path, "inspect", "--output", "json", *found], ENGINE_S)
    if inspected.returncode:
        raise Failed(inspected.message())
    return int(msgspec.json.decode(inspected.stdout)["info"]["pid"])


# The engines that are asked, in this order, each by its own command.
ENGINES: Mapping[str, Callable[[str, str], int]] = {
    "docker": _inspected,
    "podman": _inspected,
    "crictl": _of_cri,
}
