"""The mirrors of a switch: where their copies go, who reads them, and a check that all copies are made.

The copies of each mirror are counted where they arrive (`arrivals`). Their expected number comes from the counters of
the ports that the mirrors select.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface
from typing import Any

import msgspec

from labkit.common import units
from labkit.common.errors import BadInput, Failed
from labkit.common.switch_options import TUNNELS, Datapath, SwitchOptions, mirrored_end
from labkit.measure.endpoints import Endpoint, Namespace, Pair, RemoteEnd, RemotePair
from labkit.measure.topologies.base import BETWEEN, MONITOR, Copies, Meter, Spec, end_name, mac, numbers
from labkit.measure.topologies.network import kinds
from labkit.measure.topologies.network.build import BuiltNetwork
from labkit.measure.topologies.network.parts import Cable, CableEnd, Node, Part
from labkit.measure.topologies.network.validate import MAX_BYTES
from labkit.measure.topologies.open_vswitch.configuration import Bridge, Port, Row, references
from labkit.measure.topologies.open_vswitch.copies import counting, mark, reading
from labkit.measure.topologies.open_vswitch.switch import Switch
from labkit.measure.topologies.physical_nic import borrowed_nic
from labkit.system import machine, netlink, process
from labkit.system.netlink.packet_sockets import PacketSockets

UPLINK = "uplink"
MIRROR_SIDE, UPLINK_SIDE = 4, 5  # parts of the MAC addresses
NEAR, FAR = IPv4Interface("198.18.0.1/24"), IPv4Interface("198.18.0.2/24")  # RFC 2544, benchmarking addresses
UNDERLAY = "underlay"
ERSPAN = kinds.Header("ERSPAN", 8, "draft-foschiano-erspan-03, type II")
GRE_SEQUENCE = kinds.Header("GRE sequence number", 4, "RFC 2890")
VLAN_TAG = kinds.Header("VLAN tag", 4, "IEEE 802.1Q")
DISCARD = 9
CPUS_APART = 4  # as in the thesis: one for the switch and a client, one for a server, two for everything else
PROOF_S, TRY_S = 30.0, 0.25
SHOWN = 4  # mirrors in a sentence


@dataclass(frozen=True)
class Counts:
    """Counts up to a moment.

    `switched`: packets that the ends sent. `selected`: those of which each mirror should have made a copy. `copies`:
    those that arrived. `dropped`: what the link out of the host lost: drops of its queue, or with a second host what
    this host's NIC sent and that of the other did not receive; None: the link's rate is not limited. `lost`: packets
    dropped at the switch's sockets; None: they cannot be counted (the kernel's datapath, DPDK). `cpu_s`: the switch's
    CPU time.
    """

    switched: int
    selected: int
    copies: Copies
    dropped: int | None
    lost: int | None
    cpu_s: float


def tunnel_headers(parameters: SwitchOptions) -> tuple[kinds.Header, ...]:
    """Return the headers before a copy in a mirror's tunnel, from the outside in, with the copy's own Ethernet
    header."""
    tag = (VLAN_TAG,) if parameters.vlans else ()
    if parameters.output == "erspan":
        return (kinds.IPV4, kinds.GRE, GRE_SEQUENCE, ERSPAN, kinds.ETHERNET, *tag)
    return (*kinds.headers({"gre": "gretap"}.get(parameters.output, parameters.output), key=True), *tag)


def outputs(parameters: SwitchOptions) -> list[str]:
    """Return the names of the mirrors, which are those of their ports."""
    return [f"mirror{number}" for number in range(parameters.mirrors)]


def uplink_mtu_bytes(parameters: SwitchOptions, spec: Spec) -> int:
    """Return the MTU of the link by which tunnels leave: the given one, or what the largest copy needs."""
    return parameters.uplink_mtu or spec.mtu_bytes + kinds.length_bytes(tunnel_headers(parameters))


def monitor_parts(parameters: SwitchOptions, spec: Spec) -> list[Part]:
    """Return the namespace where copies arrive, with the cables to it; nothing if none arrive on this host."""
    is_tunnelled = parameters.output in TUNNELS
    if not parameters.mirrors or (is_tunnelled and spec.monitor is not None):
        return []
    own = {"veth": outputs(parameters), "internal": [], "vlan": ["trunk"]}.get(parameters.output, [UPLINK])
    part = MIRROR_SIDE if parameters.output == "veth" else UPLINK_SIDE
    mtu_bytes = uplink_mtu_bytes(parameters, spec) if is_tunnelled else spec.mtu_bytes
    cables = [
        Cable(
            CableEnd(BETWEEN, name, mac=mac(2 * position, part)),
            CableEnd(MONITOR, name, mac=mac(2 * position + 1, part)),
            mtu_bytes,
        )
        for position, name in enumerate(own)
    ]
    return [Node(MONITOR), *cables]


class Mirrors:
    """The mirrors of one switch, from the ports that they need to the counts of their copies."""

    def __init__(
        self, parameters: SwitchOptions, spec: Spec, built: BuiltNetwork, indices: Mapping[int, int]
    ) -> None:
        self._parameters, self._spec = parameters, spec
        self._between, self._monitor = built.space[BETWEEN], built.space.get(MONITOR)
        self._arriving, self._leaving = selected(parameters, spec)
        self.outputs = outputs(parameters)
        self._indices = indices  # of the ends' ports, by the ends' numbers
        # where copies arrive: names and indexes in `monitor`
        self._ends = [(name, index) for (at, name), index in built.index.items() if at == MONITOR]
        self._remote = spec.monitor if parameters.copies_leave else None
        self._uplink = (UPLINK, built.index.get((BETWEEN, UPLINK), 0))
        self._remote_mac = mac(1, UPLINK_SIDE)
        self._sockets: PacketSockets | None = None  # of the switch
        self._arrived: Callable[[], Copies] = lambda: Copies(0)
        self._unread: Callable[[], tuple[int | None, ...]] = lambda: (0,) * len(self._ends)

    def bridges(self, name: str, ports: Sequence[Port]) -> list[Bridge]:
        """Return the switch with all ports, and a bridge for the outer side of tunnels if the datapath needs one."""
        own = self._parameters
        kind, _, of = (own.sampling or "").partition(":")
        sampling = (kind, int(of)) if kind else None
        every = [*ports, *self._ports()]
        main = Bridge(name, own.datapath, every, self._mirrors(), ports[0].vlan, sampling)
        if own.copies_leave and own.datapath.in_userspace:
            # Also with DPDK: the frames of tunnels are too large for its driver.
            return [main, Bridge(UNDERLAY, Datapath.SOCKETS, [Port(self._uplink[0])])]
        return [main]

    def _ports(self) -> list[Port]:
        parameters = self._parameters
        if not parameters.mirrors:
            return []
        if parameters.output == "vlan":
            return [Port("trunk", trunks=tuple(map(self._mark, range(parameters.mirrors))))]
        if parameters.output in TUNNELS:
            return [
                Port(name, parameters.output, self._tunnel_options(number))
                for number, name in enumerate(self.outputs)
            ]
        return [Port(name, "internal" if parameters.output == "internal" else "") for name in self.outputs]

    def _tunnel_options(self, number: int) -> dict[str, str]:
        result = {"remote_ip": str(FAR.ip), "local_ip": str(NEAR.ip), "key": str(self._mark(number))}
        if self._parameters.output == "erspan":
            result |= {"erspan_ver": "1", "erspan_idx": str(self._mark(number))}
        return result

    def _mark(self, number: int) -> int:
        return mark(self._parameters.output, number)

    def _mirrors(self) -> list[Row]:
        """Return the rows of the mirrors: which packets they copy, and where the copies leave."""
        parameters = self._parameters
        kind, _, number = parameters.select.partition(":")
        sides = (("select_src_port", self._arriving), ("select_dst_port", self._leaving))
        chosen: Row = {side: references("port", [f"port{one}" for one in ends]) for side, ends in sides}
        if kind in ("all", "vlan"):
            chosen = {"select_all": True, "select_vlan": int(number) if kind == "vlan" else None}
        in_vlan = parameters.output == "vlan"
        return [
            {
                "name": name,
                **chosen,
                "output_port": None if in_vlan else references("port", [name]),
                "output_vlan": self._mark(position) if in_vlan else None,
                "snaplen": parameters.snaplen,
            }
            for position, name in enumerate(self.outputs)
        ]

    @contextmanager
    def uplink(self) -> Iterator[None]:
        """Borrow the NIC at the cable to the host where copies arrive, if they leave this one, until the block ends.

        There they are counted and read.
        """
        if (remote := self._remote) is None:
            yield
            return
        mtu_bytes = uplink_mtu_bytes(self._parameters, self._spec)
        of_nic = replace(self._spec, parent=remote.parent, mtu_bytes=mtu_bytes)
        with borrowed_nic(of_nic, self._between, moved=True) as (kernel, index), ExitStack() as stack:
            self._uplink = next((one.name, index) for one in netlink.links(kernel) if one.index == index)
            stack.callback(remote.stop)
            self._remote_mac = remote.receive(self._parameters.name, mtu_bytes)
            yield

    def connect(self, switch: Switch) -> None:
        """Configure what needs ports of the running switch: tunnel addresses and internal ports."""
        if not self._parameters.mirrors:
            return
        if self._parameters.output == "internal":
            self._move_internal()
        elif self._parameters.output in TUNNELS:
            self._connect_tunnels(switch)

    def _move_internal(self) -> None:
        assert self._monitor is not None, "there are mirrors"
        for name in self.outputs:
            with netlink.inside(self._between.fd):
                index = netlink.index_of(name)
            self._between.netlink.do(netlink.move_link(index, self._monitor.fd))
            with netlink.inside(self._monitor.fd):
                index = netlink.index_of(name)
            self._monitor.netlink.do(netlink.set_link(index, mtu_bytes=self._spec.mtu_bytes))
            self._ends.append((name, index))

    def _connect_tunnels(self, switch: Switch) -> None:
        name, uplink = self._uplink
        switch.uplink = name
        connect_underlay(switch, self._between, uplink, self._remote_mac)
        if (rate_bps := self._parameters.uplink_bps) is not None:
            tc = [*self._between.prefix, machine.program("tc"), "qdisc", "add", "dev", name, "root"]
            process.output([*tc, *machine.token_bucket(rate_bps, self._spec.mtu_bytes)])

    @contextmanager
    def read(self) -> Iterator[None]:
        """Run the requested readers of the copies on this host until the block ends."""
        if self._monitor is None:
            yield
            return
        with reading(self._parameters.readers, self._monitor, self._ends) as self._unread:
            yield

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count drops at the switch's packet sockets, and copies that arrive on this host, until the block ends."""
        with closing(PacketSockets(self._between.fd)) as self._sockets, ExitStack() as stack:
            if self._monitor is not None:
                self._arrived = stack.enter_context(counting(self._parameters, self._monitor, self._ends))
            yield

    def counts(self, switch: Switch) -> Counts:
        left = {number: self._counters(number).sent_count for number in self._indices}
        # Pairs talk only among themselves: what arrives at one end's port leaves at the other's. The packets that
        # leave are counted, so no second counter, read at another time, is needed.
        arrived = {number: left[number ^ 1] for number in left if number ^ 1 in left}
        if self._spec.side is not None:
            # The other end is on another host: packets that the switch's socket drops are counted here as well.
            arrived = {number: self._counters(number).received_count for number in left}
        selected_count = sum(arrived[number] for number in self._arriving)
        selected_count += sum(left[number] for number in self._leaving)
        dropped = self._dropped_count()
        sent = self._between.netlink.counters(self._uplink[1]).sent_count if self._remote is not None else 0
        if self._remote is not None:
            copies = self._remote.counts()
            dropped = sent - copies.count if dropped is None else dropped
        else:
            copies = msgspec.structs.replace(self._arrived(), unread=self._unread())
        assert self._sockets is not None, "the switch is counted"
        # Rings of DPDK's packet sockets drop without a count there.
        total = sum(self._sockets.drops().values()) if self._parameters.datapath is Datapath.SOCKETS else None
        switched = sum(arrived.values())
        if self._spec.side is not None:  # what the cable brought
            switched += sum(left.values())
        return Counts(switched, selected_count, copies, dropped, total, switch.cpu_s())

    def _dropped_count(self) -> int | None:
        """Return the drops of the uplink's queue; None without a limit of its rate."""
        if self._parameters.uplink_bps is None:
            return None
        queues = netlink.qdiscs(self._between.netlink)
        return sum(
            counts["drop"]
            for index, name, counts in queues
            if index == self._uplink[1] and name.startswith("tbf")
        )

    def _counters(self, number: int) -> netlink.LinkCounters:
        return self._between.netlink.counters(self._indices[number])

    def meter(self, switch: Switch) -> Meter:
        """Return a function that reads the counters and returns a function for the columns since then."""

        def begin() -> Callable[[], dict[str, Any]]:
            before = self.counts(switch)

            def end() -> dict[str, Any]:
                now = self.counts(switch)
                result: dict[str, Any] = {
                    "switch_cpu_s": now.cpu_s - before.cpu_s,
                    "switched_count": now.switched - before.switched,
                }
                if now.lost is not None and before.lost is not None:
                    result["switch_lost_count"] = now.lost - before.lost
                if self._parameters.mirrors:
                    selected_count = now.selected - before.selected
                    result["copies_expected_count"] = self._parameters.mirrors * selected_count
                    result |= copy_columns(before.copies, now.copies)
                if now.dropped is not None and before.dropped is not None:
                    # The monitor on another host is read a little later than this host's NIC.
                    result["copies_dropped_count"] = max(0, now.dropped - before.dropped)
                return result

            return end

        return begin

    def doubts(self) -> tuple[str, ...]:
        """Return doubts about CPUs that a bound switch shares, and about copies that do not fit the uplink."""
        own, result = self._parameters, list[str]()
        cpus = len(os.sched_getaffinity(0))
        if own.cpu is not None and cpus < CPUS_APART:
            result.append(
                f"the switch is bound to CPU {own.cpu}, but this machine has {units.counted(cpus, 'CPU')}: readers of"
                " copies and labkit itself share CPUs with the switch and the ends, so their costs cannot be separated"
                f" ({CPUS_APART} CPUs are needed)"
            )
        if own.uplink_mtu is not None:  # the switch drops what is larger without a counter
            added = tunnel_headers(own)
            room_bytes = own.uplink_mtu - kinds.length_bytes(added)
            snapped_bytes = (own.snaplen or MAX_BYTES) - kinds.ETHERNET.length_bytes
            if min(self._spec.mtu_bytes, snapped_bytes) > room_bytes:
                result.append(
                    f"copies of packets of more than {room_bytes} bytes do not fit the mirror's tunnel and are lost:"
                    f" {kinds.arithmetic(own.uplink_mtu, 'uplink', added)}"
                )
        if own.datapath.polls:
            result.append(
                "a thread of the switch always polls and takes a whole CPU, so CPU time is not the cost of packets"
            )
        return tuple(result)

    def prove(self, switch: Switch, pairs: Sequence[Pair | RemotePair]) -> None:
        """Check that every mirror works: as many of its copies must arrive as its ports' counters say.

        A mirror applies to new flows only, so flows are removed before each further attempt. Raises Failed if copies
        are still missing after PROOF_S.
        """
        if not self._parameters.mirrors:
            return
        deadline = time.monotonic() + PROOF_S
        while True:
            before = self.counts(switch)
            for pair in pairs:
                _send(pair.client, pair.server)
                if not isinstance(pair, RemotePair):
                    _send(pair.server, pair.client)
            until = time.monotonic() + TRY_S
            while time.monotonic() < until:
                now = self.counts(switch)
                wanted, made = now.selected - before.selected, copy_columns(before.copies, now.copies)
                wrong = missing_copies(self._parameters.mirrors, wanted, made)
                if wanted > 0 and wrong is None:
                    return
                time.sleep(0.002)
            if time.monotonic() > deadline:
                why = switch.warnings() or "Open vSwitch gives no reason"
                none = f"the ends sent nothing that select={self._parameters.select} selects"
                raise Failed(f"{wrong or none}: {why}")
            switch.command("revalidator/purge")


