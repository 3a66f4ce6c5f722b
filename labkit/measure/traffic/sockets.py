"""labkit's own requests and connections (`socket_loops`), for what no packaged program measures.

Debian has none for tcp_crr and tcp_cc: netperf is not free, and the bounce-back of iperf 2 keeps its connection. For
requests on one connection, sockperf is the usual generator; this one also has IPv6, guests, several connections in a
closed loop, and options of sockets.
"""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import labkit
from labkit.common import errors, units
from labkit.common.errors import BadInput, Failed
from labkit.common.limits import Within
from labkit.measure.endpoints import Endpoint, Pair, RemotePair
from labkit.measure.traffic import base, socket_loops, socket_options
from labkit.measure.traffic.base import (
    LARGEST_DATAGRAM,
    NOT_COUNTED,
    PORT,
    Capabilities,
    LoadParameters,
    RequestGenerator,
    request_columns,
    until_listening,
)
from labkit.system import process

USUAL_BYTES = 14  # as sockperf's
LONGEST = 1 << 20
START_S = 30.0
REPORT_S = 20.0  # for a client to write its report after its time


class Sockets(RequestGenerator):
    """A process of labkit's own for each connection at each end."""

    guest_files = (socket_loops.__file__,)

    def version(self) -> str:
        return labkit.__version__

    def check(self, parameters: LoadParameters) -> None:
        super().check(parameters)
        rate_rps, options = parameters.rate_rps, socket_options.parse(parameters.socket)
        if parameters.protocol == "tcp_cc" and "quickack" in options:
            raise BadInput("socket=quickack: tcp_cc has no data to acknowledge; leave it out")
        if (writes := options.get("writes", 1)) > 1:
            size = 0 if parameters.protocol == "tcp_cc" else parameters.length_bytes or USUAL_BYTES
            if writes > size:
                raise BadInput(f"socket=writes={writes}: a request of {parameters.protocol} has {size} bytes")
        if rate_rps is not None and (parameters.streams > 1 or writes > 1):
            raise BadInput(
                f"rate_rps={rate_rps}: {self.name} keeps a rate on one connection, each request in one write: use"
                " streams=1, without writes"
            )
        if (outstanding := parameters.outstanding) and (rate_rps or writes > 1):
            raise BadInput(
                f"outstanding={outstanding} needs a closed loop with each request in one write: leave out rate_rps and"
                " writes, or outstanding"
            )
        if (rate_rps or outstanding) and parameters.protocol == "udp_rr":
            what = "with rate_rps or outstanding a request of udp_rr carries its number"
            for name in ("length_bytes", "response_bytes"):
                Within(4, LARGEST_DATAGRAM, what).check(name, getattr(parameters, name))

    def ignored_parameters(self, protocol: str) -> Sequence[str]:
        return (*super().ignored_parameters(protocol), *["length_bytes"] * (protocol == "tcp_cc"))

    def latency(
        self,
        pairs: Sequence[Pair | RemotePair],
        parameters: LoadParameters,
        counting: AbstractContextManager[object] = NOT_COUNTED,
    ) -> list[str]:
        """Let all pairs work at once; return what the clients printed. Raises Failed with the first problem."""
        own, _ends = base.local_ends(pairs)
        with serving(pairs, parameters), process.all_ended([]) as clients:
            for pair in own:
                argv = _argv(parameters, pair.client, pair.server_address, pair.server, parameters.streams)
                clients.append(pair.client.start(argv))
            _wait_until_ready(clients)
            for client in clients:
                client.signal(signal.SIGHUP)
            begun = time.monotonic() + parameters.omit_s
            process.wait(clients, begun)
            with counting:
                process.wait(clients, begun + parameters.duration_s)
            return [one.stdout for one in base.finished(clients, socket_loops.PATIENCE_S + REPORT_S)]

    def columns(self, measured: list[str], parameters: LoadParameters) -> dict[str, Any]:
        """Return the columns of a row. Raises Failed with the problem of a connection."""
        counts: Counter[float] = Counter()
        portless, lost, late, cpu_s = 0, 0, 0, 0.0
        reports = [report for text in measured for report in _reports(text)]
        for report in reports:
            if report["problem"]:
                done = sum(report["counts"].values())
                raise Failed(f"after {units.counted(done, 'transaction')}: {report['problem']}")
            for step, count in report["counts"].items():
                counts[1e-9 * socket_loops.STEP_NS * int(step)] += count
            portless, lost = portless + report["portless"], lost + report["lost"]
            late, cpu_s = late + report.get("late", 0), cpu_s + report["cpu_s"]
        rate = counts.total() / parameters.duration_s
        times_s = sorted(counts.elements())
        row = request_columns(times_s, rate, parameters, cpu_s, len(reports), lost, socket_loops.LOST_S)
        if parameters.rate_rps is not None:
            offered_rps = min(report["offered_rps"] for report in reports)
            about = base.kept_rate(late, row["sent_count"], offered_rps, parameters.rate_rps, "labkit")
            row |= {**about, "doubts": [*about["doubts"], *row["doubts"]]}
        if portless:
            row |= {
                "status": "invalid",
                "reason": f"the clients had no free port {portless} times: the ports limited the connections",
            }
        return row


