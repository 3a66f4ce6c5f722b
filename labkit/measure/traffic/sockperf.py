"""sockperf as a traffic generator: requests and responses of one length, over UDP or TCP.

Closed loop (ping-pong): a request waits for the response to the one before. A stall delays one request, and those that
would have been sent meanwhile are missing.

Open loop (under-load, with `rate_rps`): one thread sends by a schedule, another receives. A sender that is late catches
up (src/switches.h, SwitchOnCycleDuration). The log has the time just before each send call, from which labkit works out
when the request was due. A round trip starts then, so it includes the sender's delay. The sender waits busily and takes
a CPU; the other thread is on the server's.

sockperf's own latency is half a round trip. labkit reads both times of each message from its full log (3.7;
`tests/samples` has one).
"""

from __future__ import annotations

import re
import tempfile
import time
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.common import errors, units
from labkit.common.errors import BadInput, Failed
from labkit.common.limits import Within
from labkit.measure.endpoints import Pair, RemotePair
from labkit.measure.traffic import base
from labkit.measure.traffic.base import NOT_COUNTED, PORT, Capabilities, LoadParameters, RequestGenerator
from labkit.system import process

SHORTEST = 14  # sockperf's header
START_S, END_S = 10.0, 30.0  # for a server to listen, or a client to start; for a client to write its log
BEGUN = "Starting test"  # what a client prints before its first request
WARM_S, SPARE_S = 0.4, 1  # sockperf leaves out 0.4 s at the beginning and 0.05 s at the end
# sockperf reserves memory for each message that it may send: without a rate, for so many in a second.
UNPACED_RPS, MOST_MESSAGES = 600_000, 36_600_000
_COUNTS = re.compile(r"\[Valid Duration\] RunTime=([0-9.]+) sec; SentMessages=(\d+)")
_MISSING = re.compile(r"dropped messages = (\d+);.* out-of-order messages = (\d+)")
_ERROR = re.compile(r"ERROR: ([^\x1b\n]*)")


@dataclass(frozen=True)
class Log:
    """A full log: when each answered message was sent and its response received, in nanoseconds of one clock.

    `sent_count` messages were sent in `elapsed_s`. Of these, `lost_count` got no response, and `out_of_order_count` one
    that the log leaves out.
    """

    sent_ns: array[int]
    received_ns: array[int]
    sent_count: int
    elapsed_s: float
    lost_count: int
    out_of_order_count: int

    def due_ns(self, rate_rps: int) -> array[int]:
        """Return when each message was due, at this rate.

        A message is never early, and a late sender catches up. So a message is as late as it is behind the most
        punctual of those after it. One nanosecond less than the period covers sockperf's rounding.
        """
        period = 1_000_000_000 // rate_rps - 1
        result = array("q", self.sent_ns)
        offset = self.sent_ns[-1]
        for number in range(len(result) - 1, -1, -1):
            offset = min(offset, self.sent_ns[number] - number * period)
            result[number] = offset + number * period
        return result


@errors.reading("the full log of sockperf")
def read(lines: Iterable[str]) -> Log:
    """Parse a full log. Raises Failed for another form, or if no message was answered."""
    sent, received, words = array("q"), array("q"), []
    for line in lines:
        if line[:1].isdigit():
            _number, begin, end, _ = line.split(", ")
            sent.append(int(begin.replace(".", "")))  # both have nine decimals
            received.append(int(end.replace(".", "")))
        else:
            words.append(line)
    text = "\n".join(words)
    counts, missing = _COUNTS.search(text), _MISSING.search(text)
    if not sent or counts is None or missing is None:
        raise Failed("no request got a response")
    return Log(sent, received, int(counts[2]), float(counts[1]), int(missing[1]), int(missing[2]))


def columns(logs: Sequence[Log], parameters: LoadParameters) -> dict[str, Any]:
    """Return the columns of a row from the logs of all pairs, of which it takes `duration_s` after the first `omit_s`.

    A request without a response counts as slower than all others, and so does one whose response came after that of a
    later request: sockperf leaves its time out. Raises Failed if a client stopped before.
    """
    duration_s, omit_s, rate_rps = parameters.duration_s, parameters.omit_s, parameters.rate_rps
    times: list[int] = []
    lost = late = overtaken = 0
    for log in logs:
        start = log.sent_ns if rate_rps is None else log.due_ns(rate_rps)
        first = bisect_left(start, start[0] + omit_s * 1_000_000_000)
        end = start[0] + (omit_s + duration_s) * 1_000_000_000
        last = bisect_left(start, end)
        own = [log.received_ns[at] - start[at] for at in range(first, last)]
        if rate_rps is None and start[-1] < end:
            raise Failed(
                f"after {len(own)} round trips a response did not come, and sockperf waited for it until the end:"
                " rate_rps=N sends requests without waiting"
            )
        if rate_rps is not None:
            missing = max(0, rate_rps * duration_s - len(own))
            lost += (of_own := min(log.lost_count, missing))
            overtaken += min(log.out_of_order_count, missing - of_own)
            late += sum(log.sent_ns[at] - start[at] > base.LATE_NS for at in range(first, last))
        times += own
    times_s = [1e-9 * one for one in sorted(times)]
    rate = (len(times) + overtaken) / duration_s
    row = base.request_columns(times_s, rate, parameters, None, len(logs), lost, overtaken_count=overtaken)
    row["out_of_order_count"] = sum(log.out_of_order_count for log in logs)
    if rate_rps is None:
        return row
    offered_rps = min((log.sent_count / log.elapsed_s for log in logs), default=0.0)
    about = base.kept_rate(late, len(times), offered_rps, rate_rps, "sockperf")
    if overtaken:
        share = units.percent(overtaken / (len(times) + overtaken))
        about["doubts"].append(
            f"sockperf does not time {share} of the requests, because responses to later ones came before: they"
            " count as slower than all others; generator=sockets times them"
        )
    return row | about | {"doubts": [*about["doubts"], *row["doubts"]]}


