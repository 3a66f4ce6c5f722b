"""The probes of `labkit doctor` as root and in a user namespace: they agree with ip and tc and leave nothing behind."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import IN_A_NAMESPACE, ROOT, Need, met, works
from sandbox import ORDINARY, names_in_run

from labkit.commands import doctor, kernels
from labkit.common import schema
from labkit.measure.hosts import local
from labkit.measure.topologies import TABLE

PROGRAM = """
import json, sys, time, msgspec
from labkit.measure import capabilities
from labkit.system import machine
begin = time.monotonic()
found = capabilities.capabilities()
took_s = time.monotonic() - begin
answer = {"machine": machine.describe(), "details": machine.details(), "capabilities": found, "took_s": took_s}
sys.stdout.buffer.write(msgspec.json.encode(answer))
"""
UNSHARE = ["unshare", "--fork", "--pid", "--kill-child", "--mount-proc", "--net", "--mount"]

# Arguments of `ip link add` for each link kind and tunnel, and of `tc qdisc add` for each queueing discipline.
LINKS = {
    "veth": "name probe type veth peer name far",
    "netkit": "name probe type netkit",
    "bridge": "name probe type bridge",
    "macvlan": "name probe link lower type macvlan mode bridge",
    "macvtap": "name probe link lower type macvtap mode bridge",
    "ipvlan": "name probe link lower type ipvlan mode l2",
    "ipvtap": "name probe link lower type ipvtap mode l2",
    "vlan": "name probe link lower type vlan id 42",
    "dummy": "name probe type dummy",
    "ifb": "name probe type ifb",
    "bond": "name probe type bond",
    "vrf": "name probe type vrf table 42",
    "vxlan": "name probe type vxlan id 42 dstport 4789",
    "geneve": "name probe type geneve id 42 remote 192.0.2.2",
    "gre": "name probe type gre local 192.0.2.1 remote 192.0.2.2",
    "gretap": "name probe type gretap local 192.0.2.1 remote 192.0.2.2",
    "ip6gre": "name probe type ip6gre local 2001:db8::1 remote 2001:db8::2",
    "ipip": "name probe type ipip local 192.0.2.1 remote 192.0.2.2",
    "sit": "name probe type sit local 192.0.2.1 remote 192.0.2.2",
    "wireguard": "name probe type wireguard",
}
QDISCS = {
    "tbf": "root tbf rate 1mbit burst 10k latency 50ms", "netem": "root netem delay 1ms", "fq": "root fq",
    "fq_codel": "root fq_codel", "htb": "root htb", "ingress": "ingress", "clsact": "clsact",
}  # fmt: skip

Answer = dict[str, Any]


def ask(prefix: list[str]) -> Answer:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    answer: Answer = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def parameters(need: Need) -> Answer:
    need("namespaces")
    return ask(local.prefix())


@pytest.fixture(scope="module")
def rootless(need: Need) -> Answer:
    need("namespaces")
    ordinary = ORDINARY if os.geteuid() == 0 else []
    return ask([*ordinary, *UNSHARE[:1], "--user", "--map-root-user", *UNSHARE[1:], "--"])


def available(answer: Answer, group: str | None = None) -> dict[str, bool | None]:
    return {
        one["name"]: one["available"]
        for one in answer["capabilities"]
        if group is None or one["group"] == group
    }


def test_groups_of_root_and_without_root(parameters: Answer, rootless: Answer) -> None:
    groups = {one["group"] for one in parameters["capabilities"]}
    assert groups == {
        "privilege", "link kinds", "tunnels", "queueing disciplines", "packet filters", "packets", "Open vSwitch",
        "tracers", "perf events", "BPF", "virtual machines", "tools",
    }  # fmt: skip
    failed = [
        one for one in parameters["capabilities"] if "probes of this group failed" in (one["detail"] or "")
    ]
    assert failed == []
    assert parameters["took_s"] < (30 if parameters["machine"]["accelerator"] == "tcg" else 3)
    assert available(parameters, "packets") == available(rootless, "packets") == {"packet capture": True}
    # Limits of open files and of CPU time are the machine's.
    assert available(rootless, "privilege") | {"open files": True, "all of the CPUs": True} == {
        "root": False, "user namespaces": True, "network namespaces": True, "NIC as parent": False, "open files": True,
        "all of the CPUs": True,
    }  # fmt: skip
    for group in ("link kinds", "tunnels", "queueing disciplines", "packet filters", "packets"):
        both = available(parameters, group), available(rootless, group)
        differ = {name for name in both[0] if both[0][name] != both[1][name]}
        assert differ <= {"tun", "tap"}  # only root may be able to open /dev/net/tun


def test_the_table_of_kernels_asks_for_what_is_probed(parameters: Answer) -> None:
    probed = {(one["group"], one["name"]) for one in parameters["capabilities"]}
    assert {*kernels.CAPABILITIES.values()} <= probed


def test_missing_capability_explains_loss_and_remedy(parameters: Answer, rootless: Answer) -> None:
    for one in parameters["capabilities"] + rootless["capabilities"]:
        if one["available"] is False:
            assert one["detail"], one
            assert one["lost"], one
        if one["available"] is not True:
            assert one["remedy"], one


def ip_says(kind: str) -> bool:
    lines = f"link add name lower type veth peer name beyond\nlink add {LINKS[kind]}\n"
    return works(*IN_A_NAMESPACE, "ip", "-batch", "-", stdin=lines)


def tc_says(kind: str) -> bool:
    script = f"ip link add name lower type veth peer name beyond && tc qdisc add dev lower {QDISCS[kind]}"
    return works(*IN_A_NAMESPACE, "sh", "-c", script)


@pytest.mark.parametrize("kind", LINKS)
def test_link_kinds_agree_with_ip(kind: str, parameters: Answer, need: Need) -> None:
    need("ip", "veth")
    lines = available(parameters, "link kinds") | available(parameters, "tunnels")
    if lines[kind] is not None:  # None: loading its module would leave something on this machine
        assert ip_says(kind) is lines[kind]


@pytest.mark.parametrize("kind", QDISCS)
def test_queueing_disciplines_agree_with_tc(kind: str, parameters: Answer, need: Need) -> None:
    need("ip", "veth")
    assert tc_says(kind) is available(parameters, "queueing disciplines")[kind]


def test_tool_versions(parameters: Answer, need: Need) -> None:
    need("iperf3")
    [iperf3] = [
        one for one in parameters["capabilities"] if (one["group"], one["name"]) == ("tools", "iperf3")
    ]
    lines = subprocess.run(["iperf3", "--version"], capture_output=True, text=True, check=True).stdout
    assert iperf3["detail"] in lines.split()
    tools = {one["name"]: one for one in parameters["capabilities"] if one["group"] == "tools"}
    there = {name: one["detail"] for name, one in tools.items() if one["available"] and name != "trex"}
    # The version of a tool begins its line; "unknown version" would be there for one that prints none.
    unknown = {name: text for name, text in there.items() if not re.match(r"\d", text)}
    # The largest programs may print theirs too late on a busy machine.
    late = "unknown version, because it printed none in time"
    slow = {"chromium", "docker", "podman", "tshark"}
    assert {
        name: text for name, text in unknown.items() if name not in slow or not text.startswith(late)
    } == {}


@pytest.fixture
def tracefs(tmp_path: Path, need: Need) -> Iterator[Path]:
    """Mount tracefs for this test only, because the usual mount point may be empty."""
    need("root")
    script = f"mount -t tracefs tracefs {tmp_path} && echo mounted && cat"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "mounted\n"
            yield Path(f"/proc/{holder.pid}/root{tmp_path}")
        finally:
            holder.stdin.close()
            holder.wait(10)


def ours(tracefs: Path) -> list[str]:
    return [path.name for path in (tracefs / "instances").iterdir() if path.name.startswith("labkit-doctor-")]


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def test_doctor_leaves_nothing(tracefs: Path) -> None:
    before = interfaces(), names_in_run(), (tracefs / "current_tracer").read_text()
    left = tracefs / "instances" / "labkit-doctor-killed"  # a killed process would leave this behind
    left.mkdir()
    with subprocess.Popen(
        [*local.prefix(), sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE
    ) as parameters:
        assert parameters.stdout is not None
        children = Path(f"/proc/{parameters.pid}/task/{parameters.pid}/children")
        inner: list[str] = []
        while parameters.poll() is None and not inner:
            inner = children.read_text().split()
        parameters.stdout.read()
        assert parameters.wait(60) == 0
    assert ours(tracefs) == []
    assert (interfaces(), names_in_run(), (tracefs / "current_tracer").read_text()) == before
    assert inner
    assert not Path(f"/proc/{inner[0]}").exists()


@pytest.mark.long
def test_tracing_instance_in_use_is_left_alone(tracefs: Path) -> None:
    code = f"""
