"""Find out what this kernel and machine can do by trying each capability; nothing remains afterwards.

The caller must be PID 1 of its own network, mount and PID namespaces. Links are created in another network namespace
that is discarded. Tracers are armed in a trace instance that is removed. Everything else ends with a file descriptor.
"""

from collections.abc import Callable

import msgspec

from labkit.measure.capabilities import links, perf, platforms, tools, tracing
from labkit.measure.capabilities.base import LOAD, Capability
from labkit.system import machine

Group = tuple[str, Callable[[], list[Capability]]]


def _groups(alone: bool, versions: Callable[[], dict[str, str | None]]) -> tuple[Group, ...]:
    """Return the groups in the order in which they are tried; `versions` waits for the programs of tools.TOOLS, so
    tools are last."""
    return (
        ("privilege", platforms.privilege),
        ("link kinds", lambda: links.links(alone=alone)),
        ("packets", links.capturing),
        ("tracers", lambda: tracing.tracers(alone=alone)),
        ("perf events", perf.perf_events),
        ("BPF", perf.bpf),
        ("virtual machines", lambda: [platforms.lab_vm(), platforms.kvm(), platforms.hugepages()]),
        ("Open vSwitch", lambda: platforms.open_vswitch(versions()["ovs-vswitchd"])),
        ("tools", lambda: tools.tools(versions())),
    )


def _topologies() -> tuple[Group, ...]:
    from labkit.measure.capabilities import datapaths  # what only this question needs

    return ("privilege", platforms.privilege), ("datapaths", datapaths.datapaths)


def capabilities(*, alone: bool = False, topologies: bool = False) -> list[Capability]:
    """Try all capabilities, group by group. Never raises: a group that cannot be tried says so. Takes 0.3 s.

    `alone`: the kernel belongs to a lab VM that is discarded, so modules may stay loaded and nobody else traces.
    `topologies`: build each topology instead, which takes ten seconds.
    """
    result: list[Capability] = []
    with machine.asking_versions(() if topologies else tools.TOOLS) as versions:
        for group, probes in _topologies() if topologies else _groups(alone, versions):
            try:
                result += probes()
            except Exception as error:
                text = f"labkit's probes of this group failed ({type(error).__name__}: {error})"
                result.append(Capability(group, "all", None, text, None, "report this to labkit's authors"))
    return [_without_modprobe(one) for one in result] if alone else result


def _without_modprobe(one: Capability) -> Capability:
    """Return the capability without the advice to load a module: nobody can log in to a lab VM before it is used."""
    if one.remedy is None or not one.remedy.startswith(LOAD):
        return one
    module = one.remedy.removeprefix(LOAD).partition(",")[0]
    return msgspec.structs.replace(one, remedy=f"labkit does not load the module {module} in its lab VMs")


__all__ = ["Capability", "capabilities"]
