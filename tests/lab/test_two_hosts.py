"""Two nodes without a lab VM: this machine is both hosts, and each borrows one end of a cable (a veth)."""

import gzip
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from sandbox import LABKIT, Process, Sandbox, also, machine_fixture, one_sentence, only_run, sandbox, until
from searches import searched
from sshd import HOLD, REAL, lab

from labkit.common import run_folder

pytestmark = [
    pytest.mark.long,
    pytest.mark.needs("namespaces", "veth", "bridge", "macvlan", "iperf3", "ping", "ip"),
]

TWO = ("nodes=two", "peer=here")
CABLE = "parent=nic0,far-nic0"
BOTH = "topology=veth_bridge,macvlan_bridge"
SHORT = ("duration_s=1", "omit_s=0")
MEASURED = ("ok", "invalid")  # on a loaded machine, flows may not overlap long enough to count
ARMS = {"veth_bridge", "veth_bridge (again)", "macvlan_bridge"}

machine = machine_fixture(nics=["nic0"])


def ip(machine: Sandbox, *lines: str) -> None:
    for line in lines:
        machine.run("ip", *line.split(), code=0)


def agents(machine: Sandbox) -> list[int]:
    """Return the processes of the two hosts, the servers' first because it is started first."""
    return machine.pids(lambda words: words[1:] == ["-P", "-m", "labkit.measure.agent.main"])


def running(machine: Sandbox, *words: str) -> Process:
    """Start a run and wait for its load."""
    process = machine.start(*LABKIT, "run", "datapaths", *TWO, CABLE, *words, "duration_s=600", "rounds=2")
    argv = ["iperf3", "-J", "-c"]
    assert until(lambda: machine.pids(lambda result: result[:3] == argv), 90), process.poll()
    return process


def test_tcp_rows(machine: Sandbox) -> None:
    before = machine.interfaces()
    rows = machine.rows(*TWO, CABLE, BOTH, "pairs=1,8", *SHORT)
    assert until(lambda: machine.interfaces() == before, 5), machine.interfaces()
    assert until(machine.only_namespace, 20)
    assert {(row["pairs"], row["arm"]) for row in rows} == {(pairs, arm) for pairs in (1, 8) for arm in ARMS}
    for row in rows:
        assert row["status"] in MEASURED, row["reason"]
        assert (row["nodes"], row["peer"], row["parent"]) == ("two", "here", "nic0,far-nic0")
        assert row["method"] == "whole"
        assert row["throughput_bps"] > 1e6
        assert row["received_bytes"] > 0
        assert row["cpu_s"] > 0
        assert row["peer_cpu_s"] > 0
        # Both hosts are this machine.
        for name in ("kernel", "cpu", "accelerator", "machine", "iperf3", "sysctl_digest", "cpus_count"):
            assert row[f"peer_{name}"] == row[name], name
    folder = only_run(machine)
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["peer"]["machine"]["kernel"] == rows[0]["kernel"]
    pages = json.loads(gzip.decompress((folder / "artefacts/8-r0/macvlan_bridge.json.gz").read_bytes()))
    assert len(pages) == 8
    assert all({"start", "end"} <= page[side].keys() for page in pages for side in ("client", "server"))


def test_cable_of_labkit_has_its_rate(machine: Sandbox) -> None:
    before = machine.interfaces()
    rows = machine.rows("nodes=two", BOTH, "link_rate_bps=1e8", "mtu_bytes=9000", "pairs=2", "duration_s=2")
    assert machine.interfaces() == before  # each node's end was in a namespace of its own
    assert {row["arm"] for row in rows} == ARMS
    for row in rows:
        assert row["status"] in MEASURED, row["reason"]
        assert (row["nodes"], row["parent"], row["machine"]) == ("two", None, row["peer_machine"])
    assert 5e7 < max(row["throughput_bps"] for row in rows) < 1.1e8


def test_nic_with_an_index_that_a_port_also_has(machine: Sandbox) -> None:
    """Ports of a topology have indexes from 100, and a NIC of a machine with many interfaces may have one of these."""
    ip(machine, "link del nic0", "link add nic0 index 101 up type veth peer name far-nic0 index 103")
    ip(machine, "link set far-nic0 up")
    before = machine.interfaces()
    [row] = machine.rows(*TWO, CABLE, "topology=veth_bridge", "pairs=2", *SHORT)
    assert row["status"] in MEASURED, row["reason"]
    assert until(lambda: machine.interfaces() == before, 5), machine.interfaces()


def returned(machine: Sandbox) -> dict[str, tuple[int, int]]:
    """Return the index and the promiscuity of the machine's interfaces. Their carrier may come later."""
    return {name: (one["ifindex"], one["promiscuity"]) for name, one in machine.interfaces().items()}


