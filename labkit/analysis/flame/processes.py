"""Distinguish the programs of a profile that belong to the load from those that only ran on the same machine."""

import re
from collections.abc import Sequence

# Load generators and the processes that run them. If one is present, the profile is of a load.
LOAD = re.compile(r"(iperf3|ping|trafgen|_?[tT]-?rex.*|qemu.*|CPU[ _]\d+/(KVM|TCG).*|vhost.*)")
READER = r"mirror_reader|tcpdump"  # who reads the copies of a mirror (measure.topologies.open_vswitch.copies)
# The threads of ovs-vswitchd, as perf names them: those that forward packets in user space, and those that handle
# upcalls and check flows
FORWARDING, HANDLING = r"ovs-vswitchd|pmd.*|urcu\d*", r"handler\d+|revalidator\d+"
# Programs in user space that relay all data between the ends (`exe`: what rootlesskit executes as itself)
RELAY = r"passt.*|pasta.*|slirp4netns|rootlesskit|exe|port_proxy"
NAMED = {"switch": rf"{FORWARDING}|{HANDLING}"}  # what a user can choose without a regular expression
# Other processes that belong to the load: the kernel's threads (`kernel`: all of them, as
# labkit.measure.observers.perf.fold_stacks names them), what forwards in user space, generators, idle CPUs, labkit
WORKS = re.compile(
    rf"(kernel|swapper.*|ksoftirqd.*|kworker.*|napi.*|irq/.*|rcu.*|migration.*|ovs.*|{RELAY}"
    rf"|sockperf|wrk|nginx|{FORWARDING}|{HANDLING}|{READER}"
    r"|virtiofsd|python.*|labkit.*|perf|ip|tc|nsenter|conmon|crun|runc)"
)


def foreign(names: Sequence[str]) -> list[bool]:
    """Return for each process of a profile whether it has nothing to do with the load.

    All are False if no known load generator is in the profile.
    """
    if not any(LOAD.fullmatch(name) for name in names):
        return [False] * len(names)
    return [not LOAD.fullmatch(name) and not WORKS.fullmatch(name) for name in names]
