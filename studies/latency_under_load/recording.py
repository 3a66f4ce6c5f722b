"""Read the receive counters of both ends in intervals, beside a load and its probes."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from labkit.measure.endpoints import Endpoint, Pair, RemotePair
from studies.latency_under_load.course import Course, Interval
from studies.latency_under_load.probes import Probe


class Recording:
    """The bytes that the interfaces of all servers and of all clients have received, at the end of each interval."""

    def __init__(self, pairs: Sequence[Pair | RemotePair], interval_s: float) -> None:
        servers = [pair.server for pair in pairs if isinstance(pair.server, Endpoint)]
        self._ends = servers, [pair.client for pair in pairs]
        self._interval_s = interval_s
        self._readings: list[tuple[float, list[int]]] = []

    def until(self, end_s: float, runs: Callable[[float], bool] | None = None) -> None:
        """Read until `end_s` (time.monotonic()), or until `runs`, which sleeps until a time, returns False."""
        while (now := time.monotonic()) < end_s:
            received = [sum(one.counters().received_bytes for one in each) for each in self._ends]
            self._readings.append((now, received))
            following = min(end_s, now + self._interval_s)
            if runs is None:
                time.sleep(max(0.0, following - time.monotonic()))
            elif not runs(following):
                return

    def course(
        self, begun_s: float, probes: Sequence[Probe], phases: Mapping[str, tuple[float, float]]
    ) -> Course:
        """Return the course of a load that began at `begun_s` (time.monotonic(), as all times here)."""
        return Course(
            list(self._intervals(begun_s)),
            [(one.sent_s - begun_s, one.rtt_s) for one in probes],
            {name: (begin - begun_s, end - begun_s) for name, (begin, end) in phases.items()},
        )

    def _intervals(self, begun_s: float) -> Iterator[Interval]:
        for (before_s, before), (now_s, now) in itertools.pairwise(self._readings):
            if (passed_s := now_s - before_s) >= self._interval_s / 2:  # phases end with a shorter one
                forward, reverse = (8 * (new - old) / passed_s for old, new in zip(before, now, strict=True))
                yield Interval(now_s - begun_s, forward, reverse)
