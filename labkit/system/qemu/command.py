"""The command lines of QEMU and of virtiofsd, of Debian 12 and of later."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import Unsupported
from labkit.system import machine
from labkit.system.qemu import clock_rate
from labkit.system.qemu.vm_spec import Shape

CHANNEL = "labkit"  # the name of a lab VM's virtio-serial port; in the guest /sys/class/virtio-ports/*/name
PORTS = {CHANNEL: "channel"}  # a port's name in the guest, and its socket

# The emulated CPU: QEMU's smallest model, with what x86-64-v2 adds to it (the psABI's second level), because numpy's
# wheels since 2.4 execute those instructions without asking. Larger models are not faster: they cost more to emulate.
EMULATED_CPU = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"

# mitigations=off and a small CPU model make an emulated CPU several times as fast; the command line is in every row's
# environment. tsc=reliable: an emulated clock is not to be watched.
KERNEL_WORDS = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable net.ifnames=0"

# A guest's root makes no device node, and gives no file rights that its reader does not have.
WITHOUT = "modcaps=-mknod:-setfcap:-fsetid"


@dataclass(frozen=True)
class Share:
    """A folder of this machine that the guest mounts by its tag."""

    tag: str
    source: Path
    readonly: bool


def system() -> str:
    """The program that runs a lab VM. Raises Unsupported where labkit knows none for this architecture."""
    if platform.machine() != "x86_64":
        raise Unsupported(f"lab VMs need an x86-64 machine so far, and this one is {platform.machine()}")
    return machine.program("qemu-system-x86_64")


def virtiofsd(share: Share, socket: Path) -> list[str]:
    """The words that serve a share at `socket`. Debian 12 has the daemon in C, later ones that in Rust."""
    path = machine.program("virtiofsd")
    cache = "always" if share.readonly else "auto"
    if "/qemu/" in path:
        options = f"source={share.source},cache={cache},sandbox=chroot,no_posix_lock,log_level=err,{WITHOUT}"
        return [path, "-f", f"--socket-path={socket}", "-o", options]
    words = [path, f"--socket-path={socket}", f"--shared-dir={share.source}", f"--cache={cache}"]
    return [
        *words,
        "--sandbox=chroot",
        "--log-level=error",
        f"--{WITHOUT}",
        *(["--readonly"] if share.readonly else []),
    ]


def _emulated() -> list[str]:
    """Words for a kernel on an emulated CPU.

    It neither measures nor tries its clocks: on a busy machine it finds a wrong rate of the time stamp counter, or dies
    ("IO-APIC + timer doesn't work"). And it boots on one CPU (agent.vm_init brings up the others): while a boot changes
    the kernel's own code (jump labels), another emulated CPU now and then runs into the change ("Oops: int3")."""
    rate = clock_rate.tsc_khz()
    return ["no_timer_check", "maxcpus=1", *([] if rate is None else [f"tsc_early_khz={rate}"])]


def threads_count(shape: Shape, *, kvm: bool) -> int:
    """How many threads of this machine run a guest's CPUs."""
    return shape.cpus if kvm or shape.profile != "tracing" else 1


def argv(
    shape: Shape,
    kernel: Path,
    scratch: Path,
    shares: Sequence[Share] = (),
    *,
    kvm: bool,
    more: Sequence[str] = (),
    ports: Mapping[str, str] = PORTS,
) -> list[str]:
    """The words that run a machine whose sockets, initramfs and console are files of `scratch`; `more` are further
    words (a NIC), `ports` its virtio-serial ports with their sockets."""
    threads = "single" if shape.profile == "tracing" else "multi"
    runs = (
        ["-accel", "kvm", "-cpu", "host"]
        if kvm
        else ["-accel", f"tcg,thread={threads}", "-cpu", EMULATED_CPU]
    )
    memory = f"memory-backend-memfd,id=mem,size={shape.memory_mib}M,share=on"
    files = []
    for share in shares:
        files += ["-chardev", f"socket,id={share.tag},path={scratch / share.tag}"]
        files += ["-device", f"vhost-user-fs-pci,chardev={share.tag},tag={share.tag},queue-size=1024"]
    serial = ["-device", f"virtio-serial-pci,max_ports={len(ports) + 1}"]  # port 0 is a console's
    for name, path in ports.items():
        serial += ["-chardev", f"socket,id={path},path={scratch / path},server=on,wait=off"]
        serial += ["-device", f"virtserialport,chardev={path},name={name}"]
    return [
        system(), "-M", "q35,memory-backend=mem", "-object", memory, "-m", f"{shape.memory_mib}M", *runs,
        "-smp", str(shape.cpus), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        # No new programs and no other user's rights, whatever a guest makes of QEMU.
        "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny",
        "-serial", f"file:{scratch / 'console'}",
        "-device", "virtio-rng-pci",
        *serial, *files, *more,
        "-kernel", str(kernel), "-initrd", str(scratch / "initramfs"),
        "-append", " ".join([KERNEL_WORDS, *([] if kvm else _emulated()), *shape.append]),
    ]  # fmt: skip
