"""Run as the first process of a test's own QEMU machine (tests/vm/qemu_machine.py).

It runs the commands that it receives over the virtio-serial port, as root of its own kernel.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from typing import Any

from labkit.measure.agent.vm_init import write_event
from labkit.measure.endpoints import exec_server
from labkit.system import netlink
from labkit.system.qemu import command


def main() -> None:
    """Answer requests, one JSON line each: `argv`, `env`, and `timeout_s`. Without a timeout, only start the
    program."""
    os.environ.pop("LABKIT_LAB_VM", None)
    os.makedirs("/dev/net", exist_ok=True)
    socket = netlink.Netlink()
    socket.do(netlink.set_link(1))  # lo
    socket.close()
    [port], lines = exec_server.ports(command.CHANNEL, 1), b""
    while True:
        select.select([port.fd], [], [], 1.0)
        with contextlib.suppress(exec_server.ClientDisconnected):  # the test has not connected yet
            lines += port.read()
        while b"\n" in lines:
            line, _, lines = lines.partition(b"\n")
            write_event(port, answer(json.loads(line)))


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the result of the command: its pid, or its exit code and output."""
    environment = os.environ | request["env"]
    if request["timeout_s"] is None:
        with open("/dev/null", "r+b") as nothing:
            pid = subprocess.Popen(request["argv"], env=environment, stdin=nothing, start_new_session=True,
                                   stdout=nothing, stderr=nothing).pid  # fmt: skip
        return {"pid": pid}
    try:
        done = subprocess.run(request["argv"], env=environment, timeout=request["timeout_s"], text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, check=False)  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return {"returncode": None, "stdout": str(late.stdout), "stderr": str(late.stderr)}
    return {"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


if __name__ == "__main__":
    main()
