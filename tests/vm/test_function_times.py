"""function_times and function_graph on a kernel that can trace and that is `here` for labkit, as on a user's machine.

All tests share one boot, also those about containers in a VLAN, and about what root in a lab VM may do here. What one
process can do is done in one, trace_calls.py.
"""

import json
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from qemu_machine import Machine, machine
from sandbox import LABKIT, until

from labkit.common import call_trees
from labkit.measure.hosts import local

pytestmark = pytest.mark.needs(
    "root", "qemu", "lab kernel", "bridge", "iperf3", "perf", "bpftrace", "perf-tools"
)

TRACING = "/sys/kernel/tracing"
STATE = (
    "current_tracer set_ftrace_filter set_graph_function max_graph_depth tracing_on saved_cmdlines_size"
    " kprobe_events options/funcgraph-proc options/funcgraph-tail options/funcgraph-irqs options/sleep-time"
    " options/overwrite trace_clock buffer_size_kb tracing_thresh set_graph_notrace set_ftrace_notrace set_ftrace_pid"
)
JOURNAL = "/run/labkit-tracing.jsonl"
GUARD = "labkit.system.machine.tracing_guard"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the only folder of this machine that the emulated one may write."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def emulated(lab_kernel: str, shared: Path) -> Iterator[Machine]:
    with machine(f"vm:{lab_kernel},cpus=1,profile=tracing", shared) as made:
        before = state(made)
        yield made
        assert state(made) == before


@pytest.fixture(scope="module")
def report(emulated: Machine) -> dict[str, Any]:
    """Return what trace_calls.py prints."""
    done = emulated.run(sys.executable, str(Path(__file__).with_name("trace_calls.py")), timeout=1500)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def state(there: Machine) -> list[str]:
    """Return everything that a tracer changes, and what labkit leaves while it traces."""
    names = [f"{TRACING}/{name}" for name in STATE.split()]
    result = re.sub(r"\d+ \(expanded: (\d+)\)", grown, there.run("grep", "-H", "", *names).stdout)
    return [result, there.run("ls", f"{TRACING}/instances").stdout,
            there.run("ls", JOURNAL).stdout]  # fmt: skip


def grown(size: re.Match[str]) -> str:
    """Return the reported size in KiB of an unused buffer once it is written: whole pages of 4,080 bytes."""
    return f"{-(-int(size[1]) * 1024 // 4080) * 4080 // 1024}"


HELD = """
import time
from labkit.measure.observers.ftrace import session
with session.session(filters=["ip_rcv"]):
    time.sleep(3600)
"""
# Runs under the observer and without it, of which the first round is counted and the second one killed.
RUN = (
    "topology=veth_bridge", "functions=ip_rcv,__netif_receive_skb_core,br_handle_frame", "protocol=udp",
    "length_bytes=64", "duration_s=6", "omit_s=0", "slices=0", "observe=function_times", "profile_rounds=2",
    # Slow enough that the socket drops nothing: these functions also handled packets that the socket drops.
    "rate_bps=5e5",
)  # fmt: skip


def test_guard_restores_tracing_after_a_killed_process(emulated: Machine) -> None:
    before = state(emulated)
    tracing = emulated.start(sys.executable, "-c", HELD)
    assert until(lambda: traces(emulated), PATIENCE_S, 1.0)
    assert state(emulated) != before
    emulated.run("kill", "-9", str(tracing))
    restored(emulated, before)


@pytest.mark.exhaustive  # the counts are those of other programs below, and a whole run is five minutes here
def test_every_packet_is_counted_and_a_killed_run_restores_tracing(emulated: Machine) -> None:
    """The guard outside the experiment restores it."""
    before = state(emulated)
    emulated.start(*LABKIT, "run", "datapaths", *RUN, "--folder", "/tmp/run", LABKIT_DATA="/tmp/data")

    def profiles() -> list[dict[str, Any]]:
        lines = emulated.run("sh", "-c", "cat /tmp/run/rows/*.jsonl").stdout.splitlines()
        return [row for row in map(json.loads, lines) if row["method"] == "profile"]

    # labkit's start on an emulated CPU takes two minutes on a busy machine.
    assert until(lambda: len(profiles()) == 2, 4 * PATIENCE_S, 0.5)
    counted(profiles())
    assert until(lambda: traces(emulated), 3 * PATIENCE_S, 1.0)
    for pid in pids(emulated, "labkit.measure.agent.main"):
        emulated.run("kill", "-9", str(pid))
    restored(emulated, before)
    assert len(profiles()) < 4, "it was killed in the second round"


