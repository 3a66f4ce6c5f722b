"""The packet generator: prebuilt frames of any size and many flows at an exact rate, between the ends of any topology.

No packaged generator keeps a rate here (`docs/method/throughput.md`). A sending process for each pair runs
`packet_sender`. The receiver's interface counts what arrives. An nftables ingress hook then counts the load alone and
drops it before IP processing; interfaces also count other frames, like IGMP reports of a snooping bridge. With guests,
both ends are inside them (`packet_ends`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import labkit
from labkit.common.errors import BadInput, Unsupported, choose
from labkit.common.packets import ETHERNET_BYTES, FCS_BYTES
from labkit.measure.endpoints import Pair, RemotePair
from labkit.measure.traffic import latency_probes, packet_ends, packet_sender, ping
from labkit.measure.traffic.base import Arrived, Capabilities, Receiving, Trial, TrialGenerator
from labkit.measure.traffic.packet_ends import PATIENCE_S, START_S, Receivers, frame_addresses
from labkit.measure.traffic.packet_sender import Mix
from labkit.system import machine

# IEEE 802.3, and what a jumbo frame of 9,000 bytes is with header and FCS.
MIN_FRAME, MAX_FRAME = 64, 9018
MIN_OF_FAMILY = {4: MIN_FRAME, 6: ETHERNET_BYTES + 40 + 8 + FCS_BYTES}  # IPv6 has 40 bytes, UDP 8
MAX_FLOWS = 1_000_000
MAX_STRETCH, LATE_S = 2, 10.0  # how much longer than planned a trial with an exact number of frames may take
NO_LATENCY = "latency cannot be measured between the clocks of two kernels: use latency=false"
DRAIN_S, STEP_S = 1.0, 0.005  # how long packets may still arrive after a load, beside the delay of the path


def check_mix(mix: Mix, mtu_bytes: int, family: int = 4) -> None:
    """Raise BadInput for frames that do not fit such an interface or are too short for the headers, and for more flows
    than the varied fields distinguish."""
    least = MIN_OF_FAMILY[family]
    most = mtu_bytes + ETHERNET_BYTES + FCS_BYTES
    for size in mix.frame_bytes:
        if not least <= size <= min(MAX_FRAME, most):
            headers = "" if least == MIN_FRAME else f", with headers of IPv{family} and UDP {least}"
            raise BadInput(
                f"a frame of {size} bytes is outside {least} to {min(MAX_FRAME, most)}: Ethernet frames have"
                f" at least {MIN_FRAME}{headers}, and mtu_bytes={mtu_bytes} allows {most} with header and FCS"
            )
    for name in mix.vary:
        if name not in packet_sender.CAPACITY:
            raise BadInput(f"vary={name} is not a field: {choose(name, packet_sender.CAPACITY)}")
    if len(set(mix.vary)) < len(mix.vary) or not mix.vary:
        raise BadInput("vary needs at least one field, each named once")
    if mix.flows > (max_flows := packet_sender.capacity(mix.vary)):
        raise BadInput(
            f"flows={mix.flows}: {' and '.join(mix.vary)} can distinguish {max_flows} flows: add a field to vary"
        )


class PacketGenerator(TrialGenerator):
    """labkit's own packet generator."""

    name = "packets"
    capabilities = Capabilities(
        length_bytes={"udp": (MIN_FRAME, MAX_FRAME)}, metric="throughput_pps", paced=True, turns=True
    )
    guest_files = packet_ends.AGENT
    exact_counts = True
    across_hosts = True
    skips_ip = True

    def version(self) -> str:
        """Return labkit's own version. Raises Unsupported without nft(8), which drops the counted load."""
        machine.require_program("nft")  # it drops what has been counted
        return labkit.__version__

    @contextmanager
    def trials(self, pairs: Sequence[Pair], mix: Mix, first_cpu: int = 0) -> Iterator[PacketTrials]:
        """Start senders and receivers of these pairs. `first_cpu`: the place of the first sender's among the CPUs."""
        with self.receiving([pair.turned for pair in pairs], mix) as receiving, ExitStack() as stack:
            yield PacketTrials(pairs, mix, receiving, stack, first_cpu)

    @contextmanager
    def receiving(self, reversed_pairs: Sequence[Pair | RemotePair], mix: Mix) -> Iterator[Receivers]:
        """Count the load at the first end of each of these pairs, and drop it there."""
        self.version()
        with ExitStack() as stack:
            yield Receivers(stack, reversed_pairs, mix)

    @contextmanager
    def trials_to(
        self, pairs: Sequence[Pair | RemotePair], mix: Mix, receiving: Receiving
    ) -> Iterator[PacketTrials]:
        with ExitStack() as stack:
            yield PacketTrials(pairs, mix, receiving, stack)


