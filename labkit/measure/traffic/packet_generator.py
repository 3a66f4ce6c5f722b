"""The packet generator: prebuilt frames of any size and many flows at an exact rate, between the ends of any topology.

No packaged generator keeps a rate here (`docs/METHOD.md`, "Searches"). A sending process for each pair runs
`packet_sender`. The receiver's interface counts what arrives. An nftables ingress hook then counts the load alone and
drops it before IP processing; interfaces also count other frames, like IGMP reports of a snooping bridge.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import labkit
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.endpoints import Endpoint, Pair
from labkit.measure.traffic import latency_probes, packet_sender
from labkit.measure.traffic.base import Capabilities, LoadParameters, Trial, TrialGenerator
from labkit.measure.traffic.packet_sender import FCS_BYTES, PORT, PROBE_PORT, Mix, Wire
from labkit.system import machine, netlink, process
from labkit.system.process import Forked

TABLE, COUNTER = "labkit_load", "arrived"
ETHERNET_BYTES = 14
# The start of an ARP reply for IPv4 over Ethernet (RFC 826), which a host accepts unasked without counting a drop
ARP_REPLY = bytes.fromhex("0806 0001 0800 06 04 0002")
# IEEE 802.3, and what a jumbo frame of 9,000 bytes is with header and FCS.
MIN_FRAME, LARGEST_FRAME = 64, 9018
MIN_OF_FAMILY = {4: MIN_FRAME, 6: ETHERNET_BYTES + 40 + 8 + FCS_BYTES}  # IPv6 has 40 bytes, UDP 8
FLOWS_COUNT = 1_000_000
START_S = 30.0  # to build the frames of a million flows
PATIENCE_S = 5.0  # after a trial's planned end
QUIET_S, DRAIN_S, STEP_S = 0.02, 1.0, 0.005  # after such a pause no more packets are expected


def check_mix(mix: Mix, mtu_bytes: int, family: int = 4) -> None:
    """Raise BadInput for frames that do not fit such an interface or are too short for the headers, and for more flows
    than the varied fields distinguish."""
    least = MIN_OF_FAMILY[family]
    most = mtu_bytes + ETHERNET_BYTES + FCS_BYTES
    for size in mix.frame_bytes:
        if not least <= size <= min(LARGEST_FRAME, most):
            headers = "" if least == MIN_FRAME else f", with headers of IPv{family} and UDP {least}"
            raise BadInput(
                f"a frame of {size} bytes is outside {least} to {min(LARGEST_FRAME, most)}: Ethernet frames have"
                f" at least {MIN_FRAME}{headers}, and mtu_bytes={mtu_bytes} allows {most} with header and FCS"
            )
    if not 1 <= mix.flows <= FLOWS_COUNT:
        raise BadInput(f"flows={mix.flows} is outside 1 to {FLOWS_COUNT}")
    for name in mix.vary:
        if name not in packet_sender.CAPACITY:
            raise BadInput(f"vary={name} is not a field: choose {', '.join(packet_sender.CAPACITY)}")
    if len(set(mix.vary)) < len(mix.vary) or not mix.vary:
        raise BadInput("vary needs at least one field, each named once")
    if mix.flows > (most_flows := packet_sender.capacity(mix.vary)):
        raise BadInput(
            f"flows={mix.flows}: {' and '.join(mix.vary)} can distinguish {most_flows} flows: add a field to vary"
        )


class PacketGenerator(TrialGenerator):
    """labkit's own packet generator."""

    name = "packets"
    capabilities = Capabilities(
        length_bytes={"udp": (MIN_FRAME, LARGEST_FRAME)}, metric="throughput_pps", paced=True
    )

    def version(self) -> str:
        """Return labkit's own version. Raises Unsupported without nft(8), which drops the counted load."""
        machine.needed("nft")  # it drops what has been counted
        return labkit.__version__

    def check(self, parameters: LoadParameters) -> None:
        """Raise BadInput: this generator runs trials, not the flows of a comparison."""
        raise BadInput(f"generator={self.name} works with `labkit run throughput` only")

    @contextmanager
    def trials(self, pairs: Sequence[Pair], mix: Mix) -> Iterator[PacketTrials]:
        """Start senders and receivers of these pairs."""
        self.version()
        with ExitStack() as stack:
            made = PacketTrials(pairs, mix, stack)
            yield made


