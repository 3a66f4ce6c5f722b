"""Open vSwitch as a topology: mirrors of a private switch copy the right number of packets, and nothing is left
behind."""

import functools
import gzip
import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from sandbox import (
    LABKIT,
    Row,
    Sandbox,
    also,
    machine_fixture,
    one_sentence,
    only_run,
    printed,
    rows_on_disk,
    sandbox,
    shell_program,
    unstarved,
    until,
)

from labkit.common import run_folder
from labkit.measure.observers.perf import stat
from labkit.measure.topologies.open_vswitch import dpdk

pytestmark = pytest.mark.needs("namespaces", "ip", "ping", "veth", "openvswitch", "ethtool")

Answer = dict[str, Any]
PINGS = 20
SHORT = ("duration_s=1", "omit_s=0")
SAMPLES_IN_DATAGRAM = 11  # with 128 bytes of each header
SEED = int(os.environ.get("LABKIT_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 31)

machine = machine_fixture()


def ask(*names: str, path: str | None = None, **spec: Any) -> list[Answer]:
    requests = [{"name": name, **spec} for name in names]
    program = Path(__file__).with_name("build_switches.py")
    through = () if path is None else ("env", f"PATH={path}")
    answers: list[Answer] = printed(program, json.dumps(requests), timeout_s=120, through=through)
    return answers


def test_userspace_switch_connects_endpoints() -> None:
    [result] = ask("ovs_netdev", pairs=2)
    assert (result["reachable"], result["datapath"]) == (None, "netdev")
    assert sorted(result["ports"]) == ["port0", "port1", "port2", "port3"]
    assert result["mirrors"] == []
    assert result["counted"]["switch_cpu_s"] > 0
    assert result["counted"]["switch_lost_count"] == 0
    assert "copies_count" not in result["counted"]
    assert "tx-checksumming: off" in result["offloads"]
    assert "tx-tcp-segmentation: off" in result["offloads"]


@pytest.mark.parametrize("outputs", [["veth"], *also("long", ["internal", "gre", "erspan", "vxlan", "vlan"])])
def test_mirror_copies(outputs: list[str]) -> None:
    """Requests and replies pass client0's port, and each mirror copies both."""
    for result in ask(*(f"ovs_netdev+mirrors=3+output={one}" for one in outputs)):
        assert "error" not in result, result
        assert result["reachable"] is None
        assert sorted(result["mirrors"]) == ["mirror0", "mirror1", "mirror2"]
        counted = result["counted"]
        assert counted["copies_expected_count"] == counted["copies_count"] == 3 * 2 * PINGS
        assert counted["copies_of_mirrors"] == [2 * PINGS] * 3


@pytest.mark.long
@pytest.mark.parametrize("output", ["gre", *also("exhaustive", "veth")])
def test_copies_are_counted_for_each_mirror(output: str) -> None:
    """One mirror makes the copies of another, so their sum is right. The counts tell them apart, and so does the proof
    before anything is measured."""
    name = f"ovs_netdev+mirrors=3+select=client0:in+output={output}"
    [later], [first] = (ask(name, unbalanced=when) for when in ("later", "first"))
    assert later["counted"]["copies_expected_count"] == later["counted"]["copies_count"] == 3 * PINGS
    assert later["counted"]["copies_of_mirrors"] == [2 * PINGS, 0, PINGS]
    assert first["error"] == "Failed"
    words = r"each mirror should have made (\d+) cop\w+, and (\d+) of mirror0, 0 of mirror1 arrived: "
    counts = re.match(words, first["text"])
    assert counts, first["text"]
    assert int(counts[2]) == 2 * int(counts[1]) > 0


@pytest.mark.long
def test_copies_on_one_cable_without_nftables(tmp_path: Path) -> None:
    """They are not told apart then, and their sum is proved and counted. Mirrors with ports of their own need none."""
    path = shell_program(tmp_path / "bin", "nft", "exit 1")
    names = ("ovs_netdev+mirrors=2+output=gre", "ovs_netdev+mirrors=2")
    shared, separate = (result["counted"] for result in ask(*names, path=path))
    assert shared["copies_expected_count"] == shared["copies_count"] == 2 * 2 * PINGS
    assert "copies_of_mirrors" not in shared
    assert separate["copies_of_mirrors"] == [2 * PINGS] * 2


SELECTED = {
    "select=client0:in": PINGS, "select=server0:out": PINGS, "select=all": 4 * PINGS,
    "select=vlan:2+vlans=2": 2 * PINGS, "snaplen=64": 2 * PINGS, "readers=count": 2 * PINGS,
    "readers=record": 2 * PINGS,
}  # fmt: skip


@pytest.mark.long
def test_mirror_selection() -> None:
    switches = ask(*(f"ovs_netdev+mirrors=1+{words}" for words in SELECTED), pairs=2)
    for (words, count), result in zip(SELECTED.items(), switches, strict=True):
        assert result["counted"]["copies_expected_count"] == result["counted"]["copies_count"], words
        # On a slow machine the kernel asks for a neighbour again while the pings run: a request and an answer of ARP.
        assert 0 <= result["counted"]["copies_count"] - count <= 2, words
        assert result["counted"]["copies_unread_count"] == 0, words
    [written] = result["read_bytes"]
    assert written > count * (14 + 20 + 8 + 56)  # at least the frames of the pings


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ipfix", "sflow"])
def test_samples_reach_a_collector(kind: str) -> None:
    """One of one is sampled. sFlow samples packets that arrive, IPFIX also those that leave."""
    [result] = ask(f"ovs_netdev+sampling={kind}:1")
    assert result["reachable"] is None
    # Seen with Open vSwitch 3.1: a datagram of sFlow leaves when it is full, so the last of them stays in the switch.
    assert result["sampled"] > 2 * PINGS - SAMPLES_IN_DATAGRAM


@pytest.mark.long
def test_private_switch_by_hand(machine: Sandbox) -> None:
    """The tools of Open vSwitch find the switch in the shell and by its process, as docs/DESIGN.md says."""
    script = """
        ovs-vsctl --db=unix:$OVS_RUNDIR/db.sock list-ports switch
        ovs-vsctl --bare --columns=name list mirror
        ovs-ofctl dump-ports switch
        ovs-appctl -t $OVS_RUNDIR/vswitchd.ctl dpctl/show
        set -- $(ps -C ovs-vswitchd -o pid,args | tail -n1)
        nsenter --target $1 --mount ovs-vsctl --db=${3} show
    """
    done = machine.shell(script, "ovs_netdev+mirrors=1")
    assert until(machine.only_namespace, 20)
    assert done.returncode == 0, done.stderr
    assert "its switch: ovs-vsctl show;" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[:4] == ["mirror0", "port0", "port1", "mirror0"]
    assert "OFPST_PORT reply" in lines[4]
    assert re.search(r"^netdev@ovs-netdev:$", done.stdout, re.MULTILINE)
    assert re.search(r'^ +Bridge "?switch"?$', done.stdout, re.MULTILINE)


@pytest.mark.long
@pytest.mark.needs("tcpdump", "root")
def test_mirrored_packets_in_tcpdump() -> None:
    null = Path("/dev/null").stat()
    [result] = ask("ovs_netdev+mirrors=2+readers=tcpdump")
    after = Path("/dev/null").stat()
    assert (after.st_uid, after.st_mode) == (null.st_uid, null.st_mode)
    assert len(result["readers"]) == 2
    assert "copies_unread_count" not in result["counted"], "only tcpdump itself counts what its ring drops"
    assert result["counted"]["copies_count"] == 4 * PINGS


@pytest.mark.long
def test_maximum_number_of_mirrors() -> None:
    [result] = ask("ovs_netdev+mirrors=32")
    actions = [
        len(line.split("actions:")[1].split(","))
        for line in result["flows"].splitlines()
        if "actions:" in line
    ]
    assert set(actions) == {33}
    assert result["counted"]["copies_count"] == 32 * 2 * PINGS


@pytest.mark.long
def test_switches_are_arms_of_an_experiment(machine: Sandbox) -> None:
    """Switches are measured in slices with the A/A control, and every row has the columns of the switch."""
    words = "rounds=1 slices=2 whole_runs=0 protocol=udp length_bytes=512"
    rows = machine.rows("topology=veth_bridge,ovs_netdev,ovs_netdev+mirrors=2", *words.split())
    assert until(machine.only_namespace, 20)
    assert {row["arm"] for row in rows} == {
        "veth_bridge", "veth_bridge (again)", "ovs_netdev", "ovs_netdev+mirrors=2",
    }  # fmt: skip
    assert {row["status"] for row in rows} == {"ok"}
    for row in rows:
        assert (row["switch_cpu_s"] is not None) == row["arm"].startswith("ovs")
        assert (row["copies_count"] is not None) == row["arm"].endswith("mirrors=2")
        if row["copies_count"] is not None:
            # The two counts may differ only by the packets in flight at either edge of the window.
            assert row["copies_count"] == pytest.approx(row["copies_expected_count"], rel=0.2, abs=600)


@pytest.mark.long
@pytest.mark.needs("iperf3")
def test_packet_sizes_on_a_switch(machine: Sandbox) -> None:
    """A datagram of 1,473 bytes is two packets for the switch, and smaller ones are one each."""
    words = "topology=ovs_netdev size_bytes=64,1472,1473 rate_bps=4e6 rounds=1 slices=0 whole_runs=1"
    measure = functools.partial(machine.rows, *words.split(), *SHORT, experiment="packet_size")
    rows = {row["length_bytes"]: row for row in unstarved(measure)}
    assert until(machine.only_namespace, 20)
    assert {(row["status"], row["topology"]) for row in rows.values()} == {("ok", "ovs_netdev")}
    for length_bytes, packets in ((64, 1), (1472, 1), (1473, 2)):
        row = rows[length_bytes]
        assert row["switched_count"] == pytest.approx(packets * row["received_count"], rel=0.1, abs=50)
        assert row["switch_cpu_s"] > 0


@pytest.mark.long
def test_killed_runs_leave_nothing(machine: Sandbox) -> None:
    """One is killed at a random moment after a program of the switch has started, the other when it measures."""
    rng = random.Random(SEED)
    print(f"LABKIT_TEST_SEED={SEED}")
    words = ("topology=ovs_netdev+mirrors=2+readers=count", "rounds=50", "slices=2", "whole_runs=0")
    before = machine.interfaces()
    for moment_s in (rng.random(), None):
        folder = machine.folder / f"run{moment_s}"
        program = machine.start(*LABKIT, "run", "datapaths", *words, "--folder", str(folder))
        assert until(lambda: any("ovsdb-server" in argv for argv in machine.processes().values()), 20)
        if moment_s is None:
            assert until(lambda folder=folder: bool(rows_on_disk(folder)), 30)  # type: ignore[misc]
        else:
            time.sleep(moment_s)
        os.kill(program.pid, signal.SIGKILL)
        program.communicate()
        machine.leaves_nothing(before)


def test_cpu_that_the_host_lacks_is_one_sentence(machine: Sandbox) -> None:
    done = machine.labkit("run", "datapaths", "topology=ovs_netdev+cpu=4000", "rounds=1")
    assert "cpu=4000: there is no CPU 4000 for the switch" in one_sentence(done)


def test_drawings_of_a_switch(machine: Sandbox) -> None:
    """The kernel knows no master of a user-space port. The database does, and it also knows the mirrors."""
    names = ("ovs_netdev+mirrors=1", "ovs_netdev+mirrors=1+output=gre")
    plain, tunnelled = machine.commands(*(f"draw {name}" for name in names)).values()
    lines = plain.stdout.splitlines()
    [port] = [line for line in lines if line.strip().startswith("port0 ")]
    assert "port of switch" in port
    assert "peer client0/eth0" in port
    [output] = [line for line in lines if line.strip().startswith("mirror0 ") and "port of switch" in line]
    assert "copies of port0" in output
    assert any(line.strip().startswith("switch ") and "openvswitch" in line for line in lines)
    [tunnel] = [line for line in tunnelled.stdout.splitlines() if " gre " in line]
    assert "mirror0" in tunnel
    assert "tunnel 198.18.0.1 to 198.18.0.2" in tunnel
    assert "copies of port0" in tunnel


@pytest.mark.long
def test_killed_switch_is_a_failed_row(machine: Sandbox) -> None:
    words = ("topology=veth_bridge,ovs_netdev", "rounds=2", "slices=15", "whole_runs=0")
    program = machine.start(*LABKIT, "run", "datapaths", *words)
    # The survey also builds a switch. The one that survives is that of the first round.
    assert until(lambda: len(machine.pids(lambda one: one[0].endswith("iperf3") and "-c" in one)) == 3, 60)
    [switch] = machine.pids(lambda one: one[0] == "ovs-vswitchd")
    os.kill(switch, signal.SIGKILL)
    program.communicate(timeout=120)
    rows = run_folder.read_rows(only_run(machine))
    assert until(lambda: not machine.processes(), 5)
    assert program.returncode == 2
    first = [row for row in rows if row["topology"] == "ovs_netdev" and row["round"] == 0]
    [failed] = [row for row in first if row["status"] == "failed"]
    assert failed["reason"].startswith("the switch has ended: ovs-vswitchd was ended by SIGKILL")
    assert {row["status"] for row in rows if row["topology"] == "veth_bridge"} == {"ok"}
    assert {row["status"] for row in rows if row["topology"] == "ovs_netdev" and row["round"] == 1} == {"ok"}


@pytest.mark.long
def test_oversized_copies_are_a_doubt(machine: Sandbox) -> None:
    """Open vSwitch drops them, the flow continues, and no counter of the switch shows it."""
    name = "ovs_netdev+mirrors=1+output=gre+uplink_mtu=1500"
    words = ("protocol=ping", "rounds=1", "duration_s=1")
    fits, large = (
        machine.rows(f"topology={name}", f"length_bytes={size}", *words)[0] for size in (1400, 1472)
    )
    assert fits["copies_count"] == fits["copies_expected_count"] > 0
    assert (large["status"], large["copies_count"]) == ("ok", 0)
    assert large["copies_expected_count"] > 0
    doubt = (
        "copies of packets of more than 1458 bytes do not fit the mirror's tunnel and are lost: 1500 (uplink)"
    )
    assert all(doubt in row["doubts"] for row in (fits, large))


@pytest.mark.alone
@pytest.mark.needs("perf", "iperf3", "root")
def test_why_names_what_mirrors_cost(tmp_path: Path) -> None:
    """The load is far below what the switch can carry, so no packet is lost. Each copy is a packet more to send."""
    words = (
        "mirrors=0,8", "readers=", "loads=udp:512@4e7", "rounds=1", "duration_s=1", "omit_s=0",
        "observe=perf_record", "profile_rounds=5",
    )  # fmt: skip
    with sandbox(tmp_path, user=False) as machine:
        done = machine.labkit("run", "virtual_tap", *words, timeout=300, code=0)
        [folder] = (machine.data / "virtual_tap").iterdir()
        done = machine.labkit("why", f"{folder}:ovs_netdev", "ovs_netdev+mirrors=8", "--json", code=0)
        [point] = json.loads(done.stdout)["points"]
    assert point["cause"] == "mirrors"
    assert point["sentence"].startswith("The cause is the change of mirrors from 0 to 8")
    # Each copy is sent through a packet socket, and the switch handles it before: either part can be the larger one.
    assert re.search("(through packet sockets|the switch's own code) costs", point["sentence"])
    assert "for each copy" in point["sentence"]


@pytest.mark.long
@pytest.mark.needs("perf", "iperf3", "root")
def test_perf_watches_the_switch_alone(tmp_path: Path) -> None:
    """perf_stat counts the thesis' events for the threads of ovs-vswitchd: its clock is that of the process,
    which leaves out interrupts and what a hypervisor takes: half of it on a virtual machine with busy neighbours.
    A profile of the machine is reduced to these threads, and the switch reports the averages of its datapath."""
    words = (
        "protocol=udp", "length_bytes=512", "rate_bps=5e6", "rounds=1", "slices=0", "duration_s=1", "omit_s=0",
        "observe=perf_stat,perf_record,switch", "events_of=switch", "profile_rounds=1",
    )  # fmt: skip
    name = "ovs_netdev+mirrors=2"
    with sandbox(tmp_path, user=False) as machine:
        folder = machine.folder / "run"

        def measured() -> list[Row]:
            shutil.rmtree(folder, ignore_errors=True)
            return machine.rows(f"topology=ovs_netdev,{name}", *words, "--folder", str(folder))

        rows = unstarved(measured)
        machine.labkit("why", f"{folder}:ovs_netdev", name, "--processes", "switch", code=0)
        page = (folder / "why.html").read_text().replace("\\", "")
    counted = [row for row in rows if row["observer"] == "perf_stat"]
    assert len(counted) == 3
    for row in counted:
        report = row["observed"]
        assert report["scope"].startswith("processes ")
        assert tuple(report["events"]) == stat.EVENTS
        clock_s = report["events"]["task-clock"]["count"]
        assert 0.7 * row["switch_cpu_s"] < clock_s < min(3 * row["switch_cpu_s"], row["window_s"] + 0.5)
    for row in rows:
        if row["observer"] == "switch":
            averages = row["observed"]["averages"]
            assert averages["datapath passes per packet"] == 1
            assert averages["packets per output batch"] >= 1
            # They were cleared when the observer was armed: nothing before counts.
            assert row["observed"]["caches"]["packets received"] == pytest.approx(
                row["observed"]["datapath"]["hit"], rel=0.1, abs=100
            )
    assert "The events are those of ovs-vswitchd alone." in page
    # Those with most samples are named: in the profile is iperf3 in any case.
    assert re.search(r"of the samples of ovs_netdev are in other processes \(\w", page)
    profiles = [folder / row["artefact"] for row in rows if row["observer"] == "perf_record"]
    assert len(profiles) == 3
    assert all(b"iperf3;" in gzip.decompress(one.read_bytes()) for one in profiles)
    assert "What a packet costs Open vSwitch" in page
    actions = re.findall(r"the busiest flow has the actions ([\w,]+)", page)
    assert [set(one.split(",")) for one in actions] == [{"port1"}, {"port1", "mirror0", "mirror1"}]


@pytest.mark.long
@pytest.mark.needs("iperf3")
def test_loss_per_hop_includes_the_switch(machine: Sandbox) -> None:
    """Mirrors slow the switch down, so its packet socket drops datagrams; a link that is too slow drops copies, and
    the page of `labkit why` names that link."""
    words = (
        "protocol=udp", "length_bytes=512", "rounds=1", "slices=0", "duration_s=1", "omit_s=0", "observe=counters",
        "profile_rounds=1",
    )  # fmt: skip
    name = "ovs_netdev+mirrors=8+output=gre+uplink_bps=10000000"
    folder = machine.folder / "run"
    rows = machine.rows(f"topology=veth_bridge,{name}", *words, "--folder", str(folder))
    machine.labkit("why", f"{folder}:veth_bridge", name, code=0)
    shown = (folder / "why.html").read_text()
    [report] = (row["observed"] for row in rows if row["observer"] == "counters" and row["topology"] == name)
    [pair] = report["loss"]
    assert abs(pair["unexplained_count"]) < 10  # frames of other protocols
    hops = {hop["at"]: hop for hop in pair["hops"]}
    through = hops["between:port0 to port1"]
    assert through["lost_count"] > 1000
    assert through["why"]["port0: packet socket dropped"] == pytest.approx(through["lost_count"], rel=0.05)
    copies = report["copies"]
    assert copies["sent_count"] > 1000
    of_copies = {hop["at"]: hop for hop in copies["hops"]}
    full, after = of_copies["mirrors to between:uplink"], of_copies["between:uplink to the monitor"]
    assert full["lost_count"] > 0.5 * copies["sent_count"]
    # Counted a moment later: the link's queue of 50 ms holds 113 copies of 554 bytes at 10 Mbit/s.
    assert abs(after["lost_count"]) < 200
    assert any("uplink: qdisc tbf" in place for place in full["why"])
    assert "copies: mirrors to between:uplink" in shown
    assert sum(one["arrived_count"] for one in copies["mirrors"].values()) > 0
    assert len(copies["mirrors"]) == 8
    assert "Copies of each mirror" in shown
    assert "mirror7: did not arrive" in shown


# A program of the machine that is replaced, its replacement, and the sentence that the row has.
FAULTS = {
    "database corrupted": ("ovsdb-tool", 'echo "no database" >"$2"', "conf.db"),
    "disk full": (
        "mount", '[ "$4" = mode=1777 ] && exec /usr/bin/mount -t tmpfs -o size=8k "$5" "$6"\nexec /usr/bin/mount "$@"',
        "No space left on device",
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_one_sentence_and_leaves_nothing(fault: str, machine: Sandbox, tmp_path: Path) -> None:
    name, text, sentence = FAULTS[fault]
    path = shell_program(tmp_path / "bin", name, text)
    before = machine.interfaces()
    done = machine.labkit(
        "run", "datapaths", "topology=ovs_netdev", "rounds=1", "slices=1", "whole_runs=0", PATH=path
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert sentence in done.stderr
    machine.leaves_nothing(before, 5)


@pytest.mark.long
def test_switch_on_one_cpu_beside_the_monitor(machine: Sandbox) -> None:
    """A machine with few CPUs says what cannot be separated. labkit's monitor at a port is an arm beside mirrors; the
    switch has a packet socket of its own there."""
    words = ("mirrors=0,1", "readers=count", "cores=thesis", "loads=udp:512", "rounds=1", "slices=1")
    watched = "change=watched: monitor all at between:port0"
    rows = machine.rows(*words, watched, experiment="virtual_tap")
    names = ("ovs_netdev+cpu=0", "ovs_netdev+mirrors=1+readers=count+cpu=0")
    assert {row["arm"] for row in rows if row["change"]} == {f"{name}+watched" for name in names}
    for row in rows:
        assert row["status"] == "ok", row["reason"]
        if row["change"]:
            [effect] = row["changed"]
            assert effect["setting"] == "packet sockets"
            assert ("2 times on port0" in effect["before"], "2 times on port0" in effect["after"]) == (
                False,
                True,
            )
    assert {row["affinity"] for row in rows} == {"0,1"}
    assert all("+cpu=0" in row["topology"] for row in rows)
    shared = "the switch is bound to CPU 0, but this machine has"
    assert all((shared in (row["doubts"] or "")) == (len(os.sched_getaffinity(0)) < 4) for row in rows)


VMS = {"vm0", "vm1", "vm2", "vm3"}


@pytest.mark.long
@pytest.mark.needs("nft")
@pytest.mark.parametrize(
    ("words", "vary", "receivers", "endpoint"),
    [
        pytest.param(
            "case=net_to_vm", "target_mac", VMS, "container", marks=pytest.mark.needs("root", "runc"),
        ),
        ("case=vm_to_net+rules=l3+tunnel=vlan", "target_ip", {"network"}, "namespace"),
        *also("exhaustive", ("case=vm_to_net+rules=l3", "target_ip", {"network"}, "namespace"),
              ("case=net_to_vm+tunnel=vlan", "target_mac", VMS, "namespace")),
        pytest.param(
            "case=net_to_vm+rules=l3+tunnel=vxlan", "target_ip", VMS, "namespace", marks=pytest.mark.needs("vxlan"),
        ),
    ],
)  # fmt: skip
def test_use_cases_of_the_test_plan(words: str, vary: str, receivers: set[str], endpoint: str) -> None:
    [result] = ask(f"ovs_netdev+{words}", pairs=4, endpoint=endpoint, vary=vary)
    assert result["reachable"] is None
    assert len(result["used"]) == 1000
    assert min(result["used"]) > 0  # every rule matched packets
    tag = "push_vlan(vid=1," if receivers == {"network"} else "pop_vlan"
    assert (tag in result["flows"]) == ("tunnel=vlan" in words)
    by = result["received_by"]
    assert set(by) == receivers
    # A switch in user space loses packets on a busy machine.
    assert sum(by.values()) == result["received_count"] > 0.1 * result["offered_count"]
    assert min(by.values()) > 0.5 * max(by.values())
    latency = result["latency"]
    assert 0 < latency["received_count"] <= latency["sent_count"]


@pytest.mark.long
def test_rules_that_do_not_fit_are_one_sentence() -> None:
    [result] = ask("ovs_netdev+case=net_to_vm", overfilled=True)
    assert result["words"].startswith("Open vSwitch refused 1000 rules: ")
    assert "\n" not in result["words"]
    assert result["rules"] == 1000  # no rule of the bundle was added


# What a build of Open vSwitch says that lacks the ports of a kind.
LACKS = {
    "ovs_dpdk": "Open vSwitch has no DPDK here: install Debian's openvswitch-switch-dpdk",
    "ovs_afxdp": "without AF_XDP",
}


@pytest.mark.long
@pytest.mark.parametrize("name", ["ovs_afxdp", "ovs_dpdk+mirrors=2+output=gre", "ovs_dpdk+cpu=0"])
def test_ports_of_user_space_or_unsupported(name: str) -> None:
    """DPDK receives by packet sockets, without huge pages. What is missing is one sentence."""
    [result] = ask(name)
    kind = name.partition("+")[0]
    if kind == "ovs_dpdk":
        assert (result.get("error") == "Unsupported") == (not Path(dpdk.PROGRAM).exists())
    if result.get("error") == "Unsupported":
        assert LACKS[kind] in result["text"]
        return
    assert "error" not in result, result
    assert (result["reachable"], result["datapath"]) == (None, "netdev")
    if "mirrors" in name:
        counted = result["counted"]
        assert counted["copies_count"] == counted["copies_expected_count"]
        assert counted["copies_count"] == len(result["mirrors"]) * 2 * PINGS > 0
