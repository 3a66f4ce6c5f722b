"""Names of Open vSwitch topologies and their options."""

import pandas as pd
import pytest
import synthetic_rows
from conftest import ROOT

from labkit.analysis import load, published_runs
from labkit.common import switch_options
from labkit.common.errors import BadInput
from labkit.common.switch_options import SwitchOptions, options
from labkit.measure import topologies
from labkit.measure.topologies.open_vswitch.mirrors import selected, tunnel_headers


def test_options_from_a_name() -> None:
    plain, mirrored, case = (options(f"ovs{one}").columns for one in ("", "+mirrors=1", "+case=net_to_vm"))
    assert (plain["mirrors"], plain["readers"], plain["rules_count"]) == (0, None, None)
    assert (mirrored["readers"], mirrored["output"], mirrored["uplink_mtu"]) == ("none", "veth", None)
    assert (case["use_case"], case["rules_count"], case["tunnel"]) == ("net_to_vm", 1000, "off")
    assert switch_options.columns("veth+x").keys() == case.keys()
    assert set(switch_options.columns("veth").values()) == {None}


SWITCHES = (
    SwitchOptions(),
    SwitchOptions("ovs_netdev", mirrors=4, readers="count", select="server1:in", output="gre", snaplen=96),
    SwitchOptions("ovs_dpdk", mirrors=8, readers="tcpdump", cpu=0),
    SwitchOptions("ovs_netdev", mirrors=1, output="vxlan", uplink_bps=1e9, uplink_mtu=1500),
    SwitchOptions(vlans=2, mirrors=1, select="vlan:2", sampling="ipfix:100"),
    SwitchOptions(case="net_to_vm", rules="l3", rules_count=16),
    SwitchOptions(case="vm_to_net", tunnel="vlan"),
)


def test_names_and_columns_round_trip() -> None:
    for given in SWITCHES:
        assert options(given.name) == given
        topologies.check_names([given.name])
        row = load.complete(pd.DataFrame([synthetic_rows.ROW | {"topology": "veth"} | given.columns])).iloc[0]
        assert switch_options.of_row(row) == given
        assert set(given.columns) == set(switch_options.columns("veth"))


def test_mirror_of_an_endpoint_that_is_not_here() -> None:
    spec = topologies.Spec(pairs=2, side=topologies.CLIENTS)
    with pytest.raises(BadInput, match=r"select=server1: server1 is on the other host.* choose client0"):
        selected(SwitchOptions(mirrors=1, select="server1"), spec)


def test_options_decide_what_a_topology_takes() -> None:
    ways = {name: topologies.kind_of(f"ovs{name}") for name in ("", "+case=net_to_vm+tunnel=vlan")}
    assert [(one.shares_ends, one.generators) for one in ways.values()] == [
        (False, None),
        (True, ("packets",)),
    ]
    assert [topologies.kind_of(f"ovs+mirrors=1+output={one}").copies_leave for one in ("veth", "gre")] == [
        False,
        True,
    ]


@pytest.mark.parametrize(("output", "size"), [("gre", 42), ("erspan", 50), ("vxlan", 50)])
def test_tunnel_overhead_of_a_copy(output: str, size: int) -> None:
    """The overhead is GRE with a key and the copy's own Ethernet header, plus a tag where there are VLANs."""
    for vlans in (0, 2):
        result = tunnel_headers(SwitchOptions(mirrors=1, output=output, vlans=vlans))
        assert sum(header.length_bytes for header in result) == size + 4 * bool(vlans)


def test_older_rows_get_the_columns() -> None:
    """The published run was measured before rows had them."""
    read = {row["topology"]: row for row in published_runs.read_rows(ROOT / "data/results/virtual_tap")}
    assert all("mirrors" not in row for row in read.values())
    rows = load.complete(pd.DataFrame([*read.values()])).set_index("topology")
    given = rows.loc["ovs_netdev+mirrors=8+readers=count"]
    assert tuple(given[["datapath", "mirrors", "readers", "output"]]) == ("netdev", 8, "count", "veth")
    assert rows.loc["ovs_netdev", "mirrors"] == 0


def test_mirror_output() -> None:
    """A mirror copies a packet once even if it selects both the input and the output port."""
    for select, arriving, leaving, side in (
        ("client0", [0], [0], None),
        ("client1:in", [2], [], None),
        ("server1:out", [], [3], None),
        ("all", [0, 1, 2, 3], [], None),
        ("vlan:2", [2, 3], [], None),
        # The servers' ports are on another switch, so a packet passes the port of one end only.
        ("client0", [0], [0], topologies.CLIENTS),
        ("client1:out", [], [2], topologies.CLIENTS),
        ("all", [0, 2], [0, 2], topologies.CLIENTS),
        ("vlan:2", [2], [2], topologies.CLIENTS),
    ):
        spec = topologies.Spec(pairs=2, **({"side": side} if side else {}))
        assert selected(SwitchOptions(mirrors=1, select=select, vlans=2), spec) == (arriving, leaving)