PACKETS = PacketGenerator()


class PacketTrials:
    """A sending process for each client, and the receivers."""

    def __init__(
        self,
        pairs: Sequence[Pair | RemotePair],
        mix: Mix,
        receiving: Receiving,
        stack: ExitStack,
        first_cpu: int = 0,
    ) -> None:
        self._mix, self._receiving, self._stack = mix, receiving, stack
        first_of: dict[int, Pair | RemotePair] = {}
        for pair in pairs:
            first_of.setdefault(id(pair.client.kernel), pair)
        self._sending = list(first_of.values())
        self.addresses = [frame_addresses(pair) for pair in self._sending]
        if mix.vlan is not None and not all(one.ethernet for one in self.addresses):
            raise Unsupported(
                f"vlan={mix.vlan}: the interfaces of this topology carry packets without an Ethernet header, so without"
                " a VLAN tag: choose a topology with Ethernet, for example veth_bridge"
            )
        cpus = sorted(os.sched_getaffinity(0))
        self._senders = [
            packet_ends.SendingProcess(stack, pair.client, addresses, mix, cpus[number % len(cpus)])
            for number, (pair, addresses) in enumerate(
                zip(self._sending, self.addresses, strict=True), first_cpu
            )
        ]
        for sender in self._senders:
            sender.ready()
        self._prober: packet_ends.Worker | None = None
        # The delay of the path, if the first load was shorter, else 0; None before it
        self._delay_s: float | None = None

    @property
    def pids(self) -> set[int]:
        """The pids of the generator's processes on this host."""
        workers = [*self._senders, *filter(None, [self._prober])]
        return {one.pid for one in workers if one.pid is not None}

    def trial(
        self, rate_pps: float | None, duration_s: float, *, latency: bool = False, count: int | None = None
    ) -> Trial:
        """Offer `rate_pps` frames per second in total for `duration_s`, or exactly `count`; see `Trials.trial`.

        Raises Unsupported for latency between clocks of two kernels.
        """
        assert count is None or not latency
        probes_pps = latency_probes.RATE_PPS if latency else 0
        if rate_pps is not None:
            probes_pps = min(probes_pps, math.ceil(rate_pps / 2))
        self.prepare(latency=latency)
        load_pps = None if rate_pps is None else max(rate_pps - probes_pps, rate_pps / 2)
        return replace(self.begun(load_pps, duration_s, probes_pps, count)(), rate_pps=rate_pps)

    def prepare(self, *, latency: bool) -> None:
        """Do what comes before frames count: switches learn the receivers' ports, and the prober starts.

        Raises Unsupported for latency between clocks of two kernels.
        """
        self._receiving.learn()
        if latency and self._prober is None:
            pair, addresses, mix = self._sending[0], self.addresses[0], self._mix
            if not isinstance(pair, Pair) or not pair.shares_a_clock:
                raise Unsupported(NO_LATENCY)
            keep = (pair.client.namespace.fd, pair.server.namespace.fd)
            forked = packet_ends.forked(
                self._stack, keep, lambda: latency_probes.Prober(pair, addresses, mix).answer
            )
            self._prober = packet_ends.Worker("the latency prober", forked)
            self._prober.answer(START_S)

    def begun(
        self, load_pps: float | None, duration_s: float, probes_pps: int = 0, count: int | None = None
    ) -> Callable[[], Trial]:
        """Begin a trial of `load_pps` frames per second, beside `probes_pps` probes, after `prepare`.

        Return the function that waits for its end and returns it, so that several can run at once.
        """
        before, number = self._counted(), len(self._senders)
        probing = self._prober if probes_pps else None
        if probing is not None:
            probing.send([duration_s, probes_pps, self._delay_s or 0.0])
        # A sender that is late sends its last frame later than planned.
        limit_s = duration_s if count is None else MAX_STRETCH * duration_s + LATE_S
        for place, sender in enumerate(self._senders):
            sender.go(
                None if load_pps is None else load_pps / number,
                limit_s,
                None if count is None else share(count, number, place),
            )

        def ended() -> Trial:
            reports = [sender.report(limit_s) for sender in self._senders]
            patience_s = PATIENCE_S + (self._delay_s or 0.0)
            probed = None if probing is None else probing.answer(duration_s + patience_s)
            probes = 0 if probed is None else int(probed["frames"])
            sent = sum(report["sent_count"] for report in reports) + probes
            offered = sent + sum(report["dropped_count"] for report in reports)
            bursts = sum(report["bursts_count"] for report in reports)
            # Senders that share a CPU may begin one after the other: the load is as long as all of them together, and
            # one that begins late is late.
            begun_s = min(report["begun_s"] for report in reports)
            elapsed_s = max(report["begun_s"] + report["elapsed_s"] for report in reports) - begun_s
            by_server, hops, drained_s = self._wait_for_arrivals(before, sent, elapsed_s)
            return Trial(
                rate_pps=None if load_pps is None else load_pps + probes_pps,
                duration_s=duration_s,
                requested_count=count,
                offered_count=offered,
                sent_count=sent,
                received_count=sum(by_server.values()),
                received_by=by_server,
                hops=hops,
                elapsed_s=elapsed_s,
                slip_s=max(report["begun_s"] - begun_s + report["slip_s"] for report in reports),
                generator_cpu_s=sum(report["cpu_s"] for report in reports),
                latency=None if probed is None else latency_probes.latency(probed),
                burst_frames=(offered - probes) / bursts if bursts else None,
                drained_s=drained_s,
            )

        return ended

    def _counted(self) -> tuple[Arrived, int]:
        """Return what has arrived, and what the senders' interfaces have sent."""
        sent_count = sum(pair.client.counters().sent_count for pair in self._sending)
        return self._receiving.read(), sent_count

    def _wait_for_arrivals(
        self, before: tuple[Arrived, int], sent: int, elapsed_s: float
    ) -> tuple[dict[str, int], dict[str, int], float]:
        """Wait until everything has arrived that was sent in `elapsed_s`, or nothing more does; return the load that
        arrived, the interfaces' counts, and `Trial.drained_s`."""
        begun = quiet = now = time.monotonic()
        (earlier, left_before), (arrived, left) = before, self._counted()
        came, delay_s = arrived.count - earlier.count, self._delay_s or 0.0
        # The first frame may take as long as the check of the path waits for an answer.
        first_s = ping.PATIENCE_S if self._delay_s is None else delay_s
        while came < sent and now < begun + DRAIN_S + (delay_s if came else first_s):
            time.sleep(STEP_S)
            count = came
            arrived, left = self._counted()
            came, now = arrived.count - earlier.count, time.monotonic()
            if came and not count and self._delay_s is None:
                delay_s = elapsed_s + now - begun
            if came != count or not came:
                quiet = now
            # A slow path has longer pauses, and one with a delay may have irregular ones.
            elif now - quiet > max(self._receiving.settle_s, 2 * elapsed_s / came, (quiet - begun) / 2):
                break
        self._delay_s = delay_s
        counted = zip(self._receiving.names, arrived.load, earlier.load, strict=True)
        hops = {
            "the senders' interfaces sent": left - left_before,
            "the receivers' interfaces received": arrived.received_count - earlier.received_count,
        }
        drained_s = max(0.0, quiet - begun - delay_s) if came else 0.0
        return {name: now - then for name, now, then in counted}, hops, drained_s


def share(count: int, number: int, place: int) -> int:
    """Return how many of `count` frames the sender at this place of `number` sends; together they send all."""
    return count * (place + 1) // number - count * place // number
