"""The initramfs of a guest: busybox, modules for its NIC and ports, load programs with their libraries, and Python.

Python runs `exec_server`. Every file has the same path as on this machine.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.common.errors import BadInput
from labkit.measure.endpoints import exec_server
from labkit.measure.endpoints.namespace import first_sysctls
from labkit.system import machine, process
from labkit.system.qemu import initramfs
from labkit.system.qemu.initramfs import Entry
from labkit.system.qemu.kernels import BootableKernel

if TYPE_CHECKING:
    from labkit.measure.endpoints.guest.spec import Nic

MODULES = ("virtio_pci", "virtio_console", "virtio_net")
PROGRAMS = ("iperf3", "ping", "ip", "ethtool", "tc")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INSIDE = "exec_server.py"
NIC_S = 30
_LIBRARY = re.compile(r"(?:=> )?(/\S+) \(0x")
_FOLDER: Entry = (0o040755, b"")


@functools.lru_cache(maxsize=4)
def packed(kernel: BootableKernel, programs: tuple[str, ...], scripts: tuple[str, ...] = ()) -> bytes:
    """Return the initramfs that all guests of a kernel share, with these programs and Python files.

    Raises BadInput for a program that is not installed, Unsupported for a kernel without the modules.
    """
    entries: dict[str, Entry] = dict.fromkeys(("proc", "sys", "dev", "run", "tmp", "root", "etc"), _FOLDER)
    modules = initramfs.modules(kernel, MODULES)
    entries |= {
        "bin/busybox": initramfs.busybox(),
        INSIDE: (0o100644, Path(exec_server.__file__).read_bytes()),
    } | modules
    for path in [*_paths(PROGRAMS, must=False), *_paths(programs, must=True), python()]:
        entries |= {each: _file(each) for each in (path, *_libraries(path))}
    entries |= _python_modules(scripts)
    for name in process.output(["busybox", "--list"]).split():
        entries.setdefault(f"bin/{name}", (0o120777, b"/bin/busybox"))
    return initramfs.archive(_with_folders({name.lstrip("/"): entry for name, entry in entries.items()}))


def own(nic: Nic, kernel: BootableKernel, modules: Sequence[str], ports_count: int) -> bytes:
    """Return one guest's own part, which follows the shared part (the kernel unpacks concatenated archives).

    Its init script mounts, loads modules, waits for eth0 and gives it its address, then becomes `exec_server`.
    """
    more, ip = initramfs.modules(kernel, [*MODULES, *modules]), machine.program("ip")
    lines = [
        *initramfs.first_lines(),
        f"export PATH={PATH}",
        *initramfs.mounts(),
        'for each in /sys/devices/system/cpu/cpu*/online; do [ ! -e "$each" ] || echo 1 >"$each"; done',
        *(sysctl_line(*each) for each in first_sysctls(6 if ":" in nic.address else 4).items()),
        *(f"insmod /modules/{Path(name).name}" for name in more),
        f"hostname {shlex.quote(nic.name)}",
        f"{ip} link set lo up",
    ]
    if nic.fds:
        lines += [
            f"tries={NIC_S * 100}",
            'while [ ! -e /sys/class/net/eth0 ] && [ "$tries" -gt 0 ]; do sleep 0.01; tries=$((tries - 1)); done',
            f"{ip} link set eth0 mtu {nic.mtu_bytes} up",
            *address_lines(nic),
        ]
    inside = f"{shlex.quote(python())} -I -S /{INSIDE} ports {ports_count}"
    lines.append(f"exec {inside} </dev/console >/dev/console 2>&1")
    content = ("\n".join(lines) + "\n").encode()
    return initramfs.archive(_with_folders({**more, "init": (0o100755, content)}))


def _paths(names: Iterable[str], *, must: bool) -> list[str]:
    result = {name: machine.program(name) for name in names}
    for name, path in result.items():
        if must and not os.path.isabs(path):
            raise BadInput(f"the program {name} is not installed here, so it cannot be packed for a guest")
    return [path for path in result.values() if os.path.isabs(path)]


def python() -> str:
    """Return the path of this Python without its virtual environment."""
    return os.path.realpath(sys.executable)


def command(file: str) -> list[str]:
    """Return the command that runs a Python file in a guest, which has only the compiled file (.pyc)."""
    return [python(), "-I", "-S", f"{file}c"]


def _file(path: str) -> Entry:
    return 0o100000 | os.stat(path).st_mode & 0o777, Path(path).read_bytes()


def _libraries(path: str) -> list[str]:
    """Return the shared libraries of a program or library with its loader; empty for a static one."""
    return _LIBRARY.findall(process.run(["ldd", path]).stdout)


def _python_modules(scripts: Sequence[str]) -> dict[str, Entry]:
    """Return the Python modules that `exec_server` and these files need, compiled, because compiling takes seconds on
    an emulated CPU."""
    result: dict[str, Entry] = {}
    program = [python(), "-I", "-S", exec_server.__file__, "modules", *scripts]
    for line in process.output(program).splitlines():
        name, _, path = line.partition(" ")
        if path.endswith(".so"):
            result |= {each: _file(each) for each in (path, *_libraries(path))}
        elif name in ("os", "__main__"):  # Python finds its standard library by the file os.py
            result |= {path: _file(path)} if name == "os" else {}
        else:
            result[f"{path}c"] = (0o100644, _compile(path))
    return result


def _compile(path: str) -> bytes:
    """Compile a module into the form of a .pyc file without source (importlib; PEP 3147)."""
    import importlib.util
    import marshal

    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def _with_folders(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Add the parent folders of the entries before them."""
    folders = {str(parent): _FOLDER for name in entries for parent in reversed(Path(name).parents)}
    folders.pop(".", None)
    return {**folders, **entries}


def sysctl_line(name: str, value: int | str) -> str:
    """Return the shell line that sets the sysctl net.`name` if this kernel has it."""
    path = shlex.quote(f"/proc/sys/net/{name}")
    return f"[ ! -e {path} ] || echo {shlex.quote(str(value))} >{path}"


def address_lines(nic: Nic) -> list[str]:
    """Return shell lines that give eth0 its address and its neighbours."""
    ip = machine.program("ip")
    return [
        f"{ip} address add {nic.address} dev eth0{' nodad' if ':' in nic.address else ''}",
        *(f"{ip} neighbour replace {at} lladdr {mac} dev eth0 nud permanent" for at, mac in nic.neighbours),
    ]
