"""What each protocol's measurements are about: the compared metric, the unit of work, and their names.

A further protocol is one entry of PROTOCOLS.
"""

import os
from dataclasses import dataclass, replace

from labkit.common.errors import BadInput, choose
from labkit.common.schema import BY_NAME, LATENCIES, PERCENTILE

PACKET_RATE = "throughput_pps"


@dataclass(frozen=True)
class CostUnit:
    """A unit of work that costs are relative to, and the unit in which they are shown.

    description; short: its name. work: the field of a Round, and the column of a row, that has the work.
    one: the amount of work in one unit. unit, unit_s: the unit of time of a shown cost, and its size in seconds.
    """

    description: str
    short: str
    work: str
    one: float
    unit: str
    unit_s: float


# A TCP segment has no fixed size, so TCP costs are per byte, not per packet.
PER = {
    "packet": CostUnit("packet that arrived", "packet", "received_count", 1, "ns", 1e-9),
    "gigabyte": CostUnit("gigabyte that arrived", "GB", "received_bytes", 1e9, "ms", 1e-3),
    "request": CostUnit("request that was answered", "request", "received_count", 1, "µs", 1e-6),
    "connection": CostUnit("connection", "connection", "received_count", 1, "µs", 1e-6),
    "cpu_second": CostUnit("second of busy CPU", "CPU second", "cpu_s", 1, "ms", 1e-3),
}


def cost_unit(word: str) -> CostUnit:
    """Return the unit of work with this key of PER. Raises BadInput for an unknown one."""
    if word not in PER:
        raise BadInput(f"there is no cost per {word}: choose {' or '.join(PER)}")
    return PER[word]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One protocol.

    label: its name in titles. metric: the compared column; higher_is_better: its direction. quantity: what is measured,
    in words; average: of it, the metric. speed: what an observer slows down. packet: what a counted packet is called.
    work: the unit of work, a key of PER. generator: that of older rows, which name none.
    """

    label: str
    metric: str = "throughput_bps"
    higher_is_better: bool = True
    quantity: str = "throughput"
    average: str = "throughput"
    speed: str = "throughput"
    packet: str = "packet"
    work: str = "cpu_second"
    generator: str = "iperf3"

    @property
    def unit(self) -> CostUnit:
        """The unit of work."""
        return PER[self.work]

    @property
    def metric_unit(self) -> str:
        """The unit of the metric."""
        return BY_NAME[self.metric].unit

    @property
    def work_metric(self) -> str:
        """The metric in units of work: if that is a packet, their rate."""
        return PACKET_RATE if self.work == "packet" else self.metric


def percentile() -> str:
    """Return the percentile of latencies that verdicts and figures are about: a key of LATENCIES.

    Raises BadInput for an unknown one.
    """
    name = os.environ.get(PERCENTILE) or "p50"
    if name not in LATENCIES:
        raise BadInput(f"{PERCENTILE}={name}: {choose(name, LATENCIES)}")
    return name


# Offloads determine the size of a TCP segment, and a ping has a reply, so each protocol has its own unit of work. A TCP
# frame that an interface received holds up to 64 KB because of segmentation offload and GRO.
_TIMED = Protocol(
    label="ping",
    metric=f"latency_{percentile()}_s",
    higher_is_better=False,
    quantity="round-trip time",
    average=LATENCIES[percentile()][1],
    speed="rate of pings",
    generator="ping",
)
_REQUESTS = replace(_TIMED, speed="rate of requests", work="request", generator="sockperf")


def _rated(label: str, of: str, generator: str) -> Protocol:
    """Return a protocol of transactions that are judged by their rate; where a percentile is chosen, by that."""
    rate, work = f"{of} per second", of.removesuffix("s")
    if os.environ.get(PERCENTILE):
        return replace(_TIMED, label=label, speed=f"rate of {of}", work=work, generator=generator)
    return Protocol(
        label=label,
        metric="transaction_rate",
        quantity=rate,
        average=rate,
        speed=rate,
        work=work,
        generator=generator,
    )


PROTOCOLS = {
    "tcp": Protocol(label="TCP", packet="frame", work="gigabyte"),
    "udp": Protocol(label="UDP", packet="datagram", work="packet"),
    "ping": _TIMED,
    "udp_rr": replace(_REQUESTS, label="UDP requests"),
    "tcp_rr": replace(_REQUESTS, label="TCP requests"),
    "tcp_crr": _rated("TCP_CRR", "connections", "connections"),
    "tcp_cc": _rated("TCP_CC", "connections", "connections"),
    "http": _rated("HTTP", "requests", "wrk"),
    "http_close": _rated("HTTP without keep-alive", "requests", "wrk"),
}
# Their metric is a round-trip time.
TIMED = tuple(name for name, one in PROTOCOLS.items() if not one.higher_is_better)
# Clients carry data to servers.
CARRYING = tuple(name for name, one in PROTOCOLS.items() if one.metric == "throughput_bps")


def find(name: str) -> Protocol:
    """Return a protocol. One that labkit does not compare has only a label."""
    return PROTOCOLS.get(name) or Protocol(label=name.upper())
