"""What IPsec adds to a packet is asked of the kernel: the MTU of a socket, with and without the machine's policies."""

from contextlib import nullcontext
from socket import IPPROTO_TCP, SOCK_RAW, socket
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.measure.existing import arm
from labkit.measure.existing.handing import Handed, HandedEnd
from labkit.measure.topologies import Spec
from labkit.system import netlink, process
from labkit.system.netlink import encryption

PLAIN, AT_LO = 1500, 65536
# AES-CBC and HMAC-SHA1 in transport mode; a policy without keys; a tunnel by another interface; what it may not send
MTUS = {"10.2.0.1": 1458, "10.2.0.2": AT_LO, "10.2.0.3": 1280, "192.0.2.9": None}


class Socket:
    """A socket whose packets are encrypted, unless it has a policy of its own."""

    def __init__(self, *_words: int) -> None:
        self.is_plain = False

    def __enter__(self) -> "Socket":
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def setsockopt(self, _level: int, _name: int, policy: bytes) -> None:
        assert len(policy) == 168
        self.is_plain = True

    def bind(self, address: tuple[str, int]) -> None:
        assert address == ("10.1.0.1", 0)

    def connect(self, address: tuple[str, int]) -> None:
        self.mtu_bytes = PLAIN if self.is_plain else MTUS[address[0]]
        if self.mtu_bytes is None:
            raise PermissionError

    def getsockopt(self, _level: int, _name: int) -> int | None:
        return self.mtu_bytes


@pytest.mark.parametrize(("target", "added"), list(zip(MTUS, (42, 0, 0, 0), strict=True)))
def test_the_kernel_says_what_ipsec_adds(target: str, added: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption.socket, "socket", Socket)
    monkeypatch.setattr(encryption, "inside", lambda _netns: nullcontext())
    assert encryption.added_bytes(-1, "10.1.0.1", target) == added


@pytest.fixture
def space(namespace: Any) -> int:
    """Make a namespace in which v0 has addresses, and lo is up."""
    fd, kernel = namespace
    kernel.do(netlink.set_link(1), netlink.new_link("veth", "v0", index=7, peer={"name": "v1"}))
    addresses = "ip address add 10.1.0.1/24 dev v0; ip address add fd00::1/64 dev v0 nodad"
    with netlink.inside(fd):
        process.output(["sh", "-ec", f"ip link set v1 up; {addresses}"])
    return fd


@pytest.mark.needs("root", "ip", "veth", "policies of IPsec")
def test_a_policy_of_the_socket_comes_before_those_of_the_machine(space: int) -> None:
    """The kernel refuses what a policy blocks, but not to the socket that has one of its own."""
    for version, family, source, target in (
        (4, 2, "10.1.0.1", "10.1.0.2"), (6, 10, "fd00::1", "fd00::2"),
    ):  # fmt: skip
        words = ["ip", "xfrm", "policy", "add", "dir", "out", "src", source, "dst", target, "action", "block"]
        level, mtu, policy = encryption.MTU_OPTIONS[version]
        with netlink.inside(space):
            process.output(words)
            plain, own = (socket(family, SOCK_RAW, IPPROTO_TCP) for _ in range(2))
        with plain, own:
            with pytest.raises(PermissionError):
                plain.connect((target, 0))
            own.setsockopt(level, policy, encryption._policy("out", encryption._selector_of_all(family)))
            own.connect((target, 0))
            assert own.getsockopt(level, mtu) == 1500


def test_an_end_knows_what_ipsec_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[str, ...]]()
    monkeypatch.setattr(encryption, "added_bytes", lambda _fd, *ends: asked.append(ends) or 34)
    monkeypatch.setattr(netlink, "links", lambda _kernel: [SimpleNamespace(index=2, up=True, mtu_bytes=1500)])
    own, other = (
        HandedEnd(f"netns:{name}", "eth0", 2, address, None)
        for name, address in (("a", "10.1.0.1"), ("b", "10.2.0.1"))
    )
    handed = Handed({}, own, other, {}, [], [])
    spaces: Any = {one.namespace: SimpleNamespace(netlink=None, fd=-1) for one in (own, other)}
    ends = [arm._end(one, handed, spaces, Spec(), 3) for one in (own, other)]
    assert [(one.more_header_bytes, one.port_offset) for one in ends] == [(34, 3)] * 2
    assert asked == [("10.1.0.1", "10.2.0.1"), ("10.2.0.1", "10.1.0.1")]
