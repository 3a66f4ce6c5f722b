"""Check two existing ends: resolve their names, gather evidence, judge it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import asdict
from itertools import chain, repeat
from typing import Any

from labkit.common.errors import Unsupported
from labkit.measure.existing import published
from labkit.measure.existing.checks import drops, load, registry
from labkit.measure.existing.checks.evidence import Evidence, Probed, gather
from labkit.measure.existing.checks.findings import Finding, ordered
from labkit.measure.existing.endpoints import reporting_ended, resolve
from labkit.measure.existing.path import Path, fits, others_than, paths
from labkit.measure.existing.spaces import Spaces

MAX_PAIRS = 3  # of addresses


def check(
    client: str,
    server: str,
    load_s: int | None = None,
    agreed: Callable[[str], bool] = lambda _plan: True,
    port: int | None = None,
    family: int | None = None,
    only: Collection[str] = (),
    locked: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> dict[str, Any]:
    """Return what a check of two ends found, as plain values (the fields of `labkit check --json`).

    port: one at which a program of the server listens, or which this machine publishes for it; None: a published one if
    the ends do not reach each other otherwise. family, only: as for `paths`.
    load_s: the seconds of each part of the load; None: no load. agreed: whether the load's plan may be carried out.
    locked: returns the measuring lock, which a load holds.
    Raises BadInput, Unsupported, Failed.
    """
    with ExitStack() as stack:
        ends = [stack.enter_context(closing(resolve(name))) for name in (client, server)]
        stack.enter_context(reporting_ended(ends))
        spaces = stack.enter_context(closing(Spaces(*ends)))
        found, through, left = _paths(spaces, port, family, only)
        asked = None if port is None else (found[0][1].source, port)
        if through is not None:
            asked = through.address, through.port.port
        others = () if through is None else through.port.others
        one, other = ((path.start.name, path.source) for path in found[0])
        refused = ""
        if load_s is not None and through is not None and through.port.copies:
            refused = f"{through.port.name} copies data, so it would pass a part of the path only"
        elif load_s is not None and not agreed(load.plan(one, other, load_s)):
            refused = "its plan was not agreed to"
        load_s = None if refused else load_s
        named = {spaces.client, spaces.server}
        with locked() if load_s is not None else nullcontext():
            seen = [
                gather(*both, *given, sends={both[0].start, both[1].start} <= named, ends=ends)
                for both, given in zip(found, chain([(load_s, asked)], repeat((None, None))), strict=False)
            ]
        if refused:
            seen[0].not_seen.append(f"the load was not sent: {refused}")
        seen[0].not_seen += left
        if others:
            seen[0].not_seen.append(
                f"the paths to {', '.join(others)}: the same port leads there as well, chosen at random"
            )
        if os.geteuid():
            seen[0].not_seen.append(
                "programs of other users, which may hold published ports: only root sees them"
            )
        judged = (registry.judged(registry.explained(one), registry.unexplained(one)) for one in seen)
        return _report(client, server, seen, ordered(list(chain.from_iterable(judged))))


def _paths(
    spaces: Spaces, port: int | None, family: int | None, only: Collection[str]
) -> tuple[list[tuple[Path, Path]], published.Through | None, list[str]]:
    """Return the paths to check, forward and back, the published port through which they lead, and which are left."""
    through = published.through(spaces, port, family) if port is not None else None
    try:
        found = paths(spaces, family, only) if through is None else []
    except Unsupported:  # no addresses that differ, as behind pasta
        if port is not None or (through := published.through(spaces, family=family)) is None:
            raise
        found = []
    good = [both for both in found if fits(*both)][:MAX_PAIRS]
    if not good and through is None and port is None:
        through = published.through(spaces, family=family)
    if through is not None:
        return through.legs, through, []
    taken, every = (
        [(one.source, one.destination) for one, _back in some] for some in (good or found[:1], found)
    )
    return good or found[:1], None, others_than(taken, every)


def _report(client: str, server: str, seen: list[Evidence], findings: list[Finding]) -> dict[str, Any]:
    total = sum((one.drops for one in seen), Counter[tuple[str, str, str]]())
    return {
        "client": client,
        "server": server,
        "findings": [asdict(one) for one in findings],
        "paths": [
            path_entry(one.client.address, one.server.address, one.forward.names(), one) for one in seen
        ],
        "loads": [asdict(load) for one in seen for load in one.loads],
        "drops": drops.shown(total),
        "not_seen": list(dict.fromkeys(text for one in seen for text in one.not_seen)),
    }


def path_entry(client: str, server: str, interfaces: list[str], probed: Probed) -> dict[str, Any]:
    """Return a path for the report."""
    trips_ms = sorted(probed.round_trips_ms)
    return {
        "client": client,
        "server": server,
        "interfaces": interfaces,
        "forward": probed.forward_probe.summary,
        "back": probed.back_probe.summary,
        "tcp": probed.connection is not None and probed.connection.connected,
        "ports": {str(port): said or "connects" for port, said in probed.ports.items()},
        "round_trip_ms": trips_ms[len(trips_ms) // 2] if trips_ms else None,
    }