def counted(profiles: list[dict[str, Any]]) -> None:
    """Check the rows of a round: one under the observer, and one without it."""
    [row] = [row for row in profiles if row["observer"]]
    assert row["status"] in ("ok", "invalid"), row["reason"]
    assert row["observed"]["tracer"] == "function_graph"
    if row["status"] == "ok":  # on a busy machine, flows may not overlap or may not be seen at all
        result, packets = row["observed"]["functions"], row["received_count"]
        # Packets in flight at the start or end of the window are counted on one side only.
        for name, each in (("ip_rcv", 1), ("__netif_receive_skb_core", 2), ("br_handle_frame", 1)):
            assert result[name]["count"] == pytest.approx(each * packets, rel=0.1, abs=each * 300), name
        assert 1e-7 < result["ip_rcv"]["p50_s"] < result["ip_rcv"]["max_s"] < 10
        assert "iperf3" in result["ip_rcv"]["processes"]
        assert 0.5 * row["window_s"] < row["observed"]["window_s"] < 2 * row["window_s"] + 1
    assert (row["lost_samples_count"], row["artefact"]) == (0, None)
    disturbed = row["overhead_ratio"] is not None and row["overhead_ratio"] < 0.85
    assert disturbed == ("disturbed: function_times reduced the speed" in (row["doubts"] or ""))
    assert all(row["observed"] is None for row in profiles if not row["observer"])


def test_calls_of_one_packet(report: dict[str, Any]) -> None:
    one = report["calls"]
    observed, trees = one["observed"], list(call_trees.Reader().read(one["text"].splitlines()))
    assert one["text"].startswith("# tracer: function_graph\n")
    assert [tree.root.total_ns / 1e9 for tree in trees] == [each["duration_s"] for each in observed["trees"]]
    sent = trees[0]
    assert (observed["root"], sent.root.name) == ("udp_sendmsg", "udp_sendmsg")
    assert sum(call.self_ns for call in sent.calls) == sent.root.total_ns
    # All that a datagram meets on its way, and nothing else.
    met = {"__dev_queue_xmit", "veth_xmit", "br_handle_frame", "br_forward_finish", "ip_rcv", "udp_rcv"}
    assert met <= sent.names()
    assert not {"ip_forward", "tcp_sendmsg", "tcp_v4_rcv", "icmp_rcv"} & sent.names()
    # Calls that an interrupt hit while the tracer itself ran are left out.
    roots = observed["roots"]["udp_sendmsg"]
    assert 30 < roots["arrived_count"] <= roots["count"] <= 60
    assert (one["lost"], one["doubts"]) == (0, [])


def test_counts_agree_with_bpf_perf_and_kprobe(report: dict[str, Any]) -> None:
    result = report["counts"]
    tracers = ("own", "bpf", "perf", "kprobe", "tpoint")
    assert {name: result[name][0] for name in tracers} == dict.fromkeys(tracers, 200), result["perf"]
    assert result["kprobe"][1]["processes"]["ping"] > 100
    assert result["kprobe"][1]["values"] == {"0": 200}  # NET_RX_SUCCESS
    assert 0 < result["funcslower"][0] <= 200
    assert 1e-6 <= result["funcslower"][1]["longest_s"] < 10
    assert result["funcslower"][1]["cpus"] == {"0": result["funcslower"][0]}
    # Under emulation, a BPF probe takes as long as ip_rcv.
    assert 1 / 8 < result["own"][1] / result["bpf"][1] < 8
    count, _p50, lost, doubts = result["small"]
    assert count < 1000
    assert lost > 0
    assert "the trace buffer overflowed" in doubts[0]


def test_unknown_functions_are_named(report: dict[str, Any]) -> None:
    for sentence in report["refused"]:
        assert "cannot trace ip_recv (did you mean ip_rcv" in sentence
        assert ", zzz_nothing_zzz;" in sentence


# What `labkit doctor` asks of the tracers, in namespaces like those of its process.
DOCTOR = "from labkit.measure.capabilities import tracing; print([one.detail for one in tracing.tracers()])"


