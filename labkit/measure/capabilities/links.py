"""Try link kinds, tunnels, queueing disciplines, nftables and captures, each in a namespace that is discarded."""

import errno
import fcntl
import functools
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from labkit.common.safe_files import closed
from labkit.measure.capabilities.base import (
    AS_ROOT,
    DENIED,
    LOAD,
    UNKNOWN,
    Capability,
    NotTried,
    attempt,
    kernel_with,
    refused,
    remedy_for,
    unloaded_module,
)
from labkit.measure.topologies.network.kinds import KINDS, remedy
from labkit.system import netlink
from labkit.system.netlink.nft_counters import NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES
from labkit.system.netlink.sockets import attribute, request
from labkit.system.recording.packet_ring import Ring

TUNSETIFF, IFF_TUN, IFF_TAP, IFF_NO_PI = 0x400454CA, 1, 2, 0x1000  # linux/if_tun.h
# linux/netfilter/nfnetlink.h, nf_tables.h
NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFT_MSG_NEWTABLE, NFPROTO_INET = 16, 17, 0, 1
NLM_F_ACK, NLM_F_CREATE = 4, 0x400


@dataclass(frozen=True)
class Kind:
    """A kind of link: its kernel option, what is lost without it, and what it needs.

    `leaves` are interfaces that loading its module leaves in the machine's own network.
    """

    name: str
    option: str
    lost: str
    data: dict[str, Any] = field(default_factory=dict)
    on_lower: bool = False
    leaves: str | None = None


V4 = ("192.0.2.1", "192.0.2.2")  # RFC 5737, documentation addresses; nothing is sent
V6 = ("2001:db8::1", "2001:db8::2")  # RFC 3849


def _ends(prefix: str, pair: tuple[str, str] = V4) -> dict[str, Any]:
    return {f"{prefix}_LOCAL": pair[0], f"{prefix}_REMOTE": pair[1]}


def _datapaths(name: str) -> str:
    return f"the {name} datapaths cannot be measured on this kernel"


def _tunnels(name: str) -> str:
    return f"{name} tunnels cannot be measured on this kernel"


LINKS = (
    Kind("veth", "VETH", "namespaces cannot be connected, so only loopback can be measured"),
    Kind("netkit", "NETKIT", _datapaths("netkit")),
    Kind("bridge", "BRIDGE", "the veth_bridge and macvlan_vepa datapaths cannot be measured on this kernel"),
    Kind("macvlan", "MACVLAN", _datapaths("macvlan"), {"IFLA_MACVLAN_MODE": 4}, on_lower=True),
    Kind("macvtap", "MACVTAP", "no guest can be attached by macvtap", {"IFLA_MACVTAP_MODE": 4}, on_lower=True),
    Kind("ipvlan", "IPVLAN", _datapaths("ipvlan_l2, ipvlan_l3 and ipvlan_l3s"), {"IFLA_IPVLAN_MODE": 0}, on_lower=True),
    Kind("ipvtap", "IPVTAP", "no guest can be attached by ipvtap", on_lower=True),
    Kind("vlan", "VLAN_8021Q", "networks cannot be separated by VLAN tags", {"IFLA_VLAN_ID": 42}, on_lower=True),
    Kind("dummy", "DUMMY", "sending alone cannot be measured, because no interface discards packets", leaves="dummy0"),
    Kind("ifb", "IFB", "arriving traffic cannot be queued or shaped", leaves="ifb0 and ifb1"),
    Kind("bond", "BONDING", "links cannot be bonded", leaves="bond0"),
    Kind("vrf", "NET_VRF", "one namespace cannot hold several routing domains", {"IFLA_VRF_TABLE": 42}),
)  # fmt: skip

TUNNELS = (
    Kind("vxlan", "VXLAN", _datapaths("vxlan"), {"IFLA_VXLAN_ID": 42, "IFLA_VXLAN_PORT": 4789}),
    Kind("geneve", "GENEVE", _tunnels("Geneve"), {"IFLA_GENEVE_ID": 42, "IFLA_GENEVE_REMOTE": V4[1]}),
    Kind("gre", "NET_IPGRE", _tunnels("GRE"), _ends("IFLA_GRE"), leaves="gre0, gretap0 and erspan0"),
    Kind("gretap", "NET_IPGRE", _tunnels("Ethernet over GRE"), _ends("IFLA_GRE"), leaves="gre0, gretap0 and erspan0"),
    Kind("ip6gre", "IPV6_GRE", _tunnels("GRE over IPv6"), _ends("IFLA_IP6GRE", V6), leaves="ip6gre0"),
    Kind("ipip", "NET_IPIP", _tunnels("IPv4 in IPv4"), _ends("IFLA_IPIP"), leaves="tunl0"),
    Kind("sit", "IPV6_SIT", _tunnels("IPv6 in IPv4"), _ends("IFLA_SIT"), leaves="sit0"),
    Kind("wireguard", "WIREGUARD", _datapaths("wireguard")),
    Kind("xfrm", "XFRM_INTERFACE", _datapaths("esp_tunnel"), {"IFLA_XFRM_IF_ID": 42}),
    Kind("macsec", "MACSEC", _datapaths("macsec"), on_lower=True),
)  # fmt: skip

