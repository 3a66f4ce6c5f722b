"""The privileges of this process."""

from __future__ import annotations

import os
from pathlib import Path

UID_MAP = Path("/proc/self/uid_map")


def is_root() -> bool:
    """Return whether uid 0 is the machine's root, and not that of a user namespace (user_namespaces(7))."""
    return os.geteuid() == 0 and UID_MAP.read_text().split() == ["0", "0", "4294967295"]
