"""HTTP by nginx and wrk: requests on connections that stay (http), or each on one of its own (http_close).

Each server is an nginx of one process, with a folder of its own; it uses nothing of the machine's nginx. Where root
starts it, it runs as the user nobody, without capabilities. Each client is a wrk of one thread that keeps `streams`
connections busy, so its loop is closed.

wrk adds to its latencies what it guesses that a closed loop hides (stats_correct in src/stats.c): for one of n µs also
n - e, n - 2e …, where e is the mean time between two requests. labkit takes this out again, so that all closed loops
say the same. wrk's clock of a request starts when its connection is open. wrk counts a response as late when it comes:
one that never comes lowers the rate of its connection, and is in no count (nor can wrk's Lua tell it from those that
are on their way when the time ends).
"""

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.common import errors
from labkit.common.errors import Failed
from labkit.measure.endpoints import Endpoint, Pair, RemotePair
from labkit.measure.traffic import base
from labkit.measure.traffic.base import NOT_COUNTED, PORT, Capabilities, LoadParameters, RequestGenerator
from labkit.system import machine, process
from labkit.system.qemu import confined

USUAL_BYTES = 1024
START_S, END_S = 10.0, 15.0  # for a server to listen; for a client to end and write its latencies
TIMEOUT_S = 5  # wrk counts a response that takes longer as an error
# What wrk itself prints has neither all percentiles nor exact times. Its latencies are a table in memory (src/stats.h):
# count, limit, minimum, maximum, and how often each number of µs was measured.
SCRIPT = """
local ffi = require("ffi")
function done(summary, latency, requests)
  local table, e = ffi.cast("uint64_t **", latency)[0], summary.errors
  local none = table[0] == 0
  assert(none or table[2] == latency.min and table[3] == latency.max, "wrk keeps its latencies in another form")
  print("labkit", summary.duration, summary.requests, e.connect, e.read, e.write, e.status, e.timeout)
  for us = none and 1 or latency.min, none and 0 or latency.max do
    if table[4 + us] > 0 then print(us, tonumber(table[4 + us])) end
  end
end
"""
CONFIGURATION = """
daemon off; master_process off; worker_processes 1; {user} pid {folder}/run/pid; error_log stderr;
events {{ worker_connections 1000; }}
http {{
  access_log off; sendfile on; tcp_nopush on; open_file_cache max=1;
  keepalive_timeout 1h; keepalive_requests 2000000000;
  client_body_temp_path {folder}/run; proxy_temp_path {folder}/run; fastcgi_temp_path {folder}/run;
  uwsgi_temp_path {folder}/run; scgi_temp_path {folder}/run;
  server {{ listen {address}:{port} backlog=4096; root {folder}/www; }}
}}
"""
_ERRORS = ("connect", "read", "write", "status", "timeout")


@dataclass(frozen=True)
class Report:
    """What a wrk measured: requests in `duration_s`, how often each latency (in µs), its errors, and its CPU time."""

    duration_s: float
    requests_count: int
    counts: Counter[int]
    errors: Counter[str]
    cpu_s: float | None


