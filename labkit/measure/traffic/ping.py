"""ping as a traffic generator: round-trip times, closed-loop.

Closed-loop: at intervals below 10 ms, ping waits up to 10 ms for an answer before it sends the next request (iputils,
main_loop). So a stall of the path counts less often than it would at a fixed schedule.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

from labkit.common import errors, units
from labkit.common.errors import Failed
from labkit.measure.endpoints import Endpoint, Pair, RemotePair
from labkit.measure.traffic import echo
from labkit.measure.traffic.base import Capabilities, LatencyGenerator, LoadParameters
from labkit.system import process

# The kernel reports carriers to bridges for 100 devices at a time, a second apart (net/core/link_watch.c): with
# hundreds of new ports the last one may begin to forward late.
PATIENCE_S = 15
INTERVAL_S = 0.002  # the shortest interval that iputils allows without privilege
# The steps in which ping prints times below these limits (iputils, ping_common.c, gather_statistics).
STEPS_S = ((1e-3, 1e-6), (1e-2, 1e-5), (1e-1, 1e-4))
LAST_STEP_S = 1e-3
# If this share of the times is in one step, and the step is at least this share of a time, the row has a doubt.
NEARLY_ALL, COARSE = 0.95, 1e-3
_RTT = re.compile(r"time=([0-9.]+) ms(?! \(DUP!\))")  # without duplicates: each request counts once


def reachable(
    pairs: Sequence[Pair | RemotePair], mtu_bytes: int, family: int, patience_s: int = PATIENCE_S
) -> str | None:
    """Ping every pair with packets that fill the MTU and must not be fragmented, for up to `patience_s`.

    Returns None if every pair answers, else one sentence about the first pair that does not.
    """
    size = mtu_bytes - (28 if family == 4 else 48)
    in_namespaces = [pair for pair in pairs if pair.client.runtime is None]
    in_runtimes = [pair for pair in pairs if pair.client.runtime is not None]
    lost = echo.unanswered(in_namespaces, size + 8, patience_s) if in_namespaces else None
    lost = lost or _unanswered_by_program(in_runtimes, size, patience_s)
    if lost is None:
        return None
    pair, words = lost
    return f"{pair.client.name} gets no answer from {pair.server.name} to a ping of {mtu_bytes} bytes" + (
        f" ({words})" if words else ""
    )


def _unanswered_by_program(
    pairs: Sequence[Pair | RemotePair], length_bytes: int, patience_s: int
) -> tuple[Pair | RemotePair, str] | None:
    """Ping from containers and guests, whose sockets this process cannot open; return as `echo.unanswered`."""
    options = ["-c1", "-i0.2", f"-w{patience_s}", "-Mdo", f"-s{length_bytes}"]
    programs = [_ping(pair.client, pair.server.address, options) for pair in pairs]
    with process.all_ended(programs):
        process.wait(programs, time.monotonic() + patience_s + 2)
        for pair, program in zip(pairs, programs, strict=True):
            program.kill()
            if program.ended().returncode != 0:
                return pair, " ".join(program.ended().stderr.split())
    return None


def silent(pair: Pair | RemotePair) -> bool:
    """Return whether small pings of one pair get no answer within 0.6 s."""
    return (
        process.run([*pair.client.prefix, *argv(pair.server.address, ["-c3", "-i0.2", "-W0.2"])]).returncode
        == 1
    )


def answered(client: Endpoint, address: str, count: int, length_bytes: int) -> None:
    """Send `count` pings with this payload length, 10 ms apart. Raises Failed unless each is answered in time."""
    options = [f"-c{count}", "-i0.01", f"-w{PATIENCE_S}", f"-s{length_bytes}"]
    ended = process.run([*client.prefix, *argv(address, options)])
    if len(round_trip_times(ended.stdout)) < count:
        raise Failed(f"{client.name} lost pings to {address}: {ended.message()}")


def latency(
    pairs: Sequence[Pair | RemotePair], duration_s: float, length_bytes: int | None
) -> dict[str, Any]:
    """Measure the round-trip times of all pairs at once, with a request every 2 ms for each pair.

    Returns the count, and p50, p90, p99, p99.9 and maximum in seconds. Raises Failed with ping's error message if one
    of them fails or gets no answer at all.
    """
    options = [f"-c{max(1, round(duration_s / INTERVAL_S))}", f"-i{INTERVAL_S}", f"-w{int(duration_s) + 2}"]
    options += [f"-s{56 if length_bytes is None else length_bytes}"]
    programs = [_ping(pair.client, pair.server.address, options) for pair in pairs]
    with process.all_ended(programs):
        process.wait(programs, time.monotonic() + duration_s + 5)
        for program in programs:
            program.kill()
        ended = [program.ended() for program in programs]
    times: list[float] = []
    for one in ended:
        own = round_trip_times(one.stdout)
        if not own:
            raise Failed(one.message())
        times += own
    times.sort()
    middle = times[len(times) // 2]
    step = step_s(middle)
    # Without interpolation, 4 µs against 5 µs would look like 25 %.
    p50 = statistics.median_grouped(times, step)
    return {
        "loop": "closed",
        "received_count": len(times),
        "sent_count": _sent_by_all(one.stdout for one in ended),
        "latency_p50_s": p50,
        **{
            f"latency_{name}_s": times[min(len(times) - 1, int(share * len(times)))]
            for name, share in (("p90", 0.9), ("p99", 0.99), ("p999", 0.999))
        },
        "latency_max_s": times[-1],
        **({"doubts": [doubt]} if (doubt := _step_doubt(times, middle, step)) else {}),
    }


def step_s(rtt_s: float) -> float:
    """Return the step in which ping prints round-trip times of this length."""
    return next((step for limit, step in STEPS_S if rtt_s < limit), LAST_STEP_S)


def _step_doubt(times: Sequence[float], middle: float, step: float) -> str | None:
    """Return a doubt if nearly all round-trip times are in one step, so that their median shows no smaller
    difference."""
    share = times.count(middle) / len(times)
    if step < COARSE * middle or share < NEARLY_ALL:
        return None
    return (
        f"ping printed {units.percent(share)} of the round-trip times as {units.si(middle, 's')}, because it prints"
        f" such times in steps of {units.si(step, 's')}: smaller differences do not show"
    )


@errors.reading("the output of ping")
def round_trip_times(text: str) -> list[float]:
    """Parse the round-trip times that ping (iputils) printed; return them in seconds."""
    return [float(value) / 1e3 for value in _RTT.findall(text)]


def _sent_by_all(texts: Iterable[str]) -> int | None:
    """Return how many requests all pings sent, or None if one was ended before it printed its summary."""
    result = [re.search(r"(\d+) packets transmitted", text) for text in texts]
    return None if None in result else sum(int(one[1]) for one in result if one)


def argv(address: str, options: list[str]) -> list[str]:
    """Return the command line of a ping, without the prefix that enters its namespace."""
    return ["ping", "-n", *options, address]


def _ping(client: Endpoint, address: str, options: list[str]) -> process.Running:
    return client.start(argv(address, options))


class Ping(LatencyGenerator):
    """ping as a traffic generator: round-trip times, closed-loop."""

    name = "ping"
    capabilities = Capabilities(
        length_bytes={"ping": (16, 65507)}, metric="latency_p50_s", higher_is_better=False
    )

    def version(self) -> str:
        """Return the version of ping. Raises Unsupported if it is missing."""
        return process.output(["ping", "-V"]).split()[-1]

    def latency(self, pairs: Sequence[Pair | RemotePair], parameters: LoadParameters) -> dict[str, Any]:
        """Measure the round-trip times of all pairs at once; return columns of a row."""
        return latency(pairs, parameters.duration_s, parameters.length_bytes)


PING = Ping()
