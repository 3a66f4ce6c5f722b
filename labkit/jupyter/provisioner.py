"""Jupyter's kernel provisioner `labkit`, which starts a kernel in a lab VM. A kernelspec selects it with `where`."""

import asyncio
import math
import os
import sys
from contextlib import suppress
from typing import Any

import msgspec
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from labkit.common.errors import Failed
from labkit.jupyter import vm_kernel
from labkit.system import process

POLL_S = 0.05


class LabProvisioner(LocalProvisioner):
    """Starts, instead of the kernel, a process that boots a lab VM and runs the kernel there.

    The lab VM ends with that process, which dies with the thread that started it.
    """

    def __init__(self, where: str = "vm:debian", **traits: Any) -> None:
        super().__init__(**traits)
        self.where = where
        self._events: Events | None = None
        self._reported: set[str] = set()

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Choose ports and a connection file as for every local kernel. The command is for the guest."""
        launch_arguments = await super().pre_launch(**{**kwargs, "transport_encryption": "required"})
        assert self.parent is not None  # the kernel manager
        words = process.python("-m", vm_kernel.__name__, self.where, self.parent.connection_file)
        launch_arguments["cmd"] = [*process.DIE_WITH_US, *words, *launch_arguments["cmd"]]
        return launch_arguments

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start booting the lab VM and return; requests to the kernel wait for it.

        Raises Failed, with one sentence, if there is nothing to boot.
        """
        if self._events is not None:
            self._events.close()
        reads, writes = os.pipe()
        self._events = Events(reads)
        try:
            try:
                connection = await super().launch_kernel(cmd, **{**kwargs, "stdout": writes})
            finally:
                os.close(writes)
            while not self._events.started:
                self._events.read()
                if self._events.error or self._events.ended:
                    text = self._events.error or "it was killed"
                    self._reported.add(text)
                    raise Failed(f"no kernel in a lab VM ({self.where}): {text}")
                await asyncio.sleep(POLL_S)
        except BaseException:
            await self.kill()
            await self.wait()
            self._events.close()
            raise
        return connection

    async def poll(self) -> int | None:
        """Return the status like every provisioner. Print the reason of an end only once, however often Jupyter
        restarts the kernel."""
        status = await super().poll()
        if status is not None and self._events is not None:
            self._events.read()
            text = self._events.error
            if text is not None and text not in self._reported:
                self._reported.add(text)
                print(f"labkit: {self.where}: {text}", file=sys.stderr, flush=True)
        return status

    def get_stable_start_time(self, recommended: float = 10.0) -> float:
        """Return the seconds alive after which Jupyter forgets earlier restarts.

        The process lives for a minute while the lab VM boots; without this, a kernel that dies at each start would be
        booted forever.
        """
        if self._events is not None:
            self._events.read()
            if not self._events.ready:
                return math.inf
        return super().get_stable_start_time(recommended)

    async def cleanup(self, restart: bool = False) -> None:
        """Clean up like every provisioner, and close the pipe of events."""
        if self._events is not None:
            self._events.close()
            self._events = None
        await super().cleanup(restart)


class Events:
    """The output of the process that holds a lab VM, read from the pipe `fd` without waiting.

    `error`: its last error; `ended`: the pipe is closed.
    """

    def __init__(self, fd: int) -> None:
        self._pipe = open(fd, "rb", buffering=0)
        self._lines = process.Lines(self._pipe)
        self.started = self.ready = self.ended = False
        self.error: str | None = None

    def read(self) -> None:
        with suppress(TimeoutError):  # no more yet
            for line in self._lines.until_end(0):
                event = msgspec.json.decode(line)
                self.started |= event["event"] == "started"
                self.ready |= event["event"] == "ready"
                self.error = event.get("text", self.error)
            self.ended = True
            self.close()

    def close(self) -> None:
        self._pipe.close()
