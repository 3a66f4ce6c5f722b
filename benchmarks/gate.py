"""Count how often a gate takes equal builds for a regression, and how often it finds one of 5 %.

A trial is what `labkit run … --fail-if` measures: rounds until the half-width is small enough, and at most those of ten
minutes. Most trials are drawn from recorded rounds, with replacement. The build is macvlan_bridge, the baseline is
veth_bridge, and the ratios of all recorded rounds are taken out, so all arms are equally fast. Others are real: a copy
of iperf3 that differs in a byte at its end is an arm. A regression is planted in the rows of the same trials: the
build's throughput is divided. A half-width is relative, so that does not change when a trial ends. With --run, the real
trials are runs that were measured before: a run, or all in a folder.
"""

import itertools
import math
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import control
from benchmarks.intervals import Count
from benchmarks.promise import LABKIT, NotMeasuredError, Promise, median, note
from labkit.analysis import gate, stats, verdicts
from labkit.analysis.load import GROUP
from labkit.analysis.stats import Floats
from labkit.common import run_folder
from labkit.measure.experiments import DatapathParameters, early_stop
from labkit.system import machine

FAIL_IF = "slower>2.5%"
CONDITIONS = [gate.condition(FAIL_IF)]
EQUAL, SLOWER, PLANTED = 100, 50, 1.05
ALARMS, FOUND = 0.02, 0.90
RUNS, QUICK_RUNS = 6, 0  # of up to ten minutes each
PROTOCOLS = ("tcp", "udp")
TOGETHER = 3  # recorded rounds have four slices, those of a gate twelve
ROUNDS = gate.DEFAULTS[0]["rounds"]
STOP = DatapathParameters.of({**gate.DEFAULTS[0], "half_width": gate.enough(CONDITIONS)})
CHANGE = "new"


@dataclass(frozen=True)
class Round:
    """The log-ratios of a set-up's slices: of the build to the mean of both baselines, and of the baselines."""

    arm: Floats
    control: Floats


def promises(quick: bool, folder: Path | None = None) -> Iterator[Promise]:
    """Yield the false alarms and the power of drawn trials (a minute) and of real ones (an hour; none with --quick), or
    of those in `folder`."""
    if folder is not None:
        yield from _real(sorted(path.parent for path in folder.glob("*/run.json")) or [folder])
        return
    yield from _drawn()
    with tempfile.TemporaryDirectory() as scratch:
        runs = [Path(scratch) / f"{number}" for number in range(QUICK_RUNS if quick else RUNS)]
        for run, protocol in zip(runs, itertools.cycle(PROTOCOLS), strict=False):
            _measure(run, _copy(Path(scratch)), protocol)
        yield from _real(runs)


def _drawn() -> Iterator[Promise]:
    rng = np.random.default_rng(1)
    loads = [
        list(_rounds(arm, other, setups))
        for name, arm, other, setups in control.recorded()
        if "placed" not in name
    ]
    trials = [_trial(loads[number % len(loads)], rng) for number in range(EQUAL)]
    rounds = [len(trial) for trial in trials]
    more = f"{median(rounds):.0f} rounds (median), at most {max(rounds)}"
    equal, slower = ([_word(trial, math.log(by)) for trial in trials] for by in (1.0, PLANTED))
    yield from _rates(f"rounds drawn from {len(loads)} recorded loads", equal, slower[:SLOWER], more)


