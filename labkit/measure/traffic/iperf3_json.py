"""The JSON that iperf3 writes for both ends of each flow, and the columns of a row that labkit computes from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from labkit.common.errors import Failed
from labkit.measure.traffic.base import Page, skew
from labkit.system import process


def page(program: process.Running | None) -> Page:
    """Return the JSON that iperf3 wrote; text that is not JSON is under the key "unreadable"."""
    if program is None:
        return {}
    return parse(program.ended().stdout)


def parse(text: str) -> Page:
    """Parse the JSON of one end; text that is not JSON is under the key "unreadable"."""
    try:
        result = json.loads(text)
    except (ValueError, RecursionError):
        return {"unreadable": text[:2000]}
    return result if isinstance(result, dict) else {"unreadable": text[:2000]}


def problem(client: process.Running, pages: Page) -> str | None:
    """Return the problem of a flow whose client has ended, from the JSON of its two ends, or None."""
    near, far = pages["client"], pages["server"]
    if "error" in near:
        return f"iperf3: {near['error']}"
    if "unreadable" in near:
        ended = client.ended()
        if ended.returncode == 0:
            return f"iperf3 wrote invalid JSON: {' '.join(near['unreadable'].split())[:120]!r}"
        return ended.message()
    if "error" in far:
        return f"iperf3 server: {far['error']}"
    return None


def metrics(pages: Sequence[Page], protocol: str) -> dict[str, Any]:
    """Compute the columns of a row: sums over all flows, from the JSON of both ends of each.

    iperf3_bps is the receivers' throughput. CPU seconds are iperf3's own utilisation over the run without
    the omitted part. Raises Failed if a page lacks a value that this version of iperf3 should write.
    """
    try:
        ends = [page["client"]["end"] for page in pages]
        received = [end["sum_received"] for end in ends]
        sent = [end["sum_sent"] for end in ends]
        cpu = [end["cpu_utilization_percent"] for end in ends]
        row: dict[str, Any] = {
            "iperf3_bps": sum(part["bits_per_second"] for part in received),
            "sent_bps": sum(part["bits_per_second"] for part in sent),
            "client_cpu_s": sum(
                use["host_total"] / 100 * part["seconds"] for use, part in zip(cpu, sent, strict=True)
            ),
            "server_cpu_s": sum(
                use["remote_total"] / 100 * part["seconds"] for use, part in zip(cpu, sent, strict=True)
            ),
        }
        return row | (_udp(pages) if protocol == "udp" else _tcp(ends))
    except (LookupError, TypeError, ArithmeticError) as error:
        raise Failed(f"iperf3's JSON lacks what a row needs: {error}") from None


def _udp(pages: Sequence[Page]) -> dict[str, Any]:
    # Take the losses from the server: the client's JSON (3.12) also counts losses in the omitted seconds.
    servers = [page["server"]["end"] for page in pages]
    received = [end["sum_received"] for end in servers]
    arrived = sum(part["packets"] - part["lost_packets"] for part in received)
    sent = sum(page["client"]["end"]["sum_sent"]["packets"] for page in pages)
    lost = sum(part["lost_packets"] for part in received)
    streams = [stream["udp"] for end in servers for stream in end["streams"]]
    return {
        "sent_count": sent,
        "reported_received_count": arrived,
        "lost_count": _lost(sent, arrived, lost, skew(pages[0]["client"]["start"]["test_start"]["duration"])),
        "out_of_order_count": sum(stream["out_of_order"] for stream in streams),
        "jitter_s": sum(part["jitter_ms"] for part in received) / len(received) / 1e3,
        "length_bytes": pages[0]["client"]["start"]["test_start"]["blksize"],
    }


def _lost(sent: int, arrived: int, lost: int, most: float) -> int | None:
    """Return how many of the sent datagrams were lost, or None if the counts differ by more than the share `most`.

    Each end leaves out the omitted seconds by its own clock, so a late server also counts losses in them.
    """
    if arrived + lost > sent * (1 + most):
        return None
    return max(0, min(lost, sent - arrived))


def _tcp(ends: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rtts = [stream["sender"]["mean_rtt"] for end in ends for stream in end["streams"]]
    return {
        "retransmits_count": sum(end["sum_sent"]["retransmits"] for end in ends),
        "rtt_s": sum(rtts) / len(rtts) / 1e6,
        "sender_congestion": ends[0].get("sender_tcp_congestion"),
    }