@pytest.mark.exhaustive
def test_doctor_restores_tracing_when_the_guard_was_killed_too(emulated: Machine) -> None:
    before = state(emulated)
    tracing = emulated.start(sys.executable, "-c", HELD)
    assert until(lambda: traces(emulated), PATIENCE_S, 1.0)
    for pid in (*pids(emulated, GUARD), tracing):
        emulated.run("kill", "-9", str(pid))
    assert until(lambda: not pids(emulated, GUARD), PATIENCE_S, 1.0)
    assert state(emulated) != before
    doctor = emulated.run(*local.prefix(), sys.executable, "-c", DOCTOR, timeout=240)
    assert "killed labkit run had left settings changed; restored" in doctor.stdout, doctor
    restored(emulated, before)


def traces(there: Machine) -> bool:
    """Return whether labkit traces there, in an instance or in the shared one."""
    tracers = f"{TRACING}/current_tracer {TRACING}/instances/*/current_tracer"
    return "function_graph" in there.run("sh", "-c", f"cat {tracers}").stdout


def restored(there: Machine, before: list[str]) -> None:
    """Wait until tracing is as it was and nothing of labkit runs there."""
    assert until(lambda: state(there) == before, PATIENCE_S, 1.0), state(there)
    assert until(lambda: not pids(there, GUARD), PATIENCE_S, 1.0)


def test_attach_with_vlan(report: dict[str, Any]) -> None:
    """An existing VLAN device stays. One that was created for a refused request is removed."""
    vlans = report["vlans"]
    one, both = (sorted([*vlans["before"], *more]) for more in (("nic0.100",), ("nic0.100", "nic0.200")))
    assert vlans["attached"] == [
        ["10.100.0.2/24", 0, one],
        ["10.200.0.2/24", 0, both],
        ["10.10.0.2/24", 0, both],
    ]
    assert [there for _, there in vlans["refused"]] == [both] * 3
    for (words, _), says in zip(
        vlans["refused"], ("via 9.9.9.9", "via 9.9.9.9", "macvlan on nic0"), strict=True
    ):
        assert says in words


def test_attach_in_layer_3_mode(report: dict[str, Any]) -> None:
    """It reaches its NIC's far end, and this machine routes for it."""
    assert report["vlans"]["layer 3"] == ["10.6.0.2/24", 0, "l3"]


PYTHON = """
import contextlib, os
os.umask(0)
with contextlib.suppress(OSError):
    os.open("made", os.O_CREAT | os.O_WRONLY, 0o4777)
os.mknod("made by mknod", 0o104777)
"""
BAD = f"""
mknod disk b 8 0; mknod mem c 1 1
cp /bin/true suid; chmod 4755 suid
cp /bin/true sgid; chmod 2755 sgid
cp /bin/true theirs; chown 1000 theirs; chmod 6755 theirs
install -m 4755 /bin/true installed
python3 -I -S -c '{PYTHON}'
"""
GOOD = "touch ordinary; chmod 640 ordinary; mkdir below && echo x > below/file && mv below/file moved; mkfifo pipe"


def test_guest_root_makes_no_setuid_file_or_device(emulated: Machine, shared: Path) -> None:
    """It has the shared folder only, and QEMU runs without any right."""
    done = emulated.run("sh", "-c", f"cd {shared} && {GOOD}")
    assert done.returncode == 0, done.stderr
    emulated.run("sh", "-c", f"cd {shared}\n{BAD}")
    result = {path.name: path.lstat().st_mode for path in shared.rglob("*")}
    assert {"ordinary", "below", "pipe", "moved", "suid", "theirs"} <= result.keys()
    assert stat.S_IMODE(result["ordinary"]) == 0o640
    for name, mode in result.items():
        assert not mode & (stat.S_ISUID | stat.S_ISGID), name
        assert stat.S_IFMT(mode) not in (stat.S_IFBLK, stat.S_IFCHR), name
    mounted = emulated.run("grep", f" {shared} ", "/proc/mounts").stdout
    assert {"nodev", "nosuid"} <= set(mounted.split()[3].split(","))
    status = emulated.host_status()
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"65534"}
    assert status["Groups"].strip() == ""
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"


def pids(there: Machine, word: str) -> list[int]:
    """Return the processes with this word in their command line, without an experiment's unshare(1)."""
    result = []
    for line in there.run("ps", "-eo", "pid,args").stdout.splitlines()[1:]:
        pid, *words = line.split()
        if word in words and Path(words[0]).name != "unshare":
            result.append(int(pid))
    return result