def _rounds(arm: Floats, other: Floats, setups: Floats) -> Iterator[Round]:
    """Yield the rounds of a load, of which several recorded ones are one, without the ratios of all."""
    places = np.array_split(np.arange(setups.size), np.unique(setups).size // TOGETHER)
    level = [np.mean([stats.centre(one[place]) for place in places]) for one in (arm, other)]
    for place in places:
        yield Round(arm[place] - level[0], other[place] - level[1])


def _trial(rounds: Sequence[Round], rng: np.random.Generator) -> list[Round]:
    """Draw rounds until a gate would have stopped."""
    history, trial = early_stop.History(STOP, []), list[Round]()
    while len(trial) < ROUNDS and not history.enough(1):
        trial.append(rounds[int(rng.integers(len(rounds)))])
        one = trial[-1]
        logs = {"baseline": 0 * one.arm, "control": one.control, "variant": one.arm + one.control / 2}
        about = {"round": len(trial), "pairs": 1, "status": "ok", "method": "slice", "placement": "0-0"}
        history.add(
            [
                {**about, "role": role, "arm": role, "slice": place, "throughput_bps": math.exp(value)}
                for role, values in logs.items()
                for place, value in enumerate(values)
            ]
        )
    return trial


def _word(trial: Sequence[Round], slower: float) -> str:
    """Return the gate's word about a trial whose build is slower by this logarithm."""
    tables = [
        pd.DataFrame(
            {"log_ratio": one.arm - slower, "log_control": one.control, "setup": number, "round": number}
        )
        for number, one in enumerate(trial)
    ]
    mine = pd.concat(tables, ignore_index=True)
    mine = mine.assign(folder="", method="slice", slice=mine.index, starved=False, placed=True)
    effect = verdicts.column_effect(mine, "log_control", slices=True)
    line = verdicts.verdict_line(mine, lambda _slices: effect, CHANGE, "a", verdicts.MARGIN, higher=True)
    table = verdicts.verdict_table(
        [{**dict.fromkeys(GROUP), "protocol": "tcp", "topology": CHANGE, "baseline": "a"} | line]
    )
    ends = {f"judged_{end}": table[end] for end in ("ratio", "low", "high", "degrees_of_freedom")}
    return gate.overall(gate.judge(table.assign(**ends, why=None), CONDITIONS[0]))


def _copy(folder: Path) -> Path:
    """Return another build of iperf3 that is as fast: a copy with a byte more at its end, which nothing reads."""
    path = Path(shutil.copy(machine.require_program("iperf3"), folder / "iperf3"))
    with path.open("ab") as file:
        file.write(b"\0")
    return path


def _measure(run: Path, build: Path, protocol: str) -> None:
    note(f"run {run.name} of {protocol}")
    words = ["topology=veth", f"change={CHANGE}: program iperf3={build}", f"protocol={protocol}"]
    argv = [*LABKIT, "run", "datapaths", *words, "--fail-if", FAIL_IF, "--folder", str(run)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode not in gate.EXIT_CODES.values():
        raise NotMeasuredError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr[-300:]}")


def _real(runs: Sequence[Path]) -> Iterator[Promise]:
    if not runs:
        return
    took_s = [run_folder.read_run(run)["measuring_s"] for run in runs]
    more = f"{median(took_s):.0f} s (median), at most {max(took_s):.0f} s"
    equal = [gate.overall(gate.judge_arms(run, CONDITIONS)) for run in runs]
    with tempfile.TemporaryDirectory() as scratch:
        slowed = [_slowed(run, Path(scratch) / f"{number}") for number, run in enumerate(runs)]
        slower = [gate.overall(gate.judge_arms(run, CONDITIONS)) for run in slowed]
    yield from _rates("a build as an arm", equal, slower, more)


def _slowed(run: Path, folder: Path) -> Path:
    """Return a copy of a run in which the build is slower."""
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("artefacts", "rows"))
    rows = [
        row | {"throughput_bps": row["throughput_bps"] / PLANTED}
        if row["change"] == CHANGE and row["throughput_bps"]
        else row
        for row in run_folder.read_rows(run)
    ]
    run_folder.write_rows(folder, "1-r0", rows)
    return folder


def _rates(what: str, equal: Sequence[str], slower: Sequence[str], more: str) -> Iterator[Promise]:
    for said, words, bound, is_kept, share in (
        ("false alarms", equal, f"<= {ALARMS:.0%}", Count.is_at_most, ALARMS),
        (f"{PLANTED - 1:.0%} slower is found", slower, f">= {FOUND:.0%}", Count.is_at_least, FOUND),
    ):
        count = Count(words.count(gate.WORSE), len(words), np.nan)
        every = ", ".join(f"{words.count(word)} {word}" for word in gate.EXIT_CODES)
        kept = is_kept(count, share)
        yield Promise(
            f"{said}, {FAIL_IF}, {what}", str(count), "", count.share, bound, kept, f"{every}; {more}"
        )
