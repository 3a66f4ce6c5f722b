"""Guests: QEMU machines with a virtio-net NIC on a tap, a kernel, and a minimal initramfs for the load.

labkit controls them through virtio-serial ports, which are not part of the measured network. A guest ends with the
process that booted it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from labkit.common.errors import Failed, LabkitError, Unsupported
from labkit.measure.endpoints import exec_client
from labkit.measure.endpoints.guest import initramfs
from labkit.measure.endpoints.guest.spec import NO_ADDITIONS, GuestAdditions, GuestSpec, Nic, parse
from labkit.system import netlink, process
from labkit.system.machine import mibs
from labkit.system.qemu import command, confined, console, kernels, kvm
from labkit.system.temporary_files import in_memory, short_folder

GRACE_S = 5.0  # until QEMU ends after its sockets have closed
VHOST = Path("/dev/vhost-net")
# virtio-net features that move work between guest and host (virtio 1.2, 5.1.3).
OFFLOADS = (
    "csum", "gso", "guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo", "host_tso4", "host_tso6",
    "host_ecn", "host_ufo",
)  # fmt: skip


class BootTimeout(Failed):
    """A guest did not boot before its deadline."""


class Reading:
    """A file in a guest, read again by each `read`."""

    def __init__(self, guest: QemuGuest, path: str) -> None:
        self._guest, self._path = guest, path

    def read(self) -> str:
        """Return its current content."""
        return self._guest.read(self._path).decode()

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no file stays open."""


class QemuGuest:
    """A running guest."""

    def __init__(self, name: str, folder: Path, qemu: process.Running, report: dict[str, Any]) -> None:
        self.name = name
        self.folder = folder
        self.report = report
        self._qemu = qemu
        self._conversation: exec_client.Conversation | None = None

    @property
    def prefix(self) -> list[str]:
        """The command line prefix that runs a program in the guest."""
        return [sys.executable, "-I", "-S", exec_client.__file__, str(self.folder), "--"]

    @property
    def kernel(self) -> Self:
        """The guest itself, because it has its own kernel."""
        return self

    def greet(self, deadline: float) -> None:
        """Wait until the guest answers. Raises Failed with the last words of its console if it does not answer in
        time."""
        try:
            self._conversation = exec_client.Conversation(
                str(self.folder), 0, check=lambda: self._check_running(deadline)
            )
        except (exec_client.ServerDisconnected, OSError):
            self._check_running(time.monotonic() + GRACE_S)
            process.wait([self._qemu], time.monotonic() + GRACE_S)
            self._check_running(0)
        (self.folder / "initramfs").unlink(
            missing_ok=True
        )  # the file is large, and the guest has unpacked it

    def gone(self) -> str | None:
        """Return why the guest did not boot if QEMU has ended; None while QEMU runs."""
        if not self._qemu.poll():
            return None
        last = console.last_words(self.folder / "console")
        return f"the guest {self.name} did not boot: {self._qemu.ended().message()}{last}"

    def _check_running(self, deadline: float) -> None:
        """Raise Failed if the guest has ended or the deadline has passed."""
        if words := self.gone():
            raise Failed(words)
        path = self.folder / "console"
        if words := console.stop_reason(path):
            raise Failed(f"the guest {self.name} did not boot: {words}{console.last_words(path)}")
        if time.monotonic() > deadline:
            raise BootTimeout(f"the guest {self.name} did not boot in time{console.last_words(path)}")

    def _ask(self, kind: bytes, content: bytes) -> bytes:
        assert self._conversation is not None
        try:
            return self._conversation.ask(kind, content)
        except (exec_client.ServerDisconnected, TimeoutError):
            last = console.last_words(self.folder / "console")
            how = f"has gone ({self._qemu.ended().message()})" if self._qemu.poll() else "does not answer"
            raise Failed(f"the guest {self.name} {how}{last}") from None
        except OSError as error:
            raise Failed(f"in the guest {self.name}: {error.strerror}: {error.filename}") from None

    def read(self, path: str) -> bytes:
        """Return the content of a file in the guest. Raises Failed."""
        return self._ask(b"F", os.fsencode(path))

    def write(self, path: str, content: bytes) -> None:
        """Write a file in the guest. Raises Failed."""
        self._ask(b"W", os.fsencode(path) + b"\0" + content)

    def open(self, path: str) -> Reading:
        """Return a file of the guest for reading."""
        return Reading(self, path)

    def counters(self, interface: str, path: str = "/proc/net/dev") -> netlink.LinkCounters:
        """Return the counters of an interface in the guest."""
        counts = mibs.interfaces(self.read(path).decode()).get(interface)
        if counts is None:
            raise Failed(f"the guest {self.name} has no interface {interface}")
        return netlink.LinkCounters(counts["rx_bytes"], counts["rx_packets"], counts["tx_packets"])

    def sysctl(self, name: str, value: int | str) -> None:
        """Set the sysctl net.`name` in the guest."""
        self.write(f"/proc/sys/net/{name}", str(value).encode())


