"""A NIC of the machine: labkit finds it, uses it in a topology, and restores it afterwards.

macvlan and ipvlan devices are created on the NIC where it is. A bridge moves the NIC into its own namespace. If that
namespace ends by force, the kernel moves the NIC back into the initial namespace, set down (net/core/dev.c,
default_device_exit_net).
"""

import contextlib
import glob
import ipaddress
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.endpoints import Namespace
from labkit.measure.topologies.base import Spec, nic_mac
from labkit.measure.topologies.network import impairments
from labkit.system import netlink, process


@dataclass(frozen=True)
class Nic:
    """A NIC in the machine's own namespace: its name, its index there, and a netlink socket there."""

    name: str
    index: int
    kernel: netlink.Netlink

    def link(self) -> netlink.Link:
        """Return the link as the kernel reports it now."""
        return next(link for link in netlink.links(self.kernel) if link.index == self.index)


@contextmanager
def machine_nic(spec: Spec) -> Iterator[Nic]:
    """Find the NIC `spec.parent`; if that is None, this node's end of labkit's own cable, or the only NIC of a lab
    VM."""
    if spec.machine_netns is None:
        raise Unsupported(
            f"parent={spec.parent} is a NIC of the machine, and only root may use it:"
            " run as root, or leave parent out"
        )
    with netlink.inside(spec.machine_netns):
        socket = netlink.Netlink()
        with open("/proc/thread-self/net/dev") as file:
            known = sorted(line.split(":")[0].strip() for line in file if ":" in line)
        name = spec.parent or (netlink.CABLE if netlink.CABLE in known else _virtual_nic())
        try:
            index = netlink.index_of(name)
        except OSError:
            socket.close()
            raise BadInput(
                f"parent={name}: the machine has no such interface; it has {', '.join(known)}"
            ) from None
    with closing(socket):
        yield Nic(name, index, socket)


def _virtual_nic() -> str:
    """Return the name of a lab VM's NIC, its only virtio one (the guest's /sys shows the machine's namespace)."""
    process.run(["modprobe", "virtio_net"])  # does nothing if the driver is built in
    folders = Path("/sys/class/net").glob("*/device/driver")
    result = [folder.parent.parent.name for folder in folders if folder.resolve().name == "virtio_net"]
    if len(result) != 1:
        raise Failed(
            f"a lab VM of two nodes needs one virtio NIC, but this one has {len(result)}: start it with nodes=two"
        )
    return result[0]


@contextmanager
def borrowed_nic(
    spec: Spec, between: Namespace, *, moved: bool, index: int = 0
) -> Iterator[tuple[netlink.Netlink, int]]:
    """Borrow a NIC that is up and takes the MTU; yield a netlink socket in its namespace and its index there.

    With `moved`, and always if labkit made it, labkit moves the NIC into the namespace `between`. There it has `index`;
    0: its own if that is free, else the kernel's choice. labkit configures its own NIC as needed. It uses any other NIC
    as it is, or raises BadInput with the command that helps.
    """
    with machine_nic(spec) as nic:
        if spec.parent is not None:
            _check(nic, spec)
        if not moved and spec.parent is not None:
            yield nic.kernel, nic.index
            return
        _check_free(nic)
        with _move_nic(nic, spec, between, index) as index_there:
            own = spec.parent is None
            mac = nic_mac(spec, spec.side) if own and spec.side is not None else None
            mtu = spec.mtu_bytes if own else None
            try:
                between.netlink.do(netlink.set_link(index_there, mtu_bytes=mtu, mac=mac))
            except netlink.LinkError as error:
                raise Unsupported(f"{nic.name} does not take MTU {spec.mtu_bytes} ({error})") from None
            if spec.delay_s:
                _delay(between, index_there, spec.delay_s)
            yield between.netlink, index_there


def _check(nic: Nic, spec: Spec) -> None:
    link = nic.link()
    if not link.up:
        raise BadInput(
            f"parent={nic.name} is down on {os.uname().nodename}: run `ip link set {nic.name} up` there"
        )
    if link.mtu_bytes < spec.mtu_bytes:
        raise BadInput(
            f"parent={nic.name} has MTU {link.mtu_bytes} on {os.uname().nodename}:"
            f" run `ip link set {nic.name} mtu {spec.mtu_bytes}` there, and the same at the cable's other end"
        )


