"""Observers around real traffic: what they see, where packets are lost, and that they leave nothing behind."""

import gzip
import itertools
import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import Need
from sandbox import LABKIT, ORDINARY, Sandbox, machine_fixture, one_sentence, only_run, sandbox, until

from labkit.analysis import load
from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint
from labkit.measure.experiments import DatapathParameters
from labkit.measure.observers.perf import control
from labkit.measure.observers.perf import stat as perf_stat
from labkit.measure.observers.registry import TABLE
from labkit.measure.traffic import ping
from labkit.system import netlink, process

pytestmark = pytest.mark.needs("namespaces", "iperf3", "ip", "ping", "veth", "bridge")
SENT, LENGTH = 3000, 400

machine = machine_fixture(user=False)


def bound(end: Endpoint, family: int) -> socket.socket:
    with netlink.inside(end.namespace.fd):
        made = socket.socket(socket.AF_INET6 if family == 6 else socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((end.address, 7000))
    return made


def drained(server: socket.socket) -> int:
    """Read everything available. Return the number of datagrams."""
    server.setblocking(False)
    for count in itertools.count():
        try:
            server.recv(LENGTH)
        except BlockingIOError:
            return count
    return 0


def lose(name: str, family: int, length: int = LENGTH) -> dict[str, Any]:
    """Return the counters of two paths after SENT datagrams to each.

    The first server's path has a queue for only a few datagrams. Nobody reads from the second server's socket.
    """
    parameters = DatapathParameters(topology=(name,), protocol="udp", family=family)
    with topologies.build(name, topologies.Spec(2, family=family)) as topology, ExitStack() as stack:
        if name == "veth_bridge":
            queue = "tc qdisc add dev port1 root tbf rate 20mbit burst 5kb limit 20kb"
            process.output([*topology.namespaces[-1].prefix, *queue.split()])
        # This also lets the bridge learn all addresses.
        assert ping.reachable(topology.pairs, 1500, family) is None
        ends = [
            [stack.enter_context(bound(end, family)) for end in (pair.client, pair.server)]
            for pair in topology.pairs
        ]
        watch = stack.enter_context(TABLE["counters"].armed(parameters, topology, None))  # type: ignore[arg-type]
        with watch.counting():
            read = [0, 0]
            for number, (client, server) in enumerate(ends):
                for _ in range(SENT):
                    client.sendto(bytes(length), server.getsockname())
                    read[number] += drained(server) if number == 0 else 0
            time.sleep(0.3)  # wait for the rest of the queue
            read[0] += drained(ends[0][1])
        for _client, server in ends:
            server.close()  # drops the datagrams that nobody has read
        return {"observed": watch.report().observed, "read": read, "family": family}


@pytest.fixture(scope="module")
def losses(need: Need) -> list[dict[str, Any]]:
    need("root")
    paths = (("veth_bridge", 4), ("veth_routed", 6), ("loopback", 4), ("veth", 4))
    return [
        *(lose(*one) for one in paths),
        lose("veth_bridge", 4, 4000),
        lose("vxlan", 4),
    ]  # fragments, a tunnel


@pytest.mark.needs("vxlan")
def test_losses_add_up_on_every_path(losses: list[dict[str, Any]]) -> None:
    for one in losses:
        for pair, read in zip(one["observed"]["loss"], one["read"], strict=True):
            assert (pair["unit"], pair["sent_count"], pair["received_count"]) == ("datagrams", SENT, read), (
                pair
            )
            # With IPv6, each interface that comes up reports its multicast groups to its neighbours (RFC 3810).
            assert abs(pair["unexplained_count"]) <= (9 if one["family"] == 6 else 0), pair
            explained = sum(hop["lost_count"] for hop in pair["hops"])
            assert explained + pair["unexplained_count"] == pair["lost_count"] == SENT - read


@pytest.mark.needs("vxlan")
def test_short_queue_and_unread_socket_are_located(losses: list[dict[str, Any]]) -> None:
    for one in losses[:4]:
        pairs = one["observed"]["loss"]
        first, second = ([hop for hop in pair["hops"] if abs(hop["lost_count"]) > 9] for pair in pairs)
        at = [hop["at"] for hop in second]
        assert len(at) == 2, at
        assert "UDP socket" in at[0]
        assert "left unread" in at[1]
        socket = "Udp" if one["family"] == 4 else "Udp6"
        assert second[0]["why"][f"{socket} RcvbufErrors"] == second[0]["lost_count"]
        if one is losses[0]:
            [queue] = first
            assert queue["at"] == "between:port0 to port1"
            [(name, dropped)] = queue["why"].items()
            assert name.startswith("qdisc tbf")
            # The queue may also have held another kind of frame, such as a router advertisement.
            assert dropped == pytest.approx(queue["lost_count"], abs=9)
            assert dropped > SENT / 10
        else:
            assert first == []


@pytest.mark.needs("vxlan")
def test_losses_of_fragments_and_tunnels(losses: list[dict[str, Any]]) -> None:
    """With the same queue and socket, the frame counters do not show the losses of either."""
    fragments, tunnel = ([pair["hops"] for pair in one["observed"]["loss"]] for one in losses[4:])
    (way, _, _), (none, socket, unread) = fragments
    assert "on the way" in way["at"]
    assert way["lost_count"] > SENT / 10
    for one in (none, *tunnel[0]):  # a busy machine may lose a few
        assert abs(one["lost_count"]) < SENT / 10
    for one in (socket, tunnel[1][1]):
        assert one["why"]["Udp RcvbufErrors"] == one["lost_count"] > SENT / 10
    assert unread["lost_count"] > 0
    [of_fragments, of_tunnel] = (one["observed"]["loss"][1]["frames"] for one in losses[4:])
    assert of_fragments["sent_count"] >= 3 * SENT
    assert of_tunnel["received_bytes"] > SENT * 400


@pytest.mark.long
@pytest.mark.needs("perf", "macvlan")
def test_observed_arms_and_observer_cost(machine: Sandbox) -> None:
    words = ["topology=veth_bridge,macvlan_bridge", "protocol=udp", "length_bytes=400", "duration_s=1"]
    words += ["omit_s=0", "observe=perf_stat,perf_record,counters", "profile_rounds=1", "keep_perf_data=true"]
    rows = machine.rows(*words, "slices=1")
    folder = only_run(machine)
    profiles = [row for row in rows if row["method"] == "profile"]
    arms = {"veth_bridge", "veth_bridge (again)", "macvlan_bridge"}
    observers = {None, "perf_stat", "perf_record", "counters"}
    assert {(row["arm"], row["observer"]) for row in profiles} == {
        (arm, one) for arm in arms for one in observers
    }
    assert {row["point"] for row in profiles} == {"1-p0"}
    # On a busy machine, flows may not overlap.
    late = [row for row in rows if row["status"] == "invalid" and "ran together" in row["reason"]]
    seen_well = [row for row in profiles if row["status"] == "ok"]
    assert {row["status"] for row in rows if row not in late} == {"ok"}
    assert {row["observer"] for row in seen_well} == observers
    alone = {row["arm"] for row in seen_well if not row["observer"]}
    for row in seen_well:
        assert row["received_count"] * 400 == row["received_bytes"] > 0
        assert row["placement"] == ("balanced" if len(os.sched_getaffinity(0)) > 1 else None)
        assert (row["observer"] is None) == (row["observed"] is None)
        assert (row["overhead_ratio"] is None) == (row["observer"] is None or row["arm"] not in alone)
        seen = row["observed"]
        if row["observer"] == "perf_stat":
            stat(row, seen["events"])
        elif row["observer"] == "perf_record":
            record(row, seen, folder)
        elif row["observer"] == "counters":
            counters(row, seen)
    assert {row["method"] for row in rows} == {"profile", "slice", "whole"}
    loaded = load.load(folder)
    assert len(loaded) == len(rows) - len(profiles)
    assert len(load.measured_rows(loaded)) == sum(loaded["status"] == "ok")
    assert len(load.profiles(folder)) == len(profiles)
    assert len(load.measured_rows(load.profiles(folder))) == 0
    if not late:
        done = machine.labkit("why", str(folder), code=0)
        # What is counted as lost follows, if datagrams are.
        assert "side has a single profiled round" in done.stdout
        assert "br_handle_frame" in (folder / "why.html").read_text(), "the bridge is in one of both alone"


def stat(row: dict[str, Any], events: dict[str, Any]) -> None:
    """Check that perf stat counted during the window only, or gave a reason for not counting."""
    assert len(events) == 16
    clock = events["task-clock"]
    cpus_s = row["window_s"] * row["cpus_count"]
    # On a busy machine, perf may stop late.
    assert 0.5 * cpus_s < clock["count"] < 2 * cpus_s + row["cpus_count"]
    assert events["context-switches"]["count"] > 0
    for event in events.values():
        assert (event["count"] is None) == (event["reason"] is not None)


def counters(row: dict[str, Any], seen: dict[str, Any]) -> None:
    [loss] = seen["loss"]
    assert loss["sent_count"] >= row["sent_count"] > 0
    assert loss["received_count"] >= row["received_count"]
    assert abs(loss["unexplained_count"]) <= 5
    assert sum(cpu.get("NET_RX", 0) for cpu in seen["cpus"].values()) > 0


def record(row: dict[str, Any], seen: dict[str, Any], folder: Path) -> None:
    assert (seen["event"] == "cpu-clock") == ("interrupts are off" in seen.get("note", ""))
    lines = gzip.decompress((folder / row["artefact"]).read_bytes()).decode().splitlines()
    assert len(lines) == seen["stacks_count"]
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == seen["samples_count"]
    sending = [line for line in lines if line.startswith("iperf3;") and ";udp_sendmsg_[k]" in line]
    assert sending, lines[:20]
    if seen["event"] == "cpu-clock" and not row["lost_samples_count"]:
        assert seen["samples_count"] <= 1.3 * row["window_s"] * row["cpus_count"] * seen["frequency_hz"]
    assert (folder / row["artefact"]).with_name(seen["perf_data"]).read_bytes()[:8] == b"PERFILE2"


@pytest.mark.needs("perf")
def test_perf_watches_only_its_target() -> None:
    works, sleeps = (
        process.Running(words) for words in (["sh", "-c", "while :; do :; done"], ["sleep", "100"])
    )
    with process.all_ended([works, sleeps]):
        counts, took_s = [], []
        for scope in (control.Scope(pids=(works.pid,)), control.Scope(pids=(sleeps.pid,))):
            with perf_stat.perf_stat(("task-clock",), scope) as watch:
                begun = time.monotonic()
                with watch.counting():
                    time.sleep(0.5)
                took_s.append(time.monotonic() - begun)
                counts.append(watch.report().observed["events"]["task-clock"]["count"])
    busy_s, asleep_s = counts
    assert 0 < busy_s < took_s[0]
    assert not asleep_s


@pytest.mark.long
@pytest.mark.needs("perf")
def test_killed_run_leaves_no_perf(machine: Sandbox) -> None:
    # With this seed the run under the observer precedes the one without.
    words = ["duration_s=4", "whole_runs=0", "slices=1", "observe=perf_record", "seed=6"]
    running = machine.start(*LABKIT, "run", "datapaths", *words)
    assert until(lambda: machine.pids(lambda words: "--delay=-1" in words and "setpriv" not in words[0]), 60)
    assert until(lambda: machine.pids(lambda words: words[:2] == ["iperf3", "-J"]), 30)
    os.kill(running.pid, signal.SIGKILL)
    running.communicate(timeout=10)
    assert until(lambda: not machine.processes(), 5), machine.processes()
    assert [list(folder.iterdir()) for folder in machine.empty] == [[], [], []]
    left = [path.name for path in only_run(machine).rglob("*") if "perf" in path.name]
    assert left == []


@pytest.mark.needs("perf")
def test_bad_observer_input_is_refused_early(machine: Sandbox) -> None:
    says = {
        "cycles,contxt-switches": "event contxt-switches (did you mean context-sw",
        "nothing:here": "this machine has none of the events nothing:here",
    }
    lines = {
        f"run datapaths observe=perf_stat events={events}": sentence for events, sentence in says.items()
    }
    for line, done in machine.commands(*lines).items():
        assert lines[line] in one_sentence(done)
    assert not list(machine.data.rglob("*.jsonl"))


@pytest.mark.long
@pytest.mark.needs("perf", "user namespaces")
def test_observers_without_privilege(tmp_path: Path) -> None:
    """perf does not work and says so before the run. The counters of labkit's own namespaces do work."""
    with sandbox(tmp_path, ORDINARY) as machine:
        if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) > 0:
            for observer in ("perf_stat", "perf_record"):
                sentence = one_sentence(machine.labkit("run", "datapaths", f"observe={observer}"))
                assert "may not watch the whole machine (kernel.perf_event_paranoid is" in sentence
            assert not list(machine.data.rglob("*.jsonl"))
        rows = machine.rows(
            "protocol=udp", "duration_s=1", "omit_s=0", "observe=counters", "profile_rounds=1"
        )
        [seen] = [row["observed"] for row in rows if row["observer"] == "counters"]
        assert abs(seen["loss"][0]["unexplained_count"]) <= 5
