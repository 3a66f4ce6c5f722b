"""TRex as a generator of a search: trials at a rate, from a server that labkit starts on the pairs' interfaces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from labkit.common.errors import Unsupported
from labkit.measure.endpoints import Pair
from labkit.measure.traffic import rates
from labkit.measure.traffic.base import Capabilities, Trial, TrialGenerator
from labkit.measure.traffic.packet_generator import MAX_FRAME, MIN_FRAME
from labkit.measure.traffic.packet_sender import CAPACITY, Mix
from labkit.measure.traffic.rates import Line
from labkit.measure.traffic.trex import readings, server
from labkit.measure.traffic.trex.client import FIELDS, Client, companion
from labkit.measure.traffic.trex.readings import Direction
from labkit.measure.traffic.trex.streams import PROBE_FRAME_BYTES, PROBES_PPS
from labkit.system import machine, process

MAX_PPS = 2e6  # from each port, for "as many as possible": TRex on kernel interfaces reaches about 300 kpps
LINE_SHARE = 0.999  # of the nominal rate of a port, above which TRex refuses a load
# How much longer than its duration a trial may send; later frames are not sent.
GRACE_S, GRACE_SHARE = 0.01, 0.01
SLOW_PPS = 2000.0  # below this rate of a port about half of its frames are probes
BUSY = 0.05  # share of a trial: a thread that ran less sends nothing
BURSTS = (
    "TRex on kernel interfaces sends in bursts, one a millisecond, which fill queues more than evenly spaced frames do:"
    " rates found with another generator are no comparison"
)


class Trex(TrialGenerator):
    """TRex on kernel interfaces."""

    name = "trex"
    capabilities = Capabilities(
        length_bytes={"udp": (MIN_FRAME, MAX_FRAME)}, metric="throughput_pps", paced=True
    )
    moves_interfaces = True
    min_trial_s = 0.5  # requests to the server take milliseconds, and a trial has to be long against that

    def version(self) -> str:
        """Return the name of TRex's folder, which is its version. Raises Unsupported without TRex."""
        return server.find().name

    def companion(self) -> AbstractContextManager[process.Companion]:
        """Start TRex's client, which leaves a server outside stopped and released."""
        return companion()

    @contextmanager
    def trials(self, pairs: Sequence[Pair], mix: Mix) -> Iterator[TrexTrials]:
        """Start TRex on the interfaces of these pairs, which they lose to it."""
        check_mix(mix)
        with server.started(pairs, max(mix.frame_bytes)) as own:
            line_bps = min(own.client.connect("STL", force=False).line_bps)
            made = TrexTrials(own.client, own.ends, mix, line_bps, MAX_PPS, own.announce, own.pids)
            made.doubts = (BURSTS,)
            yield made


TREX = Trex()


def check_mix(mix: Mix) -> None:
    """Raise Unsupported, with one sentence, for flows that a stream of TRex cannot have here."""
    first = mix.vary[0]
    if first not in FIELDS:
        raise Unsupported(f"vary={first}: TRex varies {', '.join(FIELDS)} here: choose one of them")
    if mix.flows > CAPACITY[first]:
        raise Unsupported(
            f"flows={mix.flows}: TRex varies one field here, and {first} has {CAPACITY[first]} values: use at most"
            f" flows={CAPACITY[first]}, or generator=packets"
        )
    if mix.vlan is not None:
        raise Unsupported(f"vlan={mix.vlan}: TRex's frames carry no tag here: use generator=packets")
    if mix.burst_frames is not None:
        raise Unsupported(f"burst_frames={mix.burst_frames}: TRex decides its bursts: use generator=packets")
    if mix.block:
        raise Unsupported("flow_profile=test_plan: TRex sends all flows in turn here: use generator=packets")


