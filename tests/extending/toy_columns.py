"""What the generator `refused` adds to rows: how much its times vary."""

from __future__ import annotations

from labkit.common.schema import Column

COLUMNS = (
    Column(
        name="refused_deviation_s",
        unit="s",
        type="number",
        meaning="the standard deviation of the times of refused attempts",
        writer="the generator refused",
        role="measures",
    ),
)
