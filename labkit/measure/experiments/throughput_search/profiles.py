"""Profiles of a search: after the searches, every arm carries the same rate under each observer.

The rate is half of the lowest one that any arm carries, so the CPU time of each packet can be compared.
"""

import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.common import run_folder, schema
from labkit.common.errors import LabkitError
from labkit.common.packets import FCS_BYTES
from labkit.measure.experiments import rows as row_columns
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.measuring_loop import Running, Stages
from labkit.measure.experiments.profiled_runs import Profile
from labkit.measure.experiments.rows import Measured
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.experiments.whole_runs import Counting
from labkit.measure.traffic import rates
from labkit.system import machine

SEARCH = "search"  # the method of rows that have a rate
# Additional columns of these rows; null where not measured.
COLUMNS = schema.names(writer=("throughput",))
SHARE = 0.5  # of the lowest rate that the arms carry
OBSERVED_S = 2.0  # a trial under an observer


def columns(parameters: Throughput, frame: str, flows: int) -> dict[str, Any]:
    """Return the columns that all rows with these frames and flows share; those not measured are null."""
    return dict.fromkeys(COLUMNS) | {
        "part": "cost",
        "frame": frame,
        "frame_bytes": rates.mean_bytes(rates.sizes(frame)),
        "flows_count": flows,
        "vlan": parameters.vlan,
        "burst_frames": parameters.burst_frames,
        "length_bytes": None,
    }


@dataclass(frozen=True)
class SearchProfile(Profile):
    """A profile of these frames and flows. There is none if their searches found no rate."""

    parameters: Throughput
    frame: str = "64"
    flows: int = 1
    rate_pps: float = 0.0

    def measure(self, running: Running) -> Stages:
        """Measure every arm at the rate that the searches allow."""
        rate_pps = common_pps(self.parameters, running.remembered, self.pairs, self.frame, self.flows)
        if rate_pps is not None:
            yield from Profile.measure(replace(self, rate_pps=rate_pps), running)

    def run(self, built_arm: LocalArm, _artefacts: Path, counting: Counting | None, _suffix: str) -> Measured:
        parameters, frame, rate_pps = self.parameters, self.frame, self.rate_pps
        shared = columns(parameters, frame, self.flows)
        shared |= {"loss_goal_ratio": parameters.loss[0]}
        try:
            mix = parameters.for_topology(built_arm.arm.topology).mix(frame, self.flows)
            made = built_arm.trials(parameters.load_generator, mix, parameters.direction)
            with made as trials, (counting or nullcontext)():
                metered, times = built_arm.metered(), machine.cpu_times()
                trial = trials.trial(rate_pps, OBSERVED_S)
                used, joined = machine.cpu_times() - times, metered()
        except LabkitError as error:
            return built_arm.arm, shared | row_columns.not_measured(error)
        received_bytes = round(trial.received_count * (shared["frame_bytes"] - FCS_BYTES))
        limited = f"generator-limited: {trial.offered_pps:.0f} of {rate_pps:.0f} pps"
        row = {
            "status": "invalid" if trial.generator_limited else "ok",
            "reason": limited if trial.generator_limited else None,
            **trial.columns,
            "throughput_bps": 8 * shared["frame_bytes"] * trial.received_count / trial.elapsed_s,
            "received_bytes": received_bytes,
            "received_count": trial.received_count,
            **used.columns,
        }
        doubts = [f"{trial.lost_count} of {trial.offered_count} frames were lost"] if trial.lost_count else []
        return built_arm.measured(
            shared | joined | row, [*doubts, *machine.stolen(used.steal_s, trial.elapsed_s)]
        )


def points(parameters: Throughput) -> list[SearchProfile]:
    return [
        SearchProfile(
            f"{frame}b-{flows}f-{pairs}-p{number}",
            pairs,
            number,
            parameters,
            f"{frame}b-{flows}f",
            frame,
            flows,
        )
        for number in range(parameters.profile_rounds if parameters.observe else 0)
        for pairs in parameters.pairs
        for frame in parameters.frame_bytes
        for flows in parameters.flows
    ]


def common_pps(
    parameters: Throughput, searched: Sequence[run_folder.Row], pairs: int, frame: str, flows: int
) -> float | None:
    """Return the rate at which all arms are observed; None if none of these searches found one.

    An arm that never lost carries at least the greatest rate that was tried.
    """
    wanted = {"pairs": pairs, "frame": frame, "flows_count": flows, "loss_goal_ratio": parameters.loss[0]}
    by_arm: dict[str, list[float]] = {}
    for row in searched:
        pps = row["throughput_pps"] or row["lower_bound_pps"]
        if pps and all(row[name] == value for name, value in wanted.items()):
            by_arm.setdefault(row["arm"], []).append(pps)
    return SHARE * min(map(statistics.median, by_arm.values())) if by_arm else None
