"""Check two existing ends: resolve their names, gather evidence, judge it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Any

from labkit.measure.existing.checks import load, registry
from labkit.measure.existing.checks.evidence import Evidence, gather
from labkit.measure.existing.checks.findings import Finding, ordered
from labkit.measure.existing.checks.probes import End
from labkit.measure.existing.endpoints import resolve
from labkit.measure.existing.path import fits, paths
from labkit.measure.existing.spaces import Spaces

MAX_PAIRS = 3  # of addresses


def check(
    client: str, server: str, load_s: int | None = None, agreed: Callable[[str], bool] = lambda _plan: True
) -> dict[str, Any]:
    """Return what a check of two ends found, as plain values (the fields of `labkit check --json`).

    load_s: the seconds of each part of the load; None: no load. agreed: whether the load's plan may be carried out.
    Raises BadInput, Unsupported, Failed.
    """
    with ExitStack() as stack:
        ends = [stack.enter_context(closing(resolve(name))) for name in (client, server)]
        found = paths(stack.enter_context(closing(Spaces(*ends))))
        found = [both for both in found if fits(*both)][:MAX_PAIRS] or found[:1]
        one, other = (End(path.start, path.source) for path in found[0])
        if load_s is not None and not agreed(load.plan(one, other, load_s)):
            load_s = None
        seen = [gather(*both, load_s if number == 0 else None) for number, both in enumerate(found)]
        findings = ordered([finding for one in seen for finding in registry.judged(one)])
        return _report(client, server, seen, findings)


def _report(client: str, server: str, seen: list[Evidence], findings: list[Finding]) -> dict[str, Any]:
    total = sum((one.drops for one in seen), Counter[tuple[str, str]]())
    return {
        "client": client,
        "server": server,
        "findings": [asdict(one) for one in findings],
        "paths": [_path(one) for one in seen],
        "loads": [asdict(load) for one in seen for load in one.loads],
        "drops": {f"{reason} in {function}": count for (reason, function), count in total.most_common(20)},
        "not_seen": list(dict.fromkeys(text for one in seen for text in one.not_seen)),
    }


def _path(seen: Evidence) -> dict[str, Any]:
    middle = sorted(seen.round_trips_ms)[len(seen.round_trips_ms) // 2] if seen.round_trips_ms else None
    probes = {
        name: {
            "icmp": f"{probe.icmp.arrived}/{probe.icmp.sent}",
            "udp": f"{probe.udp.arrived}/{probe.udp.sent}",
            "mtu_bytes": probe.mtu.passes_bytes if probe.mtu else None,
        }
        for name, (_path, probe) in zip(("forward", "back"), seen.directions, strict=True)
    }
    return {
        "client": seen.client.address,
        "server": seen.server.address,
        "interfaces": [str(place) for place in seen.forward.places],
        **probes,
        "tcp": seen.connection is not None and seen.connection.connected,
        "round_trip_ms": middle,
    }
