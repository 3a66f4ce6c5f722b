"""Run the packet generator in topologies. The tests run this as a program, like an experiment's process.

The argument is a JSON list of scenarios, each with its arguments. Standard output gets their results as JSON.
"""

from __future__ import annotations

import collections
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.endpoints import Pair
from labkit.measure.experiments.throughput_search import mlrsearch
from labkit.measure.topologies.open_vswitch import rules
from labkit.measure.traffic import packet_agent, ping, rates, registry
from labkit.measure.traffic.base import Trial
from labkit.measure.traffic.packet_ends import frame_addresses, learning_frame
from labkit.measure.traffic.packet_sender import Mix, Sender
from labkit.system import netlink, process

GENERATOR = registry.find_trial("packets")


def report(trial: Any) -> dict[str, Any]:
    of_properties = ("lost_count", "loss_ratio", "offered_pps", "generator_limited")
    latency = trial.latency and asdict(trial.latency) | {"lost_count": trial.latency.lost_count}
    return asdict(trial) | {name: getattr(trial, name) for name in of_properties} | {"latency": latency}


def exact(name: str) -> Any:
    """Run trials of several sizes and rates between the ends of a topology."""
    result = []
    with topologies.build(name, topologies.Spec(pairs=2)) as net:
        for sizes, flows, rate_pps in (((64,), 1, 5e3), ((1518,), 100, 2e4), ((64, 594, 1518), 60_000, None)):
            with GENERATOR.trials(net.pairs, Mix(sizes, flows)) as ready:
                result.append(report(ready.trial(rate_pps, 0.2)))
    return result


def ipv6(name: str) -> Any:
    """Run trials of IPv6 frames of the least and of the greatest size, with latency probes beside them."""
    with topologies.build(name, topologies.Spec(family=6)) as net:
        return [report(_trial(net, Mix((size,), 100))) for size in (66, 1518)]


def _trial(net: topologies.Topology, mix: Mix) -> Trial:
    with GENERATOR.trials(net.pairs, mix) as ready:
        return ready.trial(5000, 0.2, latency=True)


def captured(flows: str, block: str, repeats: str) -> Any:
    """Return what a socket at the receiver sees of one pass: how often each flow arrived, and the order of the
    flows."""
    with topologies.build("veth", topologies.Spec()) as net:
        [pair] = net.pairs
        with netlink.inside(pair.server.namespace.fd):
            seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            seen.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
            seen.bind(("eth0", 0))
        mix = Mix((64,), int(flows), ("source_port",), int(block), int(repeats))
        with netlink.inside(pair.client.namespace.fd):
            sender = Sender(frame_addresses(pair), mix)
        count = int(flows) * int(repeats)
        report = sender.send(20_000, 30, count)
        seen.setblocking(False)
        ports = []
        for _ in range(report.sent_count):
            frame, about = seen.recvfrom(64)
            while about[2] == socket.PACKET_OUTGOING:  # ICMP: nobody listens on the port
                frame, about = seen.recvfrom(64)
            ports.append(int.from_bytes(frame[34:36], "big") - 1024)
    times = collections.Counter(ports)
    return {
        "sent": report.sent_count, "times": sorted(set(times.values())), "flows": len(times), "first": ports[:12],
    }  # fmt: skip


def bursts(burst_frames: str) -> Any:
    """Return how many bursts the sender counted, and the sizes of the bursts that arrive, by their time stamps."""
    with topologies.build("veth", topologies.Spec()) as net:
        [pair] = net.pairs
        with netlink.inside(pair.server.namespace.fd):
            seen = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            seen.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
            seen.setsockopt(socket.SOL_SOCKET, 35, 1)  # SO_TIMESTAMPNS
            seen.bind(("eth0", 0))
        with netlink.inside(pair.client.namespace.fd):
            sender = Sender(frame_addresses(pair), Mix(burst_frames=int(burst_frames)))
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
    return {"counted": report.bursts_count, "sizes": sizes}


def mixed(flows: str) -> Any:
    """Send one frame of each flow, with the sizes of IMIX in turn. Return the bytes that the receiver's interface
    counted."""
    fields = ("source_port", "target_port")
    with topologies.build("veth", topologies.Spec()) as net:
        with GENERATOR.trials(net.pairs, Mix(rates.IMIX, int(flows), fields)) as ready:
            before = net.pairs[0].server.counters()
            trial = ready.trial(None, 5.0, count=int(flows))
            after = net.pairs[0].server.counters()
    return report(trial) | {"bytes": after.received_bytes - before.received_bytes}


