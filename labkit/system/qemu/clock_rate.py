"""How fast this machine's time stamp counter runs: an emulated guest's runs alike, and its kernel should not have to
find out while other programs take its CPU away. One that found 5 GHz instead of 2.6 counts two seconds for each.
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
    """Ticks in a millisecond, to a few millionths; None where the counter is no clock or cannot be read."""
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
    """The time in nanoseconds and the ticks: of a few readings the one between whose sides the least time passed."""
    result = []
    for _ in range(20):
        before, ticks, after = time.monotonic_ns(), read(), time.monotonic_ns()
        result.append((after - before, (before + after) // 2, ticks))
    _width, at, ticks = min(result)
    return at, ticks
