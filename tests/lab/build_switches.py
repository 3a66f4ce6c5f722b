"""Build switches and report what their own tools show. The tests run this as a program, like an experiment's process.

The first argument is a JSON list of requests. Standard output gets a JSON list of answers.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint
from labkit.measure.topologies.open_vswitch import mirrors, rules
from labkit.measure.topologies.open_vswitch.configuration import COLLECTOR
from labkit.measure.topologies.open_vswitch.copies import COUNTER
from labkit.measure.topologies.open_vswitch.switch import Switch
from labkit.measure.traffic import ping, registry
from labkit.measure.traffic.packet_sender import Mix
from labkit.system import netlink, process

PINGS = 20
QUIET_S = 0.2
PATIENCE_S = 10.0
SAMPLES_S = 2.5  # the agent of sFlow sends at least once a second
COUNTED = (
    "switched_count", "copies_expected_count", "copies_count", "copies_of_mirrors", "copies_unread_count",
)  # fmt: skip


def report(topology: topologies.Topology, *argv: str) -> str:
    """Return what an Open vSwitch command prints in the switch's namespace."""
    switch = topology.switch
    assert switch is not None
    run = ["env", f"OVS_RUNDIR={switch.folder}"]
    return process.output([*switch.space.prefix, *run, *argv])


def seen(topology: topologies.Topology, stray: bool) -> dict[str, Any]:
    """Return what ping, ovs-vsctl, and the counters show."""
    switch = topology.switch
    assert switch is not None
    assert topology.meter is not None
    words = ping.reachable(topology.pairs, topology.spec.mtu_bytes, topology.spec.family)
    for pair in topology.pairs:
        keep_neighbours(pair.client)
        keep_neighbours(pair.server)
    # A copy that arrives late would be counted with the pings.
    settled(topology.meter(), "what was sent before")
    with collected(switch) as samples:
        end = topology.meter()
        for pair in topology.pairs:
            # With a deadline (-w), ping would send another request for each answer that is late.
            process.output([*pair.client.prefix, *ping.argv(pair.server.address, [f"-c{PINGS}", "-i0.01"])])
        counted = settled(end, "the pings")
        sampled = samples() if stray else None
    database = f"--db=unix:{switch.folder / 'db.sock'}"
    return {
        "reachable": words,
        "counted": counted,
        "ports": report(topology, "ovs-vsctl", database, "list-ports", "switch").split(),
        "datapath": report(
            topology, "ovs-vsctl", database, "get", "bridge", "switch", "datapath_type"
        ).strip(),
        "mirrors": report(
            topology, "ovs-vsctl", database, "--bare", "--columns=name", "list", "mirror"
        ).split(),
        "flows": switch.command("dpctl/dump-flows"),
        "readers": [one for one in readers() if stray],
        "read_bytes": written_bytes(),
        "sampled": sampled,
        "offloads": process.output([*topology.pairs[0].client.prefix, "ethtool", "-k", "eth0"]),
    }


def keep_neighbours(endpoint: Endpoint) -> None:
    """Make the known neighbours permanent: on a busy machine the kernel would ask them again while copies are
    counted."""
    for line in process.output([*endpoint.prefix, "ip", "neigh", "show", "dev", "eth0"]).splitlines():
        address, *words = line.split()
        if "lladdr" in words:
            mac = words[words.index("lladdr") + 1]
            change = ["ip", "neigh", "replace", address, "lladdr", mac, "dev", "eth0", "nud", "permanent"]
            process.output([*endpoint.prefix, *change])


