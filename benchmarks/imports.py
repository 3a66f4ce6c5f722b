"""Compare the CPU time of a process's imports, and of `labkit doctor`, with that of importing common packages.

The measuring side is compared with pyroute2's message classes as other programs import them, with all of pyroute2
(labkit.system.netlink.rtnl leaves that out). The analysis and the report are compared with pandas and plotly.

CPU time is nearly the same when other programs share the CPUs. Wall-clock time is not.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.promise import ROOT, Promise, at_most, median, note, python

REPEATS = 15


@dataclass(frozen=True)
class Imports:
    """A program, the reference code, and the promised maximum of their ratio in CPU time."""

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
    Imports(
        "labkit doctor, with the programs that print their versions",
        "from labkit import cli; cli.main(['doctor'])",
        "pandas, plotly, nbformat",
        "import pandas, plotly.graph_objects, nbformat",
        1.5,
        "promised: 2 s on a quiet machine with two CPUs, because the programs run beside the probes",
    ),
)


def promises(quick: bool) -> Iterator[Promise]:
    """Yield medians of fresh interpreters without the time of an empty one. The variants take turns."""
    note("imports")
    codes = {"": "", **{each.what: each.code for each in TABLE}}
    codes |= {each.reference: each.reference_code for each in TABLE}
    seconds: dict[str, list[float]] = {what: [] for what in codes}
    for number in range(1 + (3 if quick else REPEATS)):
        for what, code in codes.items():
            taken = _cpu_s(code)
            if number:  # the first run writes Python's compiled files
                seconds[what].append(taken)
    start = median(seconds[""])
    for each in TABLE:
        own_s, other_s = (median(seconds[what]) - start for what in (each.what, each.reference))
        yield at_most(each.what, own_s, other_s, each.reference, each.bound, each.more)


def _cpu_s(code: str) -> float:
    """Return the CPU time, user and system, of a Python that runs this code."""
    with subprocess.Popen(python("-c", code), cwd=ROOT, stdout=subprocess.DEVNULL) as started:
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
    if started.returncode:
        raise subprocess.CalledProcessError(started.returncode, started.args)
    return usage.ru_utime + usage.ru_stime
