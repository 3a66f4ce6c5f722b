"""Sends pings between two ends that share a guest while the guest's kernel is traced, and while its counters are read,
as an experiment's profiles do, and tells what was seen: a program, run as an experiment's process is. Arguments: the
guest's word, a folder; a JSON object on standard output. One boot."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from labkit.common.errors import BadInput
from labkit.measure.experiments import DatapathParameters, RunContext, profiled_runs, survey
from labkit.measure.observers import registry
from labkit.measure.observers.ftrace.guest_function_times import TRACEFS
from labkit.system import machine

OBSERVER = "guest_function_times"
ATTEMPTS = 3  # the machine may be busy
STATE = ("current_tracer", "set_ftrace_filter", "tracing_on")


def received_count(end: Any) -> int:
    """How many packets IP has received at an end (InReceives: each that comes to ip_rcv)."""
    names, values = [line.split() for line in end.box.open("/proc/net/snmp").read().splitlines()[:2]]
    return int(values[names.index("InReceives")])


def refused(parameters: DatapathParameters, topology: Any) -> str:
    """The sentence of the survey about functions that are not there."""
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
    with survey.built(parameters, run_context, 1, survey.planned(parameters), random.Random(1)) as (
        live,
        failed,
    ):
        assert not failed, failed
        topology = live[0].topology
        ends = [topology.pairs[0].client, topology.pairs[0].server]
        guest = ends[0].box.guest
        accepts = refused(parameters, topology)
        for _ in range(ATTEMPTS):
            before = sum(map(received_count, ends))
            _arm, row = profiled_runs._observed(parameters, live[0], OBSERVER, folder, "1-p0")
            if row["status"] == "ok" and row["sent_count"]:  # ping was not ended before its time was over
                break
        received = sum(map(received_count, ends)) - before
        _arm, counted = profiled_runs._observed(parameters, live[0], "counters", folder, "1-p1")
        return {
            "row": row,
            "counted": counted,
            "accepts": accepts,
            "received_count": received,
            "state": {name: guest.read(f"{TRACEFS}/{name}").decode() for name in STATE},
            "refused": refused(DatapathParameters(**given, functions=("ip_rcv", "ip_recv")), topology),
        }


if __name__ == "__main__":
    print(json.dumps(seen(sys.argv[1], Path(sys.argv[2]))))