def settled(end: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:
    """Return the counters once they have not changed for QUIET_S. The switch delivers a packet before its last copy."""
    deadline, seen, since = time.monotonic() + PATIENCE_S, end(), time.monotonic()
    while time.monotonic() < since + QUIET_S:
        time.sleep(0.01)
        now = end()
        if any(now.get(name) != seen.get(name) for name in COUNTED):
            seen, since = now, time.monotonic()
        assert time.monotonic() < deadline, f"the switch still counts packets {PATIENCE_S:g} s after {what}"
    return seen


@contextmanager
def collected(switch: Switch) -> Iterator[Callable[[], int]]:
    """Listen where the switch sends samples; yield a function that returns the packets that samples described."""
    address, _, port = COLLECTOR.partition(":")
    with netlink.inside(switch.space.fd), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as collector:
        collector.bind((address, int(port)))

        def samples() -> int:
            count, bridges = 0, switch.database.rows("Bridge", "sflow", "ipfix")
            collector.settimeout(SAMPLES_S)
            while any(one["sflow"] or one["ipfix"] for one in bridges):
                try:
                    count += sampled_packets(collector.recv(1 << 16))
                except TimeoutError:
                    break
            return count

        yield samples


def sampled_packets(message: bytes) -> int:
    """Return the number of packets that a datagram of sFlow (version 5) or IPFIX (RFC 7011) describes."""
    if message[:2] == b"\x00\x0a":  # IPFIX: sets of templates have small numbers, those of data 256 and more
        count, at = 0, 16
        while at < len(message):
            kind, length = struct.unpack_from("!HH", message, at)
            count, at = count + (kind >= 256), at + length
        return count
    *_, samples = struct.unpack_from("!7I", message)
    count, at = 0, 28
    for _ in range(samples):
        kind, length = struct.unpack_from("!II", message, at)
        count, at = (
            count + (kind in (1, 3)),
            at + 8 + length,
        )  # flow samples; others have counters of interfaces
    return count


def written_bytes() -> list[int]:
    """Return what each reader of labkit's own has written."""
    result = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        if comm.read_text().strip() == COUNTER:
            words = comm.with_name("io").read_text().split()
            result.append(int(words[words.index("wchar:") + 1]))
    return result


def readers() -> list[str]:
    """Return the running tcpdump programs."""
    lines = process.output(["ps", "-e", "-o", "args="]).splitlines()
    return [line for line in lines if line.startswith(("tcpdump", "/usr/bin/tcpdump", "/usr/sbin/tcpdump"))]


def unbalance(switch: Switch) -> None:
    """Let mirror0 also make the copies that mirror1 no longer makes."""
    for name, row in {"mirror0": {"select_all": True}, "mirror1": {"select_src_port": ["set", []]}}.items():
        switch.configure({"op": "update", "table": "Mirror", "where": [["name", "==", name]], "row": row})
    switch.command("revalidator/purge")


@contextmanager
def unbalanced_first() -> Iterator[None]:
    """Unbalance mirrors before they are proved, and shorten the proof."""
    from unittest import mock  # which takes seconds on an emulated CPU

    prove = mirrors.Mirrors.prove

    def unbalanced(self: mirrors.Mirrors, switch: Switch, pairs: Any) -> None:
        unbalance(switch)
        prove(self, switch, pairs)

    with mock.patch.object(mirrors.Mirrors, "prove", unbalanced), mock.patch.object(mirrors, "PROOF_S", 1.0):
        yield


def loaded(topology: topologies.Topology, vary: str) -> dict[str, Any]:
    """Send a load through a use case of the OVS test plan. Return the datapath's flows, how often each rule
    matched, and what arrived."""
    words = ping.reachable(topology.pairs, 1500, 4)
    mix = Mix((64,), 64_000, (vary,), 2000, 10)
    with registry.find_trial("packets").trials(topology.pairs, mix) as ready:
        ready.trial(10_000, 0.3)  # the switch learns the flows
        for _ in range(5):
            trial = ready.trial(20_000, 0.5, latency=True)
            if trial.received_count > 0.1 * trial.offered_count:  # else the switch got no CPU time
                break
    assert topology.switch is not None
    flows = topology.switch.command("dpctl/dump-flows")
    return asdict(trial) | {"reachable": words, "flows": flows, "used": used(topology)}


def used(topology: topologies.Topology) -> list[int]:
    """Return the number of packets that each rule matched."""
    switch = topology.switch
    assert switch is not None
    switch.command("revalidator/purge")  # updates the counters from the datapath first
    flows = report(topology, "ovs-ofctl", "dump-flows", f"unix:{switch.folder / 'switch.mgmt'}")
    return [int(count) for count in re.findall(r"n_packets=(\d+),.*priority=1\d\d", flows)]


def overfilled(topology: topologies.Topology) -> dict[str, Any]:
    """Add more rules than a table takes. Return the error and the number of rules after it."""
    assert topology.switch is not None
    bridge: dict[str, Any] = {"op": "update", "table": "Bridge", "where": [["name", "==", "switch"]]}
    topology.switch.configure(
        {
            "op": "insert", "table": "Flow_Table", "uuid-name": "small",
            "row": {"flow_limit": 1500, "overflow_policy": "refuse"},
        },
        bridge | {"row": {"flow_tables": ["map", [[0, ["named-uuid", "small"]]]]}},
    )  # fmt: skip
    towards = rules.directions("net_to_vm", rules.Port(1, ""), [rules.Port(10, "02:00:00:00:00:01")])
    try:
        rules.install(topology.switch, "switch", rules.rules("l3", 1000, 4, towards, "02:00:00:00:00:02"))
    except LabkitError as error:
        return {"words": str(error), "rules": len(used(topology))}
    raise AssertionError("all rules fitted")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Build the requested switch and inspect it. `unbalanced`: when its mirrors lose balance, first or later. `vary`:
    it is loaded, with flows that differ in this field. `overfilled`: its table of rules is filled."""
    when, vary, full = (request.pop(name, None) for name in ("unbalanced", "vary", "overfilled"))
    try:
        with (
            unbalanced_first() if when == "first" else nullcontext(),
            topologies.build(request.pop("name"), topologies.Spec(**request)) as topology,
        ):
            if vary or full:
                return loaded(topology, vary) if vary else overfilled(topology)
            if when == "later":
                assert topology.switch is not None
                unbalance(topology.switch)
            return seen(topology, True)
    except LabkitError as error:
        return {"error": type(error).__name__, "text": str(error)}


if __name__ == "__main__":
    print(json.dumps([answer(request) for request in json.loads(sys.argv[1])]))
