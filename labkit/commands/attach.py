"""Add a network interface to a running Docker or Podman container (`labkit attach`), like pipework(8).

The interface disappears with the container. It is the only thing that labkit creates outside of an experiment.

A veth pair connects the container to a bridge or an Open vSwitch of this machine; macvlan and ipvlan use a NIC of this
machine. With a VLAN, the port carries only this VLAN (a bridge must filter VLANs). On a NIC, labkit creates a VLAN
device. It remains afterwards, and so does a bridge that labkit creates. That bridge is one of Linux or of Open vSwitch,
which forwards in user space where the kernel lacks its datapath. The port of an Open vSwitch stays in its database when
the container ends; the next `labkit attach` to one removes it.
"""

import argparse
import ipaddress
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from errno import EOPNOTSUPP
from pathlib import Path

from labkit.commands import arguments
from labkit.commands.messages import note
from labkit.common import packages, safe_files
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.limits import Form, Within
from labkit.common.printable import printable
from labkit.measure.endpoints.namespace import Namespace
from labkit.measure.existing import endpoints
from labkit.measure.topologies.network.kinds import KINDS as LINK_KINDS
from labkit.system import machine, netlink, process
from labkit.system.netlink import address_probe, ethtool

KINDS = ("veth", "macvlan", "ipvlan")
DHCP = "dhcp"
LEASE_S = 30.0
MAX_WAIT_S = 86400.0
IFNAMSIZ, ETH_P_8021Q = 16, 0x8100  # linux/if.h, linux/if_ether.h
MIN_MTU, MAX_MTU = 68, 65535  # RFC 791; a device may have narrower limits
USERSPACE = "tun"  # the kind of a switch's own interface if the switch forwards in user space
SWITCHES = ("openvswitch", USERSPACE)  # kinds of a switch's own interface
OVS = "ovs"  # a new bridge is one of Open vSwitch if its name begins so, as with pipework(8)
NO_BRIDGE = 2  # ovs-vsctl(8): br-exists ends so, and with other codes when the database does not answer
OVS_S = 20  # that ovs-vsctl may take to make or remove a bridge
OURS = "lk"  # the names of this machine's ends of veth pairs begin so
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
ALIAS = "labkit"  # of each interface in a container that labkit added
OVS_MARK = "external_ids:labkit=attach"  # of each port of an Open vSwitch that labkit added
POLL_S = 0.1
_LEASE = re.compile(r"^(ip|mask|router)='([0-9. ]+)'$", re.MULTILINE)


