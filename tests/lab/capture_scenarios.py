"""Capture packets in topologies. The tests run this as a program, like an experiment's process.

The first argument names the scenario, the second is a folder. Standard output gets the results as JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.endpoints import Namespace
from labkit.measure.observers.capture import Capture, CapturePoint, capture, every_interface
from labkit.measure.topologies.network import build, leaf_spine_overlay
from labkit.system import netlink, process

BY_HAND = ("cs1:cs1_br1", "con_ns1:br1_cs1", "con_ns1:vxlan-cont", "lc1:lc1_br1", "sc2:sc2_lc2")


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ping(pair: topologies.Pair, *words: str) -> str:
    return process.output([*pair.client.prefix, "ping", "-q", *words, pair.server.address], 60)


def ends(pair: topologies.Pair) -> list[CapturePoint]:
    return [CapturePoint(end.namespace, end.interface) for end in (pair.client, pair.server)]


@contextlib.contextmanager
def by_hand(hop: CapturePoint, folder: Path) -> Iterator[None]:
    """Run tcpdump at a hop, writing to a file named after the hop."""
    words = ["tcpdump", "-Z", "root", "--immediate-mode", "-n", "-s", "65535", "-i", hop.interface]
    lines = folder / f"{hop.name}.txt"
    script = f'exec "$0" "$@" 2>{lines}'
    argv = [*hop.namespace.prefix, "sh", "-c", script, *words, "-w", str(folder / f"{hop.name}.pcap")]
    program = process.Running(argv)
    with process.all_ended([program]):
        until(lambda: lines.exists() and "listening on" in lines.read_text())
        yield
        program.signal(signal.SIGINT)
        assert not process.wait([program], time.monotonic() + 60)


def agrees(folder: Path) -> Any:
    """Capture in the overlay with labkit at every interface and with tcpdump at some; return labkit's result."""
    with (
        build.build(leaf_spine_overlay.leaf_spine_network(provider="routed")) as built,
        contextlib.ExitStack() as stack,
    ):
        hops = {hop.name: hop for hop in every_interface(built.namespaces)}
        for name in BY_HAND:
            stack.enter_context(by_hand(hops[name], folder))
        with capture(list(hops.values()), folder, snap_bytes=65535) as made:
            lines = [ping(built.pairs[0], "-c5", "-i0.01"), ping(built.pairs[0], "-c2", "-i0.01", "-s1300")]
    return {
        "pings": lines,
        "doubt": made.doubt,
        "counts": {name: asdict(one) for name, one in made.counts.items()},
    }


def received(space: Namespace, name: str) -> int:
    with netlink.inside(space.fd):
        return space.netlink.counters(netlink.index_of(name)).received_count


def flood(folder: Path) -> Any:
    """Send more than the buffer holds while the recorder is stopped, and more than the rate limit allows."""
    with topologies.build("veth", topologies.Spec()) as built:
        pair = built.pairs[0]
        before = [received(end.namespace, end.interface) for end in (pair.client, pair.server)]
        with capture(ends(pair), folder, rate_pps=20, buffer_bytes=1) as made:
            os.kill(made.pid, signal.SIGSTOP)
            ping(pair, "-f", "-c2000")
            os.kill(made.pid, signal.SIGCONT)
        after = [received(end.namespace, end.interface) for end in (pair.client, pair.server)]
        passed = sum(after) - sum(before)
        with capture(ends(pair), folder, name="full", total_bytes=2000) as full:
            ping(pair, "-f", "-c100")
        return {
            "passed": passed, "doubt": made.doubt, "counts": [asdict(one) for one in made.counts.values()],
            "full": [asdict(one) for one in full.counts.values()], "size": full.path.stat().st_size,
        }  # fmt: skip


def killed(folder: Path) -> Any:
    """Kill the recorder after it has written something."""
    with topologies.build("veth", topologies.Spec()) as built:
        pair = built.pairs[0]
        try:
            with capture(ends(pair), folder) as made:
                ping(pair, "-c3", "-i0.01")
                until(lambda: len(made.recorded().frames) == 12)
                os.kill(made.pid, signal.SIGKILL)
        except LabkitError as error:
            report = made.recorded()
            return {"error": str(error), "frames": len(report.frames), "is_whole": report.is_whole}
    return None


