"""counters: the kernel's standing counters, read before and after the traffic.

Per namespace: interfaces (/proc/net/dev), queueing disciplines, and MIBs (/proc/net/snmp, netstat, snmp6: RFC 4293,
4113, 4022 and Linux's own). Per CPU: network softirqs, backlog drops and exhausted budgets (/proc/net/softnet_stat),
and softirq time (/proc/stat). They are read before the first and after the last packet, so that no packet is in
flight. Endpoints in guests have the same counters of the guest's kernel, except queueing disciplines, which no file
there shows.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit.common import errors
from labkit.measure.endpoints import Endpoint, Kernel, Namespace, of_guests
from labkit.system import netlink
from labkit.system.machine.cpu_time import TICKS_PER_S
from labkit.system.machine.mibs import interfaces, mibs, mibs6, softnet_counts

OF_CPUS = ("/proc/net/softnet_stat", "/proc/softirqs", "/proc/stat")
SOFTIRQS = ("NET_RX", "NET_TX")
NOT_READ = "queueing disciplines in guests"

Counts = dict[str, Any]  # nested by place; the innermost values are numbers


def since_now(namespaces: Sequence[Namespace], ends: Sequence[Endpoint] = ()) -> Callable[[], Counts]:
    """Read the counters of these namespaces, of this machine's CPUs, and of the kernels of these endpoints in guests.

    Return a function that reads them again, and returns those that changed since, nested by place.
    """
    before = read(namespaces, ends)

    def since() -> Counts:
        result = changes(before, read(namespaces, ends))
        return result | {"not_read": NOT_READ} if ends else result

    return since


def read(namespaces: Sequence[Namespace], ends: Sequence[Endpoint] = ()) -> Counts:
    """Return all counters now.

    `namespaces` by name (interfaces, qdiscs, mibs; 0.5 ms each), including the kernels of endpoints in guests under
    the endpoints' names; `cpus` by number; `guests` by name (cpus).
    """
    result = {space.name: _read_namespace(space) for space in namespaces}
    result |= {end.name: _read_kernel(end.kernel) for end in ends}
    return {
        "namespaces": result,
        "cpus": cpus(*(Path(path).read_text() for path in OF_CPUS)),
        "guests": {
            name: {"cpus": cpus(*map(kernel.read, OF_CPUS))} for name, kernel in of_guests(ends).items()
        },
    }


def _read_namespace(space: Namespace) -> Counts:
    names = {link.index: link.name for link in netlink.links(space.netlink)}
    disciplines: dict[str, dict[str, Counts]] = {}
    for index, name, counts in netlink.qdiscs(space.netlink):
        disciplines.setdefault(names.get(index, str(index)), {})[name] = dict(counts)
    return _read_kernel(space) | {"qdiscs": disciplines}


def _read_kernel(kernel: Kernel) -> Counts:
    try:
        six = mibs6(kernel.read("/proc/net/snmp6"))
    except FileNotFoundError:  # a kernel without IPv6
        six = {}
    return {
        "interfaces": interfaces(kernel.read("/proc/net/dev")),
        "mibs": {**mibs(kernel.read("/proc/net/snmp")), **mibs(kernel.read("/proc/net/netstat")), **six},
    }


@errors.reading("/proc/softirqs or /proc/stat")
def cpus(softnet: str, softirqs: str, stat: str) -> Counts:
    """Parse each CPU's network work: /proc/net/softnet_stat, /proc/softirqs, /proc/stat (in steps of 10 ms)."""
    result: Counts = {cpu: dict(counts) for cpu, counts in softnet_counts(softnet).items()}
    head, *lines = softirqs.splitlines()
    for line in lines:
        name, *values = line.split()
        if name.rstrip(":") in SOFTIRQS:
            for cpu_name, value in zip(head.split(), values, strict=False):
                result.setdefault(cpu_name.removeprefix("CPU"), {})[name.rstrip(":")] = int(value)
    for line in stat.splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name != "cpu":
            of = result.setdefault(name.removeprefix("cpu"), {})
            of |= {"irq_s": int(values[5]) / TICKS_PER_S, "softirq_s": int(values[6]) / TICKS_PER_S}
    return result


def changes(before: Counts, after: Counts) -> Counts:
    """Return the counters that changed, place by place."""
    result: Counts = {}
    for name, now in after.items():
        then = before.get(name)
        if isinstance(now, dict):
            inner = changes(then or {}, now)
            if inner:
                result[name] = inner
        elif now != (then or 0):
            result[name] = round(now - (then or 0), 6)
    return result
