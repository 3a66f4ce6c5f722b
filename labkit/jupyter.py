"""Where Jupyter starts a kernel in a lab VM: its kernel provisioner `labkit`, which a kernelspec names with `where`."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from labkit import notebook_kernel, process
from labkit.errors import Failed


class LabProvisioner(LocalProvisioner):
    """Starts, in the place of the kernel, the process that boots a lab VM and runs the kernel there.

    Whatever ends that process ends the lab VM; it dies with the thread that started it.
    """

    def __init__(self, where: str = "vm:debian", **traits: Any) -> None:
        super().__init__(**traits)
        self.where = where

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Ports and connection file as for every local kernel; the command is for the guest."""
        told = await super().pre_launch(**kwargs)
        assert self.parent is not None  # the kernel manager
        words = process.python("-m", notebook_kernel.__name__, self.where, self.parent.connection_file)
        told["cmd"] = [*process.DIE_WITH_US, *words, *told["cmd"]]
        return told

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Returns when the lab VM boots: whoever asks the kernel something then waits for it. Raises Failed, in one
        sentence, when there is nothing to boot."""
        reads, writes = os.pipe()
        with open(reads, "rb") as pipe:
            try:
                connection = await super().launch_kernel(cmd, **{**kwargs, "stdout": writes})
            finally:
                os.close(writes)
            try:
                said = msgspec.json.decode(
                    await _first_line(pipe) or b'{"event":"error","text":"it was killed"}'
                )
                if said["event"] != "started":
                    raise Failed(f"no kernel in a lab VM ({self.where}): {said['text']}")
            except BaseException:
                await self.kill()
                await self.wait()
                raise
        return connection


async def _first_line(pipe: Any) -> bytes:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    try:
        return await reader.readline()
    finally:
        transport.close()
