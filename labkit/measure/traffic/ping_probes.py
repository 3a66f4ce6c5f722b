"""Probes: pings whose every answer is looked at, to tell who is reached, and for how long nobody was."""

from __future__ import annotations

import re
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from labkit.common import errors
from labkit.common.errors import BadInput, Failed
from labkit.measure.endpoints import Namespace
from labkit.system import process

SHORTEST_S = 0.002  # iputils allows no shorter interval without privilege
MOST = 65535  # the sequence number in an echo request has 16 bits (RFC 792)
PATIENCE_S = 2.0  # for the last answer
START_S = (
    60.0  # for many programs, of an emulated CPU that has to be shared; they end by themselves long before
)
_ANSWER = re.compile(
    r"^(?:\[([0-9.]+)\] )?\d+ bytes from .*icmp_seq=(\d+) (?:ttl|hlim)=(\d+) time=([0-9.]+) ms", re.M
)
_LATE = re.compile(r"^\[([0-9.]+)\] no answer yet for icmp_seq=(\d+)", re.M)
_SENT = re.compile(
    r"^(\d+) packets transmitted, (\d+) received(?:, \+(\d+) duplicates)?(?:, \+(\d+) errors)?", re.M
)


@dataclass(frozen=True)
class Answers:
    """What came of a number of echo requests. `errors_count`: ICMP errors in the place of answers (`Destination Host
    Unreachable`); `ttls`: all that answers arrived with; `rtts_s` in the order in which the answers came."""

    sent_count: int
    received_count: int
    duplicates_count: int
    errors_count: int
    ttls: tuple[int, ...] = ()
    rtts_s: tuple[float, ...] = field(default=(), repr=False)

    @property
    def ttl(self) -> int | None:
        """The TTL of the answers; None where there is none, or not one alone."""
        return self.ttls[0] if len(self.ttls) == 1 else None

    def row(self) -> dict[str, int | float | None]:
        """The columns of a row: counts, ttl, and round-trip times, null where nothing was answered."""
        times = self.rtts_s
        return {
            "sent_count": self.sent_count,
            "received_count": self.received_count,
            "ttl": self.ttl,
            "rtt_min_s": min(times, default=None),
            "rtt_p50_s": statistics.median(times) if times else None,
            "rtt_max_s": max(times, default=None),
        }


class Probe(NamedTuple):
    """One echo request: when it was sent (seconds since the epoch), and its round-trip time if it was answered."""

    number: int
    sent_s: float
    rtt_s: float | None


class Outage(NamedTuple):
    """The longest time without an answer: its length, when the last answer before it came (seconds since the epoch),
    and whether an answer came after it."""

    length_s: float
    since_s: float
    over: bool


@errors.reading("the output of ping")
def answers(text: str) -> Answers:
    """What ping (iputils) says that it has sent and received. Raises Failed where it does not say it."""
    report = _summary(text)
    if report is None:
        raise Failed(
            f"ping did not say what it has sent: {' '.join(text.split())[:200] or 'it said nothing'}"
        )
    sent, received, duplicates, errors = (int(count or 0) for count in report.groups())
    result = _first_answers(text).values()
    ttls, rtts_s = {ttl for _, ttl, _ in result}, tuple(rtt_s for _, _, rtt_s in result)
    return Answers(sent, received, duplicates, errors, tuple(sorted(ttls)), rtts_s)


@errors.reading("the output of ping")
def probes(text: str) -> list[Probe]:
    """Every echo request of `ping -D -O`, in order.

    One was sent a round-trip time before its answer; one without an answer when ping complained of the one before it,
    which it does when it sends, else an interval after that one.
    """
    answered = _first_answers(text)
    sent = {_number(number) + 1: float(at) for at, number in _LATE.findall(text)}
    sent |= {number: at - rtt_s for number, (at, _, rtt_s) in answered.items() if at is not None}
    if not sent:
        return []
    report = _summary(text)
    interval_s = _interval_s(sent)
    for number in range(min(sent) - 1, 0, -1):
        sent[number] = sent[number + 1] - interval_s
    for number in range(2, (int(report[1]) if report else max(sent)) + 1):
        sent.setdefault(number, sent[number - 1] + interval_s)
    return [
        Probe(number, at, answered[number][2] if number in answered else None)
        for number, at in sorted(sent.items())
        if report is None or number <= int(report[1])
    ]


