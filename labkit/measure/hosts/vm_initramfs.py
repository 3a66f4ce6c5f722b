"""The initramfs of a lab VM: busybox, modules to reach this machine's files, and a script that switches to that
root."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from labkit.system.qemu import initramfs as building
from labkit.system.qemu.kernels import Kernel

# Modules for the file systems and the channel; all others are loaded from the root.
MODULES = ("virtio_pci", "virtiofs", "overlay", "virtio_console")


def initramfs(
    kernel: Kernel, folder: Path | None, environment: Mapping[str, str], argv: Sequence[str]
) -> bytes:
    """Return the initramfs of a lab VM.

    Its script mounts the root (read-only, below an overlay in memory), `folder` (writable), and the kernel's own
    modules and configuration at their usual places, then executes `argv` with `environment`. Raises Unsupported
    without a static busybox.
    """
    modules = building.modules(kernel, MODULES)
    entries = dict.fromkeys(("bin", "modules", "lower", "over", "new"), (0o040755, b""))
    entries |= {"bin/busybox": building.busybox(), **modules}
    script = _script([Path(name).name for name in modules], kernel, folder, environment, argv)
    entries["init"] = (0o100755, script.encode())
    return building.archive(entries)


def _own_files(kernel: Kernel) -> Iterable[tuple[Path, Path]]:
    """Yield the kernel's files that are not at their usual place: where they are, and where they belong."""
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
    lines = building.first_lines()
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
        lines += [f"mkdir -p {inside}", f"mount -t virtiofs -o nodev,nosuid folder {inside}"]
    for there, place in _own_files(kernel):
        make = "touch" if there.is_file() else "mkdir -p"
        lines += [f"{make} /new{place}", f"mount -o bind {shlex.quote(f'/new{there}')} /new{place}"]
    lines += ["set +e", *building.mounts("/new")]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines.append(f"exec /bin/busybox switch_root /new {shlex.join(argv)} </dev/console >/dev/console 2>&1")
    return "\n".join(lines) + "\n"
