"""What forbids a process to load a BPF program is named, and only that."""

import errno
import os
import resource
from types import SimpleNamespace

import pytest

from labkit.common.errors import Unsupported
from labkit.system import bpf

UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("capability", "release", "limit_bytes", "says"),
    [
        (12, "5.10.0-9-amd64", 65536, "it needs CAP_BPF in the machine's own user namespace"),
        (39, "6.1.0", 65536, "it needs CAP_NET_ADMIN in the machine's own user namespace"),
        (21, "5.10.0-9-amd64", 65536, "Linux 5.10.0-9-amd64 counts programs as locked memory, and ulimit"),
        (21, "5.10.0-9-amd64", UNLIMITED, "a filter of system calls (seccomp) or a security"),
        (21, "6.1.0", 65536, "a filter of system calls (seccomp) or a security"),
    ],
)
def test_what_forbids_a_program_is_named(
    capability: int, release: str, limit_bytes: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(bpf, "call", refuse)
    monkeypatch.setattr(bpf, "is_capable", lambda number: number == capability)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit_bytes, limit_bytes))
    pattern = "not permitted: " + says.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(Unsupported, match=pattern):
        bpf.load("pass", "tc", bpf.returning(0))
