"""List the kernels that a lab VM can boot, and what each can do (`labkit kernels`).

Each kernel is examined once, by booting it. The answer is stored under the digest of the image and labkit's version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from labkit import __version__
from labkit.common import run_folder
from labkit.common.errors import BadInput, LabkitError
from labkit.runner import run
from labkit.system.qemu import kernels

# The capabilities in which kernels differ: the column's title, and the group and name in the doctor's answer.
CAPABILITIES = {
    "ipvlan": ("link kinds", "ipvlan"),
    "gre": ("tunnels", "gre"),
    "netem": ("queueing disciplines", "netem"),
    "Open vSwitch": ("Open vSwitch", "kernel datapath"),
    "function_graph": ("tracers", "function_graph"),
    "kprobe": ("tracers", "kprobe"),
    "BTF": ("BPF", "BTF"),
}
_YES_NO = {True: "yes", False: "no", None: "?"}
_COLUMNS = ("release", "flavour", "from", "size", *CAPABILITIES)


def remembered(kernel: kernels.Kernel) -> dict[str, Any] | None:
    """Return the stored answer of the kernel, or None if it has not been examined yet."""
    try:
        answer: dict[str, Any] = run_folder.read_json(_memory(kernel))
    except BadInput:
        return None
    return answer


def _memory(kernel: kernels.Kernel) -> Path:
    """Return the path of the stored answer. Raises BadInput if the image cannot be read."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if cache.startswith("/") else Path.home() / ".cache"
    return root / "labkit/capabilities" / f"{kernel.digest}-{__version__}.json"


def ask_kernel(kernel: kernels.Kernel, say: Callable[[str], None]) -> dict[str, Any]:
    """Boot the kernel, and return and store what it can do. This takes about 20 s on an emulated CPU.

    Raises Unsupported if this machine cannot run a lab VM, and Failed if the kernel does not boot.
    """
    # This profile emulates all CPUs in one thread, which makes it safe to arm tracers.
    answer = next(run.ask(f"vm:{kernel.release},profile=tracing", {"do": "doctor", "alone": True}, say))
    del answer["event"]
    run_folder.write_json(_memory(kernel), answer)
    return answer


def ask_all(say: Callable[[str], None]) -> list[str]:
    """Examine every kernel without a stored answer, and return a sentence for each failure."""
    failed = []
    for kernel in kernels.installed():
        if remembered(kernel) is None:
            say(f"booting {kernel.release}")
            try:
                ask_kernel(kernel, say)
            except LabkitError as error:
                failed.append(f"{kernel.release}: {error}")
                say(failed[-1])
    return failed


def as_json() -> str:
    """Return a JSON list with an object for each kernel, newest last. `answer` is the doctor's answer, or null."""
    result = [_described(kernel) for kernel in kernels.installed()]
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"


def _described(kernel: kernels.Kernel) -> dict[str, Any]:
    readable = os.access(kernel.image, os.R_OK)
    return {
        "release": kernel.release,
        "where": f"vm:{kernel.release}",
        "flavour": kernels.flavour(kernel.release),
        "source": kernel.source,
        "image": str(kernel.image),
        "modules": str(kernel.modules),
        "size_bytes": _size_bytes(kernel),
        "digest": kernel.digest if readable else None,
        "answer": remembered(kernel),
    }


def _size_bytes(kernel: kernels.Kernel) -> int:
    """Return the size of the image with its modules."""
    files = [kernel.image, *(kernel.modules.rglob("*") if kernel.modules else ())]
    return sum(path.lstat().st_size for path in files if path.is_file() and not path.is_symlink())


def as_text() -> str:
    """Return a table with a row for each kernel, newest last, and the capabilities in which kernels differ."""
    result = [_described(kernel) for kernel in kernels.installed()]
    if not result:
        return "there is no kernel for a lab VM: `labkit kernels get` downloads Debian's\n"
    lines = [_COLUMNS, *(_cells(each) for each in result)]
    widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(_COLUMNS))]
    widths[4] = len(_COLUMNS[4])  # a sentence in this column continues over the others
    shown = ["  ".join(cell.ljust(widths[i]) for i, cell in enumerate(line)).rstrip() for line in lines]
    if any(each["answer"] is None for each in result):
        shown += ["", "`labkit kernels --ask` boots and examines the others, once each"]
    return "\n".join([*shown, "", "an experiment runs on such a kernel with where=vm:RELEASE"]) + "\n"


def _cells(described: dict[str, Any]) -> tuple[str, ...]:
    size = f"{described['size_bytes'] / 1e6:.0f} MB"
    first = (described["release"], described["flavour"], described["source"], size)
    if described["digest"] is None:
        return (*first, "only root can read it")
    if described["answer"] is None:
        return (*first, "not examined yet")
    return (*first, *_answers(described["answer"]["capabilities"]))


def _answers(capabilities: Iterable[dict[str, Any]]) -> list[str]:
    known = {(each["group"], each["name"]): each["available"] for each in capabilities}
    return [_YES_NO[known.get(each)] for each in CAPABILITIES.values()]
