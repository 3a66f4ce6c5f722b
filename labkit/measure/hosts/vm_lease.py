"""One lab VM for many processes: it is lent, by way of the environment, to those that its owner starts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labkit.measure.hosts import local, vm
from labkit.measure.hosts.vm_channel import LabVm
from labkit.system.qemu import vm_spec

Lend = Callable[[str], bool]


@contextmanager
def lending(folder: Path, say: Callable[[str], None]) -> Iterator[Lend]:
    """A function that has the lab VM of a `where` ready for the processes that are started next; all of them may write
    into `folder`. One boot serves all that ask for the same; it is booted anew when an experiment left it suspect, and
    not lent when it is asked for `fresh`. It tells whether one was booted in the place of another."""
    with ExitStack() as stack:
        held: list[LabVm] = []

        def lease(where: str) -> bool:
            anew = bool(held) and held[0].where == where and held[0].suspect()
            if held and (held[0].where != where or held[0].suspect()):
                held.clear()
                stack.close()
            os.environ.pop(vm.SHARED_VM, None)
            if not where.startswith("vm:") or vm_spec.parse(where).fresh:
                return False
            if not held:
                with local.measuring_lock(say):  # a boot would disturb another's measuring
                    guest, talk = vm.booted(stack, where, folder, say, None)
                talk.end()
                held.append(guest)
            report = {"where": where, "scratch": str(held[0].scratch), "folder": str(held[0].folder)}
            os.environ[vm.SHARED_VM] = json.dumps(report)
            return anew

        try:
            yield lease
        finally:
            os.environ.pop(vm.SHARED_VM, None)
