"""How long a process of the measuring wing takes to be ready: its imports, beside those of pyroute2's message classes
as anybody else imports them, with all of pyroute2 (labkit.netlink.rtnl leaves that out)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

from benchmarks.promise import ROOT, Promise, at_most, median, note, python

REPEATS = 15
BOUND = 1.1  # 0.15 s against 0.2
TOLD = "about 0.15 s on two shared virtual cores"
WAYS = {
    "empty": "",
    "pyroute2": "from pyroute2.netlink.rtnl import ifaddrmsg, ifinfmsg, ndmsg, nsidmsg, rtmsg, tcmsg",
    "labkit": "import labkit.agent",
}


def promises(quick: bool) -> Iterator[Promise]:
    """Medians of fresh interpreters, less that of an interpreter that imports nothing; the ways take turns."""
    note("imports")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(1 + (5 if quick else REPEATS)):
        for way, code in WAYS.items():
            taken = _seconds(code)
            if number:  # the first writes what Python compiled
                seconds[way].append(taken)
    start, pyroute2, labkit = (median(seconds[way]) for way in WAYS)
    what = "import of the measuring wing (labkit.agent)"
    yield at_most(what, labkit - start, pyroute2 - start, "pyroute2 alone", BOUND, TOLD)


def _seconds(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run(python("-c", code), cwd=ROOT, check=True)
    return time.perf_counter() - begin
