"""TRex load tests: invalid parameters are rejected before any connection, and the steps are right as planned and when
they have ended."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.common.errors import BadInput
from labkit.measure.experiments import survey
from labkit.measure.experiments.context import Event, RunContext
from labkit.measure.experiments.measuring_loop import Plan, Running
from labkit.measure.experiments.rows import Arm
from labkit.measure.experiments.throughput_search import experiment as search
from labkit.measure.experiments.throughput_search.parameters import Throughput
from labkit.measure.traffic.trex.client import Client, Server
from labkit.measure.traffic.trex.readings import Direction
from labkit.measure.traffic.trex.streams import PROBES_PPS
from studies.load_test import devices, experiment
from studies.load_test.parameters import LoadTestParameters, Stateful
from studies.load_test.sides import Sides

TREX = {"generator": "trex"}
KINDS = pytest.mark.parametrize(
    ("kind", "given"), [(LoadTestParameters, TREX), (Stateful, {}), (Throughput, TREX)]
)


def sides(frame_bytes: float) -> Sides:
    made = SimpleNamespace(frame_bytes=frame_bytes, line_bps=10e9, on_kernel=False, senders_count=2)
    return cast(Sides, made)


@pytest.mark.parametrize("at", ["client", "both", "client0:eth0"])
@KINDS
def test_change_at_an_end_would_be_lost(
    kind: type[LoadTestParameters | Stateful | Throughput], given: dict[str, str], at: str
) -> None:
    """TRex takes the interfaces of the ends into another namespace, where they lose their qdiscs."""
    with pytest.raises(BadInput, match=r"change slow: .*write `at between:port0`"):
        kind.of({**given, "change": f"slow: qdisc fq_codel at between and qdisc fq_codel at {at}"})
    assert kind.of({**given, "change": "slow: qdisc fq_codel at between:port0"}).change
    assert Throughput.of({"change": f"slow: offload gro off at {at}"}).change


@KINDS
@pytest.mark.parametrize("case", ["net_to_vm", "vm_to_vm"])
def test_use_cases_share_their_ends(
    kind: type[LoadTestParameters | Stateful | Throughput], given: dict[str, str], case: str
) -> None:
    """TRex takes each end once, and its frames meet at most one of the rules: that is not the plan's rate."""
    with pytest.raises(
        BadInput,
        match=rf"ovs_netdev\+case={case}: (a load test|generator=trex) takes .*with generator=packets",
    ):
        kind.of({**given, "topology": f"ovs_netdev+case={case}"})
    assert kind.of({**given, "topology": "ovs_netdev"}).topology
    assert Throughput.of({"topology": f"ovs_netdev+case={case}"}).topology


def test_ramp_is_linear_to_a_share_of_the_line_with_vlan() -> None:
    """The published test: 1 Gbit/s with VLAN tags carries 1.42 Mpps of 64 bytes, half of that if it is used twice."""
    line = {"server": "host", "line_rate_bps": 1e9}
    given = {"line_tag": "vlan", "target": "50%", "ramp_s": 600, "step_s": 60}
    parameters = LoadTestParameters.of({**line, **given})
    warmup, *rest = experiment.steps(parameters, sides(64))
    ramp = [step for step in rest if step.phase == "ramp"]
    hold = [step for step in rest if step.phase == "hold"]
    assert (warmup.rate_pps, warmup.duration_s) == (1000, 5)
    assert [step.rate_pps / 710_227 for step in ramp] == pytest.approx(
        [n / 10 for n in range(1, 11)], abs=1e-5
    )
    assert [(step.rate_pps, step.duration_s) for step in hold] == [(pytest.approx(710_227, abs=1), 10)]
    with pytest.raises(BadInput, match="more than the link carries"):
        experiment.steps(LoadTestParameters.of({**line, "target": "2Mpps"}), sides(64))


@pytest.mark.parametrize(("frame_bytes", "load_pps"), [(64, 1_487_098), (1518, 81_274 - 997 * 84 / 1538)])
def test_load_and_probes_fill_the_line_together(frame_bytes: float, load_pps: float) -> None:
    """TRex refuses more than the line carries: 997 probes of 84 bytes a second leave less for a load of 100 %."""
    given = {"server": "host", "line_rate_bps": 1e9, "warmup_rate": "100%"}
    planned = experiment.steps(LoadTestParameters.of(given), sides(frame_bytes))
    assert planned[0].rate_pps == planned[-1].rate_pps == pytest.approx(load_pps, abs=1)
    on_the_line_bps = 8 * (planned[-1].rate_pps * (frame_bytes + 20) + 997 * 84)
    assert on_the_line_bps == pytest.approx(1e9)
    alone = experiment.steps(LoadTestParameters.of(given | {"latency": False}), sides(frame_bytes))
    assert alone[-1].rate_pps == pytest.approx(1e9 / 8 / (frame_bytes + 20))


def test_share_of_the_line_counts_probes_as_what_they_are() -> None:
    parameters = LoadTestParameters.of({"server": "host", "line_rate_bps": 2e7, "target": "100%"})
    shared = experiment._shared(parameters, sides(362))
    most_pps = experiment.steps(parameters, sides(362))[-1].rate_pps + PROBES_PPS
    assert shared["line_pps"] == pytest.approx(most_pps)
    assert f"probes of 64 bytes among them {most_pps:.0f} pps" in shared["line"]


def test_line_that_the_probes_fill() -> None:
    given = {"server": "host", "line_rate_bps": 5e5, "warmup_rate": "1%", "target": "1%"}
    slow = LoadTestParameters.of(given)
    with pytest.raises(BadInput, match="997 probes a second fill a line of 500 kbit/s: use latency=false"):
        experiment.steps(slow, sides(64))


def test_ramp_ends_at_the_line_rate_or_at_what_an_own_server_sends() -> None:
    """Kernel interfaces say that they carry 10 Gbit/s, which TRex does not reach on them."""
    assert LoadTestParameters.of({"server": "host"}).ramp_target(on_kernel=False) == "100%"
    assert LoadTestParameters.of({"server": "host"}).ramp_target(on_kernel=True) == "50kpps"
    assert LoadTestParameters.of({"target": "10%"}).ramp_target(on_kernel=True) == "10%"


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
