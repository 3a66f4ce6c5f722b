"""A generator: how long a TCP connection attempt takes until a closed port refuses it, one attempt after the other."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from labkit.common.errors import Failed
from labkit.measure.endpoints import Pair, RemotePair
from labkit.measure.traffic.base import NOT_COUNTED, Capabilities, LatencyGenerator, LoadParameters
from labkit.system import process

# Runs in the client's namespace: the address and a number of seconds are its arguments, it prints a time a line.
CLIENT = """
import socket, sys, time
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    begin = time.perf_counter()
    try:
        socket.create_connection((sys.argv[1], 9), timeout=1)
    except ConnectionRefusedError:
        print(time.perf_counter() - begin)
"""


class Refused(LatencyGenerator):
    """Connection attempts that the server's kernel refuses: a round trip without any program at the server."""

    name = "refused"
    capabilities = Capabilities(length_bytes={"ping": (1, 1)}, metric="latency_p50_s", higher_is_better=False)

    def version(self) -> str:
        """The version of Python."""
        return sys.version.split()[0]

    def latency(
        self,
        pairs: Sequence[Pair | RemotePair],
        parameters: LoadParameters,
        counting: AbstractContextManager[object] = NOT_COUNTED,
    ) -> dict[str, Any]:
        """Times in seconds, of all pairs at once. Raises Failed when a client ends badly."""
        argv, seconds = [sys.executable, "-I", "-c", CLIENT], str(parameters.duration_s)
        clients = [pair.client.start([*argv, pair.server.address, seconds]) for pair in pairs]
        with process.all_ended(clients), counting:
            process.wait(clients, time.monotonic() + parameters.duration_s + 10)
            ended = [one.ended() for one in clients]
        times = sorted(float(line) for one in ended for line in one.stdout.split())
        if not times or any(one.returncode != 0 for one in ended):
            raise Failed(f"refused: {ended[0].message()}")
        own = {"latency_p50_s": statistics.median(times), "refused_deviation_s": statistics.pstdev(times)}
        return {"loop": "closed", "received_count": len(times), **own}


REFUSED = Refused()
