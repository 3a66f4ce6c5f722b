"""Ping probes with every reply recorded, to measure reachability and outages."""

import errno
import os
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

SHORTEST_S = 0.002  # the shortest interval that iputils allows without privilege
MAX_SEQUENCE = 65535  # an echo request's sequence number has 16 bits (RFC 792)
PATIENCE_S = 2.0  # time for the last reply
START_S = 60.0  # for many programs on a shared emulated CPU; they end by themselves much earlier
UNREACHABLE = os.strerror(errno.ENETUNREACH)  # of ping, where the kernel has no route
_ANSWER = re.compile(
    r"^(?:\[([0-9.]+)\] )?\d+ bytes from .*icmp_seq=(\d+) (?:ttl|hlim)=(\d+) time=([0-9.]+) ms", re.M
)
_LATE = re.compile(r"^\[([0-9.]+)\] no answer yet for icmp_seq=(\d+)", re.M)
_SENT = re.compile(
    r"^(\d+) packets transmitted, (\d+) received(?:, \+(\d+) duplicates)?(?:, \+(\d+) errors)?", re.M
)


@dataclass(frozen=True)
class Answers:
    """The result of some echo requests.

    `errors_count`: ICMP errors instead of replies (`Destination Host Unreachable`). `ttls`: all TTLs of replies.
    `rtts_s`: in order of arrival.
    """

    sent_count: int
    received_count: int
    duplicates_count: int
    errors_count: int
    ttls: tuple[int, ...] = ()
    rtts_s: tuple[float, ...] = field(default=(), repr=False)

    @property
    def ttl(self) -> int | None:
        """The TTL of the replies; None if there is none, or more than one."""
        return self.ttls[0] if len(self.ttls) == 1 else None

    def row(self) -> dict[str, int | float | None]:
        """Return the columns of a row: counts, ttl, and round-trip times (None without a reply)."""
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
    """The longest time without a reply: its length, the time of the last reply before it (seconds since the epoch),
    and whether a reply followed."""

    length_s: float
    since_s: float
    over: bool


@errors.reading("the output of ping")
def answers(text: str) -> Answers:
    """Parse ping's (iputils) summary and replies. Raises Failed if there is no summary."""
    match = _summary(text)
    if match is None:
        raise Failed(f"ping printed no summary: {' '.join(text.split())[:200] or 'its output is empty'}")
    sent, received, duplicates, errors = (int(count or 0) for count in match.groups())
    result = _first_answers(text).values()
    ttls, rtts_s = {ttl for _, ttl, _ in result}, tuple(rtt_s for _, _, rtt_s in result)
    return Answers(sent, received, duplicates, errors, tuple(sorted(ttls)), rtts_s)


@errors.reading("the output of ping")
def probes(text: str) -> list[Probe]:
    """Parse every echo request of `ping -D -O`, in order.

    A request was sent one round-trip time before its reply. Without a reply, it was sent when ping reported the
    previous one as missing, which it does when sending, else one interval after the previous one.
    """
    answered = _first_answers(text)
    sent = {_number(number) + 1: float(at) for at, number in _LATE.findall(text)}
    sent |= {number: at - rtt_s for number, (at, _, rtt_s) in answered.items() if at is not None}
    if not sent:
        return []
    match = _summary(text)
    interval_s = _interval_s(sent)
    for number in range(min(sent) - 1, 0, -1):
        sent[number] = sent[number + 1] - interval_s
    for number in range(2, (int(match[1]) if match else max(sent)) + 1):
        sent.setdefault(number, sent[number - 1] + interval_s)
    return [
        Probe(number, at, answered[number][2] if number in answered else None)
        for number, at in sorted(sent.items())
        if match is None or number <= int(match[1])
    ]


def outage(all_probes: Sequence[Probe], since_s: float = 0.0) -> Outage:
    """Return the longest time without a reply, among those that end after `since_s` (seconds since the epoch).

    It lasts from one reply to the next, minus the normal interval between replies (the median between two probes), and
    at least 0; it is exact to one interval. A late reply ends the outage when it arrives. Nothing is known before the
    first reply. Without a later reply the outage extends to one interval after the last probe and is not `over`.
    Raises BadInput if there is no reply at all.
    """
    came = sorted(probe.sent_s + probe.rtt_s for probe in all_probes if probe.rtt_s is not None)
    if not came:
        raise BadInput("none of these probes was answered, so no outage can be computed")
    interval_s = _interval_s({probe.number: probe.sent_s for probe in all_probes})
    gaps = [
        Outage(max(0.0, after - before - interval_s), before, True)
        for before, after in pairwise(came)
        if after >= since_s
    ]
    end_s = max(probe.sent_s for probe in all_probes) + interval_s
    gaps.append(Outage(max(0.0, end_s - came[-1] - interval_s), came[-1], False))
    return max(gaps, key=lambda gap: (gap.length_s, gap.over))