class PacketTrials:
    """A sending process for each pair, and the counters at the receivers."""

    def __init__(self, pairs: Sequence[Pair], mix: Mix, stack: ExitStack) -> None:
        self._pairs, self._mix, self._stack = pairs, mix, stack
        for end in (end for pair in pairs for end in (pair.client, pair.server)):
            if end.kernel is not None:
                raise Unsupported(
                    f"the packet generator cannot send in the guest {end.name}: use endpoint=namespace or container"
                )
        first_of: dict[int, Pair] = {}
        for pair in pairs:
            first_of.setdefault(id(pair.client.namespace), pair)
        self._sending = list(first_of.values())
        self.wires = [wire_of(pair) for pair in self._sending]
        self._servers = list({id(pair.server.namespace): pair.server for pair in pairs}.values())
        self._received = [stack.enter_context(_dropping(server)) for server in self._servers]
        cpus = sorted(os.sched_getaffinity(0))
        self._learning = [
            stack.enter_context(Learning(pair.server, wire_of(Pair(pair.server, pair.client))))
            for pair in pairs
        ]
        self._senders = [
            _Sender(stack, pair, wire, mix, cpus[number % len(cpus)])
            for number, (pair, wire) in enumerate(zip(self._sending, self.wires, strict=True))
        ]
        for sender in self._senders:
            sender.ready()
        self._prober: Forked | None = None

    @property
    def pids(self) -> set[int]:
        """The pids of the generator's processes."""
        return {sender.process.pid for sender in self._senders} | (
            {self._prober.pid} if self._prober is not None else set()
        )

    def trial(self, rate_pps: float | None, duration_s: float, *, latency: bool = False) -> Trial:
        """Offer `rate_pps` frames per second in total for `duration_s`; see `Trials.trial`."""
        for learning in self._learning:
            learning.send()
        before = self._counted()
        probes_pps = latency_probes.RATE_PPS if latency else 0
        probing = self._probe(duration_s, probes_pps) if latency else None
        load_pps = None if rate_pps is None else max(rate_pps - probes_pps, rate_pps / 2) / len(self._senders)
        for sender in self._senders:
            sender.go(load_pps, duration_s)
        reports = [sender.report(duration_s) for sender in self._senders]
        probed = None if probing is None else _answer(probing, duration_s + PATIENCE_S, "the latency prober")
        probes = 0 if probed is None else int(probed["frames"])
        sent = sum(report["sent_count"] for report in reports) + probes
        offered = sent + sum(report["dropped_count"] for report in reports)
        by_server, hops = self._settled(before, sent)
        # Senders that share a CPU may begin one after the other: the load is as long as all of them together, and one
        # that begins late is late.
        begun_s = min(report["begun_s"] for report in reports)
        return Trial(
            rate_pps=rate_pps,
            duration_s=duration_s,
            offered_count=offered,
            sent_count=sent,
            received_count=sum(by_server.values()),
            received_by=by_server,
            hops=hops,
            elapsed_s=max(report["begun_s"] + report["elapsed_s"] for report in reports) - begun_s,
            slip_s=max(report["begun_s"] - begun_s + report["slip_s"] for report in reports),
            generator_cpu_s=sum(report["cpu_s"] for report in reports),
            latency=None if probed is None else latency_probes.latency(probed),
        )

    def _probe(self, duration_s: float, rate_pps: int) -> Forked:
        pair, wire = self._pairs[0], self.wires[0]
        if self._prober is None:
            keep = (pair.client.namespace.fd, pair.server.namespace.fd)
            frame = self._mix.frame_bytes[0]
            self._prober = Forked(lambda connection: latency_probes.work(pair, wire, frame, connection), keep)
            self._stack.callback(self._prober.kill)
            _answer(self._prober, START_S, "the latency prober")
        self._prober.send(json.dumps([duration_s, rate_pps]).encode())
        return self._prober

    def _counted(self) -> _Counted:
        return _Counted(
            [counter.read() for counter in self._received],
            sum(pair.client.counters().sent_count for pair in self._sending),
            sum(server.counters().received_count for server in self._servers),
        )

    def _settled(self, before: _Counted, sent: int) -> tuple[dict[str, int], dict[str, int]]:
        """Wait until everything has arrived, or nothing more does; return the load that arrived and the interfaces'
        counts."""
        deadline, quiet = time.monotonic() + DRAIN_S, time.monotonic()
        last = self._counted()
        while last.arrived_count - before.arrived_count < sent and time.monotonic() < deadline:
            time.sleep(STEP_S)
            now = self._counted()
            if now.arrived_count != last.arrived_count:
                quiet = time.monotonic()
            elif time.monotonic() - quiet > QUIET_S:
                break
            last = now
        counted = zip(self._servers, last.arrived, before.arrived, strict=True)
        first, final = self._pairs[0].client, self._pairs[0].server
        return {server.name: now - then for server, now, then in counted}, {
            f"{first.name} {first.interface} sent": last.sent_count - before.sent_count,
            f"{final.name} {final.interface} received": last.received_count - before.received_count,
        }


@dataclasses.dataclass(frozen=True)
class _Counted:
    """What arrived of the load at each server, and what the clients' interfaces have sent and the servers' received."""

    arrived: list[int]
    sent_count: int
    received_count: int

    @property
    def arrived_count(self) -> int:
        return sum(self.arrived)


