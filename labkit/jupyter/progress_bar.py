"""Show the progress of an experiment in a notebook: one output of the cell that is updated in place.

It shows what is measured, the time left, and the verdicts so far about the point that was measured last. Verdicts take
CPU time from the measurement, so they are made when a round has ended, beside the start of the next, and seldom.
"""

import html
import math
import re
import time
from collections.abc import Mapping
from typing import Any

import pandas as pd

from labkit.analysis import load, stats, verdicts
from labkit.common import pace, units
from labkit.common.printable import printable

SHOW_S = 0.5  # minimum time between two updates
VERDICT_SHARE = 0.01  # of one CPU's time: what the verdicts so far may take
PART = "cost"  # the part whose rows are compared
ROUND = re.compile(r"-r\d+$")  # at the end of a point's name


class NotebookBar:
    """Shows the events of one run. Its output appears with the first event."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = 0.0
        self._notes: list[str] = []
        self._what, self._left, self._share = "starting", "", 0.0
        self._rows: dict[str, list[dict[str, Any]]] = {}  # by point, of all rounds
        self._point = ""
        self._verdicts = ""
        self._next_verdicts = 0.0

    def see(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "progress":
                done_s, total_s, elapsed_s = event["done_s"], event["total_s"], event.get("elapsed_s", 0.0)
                left_s = (total_s - done_s) * pace.pace(done_s, elapsed_s)
                self._what, self._left = event["what"], f"about {units.duration(left_s)} left"
                self._share = min(1.0, done_s / total_s) if total_s else 0.0
                self._show()
            case "kept":
                self._add(event["rows"])
            case "rows":
                self._add(event["rows"])
                if time.monotonic() >= self._next_verdicts:
                    self._judge()
                self._show()
            case "log":
                self._notes.append(event["text"])
                self._show(now=True)
            case "finished":
                self._what = f"measured in {units.duration(event.get('elapsed_s', 0.0))}"
                self._left, self._share = "", 1.0
                self._judge()
                self._show(now=True)

    def end(self, text: str) -> None:
        """Show that the run ended early, with the reason."""
        self._what, self._left = text, ""
        self._show(now=True)

    def _add(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row.get("part") in (None, PART) and row.get("method") != load.PROFILE:
                self._point = ROUND.sub("", str(row.get("point")))
                known = {name: value for name, value in row.items() if value is not None}
                self._rows.setdefault(self._point, []).append(known)

    def _judge(self) -> None:
        """Make the verdicts about the point that was measured last, from all rows of this run."""
        begun_s = time.process_time()
        self._verdicts = verdict_text(self._rows.get(self._point, []))
        self._next_verdicts = time.monotonic() + (time.process_time() - begun_s) / VERDICT_SHARE

    def _lines(self) -> list[str]:
        lines = [", ".join(filter(None, (self._what, self._left)))]
        if self._verdicts:
            lines.append(f"Verdicts{' so far' if self._share < 1 else ''} {self._verdicts}")
        return [printable(line) for line in (*lines, *self._notes[-5:])]

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


def verdict_text(rows: list[dict[str, Any]]) -> str:
    """Return the verdicts about the load of the last of these rows that has a baseline; "" if there is none:
    `(tcp, 1 pair, MTU 1500): macvlan_bridge: faster, ratio 1.06 [1.03, 1.09] to veth_bridge`."""
    if not any(row.get("role") == "baseline" for row in rows):
        return ""
    try:
        table = load.complete(pd.DataFrame(rows))
        last = table.index[table["role"].eq("baseline")][-1]
        key, own = next((key, own) for key, own in load.groups(table) if last in own.index)
        lines = verdicts.verdicts(own).to_dict("records")
    except Exception:  # a bar must not end a run; the tables at the end say what cannot be compared
        return ""
    return f"({load.group_text(key)}): {'; '.join(map(_verdict_line, lines))}" if lines else ""


def _verdict_line(line: Mapping[Any, Any]) -> str:
    words = f"{line['topology']}: {line['word']}"
    if math.isnan(line["ratio"]):
        return words
    low, high = (None if math.isnan(line[end]) else line[end] for end in ("low", "high"))
    return f"{words}, {stats.ratio_text(line['ratio'], low, high)} to {line['baseline']}"
