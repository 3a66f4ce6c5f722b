"""Send pings between two ends that share a guest while its kernel is traced and its counters are read, as in profiles.

The tests run this as a program, like an experiment's process. Arguments: the guest's parameters, and a folder. Standard
output gets a JSON object. It boots one guest.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.experiments import DatapathParameters, RunContext, profiled_runs, survey
from labkit.measure.experiments.profiled_runs import Profile
from labkit.measure.observers import registry
from labkit.measure.observers.ftrace.function_times import TRACEFS
from labkit.system import machine

OBSERVER = "guest_function_times"
ATTEMPTS = 3  # the machine may be busy
STATE = ("current_tracer", "set_ftrace_filter", "tracing_on")


def received_count(end: Any) -> int:
    """Return how many packets IP has received at an end (InReceives counts each packet that reaches ip_rcv)."""
    names, values = [line.split() for line in end.kernel.read("/proc/net/snmp").splitlines()[:2]]
    return int(values[names.index("InReceives")])


def refused(parameters: DatapathParameters, topology: Any) -> str:
    """Return the survey's sentence about functions that do not exist."""
    try:
        registry.check_topology(parameters, topology)
    except BadInput as error:
        return str(error)
    return "nothing"


def seen(word: str, folder: Path) -> dict[str, Any]:
    given = {"endpoint": ("shared_guest",), "guest": word, "protocol": "ping", "observe": (OBSERVER,)}
    parameters = DatapathParameters(**given, functions=("ip_rcv", "ip_list_rcv"), duration_s=2)
    parameters.check()
    run_context = RunContext("datapaths", folder, 1, machine.describe())
    with survey.built(parameters, run_context, 1, survey.planned_arms(parameters), random.Random(1)) as (
        live,
        failed,
    ):
        assert not failed, failed
        topology = live[0].topology
        ends = [topology.pairs[0].client, topology.pairs[0].server]
        guest = ends[0].kernel
        accepts = refused(parameters, topology)
        for _ in range(ATTEMPTS):
            before = sum(map(received_count, ends))
            _arm, row = profiled_runs.measure_observed(
                Profile("1-p0", 1, 0, parameters), live[0], OBSERVER, folder
            )
            if row["status"] == "ok" and row["sent_count"]:  # the time limit did not end ping
                break
        received = sum(map(received_count, ends)) - before
        _arm, counted = profiled_runs.measure_observed(
            Profile("1-p1", 1, 1, parameters), live[0], "counters", folder
        )
        return {
            "row": row,
            "counted": counted,
            "accepts": accepts,
            "received_count": received,
            "state": {name: guest.read(f"{TRACEFS}/{name}") for name in STATE},
            "refused": refused(DatapathParameters(**given, functions=("ip_rcv", "ip_recv")), topology),
        }


if __name__ == "__main__":
    print(json.dumps(seen(sys.argv[1], Path(sys.argv[2]))))
