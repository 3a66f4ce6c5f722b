"""Kill experiments that have a switch in the kernel's datapath, and count what is left. A test runs this as a program.

The argument is the seed of the random moments. Standard output gets a JSON list of one result for each killed
experiment: the ports of all datapaths while it existed and after its end, and what ovs-dpctl then lists.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from labkit.measure import topologies
from labkit.measure.hosts import local
from labkit.system import process

PORTS = Path("/sys/module/openvswitch/refcnt")  # every port holds the module, of whatever network namespace
MOMENTS, LATEST_S, PATIENCE_S = 2, 3.0, 60.0
HOLD = "hold"


def ports_count() -> int:
    return int(PORTS.read_text()) if PORTS.exists() else 0


def until(true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)


def killed(moment_s: float, before_count: int) -> dict[str, Any]:
    """Kill an experiment so long after its switch got its first port."""
    running = subprocess.Popen([*local.prefix(), sys.executable, __file__, HOLD])
    until(lambda: ports_count() > before_count)
    time.sleep(moment_s)
    during_count = ports_count()
    running.kill()
    running.wait()
    until(lambda: ports_count() == before_count)
    return {
        "ports": [during_count - before_count, ports_count() - before_count],
        "datapaths": process.output(["ovs-dpctl", "dump-dps"]).split(),
    }


def hold() -> None:
    """Build a switch with mirrors, and wait to be killed."""
    with topologies.build("ovs+mirrors=2", topologies.Spec()):
        time.sleep(10 * PATIENCE_S)


if __name__ == "__main__":
    if sys.argv[1] == HOLD:
        hold()
    else:
        moments = random.Random(sys.argv[1])
        print(json.dumps([killed(LATEST_S * moments.random(), ports_count()) for _ in range(MOMENTS)]))
