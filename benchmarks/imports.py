"""How much CPU time a process needs for its imports before it is ready: the measuring wing beside pyroute2's message
classes as anybody else imports them, with all of pyroute2 (labkit.system.netlink.rtnl leaves that out); the analysis
and the report beside pandas and plotly.

CPU time, not wall-clock time: the figure is nearly the same when other programs share the CPUs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.promise import ROOT, Promise, at_most, median, note, python

REPEATS = 15


@dataclass(frozen=True)
class Imports:
    """What is imported, beside which other code, and how many times as much CPU time it may need."""

    what: str
    code: str
    reference: str
    reference_code: str
    bound: float
    more: str


TABLE = (
    Imports(
        "import of the measuring wing (labkit.measure.agent.main)",
        "import labkit.measure.agent.main",
        "pyroute2 alone",
        "from pyroute2.netlink.rtnl import ifaddrmsg, ifinfmsg, ndmsg, nsidmsg, rtmsg, tcmsg",
        1.4,  # 1.1 to 1.2 is usual; a busy machine adds to it
        "promised: 0.35 s of CPU time",
    ),
    Imports(
        "import of the analysis and the report",
        "import labkit.analysis.verdicts, labkit.analysis.report",
        "pandas, plotly, nbformat",
        "import pandas, plotly.graph_objects, nbformat",
        1.5,
        "1.3 times with scipy.special, mistune and jinja2; without scipy.stats and nbconvert",
    ),
)


def promises(quick: bool) -> Iterator[Promise]:
    """Medians of fresh interpreters, less that of an interpreter that imports nothing; the ways take turns."""
    note("imports")
    ways = {"": "", **{each.what: each.code for each in TABLE}}
    ways |= {each.reference: each.reference_code for each in TABLE}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(1 + (5 if quick else REPEATS)):
        for way, code in ways.items():
            taken = _cpu_s(code)
            if number:  # the first writes what Python compiled
                seconds[way].append(taken)
    start = median(seconds[""])
    for each in TABLE:
        own_s, other_s = (median(seconds[way]) - start for way in (each.what, each.reference))
        yield at_most(each.what, own_s, other_s, each.reference, each.bound, each.more)


def _cpu_s(code: str) -> float:
    """The CPU time, user and system, of a Python that runs this."""
    with subprocess.Popen(python("-c", code), cwd=ROOT) as started:
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise subprocess.CalledProcessError(started.returncode, started.args)
    return usage.ru_utime + usage.ru_stime
