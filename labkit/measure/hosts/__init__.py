"""Hosts: where an experiment runs, `here`, `vm:KERNEL` or `ssh:NAME`. labkit talks to one labkit process on a host."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from labkit.common.errors import BadInput
from labkit.system import process

KINDS = "here (the running kernel), vm:KERNEL (a lab VM), ssh:NAME (another machine)"


def check(where: str) -> None:
    """Raise BadInput, with the allowed forms, unless `where` names a host. Starts nothing."""
    if where == "here":
        return
    if where.startswith("vm:"):
        from labkit.system.qemu import vm_spec  # imported here because only lab VMs need it

        vm_spec.parse(where)
    elif where.startswith("ssh:"):
        from labkit.measure.hosts import ssh  # imported here because only machines behind ssh need it

        ssh.check(where)
    else:
        raise BadInput(f"where={where} is not a host: choose {KINDS}")


def check_tracing(where: str) -> None:
    """Raise BadInput for a lab VM that cannot be traced safely.

    A tracer rewrites the kernel's code while another emulated CPU executes it, so the lab VM may panic or hang.
    """
    if where.startswith("vm:"):
        from labkit.system.qemu import boot, vm_spec  # what only lab VMs need

        parameters = vm_spec.parse(where)
        if parameters.cpus > 1 and parameters.profile != "tracing" and not boot.kvm_worth_trying():
            raise BadInput(
                f"where={where}: an emulated machine may panic if kernel functions are traced while several"
                " CPUs run at once: add profile=tracing, which runs all of them in one thread, or cpus=1"
            )


def resolved(where: str) -> str:
    """Replace the kernel name of a lab VM in `where` by the kernel's release; other hosts stay as they are.

    A name such as `debian` may mean another kernel tomorrow. Raises the errors of `check`, and BadInput if this machine
    has no such kernel. Starts nothing.
    """
    check(where)
    if not where.startswith("vm:"):
        return where
    from labkit.system.qemu import kernels

    name, *options = where.removeprefix("vm:").split(",")
    return ",".join([f"vm:{kernels.find(name).release}", *options])


def identified(where: str) -> str:
    """Return `resolved` and the digest of the lab VM's kernel image, because images of one release may differ."""
    result = resolved(where)
    if not where.startswith("vm:"):
        return result
    from labkit.system.qemu import kernels

    return f"{result} {kernels.find(where.removeprefix('vm:').split(',')[0]).digest}"


def conversation(
    where: str, request: dict[str, Any], say: Callable[[str], None], nic: Any = None
) -> AbstractContextManager[process.Conversing]:
    """Start a labkit process on `where` and send it the request; it ends with the block.

    `say` gets one sentence for each slow step of the start. `nic`: this node's end of the cable (from `join_nodes`).
    Raises the errors of `check`, and those of a host that cannot be started or reached.
    """
    check(where)
    if where == "here":
        from labkit.measure.hosts import local  # the process that measures does not need it

        return local.conversation(request, nic)
    if where.startswith("ssh:"):
        from labkit.measure.hosts import ssh

        return ssh.conversation(where, request, say)
    from labkit.measure.hosts import vm  # imported here because only lab VMs need it

    return vm.conversation(where, request, say, nic)


def join_nodes(
    nodes: Sequence[str], parent: str | None, rate_bps: float | None, mtu_bytes: int
) -> AbstractContextManager[tuple[Any, Any]]:
    """Lay a cable between two lab VMs or two nodes of this kernel; yield each node's end for `conversation`.

    Yields (None, None) for hosts that a cable joins already: those of `parent`, and other machines.
    """
    if parent is not None or any(where.startswith("ssh:") for where in nodes):
        return nullcontext((None, None))
    if all(where == "here" for where in nodes):
        from labkit.measure.hosts import cable

        return cable.cable(rate_bps, mtu_bytes)
    from labkit.measure.hosts import vm_link

    return vm_link.link(rate_bps, mtu_bytes)


def measuring_lock(
    nodes: Sequence[str],
    say: Callable[[str], None],
    command: str | None = None,
    still_waits: Callable[[], None] | None = None,
) -> AbstractContextManager[None]:
    """Take the lock that allows one measurement at a time on this machine.

    A host reached through ssh takes the lock of its own machine. If that is this machine, a host of the same `command`
    shares the lock. `still_waits` is called about twice a second while another measurement has the lock.
    """
    if all(where.startswith("ssh:") for where in nodes):
        return nullcontext()
    from labkit.measure.hosts import local

    return local.measuring_lock(say, command, still_waits=still_waits)


def leasing(folder: Path, say: Callable[[str], None]) -> AbstractContextManager[Callable[[str], bool]]:
    """Yield a function that prepares the host of a `where` for the processes that are started next.

    One boot of a lab VM serves all points of a sweep that run on it; their processes write into `folder`. The function
    returns whether it booted a lab VM again because the previous one ended or is suspect.
    """
    from labkit.measure.hosts import vm

    return vm.leasing(folder, say)


def shared_vm_scratch() -> str | None:
    """Return the folder of the lab VM that a sweep shares with this process (its QEMU command line has it), or None."""
    from labkit.measure.hosts import local

    result: str | None = json.loads(os.environ.get(local.SHARED_VM) or "{}").get("scratch")
    return result
