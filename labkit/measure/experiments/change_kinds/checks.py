"""Checks that kinds of change share: of their options, and of what the kernel and its programs answer."""

import errno
import hashlib
from collections.abc import Sequence
from typing import Any

from labkit.common.errors import BadInput, Failed, LabkitError, Unsupported
from labkit.system import process

FORBIDDEN = ("operation not permitted", "permission denied")
LACKING = (
    "operation not supported",
    "protocol not supported",
    "not supported by device",
    "unknown qdisc",
    "unknown filter",
    "kind is unknown",
    "no such device or address",
)


def output_or_raise(ended: process.Ended, what: str, lacking: Sequence[str] = ()) -> str:
    """Return the output of a program. Raises Unsupported if its message says that the kernel lacks something, else
    Failed."""
    if ended.returncode == 0:
        return ended.stdout
    text = ended.message()
    if any(one in text.lower() for one in FORBIDDEN):
        raise Unsupported(f"{what} needs root, also outside of a user namespace ({text})")
    if any(one in text.lower() for one in (*LACKING, *lacking)):
        raise Unsupported(f"this kernel or interface lacks {what} ({text})")
    raise Failed(f"{what} was refused: {text}")


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def refused(error: OSError, what: str) -> LabkitError:
    """Return the error to raise when the kernel refuses to write a setting."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return Unsupported(f"{what} needs root, also outside of a user namespace ({error.strerror})")
    return Failed(f"the kernel refuses {what} ({error.strerror})")


def values_by_name(kind: str, text: str) -> dict[str, Any]:
    """Parse `gro off tso off` into a mapping. Raises BadInput."""
    words = text.split()
    if not words or len(words) % 2:
        raise BadInput(f"{kind} {text!r}: write names, each followed by its value")
    return dict(zip(words[::2], words[1::2], strict=True))
