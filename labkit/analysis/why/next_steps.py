"""The steps that would decide between the candidate causes of a difference, with their commands (`labkit why`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from labkit.analysis import load
from labkit.analysis.why import environment
from labkit.analysis.why.candidates import Candidate
from labkit.analysis.why.environment import ABSENT, Setting
from labkit.analysis.why.evidence import Evidence
from labkit.system.machine import sysctl_journal

NETWORK_FILE = "FILE.yaml"  # the file of a network of one's own, because a row has only the network's name
# The parameters that say what is measured, in the order of a command. A command does not repeat the usual values, which
# are those of the experiment.
PARAMETERS = (
    "where", "endpoint", "guest", "generator", "protocol", "pairs", "mtu_bytes", "length_bytes", "rate_bps", "rate_rps",
    "streams", "family", "mss_bytes", "congestion", "zerocopy", "affinity", "parent",
)  # fmt: skip
USUAL = {
    "where": "here", "endpoint": "namespace", "pairs": "1", "mtu_bytes": "1500", "streams": "1", "family": "4",
    "zerocopy": "False",
}  # fmt: skip
# The same of a search for a rate, each with its column of a row
SEARCHED = {
    "where": "where", "endpoint": "endpoint", "guest": "guest", "pairs": "pairs", "mtu_bytes": "mtu_bytes",
    "family": "family", "frame_bytes": "frame", "flows": "flows_count", "vlan": "vlan",
}  # fmt: skip
USUAL_GENERATORS = ("iperf3", "ping", "sockperf")  # each is the usual one of its protocols
VALUE = r"[A-Za-z0-9_ .,:-]{1,200}"
OBSERVED = "observe=perf_record,counters"


def steps(evidence: Evidence, claims: bool, order: Sequence[Candidate]) -> Iterator[str]:
    """Yield the steps. claims: whether a cause is named. order: the candidates, strongest first."""
    observers = {str(one) for at in (0, 1) for one in evidence.point.rows[:2][at]["observer"].dropna()}
    if evidence.run_variation is not None:
        yield _as_arms(evidence)
    if evidence.is_disturbed:
        yield _undisturbed(evidence)
    if evidence.parts and "switch" not in observers:
        text = "To see the actions of the switch's flows, observe the switch"
        yield f"{text}: {_again(evidence, 'observe=perf_record,switch')}"
    if "counters" not in observers:
        text = "To see where packets are lost and how large they are, record the kernel's counters"
        yield f"{text}: {_again(evidence, OBSERVED)}"
    functions = [
        one.cause.function for one in order if one.cause is not None and one.cause.change == "changed"
    ][:3]
    if functions and not claims:
        options = f"observe=function_times functions={','.join(functions)}"
        yield f"To see how long single calls take, time them: {_again(evidence, options)}"
    if not claims and not evidence.is_disturbed:
        yield f"More rounds detect a smaller difference: {_again(evidence, _more_rounds(evidence))}"


def _undisturbed(evidence: Evidence) -> str:
    """Return the step that repeats the measurement without other programs: arms of one run are measured together."""
    doctor = "labkit doctor names the programs that do"
    if evidence.run_variation is not None:
        return f"Repeat both runs while nothing else uses the CPUs: {doctor}"
    again = _again(evidence, _more_rounds(evidence))
    return f"Measure more rounds of this run while nothing else uses the CPUs ({doctor}): {again}"


def _more_rounds(evidence: Evidence) -> str:
    return f"{OBSERVED} profile_rounds={4 * max(map(len, evidence.rounds))}"


def _again(evidence: Evidence, options: str) -> str:
    """Return the command that measures the point again with other observers."""
    if any("change" in rows and rows["change"].notna().any() for rows in evidence.point.rows[:2]):
        return f"repeat the run with {options}"  # a row does not have the text of its change
    return f"{_command(evidence, (0, 1) if evidence.run_variation is None else (1,))} {options}"


def _command(evidence: Evidence, sides: Sequence[int]) -> str:
    """Return the command that measures these sides as arms of one run."""
    values = {"topology": ",".join(dict.fromkeys(_topology(evidence, at) for at in sides))}
    search = any(rows["frame"].notna().any() for rows in evidence.point.rows[:2] if "frame" in rows)
    columns = SEARCHED if search else {name: name for name in PARAMETERS}
    for name, column in columns.items():
        of = dict.fromkeys(
            text
            for at in sides
            for text in (
                load.values(evidence.point.rows[:2][at][column].dropna())
                if column in evidence.point.rows[:2][at]
                else ()
            )
        )
        several = name in ("endpoint", "pairs")
        text = (",".join(of) if several else next(iter(of))) if of else ""
        if text and text != USUAL.get(name) and not (name == "generator" and text in USUAL_GENERATORS):
            values[name] = text
    words = " ".join(f"{name}={text}" for name, text in values.items())
    return (
        f"labkit run throughput {words}" if search else f"labkit run datapaths {words} rounds=1 whole_runs=1"
    )


def _as_arms(evidence: Evidence) -> str:
    """Return the step that measures both runs as arms of one."""
    text = "Compare both as arms of one run, whose rounds are interleaved"
    changes = [
        words
        for one in evidence.settings
        if one.can_affect_result and not one.requested and (words := _as_change(one))
    ]
    if changes:
        machine = any(one.startswith("machine_sysctl") for one in changes[:4])
        allowed = " (as root, with LABKIT_ALLOW=machine_sysctl in the environment)" if machine else ""
        change = f"'change=other: {' and '.join(changes[:4])}'"
        return f"{text}{allowed}: {_command(evidence, (1,))} {change} {OBSERVED}"
    if any(one.name in ("topology", "endpoint") for one in evidence.settings if one.requested):
        return f"{text}: {_command(evidence, (0, 1))} {OBSERVED}"
    form = "with the difference as change=NAME: KIND OPTIONS at PLACE"
    return f"{text}, {form}; or repeat both runs and name them as RUN+RUN"


def _topology(evidence: Evidence, side: int) -> str:
    """Return a side's topology as a command has it: its name, or a placeholder for the file of a network of one's
    own."""
    rows = evidence.point.rows[:2][side]
    if "network" in rows and rows["network"].notna().any():
        return NETWORK_FILE
    return environment.built_topology(evidence.point, side)


def _as_change(setting: Setting) -> str:
    """Return a setting as an arm's change, or an empty text if no arm can have it as a change."""
    if (
        ABSENT in (setting.left, setting.right)
        or " or " in setting.right
        or not re.fullmatch(VALUE, setting.right)
    ):
        return ""
    at = "both" if {"client", "server"} <= set(setting.places) else next(
        (one for one in setting.places if one in ("client", "server", "between")), ""
    )  # fmt: skip
    sysctl = setting.name.removeprefix("sysctl ").replace(".*.", ".all.")
    if setting.name.startswith("sysctl net.") and at:
        return f"sysctl {sysctl}={setting.right} at {at}"
    allowed = "machine" in setting.places and re.fullmatch(sysctl_journal.ALLOWED, sysctl)
    if setting.name.startswith("sysctl ") and allowed:
        return f"machine_sysctl {sysctl}={setting.right}"
    _interface, _, feature = setting.name.partition(" offload ")
    if feature and at:
        return f"offload {feature} {setting.right} at {at}"
    if setting.name.endswith(" mtu") and at:
        return f"mtu {setting.right} at {at}"
    return ""
