"""Endpoints that share one guest: each has a network namespace on a bridge of the guest's kernel.

Compared with one guest per endpoint (same kernel, same total of CPUs), only the machine boundary differs.
"""

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Self

from labkit.common.errors import Failed
from labkit.measure.endpoints.guest.initramfs import address_lines, sysctl_line
from labkit.measure.endpoints.guest.qemu_guest import QemuGuest
from labkit.measure.endpoints.guest.spec import Nic
from labkit.measure.endpoints.kernel import Kernel
from labkit.measure.endpoints.namespace import first_sysctls
from labkit.system import machine, process

MODULES = ("veth", "bridge")
PROGRAMS = ("nsenter",)  # busybox's nsenter would run its own ping instead of the packed one
PATIENCE_S = 60.0  # an emulated guest is slow, especially on a loaded machine
SYSCTLS = "/proc/sys/net/"  # shows the network namespace of the process that opens it
HELD_S = 2147483  # sleep time of a process that holds a namespace


class GuestNamespace(Kernel):
    """A network namespace in a guest, where the programs of one endpoint run; process `pid` holds it."""

    shared_folder: tuple[Path, str] | None = None

    def __init__(self, guest: QemuGuest, pid: int) -> None:
        self.name = guest.name
        self.report: dict[str, Any] = guest.report
        self._guest, self._pid = guest, pid

    @property
    def prefix(self) -> list[str]:
        return [*self._guest.prefix, machine.program("nsenter"), "-t", str(self._pid), "-n"]

    @property
    def kernel(self) -> Self:
        return self

    def read_bytes(self, path: str) -> bytes:
        if path.startswith(SYSCTLS):
            return self._shell('cat "$1"', path).encode()
        return self._guest.read_bytes(path.replace("/proc/net/", f"/proc/{self._pid}/net/"))

    def write(self, path: str, content: bytes) -> None:
        if path.startswith(SYSCTLS):
            self._shell('echo "$2" >"$1"', path, content.decode())
        else:
            self._guest.write(path, content)

    def file(self, name: str, content: bytes) -> AbstractContextManager[str]:
        return self._guest.file(name, content)

    def _shell(self, script: str, *words: str) -> str:
        return process.output([*self.prefix, "sh", "-c", script, "sh", *words], PATIENCE_S)


def guest_namespaces(guest: QemuGuest, nics: Sequence[Nic], family: int) -> list[GuestNamespace]:
    """Create a namespace in the guest for each NIC, each with a veth to one bridge, like `veth_bridge`.

    They end with the guest. Raises Failed with the error message from the guest.
    """
    ip = machine.program("ip")
    lines = [
        "set -e",
        f"{ip} link add bridge type bridge",
        f"{ip} link set bridge mtu {nics[0].mtu_bytes} up",
    ]
    lines += [_commands_for(ip, number, nic, family) for number, nic in enumerate(nics)]
    words = process.output([*guest.prefix, "sh", "-c", "\n".join(lines)], PATIENCE_S).split()
    with suppress(ValueError):
        pids = [int(word) for word in words]
        if len(pids) == len(nics):
            return [GuestNamespace(guest, pid) for pid in pids]
    raise Failed(f"the guest {guest.name} created no namespaces: {' '.join(words)}")


def _commands_for(ip: str, number: int, nic: Nic, family: int) -> str:
    """Return the shell lines that create one namespace and print the pid of its holder."""
    inside = [sysctl_line(name, value) for name, value in first_sysctls(family).items()]
    after = [f"{ip} link set lo up", f"{ip} link set eth0 up", *address_lines(nic)]
    mtu = f"mtu {nic.mtu_bytes}"
    lines = [
        f"setsid unshare -n sleep {HELD_S} </dev/null >/dev/null 2>&1 &",
        "pid=$!",
        'while [ "$(readlink /proc/$pid/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done',
        f"nsenter -t $pid -n sh -e -c {shlex.quote('; '.join(inside))}",
        f"{ip} link add port{number} {mtu} type veth peer name eth0 netns $pid {mtu} address {nic.mac}",
        f"{ip} link set port{number} master bridge up",
        f"nsenter -t $pid -n sh -e -c {shlex.quote('; '.join(after))}",
        "echo $pid",
    ]
    return "\n".join(lines)
