"""The servers' side of two nodes: it builds its side of an arm, starts servers, and reports what arrived, on
request. It may be the far end of mirrors' tunnels instead."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec

from labkit.common.errors import LabkitError
from labkit.measure import topologies
from labkit.measure.endpoints import Endpoint, RemoteEnd, RemotePair
from labkit.measure.experiments import server_counters
from labkit.measure.experiments.context import Event, RunContext
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.observers.counters.receive_counters import Receivers
from labkit.measure.traffic import registry
from labkit.measure.traffic.base import Arrived, FlowGenerator, Page, Receiving, Servers, TrialGenerator
from labkit.measure.traffic.packet_sender import Mix
from labkit.system import machine, process

REQUESTS = (
    "hello", "build", "clear", "listen", "idle", "carrying", "window", "pages", "receive", "learn", "arrived",
    "stop_servers", "monitor", "copies", "times",
)  # fmt: skip


class ServerHost:
    """What exists on this host: one side of one arm, and its servers during a run."""

    def __init__(
        self, parameters: DatapathParameters, run_context: RunContext, environment: dict[str, Any]
    ) -> None:
        self._parameters, self._run_context, self._environment = parameters, run_context, environment
        self._arm, self._run = ExitStack(), ExitStack()
        self._ends: list[Endpoint] = []
        self._remote: list[RemoteEnd] = []
        self._receiving: Receiving | None = None
        self._servers: Servers | None = None
        self._counters: Receivers | None = None
        self._before: list[int] = []
        self._copies: Callable[[], topologies.Copies] | None = None
        self.known: dict[str, Callable[..., Any]] = {name: getattr(self, name) for name in REQUESTS}

    def hello(self) -> dict[str, Any]:
        """Return the description of this host for rows and environment.json."""
        report = {**self._run_context.machine, **registry.versions()}
        return {"machine": report, "environment": {"machine": report, **self._environment}}

    def build(self, topology: str, pairs: int, ours: str) -> dict[str, Any]:
        """Build this side of an arm; return its doubts, and what its first end has."""
        self.clear()
        spec = self._parameters.spec(
            pairs, self._run_context.machine_netns, topologies.SERVERS, bytes.fromhex(ours)
        )
        side = self._arm.enter_context(topologies.half(topology, spec))
        self._ends, self._remote = side.ends, side.far
        first = self._ends[0]
        offloads = first.kernel.offloads(first.interface)
        return {"offloads": offloads, "port_offset": first.port_offset, "doubts": _doubts_here(side.doubts)}

    def clear(self) -> None:
        """Remove everything that was built."""
        self.stop_servers()
        self._arm.close()

    def listen(self) -> None:
        """Start a server at every end."""
        parameters = self._parameters
        emulated = self._run_context.machine.get("accelerator") == "tcg"
        self._servers = self._run.enter_context(self._generator.servers(self._ends, emulated=emulated))
        self._counters = Receivers(self._ends, parameters.protocol, parameters.datagram_bytes)
        self._before = self._counters.per_server()

    def idle(self) -> bool:
        """Return whether no flow has carried data yet."""
        _servers, counters = self._listening()
        return not any(counters.carrying(self._before))

    def carrying(self, within_s: float) -> bool:
        """Return whether data arrived on every flow in time."""
        servers, counters = self._listening()
        one_ended = lambda: any(program.poll() for program in servers.programs)  # noqa: E731
        return server_counters.carrying(counters, self._before, within_s, one_ended)

    def window(self, for_s: float) -> server_counters.Window:
        """Return what arrived in `for_s` seconds, and the CPU time used here."""
        servers, counters = self._listening()
        seen = server_counters.window(
            counters, lambda until: process.wait(servers.programs, until), time.monotonic() + for_s
        )
        return msgspec.structs.replace(seen, doubts=_doubts_here(machine.stolen(seen.steal_s, seen.window_s)))

    def pages(self) -> list[Page]:
        servers, _counters = self._listening()
        return servers.finish(time.monotonic() + self._generator.last_words_s)

    def receive(self, mix: dict[str, Any]) -> tuple[list[str], float]:
        """Count a load of frames at every end; return the names of the receivers, and how long they settle."""
        generator = self._parameters.load_generator
        assert isinstance(generator, TrialGenerator)
        reversed_pairs = [
            RemotePair(end, remote) for end, remote in zip(self._ends, self._remote, strict=True)
        ]
        self._receiving = self._run.enter_context(generator.receiving(reversed_pairs, Mix(**mix)))
        return list(self._receiving.names), self._receiving.settle_s

    def learn(self) -> None:
        """Send a frame from each receiver, from which switches learn its port."""
        assert self._receiving is not None
        self._receiving.learn()

    def arrived(self) -> Arrived:
        """Return what has arrived at the receivers."""
        assert self._receiving is not None
        return self._receiving.read()

    def monitor(self, switch: str, mtu_bytes: int) -> str:
        """Count and read the copies of this switch that arrive at the NIC; return its MAC address."""
        from labkit.measure.topologies.open_vswitch import copies  # what only a switch needs

        self.clear()
        spec = self._parameters.spec(1, self._run_context.machine_netns, topologies.SERVERS)
        # No ends are here, so the NIC keeps its MAC address.
        of_nic = dataclasses.replace(spec, mtu_bytes=mtu_bytes, side=None)
        mac, self._copies = self._arm.enter_context(copies.receiving(of_nic, switch))
        return mac

    def copies(self) -> topologies.Copies:
        """Return the copies that have arrived at the NIC."""
        assert self._copies is not None
        return self._copies()

    @property
    def _generator(self) -> FlowGenerator:
        assert isinstance(self._parameters.load_generator, FlowGenerator)
        return self._parameters.load_generator

    def stop_servers(self) -> None:
        self._run.close()
        self._servers = self._counters = self._receiving = None

    def times(self) -> dict[str, Any]:
        """Return the current CPU times of this host."""
        return machine.cpu_times().columns

    def _listening(self) -> tuple[Servers, Receivers]:
        assert self._servers is not None
        assert self._counters is not None
        return self._servers, self._counters


def answers(
    parameters: DatapathParameters,
    run_context: RunContext,
    environment: dict[str, Any],
    lines: Iterable[bytes],
) -> Iterator[Event]:
    """Yield an answer to each request line, until their end or an `end` request."""
    serving_here = ServerHost(parameters, run_context, environment)
    with ExitStack() as stack:
        stack.callback(serving_here.clear)
        for line in lines:
            request = msgspec.json.decode(line, type=dict[str, Any])
            do = request.pop("do")
            if do == "end":
                return
            try:
                yield {"event": "answer", "answer": msgspec.to_builtins(serving_here.known[do](**request))}
            except LabkitError as error:
                yield {"event": "answer", "kind": type(error).__name__, "text": str(error)}


def _doubts_here(doubts: Iterable[str]) -> list[str]:
    """Return doubts about this host as the rows have them, which the clients' host writes."""
    return [f"on the servers' host: {doubt}" for doubt in doubts]
