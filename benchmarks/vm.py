"""Measure the time from the command to the first row of a lab VM, and the overhead of each further row.

The reference of the first row is how long this kernel takes here from QEMU's start to its own user space. That of a
further row is the second that it measures. `more` has the seconds promised for the reference machine.
"""

import itertools
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.promise import LABKIT, ROOT, NotMeasuredError, Promise, at_most, median, note
from labkit.common.errors import LabkitError
from labkit.measure.hosts import local, vm
from labkit.system.qemu import kernels, vm_spec

WHERE = "vm:debian"
FIRST_S, USER_SPACE_S = 15.0, 2.5  # promise; value on the reference machine
# Beside each row of one second, 0.19 and 0.20 s passed in an emulated lab VM on the reference machine at a load of 1.4
# (23 November 2026), and 0.76 s on another day, before each client was started without a second program (nsenter).
# Of the time beside twelve rows on a busy machine, 69 % were iperf3's own: starting, its handshake, its report.
FURTHER_S = 0.5  # promise
MEASURED_S = 1


def promises(quick: bool) -> Iterator[Promise]:
    """Yield two lines."""
    note("a lab VM: to its user space, to the first row, and on")
    try:
        with local.measuring_lock(note):
            boot_s = median(user_space_s() for _ in range(1 if quick else 3))
    except LabkitError as error:
        raise NotMeasuredError(str(error)) from None
    times = _rows_s(4 if quick else 11)
    further = [later - earlier for earlier, later in itertools.pairwise(times)]
    what = f"a kernel's boot until its user space ({WHERE})"
    bound = FIRST_S / USER_SPACE_S
    more = f"promised: {FIRST_S:g} s, where a kernel boots in {USER_SPACE_S:g} s"
    yield at_most("first row of one second in a lab VM", times[0], boot_s, what, bound, more)
    bound = (MEASURED_S + FURTHER_S) / MEASURED_S
    yield at_most("each further row", median(further), MEASURED_S, "what it measures", bound)


def user_space_s() -> float:
    """Return the seconds from QEMU's start to the first output of the initramfs."""
    parameters = vm_spec.parse(WHERE)
    kernel = kernels.find(parameters.kernel)
    begun = time.monotonic()
    with vm.started(WHERE, parameters, kernel, None, None, False) as guest:
        deadline = begun + vm.BOOT_S
        while not guest.in_user_space():
            if time.monotonic() > deadline:
                raise NotMeasuredError(f"{kernel.release} did not boot: {guest.scratch}")
            time.sleep(0.01)
        return time.monotonic() - begun


def _rows_s(count: int) -> list[float]:
    """Return the time of each row, in seconds after the command."""
    words = ["topology=veth", f"duration_s={MEASURED_S}", "omit_s=0", f"rounds={count}", f"where={WHERE}"]
    begun, times = time.monotonic(), []
    with tempfile.TemporaryDirectory() as scratch:
        argv = [*LABKIT, "run", "datapaths", *words, "--json", f"--folder={Path(scratch, 'run')}"]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            times = [time.monotonic() - begun for _ in process.stdout]
    if len(times) < count:
        raise NotMeasuredError(f"{' '.join(argv)} gave {len(times)} of {count} rows")
    return times
