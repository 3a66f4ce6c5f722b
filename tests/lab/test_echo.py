"""Echo requests reach the ends of a topology, and programs start there, without another program in between."""

import os

import pytest

from labkit.measure import topologies
from labkit.measure.traffic import ping
from labkit.system import netlink, process

pytestmark = pytest.mark.needs("root", "veth")


@pytest.mark.parametrize("family", [4, 6])
def test_ends_are_reached_without_a_program(family: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(process.Running, "__init__", started)
    with topologies.build("veth", topologies.Spec(3, 1500, family)) as net:
        assert ping.reachable(net.pairs, 1500, family) is None
        assert str(ping.reachable(net.pairs, 1501, family)).endswith("1501 bytes (Message too long)")
        server = net.pairs[1].server
        server.namespace.netlink.do(netlink.shut_link(server.index))
        words = ping.reachable(net.pairs, 1500, family, patience_s=1)
        assert str(words).startswith("client1 gets no answer from server1 to a ping of 1500 bytes")


def test_program_starts_in_its_namespace() -> None:
    with topologies.build("veth", topologies.Spec(1)) as net:
        end = net.pairs[0].client
        with process.all_ended([end.start(["sleep", "60"])]) as [program]:
            assert program.argv == ["sleep", "60"]
            there = os.stat(f"/proc/{program.pid}/ns/net")
            assert there.st_ino == os.fstat(end.namespace.fd).st_ino
            assert there.st_ino != os.stat("/proc/self/ns/net").st_ino
