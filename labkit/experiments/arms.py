"""Arms: the topologies under comparison. Which of them this kernel can build, building them afresh, and the
rows they give."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from labkit import machine, topologies
from labkit.errors import Failed, Isolated, Unsupported
from labkit.experiments import columns
from labkit.experiments.asked import Datapaths
from labkit.experiments.columns import Arm, Measured
from labkit.experiments.events import Surroundings
from labkit.observers.receivers import Receivers
from labkit.topologies.table import ISOLATED
from labkit.traffic import iperf3, ping

# The offloads that change what TCP and UDP datapaths do; VLAN, SCTP and tunnel ones differ between kinds of
# link and do not.
MATTERING = [
    "rx-checksumming",
    "tx-checksumming",
    "scatter-gather",
    "tcp-segmentation-offload",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "large-receive-offload",
    "tx-udp-segmentation",
    "rx-gro-list",
    "rx-udp-gro-forwarding",
]


@dataclass(frozen=True)
class Live:
    """An arm that stands: its topology, and what the interfaces of its first pair say of themselves.

    `offloads` and `qdisc` are of the client, where segmentation and queueing take place; `server_offloads` are
    of the other end.
    """

    arm: Arm
    topology: topologies.Topology
    offloads: dict[str, bool]
    server_offloads: dict[str, bool]
    qdisc: str
    doubts: list[str] = field(default_factory=list)

    def measured(self, metrics: dict[str, Any], doubts: list[str] | None = None) -> Measured:
        """Metrics of this arm, with what is to be doubted about them."""
        doubtful = [*self.doubts, *(doubts or [])]
        told = {
            **columns.now(),
            "qdisc": self.qdisc,
            "offloads": _short(self.offloads) or None,
            "doubts": "; ".join(doubtful) or None,
        }
        return self.arm, {"status": "ok", **told, **metrics}


def _short(offloads: dict[str, bool]) -> str:
    return " ".join(sorted(name for name, on in offloads.items() if on))


def survey(asked: Datapaths, around: Surroundings) -> tuple[list[Arm], list[Measured]]:
    """The arms that can be measured here, baseline first and its control second; and those that cannot, with
    the sentence why.

    Each is built with one pair and tried with a ping that fills the MTU. One arm alone is not compared and
    has no control.
    """
    good, refused = [], []
    for name in asked.topology:
        status, reason = _trial(name, asked, around)
        if status == "failed":
            status, reason = _trial(
                name, asked, around
            )  # one lost ping must not cost an arm, least of all the baseline
        if status == "ok":
            good.append(name)
        else:
            refused.append((Arm(name, "variant"), {"status": status, "reason": reason}))
    arms = [Arm(name, "variant" if number else "baseline") for number, name in enumerate(good)]
    if len(arms) > 1:
        arms.insert(1, Arm(good[0], "control"))
    return arms, refused


def _trial(name: str, asked: Datapaths, around: Surroundings) -> tuple[str, str | None]:
    try:
        with topologies.build(name, asked.spec(1, around.machine_netns)) as topology:
            if name in ISOLATED:
                if ping.silent(topology.pairs[0]):
                    return (
                        "isolated",
                        f"{ISOLATED[name]}; pings were sent and none was answered, as it must be",
                    )
                return (
                    "failed",
                    f"{ISOLATED[name]}, but here a ping was answered: this kernel differs from what labkit knows",
                )
            words = ping.reachable(topology.pairs, asked.mtu_bytes, asked.family)
            return ("ok", None) if words is None else ("failed", words)
    except Unsupported as error:
        return "unsupported", str(error)
    except Isolated as error:
        return "isolated", str(error)
    except Failed as error:
        return "failed", str(error)


@contextmanager
def built(
    asked: Datapaths, around: Surroundings, pairs: int, arms: list[Arm], rng: random.Random
) -> Iterator[tuple[list[Live], list[Measured]]]:
    """All arms standing at once, made afresh in random order and found reachable; and those that were not, as
    failed rows."""
    live: list[Live] = []
    failed: list[Measured] = []
    with ExitStack() as stack:
        for arm in rng.sample(arms, len(arms)):
            try:
                topology = stack.enter_context(
                    topologies.build(arm.topology, asked.spec(pairs, around.machine_netns))
                )
                words = ping.reachable(topology.pairs, asked.mtu_bytes, asked.family)
                if words is not None:
                    raise Failed(words)
                if asked.slices:
                    _keep_window(topology)
                live.append(_live(arm, topology))
            except Failed as error:
                failed.append((arm, {"status": "failed", "reason": str(error)}))
        _compare(live)
        for one in live:
            if one.arm.role == "baseline" and one.arm.topology != asked.topology[0]:
                one.doubts.append(
                    f"{asked.topology[0]} cannot be measured here, so this is the baseline instead"
                )
        yield live, failed


def _live(arm: Arm, topology: topologies.Topology) -> Live:
    client, server = topology.pairs[0].client, topology.pairs[0].server
    near, far = (machine.offloads(end.prefix, end.interface) for end in (client, server))
    return Live(arm, topology, near, far, machine.qdisc(client.prefix, client.interface))


def start(flows: iperf3.Flows, load: iperf3.Load, counters: Receivers, within_s: float) -> bool:
    """Start all flows and wait until data has arrived on every one; False if not in time, or when one has
    ended."""
    before = counters.each()
    flows.start(load)
    deadline = time.monotonic() + within_s
    while not counters.carrying(before):
        if time.monotonic() > deadline or flows.early_end():
            return False
        time.sleep(0.005)
    return True


def _keep_window(topology: topologies.Topology) -> None:
    # A sender that was held for some slices is not a new one: it keeps its congestion window (RFC 2861 off).
    for space in topology.namespaces:
        space.sysctl("ipv4/tcp_slow_start_after_idle", 0)


def _compare(live: list[Live]) -> None:
    """Doubts for arms whose interfaces offload otherwise than the baseline's, or queue otherwise."""
    baseline = next((one for one in live if one.arm.role == "baseline"), None)
    if baseline is None:
        return
    for one in live:
        for end, own, usual in (
            ("client", one.offloads, baseline.offloads),
            ("server", one.server_offloads, baseline.server_offloads),
        ):
            differ = [name for name in sorted(MATTERING) if own.get(name, False) != usual.get(name, False)]
            if differ:
                words = ", ".join(f"{name} {'on' if own.get(name) else 'off'}" for name in differ)
                one.doubts.append(f"offloads of the {end} differ from {baseline.arm.label}: {words}")
        if one.qdisc != baseline.qdisc:
            one.doubts.append(f"qdisc {one.qdisc}, where {baseline.arm.label} has {baseline.qdisc}")