def outage(result: Sequence[Probe], since_s: float = 0.0) -> Outage:
    """The longest time in which no answer came, of those that end after `since_s` (seconds since the epoch).

    It is from one answer to the next, less the interval in which they come while all is well (the median between two
    probes), and never less than 0: exact to one interval.

    An answer that is only late ends the outage when it comes, not when it was asked for. Before the first answer
    nothing is known. Where no answer comes after it, the outage reaches to one interval after the last probe and is
    not `over`. Raises BadInput where nothing was answered at all.
    """
    came = sorted(probe.sent_s + probe.rtt_s for probe in result if probe.rtt_s is not None)
    if not came:
        raise BadInput(
            "none of these probes was answered, so there is no time from which on answers failed to come"
        )
    interval_s = _interval_s({probe.number: probe.sent_s for probe in result})
    gaps = [
        Outage(max(0.0, after - before - interval_s), before, True)
        for before, after in pairwise(came)
        if after >= since_s
    ]
    end_s = max(probe.sent_s for probe in result) + interval_s
    gaps.append(Outage(max(0.0, end_s - came[-1] - interval_s), came[-1], False))
    return max(gaps, key=lambda gap: (gap.length_s, gap.over))


def _summary(text: str) -> re.Match[str] | None:
    """The line in which ping sums up. Raises Failed where it claims more requests than it can number: they would all be
    held in memory."""
    result = _SENT.search(text)
    if result is not None and any(len(count) > 9 or int(count) > MOST for count in result.groups("0")):
        raise Failed(f"ping claims what cannot be, more than {MOST:,} requests: {result[0][:100]!r}")
    return result


def _number(text: str) -> int:
    """The number of a request. Raises ValueError for one that no request can have: all up to it would be made up."""
    if len(text) > 5 or not 0 <= (number := int(text)) <= MOST:
        raise ValueError(f"icmp_seq={text[:30]} is no number of a request")
    return number


def _first_answers(text: str) -> dict[int, tuple[float | None, int, float]]:
    """When the first answer to each request came (with `-D`), its TTL and its round-trip time."""
    return {
        _number(number): (float(at) if at else None, int(ttl), float(ms) / 1e3)
        for at, number, ttl, ms in reversed(_ANSWER.findall(text))
    }


def _interval_s(sent: dict[int, float]) -> float:
    """The median between a request and the next, in seconds; 0 where no two are known."""
    steps = [at - sent[number - 1] for number, at in sent.items() if number - 1 in sent]
    return statistics.median(steps) if steps else 0.0


class LongProbe:
    """A ping that goes on."""

    def __init__(self, program: process.Running) -> None:
        self._program = program

    def so_far(self) -> list[Probe]:
        """The probes up to now."""
        return probes(self._program.lines())

    def end(self) -> list[Probe]:
        """End it, and tell all probes. Raises Failed with ping's words where it had ended by itself, or will not
        end."""
        by_itself = self._program.poll()
        self._program.signal(signal.SIGINT)
        late = process.wait([self._program], time.monotonic() + PATIENCE_S)
        if late or by_itself:
            self._program.kill()
            raise Failed(self._program.ended(bool(late)).words())
        return probes(self._program.ended().stdout)


@contextmanager
def long_probe(client: Namespace, address: str, interval_s: float) -> Iterator[LongProbe]:
    """Echo requests every `interval_s` seconds until the block ends. Raises BadInput for an interval that is too
    short."""
    if interval_s < SHORTEST_S:
        raise BadInput(f"interval_s={interval_s} is too short: ping sends every {SHORTEST_S} s at most")
    argv = [*client.prefix, "ping", "-n", "-D", "-O", f"-c{MOST}", f"-i{interval_s}", address]
    programs = [process.Running(argv)]
    with process.all_ended(programs):
        yield LongProbe(programs[0])


def echo(
    parameters: Sequence[tuple[Namespace, str]], count: int, interval_s: float = 0.05, payload_bytes: int = 56
) -> list[Answers]:
    """`count` echo requests from each namespace to its address, all at once. Raises Failed with ping's words where one
    could not send."""
    options = [f"-c{count}", f"-i{interval_s}", f"-s{payload_bytes}", f"-W{PATIENCE_S}"]
    programs = [process.Running([*client.prefix, "ping", "-n", *options, to]) for client, to in parameters]
    with process.all_ended(programs):
        late = process.wait(programs, time.monotonic() + count * interval_s * 2 + PATIENCE_S + START_S)
        for program in late:
            program.signal(signal.SIGINT)  # it says what it has got
        process.wait(late, time.monotonic() + PATIENCE_S)
        for program in late:
            program.kill()
        ended = [program.ended() for program in programs]
    for one in ended:
        if one.returncode not in (0, 1):  # 1: no answer (ping(8))
            raise Failed(one.words())
    return [answers(one.stdout) for one in ended]
