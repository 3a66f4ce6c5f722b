"""Profile one UDP flow over a veth with and without nftables rules at the receiver, which are a known cause.

The tests run this as a program, like an experiment's process. Arguments: a folder, rounds, rules. It writes
ARM-ROUND.folded.gz to the folder and prints a JSON list with an entry for each round.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from labkit.measure import topologies
from labkit.measure.endpoints import Namespace, Pair
from labkit.measure.observers.counters.receive_counters import datagrams
from labkit.measure.observers.perf.record import FREQUENCY_HZ, perf_record
from labkit.measure.traffic import iperf3
from labkit.system import machine, process

WINDOW_S = 1.0
LOAD = iperf3.Load("udp", length_bytes=64, duration_s=30, omit_s=0)  # this program ends it earlier


def ruled(space: Namespace, count: int) -> None:
    """Make every packet that a namespace receives pass this many rules that do not match it."""
    rules = "\n".join(f"udp dport {10_000 + number} drop" for number in range(count))
    with tempfile.NamedTemporaryFile("w", suffix=".nft") as file:
        file.write(
            f"table ip planted {{\nchain input {{\ntype filter hook input priority 0\n{rules}\n}}\n}}\n"
        )
        file.flush()
        process.output([*space.prefix, "nft", "-f", file.name], 60)


def received(pair: Pair) -> int:
    """Return the number of datagrams that the server has read."""
    return datagrams(pair.server.kernel.read("/proc/net/snmp"))[0]


def profile(folded: Path, rules: int) -> dict[str, Any]:
    """Measure one round: a fresh topology, and one second of its traffic."""
    with topologies.build("veth", topologies.Spec()) as net:
        [pair] = net.pairs
        if rules:
            ruled(pair.server.namespace, rules)
        with perf_record(folded) as watch:
            with iperf3.flows(net.pairs, LOAD) as flows:
                flows.stage()
                flows.go()
                while received(pair) < 1000:
                    assert not flows.early_end(), flows.early_end()
                    time.sleep(0.01)
                with watch.counting():
                    count, used = received(pair), machine.cpu_times()
                    time.sleep(WINDOW_S)
                    count, used = received(pair) - count, machine.cpu_times() - used
            report = watch.report().observed
    return {
        "event": report["event"],
        "work": {"period_s": 1 / FREQUENCY_HZ, "received_count": count, "cpu_s": used.busy_s},
    }


def main(folder: Path, rounds: int, rules: int) -> list[dict[str, Any]]:
    result = []
    for number in range(rounds):
        for arm in ("without", "with")[:: -1 if number % 2 else 1]:
            path = folder / f"{arm}-{number}.folded.gz"
            result.append({"arm": arm, "folded": str(path), **profile(path, rules if arm == "with" else 0)})
    return result


if __name__ == "__main__":
    os.chdir("/")
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
