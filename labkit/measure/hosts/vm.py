"""A lab VM: another kernel that sees this machine's files, read-only except for one folder.

It is booted for one conversation, or shared by the notebooks of a sweep. It ends with the process that booted it.
"""

from __future__ import annotations

import compileall
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import labkit
from labkit.common import extensions, safe_files
from labkit.common.errors import Failed
from labkit.measure.hosts import local, vm_channel, vm_holder, vm_initramfs
from labkit.measure.hosts.vm_channel import LabVm, VmConversation
from labkit.system import machine, process
from labkit.system.qemu import boot, command, kernels, vm_spec
from labkit.system.qemu.vm_spec import Shape

Say = Callable[[str], None]
BOOT_S = 120.0  # a quiet machine needs 5 under emulation
KVM_S = 30.0
NOT_MEASURING = ("doctor", "draw", "live")  # requests that do not measure
SHARED_VM = "LABKIT_LAB_VM"  # environment variable: the lab VM that a sweep shares with its notebooks


@dataclass(frozen=True)
class VmNic:
    """A lab VM's NIC: QEMU arguments, and the file descriptors that they name.

    `outside`: QEMU runs in this machine's network namespace, where forwarded ports are reachable; else in its own.
    """

    arguments: tuple[str, ...] = ()
    fds: tuple[int, ...] = ()
    outside: bool = False


class NotStarted(Failed):
    """QEMU or virtiofsd did not start; another attempt would fail too."""


@contextmanager
def conversation(
    where: str, request: dict[str, Any], say: Say, nic: VmNic | None = None
) -> Iterator[process.Conversing]:
    """Start a labkit process in the lab VM `where`: in a shared one, else in one booted for this conversation.

    Raises BadInput for a lab VM that cannot be booted, Unsupported if QEMU or a similar program is missing, Failed
    with the console's last words if it does not boot. Boots are tried twice, because emulated boots sometimes fail.
    """
    folder = request.get("folder")
    with ExitStack() as stack:
        guest = _find_lease(where, folder) if nic is None else None
        if guest is None:
            # A boot would disturb another measurement. A measuring caller already holds the lock.
            not_measuring = request.get("do") in NOT_MEASURING
            with local.measuring_lock(say) if not_measuring else nullcontext():
                guest, opened = booted(stack, where, Path(folder) if folder else None, say, nic)
        else:
            opened = VmConversation(guest, time.monotonic() + vm_channel.SILENCE_S)
        stack.callback(opened.end)
        opened.send(msgspec.json.encode(request).decode())
        yield opened


@contextmanager
def leasing(folder: Path, say: Say) -> Iterator[Callable[[str], bool]]:
    """Yield a function that prepares the lab VM of a `where` for the processes that are started next.

    They may all write into `folder`. One boot serves all requests for the same `where`. It is booted again if an
    experiment left it suspect, and not shared if `where` says `fresh`. The function returns whether it booted a
    replacement.
    """
    with ExitStack() as stack:
        held: list[LabVm] = []

        def lease(where: str) -> bool:
            replaced = bool(held) and held[0].where == where and held[0].suspect()
            if held and (held[0].where != where or held[0].suspect()):
                held.clear()
                stack.close()
            os.environ.pop(SHARED_VM, None)
            if not where.startswith("vm:") or vm_spec.parse(where).fresh:
                return False
            if not held:
                with local.measuring_lock(say):  # a boot would disturb another measurement
                    guest, opened = booted(stack, where, folder, say, None)
                opened.end()
                held.append(guest)
            shared = {"where": where, "scratch": str(held[0].scratch), "folder": str(held[0].folder)}
            os.environ[SHARED_VM] = json.dumps(shared)
            return replaced

        try:
            yield lease
        finally:
            os.environ.pop(SHARED_VM, None)


def booted(
    stack: ExitStack, where: str, folder: Path | None, say: Say, nic: VmNic | None
) -> tuple[LabVm, VmConversation]:
    """Boot a lab VM and wait for its hello; both end with the stack."""
    attempt = functools.partial(_attempt, stack, where, folder, say, nic)
    return boot.boot_twice(attempt, NotStarted, say)


