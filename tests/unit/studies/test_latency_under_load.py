"""Which arms, rows and profiles a run of latency under load has. Nothing is measured."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest
import synthetic_rows

from labkit.analysis import load
from labkit.measure.experiments import survey
from labkit.measure.experiments.rows import Arm
from studies.latency_under_load import figure, finding
from studies.latency_under_load.course import Course, Interval
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


@pytest.mark.parametrize("without", [-1e-6, None])
def test_a_probe_without_an_increase_leaves_the_verdicts_of_the_other(without: float | None) -> None:
    """Each probe has rows of its own, and the sentence names the one of which a round had no longer time, or none."""
    made = [
        row | {"increase_p50_s": without if at == ("udp_rr", "variant", 0) else row["latency_p50_s"]}
        for protocol in ("ping", "udp_rr")
        for row in synthetic_rows.rows(
            slices=0, whole=5, protocol=protocol, metric="latency_p50_s", experiment="latency_under_load"
        )
        for at in [(protocol, row["role"], row["round"])]
    ]
    rows = load.complete(pd.DataFrame(made))
    compared = finding.increase_verdicts(rows)
    known = compared[compared["topology"].eq("macvlan_bridge")]
    assert known["protocol"].tolist() == ["ping"]
    names = {f"{part}_p50_s" for part in ("idle", "after")} | {"forward_bps", "reverse_bps"}
    said = finding.findings(rows.assign(**dict.fromkeys(names, 1e-3)))
    [sentence] = [one for one in said if "did not increase" in one]
    assert sentence.startswith("macvlan_bridge, udp_rr, 1 pair")
    assert any("median round-trip time (mean of the rounds) is 1 ms [1, 1] before" in one for one in said)


def test_lost_probes_are_the_slowest_over_time() -> None:
    probes = [(0.05, 1.0), (0.06, None), (0.07, 2.0), (0.15, None), (0.16, 1.0), (0.17, None)]
    one = Course([Interval(0.1, 1e6, 1e4), Interval(0.2, 1e6, 1e4)], probes, {})
    medians = figure._probes([one])
    assert medians[0.1] == 2.0
    assert math.isnan(medians[0.2])


def test_the_survey_builds_no_arm_that_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[str]()
    monkeypatch.setattr(survey, "_why_not", lambda arm, *_others: tried.append(arm.label))
    given = {"topology": "veth", "change": "a: mtu 1400 at both; b: parameter streams=4", "baseline": "b"}
    arms, refused = survey.survey(LatencyUnderLoad.of(given), SimpleNamespace())  # type: ignore[arg-type]
    assert tried == ["veth+a", "veth+b"]
    assert [arm.label for arm in arms] == ["veth+b", "veth+b (again)", "veth+a"]
    assert not refused
