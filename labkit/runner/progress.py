"""A progress bar on standard error that says what is being measured and how long is left."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from labkit.common import pace, units
from labkit.common.printable import printable

QUIET_S = 10.0  # between two lines where standard error is no terminal


class Bar:
    """Sees the events of one run or of several in a row; `done_s` and `total_s` of what came before and comes
    after are added by a sweep."""

    def __init__(self) -> None:
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
        self._said = 0.0
        self.before_s = 0.0  # planned seconds of finished points of a sweep
        self.after_s = 0.0  # and of those still to come
        self.pace = 1.0  # seconds per planned second

    def see(self, event: dict[str, Any]) -> None:
        """Show an event."""
        if event["event"] == "progress":
            self._show(event["what"], event["done_s"], event["total_s"], event.get("elapsed_s", 0.0))
        elif event["event"] == "log":
            self.say(event["text"])
        elif event["event"] == "finished":
            self.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        line = f"labkit: {printable(text)}"
        if self._live:
            self._console.print(line, highlight=False, markup=False, emoji=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Take the bar away."""
        if self._progress.live.is_started:
            self._progress.stop()

    def _show(self, what: str, done_s: float, total_s: float, elapsed_s: float) -> None:
        self.pace = pace.pace(done_s, elapsed_s)
        left_s = (total_s - done_s + self.after_s) * self.pace
        left = f"about {units.duration(left_s)} left"
        if self._live:
            self._progress.start()
            self._progress.update(
                self._task,
                description=printable(what),
                completed=self.before_s + done_s,
                total=self.before_s + total_s + self.after_s,
                left=left,
            )
        elif time.monotonic() - self._said > QUIET_S:
            self._said = time.monotonic()
            self.say(f"{what}, {left}")
