"""Lines of an init script, which busybox runs as the first program of a machine."""

from __future__ import annotations

import shlex

FIRST_WORDS = "labkit: user space begins"
OPTIONAL = (
    "tracefs:kernel/tracing debugfs:kernel/debug cgroup2:fs/cgroup bpf:fs/bpf securityfs:kernel/security"
)


def first_lines() -> list[str]:
    """Return the lines that say that user space has begun, and let the first error end the script."""
    return ["#!/bin/busybox sh", f"echo {shlex.quote(FIRST_WORDS)} >/dev/console", "set -e"]


def mounts(root: str = "") -> list[str]:
    """Return the lines that mount the kernel's own file systems below `root`.

    What this kernel lacks is missing without an error: a lab reports a missing file system when it needs it.
    """
    return [
        f"mount -t proc proc {root}/proc",
        f"mount -t sysfs sysfs {root}/sys",
        f"mount -t devtmpfs dev {root}/dev",
        f"mkdir -p {root}/dev/pts {root}/dev/shm",
        f"mount -t devpts devpts {root}/dev/pts",
        f"mount -t tmpfs shm {root}/dev/shm",
        f"mount -t tmpfs run {root}/run",
        f"for each in {OPTIONAL}; do",
        f"  mount -t ${{each%%:*}} none {root}/sys/${{each#*:}} 2>/dev/null || true",
        "done",
    ]
