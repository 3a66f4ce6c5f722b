"""Why the kernel dropped packets, in which function, and where on the path: the tracepoint skb:kfree_skb.

It counts for the whole machine, so other traffic is among it. The place of a probe is the interface of the path
where it arrived or was to leave just before: tracepoints there have the same address of the packet. Only perf's own
process mounts tracefs, and the events end with it: nothing of the machine changes.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from labkit.common.errors import Failed, Unsupported
from labkit.measure.existing.spaces import PLAIN
from labkit.measure.observers.perf import control
from labkit.measure.observers.perf.record import NO_CACHE, path_of
from labkit.measure.topologies.network.kinds import ETHERNET
from labkit.system import process

EVENT = "skb:kfree_skb"
WITH_TRACEFS = (
    "unshare", "--mount", "--", "sh", "-c", 'mount -t tracefs tracefs /sys/kernel/tracing; exec "$@"', "sh",
)  # fmt: skip
PASSED = ("net:netif_receive_skb", "net:net_dev_queue")
SMALL_BYTES = 100  # of the probes, with their IP header; hardly any other packet is as long
JUST_S = 1e-3
_LINE = re.compile(
    r"(?P<time>[\d.]+): .*skbaddr=(?P<packet>\w+).*location=(?P<at>[\w.]+)\S*(?:.*\breason: (?P<reason>\w+))?"
)
_PASSED = re.compile(r"(?P<time>[\d.]+): .*dev=(?P<name>\S+) skbaddr=(?P<packet>\w+)")
# Packets that nobody misses: those whose reason is not known, and what is not for this machine's programs.
EVERYDAY = {
    "NOT_SPECIFIED", "NOT_DROPPED_YET", "CONSUMED", "NO_SOCKET", "OTHERHOST", "UNHANDLED_PROTO", "QUEUE_PURGE",
    "SOCKET_CLOSE",
}  # fmt: skip

Drops = Counter[tuple[str, str, str]]  # by reason, function, and the name of an interface of the path or ""


def shown(dropped: Drops) -> dict[str, int]:
    """Return the most frequent drops in words, each with its count."""
    return {
        f"{reason} in {function}{f' at {name}' if name else ''}": count
        for (reason, function, name), count in dropped.most_common(20)
    }


@contextmanager
def recorded(not_seen: list[str], interfaces: Collection[str]) -> Iterator[Drops]:
    """Yield the counts, which are there when the block has ended; add a sentence to `not_seen` if they cannot be.

    interfaces: the names of those on the path.
    """
    result: Drops = Counter()
    with ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryFile())
        of_path = " || ".join(f'name == "{name}"' for name in interfaces if PLAIN.fullmatch(name))
        own = " || ".join(f"len == {length}" for length in (SMALL_BYTES, SMALL_BYTES + ETHERNET.length_bytes))
        only = ["--filter", f"({own}) && ({of_path})"]
        events = ["-e", EVENT, *(word for event in PASSED if of_path for word in ("-e", event, *only))]
        words = ["record", *events, *NO_CACHE, *control.WHOLE_MACHINE.argv(), "-o", path_of(data)]
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
        with process.streamed([control.program(), "script", "-i", data, "-F", "time,event,trace"]) as lines:
            passed: dict[str, tuple[float, str]] = {}
            for line in lines:
                text = line.decode(errors="replace")
                if found := _PASSED.search(text):
                    passed[found["packet"]] = float(found["time"]), found["name"]
                elif found := _LINE.search(text):
                    at_s, name = passed.pop(found["packet"], (0.0, ""))
                    name = name if float(found["time"]) - at_s < JUST_S else ""
                    result[found["reason"] or "NOT_SPECIFIED", found["at"], name] += 1
    except Failed as error:
        not_seen.append(f"reasons of dropped packets ({EVENT}): {error}")