def connect_underlay(switch: Switch, between: Namespace, uplink: int, remote_mac: str) -> int:
    """Give the switch's end of tunnels its address, and the other end as a permanent neighbour; return the index of the
    interface that has them.

    The kernel's datapath sends by `uplink`. Tunnels of the userspace datapath are routed by the addresses of bridges
    (Documentation/howto/userspace-tunneling.rst).
    """
    if not switch.kernel:
        with netlink.inside(between.fd):
            uplink = netlink.index_of(UNDERLAY)
        switch.command("tnl/arp/set", UNDERLAY, str(FAR.ip), remote_mac)
    between.netlink.do(
        netlink.set_link(uplink),
        netlink.new_address(uplink, NEAR),
        netlink.new_neighbour(uplink, str(FAR.ip), remote_mac),
    )
    return uplink


def copy_columns(before: Copies, now: Copies) -> dict[str, Any]:
    """Return the columns of the copies that arrived between two moments. What nobody can know is left out."""
    result: dict[str, Any] = {"copies_count": now.count - before.count}
    if now.of_mirrors is not None and before.of_mirrors is not None:
        result["copies_of_mirrors"] = _differences(before.of_mirrors, now.of_mirrors)
    unread = _differences(before.unread, now.unread)
    if None not in unread:
        result["copies_unread_count"] = sum(unread)
        # Mirrors that share a cable share its reader.
        if now.of_mirrors is not None and len(unread) == len(now.of_mirrors):
            result["unread_of_mirrors"] = unread
    return result


