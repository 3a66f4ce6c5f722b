"""Try perf events, probes and BPF with their system calls; everything ends with its file descriptor."""

import ctypes
import errno
import functools
import os
import platform
import struct
from pathlib import Path

from labkit.common.safe_files import closed
from labkit.measure.capabilities.base import (
    AS_ROOT,
    DEBIAN_KERNEL,
    DENIED,
    Capability,
    NotTried,
    attempt,
    refused,
    remedy_for,
)
from labkit.measure.observers.perf.control import SHOW_SYMBOLS
from labkit.system import libc, machine
from labkit.system.machine.bpf import call as call_bpf

# linux/perf_event.h
HARDWARE, SOFTWARE, TRACEPOINT = 0, 1, 2
EXCLUDE_KERNEL = 1 << 5
# Of perf_event_open(2) (asm/unistd.h)
_NUMBERS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
_PMUS = Path("/sys/bus/event_source/devices")


def event(kind: int, config: int, *, cpu: int = -1, flags: int = 0, address: int = 0, period: int = 0) -> int:
    """Open a perf event and return its descriptor: of this process, or of everything on `cpu`. Raises OSError."""
    if (number := _NUMBERS.get(platform.machine())) is None:
        text = f"labkit does not know the system call's number on {platform.machine()}"
        raise NotTried(text, "try it with perf(1)")
    # struct perf_event_attr, PERF_ATTR_SIZE_VER1: type, size, config, sample_period, sample_type, read_format, flags,
    # wakeup_events, bp_type, config1 (kprobe_func), config2 (probe_offset)
    attributes = struct.pack("IIQQQQQIIQQ", kind, 72, config, period, 0, 0, flags, 0, 0, address, 0)
    buffer = ctypes.create_string_buffer(attributes)
    cloexec = 8
    arguments = (number, ctypes.addressof(buffer), 0 if cpu < 0 else -1, cpu, -1, cloexec)
    return libc.call("syscall", *map(ctypes.c_long, arguments))


def _counter(kind: int, config: int) -> tuple[int, str | None]:
    """Open a counter of this process; return it with a restriction: without privilege it sees user space only."""
    missing = (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV)
    for flags, detail in ((0, None), (EXCLUDE_KERNEL, "in user space only, not in the kernel")):
        try:
            return event(kind, config, flags=flags), detail
        except OSError as error:
            if error.errno in missing:
                raise refused(errno.ENOENT, "this machine has no such counter") from None
            if flags or error.errno not in DENIED:
                raise
    raise AssertionError


def _counts(kind: int, config: int) -> str | None:
    """Open a counter and check that it counts: under some hypervisors counters open but do not count."""
    descriptor, detail = _counter(kind, config)
    with closed(descriptor):
        for number in range(20_000):
            hash(number)
        if struct.unpack("Q", os.read(descriptor, 8))[0] == 0:
            raise refused(errno.ENODEV, "it opens but does not count")
    return detail


_perf_remedy = remedy_for(
    "PERF_EVENTS", as_root=f"{AS_ROOT}, or have root set: sysctl kernel.perf_event_paranoid=0"
)


def perf_events() -> list[Capability]:
    """Try hardware and software counters and machine-wide counting."""
    result = [
        attempt(
            "perf events", name, functools.partial(_counts, HARDWARE, number),
            f"{what} cannot be counted, so costs are reported in CPU time and not in {unit} per packet",
            _counter_remedy,
        )
        for name, number, what, unit in (
            ("cycles", 0, "CPU cycles", "cycles"),
            ("instructions", 1, "instructions", "instructions"),
            ("cache-misses", 3, "misses of the last-level cache", "misses"),
        )
    ]  # fmt: skip
    for number, name in enumerate(("cpu-clock", "task-clock")):
        lost = f"{name} cannot be sampled, so there are no CPU profiles"
        probe = functools.partial(_counts, SOFTWARE, number)
        result.append(attempt("perf events", name, probe, lost, _perf_remedy))
    lost = "profiles show programs one by one, without interrupts and softirqs of others: no `perf record -a`"
    return [*result, attempt("perf events", "machine-wide", _machine_wide, lost, _perf_remedy)]


def _machine_wide() -> None:
    cpu = min(os.sched_getaffinity(0))
    os.close(event(SOFTWARE, 0, cpu=cpu))


def _counter_remedy(number: int) -> str:
    if number in (*DENIED, errno.ENOSYS):
        return _perf_remedy(number)
    kind = machine.describe()["accelerator"]
    if kind == "none":
        return "boot a kernel with the driver of this CPU's performance counters, or switch them on in the firmware"
    if kind in ("tcg", "uml"):
        return "measure on a real CPU: an emulated one has no counters"
    return "give this virtual machine a performance monitor (QEMU with KVM: -cpu host,pmu=on), or measure on bare metal"


def kprobe() -> Capability:
    """Try a probe on a kernel function through the kprobe PMU (Linux 4.17), which ends with this process."""
    lost = "no value inside a kernel function can be read while it runs (perf probe, bpftrace's kprobe)"
    return attempt("tracers", "kprobe", _kprobe, lost, remedy_for("KPROBE_EVENTS"))


def _kprobe() -> None:
    try:
        kind = int((_PMUS / "kprobe/type").read_text())
    except FileNotFoundError:
        raise refused(errno.ENOENT, "this kernel does not have it") from None
    name = ctypes.create_string_buffer(b"ip_rcv")
    os.close(event(kind, 0, address=ctypes.addressof(name), period=1))


def tracepoint(number: int) -> None:
    """Open the tracepoint of this number. Raises OSError."""
    os.close(event(TRACEPOINT, number, period=1))


def bpf() -> list[Capability]:
    """Try BPF and what its programs need to know about the kernel."""
    no_program = "no BPF program runs: no bpftrace, no bcc, no XDP"
    no_structures = "BPF programs do not know the kernel's structures, and bpftrace has no kfunc"
    no_names = "profiles show addresses instead of kernel functions"
    return [
        attempt("BPF", "bpf", _map, no_program, remedy_for("BPF_SYSCALL")),
        attempt("BPF", "BTF", _btf, no_structures, remedy_for("DEBUG_INFO_BTF")),
        attempt("BPF", "kernel symbols", _symbols, no_names, _symbols_remedy),
    ]


def _map() -> None:
    array, create = 2, 0
    attributes = struct.pack("IIIII", array, 4, 8, 1, 0)
    os.close(call_bpf(create, ctypes.create_string_buffer(attributes, len(attributes))))


def _btf() -> None:
    with open("/sys/kernel/btf/vmlinux", "rb") as file:
        if file.read(2) not in (b"\x9f\xeb", b"\xeb\x9f"):
            raise refused(errno.ENOEXEC, "/sys/kernel/btf/vmlinux is not BTF")


def _symbols() -> None:
    with open("/proc/kallsyms") as file:
        # Some symbols are really at 0: those of the per-CPU area.
        if not any(int(file.readline().split()[0], 16) for _ in range(1000)):
            raise refused(errno.EPERM, "the kernel shows their addresses as 0")


def _symbols_remedy(number: int) -> str:
    if number == errno.EPERM:
        return SHOW_SYMBOLS
    return f"boot a kernel with CONFIG_KALLSYMS; Debian's {DEBIAN_KERNEL} has it"
