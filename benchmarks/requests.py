"""Compare the CPU time of labkit's own request client with sockperf's, side by side, and see how punctual a rate of
requests is, and how narrow the interval of a 99th percentile gets within a minute."""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks import intervals
from benchmarks.promise import LABKIT, NotMeasuredError, Promise, at_most, inside, median, note, output
from labkit.analysis import load, stats, verdicts
from labkit.common import run_folder
from labkit.measure import topologies
from labkit.measure.endpoints import Pair
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.traffic import sockperf
from labkit.measure.traffic.base import RequestGenerator
from labkit.system.machine.cpu_time import cpu_s, descendants

BOUND = 1.2
GENERATORS = ("sockets", "sockperf")
CLIENTS = (b'"serves": false', b"ping-pong")  # in their command lines
PROTOCOLS = ("udp_rr", "tcp_rr")
ENDS = {"ends on one CPU": (0, 0), "ends on two CPUs": (0, -1)}
RATE_RPS, PUNCTUAL_S, PUNCTUAL_SHARE = 20_000, 50e-6, 0.99
BUSY_COUNT = 2 * RATE_RPS
ROUNDS, QUICK = 9, 3
# Three arms, each with its ends on one CPU and on two.
P99 = ("topology=veth,veth_bridge", "protocol=udp_rr", *intervals.REQUESTS, "half_width=0")
P99_ROUNDS, WIDTH, WITHIN_S = 8, 0.05, 60.0
Results = dict[str, list[float]]


def promises(quick: bool) -> Iterator[Promise]:
    """Yield a line for each protocol and place of the ends, one for the open loop, and those of percentiles."""
    note("requests beside sockperf")
    result: Results = inside("benchmarks.requests", QUICK if quick else ROUNDS)
    for protocol in PROTOCOLS:
        for ends in ENDS:
            ours, theirs = (median(result[f"{protocol}, {ends}, {name}"]) for name in GENERATORS)
            what = f"client's CPU time for a request of {protocol}, {ends}"
            yield at_most(what, 1e6 * ours, 1e6 * theirs, "sockperf", BOUND, form="{:.2f} µs")
    yield from percentiles(QUICK if quick else P99_ROUNDS, quick)
    punctual, busy = median(result["punctual"]), median(result["busy"])
    if busy < PUNCTUAL_SHARE:
        raise NotMeasuredError(
            f"requests sent within {1e6 * PUNCTUAL_S:.0f} µs: {punctual:.2%}, on a machine where a loop that only waits"
            f" keeps {busy:.2%} of its times"
        )
    yield Promise(
        f"requests sent within {1e6 * PUNCTUAL_S:.0f} µs, {RATE_RPS:,.0f} a second",
        f"{punctual:.2%}",
        f"a loop that only waits: {busy:.2%}",
        punctual / busy,
        f">= {PUNCTUAL_SHARE}",
        punctual >= PUNCTUAL_SHARE * busy,
    )


def percentiles(rounds: int, quick: bool) -> Iterator[Promise]:
    """Yield for each place of the ends how wide the interval of veth's 99th percentile against itself is."""
    note(f"99th percentiles, {rounds} rounds")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        output([*LABKIT, "run", "datapaths", *P99, f"rounds={rounds}", "--json", "--folder", str(folder)])
        seconds = run_folder.read_json(folder / "run.json")["measuring_s"]
        pairs = verdicts.ratios(load.at_percentile(load.load(folder), "p99"))
    for ends, own in pairs.groupby("ends_on", dropna=False):
        again, arm = (intervals.effect(own, column) for column in ("log_control", "log_ratio"))
        if again is None or arm is None:
            raise NotMeasuredError(f"no p99 of {ends} was measured")
        width = stats.half_width(again)
        yield Promise(
            f"half-width of p99 of udp_rr, veth to itself, {ends}",
            f"{width:.1%} in {seconds:.0f} s", bound=f"<= {WIDTH:.0%} in {WITHIN_S:.0f} s",
            kept=None if quick else width <= WIDTH and seconds <= WITHIN_S,
            more=f"veth_bridge to veth: {stats.ratio_text(arm.ratio, arm.low, arm.high)}",
        )  # fmt: skip


def measured(rounds: int) -> Results:
    """Measure both generators alternately, and the open loop."""
    result: Results = {"punctual": [], "busy": []}
    cpus = sorted(os.sched_getaffinity(0))
    with topologies.build("veth", topologies.Spec()) as net:
        for number in range(rounds):
            for protocol in PROTOCOLS:
                for ends, (client, server) in ENDS.items():
                    [pair] = net.pairs
                    placed = Pair(
                        replace(pair.client, cpu=cpus[client]), replace(pair.server, cpu=cpus[server])
                    )
                    for name in GENERATORS[:: -1 if number % 2 else 1]:
                        each = result.setdefault(f"{protocol}, {ends}, {name}", [])
                        each.append(_request_s(placed, protocol, name))
            # The last placement: a sender that keeps a rate has a CPU of its own.
            result["punctual"].append(punctual_share(placed))
            result["busy"].append(busy_share(cpus[0]))
    return result


def _request_s(pair: Pair, protocol: str, name: str) -> float:
    """Return the client's CPU time for each request in seconds."""
    parameters, seen_s = _parameters(protocol, generator=name), [0.0, 0.0]

    @contextmanager
    def window() -> Iterator[None]:
        pids = [
            pid
            for pid in descendants(os.getpid())
            if any(one in Path(f"/proc/{pid}/cmdline").read_bytes() for one in CLIENTS)
        ]
        begun, used_s = time.monotonic(), cpu_s(pids)
        time.sleep(0.9 * parameters.duration_s)  # the client goes on for the rest
        seen_s[:] = cpu_s(pids) - used_s, time.monotonic() - begun
        yield

    generator = parameters.load_generator
    assert isinstance(generator, RequestGenerator)
    row = generator.columns(generator.latency([pair], parameters, window()), parameters)
    return float(seen_s[0] / (seen_s[1] * row["transaction_rate"]))


def punctual_share(pair: Pair) -> float:
    """Return the share of the requests of the open loop that were sent soon after they were due."""
    parameters = _parameters("udp_rr", rate_rps=RATE_RPS)
    [content] = sockperf.SOCKPERF.latency([pair], parameters)
    log = sockperf.read(content.decode().splitlines())
    behind = [sent - due for sent, due in zip(log.sent_ns, log.due_ns(RATE_RPS), strict=True)]
    return sum(one <= 1e9 * PUNCTUAL_S for one in behind) / len(behind)


def busy_share(cpu: int) -> float:
    """Return the same share of a loop that only waits for each time, on this CPU: what the machine allows."""
    before, period_ns, kept = os.sched_getaffinity(0), 10**9 // RATE_RPS, 0
    os.sched_setaffinity(0, {cpu})
    try:
        begin_ns = time.monotonic_ns()
        for number in range(BUSY_COUNT):
            due_ns = begin_ns + number * period_ns
            while (now_ns := time.monotonic_ns()) < due_ns:
                pass
            kept += now_ns - due_ns <= 1e9 * PUNCTUAL_S
    finally:
        os.sched_setaffinity(0, before)
    return kept / BUSY_COUNT


def _parameters(protocol: str, **given: object) -> DatapathParameters:
    return DatapathParameters.of(
        {"topology": "veth", "protocol": protocol, "duration_s": 2, "omit_s": 1, **given}
    )


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]))))
