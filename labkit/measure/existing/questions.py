"""What can be asked about two existing ends, with answers as plain values, which also come through ssh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from labkit.measure.existing import ExistingNetwork, between
from labkit.measure.existing.endpoints import require


def _check(client: str, server: str, **given: Any) -> dict[str, Any]:
    from labkit.measure.existing.checks.check import check  # the largest part, which drawings do not need

    return check(client, server, **given)


def _draw(client: str, server: str, **given: Any) -> dict[str, Any]:
    with between(client, server, **given) as path:
        _require(path)
        return {"state": msgspec.to_builtins(path.state), "gap": path.gap, "others": path.others}


def _clone(client: str, server: str, name: str, **given: Any) -> dict[str, Any]:
    from labkit.measure.existing import clone  # the largest part, which drawings do not need

    with between(client, server, **given) as path:
        facts = clone.facts(path)
        _require(path)
        return clone.cloned(path.state, facts, path.gap, name)


def _require(path: ExistingNetwork) -> None:
    """Raise Failed if an end has ended, so that not all was read."""
    for name, process in path.processes.items():
        require(name, process)


# One entry for each question. Its answer is what the command of this name prints.
QUESTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {"check": _check, "draw": _draw, "clone": _clone}