class TrexTrials:
    """Trials of a server: the first port of each pair sends to the second.

    `ends`: the source and the destination address of each port's frames. `max_pps`: the most that a port sends.
    `announce`: tells what joins the ports where they are. `pids`: the processes of the server and its client.
    """

    def __init__(
        self,
        client: Client,
        ends: Sequence[tuple[str, str]],
        mix: Mix,
        line_bps: float,
        max_pps: float = math.inf,
        announce: Callable[[], None] = lambda: None,
        pids: frozenset[int] = frozenset(),
    ) -> None:
        self._client, self._ends, self._mix, self._max_pps = client, ends, mix, max_pps
        self._announce, self.pids = announce, pids
        self.doubts: Sequence[str] = ()  # about rates that are found
        self._senders = client.ports[::2]
        self._line = Line(LINE_SHARE * line_bps)
        self._probes_pps = -1.0  # of the streams that are loaded; none are

    def trial(
        self, rate_pps: float | None, duration_s: float, *, latency: bool = False, count: int | None = None
    ) -> Trial:
        """Offer `rate_pps` frames per second in total for `duration_s`; see `Trials.trial`.

        Frames that TRex's own receive ring dropped count as received, because the device has delivered them, and are
        the trial's fault. TRex stops at its end, and frames that it could not send by then are not offered. The slip
        is how long its busy thread that waited most waited for a CPU.
        """
        if count is not None:
            raise Unsupported(
                f"TRex cannot send exactly {count} frames: its trials have a rate and a duration"
            )
        each_pps = None if rate_pps is None else rate_pps / len(self._senders)
        probes_pps = PROBES_PPS * min(1.0, (each_pps or SLOW_PPS) / SLOW_PPS) if latency else 0.0
        if probes_pps != self._probes_pps:
            self._client.load_frames(self._mix, self._ends, probes_pps)
            self._probes_pps = probes_pps
        self._announce()
        load_pps = max_load_pps(self._line, self._mix, each_pps, probes_pps, self._max_pps)
        grace_s = GRACE_S + GRACE_SHARE * duration_s
        before = machine.thread_times(self.pids)
        directions, _raw = self._client.trial(load_pps, duration_s, grace_s)
        after = machine.thread_times(self.pids)
        times = [
            (ran - before[name][0], waited - before[name][1])
            for name, (ran, waited) in after.items()
            if name in before
        ]
        probed = directions[0].latency  # the unit of its histogram is not that of the other generators
        refused = sum(one.refused_count for one in directions)
        sent = sum(one.sent_count for one in directions)
        reached_pps = sum(one.sent_pps for one in directions)
        return Trial(
            rate_pps=rate_pps,
            duration_s=duration_s,
            offered_count=sent + refused,
            sent_count=sent,
            received_count=sum(map(_delivered_count, directions)),
            received_by={f"port {one.target}": _delivered_count(one) for one in directions},
            hops=dict(_hops(directions)),
            elapsed_s=sent / reached_pps if sent and reached_pps else duration_s,
            slip_s=max((waited for ran, waited in times if ran > BUSY * duration_s * 1e9), default=0) / 1e9,
            generator_cpu_s=sum(ran for ran, _waited in times) / 1e9,
            latency=replace(probed, histogram=None) if latency and probed else None,
            fault=readings.ring_drops(directions),
        )


def max_load_pps(
    line: Line, mix: Mix, each_pps: float | None, probes_pps: float, port_pps: float = MAX_PPS
) -> float:
    """Return the load of a port that offers `each_pps` frames per second (None: as many as possible) with its probes:
    no more than these leave of the line and `port_pps`."""
    left = line.left_pps(rates.mean_bytes(mix.frame_bytes), probes_pps, PROBE_FRAME_BYTES)
    max_pps = min(port_pps, left if left is not None and left > 0 else MAX_PPS)
    if each_pps is None:
        return max_pps
    return min(each_pps - probes_pps, max_pps)


def _delivered_count(one: Direction) -> int:
    """Return how many of the sent frames the device delivered. TRex's counts differ by one at times, and ports also
    receive other frames, such as ARP: neither is loss."""
    return one.sent_count - one.lost_count


def _hops(directions: Sequence[Direction]) -> Iterator[tuple[str, int]]:
    for one in directions:
        yield f"port {one.source} sent", one.sent_count
        yield f"port {one.target} received", one.received_count
        if one.ring_drops_count:
            yield f"port {one.target} dropped in TRex's own ring", one.ring_drops_count
