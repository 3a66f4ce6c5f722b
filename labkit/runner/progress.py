"""Show a progress bar on standard error with the current measurement and the time left."""

import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from labkit.common import pace, units
from labkit.common.printable import printable

SMOOTH_S = 20.0  # about the time in which a new estimate replaces the old one
LINE_INTERVAL_S = 10.0  # seconds between two lines if standard error is not a terminal


class Bar:
    """Shows the events of one run or of several runs in a row.

    A sweep adds the planned seconds of runs before and after to `done_s` and `total_s`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._console = Console(stderr=True)
        self._live = self._console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, left="")
        self._printed_s = -LINE_INTERVAL_S
        # For the runs before this one: the planned seconds that are done, and the actual seconds.
        self._finished = (0.0, 0.0)
        self._run = (0.0, 0.0, 0.0)  # for this run: before_s, planned seconds done, actual seconds
        self._left: tuple[float, float] | None = None  # the displayed value, and when it was displayed
        self.before_s = 0.0  # planned seconds of finished points of a sweep
        self.after_s = 0.0  # planned seconds of the points still to come
        self.pace = 1.0  # actual seconds per planned second, over all runs so far

    def see(self, event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            self._show(event["what"], event["done_s"], event["total_s"], event.get("elapsed_s", 0.0))
        elif event["event"] == "log":
            self.say(event["text"])
        elif event["event"] == "finished":
            self.stop()

    def say(self, text: str) -> None:
        """Print a permanent line."""
        line = f"labkit: {printable(text)}"
        if self._live:
            self._console.print(line, highlight=False, markup=False, emoji=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def doing(self, what: str) -> None:
        """Show what happens while nothing is measured."""
        if self._live:
            self._progress.start()
            self._progress.update(self._task, description=printable(what), left="")
        else:
            self.say(what)

    def stop(self) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def _show(self, what: str, done_s: float, total_s: float, elapsed_s: float) -> None:
        left = f"about {units.duration(self.left_s(done_s, total_s, elapsed_s))} left"
        if self._live:
            self._progress.start()
            self._progress.update(
                self._task,
                description=printable(what),
                completed=self.before_s + done_s,
                total=self.before_s + total_s + self.after_s,
                left=left,
            )
        elif self._clock() - self._printed_s > LINE_INTERVAL_S:
            self._printed_s = self._clock()
            self.say(f"{what}, {left}")

    def left_s(self, done_s: float, total_s: float, elapsed_s: float) -> float:
        """Estimate the seconds left after `done_s` of this run's `total_s` planned seconds took `elapsed_s`.

        The pace is that of all runs, so a new point of a sweep does not restart from the plan. The displayed value runs
        down like a clock, and a new estimate corrects it within about SMOOTH_S.
        """
        if self.before_s != self._run[0] or elapsed_s < self._run[2]:
            self._finished = (self._finished[0] + self._run[1], self._finished[1] + self._run[2])
        self._run = (self.before_s, done_s, elapsed_s)
        spent_s = self._finished[1] + elapsed_s
        self.pace = pace.pace(self._finished[0] + done_s, spent_s)
        estimate_s = (total_s - done_s + self.after_s) * self.pace
        now = self._clock()
        if self._left is not None:
            shown_s, since = self._left
            passed_s = now - since
            expected_s = max(0.0, shown_s - passed_s)
            estimate_s = expected_s + (estimate_s - expected_s) * passed_s / (passed_s + SMOOTH_S)
        self._left = (estimate_s, now)
        return estimate_s