def tagged() -> Any:
    """Send frames with a VLAN tag, also as probes; return the VLANs that a socket at the receiver sees, by port."""
    seen: dict[int, list[int | None]] = {}
    with topologies.build("veth", topologies.Spec()) as net:
        [pair] = net.pairs
        with netlink.inside(pair.server.namespace.fd):
            one = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
            one.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
            one.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
            one.bind(("eth0", 0x0003))
        with GENERATOR.trials(net.pairs, Mix((1518,), 10, vlan=7)) as ready:
            before = pair.server.counters()
            trial = ready.trial(5000, 0.2, latency=True)
            after = pair.server.counters()
        one.setblocking(False)
        for _ in range(trial.sent_count):
            data, about, _flags, sender = one.recvmsg(64, 128)
            [(_level, _kind, content)] = about
            status, *_rest, tci, tpid = struct.unpack("IIIHHHH", content)
            if sender[1] == 0x0800 and data[9] == 17:  # IPv4, UDP
                vlan = tci if status & 0x10 and tpid == 0x8100 else None  # TP_STATUS_VLAN_VALID
                seen.setdefault(int.from_bytes(data[22:24], "big"), []).append(vlan)
    bytes_count = after.received_bytes - before.received_bytes
    return report(trial) | {
        "bytes": bytes_count,
        "seen": {port: sorted(set(vlans)) for port, vlans in seen.items()},
    }


def agents() -> Any:
    """Send and count by the programs that run in guests, here in namespaces."""
    with topologies.build("veth", topologies.Spec()) as net:
        [pair] = net.pairs
        addresses, mix = asdict(frame_addresses(pair)), asdict(Mix((64,), 1000, ("target_mac",)))
        back = learning_frame(frame_addresses(Pair(pair.server, pair.client)), Mix())
        requests = [
            (pair.server, {"interface": "eth0", "v6": False, "frame": back.hex()}),
            (pair.client, {"addresses": addresses, "mix": mix}),
        ]
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
        before = [ask(0, '"learn"')["count"], pair.server.counters().received_count]
        sent = ask(1, "[20000, 1, 4321]")
        time.sleep(0.1)
        counts = [ask(0, '"read"')["count"], pair.server.counters().received_count]
        for program in programs:
            program.communicate()
    return {"sent": sent, "counted": [now - then for now, then in zip(counts, before, strict=True)]}


def jumbo() -> Any:
    """Send a frame with 9,000 bytes of IP."""
    with topologies.build("veth", topologies.Spec(mtu_bytes=9000)) as net:
        with GENERATOR.trials(net.pairs, Mix((9018,), 10)) as ready:
            before = net.pairs[0].server.counters()
            trial = ready.trial(5000, 0.2)
            after = net.pairs[0].server.counters()
    return report(trial) | {"bytes": after.received_bytes - before.received_bytes}


def too_large() -> Any:
    """Send frames above the MTU, which the caller should have checked."""
    with topologies.build("veth", topologies.Spec(mtu_bytes=1000)) as net:
        with GENERATOR.trials(net.pairs, Mix((1518,), 10)) as ready:
            try:
                ready.trial(5000, 0.2)
            except LabkitError as error:
                return str(error)


def limited(rate_bps: str) -> Any:
    """Send below and above the rate limit (tbf) of a bridge's port to the receiver."""
    with topologies.build("veth_bridge", topologies.Spec()) as net:
        rule = ["tc", "qdisc", "add", "dev", "port1", "root", "tbf", "rate", rate_bps]
        process.output([*net.namespaces[-1].prefix, *rule, "burst", "20000", "limit", "20000"])
        with GENERATOR.trials(net.pairs, Mix((512,), 10)) as ready:
            return [report(ready.trial(rate_pps, 0.5)) for rate_pps in (3000.0, 40_000.0)]


def latency() -> Any:
    """Send latency probes beside a load."""
    with topologies.build("veth_bridge", topologies.Spec()) as net:
        with GENERATOR.trials(net.pairs, Mix((64,), 10)) as ready:
            return [report(ready.trial(20_000, 0.5, latency=True)) for _ in range(2)]