@pytest.mark.needs("openvswitch", "ethtool")
def test_copies_arrive_on_the_other_host(machine: Sandbox) -> None:
    """The cable to the monitor takes half of the copies. The monitored flow, which stays on its host, loses nothing.
    The copies of both mirrors arrive by one cable, and are counted one by one."""
    before = returned(machine)
    name = "ovs_netdev+mirrors=2+output=gre+readers=count+uplink_bps=4000000"
    words = "mirrors=0,2 readers=count output=gre uplink_bps=4e6 loads=udp:512@4e6 mtu_bytes=1400"
    rows = machine.rows(*TWO, CABLE, *words.split(), "rounds=1", *SHORT, experiment="virtual_tap")
    assert {row["arm"] for row in rows} == {"ovs_netdev", "ovs_netdev (again)", name}
    assert all(row["status"] in MEASURED for row in rows), [row["reason"] for row in rows]
    assert {(row["nodes"], row["peer"]) for row in rows} == {("two", "here")}
    for row in rows:
        assert row["switched_count"] == pytest.approx(row["received_count"], rel=0.2, abs=100)
    [copied] = [row for row in rows if row["arm"] == name]
    assert 2e6 < copied["throughput_bps"] < 4.4e6
    assert copied["copies_expected_count"] == pytest.approx(2 * copied["received_count"], rel=0.2, abs=200)
    assert sum(copied["copies_of_mirrors"]) == pytest.approx(copied["copies_count"], abs=20)
    assert len(copied["copies_of_mirrors"]) == 2
    assert min(copied["copies_of_mirrors"]) > 0
    assert copied["unread_of_mirrors"] is None
    assert 0.2 < copied["copies_count"] / copied["copies_expected_count"] < 0.8
    lost_count = copied["copies_expected_count"] - copied["copies_count"]
    # A drop is a refused attempt. The switch sends the two copies of a packet as one batch. If the queue refuses the
    # first, two are lost with one drop. If it refuses the second, that one is tried again, and is lost with two drops
    # (docs/method/virtual_tap.md). The rest of the bound is for copies that are refused once and then pass.
    assert lost_count / 2 - 100 < copied["copies_dropped_count"] < 2.2 * lost_count + 100
    assert copied["copies_unread_count"] == 0
    assert until(lambda: returned(machine) == before, 20), machine.interfaces()
    assert until(lambda: not machine.processes(), 5), machine.processes()


def test_udp_and_ping_rows(machine: Sandbox) -> None:
    udp = machine.rows(*TWO, CABLE, BOTH, "protocol=udp", "rate_bps=4e6", *SHORT)
    ping = machine.rows(*TWO, CABLE, BOTH, "protocol=ping", *SHORT, "family=6")
    for rows in (udp, ping):
        assert {row["arm"] for row in rows} == ARMS
        assert all(row["status"] in MEASURED for row in rows), [row["reason"] for row in rows]
    for row in udp:
        assert row["reported_received_count"] + row["lost_count"] == pytest.approx(row["sent_count"], rel=0.1)
        assert row["jitter_s"] >= 0
    for row in ping:
        assert row["loop"] == "closed"
        assert 0 < row["latency_p50_s"] <= row["latency_max_s"]
        assert row["peer_cpu_s"] >= 0


@pytest.mark.needs("nft")
def test_packet_generator_across(machine: Sandbox) -> None:
    """Senders are on one host and counters on the other. A limit of 20 Mbit/s at the senders' NIC decides the rate."""
    limit = "tc qdisc add dev nic0 root tbf rate 20mbit burst 8kb limit 32kb"
    assert machine.run(*limit.split()).returncode == 0
    search = ("frame_bytes=1518", "width=0.2", "limit_s=20", "min_rate=200pps", "loss=0.005")
    [result], trials = searched(machine, *TWO, CABLE, "topology=macvlan_bridge", *search)
    assert {(row["nodes"], row["peer"]) for row in trials} == {("two", "here")}
    max_pps = 20e6 / 8 / 1514
    assert max(row["lost_count"] for row in trials if row["offered_pps"] > 2 * max_pps) > 0
    if result["status"] == "ok":
        # The buffer of 32 KB carries 21 frames more than the limit.
        assert 0.5 * max_pps < result["throughput_pps"] < 1.5 * max_pps


def test_path_mtu_too_small_is_reported(tmp_path: Path) -> None:
    """Both NICs accept 9000, and a switch between them drops frames longer than 1500."""
    with sandbox(tmp_path, nics=["nic0", "nic1"]) as machine:
        ip(machine, "link add switch type bridge", "link set switch up", "link set nic0 mtu 9000",
           "link set nic1 mtu 9000", "link set far-nic0 master switch", "link set far-nic1 master switch")  # fmt: skip
        rows = machine.rows(
            *TWO, "parent=nic0,nic1", "topology=macvlan_bridge", "mtu_bytes=9000", *SHORT, code=2
        )
        assert [(row["arm"], row["status"]) for row in rows] == [("macvlan_bridge", "unsupported")]
        assert "the path between the two hosts does not carry MTU 9000: a small ping" in rows[0]["reason"]
        [row] = machine.rows(*TWO, "parent=nic0,nic1", "topology=macvlan_bridge", *SHORT)
        assert row["status"] in MEASURED


