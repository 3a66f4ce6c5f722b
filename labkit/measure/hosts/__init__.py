"""Kernels that an experiment can be sent to: `here`, `vm:KERNEL`, `ssh:NAME`. A host gives a conversation with one
labkit process on it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.hosts import local, ssh
from labkit.system import process
from labkit.system.qemu import vm_spec

KINDS = "here (the running kernel), vm:KERNEL (a lab VM), ssh:NAME (another machine)"


def check(where: str) -> None:
    """Raises BadInput, with what there is, unless `where` names a host that can be asked. Starts nothing."""
    if where == "here":
        return
    if where.startswith("vm:"):
        vm_spec.check(where)
    elif where.startswith("ssh:"):
        ssh.check(where)
    else:
        raise BadInput(f"where={where}: there are {KINDS}")


def check_tracing(where: str) -> None:
    """Raises BadInput where a tracer would rewrite the kernel's code under packets that another emulated CPU carries: a
    lab VM panics or hangs by that now and then."""
    from labkit.system.qemu import kvm

    if where.startswith("vm:"):
        parameters = vm_spec.parse(where)
        if parameters.cpus > 1 and parameters.profile != "tracing" and not kvm.worth_trying():
            raise BadInput(
                f"where={where}: an emulated machine may panic when its kernel's functions are traced while several"
                " CPUs run at once: add profile=tracing, in which one thread plays all of them, or cpus=1"
            )


def resolved(where: str) -> str:
    """`where` with the release of the lab VM's kernel in the place of a name that may mean another one tomorrow; as it
    is otherwise. Raises as `check`, and BadInput when this machine has no such kernel. Starts nothing."""
    check(where)
    if not where.startswith("vm:"):
        return where
    from labkit.system.qemu import kernels

    name, *options = where.removeprefix("vm:").split(",")
    return ",".join([f"vm:{kernels.find(name).release}", *options])


def identified(where: str) -> str:
    """As `resolved`, with the digest of the lab VM's kernel image behind it: images of one release differ in it."""
    result = resolved(where)
    if not where.startswith("vm:"):
        return result
    from labkit.system.qemu import kernels

    return f"{result} {kernels.find(where.removeprefix('vm:').split(',')[0]).digest}"


@contextmanager
def conversation(
    where: str, request: dict[str, Any], say: Callable[[str], None], wire: Any = None
) -> Iterator[process.Conversing]:
    """A labkit process on `where` that was told the request; it has ended when the block ends. `say` hears, in
    a sentence each, what takes long before; `wire` is a lab VM's NIC (of `joined`). Raises as `check`, and what the
    host raises when it cannot be had.
    """
    check(where)
    if where == "here":
        chosen: AbstractContextManager[process.Conversing] = local.conversation(request)
    elif where.startswith("ssh:"):
        chosen = ssh.conversation(where, request, say)
    else:
        from labkit.measure.hosts import vm  # what only lab VMs need

        chosen = vm.conversation(where, request, say, wire)
    with chosen as talk:
        yield talk


@contextmanager
def joined(nodes: Sequence[str], rate_bps: float | None, mtu_bytes: int) -> Iterator[tuple[Any, Any]]:
    """A cable between two lab VMs: the NIC of each, for `conversation`; of other hosts (None, None)."""
    if not all(where.startswith("vm:") for where in nodes):
        yield None, None
        return
    from labkit.measure.hosts import vm_link

    with vm_link.wire(rate_bps, mtu_bytes) as ends:
        yield ends


def measuring_lock(
    nodes: Sequence[str], say: Callable[[str], None], command: str | None = None
) -> AbstractContextManager[None]:
    """One measurement at a time on the machine that these hosts are on; what is reached through ssh takes its own, or
    this one, if it is this machine and does it for the same `command`."""
    far = all(where.startswith("ssh:") for where in nodes)
    return nullcontext() if far else local.measuring_lock(say, command)


@contextmanager
def lending(folder: Path, say: Callable[[str], None]) -> Iterator[Callable[[str], bool]]:
    """A function that has the host of a `where` ready for the processes that are started next, all of which write into
    `folder`: one boot of a lab VM serves all points of a sweep that run on it. It tells whether one had to be booted
    anew, because the one before went or was left suspect."""
    from labkit.measure.hosts import vm_lease

    with vm_lease.lending(folder, say) as lend:
        yield lend


__all__ = [
    "check",
    "check_tracing",
    "conversation",
    "here",
    "identified",
    "joined",
    "lending",
    "measuring_lock",
    "resolved",
]


def lent_scratch() -> str | None:
    """The folder of the lab VM that a sweep lends to this process; the words of its QEMU name it. None without one."""
    from labkit.measure.hosts import vm

    result: str | None = json.loads(os.environ.get(vm.LENT) or "{}").get("scratch")
    return result
