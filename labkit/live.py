"""Live topologies in a notebook.

    net = live.build("veth_bridge", pairs=2)
    net.client0.run("ping", "-c1", net.server0.address)

As the last expression of a cell, `net` shows its drawing. The packets that pass during `with net.capture() as seen:`
are in `seen.packets`.

The topology belongs to a separate labkit process, on the kernel that `where` names. When it is closed, or the
notebook's kernel ends for any reason, the operating system removes all of it.
"""

from __future__ import annotations

import itertools
import math
import signal
import threading
from base64 import b64decode
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import msgspec

from labkit.analysis import drawing
from labkit.common import errors, run_folder
from labkit.common.errors import BadInput, Failed, LabkitError
from labkit.common.packets import journey, pcapng
from labkit.common.printable import say
from labkit.common.topology_state import State
from labkit.measure import hosts
from labkit.measure.observers.capture import RATE_PPS, SETTLE_S, SNAP_BYTES, check_limits, doubt
from labkit.measure.observers.monitor import Selection
from labkit.measure.observers.monitor import monitor as monitoring
from labkit.measure.observers.monitor.live_monitor import LiveMonitor
from labkit.measure.topologies import Network
from labkit.runner import run

PATIENCE_S = 60.0
STOP_S = 2.0  # time for a program to end after SIGTERM
SLOW_S = 600.0  # time limit for requests that run no program, on an emulated CPU
GRACE_S = 30.0  # added to the time of a request before the caller gives up


class Endpoint:
    """An endpoint or namespace of a live topology, in which programs run.

    address: of the interface that carries the load; None for a namespace that is not an endpoint.
    """

    def __init__(self, topology: LiveTopology, name: str, address: str | None) -> None:
        self._topology = topology
        self.name = name
        self.address = address

    def run(self, *argv: str, timeout_s: float = PATIENCE_S) -> str:
        """Run a program and return its standard output.

        Raises Failed with the program's message unless it exits with 0 within `timeout_s` seconds. After that time, or
        when the cell is interrupted, the program is killed.
        """
        ended = self._topology._ask("run", at=self.name, argv=_checked(argv), timeout_s=timeout_s)
        if ended["returncode"] != 0:
            raise Failed(ended["text"])
        return str(ended["stdout"])

    def start(self, *argv: str) -> Program:
        """Start a program in the background, for example a server.

        It runs until it exits, until `Program.stop`, or until the topology is closed.
        """
        number = self._topology._ask("start", at=self.name, argv=_checked(argv))["number"]
        return Program(self._topology, number, argv)

    def __repr__(self) -> str:
        return f"{self.name} ({self.address})" if self.address else self.name


def _checked(argv: Sequence[Any]) -> list[str]:
    """Return the words of a command. Raises BadInput for words that execve(2) or the request cannot hold."""
    example = "write each word as a text of its own, for example run('ip', 'addr')"
    if not argv:
        raise BadInput(f"there is no program to run: {example}")
    for word in argv:
        if not isinstance(word, str):
            raise BadInput(f"{repr(word)[:100]} is not a text: {example}")
        if "\0" in word or any("\ud800" <= letter <= "\udfff" for letter in word):
            raise BadInput(f"{repr(word)[:100]} has a character that no argument can have: leave it out")
    return list(argv)


