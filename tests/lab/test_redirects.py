"""Ports joined by BPF programs: which interfaces a packet passes, as the kernel counts it and as the state says."""

import json
from collections import Counter

import msgspec
import pytest
from conftest import Need
from topology_kinds import require_kind

from labkit import live
from labkit.analysis import drawing
from labkit.common.errors import Unsupported
from labkit.measure.topologies.linux_datapaths import REDIRECTS
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, Redirect
from labkit.measure.topologies.state import packet_path

pytestmark = [pytest.mark.long, pytest.mark.needs("namespaces", "ip", "ping", "veth", "clsact")]
PINGS = 20
WHOLE = ["client0:eth0 out", "between:port0 in", "between:port1 out", "server0:eth0 in"]
SKIPPED = {
    "veth_redirect_peer": "between:port1 out",
    "netkit_redirect_peer": "between:port1 out",
    "netkit_l2_redirect": "between:port0 in",
    "netkit_redirect": "between:port0 in",
}


def sent_by(net: live.LiveTopology, port: str) -> int:
    """Return how many packets the kernel has counted that a port transmitted."""
    [link] = json.loads(net.endpoints["between"].run("ip", "-s", "-j", "link", "show", port))
    return int(link["stats64"]["tx"]["packets"])


@pytest.mark.parametrize("name", REDIRECTS)
def test_which_hops_a_redirect_skips(name: str, need: Need) -> None:
    require_kind(name, need)
    with live.build(name) as net:
        before = sent_by(net, "port1")
        with net.capture() as seen, net.monitor("between:port1", protocol="icmp") as watched:
            net.endpoints["client0"].run(
                "ping", "-n", f"-c{PINGS}", "-i0.01", net.endpoints["server0"].address or ""
            )
        sent = sent_by(net, "port1") - before
        state = net.state
    [path] = packet_path.packet_paths(state)
    steps = [f"{step.namespace}:{step.interface} {step.direction}" for step in path]
    assert steps == [step for step in WHOLE if step != SKIPPED.get(name)]
    assert sent < PINGS if "between:port1 out" not in steps else sent >= PINGS, sent
    # What the drawing says, captures show.
    redirects = [one.redirect for space in state.namespaces for one in space.interfaces if one.redirect]
    [names] = [[place.interface for place in one.unseen] for one in redirects if one.to.interface == "port1"]
    captured = Counter(
        f"{row['hop']} {row['direction']}" for row in seen.packets if "echo request" in row["what"]
    )
    unseen = {step for step in WHOLE[1:3] if step.split()[0].removeprefix("between:") in names}
    assert captured == {step: PINGS for step in WHOLE if step not in unseen}
    assert ("captures do not see it at between/port" in drawing.tree(state)) == bool(unseen)
    assert ("redirect past between:port0, between:port1" in (seen.doubt or "")) == bool(unseen)
    echoes = [row for row in seen.packets if row["hop"] == "between:port1" and "echo re" in row["what"]]
    assert watched.counts.selected_count == len(echoes)
    assert ("captures do not see it at between/port" in repr(watched)) == bool(unseen)


def network(**more: str) -> Network:
    """Return two ends and a node between them whose programs redirect."""
    cables = [
        Cable(CableEnd("n", f"p{number}"), CableEnd(name, "eth0", f"10.0.0.{number + 1}/24"))
        for number, name in enumerate(("a", "b"))
    ]
    both = [Redirect("n", "p0", **{"to": "p1", **more}), Redirect("n", "p1", "p0")]
    return Network("own", (Node("a", True), Node("b", True), Node("n"), *cables, *both), (("a", "b"),))


def test_network_of_ones_own_redirects() -> None:
    with live.build(network()) as net:
        assert " 0% packet loss" in net.endpoints["a"].run("ping", "-n", "-c3", "-i0.01", "10.0.0.2")
        drawn = msgspec.to_builtins(net.state)
    [between] = [one for one in drawn["namespaces"] if one["name"] == "n"]
    redirects = {one["name"]: one["redirect"] for one in between["interfaces"] if one["redirect"]}
    assert redirects["p0"]["to"] == {"namespace": "n", "interface": "p1"}


def test_verifier_refuses() -> None:
    """XDP has no bpf_redirect_peer: the last line of the verifier is the reason."""
    with pytest.raises(Unsupported, match=r"verifier says .*redirect_peer"):
        live.build(network(hook="xdp", helper="bpf_redirect_peer")).close()
