"""Every topology on a real kernel: both ends reach each other at the MTU, and the kernel's view agrees with the
name."""

import functools
import itertools
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Need
from sandbox import one_sentence, printed, sandbox, until
from topology_kinds import IPV4_ALONE, PAIRED_TOPOLOGIES, require_kind

from labkit.measure.hosts import local
from labkit.measure.topologies import TABLE
from labkit.measure.topologies.linux_datapaths import ROUTED

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "veth")

Answer = dict[str, Any]
PROGRAM = Path(__file__).with_name("build_topologies.py")
# Every two values of pairs, MTU and family.
PARAMETERS = [(1, 1500, 4), (1, 9000, 6), (3, 1500, 6), (3, 9000, 4)]
TALK = [name for name in PAIRED_TOPOLOGIES if TABLE[name].isolated is None and name != "macvlan_passthru"]


def ask(*requests: Answer) -> list[Answer]:
    answers: list[Answer] = printed(PROGRAM, json.dumps(requests), timeout_s=400)
    return answers


@functools.cache
def built() -> list[Answer]:
    """Return the findings for every topology and every (pairs, MTU, family), all from one process."""
    requests = [
        {"name": name, "isolated": TABLE[name].isolated is not None, "pairs": pairs, "mtu_bytes": mtu,
         "family": family}
        for name, (pairs, mtu, family) in itertools.product(PAIRED_TOPOLOGIES, PARAMETERS)
    ]  # fmt: skip
    return ask(*requests)


def answers(name: str) -> dict[tuple[int, int, int], Answer]:
    """Return the findings for this topology for every (pairs, MTU, family)."""
    begin = PAIRED_TOPOLOGIES.index(name) * len(PARAMETERS)
    return dict(zip(PARAMETERS, built()[begin:], strict=False))


def eth0(answer: Answer) -> dict[str, Any]:
    """Return the interface of every end, by the namespace's name."""
    return {space: result["eth0"] for space, result in answer["links"].items() if "eth0" in result}


@pytest.mark.parametrize(
    ("name", "pairs", "mtu", "family"),
    [
        (name, *parameters)
        for name, parameters in itertools.product(TALK, PARAMETERS)
        if parameters[2] == 4 or name not in IPV4_ALONE
    ],
)
def test_endpoints_reach_each_other_up_to_the_mtu(
    name: str, pairs: int, mtu: int, family: int, need: Need
) -> None:
    require_kind(name, need)
    result = answers(name)[pairs, mtu, family]
    assert "error" not in result, result
    assert [len(result["pairs"]), result["full"]] == [pairs, [True] * pairs]
    assert result["one_more"] == []
    assert result["one_more_refused"] == [True] * pairs
    assert result["reachable"] is None
    if pairs == 1:
        words = f"client0 gets no answer from server0 to a ping of {mtu + 1} bytes"
        assert result["too_large"].startswith(words)
        assert "message too long" in result["too_large"].lower()
    assert result["ttl"] == [63 if name in ROUTED else 64] * pairs
    assert all(
        (":" in address) == (family == 6) for pair in result["pairs"] for address in (pair[1], pair[3])
    )
    assert len({address for pair in result["pairs"] for address in (pair[1], pair[3])}) == 2 * pairs


@pytest.mark.parametrize("name", TALK)
def test_endpoint_names_and_interfaces(name: str, need: Need) -> None:
    require_kind(name, need)
    for (pairs, mtu, family), result in answers(name).items():
        if family == 6 and name in IPV4_ALONE:
            assert (result["error"], result["text"].partition(" (")[0]) == (
                "BadInput",
                "ipip carries IPv4 only",
            )
            continue
        assert [pair[::2] for pair in result["pairs"]] == [[f"client{n}", f"server{n}"] for n in range(pairs)]
        if name == "loopback":
            assert sorted(result["links"]) == [f"both{n}" for n in range(pairs)]
            assert [list(links) for links in result["links"].values()] == [["lo"]] * pairs
            ends = [links["lo"] for links in result["links"].values()]
        else:
            assert set(eth0(result)) == {f"{side}{n}" for n in range(pairs) for side in ("client", "server")}
            assert result["interfaces"] == ["eth0"] * pairs
            ends = list(eth0(result).values())
        assert [end["mtu"] for end in ends] == [mtu] * len(ends)
        assert all("UP" in end["flags"] for end in ends)


