"""The first file system of a lab VM: busybox, the modules that reach this machine's files, and a script that goes on
with them as the root."""

from __future__ import annotations

import lzma
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from labkit.errors import Unsupported
from labkit.hosts.kernels import Kernel

# What reaches the file systems and the channel; all else is loaded from the root.
MODULES = ("virtio_pci", "virtiofs", "overlay", "virtio_console")
SUFFIXES = (".ko", ".ko.xz")
FIRST_WORDS = "labkit: the lab VM's own user space begins"


def archive(entries: Mapping[str, tuple[int, bytes]]) -> bytes:
    """A cpio archive in the form that the kernel unpacks ("newc"; Documentation/driver-api/early-userspace/
    buffer-format.rst): path to mode and content."""
    packed = bytearray()
    for number, (name, (mode, content)) in enumerate([*entries.items(), ("TRAILER!!!", (0, b""))], 1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        packed += b"070701" + b"".join(b"%08x" % field for field in fields) + path
        packed += bytes(-len(packed) % 4) + content
        packed += bytes(-len(packed) % 4)
    return bytes(packed)


def load_order(modules: Path, names: Iterable[str]) -> list[Path]:
    """The files of the modules and of those that they need, in the order in which they are loaded.

    `modules` is the kernel's lib/modules/RELEASE, whose modules.dep and modules.builtin depmod(8) wrote. Raises
    Unsupported for a module that this kernel does not have.
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
                f"the kernel {modules.name} has no {name}, without which a lab VM cannot reach this machine's files:"
                " take another one (labkit kernels)"
            )
        first = by_name[name]
        # modules.dep lists what a module needs, direct needs first: backwards is the order of loading
        order += [one for path in [*reversed(needs[first]), first] if (one := modules / path) not in order]
    return order


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1].split(".ko")[0].replace("-", "_")


def _content(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".xz":  # busybox's insmod does not unpack
        content = lzma.decompress(content)
    elif path.suffix != ".ko":
        raise Unsupported(f"{path} is compressed in a way that labkit does not unpack; take another kernel")
    return content


def initramfs(
    kernel: Kernel, folder: Path | None, environment: Mapping[str, str], argv: Sequence[str]
) -> bytes:
    """The initramfs: its script mounts the root (read-only, under a layer in memory), `folder` (writable), the kernel's
    own modules and configuration where a Linux looks for them, what it needs beside, and becomes `argv` with
    `environment`. Raises Unsupported without a static busybox."""
    busybox = next((found for name in ("busybox-static", "busybox") if (found := shutil.which(name))), None)
    if busybox is None:
        raise Unsupported("the program busybox is not here: install the Debian package busybox-static")
    files = load_order(kernel.modules, MODULES) if kernel.modules else []
    entries = dict.fromkeys(("bin", "modules", "lower", "over", "new"), (0o040755, b""))
    entries["bin/busybox"] = (0o100755, Path(busybox).read_bytes())
    for path in files:
        entries[f"modules/{_name(path.name)}.ko"] = (0o100644, _content(path))
    script = _script([f"{_name(path.name)}.ko" for path in files], kernel, folder, environment, argv)
    entries["init"] = (0o100755, script.encode())
    return archive(entries)


# cgroup2 and the rest are mounted where the kernel has them; a lab that lacks one says so when it is needed.
_MOUNTS = """\
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs run /new/run
for each in tracefs:kernel/tracing debugfs:kernel/debug cgroup2:fs/cgroup bpf:fs/bpf securityfs:kernel/security; do
  mount -t ${each%%:*} none /new/sys/${each#*:} 2>/dev/null
done
"""


def _own_files(kernel: Kernel) -> Iterable[tuple[Path, Path]]:
    """What of the kernel's is not where a Linux looks for it: where it is, and where it belongs."""
    config = kernel.image.with_name(f"config-{kernel.release}")
    for there, place in (
        (kernel.modules, Path("/lib/modules", kernel.release)),
        (config, Path("/boot", config.name)),
    ):
        if there is not None and there.exists() and there != place:
            yield there, place


def _script(
    names: list[str], kernel: Kernel, folder: Path | None, environment: Mapping[str, str], argv: Sequence[str]
) -> str:
    lines = ["#!/bin/busybox sh", f"echo {shlex.quote(FIRST_WORDS)} >/dev/console", "set -e"]
    commands = ("mount", "mkdir", "touch", "insmod", "switch_root")
    lines += [f'{name}() {{ /bin/busybox {name} "$@"; }}' for name in commands]
    lines += [f"insmod /modules/{name}" for name in names]
    lines += [
        "mount -t virtiofs -o ro root /lower",
        "mount -t tmpfs -o size=50% over /over",
        "mkdir /over/upper /over/work",
        "mount -t overlay -o lowerdir=/lower,upperdir=/over/upper,workdir=/over/work over /new",
    ]
    if folder is not None:
        inside = shlex.quote(f"/new{folder}")
        lines += [f"mkdir -p {inside}", f"mount -t virtiofs folder {inside}"]
    for there, place in _own_files(kernel):
        make = "touch" if there.is_file() else "mkdir -p"
        lines += [f"{make} /new{place}", f"mount -o bind {shlex.quote(f'/new{there}')} /new{place}"]
    lines += ["set +e", _MOUNTS]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(f"exec /bin/busybox switch_root /new {shlex.join(argv)} </dev/console >/dev/console 2>&1")
    return "\n".join(lines) + "\n"
