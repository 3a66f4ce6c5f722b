"""Describe one point of a sweep as data for a worker. The only code in it is the notebook's own text."""

import functools
import hashlib
from pathlib import Path
from typing import Any

import msgspec

import labkit


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One point: the notebook's name and text, the point's name and parameters, the caller's labkit, and the percentile
    of latencies that its sweep chose."""

    labkit: str
    source: str
    notebook: str
    text: str
    point: str
    parameters: dict[str, Any]
    percentile: str | None = None


@functools.cache
def source_digest() -> str:
    """Return a digest of labkit's Python files, because two copies of one version may differ."""
    top = Path(labkit.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(top.rglob("*.py")):
        digest.update(f"{path.relative_to(top)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def other_labkit(request: Request) -> str | None:
    """Return an error message if the caller's labkit differs from this one, else None."""
    here, there = (labkit.__version__, source_digest()), (request.labkit, request.source)
    if here == there:
        return None
    return (
        f"the worker has labkit {here[0]} (source {here[1]}), the caller {there[0]} (source {there[1]}):"
        " install the same one on both, and start the worker again"
    )
