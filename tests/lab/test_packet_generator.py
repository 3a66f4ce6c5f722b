"""The packet generator agrees with interface counters and a planted rate limit, and reports the end of its process."""

import collections
import json
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

import pytest
from sandbox import also

from labkit.common.errors import LabkitError, Unsupported
from labkit.measure import topologies
from labkit.measure.endpoints import Pair
from labkit.measure.experiments.throughput_search import mlrsearch
from labkit.measure.traffic import latency_probes, packet_agent, registry
from labkit.measure.traffic.base import Trial
from labkit.measure.traffic.packet_ends import frame_addresses, learning_frame
from labkit.measure.traffic.packet_sender import Mix, Sender
from labkit.system import netlink, process

pytestmark = pytest.mark.needs("root", "namespaces", "ip", "nft", "veth", "bridge")
GENERATOR = registry.find_trial("packets")


@contextmanager
def ready(name: str, mix: Mix, **spec: int) -> Iterator[tuple[topologies.Topology, Any]]:
    """Yield a topology, and the generator with this mix between its ends."""
    with topologies.build(name, topologies.Spec(**spec)) as net, GENERATOR.trials(net.pairs, mix) as made:
        yield net, made


def watching(pair: Pair, kind: int = socket.SOCK_RAW) -> socket.socket:
    """Return a socket for all packets of the receiver, with a large buffer."""
    with netlink.inside(pair.server.namespace.fd):
        seen = socket.socket(socket.AF_PACKET, kind, socket.htons(3))
        seen.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        seen.bind(("eth0", 3))
    return seen


@pytest.mark.parametrize(
    "topology",
    [
        "veth_bridge",
        *also("long", "loopback"),
        pytest.param("vxlan", marks=[pytest.mark.needs("vxlan"), pytest.mark.long]),
    ],
)
def test_sent_frames_match_interface_counters(topology: str) -> None:
    with topologies.build(topology, topologies.Spec(pairs=2)) as net:
        for sizes, flows, rate_pps in (((64,), 1, 5e3), ((1518,), 100, 2e4), ((64, 594, 1518), 60_000, None)):
            with GENERATOR.trials(net.pairs, Mix(sizes, flows)) as made:
                trial = made.trial(rate_pps, 0.2)
            sent, received = trial.hops.values()
            assert trial.sent_count == trial.offered_count == trial.received_count > 0
            # Interfaces also count other frames: bridge ports report their multicast groups (IGMP).
            assert 0 <= sent - trial.sent_count < 5
            assert 0 <= received - trial.received_count < 5
            assert (trial.lost_count, trial.loss_ratio) == (0, 0)
            if not trial.generator_limited and rate_pps:
                # A generator that a busy machine keeps waiting sends the same frames later, but never faster.
                assert trial.offered_count == pytest.approx(rate_pps * trial.duration_s, rel=0.02)
                assert trial.offered_pps < 1.02 * rate_pps


def test_trials_of_ipv6() -> None:
    """The shortest frames have room for the headers only, and probes are longer."""
    for size in (66, 1518):
        with ready("veth_routed", Mix((size,), 100), family=6) as (_net, made):
            trial = made.trial(5000, 0.2, latency=True)
        assert trial.sent_count == trial.offered_count == trial.received_count > 0
        latency = trial.latency
        assert (latency.sent_count, latency.lost_count, latency.duplicated_count) == (200, 0, 0)
        assert latency.clock == "kernel"


@pytest.mark.needs("ethtool")
def test_datagrams_that_the_receiver_joins_are_not_counted() -> None:
    """nftables would count a batch as one frame. IPv4's have no checksum, so they are never joined."""
    for family, refuses in ((4, False), (6, True)):
        with topologies.build("veth", topologies.Spec(family=family)) as net:
            end = net.pairs[0].server
            words = ["ethtool", "-K", end.interface, "gro", "on", "rx-udp-gro-forwarding", "on"]
            process.output([*end.prefix, *words])
            refused = pytest.raises(Unsupported, match="with rx-udp-gro-forwarding at eth0 of")
            with refused if refuses else nullcontext(), GENERATOR.trials(net.pairs, Mix((100,))) as made:
                trial = made.trial(20_000, 0.2)
                assert trial.sent_count == trial.received_count > 0


