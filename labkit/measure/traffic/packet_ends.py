"""The two ends of the packet generator: processes that send, and what counts and drops the load where it arrives.

An end is a namespace, a container, or a guest. In a namespace a forked process sends, and an nftables hook counts the
load and drops it. In a guest, `packet_agent` does both, because labkit can neither fork a process in a guest nor load
nftables rules there.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from labkit.common.errors import Failed, Unsupported
from labkit.measure.endpoints import Endpoint, Pair, RemotePair, exec_client
from labkit.measure.endpoints.nftables import check_no_udp_gro, count_at_ingress
from labkit.measure.traffic import packet_agent, packet_sender
from labkit.measure.traffic.base import Arrived
from labkit.measure.traffic.packet_sender import FIRST_PORT, PORT, FrameAddresses, Mix
from labkit.system import netlink, process
from labkit.system.netlink.nft_counters import NftCounters
from labkit.system.process import Forked

TABLE, COUNTER = "labkit_load", "arrived"
# The start of an ARP reply for IPv4 over Ethernet (RFC 826), which a host accepts unasked without counting a drop
ARP_REPLY = bytes.fromhex("0806 0001 0800 06 04 0002")
START_S, GUEST_START_S = 30.0, 180.0  # to build the frames of a million flows; an emulated CPU takes longer
# After a trial's planned end, and for an answer; an emulated guest may wait for a CPU of its host.
PATIENCE_S, GUEST_PATIENCE_S = 5.0, 60.0
SETTLE_S, GUEST_SETTLE_S = 0.02, 0.2  # after such a pause no more frames are expected
NO_MAC = "00:00:00:00:00:00"
Answer = Callable[[Any], dict[str, Any]]  # to a request
# Files whose Python modules a guest needs to be an end of the packet generator.
AGENT = (packet_agent.__file__,)


def frame_addresses(pair: Pair | RemotePair) -> FrameAddresses:
    """Return where a client's frames to its server go, with the next hop's MAC address from its route and neighbour
    table.

    Raises Failed if the client does not know that MAC address.
    """
    client, server = pair.client, pair.server
    link = _ip(client, ["link", "show", "dev", client.interface])[0]
    kind: str = link["link_type"]
    source_mac = target_mac = NO_MAC
    if kind == "ether":
        hop = _ip(client, ["route", "get", server.address])[0].get("gateway", server.address)
        known = _ip(client, ["neigh", "show", "to", hop, "dev", client.interface])
        source_mac = link["address"]
        # ipvlan in its layer-3 modes asks nobody
        usual = source_mac if "NOARP" in link["flags"] else ""
        target_mac = known[0].get("lladdr", usual) if known else usual
        if not target_mac:
            raise Failed(
                f"{client.name} does not know the MAC address of {hop}, its next hop to {server.name}"
            )
    ethernet = kind in ("ether", "loopback")
    ips = client.address, server.address
    return FrameAddresses(client.interface, source_mac, target_mac, *ips, ethernet, client.vlan)


def _ip(end: Endpoint, words: list[str]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(process.output([*end.prefix, "ip", "-j", *words]) or "[]")
    return result


def learning_frame(addresses: FrameAddresses, mix: Mix) -> bytes:
    """Return a frame from which bridges and switches learn the port of the source; empty without Ethernet.

    They forget it after 300 s; a load in one direction would then be flooded to every port.
    """
    if not addresses.ethernet:
        return b""
    target, source = map(packet_sender.mac, (addresses.target_mac, addresses.source_mac))
    ips = [addresses.source_ip, addresses.target_ip]
    own, other = (socket.inet_aton(ip) if ":" not in ip else bytes(4) for ip in ips)
    tag = packet_sender.tag_of(addresses, mix)
    return (target + source + tag + ARP_REPLY + source + own + target + other).ljust(60, b"\0")


@contextmanager
def frame_sender(end: Endpoint, frame: bytes) -> Iterator[Callable[[], None]]:
    """Yield a function that sends a frame, if it is not empty, from an end in a namespace.

    It raises Failed if the first hop does not take it.
    """
    with netlink.inside(end.namespace.fd):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        opened.bind((end.interface, 0))

    def send() -> None:
        try:
            if frame:
                packet_sender.send_frame(opened, frame)
        except OSError as error:
            raise Failed(f"a frame from {end.name} was refused: {error.strerror}") from None

    with opened:
        yield send


class Agent:
    """`packet_agent` in the guest of an end; it ends with the stack."""

    def __init__(self, stack: ExitStack, end: Endpoint, request: dict[str, Any]) -> None:
        from labkit.measure.endpoints.guest import initramfs  # what only guests need

        prefix = end.prefix
        at = prefix.index("--")
        program = [*initramfs.command(packet_agent.__file__), json.dumps(request)]
        self._lines, self._words = process.LineBuffer(), bytearray()
        try:
            self._conversation = exec_client.start_conversation(
                prefix[at - 1], [*prefix[at + 1 :], *program], b"P"
            )
        except (OSError, exec_client.ServerDisconnected) as error:
            raise Failed(f"the guest {end.name} does not start the packet generator: {error}") from None
        stack.callback(self._conversation.close)

    def send(self, line: bytes) -> None:
        """Send it a line. Raises Failed if its guest has gone."""
        try:
            self._conversation.send(b"I", line + b"\n")
        except exec_client.ServerDisconnected:
            raise Failed("has gone with its guest") from None

    def receive(self, timeout_s: float) -> bytes:
        """Return the next line that it writes. Raises Failed if it has ended or is silent for `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (line := self._lines.take()) is None:
            if (left_s := deadline - time.monotonic()) <= 0:
                raise Failed(f"did not answer within {timeout_s:g} s")
            try:
                frames = self._conversation.received(left_s)
            except (exec_client.ServerDisconnected, OSError):
                raise Failed("has gone with its guest") from None
            for kind, content in frames:
                if kind == b"O":
                    self._lines.add(content)
                elif kind == b"X":
                    self._words += content
                elif kind == b"D" and b"\n" not in self._lines.rest:
                    words = self._words.decode(errors="replace")
                    raise Failed(process.how_ended(int(content.split()[0]), words))
        return line


def forked(
    stack: ExitStack, namespaces: Sequence[int], answering: Callable[[], Answer], cpu: int | None = None
) -> Forked:
    """Fork a process that answers requests until the stack ends. It keeps these namespaces, in which `answering` makes
    the function that answers."""

    def work(connection: socket.socket) -> None:
        answer = answering()
        packet_sender.prepare_process(cpu)
        with connection.makefile("rwb") as stream:
            packet_sender.serve(stream, stream, answer)

    result = Forked(work, namespaces)
    stack.callback(result.kill)
    return result


class Worker:
    """A process that answers a line of JSON with another: a forked one, or an agent in a guest. `name` is its name in
    messages."""

    def __init__(self, name: str, process: Forked | Agent) -> None:
        self._name, self._process = name, process
        self.pid = process.pid if isinstance(process, Forked) else None  # on this host

    def send(self, request: Any) -> None:
        """Send it a request. Raises Failed if it has ended."""
        try:
            self._process.send(json.dumps(request).encode())
        except Failed as error:
            raise Failed(f"{self._name} {error}") from None

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Return its next answer. Raises Failed if it has ended, is silent for `timeout_s`, or failed."""
        try:
            result: dict[str, Any] = json.loads(self._process.receive(timeout_s))
        except Failed as error:
            raise Failed(f"{self._name} {error}") from None
        if "error" in result:
            raise Failed(f"{self._name} failed: {result['error']}")
        return result


class SendingProcess(Worker):
    """A sending process at a client: forked into its namespace, or an agent in its guest."""

    def __init__(
        self, stack: ExitStack, client: Endpoint, addresses: FrameAddresses, mix: Mix, cpu: int
    ) -> None:
        name = f"the packet generator at {client.name}"
        self._begun_s: float | None = None
        self.in_guest = not client.kernel.is_here
        if self.in_guest:
            request = {"addresses": dataclasses.asdict(addresses), "mix": dataclasses.asdict(mix)}
            super().__init__(name, Agent(stack, client, request))
            return

        def sender() -> Answer:
            with netlink.inside(client.namespace.fd):
                return packet_sender.Sender(addresses, mix).answer

        super().__init__(name, forked(stack, [client.namespace.fd], sender, cpu))

    def ready(self) -> None:
        """Wait until the frames are built."""
        self.answer(GUEST_START_S if self.in_guest else START_S)

    def go(self, rate_pps: float | None, duration_s: float, count: int | None) -> None:
        """Start a trial of at most `duration_s`, with at most `count` frames."""
        self._begun_s = time.monotonic()
        self.send([rate_pps, duration_s, count])

    def report(self, duration_s: float) -> dict[str, Any]:
        """Return the report after the trial (`packet_sender.Report`), with the begin by this host's clock."""
        patience_s = GUEST_PATIENCE_S if self.in_guest else PATIENCE_S
        result = self.answer(duration_s + patience_s)
        # A guest has a clock of its own. Its start is known only up to the way of the request.
        return result | ({"begun_s": self._begun_s} if self.in_guest else {})


class Receivers:
    """Receivers on this host.

    `reversed_pairs`: the pairs of the load with their ends swapped, so that `client` is the receiver.
    """

    def __init__(self, stack: ExitStack, reversed_pairs: Sequence[Pair | RemotePair], mix: Mix) -> None:
        ends: dict[int, Endpoint] = {}
        self._learn: list[Callable[[], object]] = []
        self._counts: list[Callable[[], int]] = []
        for pair in reversed_pairs:
            end, addresses = pair.client, frame_addresses(pair)
            first = id(end.kernel) not in ends  # several clients may send to one receiver
            ends.setdefault(id(end.kernel), end)
            frame = learning_frame(addresses, mix)
            if end.kernel.is_here:
                self._learn.append(stack.enter_context(frame_sender(end, frame)))
                if first:
                    if ":" in end.address:  # GRO joins none without a UDP checksum, as with IPv4
                        check_no_udp_gro(end.namespace, end.interface)
                    match = f"udp dport {{ {_load_ports(mix)} }}"
                    counter = frame_counter(end, TABLE, match, verdict="drop")
                    self._counts.append(stack.enter_context(counter))
            elif "target_port" in mix.vary:
                raise Unsupported(
                    f"vary=target_port: the packet counter in a guest ({end.name}) knows the load by its port: vary"
                    " other fields"
                )
            elif first:
                counting = _GuestCounter(stack, end, frame)
                self._learn.append(counting.learn)
                self._counts.append(counting.read)
        self._ends = list(ends.values())
        self.names = [end.name for end in self._ends]
        self.settle_s = GUEST_SETTLE_S if any(not end.kernel.is_here for end in self._ends) else SETTLE_S

    def learn(self) -> None:
        """Send a frame from each receiver, from which switches learn its port."""
        for learn in self._learn:
            learn()

    def read(self) -> Arrived:
        """Return what has arrived since the receivers exist."""
        load = [count() for count in self._counts]
        return Arrived(load, sum(end.counters().received_count for end in self._ends))


class _GuestCounter(Worker):
    """The counter in a guest."""

    def __init__(self, stack: ExitStack, end: Endpoint, frame: bytes) -> None:
        request = {"interface": end.interface, "v6": ":" in end.address, "frame": frame.hex()}
        super().__init__(f"the packet counter at {end.name}", Agent(stack, end, request))
        self.answer(GUEST_START_S)

    def learn(self) -> None:
        self._ask("learn")

    def read(self) -> int:
        return self._ask("read")

    def _ask(self, word: str) -> int:
        self.send(word)
        return int(self.answer(GUEST_PATIENCE_S)["count"])


def _load_ports(mix: Mix) -> str:
    """Return the target ports of the load and of probes, as nft(8) writes them in a set."""
    ports = f"{PORT}, {packet_sender.PROBE_PORT}"
    last = FIRST_PORT + packet_sender.PORTS_COUNT - 1
    return f"{ports}, {FIRST_PORT}-{last}" if "target_port" in mix.vary else ports


@contextmanager
def frame_counter(
    end: Endpoint, table: str, match: str, priority: int = 0, verdict: str = ""
) -> Iterator[Callable[[], int]]:
    """Count frames at an end as soon as its interface receives them, during the block, in a table of that name; yield a
    function that returns their number.

    match: the frames that count, as nft(8) writes it. priority: the load is dropped at 0, so a lower number counts
    before. verdict: what becomes of them. Raises Unsupported on a kernel without such a hook.
    """
    rule = f"{match} counter name {COUNTER} {verdict}"
    count_at_ingress(end.namespace, end.interface, table, [COUNTER], rule, priority)
    try:
        with closing(NftCounters(end.namespace.fd, table)) as counters:
            yield lambda: counters.read([COUNTER])[0]
    finally:
        process.run([*end.namespace.prefix, "nft", f"delete table netdev {table}"])
