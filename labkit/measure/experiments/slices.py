"""Slices: all arms have established flows, and one arm at a time sends for 100 ms, in random order.

Adjacent slices see similar background noise, and their ratio cancels it. On two shared virtual cores, slices find in
a minute a difference that rounds of two seconds do not find in an hour. The first 30 ms of a slice are not measured:
the sender's caches and the queues of the previous slice settle.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from labkit.common import run_folder
from labkit.common.errors import Failed
from labkit.measure.experiments import server_counters
from labkit.measure.experiments.built_arm import LocalArm
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Measured
from labkit.measure.observers.counters.receive_counters import Receivers, receivers
from labkit.measure.traffic.base import FlowGenerator, Flows
from labkit.system import machine

SLICE_S = 0.1
SETTLE_S = 0.03
ESTABLISH_S = 10.0


class Sender:
    """An arm with its established flows and the counters of its receivers."""

    def __init__(self, live: LocalArm, flows: Flows, counters: Receivers) -> None:
        self.live = live
        self.flows = flows
        self.counters = counters
        self.problem: str | None = None

    def establish(self) -> None:
        """Start the flows, wait until data arrives on each of them, and hold them. Raises Failed if data is late."""
        ready = server_counters.LocalServer(self.flows, self.counters)
        self.flows.stage()
        self.flows.go()
        if not ready.carrying(ESTABLISH_S):
            words = self.flows.early_end()
            late = f"not every flow of {self.live.arm.label} carried data within {ESTABLISH_S:.0f} s"
            raise Failed(words or late)
        self.flows.hold()

    def slice(self, number: int) -> Measured:
        """Send for slice `number` and return its row: the counters of SETTLE_S to SLICE_S."""
        end = time.monotonic() + SLICE_S
        self.flows.go()
        time.sleep(SETTLE_S)
        metered = self.live.metered()
        times, begin, before = machine.cpu_times(), time.monotonic(), self.counters.read()
        time.sleep(max(0.01, end - time.monotonic()))
        now, finish, total = machine.cpu_times(), time.monotonic(), self.counters.read()
        joined = metered()
        self.flows.hold()
        self.problem = self.flows.early_end()
        window, passed, used = finish - begin, total - before, now - times
        return self.live.measured(
            {
                "method": "slice",
                "slice": number,
                "window_s": window,
                "throughput_bps": passed.received_bytes * 8 / window,
                "throughput_pps": passed.received_count / window,
                "received_bytes": passed.received_bytes,
                "received_count": passed.received_count,
                "sent_count": passed.sent_count,
                "fragments_count": passed.fragments_count,
                "cpu_s": used.busy_s,
                "softirq_s": used.softirq_s,
                "steal_s": used.steal_s,
                **joined,
            },
            machine.stolen(used.steal_s, window),
        )


def measure(
    parameters: DatapathParameters, live: list[LocalArm], rng: random.Random, artefacts: Path
) -> list[Measured]:
    """Measure `parameters.slices` slices of every arm and return their rows.

    An arm whose flows fail gives one failed row, and no slices after it.
    """
    generator = parameters.load_generator
    assert isinstance(generator, FlowGenerator)  # Generator.check: slices need one that can be held
    rows: list[Measured] = []
    with ExitStack() as stack:
        senders = []
        for one in live:
            own = one.arm.parameters(parameters)
            counters = stack.enter_context(receivers(one.topology.pairs, own.protocol, own.datagram_bytes))
            try:
                flows = stack.enter_context(
                    generator.flows(one.topology.pairs, own, emulated=one.emulated, endless=True)
                )
                sender = Sender(one, flows, counters)
                sender.establish()
                senders.append(sender)
            except Failed as error:
                rows.append((one.arm, _failed(str(error))))
        for number in range(parameters.slices):
            for sender in rng.sample(senders, len(senders)):
                try:
                    with sender.live.while_measured():
                        rows.append(sender.slice(number))
                except Failed as error:  # a program that joins the ends has ended
                    sender.problem = str(error)
                    sender.flows.hold()
                    rows.append((sender.live.arm, {}))
                if sender.problem:
                    rows[-1] = (sender.live.arm, _failed(sender.problem) | {"slice": number})
                    senders.remove(sender)
        for sender in senders:
            _end(sender, artefacts)
    return rows


def _failed(reason: str) -> dict[str, Any]:
    return {"status": "failed", "reason": reason, "method": "slice"}


def _end(sender: Sender, artefacts: Path) -> None:
    """Interrupt the flows and write their raw reports as an artefact."""
    sender.flows.interrupt()
    pages, _interrupted = sender.flows.finish(time.monotonic() + 2)
    run_folder.write_artefact(artefacts / f"{sender.live.arm.stem}-slices.json.gz", pages)
