"""Why the kernel dropped packets, and in which function, while the check ran: the tracepoint skb:kfree_skb.

It counts for the whole machine, so other traffic is among it. Only perf's own process mounts tracefs, and the event
ends with it: nothing of the machine changes.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labkit.common.errors import Failed, Unsupported
from labkit.measure.observers.perf import control
from labkit.measure.observers.perf.record import NO_CACHE, path_of
from labkit.system import process

EVENT = "skb:kfree_skb"
WITH_TRACEFS = (
    "unshare", "--mount", "--", "sh", "-c", 'mount -t tracefs tracefs /sys/kernel/tracing; exec "$@"', "sh",
)  # fmt: skip
_LINE = re.compile(r"location=(?P<at>[\w.]+)\S*(?:.*\breason: (?P<reason>\w+))?")
# Packets that nobody misses: those whose reason is not known, and what is not for this machine's programs.
EVERYDAY = {
    "NOT_SPECIFIED", "NOT_DROPPED_YET", "CONSUMED", "NO_SOCKET", "OTHERHOST", "UNHANDLED_PROTO", "QUEUE_PURGE",
    "SOCKET_CLOSE",
}  # fmt: skip

Drops = Counter[tuple[str, str]]  # by reason and function


@contextmanager
def recorded(not_seen: list[str]) -> Iterator[Drops]:
    """Yield the counts, which are there when the block has ended; add a sentence to `not_seen` if they cannot be."""
    result: Drops = Counter()
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryFile())
        words = ["record", "-e", EVENT, *NO_CACHE, *control.WHOLE_MACHINE.argv(), "-o", path_of(data)]
        try:
            perf = stack.enter_context(control.controlled(words, WITH_TRACEFS))
            perf.request("enable")
        except (Unsupported, Failed) as error:
            not_seen.append(f"reasons of dropped packets ({EVENT}): {error}")
            perf = None
        yield result
        if perf is not None:
            _count(perf, path_of(data), result, not_seen)


def _count(perf: control.Controlled, data: str, result: Drops, not_seen: list[str]) -> None:
    try:
        perf.request("disable")
        perf.end()
        with process.streamed([control.program(), "script", "-i", data, "-F", "event,trace"]) as lines:
            for line in lines:
                if found := _LINE.search(line.decode(errors="replace")):
                    result[found["reason"] or "NOT_SPECIFIED", found["at"]] += 1
    except Failed as error:
        not_seen.append(f"reasons of dropped packets ({EVENT}): {error}")
