"""Whole runs: one complete run of a generator with an arm, like one started by hand."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.common import loss_places, run_folder, units
from labkit.common.errors import Failed
from labkit.measure.experiments.built_arm import BuiltArm, LocalArm
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.experiments.rows import Measured
from labkit.measure.experiments.server_counters import ServerSide, Window
from labkit.measure.traffic.base import SATURATED, FlowGenerator, Flows, LatencyGenerator, RequestGenerator
from labkit.system import machine

Counting = Callable[[], AbstractContextManager[None]]

START_S, FLOW_START_S = 5.0, 0.05  # the limit until every flow carries data, and what each flow adds to it
TOGETHER = 0.5  # the share of the duration in which all flows must run at once
# The least share of the requested rate that must be sent; below it the generator was the limit.
OFFERED = 0.98
# How much the generator's count and the kernel's may differ; beyond it flows did not run together.
AGREE = 0.05
LOSS = 0.01  # the share of lost datagrams from which a row has a doubt


def measure(
    parameters: DatapathParameters,
    built_arm: BuiltArm,
    artefacts: Path,
    counting: Counting | None = None,
    suffix: str = "",
) -> Measured:
    """Measure one whole run of one arm and return its row.

    The context manager that `counting` makes is open during the measured window. `suffix` extends the name of the
    artefact.

    received_bytes and received_count come from the kernel, for the window in which all flows ran. sent_count,
    lost_count, reported_received_count, out_of_order_count and jitter_s come from the generator, for its time without
    the warm-up.

    A failed run gives a row with the generator's error message as its reason.
    """
    parameters = built_arm.arm.parameters(parameters)
    try:
        generator = parameters.load_generator
        if isinstance(generator, LatencyGenerator):
            return _round_trips(parameters, generator, built_arm, counting)
        assert isinstance(generator, FlowGenerator)
        artefact = artefacts / f"{built_arm.arm.stem}{suffix}.json.gz"
        return _flows(parameters, generator, built_arm, artefact, counting)
    except Failed as error:
        reason = str(error)
        try:
            built_arm.metered()  # raises Failed if what joins the ends has ended: that is the reason
        except Failed as ended:
            reason = str(ended)
        return built_arm.arm, {"status": "failed", "reason": reason, "method": "whole"}


def _round_trips(
    parameters: DatapathParameters,
    generator: LatencyGenerator,
    built_arm: BuiltArm,
    counting: Counting | None,
) -> Measured:
    row: dict[str, Any] = {"method": "whole"}
    pairs, requests = built_arm.pairs, isinstance(generator, RequestGenerator)
    if isinstance(built_arm, LocalArm) and built_arm.cpus is not None:
        pairs = built_arm.placed_pairs
        row |= {"placement": ",".join(map(str, built_arm.cpus[0])), "ends_on": built_arm.ends_on}

    @contextmanager
    def window() -> Iterator[None]:
        remote_cpu = built_arm.remote_cpu()
        own = machine.descendants(os.getpid()) if requests else frozenset()
        with (counting or nullcontext)():
            metered = built_arm.metered()
            observers = machine.descendants(os.getpid()) - own if requests else frozenset()
            threads = machine.thread_times(own)
            times, begin = machine.cpu_times(), time.monotonic()
            yield
            used, length_s = machine.cpu_times() - times, time.monotonic() - begin
            later = machine.thread_times(machine.descendants(os.getpid()) - observers) if requests else {}
            row.update(window_s=length_s, **used.columns, **remote_cpu(length_s), **metered())
            if requests and threads.keys() <= later.keys():  # else the wait of one that has ended is unknown
                waited = (now[1] - threads.get(one, (0, 0))[1] for one, now in later.items())
                row["cpu_wait_s"] = sum(waited) / 1e9

    doubts = list[str]()
    with ExitStack() as stack:
        if generator.capabilities.connects:
            from labkit.measure.experiments import free_ports  # what only connections need

            client = built_arm.pairs[0].client.kernel
            judged = stack.enter_context(free_ports.arranged(built_arm.own_kernels, client))
        measured = generator.latency(pairs, parameters, window())
        if generator.capabilities.connects:
            columns, doubts = judged()
            row |= columns
    row |= generator.columns(measured, parameters)
    if row.get("transaction_rate"):
        # The generator's own time is not the window of the CPU time, so its count is not that of the window.
        row["cpu_per_transaction_s"] = row["cpu_s"] / (row["transaction_rate"] * row["window_s"])
    doubts = [*machine.stolen(row["steal_s"], row["window_s"]), *doubts, *row.pop("doubts", [])]
    return built_arm.measured(row, doubts)


def _flows(
    parameters: DatapathParameters,
    generator: FlowGenerator,
    built_arm: BuiltArm,
    artefact: Path,
    counting: Counting | None,
) -> Measured:
    followed = parameters.protocol == "udp"
    losses = built_arm.counted_losses(parameters.family, parameters.direction) if followed else list
    with built_arm.serving(parameters, generator) as (flows, there):
        try:
            seen, joined = _counted(parameters, built_arm, flows, there, counting or nullcontext)
        except Failed as error:
            if (place := loss_places.where(losses())) is None:
                raise
            raise Failed(f"{error}; of what was lost, {place.replace(' of these', '')}") from None
        result, problem = flows.finish(time.monotonic() + START_S + generator.grace_s, there.pages)
    run_folder.write_artefact(artefact, result)
    if problem:
        raise Failed(problem)
    row: dict[str, Any] = {
        "method": "whole",
        **seen.columns,
        **there.report(),
        **joined,
        **generator.metrics(result, parameters.protocol),
    }
    if parameters.rate_bps is not None:
        # A paced flow sends in blocks, and the window cuts off part of the first.
        row["throughput_bps"] = row[generator.reported_bps]
    stolen = [*machine.stolen(seen.steal_s, seen.window_s), *seen.doubts]
    # iperf3 counts a datagram that arrives twice as out of order.
    is_followed = _is_above_loss(row, "lost_count") or _is_above_loss(row, "out_of_order_count")
    lost = losses() if is_followed or not row["received_bytes"] else []
    judged = FlowRow(parameters, generator, row, len(built_arm.pairs), loss_places.where(lost))
    invalid = judged.invalid()
    return built_arm.measured(
        row | ({"status": "invalid", "reason": invalid} if invalid else {}),
        [*stolen, *judged.doubts(), *_duplicates(lost)],
    )


def _counted(
    parameters: DatapathParameters, built_arm: BuiltArm, flows: Flows, there: ServerSide, counting: Counting
) -> tuple[Window, dict[str, Any]]:
    """Run the flows and return the window in which all of them ran, and the columns of what joins the ends.

    The window begins when the last flow carries data and ends when the first one may end. It has what arrived and the
    CPU time of this host.
    """
    earliest = time.monotonic()
    flows.stage()
    if there.idle():  # no data has arrived yet, so all flows begin after this moment
        earliest = time.monotonic()
    flows.go()
    there.carrying(START_S + FLOW_START_S * len(built_arm.pairs))
    earliest = max(earliest, there.begun)
    running = flows.wait(time.monotonic() + parameters.omit_s)
    with counting():
        metered = built_arm.metered()
        window = there.window(
            earliest + parameters.omit_s + parameters.duration_s if running else time.monotonic()
        )
        return window, metered()


# Whose CPU time is that of the senders
_SENDERS = {
    "forward": ("client_cpu_s",),
    "reverse": ("server_cpu_s",),
    "both": ("client_cpu_s", "server_cpu_s"),
}


@dataclass(frozen=True)
class FlowRow:
    """A row of flows between so many pairs, to be judged. `where`: the place of most loss, if known."""

    parameters: DatapathParameters
    generator: FlowGenerator
    row: dict[str, Any]
    pairs_count: int
    where: str | None = None

    def invalid(self) -> str | None:
        """Return why the run is invalid, or None.

        METHOD.md: the flows must run together, and the generator must reach the offered load. TCP sends no more than
        the path carries, so a lower rate of TCP is a result unless its senders are the limit.
        """
        window_s, duration_s = max(self.row["window_s"], 0), self.parameters.duration_s
        if not self.row["received_bytes"] and not self.row[self.generator.reported_bps]:
            place = f": of what was lost, {self.where.replace(' of these', '')}" if self.where else ""
            return f"nothing arrived while all flows ran, in {window_s:.2f} of {duration_s} s{place}"
        if window_s < TOGETHER * duration_s:
            remedy = "make duration_s longer" + (", or use fewer pairs" if self.pairs_count > 1 else "")
            return f"the flows ran together for only {window_s:.2f} of {duration_s} s: {remedy}"
        too_little = self._sent_too_little()
        return None if too_little is None or self._path_is_the_limit() else f"generator-limited: {too_little}"

    def doubts(self) -> list[str]:
        """Return the doubts about the rate and about lost datagrams."""
        parameters, row, name = self.parameters, self.row, self.generator.name
        doubts = []
        too_little = self._sent_too_little()
        if too_little is not None and self._path_is_the_limit():
            doubts.append(f"the path carried less than the requested rate: {too_little}")
        reported_bps = row[self.generator.reported_bps]
        is_paced = parameters.rate_bps is not None
        if not is_paced and abs(reported_bps - row["throughput_bps"]) > AGREE * reported_bps:
            together = "" if self.pairs_count == 1 else " over flows that did not all run at the same time"
            differs = "differs by more than 5 % from what arrived in the window"
            doubts.append(f"{name}'s own throughput{together} {differs}")
        if parameters.protocol != "udp":
            return doubts
        saturated_s = SATURATED * parameters.duration_s * self.pairs_count
        if not is_paced and (self._senders_cpu_s() or 0.0) > saturated_s:
            doubts.append("generator-limited: each sender used a whole CPU")
        if row["lost_count"] is None:
            doubts.append(
                f"{name} counted more datagrams as arrived and lost than were sent: lost_count is left out"
            )
        elif _is_above_loss(row, "lost_count"):
            share = units.percent(row["lost_count"] / row["sent_count"])
            doubts.append(f"{share} of the datagrams were lost{f', {self.where}' if self.where else ''}")
        return doubts

    def _sent_too_little(self) -> str | None:
        """Return how much less than the requested rate was sent, or None."""
        parameters = self.parameters
        if parameters.rate_bps is None:
            return None
        flows = parameters.streams * self.pairs_count * (2 if parameters.direction == "both" else 1)
        offered = parameters.rate_bps * flows
        quantum = self.generator.block_bytes(parameters) * 8 * flows
        if self.row["sent_bps"] >= OFFERED * offered - quantum / parameters.duration_s:
            return None
        return f"{self.row['sent_bps'] / 1e6:.4g} of the requested {offered / 1e6:.4g} Mbit/s were sent"

    def _senders_cpu_s(self) -> float | None:
        """Return the CPU time of the senders; of both directions, that of the busier side."""
        each = [self.row.get(name) for name in _SENDERS[self.parameters.direction]]
        return max((one for one in each if one is not None), default=None)

    def _path_is_the_limit(self) -> bool:
        """Return whether TCP waited for the path: its senders did not use a whole CPU each, or all CPUs."""
        cpus = min(self.pairs_count, len(os.sched_getaffinity(0)))
        busy_s = self._senders_cpu_s() if self.parameters.protocol == "tcp" else None
        return busy_s is not None and busy_s <= SATURATED * self.parameters.duration_s * cpus


def _duplicates(pairs: list[dict[str, Any]]) -> list[str]:
    """Return the doubt about datagrams that something on the way sent twice, which raises the throughput."""
    share, place = loss_places.duplicated(pairs) or (0.0, "")
    if share <= LOSS:
        return []
    return [
        f"datagrams were duplicated at {place}: {units.percent(share)} more left it than came, and count as throughput"
    ]


def _is_above_loss(row: dict[str, Any], name: str) -> bool:
    """Return whether a count is above the share of the sent datagrams from which a row has a doubt."""
    return bool((row.get(name) or 0) > LOSS * (row.get("sent_count") or 0))