@contextmanager
def guests(text: str, nics: Sequence[Nic], more: GuestAdditions = NO_ADDITIONS) -> Iterator[list[QemuGuest]]:
    """Boot a guest for each NIC and yield them until the block ends.

    Raises BadInput for a guest that cannot be booted, Unsupported if QEMU or a similar program is missing, Failed with
    the console's last words if a guest does not boot.
    """
    spec = more.of(parse(text))
    kernel = kernels.find(spec.machine.kernel)
    if spec.vhost == "on" and not os.access(VHOST, os.R_OK | os.W_OK):
        raise Unsupported(
            f"guest={text}: {VHOST} cannot be opened: run `modprobe vhost_net` as root, or choose vhost=auto"
        )
    with ExitStack() as stack:
        yield _boot(stack, spec, kernel, nics)


def _boot(stack: ExitStack, spec: GuestSpec, kernel: kernels.Kernel, nics: Sequence[Nic]) -> list[QemuGuest]:
    """Boot guests and wait until they answer; they end with the stack.

    If KVM fails but emulation works, that is remembered. Emulated boots sometimes fail, so they are tried twice.
    """
    first: LabkitError | None = None
    without_kvm: LabkitError | None = None
    for accelerated in [True] * kvm.worth_trying() + [False, False]:
        with ExitStack() as attempt:
            try:
                made = attempt.enter_context(_start(spec, kernel, nics, accelerated))
                deadline = time.monotonic() + spec.boot_s
                for one in made:
                    one.greet(deadline)
                if without_kvm is not None:
                    kvm.remember(str(without_kvm))
                stack.push(attempt.pop_all())
                return made
            except Failed as error:
                if isinstance(error, BootTimeout) or (first is not None and not accelerated):
                    raise
                first = error
                without_kvm = error if accelerated else without_kvm
    raise AssertionError("a loop that returns or raises")


@contextmanager
def _start(
    spec: GuestSpec, kernel: kernels.Kernel, nics: Sequence[Nic], accelerated: bool
) -> Iterator[list[QemuGuest]]:
    """Start the guests and yield them while they boot."""
    vhost = spec.vhost == "on" or (
        spec.vhost == "auto" and accelerated and os.access(VHOST, os.R_OK | os.W_OK)
    )
    report: dict[str, Any] = {
        "guest_kernel": kernel.release,
        "guest_accelerator": "kvm" if accelerated else "tcg",
        "guest_cpus_count": spec.machine.cpus,
        "guest_threads_count": command.threads_count(spec.machine, kvm=accelerated),
    }
    ports = {
        f"{exec_client.NAMES}{number}": f"{exec_client.LOCKS}{number}" for number in range(exec_client.PORTS)
    }
    with short_folder("labkit-guest-", in_memory()) as scratch, process.all_ended([]) as running:
        made = []
        confinement = confined.confinement([kvm.DEVICE] * accelerated + [VHOST] * vhost)
        confinement.open_folder(scratch)
        image = scratch / "kernel"  # the kernel store may be readable by root only
        image.write_bytes(kernel.image.read_bytes())
        for nic in nics:
            (folder := scratch / nic.name).mkdir(mode=0o700)
            confinement.open_folder(folder)
            own = initramfs.own(nic, kernel, spec.machine.modules, exec_client.PORTS)
            (folder / "initramfs").write_bytes(initramfs.packed(kernel, spec.programs, spec.scripts) + own)
            words = nic_words(spec, nic, vhost)
            argv = command.argv(spec.machine, image, folder, kvm=accelerated, more=words, ports=ports)
            running.append(process.Running([*confinement.prefix, *argv], pass_fds=nic.fds))
            queues, on = (spec.queues, vhost) if nic.fds else (None, None)
            report |= {"guest_queues_count": queues, "guest_vhost": on}
            made.append(QemuGuest(nic.name, folder, running[-1], dict(report)))
        if accelerated:
            for one in made:
                kvm.check(one.folder / "console", initramfs.FIRST_WORDS, one.gone)
        yield made


def nic_words(spec: GuestSpec, nic: Nic, vhost: bool) -> list[str]:
    """Return QEMU's arguments for a guest's NIC and tap."""
    if not nic.fds:
        return []
    fds = "fd=" if len(nic.fds) == 1 else "fds="
    cable = f"tap,id=nic,{fds}{':'.join(map(str, nic.fds))}{',vhost=on' if vhost else ''}"
    # romfile=: no boot ROM, which is part of another package.
    device = f"virtio-net-pci,netdev=nic,mac={nic.mac},romfile=,host_mtu={nic.mtu_bytes}"
    if len(nic.fds) > 1:
        device += (
            f",mq=on,vectors={2 * len(nic.fds) + 2}"  # one vector per queue, plus two (linux virtio_net)
        )
    if not spec.offloads:
        device += "".join(f",{name}=off" for name in OFFLOADS)
    return ["-netdev", cable, "-device", device]