class Learning:
    """Sends a frame from a server, so that bridges and switches learn its port.

    They forget it after 300 s; a load in one direction would then be flooded to every port.
    """

    def __init__(self, end: Endpoint, wire: Wire) -> None:
        target, source = (bytes.fromhex(mac.replace(":", "")) for mac in (wire.target_mac, wire.source_mac))
        addresses = [wire.source_ip, wire.target_ip]
        own, other = (socket.inet_aton(address) if ":" not in address else bytes(4) for address in addresses)
        self._frame = (target + source + ARP_REPLY + source + own + target + other).ljust(60, b"\0")
        with netlink.inside(end.namespace.fd):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
            self._socket.bind((end.interface, 0))
        self._ethernet = wire.ethernet

    def send(self) -> None:
        """Send the frame, if the interface has Ethernet."""
        if self._ethernet:
            self._socket.send(self._frame)

    def __enter__(self) -> Learning:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class _Sender:
    """A sending process in a client's namespace."""

    def __init__(self, stack: ExitStack, pair: Pair, wire: Wire, mix: Mix, cpu: int) -> None:
        self._name = f"the packet generator at {pair.client.name}"
        namespace = pair.client.namespace.fd

        def work(connection: socket.socket) -> None:
            with netlink.inside(namespace):
                sender = packet_sender.Sender(wire, mix)
            packet_sender.prepare_process(cpu)
            _serve(connection, sender)

        self.process = Forked(work, [namespace])
        stack.callback(self.process.kill)

    def ready(self) -> None:
        """Wait until the frames are built."""
        _answer(self.process, START_S, self._name)

    def go(self, rate_pps: float | None, duration_s: float) -> None:
        """Start a trial."""
        try:
            self.process.send(json.dumps([rate_pps, duration_s]).encode())
        except Failed as error:
            raise Failed(f"{self._name} {error}") from None

    def report(self, duration_s: float) -> dict[str, Any]:
        """Return the report after the trial."""
        return _answer(self.process, duration_s + PATIENCE_S, self._name)


def _serve(connection: socket.socket, sender: packet_sender.Sender) -> None:
    """Run one trial per request line, until there are no more."""
    with connection.makefile("rwb") as stream:
        stream.write(b"{}\n")
        stream.flush()
        while line := stream.readline():
            try:
                lines = dataclasses.asdict(sender.send(*json.loads(line)))
            except OSError as error:
                lines = {"error": error.strerror}
            stream.write(json.dumps(lines).encode() + b"\n")
            stream.flush()


def _answer(forked: Forked, timeout_s: float, name: str) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(forked.receive(timeout_s))
    except Failed as error:
        raise Failed(f"{name} {error}") from None
    if "error" in result:
        raise Failed(f"{name} cannot send: {result['error']}")
    return result


def wire_of(pair: Pair) -> Wire:
    """Return where a client's frames to its server go, with the next hop's MAC address from its route and neighbour
    table.

    Raises Failed if the client does not know that MAC address.
    """
    client, server = pair.client, pair.server
    link = _ip(client, ["link", "show", "dev", client.interface])[0]
    if link["link_type"] == "loopback":
        zero = "00:00:00:00:00:00"
        return Wire(client.interface, zero, zero, client.address, server.address)
    if link["link_type"] != "ether":
        zero = "00:00:00:00:00:00"
        return Wire(client.interface, zero, zero, client.address, server.address, ethernet=False)
    route = _ip(client, ["route", "get", server.address])[0]
    hop = route.get("gateway", server.address)
    known = _ip(client, ["neigh", "show", "to", hop, "dev", client.interface])
    if not known or "lladdr" not in known[0]:
        if "NOARP" in link["flags"]:  # ipvlan in its layer-3 modes asks nobody
            return Wire(client.interface, link["address"], link["address"], client.address, server.address)
        raise Failed(f"{client.name} does not know the MAC address of {hop}, its next hop to {server.name}")
    return Wire(client.interface, link["address"], known[0]["lladdr"], client.address, server.address)


def _ip(end: Endpoint, words: list[str]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(process.output([*end.prefix, "ip", "-j", *words]) or "[]")
    return result


@contextmanager
def _dropping(end: Endpoint) -> Iterator[netlink.NftCounter]:
    """Count and drop the load at an end as soon as its interface receives it, during the block."""
    prefix = [*end.namespace.prefix, "nft"]
    rules = (
        f"add table netdev {TABLE}",
        f"add chain netdev {TABLE} load {{ type filter hook ingress device {end.interface} priority 0 ; }}",
        f"add counter netdev {TABLE} {COUNTER}",
        f"add rule netdev {TABLE} load udp dport {{ {PORT}, {PROBE_PORT} }} counter name {COUNTER} drop",
    )
    ended = process.run([*prefix, " ; ".join(rules)])
    if ended.returncode != 0:
        raise Unsupported(
            f"this kernel cannot drop frames at ingress (CONFIG_NETFILTER_INGRESS, nf_tables): {ended.words()}"
        )
    counter = netlink.NftCounter(end.namespace.fd, TABLE, COUNTER)
    try:
        yield counter
    finally:
        counter.close()
        process.run([*prefix, f"delete table netdev {TABLE}"])
