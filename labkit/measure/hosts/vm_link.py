"""The link between two lab VMs: a bridge and two taps in their own network namespace.

Only the two QEMU processes hold it, through the tap descriptors; the kernel frees it with them.
"""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from labkit.common.errors import Failed, LabkitError
from labkit.measure.hosts import local
from labkit.measure.hosts.vm import VmNic
from labkit.system import machine, netlink, process
from labkit.system.netlink.taps import check_taps, new_tap
from labkit.system.qemu import command

BRIDGE = netlink.FIRST_INDEX
LARGEST_MTU = 65521  # the maximum of a tap (drivers/net/tun.c)


@contextmanager
def link(rate_bps: float | None, mtu_bytes: int) -> Iterator[tuple[VmNic, VmNic]]:
    """Connect two lab VMs; yield a NIC for each.

    `rate_bps` limits each direction, for packets of up to `mtu_bytes`. Raises Unsupported without taps, Failed with
    the error message if this kernel or user cannot create the link.
    """
    check_taps()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    user = [] if local.privileged() else ["--user", "--map-root-user"]
    argv = ["unshare", *user, "--net", "--", *process.python("-m", "labkit.measure.hosts.vm_link")]
    with ExitStack() as stack:
        stack.callback(ours.close)
        with theirs:
            report = {"socket": theirs.fileno(), "rate_bps": rate_bps, "mtu_bytes": mtu_bytes}
            made = process.Conversation(argv, msgspec.json.encode(report), [theirs.fileno()])
            stack.callback(made.end)
        lines = next(made.lines(), None)
        event = {"text": f"unshare {made.end_reason()}"} if lines is None else msgspec.json.decode(lines)
        if "text" in event:
            raise Failed(f"the link between two lab VMs cannot be created: {event['text']}")
        _, fds, _, _ = socket.recv_fds(ours, 1, 2)
        for fd in fds:
            stack.callback(os.close, fd)
        one, other = (_nic(fd, number) for number, fd in enumerate(fds))
        yield one, other


def _nic(fd: int, number: int) -> VmNic:
    mac = f"52:54:00:{os.urandom(1).hex()}:{os.urandom(1).hex()}:{number:02x}"
    return VmNic(tuple(command.tap_nic([fd], mac)), (fd,))


def make(rate_bps: float | None, mtu_bytes: int) -> list[int]:
    """Create the bridge and the taps in this network namespace; return the taps' descriptors."""
    # so that the link itself sends nothing
    Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
    kernel = netlink.Netlink()
    kernel.do(netlink.new_link("bridge", "wire", index=BRIDGE, mtu_bytes=LARGEST_MTU))
    fds = []
    for name in ("one", "other"):
        fds += new_tap(name)
        index = netlink.index_of(name)
        kernel.do(netlink.set_link(index, mtu_bytes=LARGEST_MTU), netlink.set_master(index, BRIDGE))
        if rate_bps is not None:
            bucket = machine.token_bucket(rate_bps, mtu_bytes)
            process.output(["tc", "qdisc", "add", "dev", name, "root", *bucket])
    kernel.close()
    return fds


def main() -> None:
    """Create the link, pass its ends on, and exit."""
    report = msgspec.json.decode(sys.stdin.buffer.readline())
    try:
        fds = make(report["rate_bps"], report["mtu_bytes"])
        with socket.socket(fileno=report["socket"]) as channel:
            socket.send_fds(channel, [b"2"], fds)
        event: dict[str, object] = {"event": "made"}
    except (LabkitError, OSError) as error:
        event = {"event": "error", "text": str(error)}
    print(msgspec.json.encode(event).decode(), flush=True)


if __name__ == "__main__":
    main()