def test_unusable_nics_are_refused(machine: Sandbox) -> None:
    def refused(*words: str) -> str:
        return one_sentence(machine.labkit("run", "datapaths", *TWO, CABLE, *SHORT, *words))

    before = machine.interfaces()
    assert "far-nic0 has MTU 1500" in refused("topology=macvlan_bridge", "mtu_bytes=9000")
    ip(machine, "address add 192.0.2.1/24 dev nic0")
    assert "parent=nic0 has the address 192.0.2.1/24" in refused("topology=veth_bridge")
    ip(machine, "address flush dev nic0 scope global")
    machine.run("tc", "qdisc", "add", "dev", "nic0", "root", "pfifo", code=0)
    assert "parent=nic0 has the queueing discipline pfifo" in refused("topology=veth_bridge")
    machine.run("tc", "qdisc", "del", "dev", "nic0", "root", code=0)
    ip(machine, "link set far-nic0 down")
    assert "ip link set far-nic0 up" in refused("topology=veth_bridge")
    ip(machine, "link set far-nic0 up")
    assert until(lambda: machine.interfaces() == before, 5)


@pytest.mark.parametrize("whose", [0, 1])
def test_killed_process_of_one_host(whose: int, machine: Sandbox) -> None:
    before = machine.interfaces()
    process = running(machine, "topology=macvlan_bridge")
    os.kill(agents(machine)[whose], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, (out, err)
    last = err.strip().splitlines()[-1]
    assert ("on the servers' host here was killed by signal 9" in last) == (whose == 0), err
    assert "was killed by signal 9" in last
    assert last.endswith("; nothing was measured")  # it was killed in its first round
    assert until(lambda: not machine.processes(), 20), machine.processes()
    assert until(lambda: machine.interfaces() == before, 10)


def test_interrupt_returns_the_nics(machine: Sandbox) -> None:
    """A bridge borrows the NICs from the machine, and Ctrl-C returns them."""
    own = {"net.ipv4.conf.nic0.log_martians": "1", "net.ipv4.neigh.nic0.retrans_time_ms": "500"}
    machine.run("sysctl", "-qw", *(f"{name}={value}" for name, value in own.items()), code=0)
    before = machine.interfaces()
    process = running(machine, "topology=veth_bridge")
    assert "nic0" not in machine.interfaces()
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert until(lambda: not machine.processes(), 20), machine.processes()
    assert until(lambda: machine.interfaces() == before, 10), machine.interfaces()
    assert machine.run("sysctl", "-n", *own).stdout.split() == [*own.values()]
    assert not list(run_folder.read_rows(only_run(machine)))


@pytest.mark.needs("root", "sshd", "user namespaces")
@pytest.mark.parametrize(
    ("where", "peer"),
    [
        ("here", "ssh:lab"),
        ("ssh:lab", "ssh:root@lab"),
        *also("exhaustive", ("ssh:lab", "here"), ("ssh:lab", "ssh:lab")),
    ],
)
def test_one_machine_by_two_names_does_not_deadlock(where: str, peer: str, tmp_path: Path) -> None:
    with lab(tmp_path, nics=["nic0"]) as machine:
        before = machine.interfaces()
        words = (f"where={where}", f"peer={peer}", "nodes=two", CABLE, "topology=macvlan_bridge")
        [row] = machine.rows(*words, *SHORT)
        assert row["status"] in MEASURED, row["reason"]
        assert (row["where"], row["peer"]) == (where, peer)
        assert row["peer_git_revision"] == row["git_revision"]
        assert until(lambda: machine.interfaces() == before, 5)
        assert until(lambda: not machine.over_there(), 20), machine.over_there()


IMPATIENT = """
import sys
from labkit import cli
from labkit.runner import two_hosts
two_hosts.PATIENCE_S = 1.0
sys.exit(cli.main())
"""


@pytest.mark.needs("root", "sshd", "user namespaces")
def test_waiting_for_the_second_host_is_bounded(tmp_path: Path) -> None:
    """Python on the remote side has its own network namespace and therefore another lock, as on a separate machine."""
    with lab(tmp_path, nics=["nic0"]) as machine:
        holder = machine.start("unshare", "--net", sys.executable, "-c", HOLD)
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            machine.says("python3", f'exec nsenter --net=/proc/{holder.pid}/ns/net {REAL} "$@"')
            for where, peer in (("here", "ssh:lab"), ("ssh:lab", "here")):
                words = ("run", "datapaths", "nodes=two", f"where={where}", f"peer={peer}", CABLE, *SHORT)
                sentence = one_sentence(machine.run(sys.executable, "-c", IMPATIENT, *words))
                assert (
                    f"on lab: another measurement is using this machine (process {holder.pid}: " in sentence
                )
                assert sentence.endswith(
                    "the other host waits for at most 1 s: repeat the command when that has ended"
                )
            assert until(lambda: list(machine.over_there()) == [holder.pid], 20), machine.over_there()
        finally:
            holder.kill()
            holder.communicate()
