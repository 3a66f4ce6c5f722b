"""Measure the time until a guest first answers: boot a pair on a bridge, and print the seconds until a program has run
in the first.

The reference is how long one kernel takes here from QEMU's start to its own user space. `python -m benchmarks.guest
KERNEL` runs in its own namespaces, like an experiment.
"""

import json
import sys
import time
from collections.abc import Iterator

from benchmarks.promise import NotMeasuredError, Promise, at_most, inside, median, note
from benchmarks.vm import USER_SPACE_S, WHERE, user_space_s
from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.hosts import local
from labkit.system import process

PROMISED_S = 10.0


def promises(quick: bool) -> Iterator[Promise]:
    """Yield one line."""
    note("a guest: to its first answer")
    kernel, times = WHERE.removeprefix("vm:"), range(1 if quick else 3)
    try:
        with local.measuring_lock(note):
            reference_s = median(user_space_s() for _ in times)
    except LabkitError as error:
        raise NotMeasuredError(str(error)) from None
    answer_s = median(inside("benchmarks.guest", kernel) for _ in times)
    bound, what = PROMISED_S / USER_SPACE_S, f"a kernel's boot until its user space ({WHERE})"
    more = f"promised: {PROMISED_S:g} s, where a kernel boots in {USER_SPACE_S:g} s; two guests boot at once"
    yield at_most("first command answered by a guest", answer_s, reference_s, what, bound, more)


def main(kernel: str) -> None:
    """Boot a pair of guests and run a program in the first."""
    begun = time.monotonic()
    with topologies.build("veth_bridge", topologies.Spec(endpoint="guest", guest=kernel)) as topology:
        process.output([*topology.pairs[0].client.prefix, "true"])
        print(json.dumps(time.monotonic() - begun))


if __name__ == "__main__":
    main(sys.argv[1])