def _attempt(
    stack: ExitStack, where: str, folder: Path | None, say: Say, nic: VmNic | None, accelerated: bool
) -> tuple[LabVm, VmConversation]:
    parameters = vm_spec.parse(where)
    kernel = kernels.find(parameters.kernel)
    say(f"booting Linux {kernel.release} in a lab VM{'' if accelerated else ' (emulated)'}")
    with ExitStack() as pending:
        guest = pending.enter_context(started(where, parameters, kernel, folder, nic, accelerated))
        if accelerated:
            guest.check_kvm()
        opened = VmConversation(guest, time.monotonic() + (KVM_S if accelerated else BOOT_S), say)
        stack.push(pending.pop_all())
    return guest, opened


@contextmanager
def started(
    where: str,
    shape: Shape,
    kernel: kernels.Kernel,
    folder: Path | None,
    nic: VmNic | None,
    accelerated: bool,
    program: Sequence[str] = (sys.executable, "-P", "-m", "labkit.measure.agent.vm_init"),
) -> Iterator[LabVm]:
    """Start QEMU and virtiofsd through a holder process that dies with this one; `program` becomes PID 1 of the
    guest."""
    nic = nic or VmNic()
    with boot.boot_folder("labkit-vm-", None, kernel, accelerated) as boots:
        scratch = boots.path
        if folder is not None:
            with _named_boot_errors(folder):
                safe_files.make_folder(folder)
            folder = folder.resolve()  # the guest cannot follow links in its path
        shares = [command.Share("root", scratch / "root.bound", True)]
        shares += [command.Share("folder", scratch / "folder.bound", False)] if folder else []
        for share in shares:
            share.source.mkdir()
        programs = [command.virtiofsd(share, scratch / share.tag) for share in shares]
        content = vm_initramfs.initramfs(kernel, folder, _environment(shape), program)
        programs.append(boots.command(scratch, shape, content, shares=shares, more=nic.arguments))
        report = {
            "programs": programs,
            "sockets": [str(scratch / share.tag) for share in shares],
            "root": str(scratch / "root.bound"),
            "folder": [str(folder), str(scratch / "folder.bound")] if folder else None,
            "group": boots.confinement.group,
            "fds": nic.fds,
        }
        prefix = [word for word in local.prefix() if not (nic.outside and word == "--net")]
        words = [*prefix, *process.python("-m", vm_holder.__name__)]
        holder = process.Conversation(words, json.dumps(report), nic.fds)
        try:
            _wait_for_start(holder)
            yield LabVm(where, scratch, folder, holder)
        finally:
            holder.end()


def _wait_for_start(holder: process.Conversation) -> None:
    """Wait until QEMU runs. Raises NotStarted with the message of the program that ended."""
    event = msgspec.json.decode(next(holder.lines(), b'{"event":"ended","text":""}'))
    if event["event"] != "started":
        raise NotStarted(f"the lab VM did not start: {event['text'] or holder.end_reason()}")


@contextmanager
def _named_boot_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"cannot create {folder}: {error.strerror}") from None


def _environment(shape: Shape) -> dict[str, str]:
    """Return the environment of PID 1 in the guest, in which it finds the same programs and packages as here."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TZ")
    result = {name: os.environ[name] for name in kept if name in os.environ}
    place = Path(labkit.__file__).parents[1]
    result["PYTHONPATH"] = os.pathsep.join(filter(None, [str(place), result.get("PYTHONPATH", "")]))
    # An emulated CPU would compile labkit for 10 s at each boot.
    for package in ("labkit", *extensions.own_packages()):
        compileall.compile_dir(place / package, quiet=2)
    result["LABKIT_MODULES"] = " ".join(shape.modules)
    result["LABKIT_GIT_REVISION"] = machine.git_revision() or ""
    return result


def _find_lease(where: str, folder: str | None) -> LabVm | None:
    """Return the lab VM that is shared with this process, if it is the requested one."""
    report = json.loads(os.environ.get(SHARED_VM) or "{}")
    if report.get("where") != where or not Path(report["scratch"], "channel").exists():
        return None
    guest = LabVm(where, Path(report["scratch"]), Path(report["folder"]))
    return guest if guest.reaches(folder) else None