# 1 Mbit/s with a bucket of 64 ms (in steps of 64 ns); the HTB numbers are those of tc(8).
_TBF = {"TCA_TBF_PARMS": {"rate": 125_000, "limit": 10_000, "buffer": 1_000_000}}
_NETEM = {"TCA_NETEM_CORR": {"delay_corr": 0, "loss_corr": 0, "dup_corr": 0}}
_HTB = {"TCA_HTB_INIT": {"version": 3, "rate2quantum": 10, "defcls": 0, "debug": 0, "direct_pkts": 0}}

QDISCS = (
    Kind("tbf", "NET_SCH_TBF", "a link's rate cannot be limited by a token bucket", _TBF),
    Kind("netem", "NET_SCH_NETEM", "delay, loss and reordering of a network cannot be emulated", _NETEM),
    Kind("fq", "NET_SCH_FQ", "flows are neither paced nor queued separately; TCP paces with its own timers"),
    Kind("fq_codel", "NET_SCH_FQ_CODEL", "the default queue of most distributions cannot be measured"),
    Kind("htb", "NET_SCH_HTB", "a link's rate cannot be divided among classes", _HTB),
)
INGRESS = (
    Kind("ingress", "NET_SCH_INGRESS", "arriving traffic cannot be filtered, policed or mirrored by tc"),
    Kind("clsact", "NET_SCH_INGRESS", "no BPF program can be attached to traffic by tc"),
)


@dataclass
class Space:
    """A namespace with disposable interfaces for probes."""

    fd: int
    socket: netlink.Netlink
    _last: int = netlink.FIRST_INDEX

    def index(self) -> int:
        self._last += 1
        return self._last

    def lower(self) -> int:
        """Return one end of a new veth.

        Probes need one each: macvlan and ipvlan cannot share a device, and it has one root qdisc. Raises NotTried.
        """
        near, far = self.index(), self.index()
        peer = {"name": f"far{far}", "index": far}
        try:
            self.socket.do(netlink.new_link("veth", f"near{near}", index=near, peer=peer))
        except netlink.LinkError as error:
            text = f"it needs a veth, which cannot be created ({os.strerror(error.errno)})"
            raise NotTried(text, kernel_with("VETH")) from None
        return near

    def do(
        self, message: netlink.Message, unknown: tuple[int, ...], kernel: netlink.Netlink | None = None
    ) -> None:
        """Send a request. Raises OSError; the errors in `unknown` mean that this kernel does not support it."""
        try:
            (kernel or self.socket).do(message)
        except netlink.LinkError as error:
            if error.errno in unknown:
                raise refused(errno.EOPNOTSUPP, UNKNOWN) from None
            raise refused(error.errno, str(error)) from None


@contextmanager
def space() -> Iterator[Space]:
    """Yield a namespace for probes, which ends with the block. Raises LinkError if none can be created."""
    [(fd, kernel)] = netlink.new_namespaces(1)
    with closing(kernel), closed(fd):
        yield Space(fd, kernel)


def links(*, alone: bool = False) -> list[Capability]:
    """Try all groups of this module.

    If no namespace can be created, each capability says so. Unless the kernel is discarded (`alone`), no module is
    loaded that leaves interfaces.
    """
    try:
        with space() as here:
            return _all(here, alone)
    except netlink.LinkError as error:
        text = f"no namespace can be created to try it ({os.strerror(error.errno)})"
        kinds = [("link kinds", LINKS), ("tunnels", TUNNELS), ("queueing disciplines", (*QDISCS, *INGRESS))]
        return [
            Capability(group, kind.name, None, text, kind.lost, AS_ROOT)
            for group, some in kinds
            for kind in some
        ]


