"""A small run of the experiment `datapaths`: the content of its rows, and agreement with iperf3 typed by hand."""

import json
import os
import re
from typing import Any

import pytest
from sandbox import Row, Sandbox, rows_on_disk, unstarved

from labkit.common import run_folder
from labkit.measure.experiments.early_stop import MIN_ROUNDS
from labkit.measure.hosts import local

pytestmark = pytest.mark.needs(
    "user namespaces", "iperf3", "ip", "ping", "ethtool", "veth", "bridge", "macvlan"
)

IDENTITY = "experiment run point round slice method arm role"
PARAMETERS = (
    "where topology protocol pairs mtu_bytes length_bytes rate_bps streams duration_s omit_s family parent"
)
METRICS = ("throughput_bps throughput_pps window_s received_bytes cpu_s softirq_s client_cpu_s server_cpu_s steal_s "
           "retransmits_count rtt_s sent_count received_count reported_received_count lost_count out_of_order_count "
           "jitter_s loop latency_p50_s latency_p99_s latency_max_s status reason doubts")  # fmt: skip
PROVENANCE = ("kernel kernel_build kernel_config_digest cpu microcode cpus_count accelerator machine qdisc offloads "
              "sysctl_digest iperf3 labkit git_revision seed load1 busy_before_share time")  # fmt: skip
SHORT = ("duration_s=1", "omit_s=0")
CPUS = sorted(os.sched_getaffinity(0))
SLICES = len(CPUS) ** 2  # one for each placement of a client and a server


class Run:
    """A run that is made once and shared by many tests."""

    def __init__(self, machine: Sandbox, name: str, *words: str) -> None:
        self.folder = machine.data / "datapaths" / name
        done = machine.labkit("run", "datapaths", *words, "--json", "--folder", str(self.folder), code=0)
        assert all(line.startswith("labkit: ") for line in done.stderr.splitlines())
        assert f"labkit: the run is in {self.folder}" in done.stderr
        self.rows: list[Row] = [json.loads(line) for line in done.stdout.splitlines()]
        self.described = run_folder.read_json(self.folder / "run.json")

    def where(self, **values: Any) -> list[Row]:
        return [row for row in self.rows if all(row[name] == value for name, value in values.items())]


@pytest.fixture(scope="module")
def tcp(machine: Sandbox) -> Run:
    """Measure two rounds of three arms with two pairs, each with slices and whole runs."""
    words = ("topology=veth,veth_bridge", "pairs=2", "rounds=2", f"slices={SLICES}", "seed=5", *SHORT)
    return Run(machine, "tcp", *words)


@pytest.fixture(scope="module")
def udp(machine: Sandbox) -> Run:
    words = ("protocol=udp", "topology=veth,vxlan", "slices=2", "streams=2", *SHORT)
    return Run(machine, "udp", *words)


@pytest.fixture(scope="module")
def ping(machine: Sandbox) -> Run:
    return Run(machine, "ping", "protocol=ping", "topology=veth", "pairs=2", *SHORT)


def test_rows_have_all_columns_their_provenance_and_a_description(tcp: Run, udp: Run, ping: Run) -> None:
    columns = set(f"{IDENTITY} {PARAMETERS} {METRICS} {PROVENANCE}".split())
    for run in (tcp, udp, ping):
        assert run.rows
        for row in run.rows:
            assert columns <= row.keys(), columns - row.keys()
            assert row.keys() == tcp.rows[0].keys()
    for row in tcp.rows + udp.rows + ping.rows:
        assert (row["status"], row["reason"]) == ("ok", None)
        for name in ("kernel", "cpu", "cpus_count", "accelerator", "sysctl_digest", "labkit", "time", "seed"):
            assert row[name] is not None, name
        assert row["qdisc"] == "noqueue"
        assert "tcp-segmentation-offload" in row["offloads"]
        assert row["load1"] >= 0
        assert 0 <= row["busy_before_share"] <= 1
    assert sorted(map(json.dumps, run_folder.read_rows(tcp.folder))) == sorted(map(json.dumps, tcp.rows))
    assert set(rows_on_disk(tcp.folder)) == {"2-r0.jsonl", "2-r1.jsonl"}
    described = tcp.described
    assert described["experiment"] == "datapaths"
    assert described["seed"] == 5 == described["parameters"]["seed"] == tcp.rows[0]["seed"]
    assert described["why_stopped"] == {"2": "all 2 rounds were measured"}
    assert {"created", "finished", "measuring_s", "run"} <= described.keys()
    environment = run_folder.read_json(tcp.folder / "environment.json")
    assert environment["machine"]["kernel"] == tcp.rows[0]["kernel"]
    assert environment["sysctls"]