def _summary(text: str) -> re.Match[str] | None:
    """Return ping's summary line, or None. Raises Failed for more requests than possible, which would exhaust
    memory."""
    match = _SENT.search(text)
    if match is not None and any(len(count) > 9 or int(count) > MAX_SEQUENCE for count in match.groups("0")):
        raise Failed(
            f"ping claims more than {MAX_SEQUENCE:,} requests, which is impossible: {match[0][:100]!r}"
        )
    return match


def _number(text: str) -> int:
    """Parse a sequence number. Raises ValueError for an impossible one, because all smaller ones would be
    generated."""
    if len(text) > 5 or not 0 <= (number := int(text)) <= MAX_SEQUENCE:
        raise ValueError(f"icmp_seq={text[:30]} is not a valid sequence number")
    return number


def _first_answers(text: str) -> dict[int, tuple[float | None, int, float]]:
    """Return for each request its first reply: arrival (with `-D`), TTL, and round-trip time."""
    return {
        _number(number): (float(at) if at else None, int(ttl), float(ms) / 1e3)
        for at, number, ttl, ms in reversed(_ANSWER.findall(text))
    }


def _interval_s(sent: dict[int, float]) -> float:
    """Return the median interval between consecutive requests in seconds; 0 if unknown."""
    steps = [at - sent[number - 1] for number, at in sent.items() if number - 1 in sent]
    return statistics.median(steps) if steps else 0.0


class LongProbe:
    """A running ping."""

    def __init__(self, program: process.Running) -> None:
        self._program = program

    def so_far(self) -> list[Probe]:
        """Return the probes up to now."""
        return probes(self._program.output_so_far())

    def end(self) -> list[Probe]:
        """End it and return all probes. Raises Failed with ping's message if it ended early or does not end."""
        by_itself = self._program.poll()
        self._program.signal(signal.SIGINT)
        late = process.wait([self._program], time.monotonic() + PATIENCE_S)
        if late or by_itself:
            self._program.kill()
            raise Failed(self._program.ended(bool(late)).message())
        return probes(self._program.ended().stdout)


@contextmanager
def long_probe(client: Namespace, address: str, interval_s: float) -> Iterator[LongProbe]:
    """Send echo requests every `interval_s` seconds until the block ends. Raises BadInput if the interval is too
    short."""
    if interval_s < SHORTEST_S:
        raise BadInput(
            f"interval_s={interval_s} is too short: the shortest interval of ping is {SHORTEST_S} s"
        )
    argv = [*client.prefix, "ping", "-n", "-D", "-O", f"-c{MAX_SEQUENCE}", f"-i{interval_s}", address]
    programs = [process.Running(argv)]
    with process.all_ended(programs):
        yield LongProbe(programs[0])


def echo(targets: Sequence[tuple[Namespace, str]], count: int, interval_s: float = 0.05) -> list[Answers]:
    """Send `count` echo requests from each namespace to its address, all at once.

    A namespace without a route to its address sends them in vain. Raises Failed with ping's message if one could not
    send for another reason.
    """
    options = [f"-c{count}", f"-i{interval_s}", f"-W{PATIENCE_S}"]
    programs = [process.Running([*client.prefix, "ping", "-n", *options, to]) for client, to in targets]
    with process.all_ended(programs):
        late = process.wait(programs, time.monotonic() + count * interval_s * 2 + PATIENCE_S + START_S)
        for program in late:
            program.signal(signal.SIGINT)  # it prints what it has received
        process.wait(late, time.monotonic() + PATIENCE_S)
        for program in late:
            program.kill()
        ended = [program.ended() for program in programs]
    result = []
    for one in ended:
        if UNREACHABLE in one.stderr:
            result.append(Answers(count, 0, 0, count))
        elif one.returncode not in (0, 1):  # 1: no answer (ping(8))
            raise Failed(one.message())
        else:
            result.append(answers(one.stdout))
    return result