@pytest.mark.parametrize(
    ("flows", "block", "repeats", "first"),
    [(5000, 0, 1, list(range(12))), (30, 5, 3, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1])],
)
def test_flows_are_sent_in_turn_or_in_blocks(flows: int, block: int, repeats: int, first: list[int]) -> None:
    with topologies.build("veth", topologies.Spec()) as net:
        [pair] = net.pairs
        seen = watching(pair)
        with netlink.inside(pair.client.namespace.fd):
            sender = Sender(frame_addresses(pair), Mix((64,), flows, ("source_port",), block, repeats))
        report = sender.send(20_000, 30, flows * repeats)
        assert report.sent_count == flows * repeats
        seen.setblocking(False)
        ports = []
        for _ in range(report.sent_count):
            frame, about = seen.recvfrom(64)
            while about[2] == socket.PACKET_OUTGOING:  # ICMP: nobody listens on the port
                frame, about = seen.recvfrom(64)
            ports.append(int.from_bytes(frame[34:36], "big") - 1024)
        for one in (seen, sender._socket):
            one.close()
    times = collections.Counter(ports)
    assert (len(times), set(times.values()), ports[:12]) == (flows, {repeats}, first)


def test_bursts() -> None:
    """At 20 kpps a burst of 16 frames leaves every 0.8 ms; a busy machine delays some of them."""
    with topologies.build("veth", topologies.Spec()) as net:
        [pair] = net.pairs
        seen = watching(pair)
        seen.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
        with netlink.inside(pair.client.namespace.fd):
            sender = Sender(frame_addresses(pair), Mix(burst_frames=16))
        report = sender.send(20_000, 30, 320)
        sizes, last_s = [0], 0.0
        while sum(sizes) < report.sent_count:
            _, [(_, _, stamp)], _, about = seen.recvmsg(64, 64)
            if about[2] == socket.PACKET_OUTGOING:  # ICMP: nobody listens on the port
                continue
            at_s = struct.unpack("qq", stamp)[0] + struct.unpack("qq", stamp)[1] / 1e9
            if at_s - last_s > 4e-4 and sizes[-1]:
                sizes.append(0)
            sizes[-1] += 1
            last_s = at_s
        for one in (seen, sender._socket):
            one.close()
    assert statistics.mode(sizes) == 16
    assert report.bursts_count == pytest.approx(20, abs=5)


def received_bytes(net: topologies.Topology) -> int:
    return int(net.pairs[0].server.counters().received_bytes)


def test_many_flows_of_mixed_sizes() -> None:
    """Each flow sends one frame, so every prepared frame leaves once. Interfaces do not count FCS."""
    with ready("veth", Mix((64, 594, 9018), 60_000), mtu_bytes=9000) as (net, made):
        before = received_bytes(net)
        trial = made.trial(None, 5.0, count=60_000)
        assert received_bytes(net) - before == 20_000 * (60 + 590 + 9014)
    assert trial.offered_count == trial.sent_count == trial.received_count == 60_000


