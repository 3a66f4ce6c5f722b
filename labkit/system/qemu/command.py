"""The command lines of QEMU and virtiofsd, for Debian 12 and later."""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import Unsupported
from labkit.system import machine
from labkit.system.qemu.vm_spec import Shape

CHANNEL = "labkit"  # the name of a lab VM's virtio-serial port; in the guest /sys/class/virtio-ports/*/name
PORTS = {CHANNEL: "channel"}  # a port's name in the guest, and its socket

# The emulated CPU: QEMU's smallest model plus the instructions of x86-64-v2 (second level of the psABI), which numpy's
# wheels since 2.4 use without a check. Larger models are slower to emulate.
EMULATED_CPU = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"

# mitigations=off and a small CPU model make an emulated CPU several times as fast; every row's environment records the
# command line. tsc=reliable: the kernel does not watch an emulated clock. earlyprintk: the code that unpacks the kernel
# reports a corrupt image instead of halting silently.
KERNEL_WORDS = (
    "console=ttyS0 earlyprintk=ttyS0 quiet panic=-1 oops=panic mitigations=off tsc=reliable net.ifnames=0"
)

# The kernel does without cmpxchg16b (X86_FEATURE_CX16), with which it allocates memory: QEMU 7.2 leaves wrong flags
# behind it, and an interrupt right then ends in a double fault.
NO_CMPXCHG16B = "clearcpuid=141"

# rdtsc; shl rdx, 32; or rax, rdx; ret (Intel SDM, volume 2)
_READ = bytes.fromhex("0f3148c1e2204809d0c3")
MEASURE_S = 0.05

# root in a guest cannot create device nodes or set file capabilities and setgid bits in a share
WITHOUT = "modcaps=-mknod:-setfcap:-fsetid"


@dataclass(frozen=True)
class Share:
    """A host folder that the guest mounts by its tag."""

    tag: str
    source: Path
    readonly: bool


def qemu_program() -> str:
    """Return the QEMU program for lab VMs and guests. Raises Unsupported if this architecture is not supported."""
    if platform.machine() != "x86_64":
        raise Unsupported(f"lab VMs need an x86-64 machine, and this one is {platform.machine()}")
    return machine.program("qemu-system-x86_64")


def virtiofsd(share: Share, socket: Path) -> list[str]:
    """Return the command that serves a share at `socket`; Debian 12 has the C daemon, later releases the Rust one."""
    path = machine.program("virtiofsd")
    cache = "always" if share.readonly else "auto"
    if "/qemu/" in path:
        options = f"source={share.source},cache={cache},sandbox=chroot,no_posix_lock,log_level=err,{WITHOUT}"
        return [path, "-f", f"--socket-path={socket}", "-o", options]
    words = [path, f"--socket-path={socket}", f"--shared-dir={share.source}", f"--cache={cache}"]
    return [
        *words, "--sandbox=chroot", "--log-level=error", f"--{WITHOUT}",
        *(["--readonly"] if share.readonly else []),
    ]  # fmt: skip


def tsc_khz() -> int | None:
    """Return the ticks per millisecond of this machine's time stamp counter, exact to a few millionths; None if it is
    not a clock or cannot be read.

    An emulated guest has the same rate. A guest kernel that measured it on a busy machine could be wrong: with 5 GHz
    instead of 2.6 GHz, its clock runs at half speed.
    """
    if platform.machine() != "x86_64" or "constant_tsc" not in Path("/proc/cpuinfo").read_text():
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None  # forbidden here
    page.write(_READ)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    begin = _at_once(read)
    time.sleep(MEASURE_S)
    end = _at_once(read)
    return round((end[1] - begin[1]) * 1e6 / (end[0] - begin[0]))


def _at_once(read: ctypes._CFunctionType) -> tuple[int, int]:
    """Return the time in nanoseconds and the ticks at that time: the tightest of 20 readings."""
    result = []
    for _ in range(20):
        before, ticks, after = time.monotonic_ns(), read(), time.monotonic_ns()
        result.append((after - before, (before + after) // 2, ticks))
    _width, at, ticks = min(result)
    return at, ticks


def _emulation_parameters() -> list[str]:
    """Return kernel parameters for an emulated CPU.

    The kernel must not measure or test its clocks: on a busy machine it would find a wrong time stamp counter rate, or
    panic ("IO-APIC + timer doesn't work"). It boots on one CPU (agent.vm_init starts the others): while a boot patches
    the kernel's code (jump labels), another emulated CPU can run into the patched instruction ("Oops: int3").
    """
    rate = tsc_khz()
    return [
        "no_timer_check", "maxcpus=1", NO_CMPXCHG16B, *([] if rate is None else [f"tsc_early_khz={rate}"]),
    ]  # fmt: skip


def threads_count(shape: Shape, *, kvm: bool) -> int:
    """Return how many threads of this machine run a guest's CPUs."""
    return shape.cpus if kvm or shape.profile != "tracing" else 1


def tap_nic(fds: Sequence[int], mac: str, *, vhost: bool = False, more: str = "") -> list[str]:
    """Return the arguments of a virtio-net NIC on a tap; `fds` are the tap's queues, `more` further device options."""
    queues = f"fd={fds[0]}" if len(fds) == 1 else f"fds={':'.join(map(str, fds))}"
    # romfile=: no boot ROM, which is part of another package.
    device = f"virtio-net-pci,netdev=nic,mac={mac},romfile={more}"
    return ["-netdev", f"tap,id=nic,{queues}{',vhost=on' if vhost else ''}", "-device", device]


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
    """Return the QEMU command of a machine; its sockets, initramfs and console are files in `scratch`.

    `more` are further arguments (a NIC). `ports` are its virtio-serial ports by name, with their sockets.
    """
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
        qemu_program(), "-M", "q35,memory-backend=mem", "-object", memory, "-m", f"{shape.memory_mib}M", *runs,
        "-smp", str(shape.cpus), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        # A guest that takes over QEMU can neither start programs nor gain another user's rights.
        "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny",
        "-serial", f"file:{scratch / 'console'}",
        "-device", "virtio-rng-pci",
        *serial, *files, *more,
        "-kernel", str(kernel), "-initrd", str(scratch / "initramfs"),
        "-append", " ".join([KERNEL_WORDS, *([] if kvm else _emulation_parameters()), *shape.append]),
    ]  # fmt: skip
