"""The link between two lab VMs, without the lab VMs: what goes into one tap comes out of the other."""

from __future__ import annotations

import fcntl
import os
import select
import time

import pytest

from labkit.common.errors import Unsupported
from labkit.measure.hosts import vm_link
from labkit.system import process

pytestmark = pytest.mark.needs("namespaces", "bridge", "ip", "tap")

HEADER = bytes(10)  # struct virtio_net_hdr (linux/virtio_net.h): nothing left to do
TUNGETDEVNETNS = 0x54E3  # linux/if_tun.h
FRAME = bytes.fromhex("ffffffffffff 020000000001 88b5") + bytes(8986)  # to all; local experimental EtherType


def lines(argv: list[str], tap: int) -> str:
    """What a program says in the network namespace of a tap."""
    netns = fcntl.ioctl(tap, TUNGETDEVNETNS)
    try:
        inside = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{netns}", "--"]
        return process.output([*inside, *argv])
    finally:
        os.close(netns)


def frames(tap: int, seconds: float) -> int:
    """How many of our frames come out of it."""
    count, deadline = 0, time.monotonic() + seconds
    while (rest := deadline - time.monotonic()) > 0:
        if select.select([tap], [], [], rest)[0]:
            count += os.read(tap, 65536).endswith(FRAME)
    return count


def test_frames_pass_in_both_directions() -> None:
    with vm_link.wire(None, 9000) as ends:
        one, other = (end.fds[0] for end in ends)
        for source, sink in ((one, other), (other, one)):
            os.write(source, HEADER + FRAME)
            assert frames(sink, 1) == 1
        # Each NIC has a MAC address of its own, and nothing is booted from.
        devices = [end.words[-1] for end in ends]
        assert len(set(devices)) == 2
        assert all("romfile=," in device + "," for device in devices)


@pytest.mark.needs("root")
def test_rate_limit() -> None:
    """1 Mbit/s is 14 frames of 9,000 bytes in a second; 50 ms of them wait, and what is more is lost."""
    with vm_link.wire(1e6, 9000) as ends:
        one, other = (end.fds[0] for end in ends)
        assert lines(["tc", "qdisc", "show", "dev", "other"], other).startswith("qdisc tbf")
        for _ in range(50):
            os.write(one, HEADER + FRAME)
        assert 1 <= frames(other, 1) < 14


def test_without_tap_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.system.netlink.taps.TUN", "/dev/net/none")
    with (
        pytest.raises(Unsupported, match=r"/dev/net/none cannot be opened \(No such file.*`modprobe tun`"),
        vm_link.wire(None, 1500),
    ):
        pass