def test_arms_points_and_order_of_a_run(tcp: Run, ping: Run) -> None:
    assert {(row["arm"], row["role"]) for row in tcp.rows} == {
        ("veth", "baseline"), ("veth (again)", "control"), ("veth_bridge", "variant"),
    }  # fmt: skip
    assert {row["topology"] for row in tcp.where(role="control")} == {"veth"}
    assert {(row["arm"], row["role"]) for row in ping.rows} == {("veth", "baseline")}
    for number in (0, 1):
        point = tcp.where(round=number)
        assert {(row["point"], row["pairs"]) for row in point} == {(f"2-r{number}", 2)}
        slices = [(row["arm"], row["slice"]) for row in point if row["method"] == "slice"]
        assert len(slices) == len(set(slices)) == 3 * SLICES
        assert {at for _arm, at in slices} == set(range(SLICES))
        wholes = [row["arm"] for row in point if row["method"] == "whole"]
        assert len(wholes) == len(set(wholes)) == 3
        assert all(row["slice"] is None for row in point if row["method"] == "whole")
    # The order is A B B A: the first arm of one round is the last of the next.
    orders = [[row["arm"] for row in tcp.where(round=number, method="whole")] for number in (0, 1)]
    assert orders[0] == orders[1][::-1]
    for point in ("2-r0", "2-r1"):
        kept = {path.name for path in (tcp.folder / "artefacts" / point).iterdir()}
        assert kept == {
            f"{arm}{end}.json.gz"
            for arm in ("veth", "veth_(again)", "veth_bridge")
            for end in ("", "-slices")
        }


def test_slices_of_all_arms_have_every_placement(tcp: Run) -> None:
    """With a block for each placement, the accident of where the kernel runs the ends is in no ratio."""
    everywhere = {f"{client},{server}" for client in CPUS for server in CPUS}
    for number in (0, 1):
        of: dict[int, set[str]] = {}
        for row in tcp.where(round=number, method="slice"):
            of.setdefault(row["slice"], set()).add(row["placement"])
        assert all(len(placements) == 1 for placements in of.values())
        assert {one for placements in of.values() for one in placements} == everywhere
    assert {row["placement"] for row in tcp.where(method="whole")} == {None}


def test_tcp_columns(tcp: Run) -> None:
    for row in tcp.where(method="whole"):
        assert row["throughput_bps"] > 1e6
        assert row["rtt_s"] > 0
        assert row["retransmits_count"] >= 0
        assert row["sent_count"] is row["lost_count"] is row["jitter_s"] is row["latency_p50_s"] is None
        assert 0.5 <= row["window_s"] < 3  # duration_s times TOGETHER, on a loaded machine
        assert row["received_bytes"] > 0
    for row in tcp.where(method="slice"):
        assert row["throughput_bps"] == pytest.approx(row["received_bytes"] * 8 / row["window_s"])
        assert 0.01 <= row["window_s"] < 1
        assert row["rtt_s"] is row["retransmits_count"] is None


