"""Folders in memory, mounted in the experiment's own mount namespace, so that the kernel collects them: the run's where
the caller's cannot be seen, of which what is written goes back as events, and one for what nobody keeps."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit import process, records
from labkit.errors import LabkitError

LARGEST_BYTES = 64 << 20
SHARED_MEMORY = Path("/dev/shm")  # every Linux has it to mount on, and nothing of ours uses it
KEPT = ("environment.json", "artefacts")  # what goes back; rows are events already


@functools.cache
def in_memory() -> Path | None:
    """A folder that goes with this process, PID 1 of its namespaces, however it ends; None where none can be made."""
    try:
        process.output(["mount", "-t", "tmpfs", "-o", "mode=1777", "labkit", str(SHARED_MEMORY)])
    except LabkitError:
        return None
    return SHARED_MEMORY


def prepare(folder: Path, finished: Mapping[str, str]) -> None:
    """Make the folder; `finished` are the rows of points that were measured before, as their files have them."""
    process.output(["mount", "-t", "tmpfs", "-o", "mode=700", "labkit", str(folder.parent)])
    for point, lines in finished.items():
        records.write(folder / "rows" / f"{point}.jsonl", lines.encode())


def returned(events: Iterator[dict[str, Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """The events; in front of each that brings rows, and at the end, what was written into the folder since."""
    try:
        for event in events:
            if event["event"] == "rows":
                yield from _files(folder)
            yield event
    except LabkitError:
        yield from _files(folder)
        raise
    yield from _files(folder)


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(path for kept in KEPT for path in (folder / kept, *(folder / kept).rglob("*"))):
        if not path.is_file() or path.name.startswith("."):
            continue
        name, size = path.relative_to(folder).as_posix(), path.stat().st_size
        if size <= LARGEST_BYTES:
            yield {"event": "file", "path": name, "content": path.read_bytes()}
        else:
            text = (
                f"{name} has {size >> 20} MiB and is not brought back: {LARGEST_BYTES >> 20} MiB is the most"
            )
            yield {"event": "log", "text": text}
        path.unlink()
