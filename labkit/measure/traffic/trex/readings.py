"""What TRex's counters mean: from the server's own answers to counts, rates over wall time, and latencies.

TRex's numbers mislead in known ways, so everything here is counted from differences of counters:

- The duration of traffic is schedule time: TRex sends all packets of it, however long that takes. A rate is a
  difference of `opackets` over wall time; `tx_pps` is smoothed and needs 7 s to come within 1 %.
- `ierrors` of the receiving port are packets that arrived and that TRex's own ring dropped: no loss of the device.
- `dropped` of a latency stream misses losses at its end: lost probes are `tp` - `rp`. A port can receive more than
  was sent to it (ARP), so lost is never below 0, and counts may be off by one.
- `oerrors` are frames that the interface refused, as those above its MTU: nothing else tells of them.
- The average latency is an exponentially weighted mean (1/2), the jitter one as in RFC 3550 (1/16). A key of a
  histogram is the lower edge of its bucket, n·10^k µs; nothing from 1 s on is counted. Key 0 of a stateless one, all
  below 10 µs, is a maximum over earlier traffic, so no more count than are in no other bucket. The least latency that
  ASTF reports is a constant.
- The greatest latency leaves out the first probes and the latest, and may be below the highest bucket.
- Latency streams are not scaled by the multiplier; counters of bytes include the 4 bytes of FCS.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common import errors
from labkit.common.errors import Failed
from labkit.common.schema import LATENCIES
from labkit.measure.traffic.base import Latency

ANSWER = "the answer of the TRex server"  # in messages
OFF_BY = 1  # a count of TRex's may differ by it
MICROSECOND = 1e-6
NOT_COUNTED_US = 1_000_000  # no bucket counts a latency from here on
Buckets = dict[int, int]  # from the lower edge in microseconds to a number of probes
Readings = Mapping[str, Any]  # counters by port, or such with their time


@dataclass(frozen=True, kw_only=True)
class ProbeLatency(Latency):
    """Latency of probes in one direction, in seconds. `buckets`: numbers of probes by the lower edge of the bucket in
    microseconds. `histogram`: an HDR histogram of microseconds."""

    clock: str = "trex"
    buckets: Buckets


def percentiles_s(
    buckets: Buckets, received_count: int, max_s: float | None, hdr: str | None = None
) -> dict[str, float | None]:
    """Return the latencies that shares of the probes do not exceed (LATENCIES); None without probes.

    They are upper edges of buckets, never above `max_s`, or exact from an HDR histogram.
    """
    # No bucket counts a probe of 1 s or more, so those that arrived and are in no bucket were the slowest.
    total = max(sum(buckets.values()), received_count - OFF_BY)
    most = math.inf if max_s is None else max_s

    def at(share: float) -> float | None:
        if hdr is not None:
            return _hdr_percentile_s(hdr, share)
        seen = 0
        for edge, count in sorted(buckets.items()):
            seen += count
            if count and seen >= share * total:
                return min(upper_edge(edge) * MICROSECOND, most)
        return max_s if total > 0 else None

    return {name: at(share) for name, (share, _words) in LATENCIES.items()} | {"max": max_s}


@dataclass(frozen=True, kw_only=True)
class Direction:
    """What happened from one port to another. `sent_pps` and `received_pps` are over wall time while traffic ran;
    counts are from rest to rest. `ring_drops_count`: dropped by TRex after the device had delivered it.
    `refused_count`: frames that the sending interface did not take. Bytes count with FCS."""

    source: int
    target: int
    sent_count: int
    received_count: int
    ring_drops_count: int
    refused_count: int
    received_bytes: int
    sent_pps: float
    received_pps: float
    window_s: float
    latency: ProbeLatency | None = None

    @property
    def name(self) -> str:
        """`0→1`"""
        return f"{self.source}→{self.target}"

    @property
    def lost_count(self) -> int:
        """Frames that the device lost: neither received nor dropped by TRex's own ring. One frame is not a loss."""
        lost = self.sent_count - self.received_count - self.ring_drops_count
        return lost if lost > OFF_BY else 0

    @property
    def received_bps(self) -> float:
        """The rate of `received_pps` in bits, at the mean length of what arrived, probes included."""
        return (
            8 * self.received_pps * self.received_bytes / self.received_count if self.received_count else 0.0
        )


def ring_drops(directions: Sequence[Direction]) -> str | None:
    """Return a sentence about frames that TRex's own receive ring dropped, or None."""
    drops = sum(one.ring_drops_count for one in directions)
    if not drops:
        return None
    sent = sum(one.sent_count for one in directions)
    return (
        f"TRex's own receive ring dropped {drops} of {sent} frames (ierrors), so they are not a loss of the device:"
        " give its interfaces larger rings"
    )


