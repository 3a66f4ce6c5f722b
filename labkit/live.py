"""A live topology in a notebook: `net = live.build("veth_bridge", pairs=2)`, then `net.client0.run("ping", "-c1",
net.server0.address)`; `net` as the last expression of a cell is its drawing, and what passes during `with net.capture()
as seen:` is in `seen.packets`.

It stands in a labkit process of its own, on whatever kernel `where` names. When it is closed, or the notebook's kernel
ends in whatever way, the kernel of that host frees all of it.
"""

from __future__ import annotations

import itertools
import signal
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import msgspec

from labkit import drawing, errors, hosts, packets, records, run
from labkit.errors import Failed, LabkitError
from labkit.observers.capture import RATE_PPS, SETTLE_S, SNAP_BYTES, check_limits, doubt
from labkit.printable import printable
from labkit.topologies import Network, State

PATIENCE_S = 60.0


class Endpoint:
    """A place in a live topology where programs run. `address`: of what carries the load, None between the ends."""

    def __init__(self, topology: Live, name: str, address: str | None) -> None:
        self._topology = topology
        self.name = name
        self.address = address

    def run(self, *argv: str, timeout_s: float = PATIENCE_S) -> str:
        """What a program prints on standard output. Raises Failed with its words unless it ends with 0 within the time;
        what it still runs then, or when the cell is interrupted, is ended."""
        ended = self._topology._ask("run", at=self.name, argv=list(argv), timeout_s=timeout_s)
        if ended["returncode"] != 0:
            raise Failed(ended["words"])
        return str(ended["stdout"])

    def __repr__(self) -> str:
        return f"{self.name} ({self.address})" if self.address else self.name


class Seen:
    """What passed the interfaces of a live topology; there after the block of `Live.capture`.

    `packets`: a row for each packet at each interface that saw it, for pandas.DataFrame; `counts` of every interface;
    `doubt`: what is missing, in one sentence, or None.
    """

    def __init__(self) -> None:
        self.packets: list[dict[str, Any]] = []
        self.counts: dict[str, packets.Counts] = {}
        self.doubt: str | None = None
        self._file = b""

    def save(self, path: str | Path) -> None:
        """Write the capture as a pcapng file, for Wireshark and the like."""
        records.write(Path(path), self._file)

    def _fill(self, file: bytes, state: State, rate_pps: int) -> None:
        self._file = file
        recorded = packets.read(file)
        self.counts = recorded.counts
        self.doubt = doubt(self.counts, rate_pps)
        found = packets.journeys(recorded.frames, state.ports())
        self.packets = packets.rows(found, self.counts, state.owners())

    def __repr__(self) -> str:
        told = (f"{name} {one.captured_count}" for name, one in self.counts.items())
        return f"packets at {', '.join(told)}" + (f"; {self.doubt}" if self.doubt else "")


class Live:
    """A topology that stands until it is closed. Its endpoints and namespaces are attributes, by their names."""

    def __init__(self, where: str, request: dict[str, Any]) -> None:
        self._numbers = itertools.count(1)
        with ExitStack() as stack:
            with _deaf_to_interrupts():
                self._talk = stack.enter_context(hosts.conversation(where, request, _say))
            state = self._told(self._heard(None))
            self._stack = stack.pop_all()
        places: dict[str, str | None] = {space.name: None for space in state.namespaces}
        places |= {end.name: end.address for pair in state.pairs for end in pair}
        self.endpoints = {name: Endpoint(self, name, address) for name, address in places.items()}
        self.name = state.topology
        self._open = True

    @property
    def state(self) -> State:
        """What the kernel tells of it now."""
        return self._told(self._ask("state"))

    @contextmanager
    def capture(
        self,
        *hops: str,
        snap_bytes: int = SNAP_BYTES,
        rate_pps: int = RATE_PPS,
        total_bytes: int = 4 << 20,
        settle_s: float = SETTLE_S,
    ) -> Iterator[Seen]:
        """What passes these interfaces (`"client0:eth0"`), or all when none is named, during the block.

        Of each packet the first `snap_bytes`, of an interface `rate_pps` packets in a second, of all `total_bytes`; at
        the end packets that are on their way are waited for, `settle_s` at most. Raises what
        `observers.capture.capture` raises.
        """
        check_limits(snap_bytes, rate_pps, total_bytes, settle_s)
        limits = {"snap_bytes": int(snap_bytes), "rate_pps": int(rate_pps), "total_bytes": int(total_bytes)}
        asked = self._ask("capture", hops=hops, limits={**limits, "settle_s": float(settle_s)})
        seen = Seen()
        try:
            yield seen
        except BaseException:
            with suppress(LabkitError):
                self._ask("captured", capture=asked["number"])
            raise
        file = b64decode(self._ask("captured", capture=asked["number"])["file"])
        seen._fill(file, self.state, rate_pps)

    def close(self) -> None:
        """Let go of it; its programs end, and its interfaces go."""
        self._open = False
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Endpoint:
        endpoints: dict[str, Endpoint] = self.__dict__.get("endpoints", {})
        if name not in endpoints:
            raise AttributeError(f"there is no {name}; there are {', '.join(endpoints)}")
        return endpoints[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.endpoints]

    def __repr__(self) -> str:
        return drawing.tree(self.state).rstrip() if self._open else f"{self.name}, closed"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Its drawing where one can be shown, and always its text."""
        if not self._open:
            return {"text/plain": repr(self)}
        from labkit.drawing import figure

        state = self.state
        shown: dict[str, Any] = figure.topology(state)._repr_mimebundle_(include, exclude) or {}
        return shown | {"text/plain": drawing.tree(state).rstrip()}

    def _ask(self, do: str, **more: Any) -> dict[str, Any]:
        """The answer to one request. Raises what was raised there, and Failed when it is there no more."""
        if not self._open:
            raise Failed(f"this {self.name} is closed: build another")
        number = next(self._numbers)
        self._tell({"do": do, "number": number, **more})
        try:
            return self._heard(number)
        except KeyboardInterrupt:
            self._tell({"do": "stop"})
            raise

    def _tell(self, request: dict[str, Any]) -> None:
        self._talk.tell(msgspec.json.encode(request).decode())

    def _heard(self, number: int | None) -> dict[str, Any]:
        """The answer with this number; others are to what was interrupted, and of one of them the end may be all."""
        for event in self._events():
            if event.get("number") == number:
                if event["event"] in ("error", "refused"):
                    raise errors.named(event["kind"], event["text"])
                return event
        self._open = False
        raise Failed(f"the topology's process {self._talk.words()}; build another")

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in self._talk.lines():
            try:
                yield msgspec.json.decode(line, type=dict)
            except msgspec.MsgspecError:
                continue

    def _told(self, answer: dict[str, Any]) -> State:
        return msgspec.convert(answer["state"], State)


def build(topology: str | Network, where: str = "here", **parameters: Any) -> Live:
    """A live topology: its name and parameters as on the command line (`pairs`, `mtu_bytes`, `family`, `parent`); or a
    Network of one's own, put together of parts.

    Raises BadInput for what cannot be, Unsupported and Isolated where the kernel has it not or keeps the ends apart.
    """
    request = run.one_topology(topology, {"where": where, **parameters})
    return Live(where, {"do": "live", **request})


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """What is started here never sees SIGINT: Jupyter's interrupt goes to the kernel's whole process group, and must
    end the program that a cell runs, not the connection. (A blocked signal stays blocked through execve(2).)"""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _say(text: str) -> None:
    print(f"labkit: {printable(text)}", file=sys.stderr)