def client_argv(parameters: LoadParameters, pair: Pair, log: Path) -> list[str]:
    rate = parameters.rate_rps
    mode = ["ping-pong"] if rate is None else ["under-load", f"--mps={rate}", "--reply-every=1"]
    mode.append("--dontwarmup")  # a sleep of 2 s
    if rate is not None and pair.client.cpu is not None:
        # Beside the thread that receives, or the server, the sender was punctual half as often.
        mode += [f"--sender-affinity={pair.client.cpu}", f"--receiver-affinity={pair.server.cpu}"]
    size = SHORTEST if parameters.length_bytes is None else parameters.length_bytes
    seconds = parameters.omit_s + parameters.duration_s + SPARE_S
    at = _at(parameters, pair.server_address, pair.server.port_offset)
    return ["sockperf", *mode, *at, f"-t{seconds}", f"-m{size}", f"--full-log={log}"]


def _at(parameters: LoadParameters, address: str, offset: int) -> list[str]:
    tcp = ["--tcp"] if parameters.protocol == "tcp_rr" else []
    return ["-i", address, "-p", str(PORT + offset), *tcp]


def _message(ended: process.Ended) -> str:
    """Return sockperf's own error message, or another one."""
    error = _ERROR.search(ended.stdout + ended.stderr)
    return f"sockperf: {error[1].strip()}" if error else ended.message()


def _content(ended: process.Ended, path: Path) -> bytes:
    """Return the full log of a client. Raises Failed with sockperf's error message; its exit code is 0 in any case."""
    if _ERROR.search(ended.stdout + ended.stderr) or not path.exists():
        raise Failed(_message(ended))
    return path.read_bytes()


class Sockperf(RequestGenerator):
    """sockperf's ping-pong and under-load."""

    name = "sockperf"
    capabilities = Capabilities(
        length_bytes=dict.fromkeys(("udp_rr", "tcp_rr"), (SHORTEST, base.LARGEST_DATAGRAM)),
        metric="latency_p50_s",
        higher_is_better=False,
        requests=True,
    )

    def version(self) -> str:
        words = process.output(["sockperf", "--version"]).split()
        return words[2] if len(words) > 2 else "?"

    def check(self, parameters: LoadParameters) -> None:
        super().check(parameters)
        if parameters.family == 6:
            raise BadInput("family=6: sockperf 3.7 has no IPv6; use generator=sockets")
        most = MOST_MESSAGES // (parameters.rate_rps or UNPACED_RPS) - SPARE_S
        whole_s = parameters.omit_s + parameters.duration_s
        Within(1, most, "sockperf keeps each message in memory").check("omit_s + duration_s", whole_s)

    def latency(
        self,
        pairs: Sequence[Pair | RemotePair],
        parameters: LoadParameters,
        counting: AbstractContextManager[object] = NOT_COUNTED,
    ) -> list[bytes]:
        """Let all pairs send and respond at once; return their full logs. Raises Failed with sockperf's message."""
        own, ends = base.local_ends(pairs)
        with tempfile.TemporaryDirectory() as folder, process.all_ended([]) as programs:
            for end in ends:
                # Connections that were measured before at this end are in TIME_WAIT.
                argv = ["sockperf", "server", "--uc-reuseaddr"]
                programs.append(end.start([*argv, *_at(parameters, end.address, end.port_offset)]))
            transport = parameters.protocol.removesuffix("_rr")
            base.until_listening("the sockperf server", ends, programs, START_S, transport)
            paths, clients = list[Path](), list[process.Running]()
            for number, pair in enumerate(own):
                here, there = pair.client.shared_folder(Path(folder))
                paths.append(here / f"{number}.csv")
                paths[-1].unlink(missing_ok=True)  # of an earlier measurement in this container
                log = Path(there) / f"{number}.csv"
                clients.append(pair.client.start(client_argv(parameters, pair, log)))
            programs += clients
            late_s = time.monotonic() + START_S
            for client in clients:
                while BEGUN not in client.output_so_far() and not client.poll() and time.monotonic() < late_s:
                    time.sleep(0.002)
            process.wait(clients, time.monotonic() + WARM_S + parameters.omit_s)
            with counting:
                process.wait(clients, time.monotonic() + parameters.duration_s)
            ended = base.finished(clients, SPARE_S + END_S, _message)
            return [_content(one, path) for one, path in zip(ended, paths, strict=True)]

    def columns(self, measured: list[bytes], parameters: LoadParameters) -> dict[str, Any]:
        """Return the columns of a row from the full logs. Raises Failed if a request got no response in time."""
        logs = [read(log.decode().splitlines()) for log in measured]
        return columns(logs, parameters)


SOCKPERF = Sockperf()
