"""Programs of the machine: where they are, and which version."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from labkit.common.errors import LabkitError, Unsupported
from labkit.system import process

# Debian keeps ethtool and tc where an ordinary user's PATH does not look, and virtiofsd where nobody's does.
_MORE_PATH = ["/usr/sbin", "/sbin", "/usr/libexec", "/usr/lib/qemu"]
_VERSION_FLAG = {"ip": "-V", "tc": "-V", "ping": "-V"}


def program(name: str) -> str:
    """The path of a program, also where an ordinary user's PATH does not look; the bare name when it is nowhere."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_MORE_PATH])
    return shutil.which(name, path=path) or name


def needed(name: str, package: str) -> str:
    """The path of a program. Raises Unsupported, naming Debian's package, where there is none."""
    path = program(name)
    if not os.path.isabs(path):
        raise Unsupported(f"there is no {name} here: install Debian's package {package}")
    return path


def versions(names: Iterable[str], deadline_s: float = 2.0) -> dict[str, str | None]:
    """The version that each program tells, asked all at once; None of one that is not here, "?" of a silent one."""
    with asking_versions(names, deadline_s) as answers:
        return answers()


@contextmanager
def asking_versions(
    names: Iterable[str], deadline_s: float = 2.0
) -> Iterator[Callable[[], dict[str, str | None]]]:
    """Start every program for its version, so that they run while the caller does something else. Yields a function
    that waits for them and returns what `versions` returns."""
    result: dict[str, str | None] = {}
    begun = time.monotonic()
    running: dict[str, process.Running] = {}
    with process.all_ended([]) as started:
        for name in names:
            result[name] = None
            try:
                running[name] = process.Running([program(name), _VERSION_FLAG.get(name, "--version")])
            except (LabkitError, OSError):
                continue
            started.append(running[name])

        def answers() -> dict[str, str | None]:
            process.wait(started, begun + deadline_s)
            for name, one in running.items():
                one.kill()
                result[name] = version_in(one.ended().stdout + one.ended().stderr) or "?"
            return result

        yield answers


def version_in(text: str) -> str | None:
    """The first thing in a program's answer that looks like a version: 6.1, 3.12.1, or a date as iputils has it."""
    result = re.search(r"\d+(?:\.\d+)+|\b20\d{6}\b", text)
    return result[0] if result else None