@pytest.mark.parametrize("method", ["slice", "whole"])
def test_cpu_seconds_within_the_machines_time(method: str, tcp: Run, udp: Run) -> None:
    for row in tcp.where(method=method) + udp.where(method=method):
        most = row["window_s"] * row["cpus_count"] * 1.1 + 0.02  # the kernel counts in steps of 10 ms
        assert 0 <= row["cpu_s"] <= most
        assert 0 <= row["softirq_s"] <= row["cpu_s"] + 1e-9
        assert 0 <= row["steal_s"] <= most
        if method == "whole":
            assert row["cpu_s"] > 0
            assert 0 < row["client_cpu_s"] <= most
            assert 0 < row["server_cpu_s"] <= most


@pytest.mark.needs("vxlan")
def test_udp_count_columns(udp: Run) -> None:
    for row in udp.where(method="whole"):
        assert row["sent_count"] > 0
        assert row["received_bytes"] == row["received_count"] * 1472 > 0
        assert row["lost_count"] >= 0
        assert row["out_of_order_count"] >= 0
        assert row["jitter_s"] >= 0
        assert row["retransmits_count"] is row["rtt_s"] is None
        # Packets in flight at the edges of the window may be counted at one end only.
        assert row["reported_received_count"] + row["lost_count"] == pytest.approx(row["sent_count"], rel=0.1)
        assert row["reported_received_count"] + row["lost_count"] <= row["sent_count"]
        assert row["length_bytes"] == 1472
        assert row["throughput_bps"] == pytest.approx(row["throughput_pps"] * 1472 * 8, rel=0.02)
    for row in udp.where(method="slice"):
        assert row["received_bytes"] == row["received_count"] * 1472
        assert row["sent_count"] >= 0


@pytest.mark.long
@pytest.mark.needs("vxlan")
def test_paced_sender_keeps_its_rate(machine: Sandbox) -> None:
    words = ("protocol=udp", "topology=veth,vxlan", "rate_bps=10e6", "length_bytes=500", *SHORT)
    rows = unstarved(lambda: machine.rows(*words))
    assert {row["topology"] for row in rows} == {"veth", "vxlan"}
    for row in rows:
        assert (row["status"], row["length_bytes"], row["rate_bps"]) == ("ok", 500, 10e6)
        assert row["throughput_bps"] == pytest.approx(10e6, rel=0.1)
        assert row["lost_count"] <= 0.1 * row["sent_count"]  # a starved server lost 6 %
        assert row["sent_count"] == pytest.approx(10e6 / 8 / 500, rel=0.1)
        # VXLAN's own datagrams are not part of the load, although the kernel counts both in the same place.
        assert row["received_bytes"] * 8 / row["window_s"] == pytest.approx(10e6, rel=0.5)


def test_ping_columns(ping: Run) -> None:
    [row] = ping.rows
    assert (row["method"], row["loop"], row["pairs"]) == ("whole", "closed", 2)
    assert 0 < row["latency_p50_s"] <= row["latency_p99_s"] <= row["latency_max_s"] < 3
    assert row["throughput_bps"] is row["rtt_s"] is None
    assert row["received_count"] <= row["sent_count"] == 2 * 500
    assert row["received_count"] > 0.9 * row["sent_count"]


BY_HAND = """
import json, subprocess, sys, time
run = lambda *argv: subprocess.run(argv, check=True)
run("ip", "netns", "add", "far")
run("ip", "link", "add", "one", "type", "veth", "peer", "name", "two", "netns", "far")
run("ip", "addr", "add", "192.168.7.1/24", "dev", "one")
run("ip", "link", "set", "one", "up")
for words in (["addr", "add", "192.168.7.2/24", "dev", "two"], ["link", "set", "two", "up"]):
    run("ip", "-n", "far", *words)
server = subprocess.Popen(["ip", "netns", "exec", "far", "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
time.sleep(0.5)
done = subprocess.run(["iperf3", "-c", "192.168.7.2", "-t", "1", "-J"], stdout=subprocess.PIPE, text=True)
server.kill()
print(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"])
"""


