"""Build topologies and report what `ip` and `ping` show. The tests run this as a program, like an experiment's process.

The first argument is a JSON list of requests. Standard output gets a JSON list of answers.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

import msgspec

from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.topologies.linux_datapaths import TUNNELS
from labkit.measure.topologies.state import read
from labkit.measure.traffic import ping
from labkit.system import process
from studies.overlay import header_overhead

HEADERS = {4: 28, 6: 48}
OBJECTS = {"links": ["-d", "link"], "addresses": ["addr"], "routes": ["route"], "routes6": ["-6", "route"]}
header_overhead.COUNT = 2  # starting each ping takes 0.15 s on an emulated CPU


def pinged(pairs: list[topologies.Pair], size_bytes: int, wait_s: float = 20.0) -> list[process.Ended]:
    """Ping every pair once, all at the same time, with this payload and without fragmentation. A busy emulated machine
    may answer slowly."""
    words = ["ping", "-n", "-c1", "-i0.2", "-Mdo", f"-s{size_bytes}", f"-w{wait_s:.0f}"]
    programs = [process.Running([*pair.client.prefix, *words, pair.server.address]) for pair in pairs]
    with process.all_ended(programs):
        process.wait(programs, time.monotonic() + wait_s)
        for program in programs:
            program.kill()
        return [program.ended() for program in programs]


def refused(pairs: list[topologies.Pair], size_bytes: int) -> list[str]:
    """Return the errors of pings that exceed the MTU. The kernel refuses them at once, but ping keeps trying."""
    ping = ["sh", "-c", f'exec ping -n -c1 -i0.2 -Mdo -s{size_bytes} -w20 "$0" 2>&1']
    programs = [process.Running([*pair.client.prefix, *ping, pair.server.address]) for pair in pairs]
    deadline = time.monotonic() + 20
    with process.all_ended(programs):
        while time.monotonic() < deadline and not all("too long" in one.output_so_far() for one in programs):
            time.sleep(0.01)
        return [one.output_so_far() for one in programs]


def links(topology: topologies.Topology) -> dict[str, Any]:
    """Return every interface of every namespace as `ip -d` shows it: {namespace: {interface: …}}."""
    result = {}
    for space in topology.namespaces:
        report = json.loads(process.output([*space.prefix, "ip", "-d", "-j", "link", "show"]))
        result[space.name] = {one["ifname"]: one for one in report}
    return result


def beside_ip(topology: topologies.Topology) -> dict[str, Any]:
    """Return what `ip` says of each namespace, and a state that was the same before and after it was asked.

    The kernel gives new interfaces their link-local address, and passes carriers on, up to a second later.
    """
    state = read.state(topology)
    for _ in range(50):
        shown = {
            space.name: {
                what: json.loads(process.output([*space.prefix, "ip", "-j", *words]) or "[]")
                for what, words in OBJECTS.items()
            }
            for space in topology.namespaces
        }
        before, state = state, read.state(topology)
        if state == before:
            return {"state": msgspec.to_builtins(state), "ip": shown}
    raise AssertionError(f"the state of {topology.name} did not settle: {before} became {state}")


def seen(topology: topologies.Topology, isolated: bool, state: str | None) -> dict[str, Any]:
    """Inspect a topology that has been built; `state`: whether its state alone is wanted, or beside what `ip` says."""
    if state == "alone":
        return {"state": msgspec.to_builtins(read.state(topology))}
    spec, pairs = topology.spec, topology.pairs
    answer: dict[str, Any] = {
        "links": links(topology),
        "pairs": [[pair.client.name, pair.client.address, pair.server.name, pair.server.address] for pair in pairs],
        "interfaces": [pair.server.interface for pair in pairs],
    }  # fmt: skip
    if topology.name in TUNNELS:
        answer["state"] = msgspec.to_builtins(read.state(topology))
        answer["headers"] = header_overhead.measure_overhead(topology)
    if state:
        answer |= beside_ip(topology)
    if isolated:
        return answer | {"silent": ping.silent(pairs[0])}
    full = pinged(pairs, spec.mtu_bytes - HEADERS[spec.family])
    more = refused(pairs, spec.mtu_bytes - HEADERS[spec.family] + 1)
    words = ping.reachable(pairs, spec.mtu_bytes, spec.family)
    return answer | {
        "full": [one.returncode == 0 for one in full],
        "ttl": [int(result[1]) for one in full if (result := re.search(r"ttl=(\d+)", one.stdout))],
        "one_more": [output for output in more if "bytes from" in output],
        "one_more_refused": ["message too long" in output.lower() for output in more],
        "reachable": words,
        "too_large": ping.reachable(pairs, spec.mtu_bytes + 1, spec.family) if len(pairs) == 1 else None,
    }


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Build the requested topology and inspect it."""
    name, isolated, state = (request.pop(key, None) for key in ("name", "isolated", "state"))
    try:
        with topologies.build(name, topologies.Spec(**request)) as topology:
            return seen(topology, bool(isolated), state)
    except LabkitError as error:
        return {"error": type(error).__name__, "text": str(error)}


if __name__ == "__main__":
    print(json.dumps([answer(request) for request in json.loads(sys.argv[1])]))
