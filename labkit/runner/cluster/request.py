"""What travels to a worker: one point of a sweep as data. Nothing of it is ever code but the notebook's own text."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import msgspec

import labkit


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One point: the notebook's name and text, the point's name and parameters, and the labkit that asks."""

    labkit: str
    source: str
    notebook: str
    text: str
    point: str
    parameters: dict[str, Any]


@functools.cache
def source_digest() -> str:
    """A digest of labkit's own Python files: two labkits of one version may still be different ones."""
    top = Path(labkit.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(top.rglob("*.py")):
        digest.update(f"{path.relative_to(top)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def other_labkit(parameters: Request) -> str | None:
    """What is to be said when the labkit that asks is not this one; None when it is."""
    here, there = (labkit.__version__, source_digest()), (parameters.labkit, parameters.source)
    if here == there:
        return None
    return (
        f"labkit is {here[0]} (source {here[1]}) there and {there[0]} (source {there[1]}) here:"
        " install the same one on both, and start the worker again"
    )