def kinds(answer: Answer) -> set[str]:
    return {end["linkinfo"]["info_kind"] for end in eth0(answer).values()}


def test_veth_structure() -> None:
    for result in answers("veth").values():
        assert kinds(result) == {"veth"}
        assert "between" not in result["links"]


def test_veth_bridge_structure(need: Need) -> None:
    need("bridge")
    for (pairs, mtu, _family), result in answers("veth_bridge").items():
        assert kinds(result) == {"veth"}
        between = result["links"]["between"]
        assert (between["bridge"]["linkinfo"]["info_kind"], between["bridge"]["mtu"]) == ("bridge", mtu)
        assert between["bridge"]["linkinfo"]["info_data"]["stp_state"] == 0
        assert between["bridge"]["linkinfo"]["info_data"]["vlan_filtering"] == 0
        ports = [link for link in between.values() if link.get("master") == "bridge"]
        assert len(ports) == 2 * pairs
        assert {(port["linkinfo"]["info_kind"], port["mtu"]) for port in ports} == {("veth", mtu)}
        assert {port["linkinfo"]["info_slave_data"]["state"] for port in ports} == {"forwarding"}


def test_veth_routed_structure() -> None:
    for (pairs, mtu, _family), result in answers("veth_routed").items():
        assert kinds(result) == {"veth"}
        between = result["links"]["between"]
        ports = [link for name, link in between.items() if name != "lo"]
        assert len(ports) == 2 * pairs
        assert {(port["linkinfo"]["info_kind"], port["mtu"]) for port in ports} == {("veth", mtu)}
        assert not any("master" in port for port in ports)


@pytest.mark.needs("macvlan")
@pytest.mark.parametrize("mode", ["private", "vepa", "bridge"])
def test_macvlan_modes(mode: str) -> None:
    for (_pairs, mtu, _family), result in answers(f"macvlan_{mode}").items():
        assert kinds(result) == {"macvlan"}
        assert {end["linkinfo"]["info_data"]["mode"] for end in eth0(result).values()} == {mode}
        parent = result["links"]["between"]["parent"]
        assert (parent["mtu"], parent["linkinfo"]["info_kind"]) == (mtu, "veth")
        assert {end["link_index"] for end in eth0(result).values()} == {parent["ifindex"]}


@pytest.mark.needs("macvlan", "bridge")
def test_macvlan_vepa_uses_a_hairpin_port() -> None:
    for result in answers("macvlan_vepa").values():
        far = result["links"]["between"]["far"]
        assert far["master"] == "bridge"
        assert far["linkinfo"]["info_slave_data"]["hairpin"] is True
    for result in answers("macvlan_bridge").values():
        assert "bridge" not in result["links"]["between"]


@pytest.mark.needs("macvlan")
def test_macvlan_private_isolates() -> None:
    for result in answers("macvlan_private").values():
        assert result["silent"] is True


@pytest.mark.needs("macvlan")
def test_macvlan_passthru_takes_one_device() -> None:
    for result in answers("macvlan_passthru").values():
        assert result["error"] == "Isolated"
        assert result["text"].startswith(
            "macvlan passthru takes one device on a parent; the kernel refused the second"
        )


@pytest.mark.parametrize("mode", ["l2", "l3", "l3s"])
def test_ipvlan_or_unsupported(mode: str) -> None:
    for result in answers(f"ipvlan_{mode}").values():
        if "error" in result:
            assert result["error"] == "Unsupported"
            assert result["text"].startswith("this kernel has no ipvlan (CONFIG_IPVLAN is not set")
            assert "use a kernel that has it" in result["text"]
        else:
            assert kinds(result) == {"ipvlan"}
            assert {end["linkinfo"]["info_data"]["mode"] for end in eth0(result).values()} == {mode}


