"""The parameters of a monitor as texts, from a command line or from a page.

`LiveTopology.monitor` takes them with their types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.common.errors import BadInput

TEXTS = ("source", "destination", "port", "protocol", "inside", "expression", "sample", "display", "fields")
NUMBERS = ("vlan", "keep_count", "snap_bytes")


def typed(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the monitor's parameters among name=value texts, with numbers converted.

    Raises BadInput for an invalid number.
    """
    result: dict[str, Any] = {name: given[name] for name in TEXTS if name in given}
    for name in NUMBERS:
        if name in given:
            try:
                result[name] = int(given[name])
            except ValueError:
                raise BadInput(f"{name}={given[name][:80]!r} is not a number: write {name}=N") from None
    return result
