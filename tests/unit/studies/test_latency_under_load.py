"""Which arms, rows and profiles a run of latency under load has. Nothing is measured."""

from labkit.measure.experiments import survey
from labkit.measure.experiments.rows import Arm
from studies.latency_under_load.experiment import Beside, LatencyUnderLoad, LoadedProfile, plan


def test_changed_arm_is_the_baseline() -> None:
    """The unchanged topologies are then not measured."""
    given = {"topology": "veth,veth_bridge", "change": "a: mtu 1400 at both; b: parameter streams=4"}
    arms = survey.planned_arms(LatencyUnderLoad.of({**given, "baseline": "b"}))
    assert [(arm.label, arm.role) for arm in arms] == [
        ("veth+b", "baseline"),
        ("veth+b (again)", "control"),
        ("veth_bridge+b", "variant"),
        ("veth+a", "variant"),
        ("veth_bridge+a", "variant"),
    ]


def test_each_of_both_probes_has_a_row() -> None:
    """Also where nothing was measured."""
    load = Beside(LatencyUnderLoad.of({"protocol": "both"}))
    rows = load.rows((Arm("veth", "variant"), {"status": "failed"}))
    assert [row for _, row in rows] == [
        {"status": "failed", "protocol": "ping", "generator": "ping"},
        {"status": "failed", "protocol": "udp_rr", "generator": "sockets"},
    ]
    assert [load.rows(one) for one in rows] == [[one] for one in rows]


def test_profiles_are_of_the_load_with_pings_beside_it() -> None:
    given = {"protocol": "both", "load": "udp", "rate_bps": 1e6, "observe": "counters", "profile_rounds": 2}
    parameters = LatencyUnderLoad.of({**given, "duration_s": 4, "idle_s": 3})
    points = plan(parameters, 1).points_of([])
    profiles = [one for one in points if isinstance(one, LoadedProfile)]
    assert [one.name for one in profiles] == ["1-p0", "1-p1"]
    assert {one.parameters.protocol for one in profiles} == {"ping"}
    assert {one.parameters.load_parameters.protocol for one in profiles} == {"udp"}
    usable = survey.planned_arms(parameters)
    runs = 2 * len(usable)  # observed, and not
    assert profiles[0].planned_s(usable) > runs * (3 + parameters.omit_s + 4 + 3)
