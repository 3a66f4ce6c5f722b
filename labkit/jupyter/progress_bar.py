"""Show the progress of an experiment in a notebook: one output of the cell that is updated in place.

It shows what is measured, the time left, and the ratios of the medians so far. Medians cost almost no CPU time.
Verdicts would take CPU time from the measurement, so they come at the end.
"""

from __future__ import annotations

import html
import statistics
import time
from collections.abc import Mapping
from typing import Any

from labkit.analysis import load
from labkit.common import pace, units
from labkit.common.printable import printable

SHOW_S = 0.5  # minimum time between two updates
PART = "cost"  # the part whose rows are compared


class NotebookBar:
    """Shows the events of one run. Its output appears with the first event."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = 0.0
        self._notes: list[str] = []
        self._what, self._left, self._share = "starting", "", 0.0
        self._values: dict[tuple[Any, ...], dict[str, list[float]]] = {}
        self._roles: dict[str, str] = {}
        self._point: tuple[Any, ...] | None = None

    def see(self, event: Mapping[str, Any]) -> None:
        """Show an event."""
        match event["event"]:
            case "progress":
                done_s, total_s, elapsed_s = event["done_s"], event["total_s"], event.get("elapsed_s", 0.0)
                left_s = (total_s - done_s) * pace.pace(done_s, elapsed_s)
                self._what, self._left = event["what"], f"about {units.duration(left_s)} left"
                self._share = min(1.0, done_s / total_s) if total_s else 0.0
                self._show()
            case "rows":
                self._add(event["rows"])
                self._show()
            case "log":
                self._notes.append(event["text"])
                self._show(now=True)
            case "finished":
                self._what = f"measured in {units.duration(event.get('elapsed_s', 0.0))}"
                self._left, self._share = "", 1.0
                self._show(now=True)

    def end(self, text: str) -> None:
        """Show that the run ended early, with the reason."""
        self._what, self._left = text, ""
        self._show(now=True)

    def _add(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            metric = (
                load.METRIC[row["protocol"]][0] if row.get("protocol") in load.METRIC else "throughput_bps"
            )
            value = row.get(metric)
            is_compared = row.get("part") in (None, PART) and row.get("method") != load.PROFILE
            if row.get("status") != "ok" or not is_compared or not value:
                continue
            self._point = tuple(row.get(name) for name in load.GROUP)
            self._roles.setdefault(str(row["arm"]), str(row.get("role")))
            self._values.setdefault(self._point, {}).setdefault(str(row["arm"]), []).append(float(value))

    def ratios(self) -> list[str]:
        """Return the ratio of each arm's median to the baseline's in words, for the point that was measured last."""
        arms = self._values.get(self._point, {}) if self._point else {}
        base = next((name for name in arms if self._roles[name] == "baseline"), None)
        if base is None:
            return []
        middle = statistics.median(arms[base])
        return [
            f"{name}: {statistics.median(values) / middle:.3g} times {base}"
            f" ({units.counted(len(values), 'measurement')})"
            for name, values in arms.items()
            if name != base
        ]

    def _lines(self) -> list[str]:
        first = ", ".join(filter(None, (self._what, self._left)))
        ratios = self.ratios()
        at = load.group_text(self._point) if self._point else ""
        head = (
            f"Medians so far ({at}), no verdict yet"
            if self._share < 1
            else f"Medians ({at}), without intervals"
        )
        so_far = [f"{head}: {'; '.join(ratios)}"] if ratios else []
        return [printable(line) for line in (first, *so_far, *self._notes[-5:])]

    def _bundle(self) -> dict[str, str]:
        first, *more = map(html.escape, self._lines())
        bar = f'<progress value="{self._share:.4f}" max="1" style="width: 40%"></progress> '
        body = f"<div>{bar}{first}</div>" + "".join(f"<div><small>{line}</small></div>" for line in more)
        done = round(20 * self._share)
        plain = "\n".join([f"[{'#' * done}{'.' * (20 - done)}] {self._lines()[0]}", *self._lines()[1:]])
        return {"text/html": body, "text/plain": plain}

    def _show(self, now: bool = False) -> None:
        if not now and time.monotonic() - self._shown < SHOW_S:
            return
        self._shown = time.monotonic()
        if self._handle is None:
            from IPython.display import display

            self._handle = display(self._bundle(), raw=True, display_id=True)
        else:
            self._handle.update(self._bundle(), raw=True)