def test_frames_have_a_vlan_tag() -> None:
    """Frames that fill the MTU too. The receiving interface counts a tag's 4 bytes; both hooks see through it."""
    seen = set[tuple[int, int | None]]()
    with ready("veth", Mix((1518,), 10, vlan=7)) as (net, made):
        one = watching(net.pairs[0], socket.SOCK_DGRAM)
        one.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
        before = received_bytes(net)
        trial = made.trial(5000, 0.2, latency=True)
        assert trial.sent_count == trial.received_count > 0
        assert received_bytes(net) - before == trial.sent_count * (1514 + 4)
        one.setblocking(False)
        for _ in range(trial.sent_count):
            data, about, _flags, sender = one.recvmsg(64, 128)
            [(_level, _kind, content)] = about
            status, *_rest, tci, tpid = struct.unpack("IIIHHHH", content)
            if sender[1] == 0x0800 and data[9] == 17:  # IPv4, UDP
                vlan = tci if status & 0x10 and tpid == 0x8100 else None  # TP_STATUS_VLAN_VALID
                seen.add((int.from_bytes(data[22:24], "big"), vlan))
        one.close()
    assert seen == {(9, 7), (10, 7)}  # the load's port, and that of the probes
    assert (trial.latency.lost_count, trial.latency.clock) == (0, "kernel")


def test_programs_for_guests_count_exactly() -> None:
    """Here they run in namespaces. The counter sees the flows of other MAC addresses than the receiver's too."""
    with topologies.build("veth", topologies.Spec()) as net:
        [pair] = net.pairs
        addresses, mix = asdict(frame_addresses(pair)), asdict(Mix((64,), 1000, ("target_mac",)))
        back = learning_frame(frame_addresses(Pair(pair.server, pair.client)), Mix())
        requests = (
            (pair.server, {"interface": "eth0", "v6": False, "frame": back.hex()}),
            (pair.client, {"addresses": addresses, "mix": mix}),
        )
        programs = []
        for end, request in requests:
            words = [sys.executable, "-I", "-S", packet_agent.__file__, json.dumps(request)]
            pipe = subprocess.PIPE
            programs.append(subprocess.Popen([*end.prefix, *words], stdin=pipe, stdout=pipe))

        def ask(number: int, line: str) -> Any:
            stdin, stdout = programs[number].stdin, programs[number].stdout
            assert stdin is not None
            assert stdout is not None
            stdin.write(line.encode() + b"\n")
            stdin.flush()
            return json.loads(stdout.readline())

        for program in programs:
            assert program.stdout is not None
            program.stdout.readline()
        before = ask(0, '"learn"')["count"], pair.server.counters().received_count
        assert ask(1, "[20000, 1, 4321]")["sent_count"] == 4321
        time.sleep(0.1)
        assert ask(0, '"read"')["count"] - before[0] == 4321
        assert 0 <= pair.server.counters().received_count - before[1] - 4321 < 5
        for program in programs:
            program.communicate()


def test_frame_above_the_mtu_is_one_sentence() -> None:
    words = "^the packet generator at client0 failed: Message too long$"
    with (
        ready("veth", Mix((1518,), 10), mtu_bytes=1000) as (_net, made),
        pytest.raises(LabkitError, match=words),
    ):
        made.trial(5000, 0.2)


def test_loss_above_a_planted_rate_limit() -> None:
    rule = "tc qdisc add dev port1 root tbf rate 40mbit burst 20000 limit 20000"
    with ready("veth_bridge", Mix((512,), 10)) as (net, made):
        process.output([*net.namespaces[-1].prefix, *rule.split()])
        below, above = (made.trial(rate_pps, 0.5) for rate_pps in (3000.0, 40_000.0))
    assert below.lost_count == 0
    assert above.lost_count > 0.5 * above.offered_count
    # tbf counts frames without FCS. The bucket holds 20,000 bytes, and so does the queue at the end.
    assert above.received_count / above.elapsed_s == pytest.approx(40e6 / 8 / 508, rel=0.1)


def test_latency_beside_a_load() -> None:
    with ready("veth_bridge", Mix((64,), 10)) as (_net, made):
        trial = made.trial(20_000, 0.5, latency=True)
    result = trial.latency
    assert result.clock == "kernel"
    assert (result.sent_count, result.lost_count, result.duplicated_count) == (500, 0, 0)
    p50, p90, p99, p999, longest_s = result.percentiles_s.values()
    assert 0 < p50 <= p90 <= p99 <= p999 < 1
    assert longest_s == pytest.approx(p999, rel=10) or longest_s > p999
    assert p50 < 1e-3
    assert result.histogram
    assert trial.sent_count == trial.received_count