def repeated(folder: Path) -> Any:
    """Return what both ends captured of short pings, twenty times."""
    result = []
    with topologies.build("veth", topologies.Spec()) as built:
        for _ in range(20):
            with capture(ends(built.pairs[0]), folder) as made:
                ping(built.pairs[0], "-c2", "-i0.002")
            result.append([len(one.sightings) for one in made.journeys()])
    return result


def refused(folder: Path) -> Any:
    """Return the error messages for what cannot be captured."""
    with topologies.build("veth", topologies.Spec()) as built:
        hops = ends(built.pairs[0])
        missing = CapturePoint(hops[0].namespace, "eth9")
        parameters: list[tuple[list[CapturePoint], dict[str, Any]]] = [
            (hops, {}), ([missing], {}), ([], {}), ([hops[0]] * 2, {}), (hops, {"snap_bytes": 60}),
            (hops, {"rate_pps": 0}), (hops, {"settle_s": math.inf}), (hops, {"settle_s": -1}),
            (hops, {"total_bytes": 96 << 20}),
        ]  # fmt: skip
        return [_refusal(which, folder, more) for which, more in parameters]


def _refusal(hops: list[CapturePoint], folder: Path, more: dict[str, Any]) -> list[str] | None:
    try:
        with capture(hops, folder, **more):
            return None
    except LabkitError as error:
        return [type(error).__name__, str(error)]


def full_disk(folder: Path) -> Any:
    """Capture to a disk of 64 KiB."""
    process.output(["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(folder)])
    with topologies.build("veth", topologies.Spec()) as built:
        pair = built.pairs[0]
        try:
            with capture(ends(pair), folder) as made:
                ping(pair, "-f", "-c2000")
        except LabkitError as error:
            return {"error": str(error), "frames": len(made.recorded().frames)}
    return None


def odd(folder: Path) -> Any:
    """Capture a tagged frame, an interface that goes down and up again, and a block that ends with an error."""
    with topologies.build("veth", topologies.Spec()) as built:
        pair = built.pairs[0]
        space = pair.client.namespace
        with capture(ends(pair), folder) as made:
            with netlink.inside(space.fd), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
                sender.bind((pair.client.interface, 0))
                sender.send(bytes.fromhex("ffffffffffff 020000000001 8100 002a 88b5") + b"labkit" * 10)
            for state in ("down", "up"):
                process.output([*space.prefix, "ip", "link", "set", pair.client.interface, state])
            until(
                lambda: (
                    process.run([*pair.client.prefix, "ping", "-c1", "-W1", pair.server.address]).returncode
                    == 0
                )
            )
        return {"frames": _as_json(made), "left": _after_an_error(ends(pair), folder)}


def switched(folder: Path) -> Any:
    """Return where a ping through an Open vSwitch with a mirror was seen, and its copies."""
    with topologies.build("ovs_netdev+mirrors=1", topologies.Spec()) as built:
        [pair] = built.pairs
        with capture(every_interface(built.namespaces), folder) as made:
            ping(pair, "-c1")
        names = {pair.client.address: "client0", pair.server.address: "server0"}
        return {
            one.what(names): [f"{seen.hop} {seen.direction}" for seen in one.sightings]
            for one in made.journeys()
        }


def _after_an_error(hops: list[CapturePoint], folder: Path) -> bool:
    """Return whether the recorder still runs after the block has failed."""
    try:
        with capture(hops, folder, name="other") as made:
            raise ZeroDivisionError
    except ZeroDivisionError:
        return Path(f"/proc/{made.pid}").exists()


def _as_json(made: Capture) -> list[list[str]]:
    return [[frame.hop, frame.direction, frame.data.hex()] for frame in made.recorded().frames]


if __name__ == "__main__":
    tried = {
        each.__name__: each for each in (agrees, flood, killed, repeated, refused, full_disk, odd, switched)
    }
    print(json.dumps(tried[sys.argv[1]](Path(sys.argv[2]))))
