"""What this kernel and this machine can do, each tried by doing it; nothing stays behind.

To be called in a process that is PID 1 of its own network, mount and PID namespaces. Links are made in one more network
namespace, which is thrown away; tracers are armed in a trace instance, which is removed; the rest ends with a file
descriptor.
"""

from __future__ import annotations

from collections.abc import Callable

from labkit.measure.capabilities import lab_vms, links, packet_capture, perf, platforms, tools, tracing
from labkit.measure.capabilities.base import Capability
from labkit.system import machine

Group = tuple[str, Callable[[], list[Capability]]]


def _groups(alone: bool, versions: Callable[[], dict[str, str | None]]) -> tuple[Group, ...]:
    """In the order in which they are tried. `versions` waits for the programs of tools.TOOLS: they come last."""
    return (
        ("privilege", platforms.privilege),
        ("link kinds", lambda: links.links(alone=alone)),
        ("packets", packet_capture.capturing),
        ("tracers", lambda: tracing.tracers(alone=alone)),
        ("perf events", perf.perf_events),
        ("BPF", perf.bpf),
        (
            "virtual machines",
            lambda: [lab_vms.lab_vm(), platforms.kvm(), platforms.hugepages(), *platforms.vsock()],
        ),
        ("Open vSwitch", lambda: platforms.open_vswitch(versions()["ovs-vswitchd"])),
        ("tools", lambda: tools.tools(versions())),
    )


def capabilities(*, alone: bool = False) -> list[Capability]:
    """All that is asked for, group by group. Never raises: what cannot even be tried says so. 0.3 s.

    `alone`: this kernel is a lab VM's that is thrown away, so what is loaded may stay, and nobody else traces.
    """
    result: list[Capability] = []
    with machine.asking_versions(tools.TOOLS) as versions:
        for group, probes in _groups(alone, versions):
            try:
                result += probes()
            except Exception as error:
                words = f"labkit's probes of this group failed ({type(error).__name__}: {error})"
                result.append(Capability(group, "all", None, words, None, "tell labkit's authors"))
    return result


__all__ = ["Capability", "capabilities"]
