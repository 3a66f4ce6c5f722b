"""Measure how narrow the interval of a comparison of two single flows gets within a minute."""

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
    "topology=veth_bridge,macvlan_bridge", "pairs=1", f"slices={SLICES}", "whole_runs=0", "half_width=0",
)  # fmt: skip


def promises(quick: bool) -> Iterator[Promise]:
    """Yield for TCP and UDP the half-width that was reached, beside that of flows that the scheduler places."""
    rounds = 4 if quick else ROUNDS
    for protocol in ("tcp", "udp"):
        note(f"two single flows, {protocol}")
        usual, usual_control, _ = reached(rounds, f"protocol={protocol}", "placement=scheduler")
        effect, again, seconds = reached(rounds, f"protocol={protocol}", "placement=balanced")
        width, reference = stats.half_width(effect), stats.half_width(usual)
        yield Promise(
            f"half-width, macvlan_bridge to veth_bridge, one {protocol.upper()} flow each",
            f"{width:.1%} in {seconds:.0f} s", f"placed by the scheduler: {reference:.1%}", width / reference,
            f"<= {WIDTH:.0%} in {WITHIN_S:.0f} s", None if quick else width <= WIDTH and seconds <= WITHIN_S,
            f"{described(effect)}, A/A {described(again)};"
            f" placed by the scheduler {described(usual)}, A/A {described(usual_control)}",
        )  # fmt: skip


def reached(rounds: int, *parameters: str) -> tuple[stats.Effect, stats.Effect, float]:
    """Return the effect, that of the control, and the seconds that the measurement took."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        words = [*PARAMETERS, *parameters, f"rounds={rounds}", "--json", "--folder", str(folder)]
        output([*LABKIT, "run", "datapaths", *words])
        seconds = run_folder.read_json(folder / "run.json")["measuring_s"]
        arm, control, setups = log_ratios(run_folder.read_rows(folder))
    placed = "placement=balanced" in parameters
    effect, again = (stats.effect(ratios, setups, slices=True, placed=placed) for ratios in (arm, control))
    return effect, again, seconds


def described(effect: stats.Effect) -> str:
    """Return the ratio with its interval and estimator."""
    return f"{stats.ratio_text(effect.ratio, effect.low, effect.high)} ({effect.how})"


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