@errors.reading(ANSWER)
def _hdr_percentile_s(text: str, share: float) -> float:
    """Return a percentile of an encoded HDR histogram of microseconds."""
    # which other experiments do not need
    from hdrh.codec import HdrCookieException, HdrHistogramSettingsException, HdrLengthException
    from hdrh.histogram import HdrHistogram

    try:
        decoded = HdrHistogram.decode(text)
    except (HdrCookieException, HdrHistogramSettingsException, HdrLengthException) as error:
        raise Failed(f"{ANSWER} cannot be read: its histogram is invalid: {error}") from None
    return float(decoded.get_value_at_percentile(100 * share)) * MICROSECOND


def upper_edge(edge: int) -> int:
    """Return where the bucket with this lower edge ends: 900 to 1000, 1000 to 2000 µs; key 0 ends at 10."""
    return 10 if edge < 10 else edge + 10 ** (len(str(edge)) - 1)


def difference(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> int:
    """Return by how much a counter rose."""
    return int(after[name]) - int(before[name])


def rate(before: Mapping[str, Any], after: Mapping[str, Any], name: str, seconds: float) -> float:
    """Return the mean rate of a counter over wall time; 0 without time."""
    return difference(before, after, name) / seconds if seconds > 0 else 0.0


@errors.reading(ANSWER)
def directions(raw: Mapping[str, Any], ports: Sequence[int], senders: Sequence[int]) -> list[Direction]:
    """Return what a trial of the client process measured, for each port that sent to its neighbour in `ports`."""
    rest, first, last, end = raw["readings"]
    return [
        _direction(
            (port, ports[place ^ 1]), (rest["ports"], end["ports"]), (first, last),
            stateless_latency(end.get("pgid"), 1000 + port),
        )
        for place, port in enumerate(ports)
        if port in senders
    ]  # fmt: skip


def _direction(
    ports: tuple[int, int],
    rest: tuple[Readings, Readings],
    running: tuple[Readings, Readings],
    latency: ProbeLatency | None,
) -> Direction:
    """Return what happened from a port to another: counts from rest to rest, and rates between two readings."""
    (source, target), (before, end), (first, last) = ports, rest, running
    tx, rx, seconds = str(source), str(target), last["time"] - first["time"]
    return Direction(
        source=source,
        target=target,
        sent_count=difference(before[tx], end[tx], "opackets"),
        received_count=difference(before[rx], end[rx], "ipackets"),
        ring_drops_count=difference(before[rx], end[rx], "ierrors"),
        refused_count=difference(before[tx], end[tx], "oerrors"),
        received_bytes=difference(before[rx], end[rx], "ibytes"),
        sent_pps=rate(first["ports"][tx], last["ports"][tx], "opackets", seconds),
        received_pps=rate(first["ports"][rx], last["ports"][rx], "ipackets", seconds),
        window_s=seconds,
        latency=latency,
    )


@errors.reading(ANSWER)
def stateless_latency(answer: Mapping[str, Any] | None, group: int) -> ProbeLatency | None:
    """Return the latency of a packet group from the answer to `get_pgid_stats`; None without one. The server counts
    from when the streams were added, over all starts and stops, so the client process adds them anew for each trial."""
    flow = ((answer and answer["flow_stats"]) or {}).get(str(group))
    if answer is None or flow is None:
        return None
    own = answer["latency"].get(str(group)) or {}
    latency, wrong = own.get("lat") or {}, own.get("er") or {}
    buckets = {int(key): int(count) for key, count in (latency.get("histogram") or {}).items()}
    received, max_us = sum(flow["rp"].values()), latency.get("total_max", 0)
    seen, lowest = received > 0 and bool(buckets), buckets.pop(0, 0)  # key 0 may be left of an earlier start
    fastest = 0 if max_us >= NOT_COUNTED_US else min(lowest, received - sum(buckets.values()))
    if fastest > 0:
        buckets[0] = fastest
    hdr, max_s = latency.get("hdrh"), 0.0
    if seen:
        max_s = _hdr_percentile_s(hdr, 1) if hdr else _max_us(max_us, buckets) * MICROSECOND
    return ProbeLatency(
        sent_count=sum(flow["tp"].values()),
        received_count=received,
        reordered_count=int(wrong.get("ooo", 0)),
        duplicated_count=int(wrong.get("dup", 0)),
        mean_s=latency["average"] * MICROSECOND or None if seen else None,
        jitter_s=latency["jit"] * MICROSECOND if seen else None,
        percentiles_s=percentiles_s(buckets, received, max_s if seen else None, hdr),
        buckets=buckets,
        histogram=hdr,
    )


@errors.reading(ANSWER)
def stateful_latency(answer: Mapping[str, Any], port: int, peer: int) -> ProbeLatency | None:
    """Return the latency of the probes that `port` received, from the answer to ASTF's `get_latency_stats`.

    The probes that `port` sent are those that `peer` received and lost, so what was sent to `port` is `peer`'s count.
    The server counts anew from each start.
    """
    data = answer["data"]
    if f"port-{port}" not in data:
        return None
    own, stats = data[f"port-{port}"]["hist"], data[f"port-{port}"]["stats"]
    buckets = {int(one["key"]): int(one["val"]) for one in own["histogram"]}
    received, max_s = int(stats["m_pkt_ok"]), _max_us(own["max_usec"], buckets) * MICROSECOND
    return ProbeLatency(
        sent_count=int(data[f"port-{peer}"]["stats"]["m_tx_pkt_ok"]),
        received_count=received,
        reordered_count=int(stats["m_seq_error"]),
        duplicated_count=0,
        mean_s=own["s_avg"] * MICROSECOND if buckets else None,
        jitter_s=stats["m_jitter"] * MICROSECOND if buckets else None,
        percentiles_s=percentiles_s(buckets, received, max_s if buckets else None),
        buckets=buckets,
        histogram=None,
    )


def _max_us(reported_us: float, buckets: Buckets) -> float:
    """Return the greatest latency: that which TRex reports, or where the highest bucket ends if it lies below that."""
    top = max(buckets, default=0)
    return reported_us if reported_us >= max(top, 1) else upper_edge(top)


@dataclass(frozen=True, kw_only=True)
class Connections:
    """What stateful traffic did. `connections_pps` and `attempts_pps`: established and begun per second of wall time,
    in `window_s`. `errors_count`: dropped connections, and packets that no connection took, as far as TRex calls them
    errors: not latency probes, what its receiver put off, and connections that end with the test."""

    connections_count: int
    connections_pps: float
    attempts_pps: float
    window_s: float
    active_count: float
    retransmits_count: int
    errors_count: int


_DROPS = ("tcps_conndrops", "tcps_timeoutdrop", "tcps_keepdrops")


@errors.reading(ANSWER)
def connections(raw: Mapping[str, Any]) -> Connections:
    """Return what the connections of a stateful test did, from the client process's readings. The server counts anew
    from each start."""
    names: Mapping[str, str] = {str(one["id"]): one["name"] for one in raw["described"]}
    errors = {one["name"] for one in raw["described"] if one["info"] == "error"}
    running, end = raw["readings"][:-1], raw["readings"][-1]

    def named(counters: Mapping[str, Any], side: str) -> dict[str, float]:
        return {names[key]: value for key, value in counters[side].items() if key in names}

    first, last = (named(one["counters"], "client") for one in (running[0], running[-1]))
    seconds = running[-1]["time"] - running[0]["time"]
    sides = [named(end["counters"], side) for side in ("client", "server")]
    failures = [
        value
        for side in sides
        for name, value in side.items()
        if name in errors and (name.startswith("err_") or name in _DROPS)
    ]
    established, begun = (
        (last.get(name, 0) - first.get(name, 0)) / seconds if seconds > 0 else 0.0
        for name in ("tcps_connects", "tcps_connattempt")
    )
    return Connections(
        connections_count=int(sides[0].get("tcps_connects", 0)),
        connections_pps=established,
        attempts_pps=begun,
        window_s=seconds,
        active_count=last.get("m_active_flows", 0.0),
        retransmits_count=int(sum(side.get("tcps_sndrexmitpack", 0) for side in sides)),
        errors_count=int(sum(failures)),
    )


@errors.reading(ANSWER)
def stateful_directions(raw: Mapping[str, Any], ports: Sequence[int]) -> list[Direction]:
    """Return what a stateful test measured in each direction."""
    first, last, end = raw["readings"][0], raw["readings"][-2], raw["readings"][-1]
    return [
        _direction(
            (port, ports[place ^ 1]), (raw["before"], end["ports"]), (first, last),
            stateful_latency(end["latency"], ports[place ^ 1], port),
        )
        for place, port in enumerate(ports)
    ]  # fmt: skip


@errors.reading(ANSWER)
def received_bps(raw: Mapping[str, Any], port: int) -> float:
    """Return the rate of bits with FCS that a port received while a stateful test ran."""
    first, last = raw["readings"][0], raw["readings"][-2]
    seconds = last["time"] - first["time"]
    return 8 * rate(first["ports"][str(port)], last["ports"][str(port)], "ibytes", seconds)
