"""The loop that every experiment shares: what it leaves out, keeps open, and says at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from labkit.common import run_folder
from labkit.measure.experiments import RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.measuring_loop import Plan, Point, Running, Stages, run
from labkit.measure.experiments.rows import Arm

ARM = Arm("veth", "baseline")


@dataclass(frozen=True)
class Toy(Point):
    """A point that needs the thing `thing`, and fails with it if the thing is broken."""

    thing: str = "good"
    log: ClassVar[list[str]] = []

    @property
    def series(self) -> str:
        return self.thing

    def planned_s(self, usable: list[Arm]) -> float:
        return 2.0

    @contextmanager
    def _made(self) -> Iterator[str]:
        self.log.append(f"open {self.thing}")
        yield self.thing
        self.log.append(f"close {self.thing}")

    def measure(self, running: Running) -> Stages:
        thing = running.opened(self.thing, self._made)
        yield f"{self.name} with {thing}", 1.0
        status = "failed" if thing == "broken" else "ok"
        running.record(self, running.plan.parameters, (ARM, {"status": status, "method": "toy"}))
        if thing == "broken":
            running.stop(self, "it is broken")


def measured(folder: Path, points: list[Point], **more: Any) -> list[dict[str, Any]]:
    """Return the events of these points; their rows are then in the folder."""
    Toy.log.clear()
    events = []
    plan = Plan(DatapathParameters(), points, "all is done", arms=[ARM], **more)
    for event in run(plan, RunContext("toy", folder, 1, {}), {}):
        if event["event"] == "rows":
            run_folder.write_rows(folder, event["point"], event["rows"])
        events.append(event)
    return events


def test_a_resumed_run_measures_what_is_left(tmp_path: Path) -> None:
    points: list[Point] = [Toy(f"1-r{number}", 1, number) for number in range(3)]
    measured(tmp_path, points[:2])
    events = measured(tmp_path, points)
    assert [event.get("point") or event.get("what") for event in events] == [
        "1-r2 with good", "1-r2", None
    ]  # fmt: skip
    assert (events[0]["done_s"], events[0]["total_s"]) == (0.0, 2.0)
    assert events[-1] == {"event": "stopped", "pairs": 1, "why": "all is done"}


def test_what_points_share_is_opened_once_and_left_out_when_it_fails(tmp_path: Path) -> None:
    things = ("good", "good", "broken", "broken", "good")
    events = measured(tmp_path, [Toy(f"1-r{number}", 1, number, one) for number, one in enumerate(things)])
    assert Toy.log == [
        "open good", "close good", "open broken", "close broken", "open good", "close good"
    ]  # fmt: skip
    done = [event["point"] for event in events if event["event"] == "rows"]
    assert done == ["1-r0", "1-r1", "1-r2", "1-r4"]
    assert [event["done_s"] for event in events if event["event"] == "progress"] == [0.0, 2.0, 4.0, 8.0]
    assert events[-1]["why"] == "it is broken"


def test_columns_of_every_row(tmp_path: Path) -> None:
    [_, event, _] = measured(tmp_path, [Toy("1-r0", 1, 0)], columns={"part": "cost"})
    [row] = event["rows"]
    assert (row["part"], row["point"], row["round"], row["arm"]) == ("cost", "1-r0", 0, "veth")
