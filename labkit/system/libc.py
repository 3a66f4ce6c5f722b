"""Functions of the C library that Python 3.11 lacks."""

import ctypes
import os
from typing import Any

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x20000000, 0x40000000  # linux/sched.h
MS_REC, MS_PRIVATE = 0x4000, 1 << 18  # linux/mount.h
_libc = ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments: Any) -> int:
    """Call a function, and return its result. Raises OSError."""
    result = int(getattr(_libc, function)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: " * (function != "syscall") + os.strerror(number))
    return result
