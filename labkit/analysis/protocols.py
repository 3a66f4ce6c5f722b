"""What each protocol's measurements are about: the compared metric, the unit of work, and their names.

A further protocol is one entry of PROTOCOLS. Its metric is the usual one: a table names its own in the column `metric`.
"""

import os
from dataclasses import dataclass, replace
from typing import Any

from labkit.common.errors import BadInput, choose
from labkit.common.schema import BY_NAME, LATENCIES, PERCENTILE, latency_text

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

    label: its name in titles. metric: the compared column. quantity: what is measured, in words; average: of it, the
    metric. speed: what an observer slows down. packet: what a counted packet is called.
    work: the unit of work, a key of PER. generator: that of older rows, which name none.
    """

    label: str
    metric: str = "throughput_bps"
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
    def higher_is_better(self) -> bool:
        return higher_is_better(self.metric)

    @property
    def metric_unit(self) -> str:
        return BY_NAME[self.metric].unit

    @property
    def by_work(self) -> "Protocol":
        """The protocol, judged in units of work: if that is a packet, by their rate."""
        if self.work != "packet":
            return self
        return replace(self, metric=PACKET_RATE, average=f"{self.packet}s a second")


def higher_is_better(metric: str) -> bool:
    """Return whether more of a metric is better: of a rate it is, of a time or a loss it is not."""
    return not metric.endswith(("_s", "lost_share"))


def percentile(chosen: str | None = None) -> str:
    """Return a percentile of latencies as a key of LATENCIES: the chosen one, else this process's, else the median.

    `p99.9` is p999. Raises BadInput for an unknown one.
    """
    source = PERCENTILE if chosen is None else "percentile"
    given = str((os.environ.get(PERCENTILE) or "p50") if chosen is None else chosen)
    if (name := given.replace("p99.9", "p999")) not in LATENCIES:
        raise BadInput(f"{source}={given}: {choose(given, map(latency_text, LATENCIES))}")
    return name


# Offloads determine the size of a TCP segment, and a ping has a reply, so each protocol has its own unit of work. A TCP
# frame that an interface received holds up to 64 KB because of segmentation offload and GRO.
_TIMED = Protocol(
    label="ping",
    metric="latency_p50_s",
    quantity="round-trip time",
    average=LATENCIES["p50"][1],
    speed="rate of pings",
    generator="ping",
)
_REQUESTS = replace(_TIMED, speed="rate of requests", work="request", generator="sockperf")


def _rated(label: str, of: str, generator: str) -> Protocol:
    """Return a protocol of transactions that are judged by their rate, unless a percentile is chosen."""
    rate = f"{of} per second"
    return Protocol(
        label=label,
        metric="transaction_rate",
        quantity=rate,
        average=rate,
        speed=f"rate of {of}",
        work=of.removesuffix("s"),
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
# Clients carry data to servers.
CARRYING = tuple(name for name, one in PROTOCOLS.items() if one.metric == "throughput_bps")
# Servers answer, so that there are round-trip times.
ANSWERED = tuple(name for name in PROTOCOLS if name not in CARRYING)


def metrics() -> dict[str, str]:
    """Return the metric of each protocol in this process, whose environment may choose a percentile."""
    chosen, time = os.environ.get(PERCENTILE), f"latency_{percentile()}_s"
    return {
        name: time if name in ANSWERED and (chosen or not one.higher_is_better) else one.metric
        for name, one in PROTOCOLS.items()
    }


def find(name: str, metric: object = None) -> Protocol:
    """Return a protocol, judged by this metric if it is a round-trip time. One that labkit does not compare has only a
    label."""
    one = PROTOCOLS.get(name) or Protocol(label=name.upper())
    if isinstance(metric, str) and metric.startswith("latency_"):
        average = LATENCIES[metric.split("_")[1]][1]
        return replace(one, metric=metric, quantity=_TIMED.quantity, average=average)
    return one


def of(table: Any) -> Protocol:
    """Return the protocol of the rows or verdicts in a table, judged by their metric."""
    return find(str(table["protocol"].iloc[0]), table["metric"].iloc[0] if "metric" in table else None)


def all_of(table: Any) -> list[Protocol]:
    """Return the protocols of a table in order of appearance, as `of`."""
    return [of(rows) for _, rows in table.groupby("protocol", sort=False)]
