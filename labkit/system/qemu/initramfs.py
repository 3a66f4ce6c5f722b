"""Build an initramfs: a cpio archive with busybox, kernel modules, and an init script that busybox runs first."""

import lzma
import shlex
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from labkit.common import packages
from labkit.common.errors import Unsupported
from labkit.system.qemu.kernels import BootableKernel

Entry = tuple[int, bytes]  # mode and content
FIRST_WORDS = "labkit: user space begins"
OPTIONAL = (
    "tracefs:kernel/tracing debugfs:kernel/debug cgroup2:fs/cgroup bpf:fs/bpf securityfs:kernel/security"
)


def archive(entries: Mapping[str, Entry]) -> bytes:
    """Return a cpio archive in the kernel's format "newc" of path to (mode, content).

    Source: Documentation/driver-api/early-userspace/buffer-format.rst.
    """
    packed = bytearray()
    for number, (name, (mode, content)) in enumerate([*entries.items(), ("TRAILER!!!", (0, b""))], 1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        packed += b"070701" + b"".join(b"%08x" % field for field in fields) + path
        packed += bytes(-len(packed) % 4) + content
        packed += bytes(-len(packed) % 4)
    return bytes(packed)


def load_order(modules: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of the modules and of their dependencies, in loading order.

    `modules` is lib/modules/RELEASE of the kernel, with modules.dep and modules.builtin from depmod(8). Raises
    Unsupported for a module that this kernel lacks.
    """
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[path] = others.split()
    by_name = {_name(path): path for path in needs}
    builtin = {_name(path) for path in (modules / "modules.builtin").read_text().split()}
    order: list[Path] = []
    for name in names:
        if name in builtin:
            continue
        if name not in by_name:
            raise Unsupported(
                f"the kernel {modules.name} has no module {name}, which a guest needs to reach this machine:"
                " choose another kernel (labkit kernels)"
            )
        first = by_name[name]
        # modules.dep lists dependencies with the direct ones first; loading order is the reverse
        order += [one for path in [*reversed(needs[first]), first] if (one := modules / path) not in order]
    return order


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1].split(".ko")[0].replace("-", "_")


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".xz":  # busybox's insmod cannot decompress
        content = lzma.decompress(content)
    elif path.suffix != ".ko":
        raise Unsupported(
            f"{path} has an unsupported compression (only .xz is supported): choose another kernel"
        )
    return content


def modules(kernel: BootableKernel, names: Iterable[str]) -> dict[str, Entry]:
    """Return modules/NAME.ko of these modules and their dependencies in loading order; empty for a kernel without
    modules.

    Raises Unsupported for a module that this kernel lacks.
    """
    files = load_order(kernel.modules, names) if kernel.modules else []
    return {f"modules/{_name(path.name)}.ko": (0o100644, _content(path)) for path in files}


def busybox() -> Entry:
    """Return the static busybox. Raises Unsupported if it is not installed."""
    result = next((path for name in ("busybox-static", "busybox") if (path := shutil.which(name))), None)
    if result is None:
        raise Unsupported(packages.missing("busybox"))
    return 0o100755, Path(result).read_bytes()


def first_lines() -> list[str]:
    """Return the lines of an init script that say that user space has begun, and let the first error end the script."""
    return ["#!/bin/busybox sh", f"echo {shlex.quote(FIRST_WORDS)} >/dev/console", "set -e"]


def mounts(root: str = "") -> list[str]:
    """Return the lines that mount the kernel's own file systems below `root`.

    What this kernel lacks is missing without an error: a lab reports a missing file system when it needs it.
    """
    return [
        f"mount -t proc proc {root}/proc",
        f"mount -t sysfs sysfs {root}/sys",
        f"mount -t devtmpfs dev {root}/dev",
        f"mkdir -p {root}/dev/pts {root}/dev/shm",
        f"mount -t devpts devpts {root}/dev/pts",
        f"mount -t tmpfs shm {root}/dev/shm",
        f"mount -t tmpfs run {root}/run",
        f"for each in {OPTIONAL}; do",
        f"  mount -t ${{each%%:*}} none {root}/sys/${{each#*:}} 2>/dev/null || true",
        "done",
    ]
