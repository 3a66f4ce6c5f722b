"""The link between two lab VMs, tested without them: frames sent into one tap come out of the other."""

import fcntl
import os
import select
import time

import pytest

from labkit.common.errors import Unsupported
from labkit.measure.hosts import vm_link
from labkit.system import process

pytestmark = pytest.mark.needs("namespaces", "bridge", "ip", "tap")

HEADER = bytes(10)  # struct virtio_net_hdr (linux/virtio_net.h) without any offload
TUNGETDEVNETNS = 0x54E3  # linux/if_tun.h
# broadcast; local experimental EtherType
FRAME = bytes.fromhex("ffffffffffff 020000000001 88b5") + bytes(8986)


def lines(argv: list[str], tap: int) -> str:
    """Return what a program prints in the network namespace of a tap."""
    netns = fcntl.ioctl(tap, TUNGETDEVNETNS)
    try:
        inside = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{netns}", "--"]
        return process.output([*inside, *argv])
    finally:
        os.close(netns)


def frames(tap: int, seconds: float) -> int:
    """Count the test's frames that come out of the tap."""
    count, deadline = 0, time.monotonic() + seconds
    while (rest := deadline - time.monotonic()) > 0:
        if select.select([tap], [], [], rest)[0]:
            count += os.read(tap, 65536).endswith(FRAME)
    return count


def test_frames_pass_in_both_directions() -> None:
    with vm_link.link(None, 9000) as ends:
        one, other = (end.fds[0] for end in ends)
        for source, sink in ((one, other), (other, one)):
            os.write(source, HEADER + FRAME)
            assert frames(sink, 1) == 1
        # Each NIC has its own MAC address, and none is a boot device.
        devices = [end.arguments[-1] for end in ends]
        assert len(set(devices)) == 2
        assert all("romfile=," in device + "," for device in devices)


@pytest.mark.needs("root")
def test_rate_limit() -> None:
    """1 Mbit/s is 14 frames of 9,000 bytes in a second. 50 ms of them are queued, and the rest is dropped."""
    with vm_link.link(1e6, 9000) as ends:
        one, other = (end.fds[0] for end in ends)
        assert lines(["tc", "qdisc", "show", "dev", "other"], other).startswith("qdisc tbf")
        for _ in range(50):
            os.write(one, HEADER + FRAME)
        assert 1 <= frames(other, 1) < 14


def test_without_tap_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.system.netlink.taps.TUN", "/dev/net/none")
    with (
        pytest.raises(Unsupported, match=r"/dev/net/none cannot be opened \(No such file.*`modprobe tun`"),
        vm_link.link(None, 1500),
    ):
        pass
