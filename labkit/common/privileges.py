"""What this process may do to the machine, and not only in a user namespace (user_namespaces(7))."""

import os
import re
from pathlib import Path

UID_MAP = Path("/proc/self/uid_map")
CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_BPF = 12, 21, 39  # linux/capability.h


def is_root() -> bool:
    """Return whether uid 0 is the machine's root, and not that of a user namespace."""
    return os.geteuid() == 0 and _are_all_users_mapped()


def is_capable(number: int) -> bool:
    """Return whether this process has the capability over the machine (capabilities(7))."""
    return _are_all_users_mapped() and is_effective(number)


def is_effective(number: int) -> bool:
    """Return whether this process has the capability in its own user namespace."""
    effective = re.search(r"^CapEff:\s+(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return effective is not None and bool(int(effective[1], 16) >> number & 1)


def _are_all_users_mapped() -> bool:
    return UID_MAP.read_text().split() == ["0", "0", "4294967295"]