def planted_loss(permille: str) -> Any:
    """Search on a bridge that drops this many of each 1,000 frames of the load (nft(8), numgen).

    It counts instead of drawing random numbers: so the planted share does not vary, and a difference is the search's.
    """
    seen = collections.Counter[str]()
    with topologies.build("veth_bridge", topologies.Spec()) as net:
        rules = (
            "add table netdev planted",
            "add chain netdev planted some { type filter hook ingress device port0 priority 0 ; }",
            f"add rule netdev planted some udp dport 9 numgen inc mod 1000 < {int(permille)} drop",
        )
        process.output([*net.namespaces[-1].prefix, "nft", " ; ".join(rules)])
        with GENERATOR.trials(net.pairs, Mix((64,), 10)) as ready:

            def measure(rate_pps: float, duration_s: float) -> tuple[Trial, str | None]:
                trial = ready.trial(rate_pps, duration_s)
                seen.update(offered=trial.offered_count, lost=trial.lost_count)
                return trial, "limited" if trial.generator_limited else None

            settings = mlrsearch.Settings(trial_s=0.1, sum_s=0.5, exceed_ratio=0.5, width=0.1)
            outcome = mlrsearch.search(measure, settings, (0.0, 0.005, 0.05), 20e3, 40e3, 30.0)
    return {"bounds": [asdict(one) for one in outcome.bounds], "ratio": seen["lost"] / seen["offered"]}


def use_case(name: str, vary: str, endpoint: str) -> Any:
    """Send a load through a use case of the OVS test plan. Return how often each rule matched."""
    with topologies.build(name, topologies.Spec(pairs=4, endpoint=endpoint)) as net:
        words = ping.reachable(net.pairs, 1500, 4)
        with GENERATOR.trials(net.pairs, Mix((64,), 64_000, (vary,), 2000, 10)) as ready:
            ready.trial(10_000, 0.3)  # the switch learns the flows
            for _ in range(5):
                trial = ready.trial(20_000, 0.5, latency=True)
                if trial.received_count > 0.1 * trial.offered_count:  # else the switch got no CPU time
                    break
        return report(trial) | {"reachable": words, "used": _used(net)}


def _used(net: topologies.Topology) -> list[int]:
    """Return the number of packets that each rule matched."""
    assert net.switch is not None
    net.switch.command("revalidator/purge")  # updates the counters from the datapath first
    argv = ["ovs-ofctl", "dump-flows", f"unix:{net.switch.folder / 'switch.mgmt'}"]
    lines = process.output([*net.switch.space.prefix, *argv]).splitlines()
    return [int(count) for line in lines for count in re.findall(r"n_packets=(\d+),.*priority=1\d\d", line)]


def full_table() -> Any:
    """Add more rules than a table takes. Return the error and the number of rules after it."""
    with topologies.build("ovs_netdev+case=net_to_vm", topologies.Spec(pairs=1)) as net:
        assert net.switch is not None
        table = {"flow_limit": 1500, "overflow_policy": "refuse"}
        tables = ["map", [[0, ["named-uuid", "small"]]]]
        net.switch.configure(
            {"op": "insert", "table": "Flow_Table", "uuid-name": "small", "row": table},
            {
                "op": "update",
                "table": "Bridge",
                "where": [["name", "==", "switch"]],
                "row": {"flow_tables": tables},
            },
        )
        towards = rules.directions("net_to_vm", rules.Port(1, ""), [rules.Port(10, "02:00:00:00:00:01")])
        lines = rules.rules("l3", 1000, 4, towards, "02:00:00:00:00:02")
        try:
            rules.install(net.switch, "switch", lines)
        except LabkitError as error:
            return {"words": str(error), "rules": len(_used(net))}


def together(pairs: str) -> Any:
    """Run several senders on one CPU, at full speed and at a fixed rate."""
    with topologies.build("veth_bridge", topologies.Spec(pairs=int(pairs))) as net:
        with GENERATOR.trials(net.pairs, Mix((64,), 10)) as ready:
            pids = ready.pids  # type: ignore[attr-defined]
            for pid in pids:
                os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
            begun = time.monotonic()
            trial = ready.trial(None, 0.1)
            took_s = time.monotonic() - begun
            paced = [report(ready.trial(8000, 0.3)) for _ in range(5)]
    return {"pids": len(pids), "trial": report(trial), "took_s": took_s, "paced": paced}


def killed() -> Any:
    """Kill a sender in the middle of a trial. Return what is left of it."""
    with topologies.build("veth", topologies.Spec()) as net:
        with GENERATOR.trials(net.pairs, Mix()) as ready:
            [pid] = ready.pids  # type: ignore[attr-defined]
            threading.Timer(0.2, lambda: os.kill(pid, signal.SIGKILL)).start()
            begun = time.monotonic()
            try:
                ready.trial(1000, 2.0)
            except LabkitError as error:
                words = str(error)
            took_s = time.monotonic() - begun
        left = process.output([*net.pairs[0].server.prefix, "nft", "list", "ruleset"])
    return {"words": words, "took_s": took_s, "alive": os.path.exists(f"/proc/{pid}"), "left": left}


if __name__ == "__main__":
    print(json.dumps([globals()[what](*words) for what, *words in json.loads(sys.argv[1])]))