import sys, pathlib
from labkit.measure.capabilities import tracing
with tracing.instance(pathlib.Path({str(tracefs)!r})) as own:
    print(own.name, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        ask(local.prefix())
        assert ours(tracefs) == [name]
        other.communicate(timeout=10)
    assert ours(tracefs) == []


@pytest.mark.long
def test_every_topology_is_built(need: Need) -> None:
    need("root", "ip", "veth", "bridge")
    argv = [sys.executable, "-P", "-m", "labkit.cli", "doctor", "--datapaths", "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    answer = json.loads(done.stdout)
    assert answer.keys() == doctor.JSON.keys()
    fields = set(re.findall(r"`(\w+)`", doctor.JSON["capabilities"]))
    assert all(one.keys() == fields for one in answer["capabilities"])
    assert answer["machine"].keys() <= schema.BY_NAME.keys()
    works = available(answer)
    assert TABLE.keys() <= works.keys()
    assert works["veth_bridge"] is True
    for name, kind in (("ipvlan_l2", "ipvlan"), ("vxlan", "vxlan"), ("gre", "gre"), ("ovs", "ovs kernel")):
        assert works[name] is met(kind), name
    groups = {one["name"]: one["group"] for one in answer["capabilities"]}
    assert (groups["ovs_dpdk"], groups["veth_xdp"]) == ("user space", "eBPF acceleration")
    details = {one["name"]: one["detail"] for one in answer["capabilities"]}
    assert details["SR-IOV"].startswith(
        "labkit has no topology for it; it needs a NIC with virtual functions"
    )
    assert details["VPP"].endswith("the packages of the project FD.io, which Debian does not have")
