"""The mirrors of a switch: where their copies go, who reads them, and a check that all copies are made.

Copies are counted where they arrive, at the interfaces of the namespace `monitor`. The expected number comes from the
counters of the ports that the mirrors select.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Any

from labkit.common import units
from labkit.common.errors import BadInput, Failed
from labkit.measure.endpoints import Endpoint, Namespace, Pair
from labkit.measure.topologies.base import PORT, Meter, Spec, mac
from labkit.measure.topologies.network.encapsulation import (
    ETHERNET,
    GRE,
    IPV4,
    Header,
    arithmetic,
    headers,
    length_bytes,
)
from labkit.measure.topologies.open_vswitch.configuration import Bridge, Mirror, Port
from labkit.measure.topologies.open_vswitch.readers import reading
from labkit.measure.topologies.open_vswitch.switch import Switch
from labkit.measure.topologies.open_vswitch.switch_options import TUNNELS, Datapath, SwitchOptions
from labkit.system import machine, netlink, process

MONITOR = "monitor"  # the namespace where copies arrive: on this host, or a second host behind a tunnel
MIRROR = PORT + 2000  # the first index of a mirror's output
UPLINK = PORT + 3000
MIRROR_SIDE, UPLINK_SIDE = 4, 5  # parts of the MAC addresses
RSPAN_VLAN = 4000  # the VLAN of the first mirror's copies
NEAR, FAR = IPv4Interface("198.18.0.1/24"), IPv4Interface("198.18.0.2/24")  # RFC 2544, benchmarking addresses
UNDERLAY = "underlay"
ERSPAN = Header("ERSPAN", 8, "draft-foschiano-erspan-03, type II")
GRE_SEQUENCE = Header("GRE sequence number", 4, "RFC 2890")
VLAN_TAG = Header("VLAN tag", 4, "IEEE 802.1Q")
QUEUE_MS = 50  # of the uplink's token bucket, as for the link between two lab VMs
DISCARD = 9
CPUS_APART = 4  # as in the thesis: one for the switch and a client, one for a server, two for everything else
PROOF_S, TRY_S = 30.0, 0.25


@dataclass(frozen=True)
class Counts:
    """Counts up to a moment.

    `switched`: packets that the ends sent. `expected`: copies that all mirrors should have made. `copies`: copies that
    arrived. `dropped`: copies dropped by the queue of the uplink; None: its rate is not limited. `unread`: copies
    dropped at a reader's socket; None: nobody can know. `lost`: packets dropped at the switch's sockets; None:
    they cannot be counted (the kernel's datapath, DPDK). `cpu_s`: the switch's CPU time.
    """

    switched: int
    expected: int
    copies: int
    dropped: int | None
    unread: int | None
    lost: int | None
    cpu_s: float


def tunnel_headers(parameters: SwitchOptions) -> tuple[Header, ...]:
    """Return the headers before a copy in a mirror's tunnel, from the outside in, with the copy's own Ethernet
    header."""
    tag = (VLAN_TAG,) if parameters.vlans else ()
    if parameters.output == "erspan":
        return (IPV4, GRE, GRE_SEQUENCE, ERSPAN, ETHERNET, *tag)
    return (*headers({"gre": "gretap"}.get(parameters.output, parameters.output), key=True), *tag)


class Mirrors:
    """The mirrors of one switch, from the ports that they need to the counts of their copies."""

    def __init__(
        self,
        parameters: SwitchOptions,
        spec: Spec,
        datapath: Datapath,
        between: Namespace,
        monitor: Namespace | None,
        indices: Mapping[int, int],
    ) -> None:
        self._parameters, self._spec, self._between, self._monitor = parameters, spec, between, monitor
        self._arriving, self._leaving = selected(parameters, spec)
        self.outputs = [f"mirror{number}" for number in range(parameters.mirrors)]
        self._indices = indices  # of the ends' ports, by the ends' numbers
        self._datapath = datapath
        self._ends: list[tuple[str, int]] = []  # where copies arrive: names and indexes in `monitor`
        self._sockets: netlink.PacketSockets | None = None  # of the switch
        self._unread: Callable[[], int | None] = lambda: 0

    @property
    def _userspace(self) -> bool:
        return self._datapath.in_userspace

    def bridges(self, name: str, ports: Sequence[Port]) -> list[Bridge]:
        """Return the switch with all ports, and a bridge for the outer side of tunnels if the datapath needs one."""
        kind, _, of = (self._parameters.sampling or "").partition(":")
        sampling = (kind, int(of)) if kind else None
        main = Bridge(
            name, self._datapath, [*ports, *self._ports()], self._mirrors(), ports[0].vlan, sampling
        )
        if self._parameters.output in TUNNELS and self._parameters.mirrors and self._userspace:
            # Also with DPDK: the frames of tunnels are too large for its driver.
            return [main, Bridge(UNDERLAY, Datapath.SOCKETS, [Port("uplink")])]
        return [main]

    def _ports(self) -> list[Port]:
        parameters = self._parameters
        if not parameters.mirrors:
            return []
        if parameters.output == "vlan":
            return [Port("trunk", trunks=tuple(self._vlans()))]
        if parameters.output in TUNNELS:
            return [
                Port(name, parameters.output, self._tunnel_options(number))
                for number, name in enumerate(self.outputs)
            ]
        return [Port(name, "internal" if parameters.output == "internal" else "") for name in self.outputs]

    def _tunnel_options(self, number: int) -> dict[str, str]:
        result = {"remote_ip": str(FAR.ip), "local_ip": str(NEAR.ip), "key": str(number + 1)}
        if self._parameters.output == "erspan":
            result |= {"erspan_ver": "1", "erspan_idx": str(number + 1)}
        return result

    def _vlans(self) -> range:
        return range(RSPAN_VLAN, RSPAN_VLAN + self._parameters.mirrors)

    def _mirrors(self) -> list[Mirror]:
        parameters = self._parameters
        kind, _, number = parameters.select.partition(":")
        everything = kind in ("all", "vlan")
        return [
            Mirror(
                name,
                () if everything else tuple(f"port{one}" for one in self._arriving),
                () if everything else tuple(f"port{one}" for one in self._leaving),
                everything=everything,
                vlans=(int(number),) if kind == "vlan" else (),
                port=None if parameters.output == "vlan" else name,
                vlan=RSPAN_VLAN + position if parameters.output == "vlan" else None,
                snaplen=parameters.snaplen,
            )
            for position, name in enumerate(self.outputs)
        ]

    def lay_cables(self) -> None:
        """Create the interfaces where copies leave and arrive."""
        parameters = self._parameters
        if self._monitor is None or parameters.output == "internal":
            return
        if parameters.output == "veth":
            self._cables([(name, MIRROR + number) for number, name in enumerate(self.outputs)], MIRROR_SIDE)
        else:
            self._cables([("trunk" if parameters.output == "vlan" else "uplink", UPLINK)], UPLINK_SIDE)

    def _cables(self, wanted: Sequence[tuple[str, int]], part: int) -> None:
        assert self._monitor is not None, "there are mirrors"
        mtu_bytes = self._spec.mtu_bytes
        if self._parameters.output in TUNNELS:
            mtu_bytes = self._parameters.uplink_mtu or mtu_bytes + length_bytes(
                tunnel_headers(self._parameters)
            )
        self._between.netlink.do(
            *(
                netlink.new_link(
                    "veth", name, index=index, mtu_bytes=mtu_bytes, mac=mac(2 * position, part),
                    peer={"name": name, "index": index, "netns": self._monitor.fd, "mac": mac(2 * position + 1, part)},
                )
                for position, (name, index) in enumerate(wanted)
            )
        )  # fmt: skip
        self._monitor.netlink.do(*(netlink.set_link(index) for _name, index in wanted))
        self._ends = list(wanted)

    def connect(self, switch: Switch) -> None:
        """Configure what needs ports of the running switch: tunnel addresses and internal ports."""
        if self._monitor is None:
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
        far = mac(1, UPLINK_SIDE)
        if self._userspace:
            # Tunnels of the userspace datapath are routed by the addresses of bridges (Documentation/howto/userspace-
            # tunneling.rst).
            with netlink.inside(self._between.fd):
                index = netlink.index_of(UNDERLAY)
            self._between.netlink.do(netlink.set_link(index), netlink.new_address(index, NEAR))
            switch.command("tnl/arp/set", UNDERLAY, str(FAR.ip), far)
        else:
            near = [netlink.new_address(UPLINK, NEAR), netlink.new_neighbour(UPLINK, str(FAR.ip), far)]
            self._between.netlink.do(*near)
        if (rate_bps := self._parameters.uplink_bps) is not None:
            burst = max(2 * (self._spec.mtu_bytes + 100), int(rate_bps / 8 / 1000))
            words = ["rate", f"{int(rate_bps)}bit", "burst", str(burst), "latency", f"{QUEUE_MS}ms"]
            tc = [
                *self._between.prefix,
                machine.program("tc"),
                "qdisc",
                "add",
                "dev",
                "uplink",
                "root",
                "tbf",
            ]
            process.output([*tc, *words])

    @contextmanager
    def read(self) -> Iterator[None]:
        """Run the requested readers of the copies until the block ends."""
        if self._monitor is None:
            yield
            return
        with reading(self._parameters.readers, self._monitor, self._ends) as self._unread:
            yield

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Open the socket that reports drops at the switch's packet sockets until the block ends."""
        with closing(netlink.PacketSockets(self._between.fd)) as self._sockets:
            yield

    def counts(self, switch: Switch) -> Counts:
        """Return the counts up to now."""
        # Pairs talk only among themselves: what arrives at one end's port leaves at the other's. The packets that
        # leave are counted, so no second counter, read at another time, is needed.
        taken = {number: self._counters(number ^ 1).sent_count for number in self._indices}
        arrived = sum(taken[number] for number in self._arriving)
        left = sum(taken[number ^ 1] for number in self._leaving)
        copies = 0
        if self._monitor is not None:
            copies = sum(self._monitor.netlink.counters(index).received_count for _name, index in self._ends)
        assert self._sockets is not None, "the switch is counted"
        # Rings of DPDK's packet sockets drop without a count there.
        total = sum(self._sockets.drops().values()) if self._datapath is Datapath.SOCKETS else None
        expected = self._parameters.mirrors * (arrived + left)
        return Counts(
            sum(taken.values()), expected, copies, self._dropped(), self._unread(), total, switch.cpu_s()
        )

    def _dropped(self) -> int | None:
        """Return the copies that the uplink's queue dropped; None without a limit of its rate."""
        if self._parameters.uplink_bps is None:
            return None
        queues = netlink.qdiscs(self._between.netlink)
        return sum(
            counts["drop"] for index, name, counts in queues if index == UPLINK and name.startswith("tbf")
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
                    result["copies_expected_count"] = now.expected - before.expected
                    result["copies_count"] = now.copies - before.copies
                if now.unread is not None and before.unread is not None:
                    result["copies_unread_count"] = now.unread - before.unread
                if now.dropped is not None and before.dropped is not None:
                    result["copies_dropped_count"] = now.dropped - before.dropped
                return result

            return end

        return begin

    def doubts(self) -> tuple[str, ...]:
        """Return doubts about CPUs that a bound switch shares, and about copies that do not fit the uplink."""
        polls = "DPDK's thread polls without a pause and takes a whole CPU, so CPU time is not the cost of packets"
        return (
            *self._shared_cpus(),
            *self._oversized(),
            *([polls] if self._datapath is Datapath.DPDK else []),
        )

    def _shared_cpus(self) -> tuple[str, ...]:
        """Return a doubt if a switch that is bound to a CPU, two ends and the rest have fewer CPUs than they need."""
        cpus = len(os.sched_getaffinity(0))
        if self._parameters.cpu is None or cpus >= CPUS_APART:
            return ()
        return (
            f"the switch is bound to CPU {self._parameters.cpu}, but this machine has {units.many(cpus, 'CPU')}:"
            " readers of copies and labkit itself share CPUs with the switch and the ends, so their costs cannot be"
            f" separated ({CPUS_APART} CPUs are needed)",
        )

    def _oversized(self) -> tuple[str, ...]:
        """Return a doubt if copies are larger than the uplink takes: the switch drops them without a counter."""
        uplink_bytes = self._parameters.uplink_mtu
        added = tunnel_headers(self._parameters) if uplink_bytes is not None else ()
        if uplink_bytes is None or self._spec.mtu_bytes + length_bytes(added) <= uplink_bytes:
            return ()
        return (
            f"copies of packets of more than {uplink_bytes - length_bytes(added)} bytes do not fit the mirror's tunnel"
            f" and are lost: {arithmetic(uplink_bytes, 'uplink', added)}",
        )

    def prove(self, switch: Switch, pairs: Sequence[Pair]) -> None:
        """Check that every mirror works: as many copies must arrive as expected.

        A mirror applies to new flows only, so flows are removed before each further attempt. Raises Failed if copies
        are still missing after PROOF_S.
        """
        if self._monitor is None:
            return
        deadline = time.monotonic() + PROOF_S
        while True:
            before = self.counts(switch)
            for pair in pairs:
                _send(pair.client, pair.server)
                _send(pair.server, pair.client)
            until = time.monotonic() + TRY_S
            while time.monotonic() < until:
                now = self.counts(switch)
                wanted, made = now.expected - before.expected, now.copies - before.copies
                if wanted == made > 0:
                    return
                time.sleep(0.002)
            if time.monotonic() > deadline:
                raise Failed(
                    f"{self._parameters.mirrors} mirrors should have made {wanted} copies, and {made} arrived:"
                    f" {switch.warnings() or 'Open vSwitch gives no reason'}"
                )
            switch.command("revalidator/purge")


def selected(parameters: SwitchOptions, spec: Spec) -> tuple[list[int], list[int]]:
    """Return the ends at whose ports packets are copied once per mirror: where they arrive, and where they leave.

    A mirror copies a packet once, even if it selects it twice. Raises BadInput for an end that does not exist.
    """
    kind, _, direction = parameters.select.partition(":")
    everybody = range(2 * spec.pairs)
    if kind == "all":
        return list(everybody), []
    if kind == "vlan":
        return [
            one
            for one in everybody
            if not parameters.vlans or 1 + one // 2 % parameters.vlans == int(direction)
        ], []
    role, number = re.fullmatch(r"(client|server)(\d+)", kind).groups()  # type: ignore[union-attr]
    if int(number) >= spec.pairs:
        raise BadInput(
            f"select={parameters.select}: there is no {kind}; the last one is {role}{spec.pairs - 1}"
        )
    one = [2 * int(number) + (role == "server")]
    return (one if direction != "out" else []), (one if direction != "in" else [])


def _send(end: Endpoint, to: Endpoint) -> None:
    """Send one datagram to the discard port of another end."""
    if end.kernel is not None:
        process.run([*end.prefix, "ping", "-c1", "-W1", to.address])
        return
    family = socket.AF_INET6 if ":" in to.address else socket.AF_INET
    with netlink.inside(end.namespace.fd), socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"", (to.address, DISCARD))