@dataclass(frozen=True)
class AttachRequest:
    """The interface to create.

    kind: one of KINDS. over: the bridge (veth) or NIC. interface: its name in the container. address: an address with a
    prefix length, `dhcp`, or None. gateway: the gateway of a default route. l3: ipvlan in its layer 3 mode. create:
    the bridge, if there is none. ovs: one of Open vSwitch, whatever its name.
    """

    kind: str
    over: str
    interface: str = "eth1"
    address: str | None = None
    gateway: str | None = None
    mac: str | None = None
    vlan: int | None = None
    mtu_bytes: int | None = None
    l3: bool = False
    create: bool = False
    ovs: bool = False

    def check(self) -> None:
        """Raise BadInput for the first impossible value."""
        Form(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}", "up to 15 letters, digits, dots, - or _").check(
            "--interface", self.interface
        )
        try:
            if self.address not in (None, DHCP):
                if "/" not in str(self.address):
                    raise ValueError(
                        f"{self.address} has no prefix length: write for example {self.address}/24"
                    )
                ipaddress.ip_interface(str(self.address))
            ipaddress.ip_address(self.gateway or "::")
        except ValueError as error:
            raise BadInput(str(error)) from None
        if self.gateway is not None and self.address in (None, DHCP):
            raise BadInput(
                "--gateway needs --address with an IP address; with dhcp the server sends the gateway"
            )
        Form(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", "for example 02:00:00:00:00:01").check("--mac", self.mac)
        if self.mac is not None and self.kind == "ipvlan":
            raise BadInput("an ipvlan device always has the MAC address of its NIC: leave --mac out")
        if self.l3 and (self.kind != "ipvlan" or self.gateway is not None or self.address == DHCP):
            raise BadInput(
                "--l3 is a mode of --ipvlan, in which nobody answers ARP or DHCP: leave --gateway and dhcp out, and"
                " route to the interface itself"
            )
        if self.create and self.kind != "veth":
            raise BadInput("--create makes the bridge of --veth; a NIC is there or not")
        if self.ovs and not self.create:
            raise BadInput("--ovs says which bridge --create makes: give both, or leave --ovs out")
        Within(1, 4094).check("--vlan", self.vlan)
        Within(MIN_MTU, MAX_MTU).check("--mtu", self.mtu_bytes)


@contextmanager
def container_namespace(container: str) -> Iterator[Namespace]:
    """Open the network namespace of a running container. Raises the errors of `existing.endpoints.resolve`."""
    with closing(endpoints.resolve(f"container:{container}")) as end, netlink.inside(end.namespace):
        space = Namespace(container, os.dup(end.namespace), netlink.Netlink())
    try:
        yield space
    finally:
        space.close()


@dataclass(frozen=True)
class Attached:
    """The interface's address with its prefix length (or None), the connected interface of this machine, and an address
    of the same network that the container has at another interface, as `ADDRESS at INTERFACE`, or None."""

    address: str | None
    here: str
    other: str | None


def attach(container: str, wanted: AttachRequest) -> Attached:
    """Add an interface to a running container.

    Raises BadInput for impossible values and for an address in use, Unsupported if the kernel lacks the feature, and
    Failed with the kernel's message. After an error, the interface is removed completely.
    """
    wanted.check()
    with container_namespace(container) as space, closing(netlink.Netlink()) as kernel, ExitStack() as undo:
        if wanted.interface in {link.name for link in netlink.links(space.netlink)}:
            raise BadInput(
                f"the container {container} already has an interface {wanted.interface}: choose another --interface"
            )
        here = _make(kernel, space, wanted, undo)
        index = _link(space, wanted.interface).index
        address = _configure(kernel, space, index, wanted)
        undo.pop_all()
        return Attached(address, here, address and _other(space, index, address))


def detach(container: str, interface: str) -> None:
    """Remove an interface that `attach` added. Raises BadInput for one that labkit did not add."""
    with container_namespace(container) as space, closing(netlink.Netlink()) as kernel:
        link = _link(space, interface)
        ours = [one for one in netlink.links(kernel) if one.name.startswith(OURS) and link.kind == "veth"]
        far = [one.name for one in ours if (one.index, one.link) == (link.link, link.index)]
        if link.alias != ALIAS:
            raise BadInput(f"labkit has not added {interface} to the container {container}")
        space.netlink.do(netlink.delete_link(link.index))
        if far and os.path.isabs(switch := machine.program("ovs-vsctl")):
            process.run([switch, "--timeout=5", "--if-exists", "del-port", far[0]])


def wait(container: str, interface: str, seconds: float) -> None:
    """Wait until a container has this interface and it is up. Raises Failed if that takes longer, or the
    container ends."""
    deadline = time.monotonic() + seconds
    with closing(endpoints.resolve(f"container:{container}")) as end, ExitStack() as stack:
        with netlink.inside(end.namespace):
            kernel = stack.enter_context(closing(netlink.Netlink()))
        while not any(link.name == interface and link.up and link.carrier for link in netlink.links(kernel)):
            endpoints.require(f"the container {container}", end.process)
            if time.monotonic() > deadline:
                raise Failed(
                    f"after {seconds:g} s the container {container} has no interface {interface} that is up"
                )
            time.sleep(POLL_S)


def _other(space: Namespace, index: int, address: str) -> str | None:
    """Return an address of the same network at another interface (`Attached.other`)."""
    own = ipaddress.ip_interface(address)
    names = {link.index: link.name for link in netlink.links(space.netlink)}
    for at, other in netlink.addresses(space.netlink):
        has = ipaddress.ip_interface(other)
        if at != index and has.version == own.version and (own.ip in has.network or has.ip in own.network):
            return f"{other} at {names[at]}"
    return None


def _link(space: Namespace, interface: str) -> netlink.Link:
    result = {link.name: link for link in netlink.links(space.netlink)}
    if interface not in result:
        raise BadInput(f"{space.name} has no interface {interface}; it has {', '.join(result)}")
    return result[interface]


def _make(kernel: netlink.Netlink, space: Namespace, wanted: AttachRequest, undo: ExitStack) -> str:
    """Create the interface in the container and return the name of the connected interface of this machine.

    `undo` removes it, and a VLAN device that was created for it.
    """
    try:
        known = {link.name: link for link in netlink.links(kernel)}
        if wanted.create and wanted.over not in known:
            _bridge(kernel, wanted, undo)
            known = {link.name: link for link in netlink.links(kernel)}
        if wanted.over not in known:
            raise BadInput(f"this machine has no interface {wanted.over}; it has {', '.join(known)}")
        over = known[wanted.over]
        common = {"netns": space.fd, "mtu_bytes": wanted.mtu_bytes, "mac": wanted.mac}
        if wanted.kind == "veth":
            return _veth(kernel, space, wanted, over, undo)
        lower = over.index if wanted.vlan is None else _vlan(kernel, wanted, known, undo)
        kind = LINK_KINDS[wanted.kind]
        mode = "bridge" if wanted.kind == "macvlan" else "l3" if wanted.l3 else "l2"
        data = {kind.mode_attribute: kind.modes[mode]}
        kernel.do(netlink.new_link(wanted.kind, wanted.interface, link=lower, data=data, **common))  # type: ignore[arg-type]
        undo.callback(space.netlink.do, netlink.delete_link(_link(space, wanted.interface).index))
        return next((link.name for link in netlink.links(kernel) if link.index == lower), wanted.over)
    except netlink.LinkError as error:
        raise (Unsupported if error.errno == EOPNOTSUPP else Failed)(
            f"{wanted.kind} on {wanted.over}: {error}"
        ) from None


def _bridge(kernel: netlink.Netlink, wanted: AttachRequest, undo: ExitStack) -> None:
    """Create the bridge, which `undo` removes."""
    if not (wanted.ovs or wanted.over.startswith(OVS)):
        kernel.do(netlink.new_link("bridge", wanted.over))
        undo.callback(kernel.do, netlink.delete_link(netlink.index_of(wanted.over)))
        return
    # It waits for ovs-vswitchd, which may have started just now.
    switch = [machine.require_program("ovs-vsctl"), f"--timeout={OVS_S}"]
    if not _has_bridge(switch, wanted.over):  # else it is somebody's, without an interface
        undo.callback(process.run, [*switch, "--if-exists", "del-br", wanted.over], 2 * OVS_S)
    # The second is for a kernel without the switch's datapath.
    for command in (["add-br", wanted.over], ["set", "bridge", wanted.over, "datapath_type=netdev"]):
        process.output([*switch, *command], 2 * OVS_S)
        if made := [link.index for link in netlink.links(kernel) if link.name == wanted.over]:
            kernel.do(netlink.set_link(made[0]))
            return
    raise Failed(f"Open vSwitch made no interface {wanted.over}: the log of ovs-vswitchd says why")


def _has_bridge(switch: list[str], name: str) -> bool:
    """Return whether Open vSwitch has a bridge of this name. Raises Failed if its database does not say."""
    ended = process.run([*switch, "br-exists", name], 2 * OVS_S)
    if ended.returncode not in (0, NO_BRIDGE):
        raise Failed(f"Open vSwitch does not say whether it has a bridge {name}: {ended.message()}")
    return ended.returncode == 0


def _veth(
    kernel: netlink.Netlink, space: Namespace, wanted: AttachRequest, bridge: netlink.Link, undo: ExitStack
) -> str:
    """Connect the container to the bridge or the switch by a veth pair and return the name of this machine's end.

    Deleting one end deletes both, which `undo` does; it also removes the port of a switch.
    """
    here = f"{OURS}{os.urandom(4).hex()}"
    peer = {"name": wanted.interface, "netns": space.fd, "mac": wanted.mac}
    mtu = wanted.mtu_bytes or bridge.mtu_bytes
    switch = [program := machine.program("ovs-vsctl"), "--timeout=5"]
    is_switch = bridge.kind in SWITCHES and os.path.isabs(program)
    if is_switch and _has_bridge(switch, wanted.over):
        ours = process.run([*switch, "--bare", "--columns=name", "find", "port", OVS_MARK]).stdout.split()
        for gone in set(ours) - {link.name for link in netlink.links(kernel)}:  # with their containers
            process.run([*switch, "--if-exists", "del-port", gone])
        kernel.do(netlink.new_link("veth", here, mtu_bytes=mtu, peer=peer))
        undo.callback(kernel.do, netlink.delete_link(netlink.index_of(here)))
        undo.callback(process.run, [*switch, "--if-exists", "del-port", here])
        if bridge.kind == USERSPACE:
            ethtool.complete_packets(space.fd, wanted.interface)
        tag = [] if wanted.vlan is None else [f"tag={wanted.vlan}"]
        process.output([*switch, "add-port", wanted.over, here, *tag, "--", "set", "port", here, OVS_MARK])
        return here
    if bridge.kind != "bridge":
        raise BadInput(
            f"{wanted.over} is not a bridge: --veth needs one; for a NIC use --macvlan or --ipvlan"
        )
    if wanted.vlan is not None and not bridge.data.get("IFLA_BR_VLAN_FILTERING"):
        raise BadInput(
            f"the bridge does not filter VLANs: ip link set {wanted.over} type bridge vlan_filtering 1"
        )
    kernel.do(netlink.new_link("veth", here, mtu_bytes=mtu, peer=peer, master=bridge.index))
    undo.callback(kernel.do, netlink.delete_link(netlink.index_of(here)))
    if wanted.vlan is not None:
        command = [machine.program("bridge"), "vlan"]
        default = bridge.data.get("IFLA_BR_VLAN_DEFAULT_PVID") or 1
        process.output([*command, "del", "dev", here, "vid", str(default)])
        process.output([*command, "add", "dev", here, "vid", str(wanted.vlan), "pvid", "untagged"])
    return here


def _vlan(
    kernel: netlink.Netlink, wanted: AttachRequest, known: dict[str, netlink.Link], undo: ExitStack
) -> int:
    """Return the index of the NIC's device for this VLAN, whatever its name. Create the device if there is none."""
    over, vlan = known[wanted.over].index, wanted.vlan
    for link in known.values():
        here = link.kind == "vlan" and link.link == over and link.link_netnsid is None
        protocol = link.data.get("IFLA_VLAN_PROTOCOL", ETH_P_8021Q)
        if here and (link.data.get("IFLA_VLAN_ID"), protocol) == (vlan, ETH_P_8021Q):
            return link.index
    names = [f"{wanted.over}.{vlan}", f"lk{over}.{vlan}"]
    free = [name for name in names if len(name) < IFNAMSIZ and name not in known]
    if not free:
        raise BadInput(
            f"{wanted.over} has no device of VLAN {vlan}, and the names {' and '.join(names)} are taken or too long:"
            f" create one with ip link add NAME link {wanted.over} up type vlan id {vlan}"
        )
    kernel.do(netlink.new_link("vlan", free[0], link=over, data={"IFLA_VLAN_ID": vlan}))
    index = netlink.index_of(free[0])
    undo.callback(kernel.do, netlink.delete_link(index))
    return index


def _configure(kernel: netlink.Netlink, space: Namespace, index: int, wanted: AttachRequest) -> str | None:
    """Set the interface up, mark it as labkit's, add the wanted address and default route, and return the address."""
    space.netlink.do(netlink.set_link(index, alias=ALIAS))
    if wanted.address is None:
        return None
    address, gateway = wanted.address, wanted.gateway
    if address == DHCP:
        address, gateway = _lease(space, wanted.interface)
    else:
        _check_free(kernel, space, wanted, ipaddress.ip_interface(address))
    own = ipaddress.ip_interface(address)
    space.netlink.do(netlink.new_address(index, own))
    if isinstance(own, ipaddress.IPv4Interface) and not wanted.l3:
        with netlink.inside(space.fd):
            address_probe.announce(wanted.interface, own.ip)
    if gateway is not None:
        # Before the engine's default route, which counts again after `detach`. Of IPv6 a smaller metric does that.
        is_ipv4 = ipaddress.ip_address(gateway).version == 4
        more = {"before_others": True} if is_ipv4 else {"family": 6, "metric": 1}
        space.netlink.do(netlink.new_route("default", [(index, gateway)], **more))
    return address


def _check_free(kernel: netlink.Netlink, space: Namespace, wanted: AttachRequest, own: Interface) -> None:
    """Raise BadInput for an address that this machine, the container or another host on the link has."""
    holders = {"this machine": kernel, f"the container {space.name}": space.netlink}
    for name, of in holders.items():
        if str(own.ip) in {address.partition("/")[0] for _, address in netlink.addresses(of)}:
            raise BadInput(f"the address {own.ip} is taken: {name} has it; choose another --address")
    if not wanted.l3:
        with netlink.inside(space.fd):
            mac = address_probe.holder(wanted.interface, own.ip)
        if mac is not None:
            raise BadInput(f"the address {own.ip} is taken: {mac} answers for it; choose another --address")


def _lease(space: Namespace, interface: str) -> tuple[str, str | None]:
    """Request an address with its prefix length, and a router, from a DHCP server (RFC 2131).

    busybox's udhcpc asks once and does not renew the lease.
    """
    busybox = next((result for name in ("busybox-static", "busybox") if (result := shutil.which(name))), None)
    if busybox is None:
        raise Unsupported(packages.missing("busybox"))
    # Not in the runtime folder, whose programs may not be executable (noexec).
    with safe_files.own_folder(Path(tempfile.gettempdir()), "labkit-attach-") as (scratch, *_):
        script, lease = Path(scratch, "script"), Path(scratch, "lease")
        script.write_text(f'#!{busybox} sh\n[ "$1" != bound ] || set >"{lease}"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        command = ["udhcpc", "-f", "-q", "-n", "-t", "5", "-T", "1", "-i", interface, "-s", str(script)]
        ended = process.run([*space.prefix, busybox, *command], LEASE_S)
        if not lease.exists():
            raise Failed(f"no DHCP server gave {interface} an address: {ended.message()}")
        report: dict[str, str] = dict(_LEASE.findall(lease.read_text()))
    return f"{report['ip']}/{report.get('mask', '24')}", next(iter(report.get("router", "").split()), None)


NOTES = """\
Everything is removed again when attaching fails. An address by DHCP keeps its first lease, because
nothing renews it. After the lease ends, the DHCP server may give the address to another machine.
Hosts on the link are told of an IPv4 address (ARP). An Open vSwitch is that of this machine. The route by --gateway
or of a DHCP lease comes before the engine's default route, which counts again after --detach.

    labkit attach CONTAINER --veth BRIDGE --address 10.0.0.2/24
    labkit attach CONTAINER --veth br7 --create --address 10.0.0.2/24
    labkit attach CONTAINER --veth ovs7 --create --address 10.0.0.2/24
    labkit attach CONTAINER --macvlan NIC --vlan 10 --address dhcp
    labkit attach CONTAINER --ipvlan NIC --l3 --address 10.0.0.2/24
    labkit attach CONTAINER --wait 10
    labkit attach CONTAINER --detach
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "container", metavar="CONTAINER", help="the name of a running Docker or Podman container"
    )
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--veth", metavar="BRIDGE", help="connect a veth pair to this bridge, of Linux or of Open vSwitch"
    )
    kind.add_argument(
        "--macvlan", metavar="NIC", help="create a macvlan on this NIC, with its own MAC address"
    )
    kind.add_argument(
        "--ipvlan", metavar="NIC", help="create an ipvlan on this NIC, with the NIC's MAC address"
    )
    kind.add_argument("--detach", action="store_true", help="remove the interface that labkit added")
    kind.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="wait at most so long until the interface is there and up",
    )
    parser.add_argument("--l3", action="store_true", help="with --ipvlan: the layer 3 mode, without ARP")
    parser.add_argument("--create", action="store_true", help="with --veth: make the bridge if there is none")
    parser.add_argument(
        "--ovs", action="store_true", help="with --create: one of Open vSwitch, as if its name began with ovs"
    )
    parser.add_argument(
        "--interface", default="eth1", metavar="NAME", help="its name in the container; default: eth1"
    )
    parser.add_argument(
        "--address", metavar="ADDRESS/LENGTH|dhcp", help="its address, for example 10.0.0.2/24"
    )
    parser.add_argument("--gateway", metavar="ADDRESS", help="gateway of the container's default route")
    parser.add_argument("--mac", metavar="MAC", help="its MAC address; default: the kernel chooses one")
    parser.add_argument("--vlan", type=int, metavar="N", help="its VLAN, 1 to 4094")
    parser.add_argument("--mtu", type=int, metavar="BYTES", help="its MTU in bytes")


def run(given: argparse.Namespace) -> int:
    Within(0, MAX_WAIT_S).check("--wait", given.wait)
    if given.detach or given.wait is not None:
        arguments.refuse(given, ("l3", "create", "ovs", "address", "gateway", "mac", "vlan", "mtu"), "here")
    if given.detach:
        detach(given.container, given.interface)
        return 0
    if given.wait is not None:
        wait(given.container, given.interface, given.wait)
        return 0
    kind = next(name for name in KINDS if getattr(given, name))
    more = (given.interface, given.address, given.gateway, given.mac, given.vlan, given.mtu)
    of_bridge = {"create": given.create, "ovs": given.ovs}
    wanted = AttachRequest(kind, getattr(given, kind), *more, l3=given.l3, **of_bridge)
    with process.ended_by_signals():
        result = attach(given.container, wanted)
    if result.other:
        note(
            f"{given.container} also has {result.other}, in the same network: it sends there by one of the two only"
        )
    address = f" {result.address}" if result.address else ""
    print(printable(f"{given.container}: {given.interface}{address}; on this machine: {result.here}"))
    return 0
