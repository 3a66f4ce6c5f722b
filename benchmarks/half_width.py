"""Measure how narrow the interval of a comparison of two single flows gets within a minute."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.promise import LABKIT, Promise, note, output
from labkit.analysis import stats
from labkit.common import run_folder

WIDTH, WITHIN_S = 0.04, 60.0
# Three arms (the baseline is measured twice), slices of 100 ms. Within a minute, many set-ups with few slices give the
# narrowest interval, because set-ups differ as well. With 20 or 40 slices per set-up, intervals were a tenth to a half
# wider, and the worst case was worse.
ROUNDS, SLICES = 14, 12
ARMS = ("veth_bridge", "veth_bridge (again)", "macvlan_bridge")
PARAMETERS = (
    "topology=veth_bridge,macvlan_bridge",
    "pairs=1",
    f"slices={SLICES}",
    "whole_runs=0",
    "half_width=0",
)


def promises(quick: bool) -> Iterator[Promise]:
    """Yield the half-width that was reached, and the noise of a slice."""
    note("two single flows")
    rounds = 4 if quick else ROUNDS
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        output(
            [*LABKIT, "run", "datapaths", *PARAMETERS, f"rounds={rounds}", "--json", "--folder", str(folder)]
        )
        seconds = run_folder.read_json(folder / "run.json")["measuring_s"]
        arm, control, setups = log_ratios(run_folder.read_rows(folder))
    effect, again = stats.effect(arm, setups, slices=True), stats.effect(control, setups, slices=True)
    width = stats.half_width(effect)
    yield Promise(
        "half-width, macvlan_bridge to veth_bridge, one TCP flow each",
        f"{width:.1%} in {seconds:.0f} s",
        f"A/A control: {again.ratio:.3f} ±{stats.half_width(again):.1%}",
        width / WIDTH,
        f"<= {WIDTH:.0%} in {WITHIN_S:.0f} s",
        None if quick else width <= WIDTH and seconds <= WITHIN_S,
        f"{stats.ratio_text(effect.ratio, effect.low, effect.high)}, {effect.how};"
        f" a slice's log-ratio has sd {deviation(arm):.3f}, the control's {deviation(control):.3f}",
    )


def log_ratios(rows: list[run_folder.Row]) -> tuple[stats.Floats, stats.Floats, list[int]]:
    """Return the log-ratios macvlan_bridge to veth_bridge, and veth_bridge to itself, for each slice, with their
    set-ups."""
    slices: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        if row["status"] == "ok" and row["throughput_bps"]:
            slices.setdefault((row["round"], row["slice"]), {})[row["arm"]] = row["throughput_bps"]
    whole = {place: result for place, result in slices.items() if len(result) == len(ARMS)}
    baseline, control, variant = ([result[arm] for result in whole.values()] for arm in ARMS)
    arm, again = stats.log_ratios(variant, baseline, control)
    return arm, again, [setup for setup, _slice in whole]


def deviation(log_ratios: stats.Floats) -> float:
    """Return the standard deviation of one slice's log-ratio."""
    return float(log_ratios.std(ddof=1))