def _check_free(nic: Nic) -> None:
    """Raise BadInput for a NIC that must not join a bridge: something else uses it, or the move would lose it."""
    link = nic.link()
    addresses, links = netlink.addresses(nic.kernel), netlink.links(nic.kernel)
    own = [ipaddress.ip_interface(text) for index, text in addresses if index == nic.index]
    upper = [one.name for one in links if one.link == nic.index and one.link_netnsid is None]
    made = [name for index, name, _counts in netlink.qdiscs(nic.kernel) if index == nic.index]
    if wrong := (
        [f"has the address {one}" for one in own if not one.is_link_local]
        + [f"carries {name}" for name in upper if link.kind != "veth"]
        + (["is a port of a bridge or a bond"] if link.master else [])
        # The kernel gives its own ones, which have the handle 0, again, and no other.
        + [f"has the queueing discipline {name}" for name in made if not name.endswith(" 0:")]
        # Of the virtual devices only a veth is allowed; the kernel would delete others together with the namespace.
        + ([f"is a {link.kind} device"] if link.kind not in (None, "veth") else [])
    ):
        raise BadInput(
            f"parent={nic.name} {wrong[0]}, but a bridge or a switch takes the NIC from the machine while it measures:"
            " choose an unused NIC"
        )


@contextmanager
def _move_nic(nic: Nic, spec: Spec, between: Namespace, wanted: int) -> Iterator[int]:
    """Move the NIC into `between`, and yield its index there. Then move it back, with its sysctls, up if it was up."""
    was, sysctls = nic.link(), dict[Path, str]()
    assert spec.machine_netns is not None
    with netlink.inside(spec.machine_netns):
        for file in Path("/proc/sys/net").glob(f"ipv?/*/{glob.escape(nic.name)}/*"):
            with contextlib.suppress(OSError):  # a secret that nobody has set
                sysctls[file] = file.read_text()
    nic.kernel.do(netlink.move_link(nic.index, between.fd, wanted))
    try:
        [index] = [link.index for link in netlink.links(between.netlink) if link.name == nic.name]
        yield index
    finally:
        back = [link.index for link in netlink.links(between.netlink) if link.name == nic.name]
        for index in back:
            if not was.promiscuous:  # an ovs-vswitchd that is killed leaves it so
                between.netlink.do(netlink.not_promiscuous(index))
            between.netlink.do(netlink.move_link(index, spec.machine_netns, nic.index))
            with netlink.inside(spec.machine_netns):
                for file, text in sysctls.items():  # in each namespace it begins with the defaults
                    with contextlib.suppress(OSError):
                        if file.read_text() != text:
                            file.write_text(text)
        if was.up and back:
            with contextlib.suppress(netlink.LinkError):
                nic.kernel.do(netlink.set_link(nic.index))


def _delay(between: Namespace, index: int, delay_s: float) -> None:
    """Delay every packet that arrives at the NIC by `delay_s` seconds, like a longer cable.

    netem sits at the receiver, on an ifb. At the sender, the packets that it holds would count against TCP's limit of
    queued data (net/ipv4/tcp_output.c, tcp_small_queue_check).
    """
    between.netlink.do(netlink.new_link("ifb", "delay"))
    netem = ["netem", "delay", f"{round(delay_s * 1e6)}us", "limit", str(impairments.LIMIT)]
    mirror = ["matchall", "action", "mirred", "egress", "redirect", "dev", "delay"]
    name = next(link.name for link in netlink.links(between.netlink) if link.index == index)
    for words in (
        ["qdisc", "add", "dev", "delay", "root", *netem],
        ["qdisc", "add", "dev", name, "ingress"],
        ["filter", "add", "dev", name, "ingress", *mirror],
    ):
        try:
            process.output([*between.prefix, "tc", *words])
        except Failed as error:
            raise Unsupported(
                f"link_delay_s needs a kernel with ifb and netem ({error}): choose another with where"
            ) from None
