"""Parameters of the experiment `virtual_tap`, and its arms and loads."""

from pathlib import Path
from typing import Any

from labkit.measure.experiments import RunContext, rows, survey
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Arm
from studies.virtual_tap.experiment import VirtualTapParameters, plan


def test_arms_of_mirrors_readers_and_cores() -> None:
    parameters = VirtualTapParameters.of(
        {"mirrors": "0,2", "readers": "none,count", "also": "ovs_netdev+sampling=sflow:10"}
    )
    assert parameters.arms == (
        "ovs_netdev", "ovs_netdev+mirrors=2", "ovs_netdev+mirrors=2+readers=count", "ovs_netdev+sampling=sflow:10",
    )  # fmt: skip
    given = {"mirrors": "0,1", "readers": "none", "output": "gre", "uplink_bps": "1e8", "select": "all"}
    assert VirtualTapParameters.of(given).arms == (
        "ovs_netdev", "ovs_netdev+mirrors=1+select=all+output=gre+uplink_bps=100000000",
    )  # fmt: skip
    parameters = VirtualTapParameters.of({"cores": "thesis", "mirrors": "0,1", "readers": "none"})
    assert parameters.arms == ("ovs_netdev+cpu=0", "ovs_netdev+mirrors=1+cpu=0")
    assert parameters.for_load("udp:64").affinity == "0,1"
    assert VirtualTapParameters().for_load("udp:64").affinity is None


def test_loads() -> None:
    """A load with a rate is a whole run. Slices measure senders at full speed."""
    for load, expected in (
        ("tcp", ("tcp", None, None, 4)),
        ("udp:512", ("udp", 512, None, 4)),
        ("udp:1472@5e7", ("udp", 1472, 5e7, 0)),
    ):
        result = VirtualTapParameters.of({"loads": load}).for_load(load)
        assert (result.protocol, result.length_bytes, result.rate_bps, result.slices) == expected
        assert result.topology == VirtualTapParameters().arms


TWO = {"nodes": "two", "where": "vm:debian", "output": "gre", "mirrors": "0,1", "readers": "count"}


def test_monitor_on_a_second_host() -> None:
    """All ends are on the first host, so the second one is no servers' host, and arms exist at the same time."""
    parameters = VirtualTapParameters.of({**TWO, "loads": "udp:64@1e6", "link_rate_bps": "1e8"})
    load = parameters.for_load("udp:64@1e6")
    assert (load.nodes, load.has_remote_servers, load.link_rate_bps) == ("two", False, 1e8)
    assert load.spec(1, None).parent is None


def test_flow_beside_a_monitor_does_not_cross_the_link() -> None:
    """The monitored flow stays on the first host, so its rate may exceed that of the link."""
    run_context: Any = RunContext("virtual_tap", Path("run"), 1, {})
    fast = {"status": "ok", "throughput_bps": 3e7, "window_s": 1.0}

    def status(parameters: DatapathParameters) -> Any:
        return rows.row_of(parameters, run_context, Arm("ovs_netdev", "baseline"), 1, fast)["status"]

    monitored = VirtualTapParameters.of({**TWO, "loads": "udp:64@3e7", "link_rate_bps": "1e7"})
    assert status(monitored.for_load("udp:64@3e7")) == "ok"
    across = DatapathParameters(protocol="udp", nodes="two", where="vm:debian", slices=0, link_rate_bps=1e7)
    assert status(across) == "invalid"


def test_arm_that_uses_the_cable_has_no_control() -> None:
    """The survey found that the first arm cannot be measured here."""
    words = {"nodes": "two", "where": "vm:debian", "protocol": "udp"}
    parameters = DatapathParameters.of(words | {"topology": "veth_bridge,ovs+mirrors=1+output=gre,veth"})
    good = [Arm(str(name), "variant") for name in parameters.topology[1:]]
    assert [arm.role for arm in survey._with_roles(good, parameters)] == ["baseline", "variant"]
    roles = [arm.role for arm in survey._with_roles(good[::-1], parameters)]
    assert roles == ["baseline", "control", "variant"]


def test_paced_loads_are_whole_runs() -> None:
    """A point holds every load, so that each round builds all switches once."""
    result = plan(VirtualTapParameters.of({"loads": "udp:64,udp:512@1e6", "rounds": 2}), seed=1)
    points = result.points_of([])
    assert [len(point.loads) for point in points] == [2, 2]
    assert {(load.name, bool(load.parameters.slices), load.has_trials(0)) for load in points[0].loads} == {
        ("udp:64", True, False), ("udp:512@1e6", False, True),
    }  # fmt: skip
