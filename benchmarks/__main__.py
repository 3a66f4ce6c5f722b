"""`python -m benchmarks [NAMES…] [--quick] [--check]`: one line for each promise, and whether it is kept."""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.promise import NotMeasuredError, Promise, note, table

NAMES = (
    "set-up", "by-hand", "overhead", "imports", "half-width", "intervals", "gate", "control", "kill", "folding",
    "packets", "requests", "switch", "search", "monitor", "vm", "guest", "zoo",
)  # fmt: skip
TABLE: dict[str, Callable[..., Iterator[Promise]]] = {
    name: importlib.import_module(f"benchmarks.{name.replace('-', '_')}").promises for name in NAMES
}
# Benchmarks that can also evaluate a run that was measured before.
RUN_EVALUATIONS = ("intervals", "gate")


def measured(name: str, quick: bool, run: Path | None = None) -> Iterator[Promise]:
    """Return the lines of one benchmark, of a `run` that was measured before if there is one. If it fails, return a
    broken promise with the reason, so that the others continue."""
    try:
        yield from TABLE[name](quick) if run is None else TABLE[name](quick, run)
    except (NotMeasuredError, OSError) as error:
        yield Promise(name, "not measured", kept=False, more=str(error))


def main() -> int:
    """Run the requested benchmarks. Return 1 if a promise is broken and --check is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(TABLE)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: shorter, and less sure")
    text = f"evaluate this run instead of measuring: {', '.join(RUN_EVALUATIONS)}"
    parser.add_argument("--run", type=Path, metavar="FOLDER", help=text)
    parser.add_argument("--check", action="store_true", help="exit code 1 if a promise is broken")
    parameters = parser.parse_args()
    if unknown := [name for name in parameters.names if name not in TABLE]:
        parser.error(f"there is no benchmark {unknown[0]}; there are: {', '.join(TABLE)}")
    if parameters.run is not None and (unable := {*(parameters.names or TABLE)} - {*RUN_EVALUATIONS}):
        parser.error(f"--run is not for {min(unable)}; it is for: {', '.join(RUN_EVALUATIONS)}")
    begin, load = time.monotonic(), os.getloadavg()[0]
    names = parameters.names or TABLE
    result = [promise for name in names for promise in measured(name, parameters.quick, parameters.run)]
    print(table(result))
    broken = sum(promise.kept is False for promise in result)
    lines = f"{broken} broken" if broken else "every promise kept"
    note(f"{lines}; {time.monotonic() - begin:.0f} s; load {load:.1f} on {os.cpu_count()} CPUs when it began")
    return 1 if broken and parameters.check else 0


if __name__ == "__main__":
    sys.exit(main())
