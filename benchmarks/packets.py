"""Compare packets per CPU-second of the packet generator with iperf3's on the same veth pair, and check its rates."""

import json
import sys
import time
from collections.abc import Iterator

from benchmarks.promise import Promise, inside, median, note
from labkit.measure import topologies
from labkit.measure.endpoints import Pair
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.traffic import iperf3, registry
from labkit.measure.traffic.packet_sender import Mix

BOUND = 1 / 3  # maximum ratio of iperf3's packets per CPU-second to labkit's
REACH = 0.8  # a rate must be met within 1 % up to this share of the maximum
RATES_PPS = (1e3, 10e3, 100e3)  # and that share
MET = 0.01
TREX_PPS = 302e3  # of TRex v3.08 with large rings: 64-byte frames over veth on two cores, as fast as it can
ROUNDS, QUICK = 7, 3
Results = dict[str, list[float]]


def promises(quick: bool) -> Iterator[Promise]:
    """Yield four lines: the ratio of packets per CPU-second, the most packets per second, the achieved rates, and the
    overhead of a trial."""
    note("the packet generator beside iperf3")
    result: Results = inside("benchmarks.packets", QUICK if quick else ROUNDS)
    ours, theirs = median(result["packets"]), median(result["iperf3"])
    yield Promise(
        "packets per CPU-second", f"{ours / 1e3:.0f} k", f"iperf3, UDP: {theirs / 1e3:.0f} k", theirs / ours,
        f"<= {BOUND:.3f}", theirs / ours <= BOUND, "64-byte frames; the reference's ratio to ours",
    )  # fmt: skip
    max_pps = median(result["max_pps"])
    yield Promise(
        "packets per second, 64-byte frames", f"{max_pps / 1e3:.0f} k",
        f"TRex on two cores: {TREX_PPS / 1e3:.0f} k", max_pps / TREX_PPS, ">= 1",
        more="the reference is from another machine, so this line does not decide",
    )  # fmt: skip
    off = worst(result["off"])
    words = f"{100 * off:.2f} % off at the worst rate"
    yield Promise("requested rate, 1 kpps to 80 %", words, "the requested rate", off, f"<= {MET}", off <= MET)
    beside_s = worst(result["beside_s"])
    yield Promise(
        "a trial beside its time", f"{1e3 * beside_s:.1f} ms", bound="<= 50 ms", kept=beside_s <= 0.05
    )


def worst(values: list[float]) -> float:
    """Return the largest of the rates' medians. `values` has one value for each rate, round after round."""
    count = len(RATES_PPS) + 1
    return max(median(values[number::count]) for number in range(count))


def measured(rounds: int) -> Results:
    """Measure both generators alternately."""
    result: Results = {"packets": [], "iperf3": [], "max_pps": [], "off": [], "beside_s": []}
    with topologies.build("veth", topologies.Spec()) as net:
        for _ in range(rounds):
            with registry.find_trial("packets").trials(net.pairs, Mix((64,), 1000)) as ready:
                most = ready.trial(None, 0.5)
                result["packets"].append(most.received_count / most.generator_cpu_s)
                result["max_pps"].append(most.offered_pps)
                for rate_pps in (*RATES_PPS, REACH * most.offered_pps):
                    begun = time.monotonic()
                    trial = ready.trial(rate_pps, 0.5)
                    result["beside_s"].append(time.monotonic() - begun - 0.5)
                    result["off"].append(abs(trial.offered_count / (0.5 * rate_pps) - 1))
            result["iperf3"].append(_iperf3(net.pairs[0]))
    return result


def _iperf3(pair: Pair) -> float:
    """Return the received datagrams per CPU-second of client and server."""
    load = DatapathParameters(protocol="udp", length_bytes=18, duration_s=1, omit_s=0)
    with iperf3.IPERF3.flows([pair], load) as flows:
        flows.stage()
        flows.go()
        reports, problem = flows.finish(time.monotonic() + 10)
        if problem is not None or flows.servers is None:
            sys.exit(problem)
        programs = [one.ended() for one in (*flows.clients, *flows.servers.programs)]
    row = iperf3.metrics(reports, "udp")
    return float(row["reported_received_count"] / sum(one.cpu_s for one in programs))


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]))))