@errors.reading("the latencies of wrk")
def read(text: str, connections: int, cpu_s: float | None = None) -> Report:
    """Parse what the script printed. Raises Failed for another form, or if the latencies do not add up."""
    found = re.search(r"^labkit\t(.*)$((?:\n\d+\t\d+)*)", text, re.MULTILINE)
    if found is None:
        raise Failed("wrk wrote no latencies")
    duration_us, requests, *problems = map(int, found[1].split("\t"))
    counts = Counter({int(us): int(count) for us, count in map(str.split, found[2].split("\n")[1:])})
    if requests // connections:
        _take_out(counts, duration_us // (requests // connections))
    failed = Counter(dict(zip(_ERRORS, problems, strict=True)))
    if counts.total() + failed["timeout"] != requests:
        raise Failed(f"{counts.total()} latencies are not those of {requests} requests")
    return Report(duration_us / 1e6, requests, counts, failed, cpu_s)


def _take_out(counts: Counter[int], expected_us: int) -> None:
    """Take out what wrk added, from the longest on, because an added latency is shorter than the one that it is for."""
    for us in sorted(counts, reverse=True):
        if us < 2 * expected_us:
            break
        if count := counts[us]:
            for added in range(us - expected_us, expected_us, -expected_us):
                counts[added] -= count


class Http(RequestGenerator):
    """nginx and wrk."""

    name = "wrk"
    capabilities = Capabilities(
        length_bytes=dict.fromkeys(("http", "http_close"), (1, 1 << 30)),
        metric="transaction_rate",
        streams=128,
        connects=True,
    )

    def version(self) -> str:
        """Return the version of wrk. Raises Unsupported if it or nginx is missing."""
        for name in ("nginx", "wrk"):
            machine.require_program(name)
        return machine.versions(["wrk"])["wrk"] or "?"

    def latency(
        self,
        pairs: Sequence[Pair | RemotePair],
        parameters: LoadParameters,
        counting: AbstractContextManager[object] = NOT_COUNTED,
    ) -> list[Report]:
        """Let all clients request at once; return their reports. Raises Failed with the message of wrk or nginx."""
        own, ends = base.local_ends(pairs)
        confinement = confined.confinement()
        # Other users cannot enter every temporary folder of root.
        top = None if confinement.group is None else "/tmp"
        with tempfile.TemporaryDirectory(dir=top) as scratch, ExitStack() as stack:
            script = Path(scratch) / "latencies.lua"
            script.write_text(SCRIPT)
            folders = [_folder(end, Path(scratch), parameters, confinement, stack) for end in ends]
            programs = stack.enter_context(process.all_ended([]))
            for end, folder in zip(ends, folders, strict=True):
                words = ["-p", folder, "-c", f"{folder}/nginx.conf", "-e", "stderr"]
                programs.append(end.start([*confinement.prefix, machine.require_program("nginx"), *words]))
            base.until_listening("nginx", ends, programs, START_S)
            if parameters.omit_s:
                _requests(own, parameters, script, parameters.omit_s, programs, NOT_COUNTED)
            return _requests(own, parameters, script, parameters.duration_s, programs, counting)

    def columns(self, measured: list[Report], parameters: LoadParameters) -> dict[str, Any]:
        """Return the columns of a row. Raises Failed if no request got a response, for example without a free port."""
        counts: Counter[float] = Counter()
        failed: Counter[str] = Counter()
        for report in measured:
            for us, count in report.counts.items():
                counts[us / 1e6] += count
            failed += report.errors
        listed = ", ".join(f"{name} {count}" for name, count in failed.items())
        words = f"errors of wrk ({listed}): nginx closed or refused connections, or no port was free"
        if failed and not counts.total():
            raise Failed(f"no request got a response, {words}")
        rate = sum(report.requests_count / report.duration_s for report in measured)
        used = [report.cpu_s for report in measured if report.cpu_s is not None]
        cpu_s = sum(used) if used else None
        times_s = sorted(counts.elements())
        row = base.request_columns(
            times_s, rate, parameters, cpu_s, len(measured), failed["timeout"], TIMEOUT_S
        )
        return row | ({"status": "invalid", "reason": words} if failed.total() > failed["timeout"] else {})


def _folder(
    end: Endpoint,
    scratch: Path,
    parameters: LoadParameters,
    confinement: confined.Confinement,
    stack: ExitStack,
) -> str:
    """Make the folder of a server, which the stack removes, and return its path there.

    All but `run` belongs to this user: where nginx may replace a path, labkit writes nothing.
    """
    here, there = end.shared_folder(scratch)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nginx-", dir=here)))
    inside = f"{there}/{folder.name}"
    (folder / "www").mkdir()  # not the configuration, which is beside it
    with open(folder / "www" / "response", "wb") as file:
        file.truncate(USUAL_BYTES if parameters.length_bytes is None else parameters.length_bytes)
    owner = confinement.group
    configuration = CONFIGURATION.format(
        user="" if owner is not None or os.geteuid() else "user root;",  # of a user namespace without nobody
        folder=inside,
        address=f"[{end.address}]" if parameters.family == 6 else end.address,
        port=PORT + end.port_offset,
    )
    (folder / "nginx.conf").write_text(configuration)
    (folder / "run").mkdir(mode=0o700)
    if owner is not None:
        os.chown(here, -1, owner)
        here.chmod(0o710)  # nobody may pass, and see nothing
        for name, mode in (("", 0o711), ("www", 0o711), ("nginx.conf", 0o644), ("www/response", 0o644)):
            (folder / name).chmod(mode)
        os.chown(folder / "run", owner, owner)
    return inside


def _requests(
    pairs: Sequence[Pair],
    parameters: LoadParameters,
    script: Path,
    seconds: int,
    programs: list[process.Running],
    counting: AbstractContextManager[object],
) -> list[Report]:
    clients = []
    for pair in pairs:
        host = f"[{pair.server_address}]" if parameters.family == 6 else pair.server_address
        here, there = pair.client.shared_folder(script.parent)
        if here != script.parent:
            (here / script.name).write_bytes(script.read_bytes())
        closing = ["-H", "Connection: close"] if parameters.protocol == "http_close" else []
        words = ["-t1", f"-c{parameters.streams}", f"-d{seconds}s", f"--timeout={TIMEOUT_S}s", *closing]
        url = f"http://{host}:{PORT + pair.server.port_offset}/response"
        clients.append(pair.client.start(["wrk", *words, "-s", f"{there}/{script.name}", url]))
        programs.append(clients[-1])
    with counting:
        process.wait(clients, time.monotonic() + seconds)
    # In a container, the time is that of the program that starts wrk there.
    return [
        read(one.stdout, parameters.streams, one.cpu_s if pair.client.runtime is None else None)
        for one, pair in zip(base.finished(clients, END_S), pairs, strict=True)
    ]


HTTP = Http()
