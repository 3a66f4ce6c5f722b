"""Which programs of a profile belong to the load, and which only ran on the same machine meanwhile."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What makes the load, at whose presence a profile is known to be of one
LOAD = re.compile(r"(iperf3|ping|trafgen|_?t-rex.*|qemu.*|CPU \d+/(KVM|TCG).*|vhost.*)")
# What else works for it: the kernel's threads that carry packets, switches in user space, idle CPUs, labkit itself
WORKS = re.compile(
    r"(swapper.*|ksoftirqd.*|kworker.*|napi.*|irq/.*|rcu.*|migration.*|ovs.*|handler\d+|revalidator\d+|pmd.*"
    r"|urcu\d*|virtiofsd|python.*|labkit.*|perf|ip|tc|nsenter|conmon|crun|runc)"
)


def foreign(names: Sequence[str]) -> list[bool]:
    """Of each process of a profile, whether it has nothing to do with the load. None is where nothing in the profile
    is known to make load."""
    if not any(LOAD.fullmatch(name) for name in names):
        return [False] * len(names)
    return [not LOAD.fullmatch(name) and not WORKS.fullmatch(name) for name in names]
