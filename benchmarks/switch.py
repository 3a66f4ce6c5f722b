"""Compare a switch's set-up with that of a Linux bridge, and measure what a further row of `virtual_tap` costs.

128 ports are 64 pairs. The switch's time contains the start of its two programs. What a run costs once (process start,
survey, imports) cancels, because two runs differ in the number of rounds only. Slices of 0.1 s are what is measured.
What is left is set-up, the proof of every mirror, starts and ends of the load, and writing rows.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.promise import LABKIT, NotMeasuredError, Promise, at_most, inside, median, note, output
from labkit.common import run_folder
from labkit.measure.experiments.slices import SLICE_S

PORTS = 128
BOUND, ROW_BOUND_S = 3.0, 0.3
REPEATS = 5
SWITCH, BRIDGE = "ovs_netdev", "veth_bridge"
WORDS = ("mirrors=0,1,2,4,8", "readers=none", "loads=udp:64,udp:512,udp:1472", "slices=4", "profile_rounds=1")


def promises(quick: bool) -> Iterator[Promise]:
    """Yield the promise for a switch of many ports, and that for a further row of `virtual_tap`."""
    seconds = inside("benchmarks.set_up", PORTS // 2, 3 if quick else REPEATS, SWITCH, BRIDGE)
    what = f"set-up of {PORTS} ports on {SWITCH}"
    yield at_most(what, median(seconds[SWITCH]), median(seconds[BRIDGE]), BRIDGE, BOUND)
    note("switches with mirrors, twice")
    rounds = (1, 2 if quick else 4)
    (few_s, few), (many_s, many) = (_besides(count) for count in rounds)
    each_s = (many_s - few_s) / (many - few)
    yield Promise(
        "seconds that a further row of virtual_tap costs beside its slices", f"{each_s:.3f} s",
        f"its slices: {4 * SLICE_S:.1f} s", each_s / (4 * SLICE_S), f"<= {ROW_BOUND_S} s",
        each_s <= ROW_BOUND_S,
        f"{few} and {many} rows in {rounds[0]} and {rounds[1]} rounds, {few_s:.1f} and {many_s:.1f} s besides",
    )  # fmt: skip


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