class Program:
    """A background program of a live topology."""

    def __init__(self, topology: LiveTopology, number: int, argv: Sequence[str]) -> None:
        self._topology, self._number, self.argv = topology, number, tuple(argv)

    @property
    def output(self) -> str:
        """Return the standard output so far."""
        return str(self._ask("output")["stdout"])

    @property
    def is_running(self) -> bool:
        """Return whether the program is running."""
        return bool(self._ask("output")["running"])

    def wait(self, timeout_s: float = PATIENCE_S) -> str:
        """Wait for the program to end, and return its standard output.

        Raises Failed with the program's message unless it exits with 0. Also raises Failed if it is still running after
        `timeout_s` seconds; it then continues to run.
        """
        ended = self._ask("wait", timeout_s=timeout_s)
        if ended["event"] == "running":
            raise Failed(f"{self.argv[0]} still runs after {timeout_s:g} s: wait longer, or stop it")
        if ended["returncode"] != 0:
            raise Failed(ended["text"])
        return str(ended["stdout"])

    def stop(self, patience_s: float = STOP_S) -> str:
        """End the program (SIGTERM, then SIGKILL after `patience_s` seconds), and return its standard output.

        If the program has already ended, only the output is returned.
        """
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._ask("kill", signal=int(number))
            if (ended := self._ask("wait", timeout_s=patience_s))["event"] != "running":
                break
        return str(ended.get("stdout", ""))

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        return self._topology._ask(do, program=self._number, **more)

    def __repr__(self) -> str:
        return f"{' '.join(self.argv)}, {'running' if self.is_running else 'ended'}"


class CapturedPackets:
    """The packets that passed the interfaces of a live topology, available after the block of `LiveTopology.capture`,
    also if the block raised an error.

    counts: of every interface. doubt: one sentence about missing packets, or None.
    """

    def __init__(self) -> None:
        self.counts: dict[str, pcapng.Counts] = {}
        self.doubt: str | None = None
        self._recorded: tuple[list[dict[str, Any]], bytes] | None = None

    @property
    def packets(self) -> list[dict[str, Any]]:
        """A row for each packet at each interface that saw it, for pandas.DataFrame. Raises Failed before the end."""
        return self._ended()[0]

    def save(self, path: str | Path) -> None:
        """Write the capture as a pcapng file; Wireshark shows each packet's hop and what happened to it. Raises Failed
        before the end."""
        run_folder.write(Path(path), self._ended()[1])

    def _ended(self) -> tuple[list[dict[str, Any]], bytes]:
        if self._recorded is None:
            raise Failed("the capture goes on, or it failed: read and save its packets after its block")
        return self._recorded

    def _fill(self, file: bytes, state: State, rate_pps: int) -> None:
        recorded = pcapng.read(file)
        self.counts = recorded.counts
        unseen = state.unseen()
        self.doubt = doubt(self.counts, rate_pps, [hop for hop in self.counts if hop in unseen])
        result = journey.journeys(recorded.frames, state.ports())
        self._recorded = (
            journey.rows(result, self.counts, state.owners()),
            pcapng.in_order(file, journey.comments(result, state.owners())),
        )

    def __repr__(self) -> str:
        counts = (f"{name} {one.captured_count}" for name, one in self.counts.items())
        return f"packets at {', '.join(counts)}" + (f"; {self.doubt}" if self.doubt else "")


