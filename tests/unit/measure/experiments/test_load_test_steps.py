"""A load test with TRex whose labkit is killed in the middle: its finished steps stay as rows."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.measure.experiments import survey
from labkit.measure.experiments.context import Event, RunContext
from labkit.measure.experiments.measuring_loop import Plan, Running
from labkit.measure.experiments.rows import Arm
from labkit.measure.experiments.throughput_search import experiment as search
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.traffic.trex.client import Client, Server
from labkit.measure.traffic.trex.readings import Direction
from studies.load_test import devices, experiment
from studies.load_test.parameters import LoadTestParameters

LOSES_ABOVE_PPS = 25e3


def trial(rate_pps: float, duration_s: float) -> tuple[list[Direction], dict[str, Any]]:
    """Return what a device does that loses a tenth above a rate, and one frame below, which ends no test."""
    sent = round(rate_pps * duration_s)
    received = sent - 1 if rate_pps <= LOSES_ABOVE_PPS else sent * 9 // 10
    direction = Direction(
        source=0, target=1, sent_count=sent, received_count=received, ring_drops_count=0, refused_count=0,
        received_bytes=64 * received, sent_pps=rate_pps, received_pps=received / duration_s,
        window_s=duration_s,
    )  # fmt: skip
    return [direction], {}


def test_each_step_is_sent_as_soon_as_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = cast(
        Client, SimpleNamespace(load=lambda *_, **__: 64.0, trial=trial, ports=(0, 1), senders=(0,))
    )
    ports = devices.TrexPorts(client, "host", Server("v3.08", (1e9,), on_kernel=False), None)
    made = ports, lambda one: (devices.OUTSIDE, one)
    monkeypatch.setattr(devices, "trex_ports", lambda *_: nullcontext(made))
    sent: list[Event] = []
    parameters = LoadTestParameters.of(
        {"server": "host", "profile": "64b", "target": "50kpps", "directions": "one", "latency": "false"}
    )
    run_context = RunContext("load_test", tmp_path, 1, {}, send=sent.append)
    events = list(experiment.EXPERIMENT.run(parameters, run_context))
    [finished] = [event["rows"] for event in events if event["event"] == "rows"]
    result, *steps = finished
    assert "the device lost 10 %" in result["ended"]
    assert {event["point"] for event in sent} == {"64b-r0"}
    kept = [row for event in sent for row in event["rows"]]
    of = lambda rows: [(row["phase"], row["direction"], row["sent_count"], row["status"]) for row in rows]  # noqa: E731
    assert of(kept) == of(steps)
    assert len(sent) == len(steps) > 4  # each step has a row for both directions together and one for each
    assert events[-1] == {"event": "stopped", "pairs": 1, "why": result["ended"]}


def test_each_load_test_is_of_its_own_arm_also_of_a_changed_one() -> None:
    """The loop puts what points share into a set, and a change is no key of a set."""
    given = {"topology": "veth_bridge", "change": "mtu: mtu 1400 at between:port0", "rounds": "2"}
    plan = experiment.plan(LoadTestParameters.of(given), 1)
    usable = survey.planned_arms(plan.parameters)
    points = plan.points_of(usable)
    assert len(points) > 1
    assert len({one.series for one in points}) == len(points)
    assert all(len(one.measured_arms(usable)) == 1 for one in points)


def test_machine_sysctl_holds_in_searches_and_load_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, seen = list[bool](), list[bool]()

    @contextmanager
    def holding() -> Iterator[None]:
        held.append(True)
        yield
        held.clear()

    arm = Arm("veth", "baseline")
    built: Any = SimpleNamespace(arm=arm, while_measured=holding)
    monkeypatch.setattr(survey, "built", lambda *_: nullcontext(([built], [])))
    monkeypatch.setattr(search, "search", lambda *_: seen.append(bool(held)))
    parameters, run_context = Throughput.of({"rounds": 1}), RunContext("throughput", tmp_path, 1, {})
    [point] = search.points(parameters, 1)
    assert len(list(point.measure(Running(Plan(parameters, [], ""), run_context, [arm], [])))) == 2
    with devices.built(LoadTestParameters.of({}), run_context, arm):
        seen.append(bool(held))
    assert (seen, held) == ([True, True], [])
