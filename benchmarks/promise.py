"""A promise, the table of promises, and helpers that the benchmarks share."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.measure.hosts import local

ROOT = Path(__file__).resolve().parents[1]
LABKIT = [sys.executable, "-P", "-m", "labkit.cli"]


class NotMeasuredError(Exception):
    """A benchmark has no result; the text says why."""


@dataclass(frozen=True)
class Promise:
    """One line of the table: the promise, the measured value, and the reference from the same run.

    `ratio` is measured divided by reference. `kept` is None for a line that is for information only. `more` goes below
    the line.
    """

    what: str
    measured: str
    reference: str = ""
    ratio: float | None = None
    bound: str = ""
    kept: bool | None = None
    more: str = ""


HEAD = ("promise", "measured", "reference in the same run", "ratio", "bound", "")
KEPT = {True: "kept", False: "BROKEN", None: "(information)"}


def at_most(
    what: str, own: float, other: float, name: str, bound: float, more: str = "", form: str = "{:.3f} s"
) -> Promise:
    """Return the promise that something takes at most `bound` times as much, by default of time, as its reference.

    Absolute numbers never decide, because they depend on the machine. If some were promised, `more` has them.
    """
    shown = form.format(own), f"{name}: {form.format(other)}"
    return Promise(what, *shown, own / other, f"<= {bound:g}", own / other <= bound, more)


def cells(promise: Promise) -> tuple[str, ...]:
    """Return one line of the table."""
    ratio = "" if promise.ratio is None else f"{promise.ratio:.3f}"
    return (promise.what, promise.measured, promise.reference, ratio, promise.bound, KEPT[promise.kept])


def table(promises: Sequence[Promise]) -> str:
    """Return all lines, in columns."""
    lines = [HEAD, *map(cells, promises)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEAD))]
    shown = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    below = [f"\n    {promise.more}" if promise.more else "" for promise in promises]
    shown[1:] = map(str.__add__, shown[1:], below)
    return "\n".join([shown[0], "  ".join("-" * width for width in widths), *shown[1:]])


def median(values: Iterable[float]) -> float:
    """Return the median. It stays stable if fewer than half of a benchmark's repetitions are disturbed."""
    return statistics.median(values)


def python(*words: str) -> list[str]:
    """Return the command of this Python with the benchmarks, but not the current folder, on its path.

    It writes its compiled files, whatever the environment says: installed packages have theirs, and a time that
    includes compiling labkit's modules compares something else.
    """
    return ["env", "-u", "PYTHONDONTWRITEBYTECODE", f"PYTHONPATH={ROOT}", sys.executable, "-P", *words]


def inside(module: str, *arguments: object) -> Any:
    """Return the JSON that `python -m module arguments` prints as PID 1 of its own namespaces, like an experiment.

    It holds the machine's measuring lock, which labkit's own measuring commands take themselves.
    """
    argv = [*local.prefix(), *python("-m", module, *map(str, arguments))]
    with local.measuring_lock(note):
        return json.loads(output(argv))


def output(argv: Sequence[str], cwd: Path = ROOT, **environment: str) -> str:
    """Start a program in `cwd` and return its standard output. Raises NotMeasuredError with its last message if it
    fails."""
    whole = {**os.environ, **environment}
    done = subprocess.run(argv, cwd=cwd, env=whole, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "".join(done.stderr.strip().splitlines()[-1:])
        raise NotMeasuredError(f"{' '.join(map(str, argv))} ended with {done.returncode}: {last}")
    return done.stdout


def note(text: str) -> None:
    """Print a progress message on standard error."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