@contextmanager
def serving(pairs: Sequence[Pair | RemotePair], parameters: LoadParameters) -> Iterator[None]:
    """Answer what these pairs request, until the block ends. Raises Failed if a server does not start."""
    own, ends = base.local_ends(pairs)
    transport = "udp" if parameters.protocol == "udp_rr" else "tcp"
    with process.all_ended([]) as programs:
        for end in ends:
            connections = parameters.streams * sum(pair.server.name == end.name for pair in own)
            programs.append(end.start(_argv(parameters, end, end.address, end, connections)))
        until_listening("the server of labkit's sockets", ends, programs, START_S, transport)
        yield


@errors.reading("the report of labkit's sockets")
def _reports(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()[1:]]


def _argv(parameters: LoadParameters, end: Endpoint, address: str, server: Endpoint, count: int) -> list[str]:
    length_bytes = parameters.length_bytes or USUAL_BYTES
    request = {
        "serves": end is server,
        "protocol": parameters.protocol,
        "address": address,
        "port": PORT + server.port_offset,
        "count": count,
        "length_bytes": length_bytes,
        "response_bytes": parameters.response_bytes or length_bytes,
        "socket": socket_options.parse(parameters.socket),
        "congestion": parameters.congestion,
        "rate_rps": parameters.rate_rps,
        "outstanding": parameters.outstanding or 1,
        "late_ns": base.LATE_NS,
        "omit_s": parameters.omit_s,
        "duration_s": parameters.duration_s,
    }
    program = [sys.executable, "-I", "-S", socket_loops.__file__]
    if not end.kernel.is_here:
        from labkit.measure.endpoints.guest import initramfs  # what only guests need

        program = initramfs.command(socket_loops.__file__)
    return [*program, json.dumps(request)]


def _wait_until_ready(clients: Sequence[process.Running]) -> None:
    deadline = time.monotonic() + START_S
    for client in clients:
        if not client.ready(client.output_so_far, deadline):
            client.kill()
            raise Failed(f"a client of labkit's sockets did not start: {client.ended().message()}")


class Requests(Sockets):
    """Requests on connections that stay open."""

    name = "sockets"
    capabilities = Capabilities(
        length_bytes={"udp_rr": (1, LARGEST_DATAGRAM), "tcp_rr": (1, LONGEST)},
        responds=("udp_rr", "tcp_rr"),
        metric="latency_p50_s",
        higher_is_better=False,
        streams=128,
        requests=True,
        sockets=tuple(socket_options.OPTIONS),
    )

    def ignored_parameters(self, protocol: str) -> Sequence[str]:
        return [name for name in super().ignored_parameters(protocol) if name != "outstanding"]


class Connections(Sockets):
    """Connections with and without a request."""

    name = "connections"
    capabilities = Capabilities(
        length_bytes=dict.fromkeys(("tcp_crr", "tcp_cc"), (1, LONGEST)),
        responds=("tcp_crr",),
        metric="transaction_rate",
        streams=128,
        connects=True,
        sockets=tuple(socket_options.OPTIONS),
    )


REQUESTS, CONNECTIONS = Requests(), Connections()
