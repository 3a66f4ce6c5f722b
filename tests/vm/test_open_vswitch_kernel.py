"""Open vSwitch with the kernel's datapath, in the session's lab VM, whose kernel has it."""

import json
from typing import Any

import pytest
from conftest import SharedVm, printed_at
from sandbox import also

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "qemu", "full kernel", "openvswitch", "ethtool")

Answer = dict[str, Any]
PINGS = 20
# test_open_vswitch.py has 1,000 rules.
CASES = {
    "case": "ovs+case=net_to_vm+rules=l3+rules_count=16",
    "tunnel": "ovs+case=vm_to_net+rules_count=16+tunnel=vxlan",
}
TOPOLOGIES = {
    **CASES,
    "veth": "ovs+mirrors=2+readers=count",
    **{output: f"ovs+mirrors=2+output={output}" for output in ("gre", "internal", "vxlan", "vlan")},
}


@pytest.fixture(scope="module")
def result(shared_vm: SharedVm, request: pytest.FixtureRequest) -> dict[str, Answer]:
    """Return the findings for each switch that is tested."""
    items = [
        item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")
    ]
    names = [*{**CASES, **{item.callspec.params["name"]: None for item in items}}]
    requests = [{"name": TOPOLOGIES[name]} for name in names]
    answers = printed_at(shared_vm.where, "lab/build_switches.py", json.dumps(requests))
    return dict(zip(names, answers, strict=True))


@pytest.mark.parametrize("name", [*CASES, "gre", *also("exhaustive", "veth", "internal", "vxlan", "vlan")])
def test_kernel_datapath_switch(name: str, result: dict[str, Answer]) -> None:
    report = result[name]
    assert "error" not in report, report
    assert (report["reachable"], report["datapath"]) == (None, "system")
    assert "flows" in report
    if name in CASES:
        assert "copies_count" not in report["counted"]
        return
    assert report["counted"]["copies_expected_count"] == report["counted"]["copies_count"] == 2 * 2 * PINGS
    assert report["counted"]["copies_of_mirrors"] == [2 * PINGS] * 2


def test_rules_of_a_case_are_in_the_kernel(result: dict[str, Answer]) -> None:
    """The megaflow of a ping sets both MAC addresses and the TTL. That of the tunnel outputs to VXLAN."""
    assert "set(ipv4(ttl=63))" in result["case"]["flows"]
    assert "set(tunnel(" in result["tunnel"]["flows"]


def test_segmentation_offload_stays_on(result: dict[str, Answer]) -> None:
    """The kernel's datapath forwards frames that are segmented later. Only the userspace datapath cannot."""
    assert "tcp-segmentation-offload: on" in result["case"]["offloads"]
