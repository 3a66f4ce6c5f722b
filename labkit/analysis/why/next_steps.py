"""The steps that would decide between the candidate causes of a difference, with their commands (`labkit why`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from labkit.analysis.why import environment
from labkit.analysis.why.candidates import Candidate
from labkit.analysis.why.environment import ABSENT, Setting
from labkit.analysis.why.evidence import Evidence

NETWORK_FILE = "FILE.yaml"  # the file of a network of one's own, because a row has only the network's name


def steps(evidence: Evidence, claims: bool, order: Sequence[Candidate]) -> Iterator[str]:
    """Yield the steps. claims: whether a cause is named. order: the candidates, strongest first."""
    row = evidence.point.rows[1].iloc[0]
    rerun = f"labkit run datapaths topology={_topology(evidence, 1)} protocol={evidence.point.protocol}"
    rerun += f" length_bytes={row['length_bytes']:g}" if pd.notna(row["length_bytes"]) else ""
    rerun += " rounds=1 whole_runs=1"
    observers = {str(one) for at in (0, 1) for one in evidence.point.rows[:2][at]["observer"].dropna()}
    if evidence.apart is not None:
        changes = [
            words
            for one in evidence.settings
            if one.relevant and not one.parameters and (words := _as_change(one))
        ]
        text = "Compare both as arms of one run, whose rounds are interleaved"
        if changes:
            yield f"{text}: {rerun} 'change=other: {' and '.join(changes[:4])}' observe=perf_record,counters"
        elif _topology(evidence, 0) != _topology(evidence, 1):
            both_arms = rerun.replace(
                _topology(evidence, 1), f"{_topology(evidence, 0)},{_topology(evidence, 1)}", 1
            )
            yield f"{text}: {both_arms} observe=perf_record,counters"
        else:
            form = "with the difference as change=NAME: KIND OPTIONS at PLACE"
            yield f"{text}, {form}; or repeat both runs and name them as RUN+RUN"
    if evidence.is_disturbed:
        yield "Repeat both runs while nothing else uses the CPUs: labkit doctor names the programs that do"
    if evidence.parts and "switch" not in observers:
        yield f"To see the actions of the switch's flows, observe the switch: {rerun} observe=perf_record,switch"
    if "counters" not in observers:
        text = "To see where packets are lost and how large they are, record the kernel's counters"
        yield f"{text}: {rerun} observe=perf_record,counters"
    functions = [
        one.cause.function for one in order if one.cause is not None and one.cause.change == "changed"
    ][:3]
    if functions and not claims:
        yield (
            f"To see how long single calls take, time them: {rerun} observe=function_times"
            f" functions={','.join(functions)}"
        )
    if not claims and not evidence.is_disturbed:
        count = 4 * max(map(len, evidence.rounds))
        yield f"More rounds detect a smaller difference: {rerun} observe=perf_record,counters profile_rounds={count}"


def _topology(evidence: Evidence, side: int) -> str:
    """Return a side's topology as a command has it: its name, or a placeholder for the file of a network of one's
    own."""
    rows = evidence.point.rows[:2][side]
    if "network" in rows and rows["network"].notna().any():
        return NETWORK_FILE
    return environment.built(evidence.point, side)


def _as_change(setting: Setting) -> str:
    """Return a setting as an arm's change, or an empty text if no arm can have it as a change."""
    if ABSENT in (setting.left, setting.right) or " or " in setting.right:
        return ""
    at = "both" if {"client", "server"} <= set(setting.places) else next(
        (one for one in setting.places if one in ("client", "server", "between")), ""
    )  # fmt: skip
    if setting.name.startswith("sysctl net.") and at:
        return (
            f"sysctl {setting.name.removeprefix('sysctl ').replace('.*.', '.all.')}={setting.right} at {at}"
        )
    _interface, _, feature = setting.name.partition(" offload ")
    if feature and at:
        return f"offload {feature} {setting.right} at {at}"
    if setting.name.endswith(" mtu") and at:
        return f"mtu {setting.right} at {at}"
    return ""