def test_throughput_agrees_with_iperf3_by_hand(machine: Sandbox) -> None:
    """This is not a speed test. A factor of two would mean bits for bytes, one stream for two, or a different
    window."""
    prefix = [*local.prefix(), "sh", "-c", 'mount -t tmpfs none /run && exec "$0" "$@"']
    ratios = []
    for _ in range(3):  # the machine's load may differ between the two runs of one pair
        done = machine.run(*prefix, "python3", "-c", BY_HAND, code=0)
        [row] = machine.rows("topology=veth", *SHORT)
        ratios.append(row["throughput_bps"] / float(done.stdout))
        if 1 / 2 < ratios[-1] < 2:
            break
    else:
        pytest.fail(f"{ratios}")


@pytest.mark.long
def test_different_offloads_are_a_doubt(machine: Sandbox) -> None:
    """loopback has generic receive offload on, and a veth has it off. The scheduler places the slices here."""
    words = ("topology=veth,loopback", "slices=1", "whole_runs=0", "placement=scheduler")
    rows = machine.rows(*words)
    assert {row["placement"] for row in rows} == {None}
    doubts = {row["arm"]: row["doubts"] for row in rows}
    assert re.search(r"offloads .*differ from veth: generic-receive-offload on", str(doubts["loopback"]))
    assert "offloads" not in str(doubts["veth (again)"])
    assert "offloads" not in str(doubts["veth"])


@pytest.mark.long
def test_early_stop_gives_its_reason(machine: Sandbox) -> None:
    folder = machine.data / "datapaths" / "early"
    words = ("topology=veth,veth_bridge", "pairs=1", "rounds=30", "slices=1", "whole_runs=0", "half_width=1")
    rows = machine.rows(*words, "--folder", str(folder))
    rounds = {row["round"] for row in rows}
    assert MIN_ROUNDS <= len(rounds) < 30
    why = run_folder.read_json(folder / "run.json")["why_stopped"]
    assert why == {"1": f"every half-width was below 100 % after {len(rounds)} of 30 rounds"}


def test_refused_arms_are_rows(machine: Sandbox) -> None:
    words = ("topology=macvlan_private,veth,macvlan_passthru", "pairs=1,2", "slices=1", "whole_runs=0")
    rows = machine.rows(*words)
    refused = [row for row in rows if row["status"] == "isolated"]
    assert {(row["topology"], row["pairs"]) for row in refused} == {
        (name, pairs) for name in ("macvlan_private", "macvlan_passthru") for pairs in (1, 2)
    }
    for row in refused:
        assert row["round"] is row["slice"] is row["method"] is row["throughput_bps"] is None
        assert row["reason"]
    measured = [row for row in rows if row["status"] == "ok"]
    assert [(row["arm"], row["role"]) for row in measured] == [("veth", "baseline")] * 2


@pytest.mark.long
def test_ipv6_at_mtu_9000(machine: Sandbox) -> None:
    [row] = machine.rows("protocol=udp", "family=6", "mtu_bytes=9000", "topology=veth_routed", *SHORT)
    assert (row["status"], row["reason"], row["length_bytes"]) == ("ok", None, 9000 - 48)


@pytest.mark.long
def test_iperf3_options(machine: Sandbox) -> None:
    cpu = min(os.sched_getaffinity(0))
    words = ("topology=veth", "mss_bytes=536", "congestion=reno", "zerocopy=true", f"affinity={cpu},{cpu}",
             "length_bytes=1000", "streams=3", "socket=sndbuf=65536 rcvbuf=65536 nodelay=on", *SHORT)  # fmt: skip
    folder = machine.data / "datapaths" / "options"
    [row] = machine.rows(*words, "--folder", str(folder))
    assert (row["congestion"], row["mss_bytes"], row["streams"]) == ("reno", 536, 3)
    page = json.loads(machine.run("zcat", str(folder / "artefacts/1-r0/veth.json.gz")).stdout)[0]["client"]
    assert page["start"]["sock_bufsize"] == 65536
    assert page["start"]["tcp_mss"] == 536 or page["start"]["tcp_mss_default"] <= 536
    assert (page["start"]["test_start"]["blksize"], page["start"]["test_start"]["num_streams"]) == (1000, 3)