def test_buffers_that_hold_a_part_of_the_probes_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without privilege they hold some hundred, and a long trial has more than any buffer holds."""
    monkeypatch.setattr(latency_probes, "RCVBUF_BYTES", 1 << 16)
    with ready("veth_bridge", Mix((64,), 10)) as (_net, made):
        latency = made.trial(3000, 0.5, latency=True).latency
    assert (latency.sent_count, latency.lost_count, latency.clock) == (500, 0, "kernel")


@pytest.mark.long
def test_planted_loss_is_found() -> None:
    """Of each 1,000 frames of the load nft drops 2: it counts instead of drawing random numbers, so a difference is the
    search's. Goals below the planted loss fail at the lowest load. Goals above it have no upper bound."""
    seen = collections.Counter[str]()
    rules = (
        "add table netdev planted",
        "add chain netdev planted some { type filter hook ingress device port0 priority 0 ; }",
        "add rule netdev planted some udp dport 9 numgen inc mod 1000 < 2 drop",
    )
    with ready("veth_bridge", Mix((64,), 10)) as (net, made):
        process.output([*net.namespaces[-1].prefix, "nft", " ; ".join(rules)])

        def measure(rate_pps: float, duration_s: float) -> tuple[Trial, str | None]:
            trial = made.trial(rate_pps, duration_s)
            seen.update(offered=trial.offered_count, lost=trial.lost_count)
            return trial, "limited" if trial.generator_limited else None

        settings = mlrsearch.Settings(trial_s=0.1, sum_s=0.5, exceed_ratio=0.5, width=0.1)
        outcome = mlrsearch.search(measure, settings, (0.0, 0.005, 0.05), 20e3, 40e3, 30.0)
    assert seen["lost"] / seen["offered"] == pytest.approx(0.002, rel=0.05)
    for one in outcome.bounds:
        if one.loss_ratio > 0.002:
            assert one.rate_pps is not None, one
            assert one.upper_pps is None, one
        else:
            assert one.rate_pps is None, one
            assert one.upper_pps == pytest.approx(20e3), one


def test_several_senders_at_once() -> None:
    """Senders that share a CPU count as one load that lasts as long as all of them together."""
    with ready("veth_bridge", Mix((64,), 10), pairs=4) as (_net, made):
        assert len(made.pids) == 4
        for pid in made.pids:
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
        begun_s = time.monotonic()
        fastest = made.trial(None, 0.1)
        took_s = time.monotonic() - begun_s
        paced = [made.trial(8000, 0.3) for _ in range(5)]
    assert fastest.sent_count == fastest.received_count
    # Each sends for 0.1 s. The load lasts at least as long as one of them and at most as long as the call.
    assert 0.1 <= fastest.elapsed_s <= took_s
    assert set(fastest.received_by) == {"server0", "server1", "server2", "server3"}
    for trial in paced:
        assert trial.sent_count == trial.received_count == trial.offered_count
        assert trial.slip_s >= 0
    assert any(trial.offered_count == pytest.approx(2400, rel=0.02) for trial in paced)


def test_killed_generator_is_one_sentence() -> None:
    with topologies.build("veth", topologies.Spec()) as net:
        with GENERATOR.trials(net.pairs, Mix()) as made:
            [pid] = made.pids  # type: ignore[attr-defined]
            threading.Timer(0.2, lambda: os.kill(pid, signal.SIGKILL)).start()
            begun_s = time.monotonic()
            with pytest.raises(
                LabkitError, match=r"^the packet generator at client0 was killed by signal 9$"
            ):
                made.trial(1000, 2.0)
            assert time.monotonic() - begun_s < 1.5
        assert process.output([*net.pairs[0].server.prefix, "nft", "list", "ruleset"]) == ""
    assert not os.path.exists(f"/proc/{pid}")
