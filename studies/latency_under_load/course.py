"""The course of one measurement: what arrived at both ends in each interval, and every probe, on one time axis.

It is a file beside the rows, whose column `artefact` names it. Its times are in seconds since the load began.
"""

from pathlib import Path
from typing import Any

import msgspec

from labkit.common import run_folder, safe_files
from labkit.common.errors import BadInput
from labkit.common.schema import LATENCIES, Column

PHASES = {"idle": "before the load", "loaded": "under load", "after": "after the load"}
COLUMNS = tuple(
    Column(f"{phase}_{name}_s", "s", "number", f"the {words} {how}", "load", "measures")
    for phase, how in (PHASES | {"increase": "during the load, minus that before it"}).items()
    for name, (_share, words) in LATENCIES.items()
    if phase != "loaded"  # those have the columns of all round trips
)


class Interval(msgspec.Struct, frozen=True):
    """The rates at which the interfaces of all servers (forward) and of all clients (reverse) received until `time_s`.

    They include headers.
    """

    time_s: float
    forward_bps: float
    reverse_bps: float


class Course(msgspec.Struct, frozen=True):
    """A measurement over time.

    `probes`: when each was sent, and its round-trip time; None: no answer came. `phases`: begin and end of each of
    PHASES, in which round-trip times count.
    """

    intervals: list[Interval]
    probes: list[tuple[float, float | None]]
    phases: dict[str, tuple[float, float]]


def read(folder: str | Path, artefact: Any) -> Course:
    """Read the course that a row names. Raises BadInput for a file that is missing, or is none."""
    path = run_folder.artefact(folder, artefact)
    try:
        return msgspec.json.decode(safe_files.read_regular(path), type=Course)
    except msgspec.DecodeError as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
