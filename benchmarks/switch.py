"""Compare a switch's set-up with that of a Linux bridge, and measure what a further row of `virtual_tap` costs.

128 ports are 64 pairs. The switch's time contains the start of its two programs. What a run costs once (process start,
survey, imports) cancels, because two runs differ in the number of rounds only. Slices of 0.1 s are what is measured.
What is left is set-up, the proof of every mirror, starts and ends of the load, and writing rows.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.promise import LABKIT, NotMeasuredError, Promise, at_most, inside, median, note, output
from benchmarks.set_up import all_gone
from labkit.common import run_folder
from labkit.measure import topologies
from labkit.measure.experiments.slices import SLICE_S
from labkit.measure.topologies import Spec

PORTS = 128
BOUND, ROW_BOUND_S = 3.0, 0.3
REPEATS = 5
SWITCH, BRIDGE = "ovs_netdev", "veth_bridge"
WORDS = ("mirrors=0,1,2,4,8", "readers=none", "loads=udp:64,udp:512,udp:1472", "slices=4", "profile_rounds=1")


def promises(quick: bool) -> Iterator[Promise]:
    """Yield the promise for a switch of many ports, and that for a further row of `virtual_tap`."""
    seconds = inside("benchmarks.switch", PORTS, 3 if quick else REPEATS)
    what = f"set-up of {PORTS} ports on {SWITCH}"
    yield at_most(what, median(seconds[SWITCH]), median(seconds[BRIDGE]), BRIDGE, BOUND)
    note("switches with mirrors, twice")
    rounds = (1, 2 if quick else 4)
    (few_s, few), (many_s, many) = (_besides(count) for count in rounds)
    each_s = (many_s - few_s) / (many - few)
    yield Promise(
        "seconds that a further row of virtual_tap costs beside its slices",
        f"{each_s:.3f} s",
        f"its slices: {4 * SLICE_S:.1f} s",
        each_s / (4 * SLICE_S),
        f"<= {ROW_BOUND_S} s",
        each_s <= ROW_BOUND_S,
        f"{few} and {many} rows in {rounds[0]} and {rounds[1]} rounds, {few_s:.1f} and {many_s:.1f} s besides",
    )


def main() -> None:
    """Build both alternately in an experiment's namespaces; print the seconds of each as JSON."""
    ports, repeats = int(sys.argv[1]), int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    seconds: dict[str, list[float]] = {SWITCH: [], BRIDGE: []}
    for number in range(repeats):
        for name in list(seconds)[:: -1 if number % 2 else 1]:  # A B B A
            begin = time.perf_counter()
            with topologies.build(name, Spec(ports // 2)):
                seconds[name].append(time.perf_counter() - begin)
            all_gone()
    print(json.dumps(seconds))


def _besides(rounds: int) -> tuple[float, int]:
    """Return the seconds of a run that are not slices, and its number of rows: one for each switch, load and round."""
    with tempfile.TemporaryDirectory() as scratch:
        output([*LABKIT, "run", "virtual_tap", *WORDS, f"rounds={rounds}"], LABKIT_DATA=scratch)
        (run,) = Path(scratch).rglob("run.json")
        rows = run_folder.read_rows(run.parent)
        if bad := [row["reason"] for row in rows if row["status"] not in ("ok", "invalid")]:
            raise NotMeasuredError(f"a row of virtual_tap is not ok: {bad[0]}")
        points = {(row["round"], row["arm"], row["protocol"], row["length_bytes"]) for row in rows}
        return run_folder.read_json(run)["measuring_s"] - len(rows) * SLICE_S, len(points)


if __name__ == "__main__":
    main()
