"""Share one lab VM with the processes that its owner starts, through the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labkit.measure.hosts import local, vm
from labkit.measure.hosts.vm_channel import LabVm
from labkit.system.qemu import vm_spec

LeaseVm = Callable[[str], bool]


@contextmanager
def leasing(folder: Path, say: Callable[[str], None]) -> Iterator[LeaseVm]:
    """Yield a function that prepares the lab VM of a `where` for the processes that are started next.

    They may all write into `folder`. One boot serves all requests for the same `where`. It is booted again if an
    experiment left it suspect, and not shared if `where` says `fresh`. The function returns whether it booted a
    replacement.
    """
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
                with local.measuring_lock(say):  # a boot would disturb another measurement
                    guest, conversation = vm.booted(stack, where, folder, say, None)
                conversation.end()
                held.append(guest)
            report = {"where": where, "scratch": str(held[0].scratch), "folder": str(held[0].folder)}
            os.environ[vm.SHARED_VM] = json.dumps(report)
            return anew

        try:
            yield lease
        finally:
            os.environ.pop(vm.SHARED_VM, None)
