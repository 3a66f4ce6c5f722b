"""Parameters from a command line or a notebook become typed values, or one sentence that lists the valid ones."""

import os
import typing
from pathlib import Path

import pytest

from labkit.common.errors import BadInput
from labkit.measure import experiments
from labkit.measure.experiments import survey
from labkit.measure.experiments.datapaths import plan, points
from labkit.measure.experiments.datapaths_parameters import EXPERIMENT, DatapathParameters
from labkit.measure.experiments.measurement_point import Load
from labkit.measure.experiments.rows import Arm

A_CPU = min(os.sched_getaffinity(0))


def test_texts_and_values_are_equivalent() -> None:
    for given, name, expected in (
        ({"pairs": "1,2,8"}, "pairs", (1, 2, 8)), ({"pairs": [1, 2]}, "pairs", (1, 2)),
        ({"pairs": 4}, "pairs", (4,)),
        ({"topology": "veth,veth_bridge"}, "topology", ("veth", "veth_bridge")),
        ({"rate_bps": "1e9"}, "rate_bps", 1e9), ({"rate_bps": None}, "rate_bps", None),
        ({"length_bytes": ""}, "length_bytes", None), ({"zerocopy": "true"}, "zerocopy", True),
        ({"observe": "none"}, "observe", ()), ({"protocol": "udp", "length_bytes": 64}, "datagram_bytes", 64),
        ({"protocol": "udp"}, "datagram_bytes", 1472),
        ({"protocol": "udp", "mtu_bytes": 65535}, "datagram_bytes", 65507),
        ({"affinity": f"{A_CPU},{A_CPU}"}, "affinity", f"{A_CPU},{A_CPU}"),
        ({"parent": "eth0.100", "topology": "macvlan_bridge"}, "parent", "eth0.100"),
        ({"mtu_bytes": 65461, "topology": "vxlan_gre"}, "mtu_bytes", 65461),
    ):  # fmt: skip
        assert getattr(DatapathParameters.of(given), name) == expected

    for wrong in ({"topology": 5}, {"pairs": [1, [2]]}, {"pairs": {"a": 1}}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            DatapathParameters.of(wrong)
    with pytest.raises(BadInput, match=r"protocol=\[udp\]: a text is needed, not a list"):
        DatapathParameters.of({"protocol": ["udp"]})


def test_valid_two_node_parameters() -> None:
    cable, vms = {"nodes": "two", "parent": "nic0,nic1"}, {"nodes": "two", "link_rate_bps": "1e9"}
    for given, host, nics in (
        ({**cable, "peer": "here"}, "here", ("nic0", "nic1")),
        ({**cable, "peer": "ssh:far"}, "ssh:far", ("nic0", "nic1")),
        ({**vms, "where": "vm:debian"}, "vm:debian", (None, None)),
    ):
        parameters = DatapathParameters.of({**given, "topology": "veth_bridge,macvlan_bridge,ipvlan_l2"})
        assert (parameters.servers_host, parameters.nic(1), parameters.nic(2)) == (host, *nics)


def test_seeded_order_of_points() -> None:
    parameters = DatapathParameters.of({"pairs": "1,2,4,8", "rounds": "6"})
    order = plan(parameters, 7).points
    assert order == plan(parameters, 7).points
    assert order != plan(parameters, 8).points
    assert [point.round for point in order] == sorted(list(range(6)) * 4)
    by_round = [[point.pairs for point in order if point.round == number] for number in range(6)]
    assert all(sorted(pairs) == [1, 2, 4, 8] for pairs in by_round)
    assert len({tuple(pairs) for pairs in by_round}) > 1
    assert len({point.name for point in order}) == len(order)


def test_whole_runs_in_the_first_rounds() -> None:
    for whole_runs, count in (("none", 3), ("0", 0), ("2", 2)):
        parameters = DatapathParameters.of({"rounds": "3", "slices": "1", "whole_runs": whole_runs})
        [load] = points(parameters, 1, [Load(parameters)])[0].loads
        assert [load.has_trials(number) for number in range(3)] == [number < count for number in range(3)]


def test_help_and_recorded_parameters() -> None:
    for experiment in map(experiments.find, experiments.TABLE):
        assert set(experiment.help) == set(experiment.parameters().asdict())
        assert all(experiment.help.values())
    recorded = {"nodes": "one", "sizes": [64]}
    kind = experiments.find("packet_size").parameters
    assert kind.of_recorded({"nodes": "one", "size_bytes": [64]}) == kind.of({"size_bytes": "64"})
    with pytest.raises(BadInput, match="there is no parameter sizes"):
        kind.of_recorded(recorded)


def test_guest_boots_per_set_up() -> None:
    parameters = DatapathParameters(
        topology=("veth",), endpoint=("namespace", "guest", "shared_guest"), observe=("counters",)
    )
    usable = survey.planned_arms(parameters)
    assert [arm.label for arm in usable] == [
        "veth", "veth (again)", "veth/guest", "veth/shared_guest", "veth/shared_guest (again)"
    ]  # fmt: skip
    assert survey.boots_s(usable) == 3 * survey.BOOT_S
    assert 2 * survey.BOOT_S < survey.survey_s(parameters) < 3 * survey.BOOT_S
    here = [arm for arm in usable if arm.endpoint == "namespace"]
    points = plan(parameters, 0).points_of(usable)
    for one in points:
        assert one.planned_s(usable) > one.planned_s(here) + 3 * survey.BOOT_S
    set_ups_count = len(points)
    assert EXPERIMENT.planned_s(parameters) > survey.survey_s(parameters) + 3 * survey.BOOT_S * set_ups_count


def test_unsupported_endpoints_are_rows() -> None:
    parameters = experiments.find("container_vs_vm").parameters.of({"pairs": "1,2", "loads": "udp:800,ping"})
    run_context = experiments.RunContext("container_vs_vm", Path("a"), 0, {})
    refused = [(Arm("veth_bridge", "variant", "container"), {"status": "unsupported", "reason": "no runc"})]
    loads = [parameters.for_load(load) for load in parameters.loads]
    [event] = survey.refused_rows(loads, run_context, refused, {"1-refused"})
    assert event["point"] == "2-refused"
    names = ("experiment", "arm", "pairs", "protocol", "length_bytes", "status", "reason")
    both = [tuple(row[name] for name in names) for row in event["rows"]]
    end = ("container_vs_vm", "veth_bridge/container", 2)
    assert both == [
        (*end, "udp", 800, "unsupported", "no runc"),
        (*end, "ping", None, "unsupported", "no runc"),
    ]
    assert not list(survey.refused_rows(loads, run_context, [], set()))


@pytest.mark.parametrize("name", experiments.TABLE)
def test_no_parameter_hides_a_property(name: str) -> None:
    """It would replace its value: UDP rows of `overlay` had the length of its ping."""
    parameters = experiments.find(name).parameters
    properties = {
        one for base in parameters.__mro__ for one, it in vars(base).items() if isinstance(it, property)
    }
    assert not properties & {*parameters.__struct_fields__}


# Parameters of text that take any text: files, addresses, rates, and words that a kernel or a program defines
FREE = {
    "affinity", "also", "change", "congestion", "events", "functions", "graph_functions", "guest", "loads", "max_rate",
    "min_rate", "parent", "peer", "probe", "profile_digest", "sample", "select", "server", "slow_function", "socket",
    "target", "tracepoint", "trex", "warmup_rate",
}  # fmt: skip


@pytest.mark.parametrize("experiment", experiments.OWN)
def test_every_text_has_known_values(experiment: str) -> None:
    """Completion offers them in notebooks and in shells."""
    parameters = experiments.find(experiment).parameters
    hints = typing.get_type_hints(parameters)
    texts = {name for name in parameters.help() if "str" in str(hints[name])}
    assert {name for name in texts - FREE if not parameters.known_values(name)} == set()