@pytest.mark.needs("vxlan")
def test_vxlan_underlay_mtu() -> None:
    for (_pairs, mtu, _family), result in answers("vxlan").items():
        assert kinds(result) == {"vxlan"}
        for space, end in eth0(result).items():
            report = end["linkinfo"]["info_data"]
            assert (report["id"], report["port"], report["link"]) == (42, 4789, "under")
            under = result["links"][space]["under"]
            assert (under["mtu"], under["linkinfo"]["info_kind"]) == (mtu + 50, "veth")
        assert (result["headers"]["computed_bytes"], result["headers"]["measured_bytes"]) == (50, 50)


@pytest.mark.needs("vxlan")
def test_mtu_too_large_for_vxlan() -> None:
    fits, refused = ask(*({"name": "vxlan", "mtu_bytes": mtu} for mtu in (65485, 65486)))
    assert fits["full"] == [True]
    assert refused["error"] == "BadInput"
    assert refused["text"].startswith("mtu_bytes=65486 does not fit into vxlan: with its 50 bytes of headers")


@pytest.mark.long
@pytest.mark.needs("bridge")
@pytest.mark.parametrize("family", [4, 6])
def test_more_than_256_pairs(family: int) -> None:
    [result] = ask({"name": "veth_bridge", "pairs": 260, "family": family})
    assert result["full"] == [True] * 260
    assert len(result["links"]) == 521


@pytest.mark.needs("macvlan", "iperf3")
def test_nic_as_parent(tmp_path: Path) -> None:
    """All arms share it at once, and modes that need the NIC exclusively find it free."""
    with sandbox(tmp_path, nics=["nic0", "other"]) as machine:
        before = machine.interfaces()
        words = "topology=macvlan_passthru,macvlan_bridge,macvlan_private parent=nic0 pairs=2 rounds=2"
        rows = machine.rows(*words.split(), "slices=1", "whole_runs=1", "duration_s=1", "omit_s=0")
        # The kernel removes an unreferenced namespace a moment later.
        assert until(lambda: machine.interfaces() == before, 5)
        assert until(machine.only_namespace, 20)
    result = {(row["topology"], row["status"]): row["reason"] for row in rows}
    assert set(result) == {
        ("macvlan_passthru", "isolated"), ("macvlan_bridge", "ok"), ("macvlan_private", "isolated"),
    }  # fmt: skip
    assert {row["parent"] for row in rows} == {"nic0"}
    assert all(row["throughput_bps"] > 0 for row in rows if (row["status"], row["method"]) == ("ok", "whole"))


@pytest.mark.needs("macvlan")
def test_two_arms_on_one_nic_are_isolated(tmp_path: Path) -> None:
    """Both have the same IP addresses on the same wire, but each client reaches only its own server."""
    request = {"name": "macvlan_bridge", "parent": "nic0", "machine_netns": 3, "counts": True}
    argv = [*local.prefix(), sys.executable, str(PROGRAM), json.dumps([request])]
    with sandbox(tmp_path, nics=["nic0"]) as machine:
        script = f"exec 3</proc/self/ns/net; exec {shlex.join(argv)}"
        done = machine.run("bash", "-c", script, code=0)
        [answer] = json.loads(done.stdout)
    assert answer == {"received_count": [[20, 0], [0, 20]]}


@pytest.mark.needs("macvlan")
def test_missing_nic_is_refused(tmp_path: Path) -> None:
    with sandbox(tmp_path, nics=["nic0"]) as machine:
        done = machine.labkit("run", "datapaths", "topology=macvlan_bridge", "parent=nic7")
        assert one_sentence(done) == (
            "parent=nic7: the machine has no such interface; it has far-nic0, lo, nic0"
        )


@pytest.mark.needs("namespaces", "veth", "macvlan", "vxlan")
def test_first_packet_arrives() -> None:
    """The kernel reports carriers, and adds routes of IPv6 addresses, after it has answered: a build waits for both."""
    requests = [
        ["loopback", 6, 60], ["veth", 6, 30], ["veth", 4, 100], ["macvlan_bridge", 4, 40], ["vxlan", 6, 30],
        ["veth_routed", 6, 20],
    ]  # fmt: skip
    program = Path(__file__).with_name("connect_at_once.py")
    assert printed(program, json.dumps(requests), timeout_s=120) == [0] * len(requests)