def _differences(before: Sequence[int | None], now: Sequence[int | None]) -> list[Any]:
    return [
        None if one is None or other is None else other - one for one, other in zip(before, now, strict=True)
    ]


def missing_copies(mirrors: int, wanted: int, made: Mapping[str, Any]) -> str | None:
    """Return in words which mirrors did not make `wanted` copies each; None: all did. `made`: `copy_columns`."""
    if (each := made.get("copies_of_mirrors")) is None:
        whole = f"{mirrors} mirrors should have made {mirrors * wanted} copies, and {made['copies_count']} arrived"
        return None if made["copies_count"] == mirrors * wanted else whole
    wrong = [f"{count} of mirror{number}" for number, count in enumerate(each) if count != wanted]
    if not wrong:
        return None
    more = f" and of {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
    copies = "1 copy" if wanted == 1 else f"{wanted} copies"
    return f"each mirror should have made {copies}, and {', '.join(wrong[:SHOWN])}{more} arrived"


def selected(parameters: SwitchOptions, spec: Spec) -> tuple[list[int], list[int]]:
    """Return the ends at whose ports packets are copied once per mirror: where they arrive, and where they leave.

    A mirror copies a packet once, even if it selects it twice. Raises BadInput for an end that does not exist.
    """
    if not parameters.mirrors:
        return [], []
    kind, _, direction = parameters.select.partition(":")
    everybody = list(numbers(spec))
    mirrored = mirrored_end(parameters, spec.pairs)
    if mirrored is None:
        some = [
            one
            for one in everybody
            if kind == "all" or not parameters.vlans or 1 + one // 2 % parameters.vlans == int(direction)
        ]
        # On one side of two hosts a packet passes one end's port, on one host two.
        return some, some if spec.side is not None else []
    role, number = mirrored
    one = [2 * number + (role == "server")]
    if one[0] not in everybody:
        raise BadInput(
            f"select={parameters.select}: {kind} is on the other host, and mirrors are on the clients' host: choose"
            f" {end_name(everybody[0])}, or nodes=one"
        )
    return (one if direction != "out" else []), (one if direction != "in" else [])


def _send(end: Endpoint, to: Endpoint | RemoteEnd) -> None:
    """Send one datagram to the discard port of another end."""
    if not end.kernel.is_here:
        process.run([*end.prefix, "ping", "-c1", "-W1", to.address])
        return
    family = socket.AF_INET6 if ":" in to.address else socket.AF_INET
    with netlink.inside(end.namespace.fd), socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"", (to.address, DISCARD))
