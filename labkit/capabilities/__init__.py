"""What this kernel and this machine can do, each tried by doing it; nothing stays behind.

To be called in a process that is PID 1 of its own network, mount and PID namespaces. Links are made in one more network
namespace, which is thrown away; tracers are armed in a trace instance, which is removed; the rest ends with a file
descriptor.
"""

from __future__ import annotations

from collections.abc import Callable

from labkit.capabilities import capturing, lab_vms, links, perf, platforms, tools, tracing
from labkit.capabilities.base import Capability

Group = tuple[str, Callable[[], list[Capability]]]


def _groups(alone: bool) -> tuple[Group, ...]:
    return (
        ("privilege", platforms.privilege),
        ("link kinds", lambda: links.links(alone=alone)),
        ("packets", capturing.capturing),
        ("Open vSwitch", platforms.open_vswitch),
        ("tracers", lambda: tracing.tracers(alone=alone)),
        ("perf events", perf.perf_events),
        ("BPF", perf.bpf),
        (
            "virtual machines",
            lambda: [lab_vms.lab_vm(), platforms.kvm(), platforms.hugepages(), *platforms.vsock()],
        ),
        ("tools", tools.tools),
    )


def capabilities(*, alone: bool = False) -> list[Capability]:
    """All that is asked for, group by group. Never raises: what cannot even be tried says so. 0.3 s.

    `alone`: this kernel is a lab VM's that is thrown away, so what is loaded may stay, and nobody else traces.
    """
    found: list[Capability] = []
    for group, probes in _groups(alone):
        try:
            found += probes()
        except Exception as error:
            words = f"labkit's probes of this group failed ({type(error).__name__}: {error})"
            found.append(Capability(group, "all", None, words, None, "tell labkit's authors"))
    return found


__all__ = ["Capability", "capabilities"]
