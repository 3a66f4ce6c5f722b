"""Count how often a gate takes equal builds for a regression, and how often it finds one of 5 %.

Two builds of one program are arms of real runs (`labkit run … --fail-if`): a copy of iperf3 that differs in a byte at
its end. A regression is planted in the rows of the same runs: the copy's throughput is divided. With --run, comparisons
of ten minutes are drawn from a recorded run whose baseline was measured twice: the even and the odd slices of both are
four equal arms, of which three are drawn, without their long-run ratio. Rounds are drawn with replacement, of loads
with no more pairs than CPUs.
"""

import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.intervals import Count
from benchmarks.promise import LABKIT, NotMeasuredError, Promise, note
from labkit.analysis import gate, published_runs
from labkit.common import run_folder
from labkit.common.run_folder import Row
from labkit.system import machine

FAIL_IF = "slower>1%"
CONDITIONS = [gate.condition(FAIL_IF)]
EQUAL, SLOWER, PLANTED = 100, 50, 1.05
ALARMS, FOUND = 0.02, 0.90
RUNS, QUICK_RUNS = 17, 2  # of half a minute each
LEAST_ROUNDS, ROUNDS = 8, 120  # of a point, and of a comparison: ten minutes with set-ups
CHANGE = "new"
ARMS = ("a", "a (again)", f"a+{CHANGE}")
RUN = ("topology=veth", "rounds=8", "slices=12", "whole_runs=0", "half_width=0")
CODES = {code: word for word, code in gate.EXIT_CODES.items()}


def promises(quick: bool, folder: Path | None = None) -> Iterator[Promise]:
    """Yield the false alarms and the power of new runs, or of comparisons drawn from the run in `folder`."""
    with tempfile.TemporaryDirectory() as scratch:
        if folder is not None:
            yield from _drawn(folder, Path(scratch))
            return
        runs = [Path(scratch) / f"{number}" for number in range(QUICK_RUNS if quick else RUNS)]
        build = _copy(Path(scratch) / "build")
        equal = [_measured(run, build, number) for number, run in enumerate(runs)]
        slower = [
            _judged_arms(run / "slower", _slowed(run_folder.read_rows(run), f"veth+{CHANGE}", PLANTED))
            for run in runs
        ]
        what = f"a build as an arm, {len(runs)} runs of {' '.join(RUN[1:3])}"
        yield from _rates(what, equal, slower, decides=not quick)


def _copy(folder: Path) -> Path:
    """Return another build of iperf3 that is as fast: a copy with a byte more at its end, which nothing reads."""
    folder.mkdir()
    path = Path(shutil.copy(machine.require_program("iperf3"), folder / "iperf3"))
    with path.open("ab") as file:
        file.write(b"\0")
    return path


def _measured(folder: Path, build: Path, number: int) -> str:
    """Measure both builds as arms of one run, and return the gate's word."""
    note(f"run {number + 1}")
    words = [*RUN, f"change={CHANGE}: program iperf3={build}", f"protocol={('tcp', 'udp')[number % 2]}"]
    argv = [*LABKIT, "run", "datapaths", *words, "--fail-if", FAIL_IF, "--folder", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in CODES:
        raise NotMeasuredError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-300:]}")
    return CODES[done.returncode]


def _drawn(folder: Path, scratch: Path) -> Iterator[Promise]:
    points = [point for point in _points(folder) if len({row["round"] for row in point}) >= LEAST_ROUNDS]
    if not points:
        raise NotMeasuredError(f"{folder} has no point with slices, whose baseline was measured twice")
    rng, names = np.random.default_rng(1), itertools.count()

    def word(slower: float) -> str:
        equal = _equal_arms(points[int(rng.integers(len(points)))], rng)
        [judged] = gate.judge_arms(_saved(scratch / f"{next(names)}", equal), CONDITIONS)
        rounds = rng.choice(sorted({row["round"] for row in equal}), ROUNDS)
        drawn = [
            {**row, "round": at} for at, one in enumerate(rounds) for row in equal if row["round"] == one
        ]
        # Divided by its ratio over all rounds, the arm is equal.
        return _judged_arms(scratch / f"{next(names)}", _slowed(drawn, ARMS[-1], slower / judged.slower))

    what = f"{ROUNDS} rounds drawn from {len(points)} points"
    yield from _rates(what, [word(1.0) for _ in range(EQUAL)], [word(PLANTED) for _ in range(SLOWER)])


def _points(folder: Path) -> Iterator[list[Row]]:
    """Yield the slices of each load whose baseline was measured twice, with no more pairs than CPUs."""
    names = ("run", "protocol", "pairs", "length_bytes", "mtu_bytes")
    rows = [
        row for row in published_runs.read_rows(folder) if row["method"] == "slice" and row["status"] == "ok"
    ]
    rows = sorted(rows, key=lambda row: str([row[name] for name in names]))
    for _, each in itertools.groupby(rows, lambda row: str([row[name] for name in names])):
        point = list(each)
        measured_twice = {"baseline", "control"} <= {row["role"] for row in point}
        if measured_twice and point[0]["pairs"] <= point[0]["cpus_count"]:
            yield point


def _equal_arms(point: list[Row], rng: np.random.Generator) -> list[Row]:
    """Return rows of a baseline, its control and a changed arm, which are halves of the slices of one arm."""
    halves = [(role, odd) for role in ("baseline", "control") for odd in (0, 1)]
    drawn = [halves[int(place)] for place in rng.permutation(len(halves))]
    result = list[Row]()
    for half, role, arm in zip(drawn, ("baseline", "control", "variant"), ARMS, strict=False):
        change = CHANGE if role == "variant" else None
        as_arm = {
            "role": role,
            "arm": arm,
            "topology": "a",
            "endpoint": "namespace",
            "change": change,
            "changed": None,
        }
        result += [
            {**row, **as_arm, "slice": row["slice"] // 2}
            for row in point
            if (row["role"], row["slice"] % 2) == half
        ]
    return result


def _slowed(rows: Iterable[Row], arm: str, by: float) -> list[Row]:
    return [
        {**row, "throughput_bps": row["throughput_bps"] / (by if row["arm"] == arm else 1.0)} for row in rows
    ]


def _judged_arms(folder: Path, rows: list[Row]) -> str:
    return gate.overall(gate.judge_arms(_saved(folder, rows), CONDITIONS))


def _saved(folder: Path, rows: list[Row]) -> Path:
    about = {"created": "", "experiment": "datapaths", "parameters": {}, "seed": 0, "why_stopped": {}}
    run_folder.write_json(folder / "run.json", {"run": folder.name, "finished": "now", **about})
    run_folder.write_rows(folder, "1-r0", rows)
    return folder


def _rates(what: str, equal: list[str], slower: list[str], *, decides: bool = True) -> Iterator[Promise]:
    for said, words, bound, is_kept, share in (
        ("false alarms", equal, f"<= {ALARMS:.0%}", Count.is_at_most, ALARMS),
        (f"{PLANTED - 1:.0%} slower is found", slower, f">= {FOUND:.0%}", Count.is_at_least, FOUND),
    ):
        count = Count(words.count(gate.WORSE), len(words), np.nan)
        more = ", ".join(f"{words.count(word)} {word}" for word in gate.EXIT_CODES)
        kept = is_kept(count, share) if decides else None
        yield Promise(f"{said}, {FAIL_IF}, {what}", str(count), "", count.share, bound, kept, more)
