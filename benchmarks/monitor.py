"""Compare the monitor with a bare filtered packet socket, with tshark and with dumpcap, beside the same traffic.

A veth carries frames of 1,000 flows, of which one is wanted. Two costs count. What the kernel does for a reader, it
does in the sender's context, so a sender that sends as fast as it can shows it: time per frame with the reader minus
without. The CPU time of the reader's own processes comes from the scheduler, in nanoseconds. Both are per frame sent.
At a rate that every reader can follow, the CPU time of the whole machine is measured with and without each reader.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from benchmarks.promise import NotMeasuredError, Promise, at_most, inside, median, note
from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint
from labkit.measure.observers.capture import CapturePoint
from labkit.measure.traffic import registry
from labkit.measure.traffic.base import Trial, Trials
from labkit.measure.traffic.packet_sender import FIRST_PORT, Mix
from labkit.system import machine
from studies.monitor_cost import experiment, readers

FLOWS = 1000
MAX_S, PACED_S, PACED_PPS = 0.25, 1.0, 50_000.0
ROUNDS, QUICK = 31, 7  # of nobody, the reference and the monitor, as fast as possible
FAST = ("none", "socket", "monitor")
SLOW = ("none", "monitor", "monitor_all", "dumpcap", "tshark")
SLOW_ROUNDS = 5  # at a rate that every reader can follow
SLOWEST_ROUNDS = 2  # of tshark, which takes seconds to start and to finish
SETTLE_S = 0.1
WITHIN, FIFTIETH, START_S = 1.2, 1 / 50, 0.2
MEMORY_BYTES = 128 << 20  # the ring (16 MiB), the packets in memory (64 MiB at most), and the tables
Results = dict[str, dict[str, list[float]]]


def promises(quick: bool) -> Iterator[Promise]:
    """Yield the cost beside the reference, tshark and dumpcap; the start; the counts; the memory."""
    note("readers of an interface, with traffic")
    result: Results = inside("benchmarks.monitor", QUICK if quick else ROUNDS)
    ours, bare = median(result["monitor"]["added_s"]), median(result["socket"]["added_s"])
    noise = median(map(abs, result["none"]["apart_s"]))
    is_known = min(ours, bare) > 0
    yield Promise(
        "the monitor with a kernel filter, CPU per packet", f"{1e9 * ours:.0f} ns",
        f"bare packet socket: {1e9 * bare:.0f} ns", ours / bare if is_known else None, f"<= {WITHIN}",
        ours <= WITHIN * bare if is_known else None,
        f"two measurements of a frame without a reader ({1e9 * median(result['none']['frame_s']):.0f} ns) differ by"
        f" {1e9 * noise:.0f} ns"
        + ("" if is_known else ", which hides the readers: repeat on a quiet machine"),
    )  # fmt: skip
    if "tshark" in result:
        theirs, least = median(result["tshark"]["paced_s"]), max(ours, median(result["monitor"]["own_s"]))
        yield Promise(
            "the same against a display filter on everything", f"{1e9 * least:.0f} ns",
            f"tshark -Y at {PACED_PPS / 1e3:.0f} kpps: {1e6 * theirs:.1f} µs", least / theirs,
            f"<= {FIFTIETH:g}", least <= FIFTIETH * theirs,
            "of tshark only the CPU time of its own processes counts here",
        )  # fmt: skip
    start_s = median(result["monitor"]["start_s"])
    other = f"tshark: {median(result['tshark']['start_s']):.2f} s" if "tshark" in result else ""
    yield Promise(
        "the monitor's start", f"{start_s:.3f} s", other, None, f"<= {START_S} s", start_s <= START_S
    )
    if "dumpcap" in result:
        everything, theirs = (median(result[name]["paced_s"]) for name in ("monitor_all", "dumpcap"))
        what, more = "every packet, CPU of the reader per packet", f"at {PACED_PPS / 1e3:.0f} kpps"
        yield at_most(what, 1e6 * everything, 1e6 * theirs, "dumpcap -w", 1, more, "{:.2f} µs")
    yield from _for_information(result)
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


def _for_information(result: Results) -> Iterator[Promise]:
    """Yield the CPU time of the whole machine and the observed flow's throughput, with and without readers.

    A busy machine moves both more than a cheap reader does, so they decide nothing.
    """
    nobody = median(result["none"]["machine_s"])
    added = {
        name: median(result[name]["machine_s"]) - nobody for name in SLOW if name != "none" and name in result
    }
    yield Promise(
        f"CPU of the whole machine per packet at {PACED_PPS / 1e3:.0f} kpps, added by the monitor",
        f"{1e6 * added['monitor']:+.2f} µs", f"without a reader: {1e6 * nobody:.2f} µs",
        more="added by others: "
        + ", ".join(f"{name} {1e6 * value:+.2f} µs" for name, value in added.items() if name != "monitor"),
    )  # fmt: skip
    alone, beside = (median(result[name]["observed_pps"]) for name in ("none", "monitor"))
    yield Promise(
        "the observed flow beside the monitor, as fast as possible",
        f"{beside:.0f} frames/s",
        f"without a reader: {alone:.0f} frames/s",
        beside / alone,
    )


class _Traffic(NamedTuple):
    """The load, where it is watched, and the counter of the observed flow there."""

    trials: Trials
    server: Endpoint
    observed: Callable[[], int]


def measured(rounds: int) -> Results:
    """Measure the readers alternately: first those that cost next to nothing, then readers of everything."""
    result: Results = {name: {} for name in FAST}
    rng = random.Random(18)
    with topologies.build("veth", topologies.Spec()) as net:
        server = net.pairs[0].server
        with (
            registry.find_trial("packets").trials(net.pairs, Mix((64,), FLOWS)) as trials,
            experiment.observed_flow(server) as observed,
        ):
            traffic = _Traffic(trials, server, observed)
            for _ in range(rounds):
                _fast_round(result, traffic, rng)
            for number in range(min(rounds, SLOW_ROUNDS)):
                names = [name for name in SLOW if name != "tshark" or number < SLOWEST_ROUNDS]
                for name in rng.sample(names, len(names)):
                    _slow(result.setdefault(name, {}), traffic, name)
    return {name: own for name, own in result.items() if own}


def _fast_round(result: Results, traffic: _Traffic, rng: random.Random) -> None:
    """Append what a frame costs, as fast as possible: twice with nobody, and with each of two readers."""
    costs: dict[str, list[float]] = {}
    for name in rng.sample(names := ["none", *FAST], len(names)):
        with _reading(name, traffic.server) as running:
            pids = frozenset({running.pid or os.getpid()})
            before_count = traffic.observed()
            trial, used_s, _machine_s = _trial(traffic, pids, None, MAX_S, SETTLE_S)
            own_s = used_s / trial.offered_count if running.pid else 0.0
            costs.setdefault(name, []).append(trial.elapsed_s / trial.offered_count + own_s)
            observed_pps = (traffic.observed() - before_count) / trial.elapsed_s
            _add(result[name], own_s=own_s, start_s=running.start_s, observed_pps=observed_pps)
            running.stop()
    one, other = costs["none"]
    _add(result["none"], frame_s=(one + other) / 2, apart_s=one - other)
    for name in ("socket", "monitor"):
        _add(result[name], added_s=costs[name][0] - (one + other) / 2)


def _slow(own: dict[str, list[float]], traffic: _Traffic, name: str) -> None:
    """Append what a reader costs at a rate that it can follow. A missing program has no result."""
    server = traffic.server
    before = server.counters()
    try:
        with _reading(name, server) as running:
            # Without a reader this process stands in, so that looking costs the same.
            pid = running.pid or os.getpid()
            pids = frozenset({pid, *(machine.descendants(pid) if running.pid else ())})
            before_bytes = _resident_bytes(pid)
            trial, used_s, machine_s = _trial(traffic, pids, PACED_PPS, PACED_S, experiment.SETTLE_S)
            _add(own, machine_s=machine_s / trial.offered_count)
            if name not in FAST:
                _add(own, paced_s=used_s / trial.offered_count, start_s=running.start_s)
            if name == "monitor_all":
                _trial(traffic, pids, None, MAX_S, SETTLE_S)
                _add(own, memory_bytes=_resident_bytes(pid) - before_bytes)
            counted = running.stop()
    except LabkitError as error:
        note(f"{name}: {error}")
        return
    now = server.counters()
    if name == "monitor_all" and counted.taken is not None and counted.dropped is not None:
        passed = now.received_count + now.sent_count - before.received_count - before.sent_count
        _add(own, uncounted=passed - counted.taken - counted.dropped)


def _reading(name: str, server: Endpoint) -> AbstractContextManager[readers.RunningReader]:
    return readers.READERS[name](CapturePoint(server.namespace, server.interface), FIRST_PORT, "all")


def _trial(
    traffic: _Traffic, pids: frozenset[int], rate_pps: float | None, duration_s: float, settle_s: float
) -> tuple[Trial, float, float]:
    """Run a trial; return it with the CPU time of these processes, and of the whole machine, until they have handled
    all."""
    before, begun_s = machine.cpu_times(), machine.cpu_s(pids)
    trial = traffic.trials.trial(rate_pps, duration_s)
    experiment.wait_until_idle(pids, 30.0, settle_s)
    return trial, machine.cpu_s(pids) - begun_s, (machine.cpu_times() - before).busy_s


def _add(own: dict[str, list[float]], **values: float) -> None:
    for name, value in values.items():
        own.setdefault(name, []).append(value)


def _resident_bytes(pid: int) -> float:
    """Return the greatest memory of a process so far (VmHWM, proc(5))."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    raise NotMeasuredError("the kernel does not report VmHWM")


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]))))
