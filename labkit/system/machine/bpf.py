"""List loaded BPF programs and where they are attached, through bpf(2), because bpftool may be missing.

linux/bpf.h. BPF_TASK_FD_QUERY (Linux 4.18) reports the program of a perf event; link information needs Linux 5.8.
"""

import ctypes
import os
import platform
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.common.safe_files import closed
from labkit.system import libc

NUMBERS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}  # of bpf(2)
PROG_GET_NEXT_ID, PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD, TASK_FD_QUERY = 11, 13, 15, 20
LINK_GET_FD_BY_ID, LINK_GET_NEXT_ID = 30, 31
KINDS = (
    "unspec", "socket_filter", "kprobe", "sched_cls", "sched_act", "tracepoint", "xdp", "perf_event", "cgroup_skb",
    "cgroup_sock", "lwt_in", "lwt_out", "lwt_xmit", "sock_ops", "sk_skb", "cgroup_device", "sk_msg", "raw_tracepoint",
    "cgroup_sock_addr", "lwt_seg6local", "lirc_mode2", "sk_reuseport", "flow_dissector", "cgroup_sysctl",
    "raw_tracepoint_writable", "cgroup_sockopt", "tracing", "struct_ops", "ext", "lsm", "sk_lookup", "syscall",
    "netfilter",
)  # fmt: skip
LINKS = (
    "unspec", "raw tracepoint", "tracing", "cgroup", "iterator", "netns", "xdp", "perf event", "kprobe multi",
    "struct_ops", "netfilter", "tcx", "uprobe multi", "netkit", "sockmap",
)  # fmt: skip
EVENTS = ("raw tracepoint", "tracepoint", "kprobe", "kretprobe", "uprobe", "uretprobe")


@dataclass(frozen=True)
class Program:
    """A loaded BPF program: number, kind, name (at most 15 characters), tag, and where it is attached, in words."""

    number: int
    kind: str
    name: str
    tag: str
    places: tuple[str, ...] = ()


def programs() -> list[Program]:
    """Return all loaded programs; empty without CAP_SYS_ADMIN or if the kernel has no BPF."""
    result = [one for number in _numbers(PROG_GET_NEXT_ID) if (one := _program(number)) is not None]
    if not result:
        return []
    places: dict[int, list[str]] = {}
    for number, place in [*_links(), *_perf_events()]:
        places.setdefault(number, []).append(place)
    return [replace(one, places=tuple(sorted(places.get(one.number, ())))) for one in result]


def call(command: int, attributes: ctypes.Array[ctypes.c_char]) -> int:
    """Call bpf(2) and return its result. Raises OSError."""
    if (syscall := NUMBERS.get(platform.machine())) is None:
        raise OSError(f"labkit does not know the number of the system call bpf(2) on {platform.machine()}")
    return libc.call("syscall", syscall, command, attributes, len(attributes))


def _attributes(*words: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack(f"{len(words)}I", *words).ljust(64, b"\0"), 64)


def _numbers(command: int) -> Iterator[int]:
    number = 0
    with suppress(OSError):
        while True:
            attributes = _attributes(number)
            call(command, attributes)
            number = struct.unpack_from("I", attributes, 4)[0]
            yield number


def _info(fd: int, more: bytes = b"") -> bytes:
    info = ctypes.create_string_buffer(more.ljust(256, b"\0"), 256)
    packed = struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)).ljust(64, b"\0")
    call(OBJ_GET_INFO_BY_FD, ctypes.create_string_buffer(packed, 64))
    return info.raw


def _program(number: int) -> Program | None:
    """Return the program of this number, None if it has just been unloaded."""
    try:
        with closed(call(PROG_GET_FD_BY_ID, _attributes(number))) as fd:
            info = _info(fd)
    except OSError:
        return None
    kind = struct.unpack_from("I", info)[0]
    name = info[64:80].partition(b"\0")[0].decode(errors="replace")
    return Program(number, KINDS[kind] if kind < len(KINDS) else f"kind {kind}", name, info[8:16].hex())


def _links() -> Iterator[tuple[int, str]]:
    """Yield the number of a program and what its link attaches it to."""
    for number in _numbers(LINK_GET_NEXT_ID):
        with suppress(OSError):
            with closed(call(LINK_GET_FD_BY_ID, _attributes(number))) as fd:
                text = ctypes.create_string_buffer(128)
                # The kernel writes the name of a raw tracepoint to this pointer; other kinds ignore it.
                info = _info(fd, struct.pack("=IIIIQI", 0, 0, 0, 0, ctypes.addressof(text), len(text)))
            kind, _own, program = struct.unpack_from("3I", info)
            words = LINKS[kind] if kind < len(LINKS) else f"link of kind {kind}"
            if kind == 1:
                words += f" {text.value.decode(errors='replace')}"
            yield program, words


def _perf_events() -> Iterator[tuple[int, str]]:
    """Yield the number of a program and its perf event with the process that holds it, for all visible processes."""
    for pid, fd in _perf_descriptors():
        with suppress(OSError):
            program, event = _perf_event(pid, fd)
            if program:
                yield program, f"{event} (of {_comm(pid)})"


def perf_event_holders() -> Counter[str]:
    """Return the names of the processes that hold perf events without a BPF program, for example `perf record`, with
    the number of these events."""
    result: Counter[str] = Counter()
    for pid, fd in _perf_descriptors():
        try:
            program, _event = _perf_event(pid, fd)
        except OSError:  # the kernel answers for tracepoints and probes only, not for clocks and counters
            program = 0
        if not program:
            with suppress(OSError):
                result[_comm(pid)] += 1
    return result


def _perf_descriptors() -> Iterator[tuple[int, int]]:
    """Yield process and descriptor of each perf event that a visible process holds."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for descriptor in (folder / "fd").iterdir():
                with suppress(OSError):
                    if "perf_event" in os.readlink(descriptor):
                        yield int(folder.name), int(descriptor.name)


def _perf_event(pid: int, fd: int) -> tuple[int, str]:
    """Return the number of the program of a perf event, 0 without one, and the event. Raises OSError."""
    name = ctypes.create_string_buffer(256)
    head = struct.pack("=IIIIQIIQQ", pid, fd, 0, len(name), ctypes.addressof(name), 0, 0, 0, 0)
    attributes = ctypes.create_string_buffer(head.ljust(64, b"\0"), 64)
    call(TASK_FD_QUERY, attributes)
    program, kind = struct.unpack_from("=II", attributes.raw, 24)
    event = EVENTS[kind] if kind < len(EVENTS) else "event"
    return program, f"{event} {name.value.decode(errors='replace')}"


def _comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
