"""Compare the monitor with a bare filtered packet socket, with tshark and with dumpcap, beside the same traffic.

A veth carries frames of 1,000 flows, of which one is wanted. Two costs count. What the kernel does for a reader, it
does in the sender's context, so a sender that sends as fast as it can shows it: time per frame with the reader minus
without. The CPU time of the reader's own processes comes from the scheduler, in nanoseconds. Both are per frame sent.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.promise import NotMeasuredError, Promise, inside, median, note
from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.experiments.monitor_cost import experiment, readers
from labkit.measure.experiments.throughput_search.conditions import descendants
from labkit.measure.observers.capture.capture import CapturePoint
from labkit.measure.traffic import registry
from labkit.measure.traffic.base import Trial, Trials
from labkit.measure.traffic.packet_sender import FIRST_PORT, Mix

FLOWS = 1000
MOST_S, PACED_S, PACED_PPS = 0.5, 1.0, 50_000.0
ROUNDS, QUICK = 11, 3
SLOW_ROUNDS = 2  # of tshark, which takes seconds to start and to finish
WITHIN, FIFTIETH, START_S = 1.2, 1 / 50, 0.2
MEMORY_BYTES = 128 << 20  # the ring (16 MiB), the packets in memory (64 MiB at most), and the tables
Results = dict[str, dict[str, list[float]]]


def promises(quick: bool) -> Iterator[Promise]:
    """Yield the cost beside the reference, tshark and dumpcap; the start; the counts; the memory."""
    note("readers of an interface, with traffic")
    result: Results = inside("benchmarks.monitor", QUICK if quick else ROUNDS)
    usual_s = median(result["none"]["frame_s"])

    def added_s(name: str) -> float:
        """In the kernel and in the reader, per frame sent, as fast as possible."""
        own = result[name]
        return median(own["frame_s"]) - usual_s + median(own["own_s"])

    ours, bare = added_s("monitor"), added_s("socket")
    spread = (max(result["none"]["frame_s"]) - min(result["none"]["frame_s"])) * 1e9
    yield Promise(
        "the monitor with a kernel filter, CPU per packet",
        f"{1e9 * ours:.0f} ns",
        f"bare packet socket: {1e9 * bare:.0f} ns",
        ours / bare,
        f"<= {WITHIN}",
        ours <= WITHIN * bare,
        f"a frame without a reader takes {1e9 * usual_s:.0f} ns, and repetitions spread over {spread:.0f} ns",
    )
    if "tshark" in result:
        theirs = median(result["tshark"]["paced_s"])
        yield Promise(
            "the same against a display filter on everything",
            f"{1e9 * ours:.0f} ns",
            f"tshark -Y at {PACED_PPS / 1e3:.0f} kpps: {1e6 * theirs:.1f} µs",
            ours / theirs,
            f"<= {FIFTIETH:g}",
            ours <= FIFTIETH * theirs,
            "of tshark only the CPU time of its own processes counts here",
        )
    start_s = median(result["monitor"]["start_s"])
    other = f"tshark: {median(result['tshark']['start_s']):.2f} s" if "tshark" in result else ""
    yield Promise(
        "the monitor's start", f"{start_s:.3f} s", other, None, f"<= {START_S} s", start_s <= START_S
    )
    if "dumpcap" in result:
        everything, theirs = (median(result[name]["paced_s"]) for name in ("monitor_all", "dumpcap"))
        yield Promise(
            "every packet, CPU of the reader per packet",
            f"{1e6 * everything:.2f} µs",
            f"dumpcap -w: {1e6 * theirs:.2f} µs",
            everything / theirs,
            "<= 1",
            everything <= theirs,
            f"at {PACED_PPS / 1e3:.0f} kpps",
        )
    uncounted = max(map(abs, result["monitor_all"]["uncounted"]))
    yield Promise(
        "packets in no count, as fast as possible", f"{uncounted:.0f}", bound="0", kept=uncounted == 0
    )
    grown = max(result["monitor_all"]["memory_bytes"])
    yield Promise(
        "the monitor's memory beyond its start",
        f"{grown / 2**20:.0f} MiB",
        bound=f"<= {MEMORY_BYTES >> 20} MiB",
        kept=grown <= MEMORY_BYTES,
    )


def measured(rounds: int) -> Results:
    """Measure all readers alternately. A missing program has no result."""
    result: Results = {}
    rng = random.Random(18)
    with topologies.build("veth", topologies.Spec()) as net:
        server = net.pairs[0].server
        hop = CapturePoint(server.namespace, server.interface)
        with registry.find_trial("packets").trials(net.pairs, Mix((64,), FLOWS)) as trials:
            for number in range(rounds):
                names = ["none", "none", "socket", "monitor", "monitor_all", "dumpcap"]
                names += ["tshark"] * (number < SLOW_ROUNDS)
                for name in rng.sample(names, len(names)):
                    try:
                        _measure(result.setdefault(name, {}), trials, hop, name)
                    except LabkitError as error:
                        note(f"{name}: {error}")
                        del result[name]
                        if name not in ("dumpcap", "tshark"):
                            raise
    return {name: own for name, own in result.items() if own}


def _measure(own: dict[str, list[float]], trials: Trials, hop: CapturePoint, name: str) -> None:
    """Append what one reader costs: at the greatest rate, and at a rate that it can follow."""
    is_slow = name == "tshark"
    with readers.reading(name, hop, FIRST_PORT, "all") as running:
        pids = frozenset({running.pid, *descendants(running.pid)} if running.pid else {os.getpid()})
        before_bytes = _resident_bytes(running.pid)
        offered = 0
        if not is_slow:
            trial, used_s = _trial(trials, pids, None, MOST_S)
            offered += trial.offered_count
            _add(own, frame_s=trial.elapsed_s / trial.offered_count)
            _add(own, own_s=used_s / trial.offered_count if running.pid else 0.0)
        trial, used_s = _trial(trials, pids, PACED_PPS, PACED_S)
        offered += trial.offered_count
        _add(own, paced_s=used_s / trial.offered_count if running.pid else 0.0)
        _add(own, start_s=running.start_s, memory_bytes=_resident_bytes(running.pid) - before_bytes)
        counted = running.stop()
        if name == "monitor_all" and counted.taken is not None and counted.dropped is not None:
            _add(own, uncounted=offered - counted.taken - counted.dropped)


def _trial(
    trials: Trials, pids: frozenset[int], rate_pps: float | None, duration_s: float
) -> tuple[Trial, float]:
    """Run a trial; return it with the CPU time of these processes until they have handled all."""
    begun_s = experiment.cpu_s(pids)
    trial = trials.trial(rate_pps, duration_s)
    experiment.drained(pids, 30.0)
    return trial, experiment.cpu_s(pids) - begun_s


def _add(own: dict[str, list[float]], **values: float) -> None:
    for name, value in values.items():
        own.setdefault(name, []).append(value)


def _resident_bytes(pid: int) -> float:
    """Return the greatest memory of a process so far (VmHWM, proc(5))."""
    if not pid:
        return 0.0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    raise NotMeasuredError("the kernel does not report VmHWM")


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]))))
