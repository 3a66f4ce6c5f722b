"""What this kernel and this machine can do, each tried by doing it; nothing stays behind.

To be called in a process that is PID 1 of its own network, mount and PID namespaces. Links are made in one more network
namespace, which is thrown away; tracers are armed in a trace instance, which is removed; the rest ends with a file
descriptor.
"""

from __future__ import annotations

from collections.abc import Callable

from labkit.capabilities import links, perf, platforms, tools, tracing
from labkit.capabilities.base import Capability

_ALL: tuple[tuple[str, Callable[[], list[Capability]]], ...] = (
    ("privilege", platforms.privilege),
    ("link kinds", links.links),
    ("Open vSwitch", platforms.open_vswitch),
    ("tracers", tracing.tracers),
    ("perf events", perf.perf_events),
    ("BPF", perf.bpf),
    ("virtual machines", lambda: [platforms.kvm(), platforms.hugepages(), *platforms.vsock()]),
    ("tools", tools.tools),
)


def capabilities() -> list[Capability]:
    """All that is asked for, group by group. Never raises: what cannot even be tried says so. 0.3 s."""
    found: list[Capability] = []
    for group, probes in _ALL:
        try:
            found += probes()
        except Exception as error:
            words = f"labkit's probes of this group failed ({type(error).__name__}: {error})"
            found.append(Capability(group, "all", None, words, None, "tell labkit's authors"))
    return found


__all__ = ["Capability", "capabilities"]
