"""A live topology in a notebook: `net = live.build("veth_bridge", pairs=2)`, then `net.client0.run("ping", "-c1",
net.server0.address)`; `net` as the last expression of a cell is its drawing.

It stands in a labkit process of its own, on whatever kernel `where` names. When it is closed, or the notebook's kernel
ends in whatever way, the kernel of that host frees all of it.
"""

from __future__ import annotations

import itertools
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import msgspec

from labkit import drawing, errors, hosts, run
from labkit.errors import Failed
from labkit.topologies import State

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
                    raise getattr(errors, event["kind"])(event["text"])
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


def build(topology: str, where: str = "here", **parameters: Any) -> Live:
    """A live topology: its name and parameters as on the command line (`pairs`, `mtu_bytes`, `family`, `parent`).

    Raises BadInput for what cannot be, Unsupported and Isolated where the kernel has it not or keeps the ends apart.
    """
    asked = run.one_topology(topology, {"where": where, **parameters})
    return Live(asked["where"], {"do": "live", "parameters": asked})


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
    print(f"labkit: {text}", file=sys.stderr)
