"""Another user of the machine who connects to the ports of kernels, for tests of what that user can read and send."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
from conftest import ROOT
from sandbox import output

PATIENCE_S = 60.0
# Reads root's Python, as an installed one would allow; has no other right.
SOMEBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
            "--bounding-set", "-all,+dac_read_search", "--inh-caps", "-all,+dac_read_search",
            "--ambient-caps", "-all,+dac_read_search", "--", sys.executable, "-P", "-c"]  # fmt: skip
# Subscribes to each port, and asks each to write a file, as a client of a kernel without a key does.
EAVESDROPPER = """
import sys
import zmq
from jupyter_client.session import Session
context, code = zmq.Context(), f"open({sys.argv[1]!r}, 'w').close()"
readers, askers = [], []
for port in sys.argv[2:]:
    for kind, sockets in ((zmq.SUB, readers), (zmq.DEALER, askers)):
        sockets.append(context.socket(kind))
        if kind == zmq.SUB:
            sockets[-1].setsockopt(zmq.SUBSCRIBE, b"")
        sockets[-1].setsockopt(zmq.SNDTIMEO, 1000)
        sockets[-1].connect(f"tcp://127.0.0.1:{port}")
for asker in askers:
    content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
    try:
        Session(key=b"").send(asker, "execute_request", content)
    except zmq.Again:  # the kernel has refused this connection already, and then a send would wait for ever
        pass
print(sum(one.poll(1000) > 0 for one in readers + askers))
context.destroy(linger=0)
"""


def listening(process: psutil.Process) -> list[int]:
    """Return the TCP ports on which the processes of a tree listen, once one of them is a kernel, with five ports."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        each = []
        for one in [process, *process.children(recursive=True)]:
            try:
                found = one.net_connections(kind="tcp")
            except psutil.Error:  # it has ended meanwhile
                continue
            each.append([had.laddr.port for had in found if had.status == psutil.CONN_LISTEN])
        if max(map(len, each)) >= 5:
            return sorted({port for ports in each for port in ports})
        time.sleep(0.1)
    raise AssertionError("no kernel listens")


def heard(ports: list[int], folder: Path) -> tuple[int, bool]:
    """Return how many of its connections told another user anything, and whether a kernel did what that user asked."""
    open_to_all = folder / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    argv = [*SOMEBODY, EAVESDROPPER, str(open_to_all / "asked"), *map(str, ports)]
    return int(output(argv, 120, cwd=ROOT)), (open_to_all / "asked").exists()
