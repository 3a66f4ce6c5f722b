"""Consistency checks: can all numbers of a row be true at once?

A row's numbers come from two sources: the kernel's counters, read around a window, and the report of iperf3 or ping.
A row is `invalid` if they contradict each other or exceed the link's rate. No conclusion uses such a row. Mirrors of
which one delivers fewer copies than another are a doubt.
"""

import math
from typing import Any

from labkit.common.packets import FCS_BYTES
from labkit.measure.traffic.base import skew
from labkit.measure.traffic.ping import step_s

# the largest ratio of iperf3's rate (over its whole time) and the kernel's (over the window)
MAX_RATE_RATIO = 2.0
MAX_LINK_SHARE = 1.05  # the largest share of the link's rate, because a token bucket lets a burst through
TCP_BLOCK_BYTES = 128 * 1024  # iperf3's default length of a write
ROUNDING = 1e-6
# Tolerated difference between two mirrors, because counters are read one after the other
UNEVEN_SHARE, UNEVEN_COUNT = 0.05, 100
SHOWN = 4  # mirrors in a sentence
COUNTED = (
    "throughput_bps", "throughput_pps", "iperf3_bps", "window_s", "received_bytes", "received_count", "sent_bps",
    "sent_count", "reported_received_count", "fragments_count", "lost_count", "out_of_order_count",
    "retransmits_count", "latency_p50_s", "latency_p99_s", "latency_max_s",
)  # fmt: skip


def contradiction(row: dict[str, Any]) -> str | None:
    """Return one sentence about the first contradiction in a row, or None.

    Columns that are null or missing are not checked.
    """
    for name in COUNTED:
        value = row.get(name)
        if value is not None and not 0 <= value < math.inf:
            return f"contradiction: {name} is {value}"
    return _check_received(row) or _check_sent(row) or _rates(row) or _latencies(row)


def doubts(row: dict[str, Any]) -> list[str]:
    """Return a sentence if fewer copies of one mirror arrived than of another, though each should have made as many."""
    each, expected = row.get("copies_of_mirrors"), row.get("copies_expected_count")
    if not each or not expected:
        return []
    wanted, best = expected / len(each), max(each)
    short = [
        f"{count} of mirror{number}"
        for number, count in enumerate(each)
        if best - count > max(UNEVEN_SHARE * wanted, UNEVEN_COUNT)
    ]
    if not short:
        return []
    more = f" and of {len(short) - SHOWN} more" if len(short) > SHOWN else ""
    return [
        f"copies of the mirrors did not arrive alike: each mirror should have made {wanted:.0f}, {best} of"
        f" mirror{each.index(best)} arrived, but {', '.join(short[:SHOWN])}{more};"
        " a link that they share may have been full"
    ]


def _all(row: dict[str, Any], *names: str) -> list[Any] | None:
    """Return the values of these columns, or None if one is unknown."""
    values = [row.get(name) for name in names]
    return None if any(value is None for value in values) else values


def _check_received(row: dict[str, Any]) -> str | None:
    """Compare bytes with packets in the kernel's window."""
    if (known := _all(row, "received_bytes", "received_count")) is None:
        return None
    size, count = known
    # Acknowledgements and probes of TCP have no payload.
    if bool(size) != bool(count) and (size or row.get("protocol") != "tcp"):
        return f"contradiction: {size:.0f} bytes were received in {count:.0f} packets"
    length = row.get("length_bytes") if row.get("protocol") == "udp" else None
    if length is not None and abs(size - count * length) > ROUNDING * size:
        return (
            f"contradiction: {count:.0f} datagrams of {length:.0f} bytes were received, but {size:.0f} bytes"
        )
    return None


def _check_sent(row: dict[str, Any]) -> str | None:
    """Compare received and lost packets with sent ones.

    Slices are not checked, because packets that were queued before a slice may arrive in it.
    """
    if row.get("method") == "slice" or row.get("sent_count") is None:
        return None
    sent, lost = row["sent_count"], row.get("lost_count") or 0
    most = sent if row.get("protocol") == "ping" else sent * (1 + skew(row.get("duration_s") or 1))
    for name, by in (("reported_received_count", " by the generator's count"), ("received_count", "")):
        if row.get(name) is not None and row[name] + lost > most:
            counts = f"{row[name]:.0f} packets arrived{by} and {lost:.0f} were lost, but {sent:.0f} were sent"
            return f"contradiction: {counts}"
    return None


def _rates(row: dict[str, Any]) -> str | None:
    # throughput_bps is iperf3's own for a paced flow.
    if known := _all(row, "received_bytes", "window_s", "iperf3_bps"):
        received_bytes, window_s, iperf3 = known
        kernel = received_bytes * 8 / window_s if window_s else iperf3
        # A paced flow sends in blocks, and the window may cut off a part of one.
        block = row.get("length_bytes") or (TCP_BLOCK_BYTES if row.get("protocol") == "tcp" else 0)
        flows = (row.get("pairs") or 1) * (row.get("streams") or 1) * (1 + (row.get("direction") == "both"))
        slack = 2 * 8 * block * flows / window_s if window_s and row.get("rate_bps") else 0.0
        if max(kernel, iperf3) > MAX_RATE_RATIO * min(kernel, iperf3) + slack:
            return (
                f"contradiction: the kernel counted {kernel / 1e6:.4g} Mbit/s while all flows ran, iperf3"
                f" {iperf3 / 1e6:.4g} Mbit/s over its whole time"
            )
    if (link := row.get("link_rate_bps")) is not None:
        # iperf3 sums the rates of flows, each over its own time. Flows that did not all run at the same time can
        # therefore have a sum above the link's rate. None of them alone can.
        flows = (row.get("pairs") or 1) * (row.get("streams") or 1)
        # A rate of frames has their check sequences, which the link's limit does not count.
        share = 1 - FCS_BYTES / row["frame_bytes"] if row.get("frame_bytes") else 1.0
        for name, most in (("throughput_bps", link), ("iperf3_bps", link * flows)):
            if (rate := row.get(name)) is not None and share * rate > MAX_LINK_SHARE * most:
                return (
                    f"contradiction: {name} is {rate / 1e6:.4g} Mbit/s over a link of {link / 1e6:.4g} Mbit/s"
                )
    return None


def _latencies(row: dict[str, Any]) -> str | None:
    known = _all(row, "latency_p50_s", "latency_p99_s", "latency_max_s")
    # The median is interpolated within the step in which ping prints.
    if known is None or (known[0] <= known[1] + step_s(known[1]) and known[1] <= known[2]):
        return None
    report = f"{known[0]:.3g} s (median), {known[1]:.3g} s (99 %), {known[2]:.3g} s (longest)"
    return f"contradiction: round-trip times of {report}"