def _all(here: Space, alone: bool) -> list[Capability]:
    result = [_try("link kinds", kind, _link(here, kind), alone) for kind in LINKS]
    lost = "no guest, and no switch in user space (OVS without its kernel part, DPDK), can be attached by {}"
    as_root = "as root: chmod 0666 /dev/net/tun (as udev does), or run as root"
    tun_remedy = remedy_for("TUN", "devname:net/tun", as_root)
    for name, flag in (("tun", IFF_TUN), ("tap", IFF_TAP)):
        probe = functools.partial(_tun, here, flag)
        result.append(attempt("link kinds", name, probe, lost.format(name), tun_remedy))
    result += [_try("tunnels", kind, _link(here, kind), alone) for kind in TUNNELS]
    result += [_try("queueing disciplines", kind, _qdisc(here, kind)) for kind in QDISCS]
    result += [_try("queueing disciplines", kind, _ingress(here, kind)) for kind in INGRESS]
    lost = "packets cannot be filtered or translated, so what firewalls and container networks cost cannot be measured"
    result.append(
        attempt("packet filters", "nftables", lambda: _table(here), lost, _remedy_by_error("NF_TABLES"))
    )
    return result


def _try(group: str, kind: Kind, probe: Callable[[], None], alone: bool = False) -> Capability:
    if kind.leaves and not alone and (module := unloaded_module(f"rtnl-link-{kind.name}")):
        text = f"not tried: loading its module {module} may leave {kind.leaves} in the machine's network"
        return Capability(group, kind.name, None, text, None, f"{LOAD}{module}, then run the doctor again")
    return attempt(group, kind.name, probe, kind.lost, _remedy_by_error(kind.option, kind.name))


def _remedy_by_error(option: str, kind: str = "") -> Callable[[int], str]:
    def by_error(number: int) -> str:
        if number in DENIED:
            return AS_ROOT
        if number in (errno.EOPNOTSUPP, errno.ENOENT, errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            return remedy(kind) if kind in KINDS and KINDS[kind].since else kernel_with(option)
        return "see the kernel's log for the reason (dmesg)"

    return by_error


def _link(here: Space, kind: Kind) -> Callable[[], None]:
    def make() -> None:
        lower, index = here.lower() if kind.on_lower else None, here.index()
        peer = {"name": f"far{index}", "index": here.index()} if kind.name == "veth" else None
        message = netlink.new_link(
            kind.name, f"probe{index}", index=index, link=lower, up=False, data=kind.data, peer=peer
        )
        # rtnl_newlink: EOPNOTSUPP for a kind that it does not know and cannot load
        here.do(message, (errno.EOPNOTSUPP,))

    return make


def _qdisc(here: Space, kind: Kind) -> Callable[[], None]:
    # tc_modify_qdisc: ENOENT for an unknown kind; a kernel without CONFIG_NET_SCHED does not know the request
    return lambda: here.do(
        netlink.new_qdisc(here.lower(), kind.name, kind.data), (errno.ENOENT, errno.EOPNOTSUPP)
    )


def _ingress(here: Space, kind: Kind) -> Callable[[], None]:
    return lambda: here.do(netlink.new_ingress(here.lower(), kind.name), (errno.ENOENT, errno.EOPNOTSUPP))


def _tun(here: Space, flag: int) -> None:
    # The interface is created in the namespace in which the device was opened, and removed when it is closed
    # (tun_chr_open).
    with netlink.inside(here.fd):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    with closed(device):
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"", flag | IFF_NO_PI))


def _table(here: Space) -> None:
    """Create a table in a transaction, as nft(8) does."""
    bracket = struct.pack(">BBH", 0, 0, NFNL_SUBSYS_NFTABLES)  # struct nfgenmsg
    begin, end = (request("", kind, 0, bracket).body for kind in (NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END))
    body = struct.pack(">BBH", NFPROTO_INET, 0, 0) + attribute(1, b"labkit\0")
    kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWTABLE
    made = request("create an nftables table", kind, NLM_F_ACK | NLM_F_CREATE, body)
    with netlink.inside(here.fd):
        kernel = netlink.Netlink(NETLINK_NETFILTER)
    with closing(kernel):
        whole = netlink.Message(made.what, begin + made.body + end)
        here.do(whole, (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EINVAL), kernel)


def capturing() -> list[Capability]:
    """Try packet sockets: one must see a packet."""
    lost = "no packet can be followed from hop to hop"
    return [attempt("packets", "packet capture", _sees_one, lost, _remedy_by_error("PACKET"))]


def _sees_one() -> str:
    with space() as here:
        here.socket.do(netlink.set_link(1))
        with closing(Ring(here.fd, "lo", 256, 1)) as ring:
            with netlink.inside(here.fd), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(b"labkit", ("127.0.0.1", 9))  # discard (RFC 863); nobody listens
            seen, _dropped = ring.counts()
    if not seen:
        raise refused(errno.EIO, "a packet socket did not see the packet that was sent")
    return "with kernel timestamps and a count of lost packets"
