"""The rate of this machine's time stamp counter, to pass to emulated guests.

An emulated guest has the same rate. A guest kernel that measured it on a busy machine could be wrong: with 5 GHz
instead of 2.6 GHz, its clock runs at half speed.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from pathlib import Path

# rdtsc; shl rdx, 32; or rax, rdx; ret (Intel SDM, volume 2)
_READ = bytes.fromhex("0f3148c1e2204809d0c3")
MEASURE_S = 0.05


def tsc_khz() -> int | None:
    """Return the ticks per millisecond, exact to a few millionths; None if the counter is not a clock or cannot be
    read."""
    if platform.machine() != "x86_64" or "constant_tsc" not in Path("/proc/cpuinfo").read_text():
        return None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None  # forbidden here
    page.write(_READ)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    begin = _at_once(read)
    time.sleep(MEASURE_S)
    end = _at_once(read)
    return round((end[1] - begin[1]) * 1e6 / (end[0] - begin[0]))


def _at_once(read: ctypes._CFunctionType) -> tuple[int, int]:
    """Return the time in nanoseconds and the ticks at that time: the tightest of 20 readings."""
    result = []
    for _ in range(20):
        before, ticks, after = time.monotonic_ns(), read(), time.monotonic_ns()
        result.append((after - before, (before + after) // 2, ticks))
    _width, at, ticks = min(result)
    return at, ticks
