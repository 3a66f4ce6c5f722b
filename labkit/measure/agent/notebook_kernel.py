"""The guest's part of a notebook kernel in a lab VM: configure the NIC, run the kernel, report that it is ready."""

import contextlib
import dataclasses
import ipaddress
import math
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from labkit.common.errors import Failed
from labkit.system import machine, netlink, process

ADDRESS = ipaddress.IPv4Interface("10.0.2.15/24")  # the guest's address in QEMU's user network
CONNECTION = Path("/run/labkit-notebook-kernel.json")  # in the guest, where /run is its own
NIC_S, READY_S = 10.0, 240.0  # a quiet machine needs 10 s under emulation


def answer(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the notebook kernel in the guest until it ends; yield `ready` when it listens.

    Raises Failed with its last words.
    """
    os.environ.clear()
    os.environ.update(request["environment"])
    try:
        os.chdir(request["folder"])
    except OSError as error:
        raise Failed(f"the lab VM does not have the folder {request['folder']}: {error.strerror}") from None
    CONNECTION.touch(mode=0o600)
    CONNECTION.write_bytes(msgspec.json.encode(request["connection"]))
    with netlink.inside(request["machine_netns"]):
        _attach()
        # A session of its own: an interrupt is meant for the kernel and the programs of its cell.
        kernel = process.Running(["setsid", "--", *request["argv"]])
        with process.all_ended([kernel]):
            _reachable(kernel, request["connection"]["hb_port"])
            yield {"event": "ready"}
            process.wait([kernel], math.inf)
            if kernel.ended().returncode != 0:
                raise Failed(f"the notebook's kernel has ended: {_last_words(kernel)}")


def _attach() -> None:
    """Wait for the NIC and configure its address."""
    if not Path("/sys/class/net/eth0").exists():
        process.output([machine.program("modprobe"), "virtio_net"])
    deadline = time.monotonic() + NIC_S
    while not Path("/sys/class/net/eth0").exists():
        if time.monotonic() > deadline:
            raise Failed("the lab VM has no NIC, so Jupyter cannot reach it")
        time.sleep(0.01)
    index = netlink.index_of("eth0")
    kernel = netlink.Netlink()
    with contextlib.closing(kernel):
        kernel.do(netlink.set_link(index), netlink.new_address(index, ADDRESS))


def _reachable(kernel: process.Running, port: int) -> None:
    """Wait until the kernel listens. Its heartbeat port is the last that it opens."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if not process.wait([kernel], time.monotonic() + 0.05):
            raise Failed(f"the notebook's kernel did not start: {_last_words(kernel)}")
        with contextlib.suppress(OSError):
            socket.create_connection((str(ADDRESS.ip), port), timeout=1).close()
            return
    raise Failed(f"the notebook's kernel did not listen within {READY_S:.0f} s")


# The usual cause of a signal that ended the kernel in a lab VM.
_MEANING: dict[int, str] = {
    signal.SIGILL: "a library uses an instruction that the lab VM's CPU does not have",
    signal.SIGSEGV: "a library has crashed",
    signal.SIGKILL: "the lab VM was probably out of memory; memory_mib=4096 gives it more",
}


def _last_words(kernel: process.Running) -> str:
    """Return how the kernel ended: the signal and its usual cause, or the last line of the traceback."""
    ended = kernel.ended()
    if ended.returncode < 0:
        return dataclasses.replace(ended, stdout="", stderr=_MEANING.get(-ended.returncode, "")).message()
    return dataclasses.replace(ended, stderr="".join(ended.stderr.splitlines()[-1:])).message()
