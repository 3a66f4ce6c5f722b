"""Guests: QEMU machines with a virtio-net NIC on a tap, a kernel, and a minimal initramfs for the load.

labkit controls them through virtio-serial ports, which are not part of the measured network. A guest ends with the
process that booted it.
"""

import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from labkit.common.errors import Failed, Unsupported
from labkit.measure.endpoints import exec_client
from labkit.measure.endpoints.guest import initramfs
from labkit.measure.endpoints.guest.spec import NO_ADDITIONS, GuestAdditions, GuestSpec, Nic, parse
from labkit.measure.endpoints.kernel import Kernel
from labkit.system import process
from labkit.system.qemu import boot, command, kernels
from labkit.system.temporary_files import in_memory

GRACE_S = 5.0  # until QEMU ends after its sockets have closed
VHOST = Path("/dev/vhost-net")
# virtio-net features that move work between guest and host (virtio 1.2, 5.1.3).
OFFLOADS = (
    "csum", "gso", "guest_csum", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo", "host_tso4", "host_tso6",
    "host_ecn", "host_ufo",
)  # fmt: skip


class QemuGuest(boot.Machine, Kernel):
    """A running guest."""

    shared_folder: tuple[Path, str] | None = None

    def __init__(self, name: str, scratch: Path, qemu: process.Running, report: dict[str, Any]) -> None:
        super().__init__(f"the guest {name}", scratch)
        self.name = name
        self.report = report
        self._qemu = qemu
        self._conversation: exec_client.Conversation | None = None

    @property
    def prefix(self) -> list[str]:
        return [sys.executable, "-I", "-S", exec_client.__file__, str(self.scratch), "--"]

    @property
    def kernel(self) -> Self:
        """The guest itself, because it has its own kernel."""
        return self

    def ended(self) -> str | None:
        return self._qemu.ended().message() if self._qemu.poll() else None

    def greet(self, deadline: float) -> None:
        """Wait until the guest answers. Raises Failed with the last words of its console if it does not answer in
        time."""
        try:
            self._conversation = exec_client.Conversation(
                str(self.scratch), 0, check=lambda: self.check_booting(deadline)
            )
        except (exec_client.ServerDisconnected, OSError):
            self.check_booting(time.monotonic() + GRACE_S)
            process.wait([self._qemu], time.monotonic() + GRACE_S)
            self.check_booting(0)
        # the file is large, and the guest has unpacked it
        (self.scratch / "initramfs").unlink(missing_ok=True)

    def _ask(self, kind: bytes, content: bytes) -> bytes:
        assert self._conversation is not None
        try:
            return self._conversation.ask(kind, content)
        except (exec_client.ServerDisconnected, TimeoutError):
            how = f"has gone ({ended})" if (ended := self.ended()) else "does not answer"
            raise Failed(f"{self.label} {how}{self.last_words()}") from None

    def read_bytes(self, path: str) -> bytes:
        return self._ask(b"F", os.fsencode(path))

    def write(self, path: str, content: bytes) -> None:
        self._ask(b"W", os.fsencode(path) + b"\0" + content)

    @contextmanager
    def file(self, name: str, content: bytes) -> Iterator[str]:
        """Yield the path of a file of this name and content, which stays until the guest ends."""
        self.write(f"/run/{name}", content)
        yield f"/run/{name}"


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
        yield boot.boot_twice(stack, functools.partial(_boot, spec, kernel, nics), boot.BootTimeout)


@contextmanager
def _boot(
    spec: GuestSpec, kernel: kernels.BootableKernel, nics: Sequence[Nic], accelerated: bool
) -> Iterator[list[QemuGuest]]:
    """Start the guests, and yield them when they answer."""
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
    devices = [VHOST] * vhost
    with (
        boot.boot_folder("labkit-guest-", in_memory(), kernel, accelerated, devices) as boots,
        process.all_ended([]) as running,
    ):
        made = []
        for nic in nics:
            (scratch := boots.path / nic.name).mkdir(mode=0o700)
            own = initramfs.own(nic, kernel, spec.machine.modules, exec_client.PORTS)
            content = initramfs.packed(kernel, spec.programs, spec.scripts) + own
            words = nic_words(spec, nic, vhost)
            argv = boots.command(scratch, spec.machine, content, more=words, ports=ports)
            running.append(process.Running(argv, pass_fds=nic.fds))
            queues, on = (spec.queues, vhost) if nic.fds else (None, None)
            report |= {"guest_queues_count": queues, "guest_vhost": on}
            made.append(QemuGuest(nic.name, scratch, running[-1], dict(report)))
        if accelerated:
            for one in made:
                one.check_kvm()
        deadline = time.monotonic() + spec.boot_s
        for one in made:
            one.greet(deadline)
        yield made


def nic_words(spec: GuestSpec, nic: Nic, vhost: bool) -> list[str]:
    if not nic.fds:
        return []
    more = f",host_mtu={nic.mtu_bytes}"
    if len(nic.fds) > 1:
        # one vector per queue, plus two (linux virtio_net)
        more += f",mq=on,vectors={2 * len(nic.fds) + 2}"
    if not spec.offloads:
        more += "".join(f",{name}=off" for name in OFFLOADS)
    return command.tap_nic(nic.fds, nic.mac, vhost=vhost, more=more)