class LiveTopology:
    """A topology that exists until it is closed. Its endpoints and namespaces are attributes with their names.

    Several threads may use it at the same time.
    """

    def __init__(self, where: str, request: dict[str, Any]) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # protects _answers, _open, _ended and sending
        self._answers: dict[int | None, Future[dict[str, Any]]] = {None: Future()}
        self._open = True
        self._monitors: WeakSet[LiveMonitor] = WeakSet()
        self._ended = ""  # why the process ended, if nobody closed the topology
        with ExitStack() as stack:
            with _block_interrupts():
                self._conversation = stack.enter_context(hosts.conversation(where, request, say))
            # Answers arrive in any order, so one thread receives them and passes each to the waiting caller.
            self._listener = threading.Thread(target=self._listen, daemon=True, name="labkit live")
            self._listener.start()
            stack.callback(self._end)
            state = self._state(self._answer(None, math.inf))
            self._stack = stack.pop_all()
        places: dict[str, str | None] = {space.name: None for space in state.namespaces}
        places |= {end.name: end.address for pair in state.pairs for end in pair}
        self.endpoints = {name: Endpoint(self, name, address) for name, address in places.items()}
        self.name = state.topology

    @property
    def state(self) -> State:
        """Return the current state, as the kernel reports it."""
        return self._state(self._ask("state"))

    @contextmanager
    def capture(
        self,
        *hops: str,
        snap_bytes: int = SNAP_BYTES,
        rate_pps: int = RATE_PPS,
        total_bytes: int = 4 << 20,
        settle_s: float = SETTLE_S,
    ) -> Iterator[CapturedPackets]:
        """Capture the packets at these interfaces (`"client0:eth0"`), by default at all, during the block.

        At most the first `snap_bytes` of each packet, `rate_pps` packets per second and interface, and `total_bytes` in
        total are kept. At the end, the capture waits up to `settle_s` seconds for packets in flight. Raises like
        `labkit.measure.observers.capture`.
        """
        check_limits(snap_bytes, rate_pps, total_bytes, settle_s)
        limits = {"snap_bytes": int(snap_bytes), "rate_pps": int(rate_pps), "total_bytes": int(total_bytes)}
        answer = self._ask("capture", hops=hops, limits={**limits, "settle_s": float(settle_s)})
        seen = CapturedPackets()

        def fill() -> None:
            file = b64decode(self._ask("captured", capture=answer["number"])["file"])
            seen._fill(file, self.state, rate_pps)

        try:
            yield seen
        except BaseException:
            with suppress(LabkitError):
                fill()
            raise
        fill()

    def monitor(
        self,
        interface: str,
        *,
        source: str | None = None,
        destination: str | None = None,
        port: str | int | None = None,
        protocol: str | None = None,
        vlan: int | None = None,
        inside: str | None = None,
        expression: str | None = None,
        sample: str = "all",
        keep_count: int = monitoring.KEEP_COUNT,
        snap_bytes: int = SNAP_BYTES,
        display: str | None = None,
        fields: str = "",
    ) -> LiveMonitor:
        """Monitor an interface from now on: `"mirror0"`, or `"client0:eth0"` if several have the same name.

        The kernel selects packets by `source` and `destination` (addresses or prefixes), `port`, `protocol`, `vlan`,
        and an `expression` in libpcap's syntax. With a tunnel `inside` (vxlan, geneve, gre, ipip), addresses, port and
        protocol are those of the inner packet; vxlan and geneve are looked for at their well-known ports and at those
        of the tunnels of this topology, `vxlan:8472` at this port only. `sample` then selects further: `all`,
        `one_in:N`, `random:P`, `interval:N:S`, `first:B`.

        The memory holds the last `keep_count` selected packets, `snap_bytes` of each. With `display`, a filter in
        Wireshark's syntax, it holds only those that tshark accepts, and with `fields` (names as `ip.ttl,_ws.col.Info`)
        tshark adds their values to each packet. The monitor ends with `close`, with its block, or
        with the topology. Raises BadInput for impossible values.
        """
        kind, _, of_inside = inside.partition(":") if inside else ("", "", "")
        named = {int(of_inside): kind} if of_inside.isdecimal() else {}
        state = self.state
        ports = tuple((state.ports() | named).items())
        selection = Selection(source, destination, port, protocol, vlan, inside, expression)
        made = LiveMonitor(
            self._ask,
            interface,
            monitoring.Request(selection, sample, keep_count, snap_bytes, display, fields, ports),
            state.unseen(),
        )
        self._monitors.add(made)
        return made

    def close(self) -> None:
        """End the programs and remove the interfaces; what monitors kept can still be read. Threads that wait for an
        answer get Failed."""
        for one in list(self._monitors) if self._open else []:
            with suppress(LabkitError):
                one.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Endpoint:
        endpoints: dict[str, Endpoint] = self.__dict__.get("endpoints", {})
        if name not in endpoints:
            raise AttributeError(f"this topology has no endpoint {name}; it has {', '.join(endpoints)}")
        return endpoints[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.endpoints]

    def __repr__(self) -> str:
        return drawing.tree(self.state).rstrip() if self._open else f"{self.name}, closed"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the drawing for a notebook, the same for Mermaid, and always the text."""
        if not self._open:
            return {"text/plain": repr(self)}
        from labkit.analysis.drawing import figure

        state = self.state
        shown: dict[str, Any] = figure.topology(state)._repr_mimebundle_(include, exclude) or {}
        return shown | {
            "text/vnd.mermaid": drawing.mermaid(state),
            "text/plain": drawing.tree(state).rstrip(),
        }

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises the error of the topology's process, and Failed if the process has ended.
        """
        number = next(self._numbers)
        with self._lock:
            if not self._open:
                raise Failed(self._ended or f"the topology {self.name} is closed: build it again")
            self._answers[number] = Future()
        self._send({"do": do, "number": number, **more})
        try:
            return self._answer(number, more.get("timeout_s", SLOW_S) + GRACE_S)
        except BaseException as error:
            if not isinstance(error, LabkitError) and do == "run":
                self._send({"do": "stop", "number": next(self._numbers), "program": number})
            raise

    def _send(self, request: dict[str, Any]) -> None:
        with self._lock:
            self._conversation.send(msgspec.json.encode(request))

    def _answer(self, number: int | None, patience_s: float) -> dict[str, Any]:
        """Wait for the answer with this number.

        Raises the error that the answer contains, and Failed if it does not arrive in time.
        """
        try:
            event = self._answers[number].result(None if math.isinf(patience_s) else patience_s)
        except TimeoutError:
            raise Failed(f"the topology's process did not answer within {patience_s:.0f} s") from None
        finally:
            with self._lock:
                self._answers.pop(number, None)
        if event["event"] in ("error", "refused"):
            raise errors.error_by_name(event["kind"], event["text"])
        return event

    def _listen(self) -> None:
        """Pass each answer to the caller that waits for it. After the last answer, every waiting caller gets Failed."""
        failure = ""
        try:
            for event in self._events():
                with self._lock:
                    waiting = self._answers.get(event.get("number"))
                if waiting is not None and not waiting.done():
                    waiting.set_result(event)
                elif event.get("event") == "error":  # the process ends after this event
                    failure = f"the topology's process failed: {event.get('text')}; build the topology again"
            reason = self._conversation.end_reason()
            failure = failure or f"the topology's process {reason}; build the topology again"
        except (LabkitError, OSError, ValueError) as error:  # closed during the read
            failure = str(error)
        with self._lock:
            if self._open:
                self._ended = failure
            self._open = False
            left = list(self._answers.values())
        for waiting in left:
            if not waiting.done():
                waiting.set_exception(Failed(failure))

    def _end(self) -> None:
        """Ask the process to end, and wait for that; meanwhile the listener still reads its pipes."""
        with self._lock:
            self._open = False
        self._send({"do": "end"})
        self._listener.join(STOP_S)
        if self._listener.is_alive():
            self._conversation.end()
            self._listener.join(STOP_S)

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self._conversation.lines():
            try:
                yield msgspec.json.decode(line, type=dict)
            except msgspec.MsgspecError:
                continue

    def _state(self, answer: dict[str, Any]) -> State:
        return msgspec.convert(answer["state"], State)


def build(topology: str | Network, where: str = "here", **parameters: Any) -> LiveTopology:
    """Build a live topology from a name or from a Network of your own parts.

    A name takes the parameters of the command line (`pairs`, `mtu_bytes`, `family`, `parent`, and `endpoint`, which is
    namespace or container). Raises BadInput for impossible parameters, Unsupported if the kernel lacks a feature, and
    Isolated if the datapath isolates the endpoints.
    """
    # The name of an existing network may decide where.
    request = run.one_topology(topology, parameters if where == "here" else {"where": where, **parameters})
    return LiveTopology(request["parameters"]["where"], {"do": "live", **request})


def machine(where: str = "here") -> LiveTopology:
    """Return the existing interfaces of this machine or another host as a live topology, to monitor and capture.

    Nothing is built or removed. Raises Unsupported without privileges.
    """
    hosts.check(where)
    return LiveTopology(where, {"do": "live", "machine_interfaces": True, "parameters": {"where": where}})


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block SIGINT in the processes that are started in this block.

    Jupyter sends an interrupt to the kernel's whole process group. It must end the program that a cell runs, not the
    connection. A blocked signal stays blocked across execve(2).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
