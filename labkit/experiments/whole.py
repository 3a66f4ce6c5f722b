"""Whole runs: one iperf3 or ping run of an arm from beginning to end, as it would be typed by hand."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import machine, records
from labkit.errors import Failed
from labkit.experiments import arms
from labkit.experiments.arms import Live, Measured
from labkit.observers.receivers import receivers
from labkit.traffic import iperf3, ping

if TYPE_CHECKING:
    from labkit.experiments.datapaths import Datapaths

START_S = 2.0  # a slow flow (rate_bps) may take longer to show; the window then begins without it
OFFERED = 0.98  # of the asked rate must have been sent, or the generator was the limit
AGREE = 0.05  # iperf3's own count and the kernel's may differ by this much, else flows did not run together
OVERLOAD = 0.01
SATURATED = 0.95  # of a CPU, by each sender


def measure(asked: Datapaths, live: Live, artefacts: Path) -> Measured:
    """One run of one arm. What fails is a row with iperf3's or ping's own words."""
    try:
        return _ping(asked, live) if asked.protocol == "ping" else _iperf3(asked, live, artefacts)
    except Failed as error:
        return live.arm, {"status": "failed", "reason": str(error), "method": "whole"}


def _ping(asked: Datapaths, live: Live) -> Measured:
    times, begin = machine.cpu_times(), time.monotonic()
    found = ping.latency(live.topology.pairs, asked.duration_s, asked.length_bytes)
    used, window = machine.cpu_times() - times, time.monotonic() - begin
    return live.measured(
        {"method": "whole", "window_s": window, **_machine(used), **found}, machine.stolen(used, window)
    )


def _iperf3(asked: Datapaths, live: Live, artefacts: Path) -> Measured:
    load = asked.load()
    with (
        receivers(live.topology.pairs, asked.protocol, asked.datagram_bytes) as counters,
        iperf3.flows(live.topology.pairs) as flows,
    ):
        arms.start(flows, load, counters, START_S)
        begin = time.monotonic()
        flows.wait(begin + load.omit_s)
        times, start, got = machine.cpu_times(), time.monotonic(), counters.read()
        flows.wait(begin + load.omit_s + load.duration_s)
        now, end, total = machine.cpu_times(), time.monotonic(), counters.read()
        pages, problem = flows.finish(begin + load.omit_s + load.duration_s + iperf3.GRACE_S)
    records.write_artefact(artefacts / f"{live.arm.label.replace(' ', '_')}.json.gz", pages)
    if problem:
        raise Failed(problem)
    window, passed, used = end - start, total - got, now - times
    row: dict[str, Any] = {
        "method": "whole",
        "window_s": window,
        "received_bytes": passed.received_bytes,
        "throughput_pps": passed.received_count / window,
        **_machine(used),
        **iperf3.metrics(pages, asked.protocol),
    }
    doubts = [*machine.stolen(used, window), *_doubts(asked, row, len(pages))]
    invalid = _invalid(asked, live, row)
    return live.measured(row | ({"status": "invalid", "reason": invalid} if invalid else {}), doubts)


def _machine(used: machine.CpuTimes) -> dict[str, float]:
    return {"cpu_s": used.busy_s, "softirq_s": used.softirq_s, "steal_s": used.steal_s}


def _invalid(asked: Datapaths, live: Live, row: dict[str, Any]) -> str | None:
    """Why the run does not count (METHOD: the offered load was not reached)."""
    if asked.rate_bps is None:
        return None
    offered = asked.rate_bps * asked.streams * len(live.topology.pairs)
    if row["sent_bps"] >= OFFERED * offered:
        return None
    return f"generator-limited: {row['sent_bps'] / 1e6:.4g} of {offered / 1e6:.4g} Mbit/s asked for were sent"


def _doubts(asked: Datapaths, row: dict[str, Any], flows: int) -> list[str]:
    doubts = []
    counted = row["received_bytes"] * 8 / row["window_s"]
    if abs(counted / row["throughput_bps"] - 1) > AGREE if row["throughput_bps"] else counted:
        doubts.append(
            "iperf3's throughput and the kernel's counters differ by more than 5 %:"
            " the flows did not all run at the same time"
        )
    if (
        asked.protocol == "udp"
        and asked.rate_bps is None
        and row["client_cpu_s"] > SATURATED * asked.duration_s * flows
    ):
        doubts.append("generator-limited: the senders took a whole CPU each")
    if row.get("lost_count", 0) > OVERLOAD * row["sent_count"] if asked.protocol == "udp" else False:
        doubts.append("datagrams were lost: more was sent than the receivers could take")
    return doubts
