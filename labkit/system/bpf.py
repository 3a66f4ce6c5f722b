"""Load BPF programs and attach them to interfaces, through bpf(2): no compiler, no libbpf, no file.

Sources: linux/bpf.h, Documentation/bpf/standardization/instruction-set.rst.
"""

import ctypes
import errno
import os
import re
import resource
import struct
from contextlib import suppress

from labkit.common.errors import Unsupported
from labkit.common.privileges import CAP_BPF, CAP_NET_ADMIN, CAP_SYS_ADMIN, is_capable
from labkit.system.machine.bpf import call

PROG_LOAD, PROG_QUERY, LINK_CREATE = 5, 16, 28
SCHED_CLS, XDP = 3, 6  # enum bpf_prog_type
XDP_HAS_FRAGS = 1 << 5  # BPF_F_XDP_HAS_FRAGS (Linux 5.18): frames larger than a page
BPF_XDP, BPF_NETKIT_PRIMARY, BPF_NETKIT_PEER = 37, 54, 55  # enum bpf_attach_type
# Where a program can be attached: its type, and XDP_FLAGS_SKB_MODE or _DRV_MODE of linux/if_link.h. Those of a netkit
# run on what its primary end or its peer transmits (drivers/net/netkit.c).
PLACES = {
    "generic XDP": (BPF_XDP, 1 << 1),
    "native XDP": (BPF_XDP, 1 << 2),
    "netkit (primary)": (BPF_NETKIT_PRIMARY, 0),
    "netkit (peer)": (BPF_NETKIT_PEER, 0),
}
# Hooks at which the kernel tells how many programs an interface has.
LISTED = {46: "tcx", 47: "tcx (egress)", BPF_NETKIT_PRIMARY: "netkit", BPF_NETKIT_PEER: "netkit (peer)"}
LOG_BYTES = 64 * 1024
NEEDED = {"CAP_BPF": CAP_BPF, "CAP_NET_ADMIN": CAP_NET_ADMIN}  # or CAP_SYS_ADMIN


def instruction(code: int, register: int = 0, value: int = 0, source: int = 0) -> bytes:
    """Return one instruction: its code, its destination and source registers, and its immediate value."""
    return struct.pack("<BBhi", code, source << 4 | register, 0, value)


MOVE_VALUE, CALL, EXIT = 0xB7, 0x85, 0x95  # register = value; r0 = helper(r1 … r5); return r0


def helper_call(helper: int, *arguments: int) -> bytes:
    """Return a program that calls a helper function with these numbers and returns what the helper returns."""
    moves = (instruction(MOVE_VALUE, number, value) for number, value in enumerate(arguments, 1))
    return b"".join([*moves, instruction(CALL, value=helper), instruction(EXIT)])


def returning(value: int) -> bytes:
    """Return a program that does nothing and returns a number."""
    return instruction(MOVE_VALUE, 0, value) + instruction(EXIT)


def load(name: str, hook: str, code: bytes) -> int:
    """Load a program for the hook `xdp`, or for `tc` and `netkit`, and return its file descriptor.

    Raises Unsupported with the verifier's last line, or with what the kernel does not allow.
    """
    kind, flags = (XDP, XDP_HAS_FRAGS) if hook == "xdp" else (SCHED_CLS, 0)
    text, license_ = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(LOG_BYTES)
    attributes = struct.pack(
        "=IIQQIIQII16sII", kind, len(code) // 8, ctypes.addressof(text), ctypes.addressof(license_), 1, LOG_BYTES,
        ctypes.addressof(log), 0, flags, name.encode()[:15], 0, BPF_XDP if hook == "xdp" else 0,
    )  # fmt: skip
    try:
        return call(PROG_LOAD, ctypes.create_string_buffer(attributes, 128))
    except OSError as error:
        lines = log.value.decode(errors="replace").strip().splitlines()
        said = [line for line in lines if not line.startswith("processed ")]
        raise Unsupported(
            f"the kernel does not load the BPF program {name}: {_reason(error, said)}"
        ) from None


def _reason(error: OSError, said: list[str]) -> str:
    if said:
        return f"its verifier says {said[-1]!r}"
    if error.errno == errno.EPERM:
        return f"not permitted: {_forbidden()}"
    return str(error.strerror or error)


def _forbidden() -> str:
    """Return what this process lacks to load a program, or what else forbids it."""
    if missing := [
        name for name, number in NEEDED.items() if not (is_capable(number) or is_capable(CAP_SYS_ADMIN))
    ]:
        return f"it needs {' and '.join(missing)} in the machine's own user namespace"
    limit_bytes = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    release = os.uname().release
    is_counted = [int(number) for number in re.findall(r"\d+", release)[:2]] < [5, 11]
    if is_counted and limit_bytes != resource.RLIM_INFINITY:
        return f"Linux {release} counts programs as locked memory, and ulimit -l allows {limit_bytes} bytes of it"
    # Lockdown is not it: Linux 6.1 in confidentiality loads programs of tc and XDP. It forbids helpers that read the
    # kernel's memory (commit 9d1f8be5cf42).
    return "a filter of system calls (seccomp) or a security module forbids bpf(2)"


def hooks(index: int) -> list[str]:
    """Return where programs are attached to the interface `index` of the calling thread's network namespace, as far as
    bpf(2) tells: not those at XDP and of cls_bpf."""
    result = []
    for kind, hook in LISTED.items():
        attributes = ctypes.create_string_buffer(struct.pack("=II", index, kind), 64)
        with suppress(OSError):  # a kernel without the hook, or an interface of another kind
            call(PROG_QUERY, attributes)
            result += [hook] if struct.unpack_from("=I", attributes, 24)[0] else []
    return result


def attach(program: int, index: int, place: str) -> int:
    """Attach a program at the interface `index` of the calling thread's network namespace, which is a netkit's primary.

    `place`: a key of PLACES. Returns the file descriptor of the link. The kernel detaches the program when the
    descriptor is closed or the interface is gone. Raises Unsupported if the kernel refuses.
    """
    try:
        attributes = struct.pack("=IIII", program, index, *PLACES[place])
        return call(LINK_CREATE, ctypes.create_string_buffer(attributes, 64))
    except OSError as error:
        is_unknown = error.errno in (errno.EINVAL, errno.EOPNOTSUPP)  # an older kernel does not know the hook
        hint = ": Linux 5.9 or later can at XDP of a veth, Linux 6.7 at netkit" if is_unknown else ""
        raise Unsupported(
            f"the kernel does not attach a BPF program at {place} of an interface ({_reason(error, [])}){hint}"
        ) from None
