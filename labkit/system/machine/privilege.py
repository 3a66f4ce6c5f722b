"""What this process may do to the machine."""

from __future__ import annotations

import os
from pathlib import Path

UID_MAP = Path("/proc/self/uid_map")


def is_root() -> bool:
    """Whether our uid 0 is the machine's: in a user namespace everybody can have one (user_namespaces(7))."""
    return os.geteuid() == 0 and UID_MAP.read_text().split() == ["0", "0", "4294967295"]
