"""One end of a path between two machines: what the machine of that end answers, request by request.

The other end is known by its address only. Each machine describes its half of the path, sends and receives the packets
of its end, and judges what it sees; `labkit.runner.across` asks both.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from ipaddress import ip_address, ip_interface
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec

from labkit.common import existing_names
from labkit.common.errors import Failed, Unsupported
from labkit.common.topology_state import State
from labkit.measure.existing import network
from labkit.measure.existing.checks import drops, load, probes, registry
from labkit.measure.existing.checks.evidence import Evidence, mtu_of, observed
from labkit.measure.existing.checks.probes import End, Receiver, Sender
from labkit.measure.existing.checks.rules import source_translation
from labkit.measure.existing.endpoints import require, resolve
from labkit.measure.existing.path import Path, followed, inwards, source_for, usable
from labkit.measure.existing.spaces import Spaces
from labkit.measure.topologies.network import kinds


class Half:
    """An end of this machine, as `client` or `server`; close it after use. Raises the errors of `resolve`.

    locked: returns this machine's measuring lock, which a load holds, for the seconds that it may take to get it.
    """

    def __init__(self, name: str, role: str, locked: Callable[[float], AbstractContextManager[None]]) -> None:
        existing_names.parse(name)
        self._locked, self._is_client = locked, role == "client"
        self._stack = ExitStack()
        self._named = end = self._stack.enter_context(closing(resolve(name)))
        self._spaces = self._stack.enter_context(closing(Spaces(end)))
        self._processes = {end.name: end.process} if end.process is not None else {}
        self._own = self._spaces.client
        self.close = self._stack.close
        self._sockets, self._serving, self._watched = ExitStack(), ExitStack(), ExitStack()
        for stack in (self._sockets, self._serving, self._watched):
            self._stack.enter_context(stack)

    def answer(self, ask: str, given: dict[str, Any]) -> dict[str, Any]:
        """Answer a request by its name, one of ASKS; `failed` is an error of the system, in words.

        Raises Failed, whatever else went wrong, if the end has ended meanwhile.
        """
        try:
            return {"answer": attrgetter(ASKS[ask])(self)(**given)}
        except OSError as error:
            return {"failed": error.strerror or str(error)}
        finally:
            require(self._named.name, self._named.process)

    def addresses(self, family: int | None) -> list[str]:
        """Return the addresses by which the other end may reach this one. Raises Unsupported if there is none."""
        return usable(self._own, family)

    def ways(self, pairs: list[tuple[str | None, str]]) -> list[dict[str, Any]]:
        """Return how packets leave from own addresses (None: the one that the kernel would choose) to others.

        hidden, behind: the address that rules of this machine put in the place of the sender's, and this in words
        (`_hidden`).
        """
        result = []
        for own, to in pairs:
            source = own or source_for(self._own, to, self._own.usable())
            if source and (":" in source) == (":" in to):
                found = followed(self._spaces, Path(self._own, source, to, outward=True))
                hidden, behind = _hidden(found)
                result.append(
                    {
                        "source": source, "destination": to, "leaves": found.exit is not None and not found.problems,
                        "beside": self._own.is_beside(to), "hidden": hidden, "behind": behind,
                        "version": ip_address(to).version,
                    }
                )  # fmt: skip
        return result

    def follow(self, source: str, destination: str) -> dict[str, Any]:
        """Choose an own address and one of the other machine; return the path between as far as this one sees it.

        The names of `forward` are those from the client to the server.
        """
        out = followed(self._spaces, Path(self._own, source, destination, outward=True))
        into = inwards(self._spaces, out)
        self._paths = (out, into) if self._is_client else (into, out)
        self._end, self._to = End(self._own, source), destination
        least = min(into.places, key=lambda place: place.link.mtu_bytes, default=None)
        return {
            "mtu_bytes": mtu_of(out),
            "narrow": least and (str(least), least.link.mtu_bytes),
            "interfaces": self._paths[0].names(),
            "tunnels": [
                (str(place), f"the {place.link.kind} id {tunnel.id} and port {tunnel.port}")
                for place in out.places
                if (tunnel := place.tunnel) is not None and not kinds.KINDS[str(place.link.kind)].is_encrypted
            ],
            "gap": next((one.what for one in (*out.problems, *into.problems)), None),
            "exit": _exit(out),
        }

    def described(self) -> network.ExistingNetwork:
        """Return the path that was chosen; the other end is represented by the interface that leads there."""
        name = self._own.name
        return network.described(name, self._spaces, *self._paths, self._processes, keeps=True)

    def state(self) -> Any:
        """Return the drawing's state of the path that was chosen."""
        return msgspec.to_builtins(self.described().state)

    def facts(self) -> Any:
        """Return what the namespaces of the path that was chosen have (`clone.facts`)."""
        from labkit.measure.existing import clone  # what only a copy needs

        return msgspec.to_builtins(clone.facts(self.described()))

    def cloned(self, state: Any, of: Any, gap: str | None, name: str) -> dict[str, Any]:
        """Return a copy of a whole path, which is built on this machine (`clone.cloned`)."""
        from labkit.measure.existing import clone

        known = msgspec.convert(of, dict[str, clone.Facts])
        return clone.cloned(msgspec.convert(state, State), known, gap, name)

    def observe(self) -> None:
        """Remember counters, until `measured`."""
        self._seen: Evidence = self._watched.enter_context(
            observed(*self._paths, far="server" if self._is_client else "client")
        )

    def receive(self, kind: str, token: str) -> int:
        """Open a receiver (`probes.Receiver`); return its port."""
        self._receiver = self._sockets.enter_context(closing(Receiver(kind, self._end, bytes.fromhex(token))))
        return self._receiver.port

    def sender(self, kind: str, token: str, port: int) -> None:
        """Open a sender (`probes.Sender`)."""
        made = Sender(kind, self._end, bytes.fromhex(token), self._to, port)
        self._sender = self._sockets.enter_context(closing(made))

    def listen(self) -> int:
        """Listen for one connection of TCP; return the port."""
        self._listener = self._sockets.enter_context(probes.stream(self._end))
        self._listener.listen(1)
        return int(self._listener.getsockname()[1])

    def connect(self, port: int) -> None:
        """Connect to the other end."""
        self._stream: socket.socket = self._sockets.enter_context(probes.stream(self._end))
        self._stream.connect((self._to, port))

    def accept(self) -> None:
        """Take the connection."""
        self._stream = self._sockets.enter_context(self._listener.accept()[0])

    def carry(self) -> int:
        """Send or receive through the connection (`probes.carry`), as the other machine does at the same time."""
        return probes.carry(*((self._stream, None) if self._is_client else (None, self._stream)))

    def round_trips_ms(self) -> list[float]:
        """Return round-trip times (`probes.round_trips_ms`)."""
        return probes.round_trips_ms(self._end, End(self._own, self._to))

    def refused(self, port: int) -> str:
        """Return why a port of the other end takes no connection (`probes.refused`)."""
        return probes.refused(self._end, self._to, port)

    def lock(self, patience_s: float | None) -> None:
        """Take this machine's measuring lock until the end. Raises Failed if another measurement keeps it."""
        self._stack.enter_context(self._locked(math.inf if patience_s is None else patience_s))

    def serve(self) -> str:
        """Start the load's server; return why that fails, or ""."""
        return self._begun(load.listening(self._end))

    def load(self, seconds: int, protocol: str) -> str:
        """Begin to send one part of the load; return why that fails, or ""."""
        return self._begun(load.sending(self._end, self._to, seconds, protocol))

    def _begun(self, part: AbstractContextManager[Any]) -> str:
        try:
            self._loaded = self._serving.enter_context(part)
        except (Failed, Unsupported) as error:
            return str(error)
        return ""

    def loaded(self) -> Any:
        """Return what that came to; None: it still runs."""
        return msgspec.to_builtins(self._loaded())

    def measured(self, probed: dict[str, Any]) -> dict[str, bool]:
        """Take what the probes of both machines showed; return what this one's edges counted (`Evidence.edges`)."""
        types = get_type_hints(Evidence)
        for name, value in probed.items():
            setattr(self._seen, name, msgspec.convert(value, types[name], strict=False))
        self._watched.close()
        return self._seen.edges()

    def judge(self, beyond: dict[str, bool], narrow: tuple[str, int] | None) -> dict[str, Any]:
        """Return the findings of this machine (`registry.explained`, `unexplained`).

        beyond: what the other machine's edges counted. narrow: its interface with the smallest MTU.
        """
        self._seen.beyond, self._seen.narrow = beyond, narrow and (str(narrow[0]), int(narrow[1]))
        return {
            "explained": msgspec.to_builtins(registry.explained(self._seen)),
            "unexplained": msgspec.to_builtins(list(registry.unexplained(self._seen))),
            "drops": drops.shown(self._seen.drops),
            "not_seen": self._seen.not_seen,
        }


# The requests by their names: what answers them in a half, its methods and those of what they opened.
ASKS = {one: one for one in vars(Half) if not one.startswith("_") and one not in ("answer", "described")} | {
    "arrived": "_receiver.arrived", "send": "_sender.send", "burst": "_sender.burst", "told": "_sender.told",
    "done": "_sockets.close", "served": "_serving.close", "listening": "_seen.listening",
}  # fmt: skip


def _exit(way: Path) -> dict[str, Any] | None:
    """Return how packets leave this machine, those of tunnels by their outside; None if they do not.

    source: their address. own: the addresses of the interface that routes them out. gateway: with prefix length, and
    beside: the address in its subnet; None if no gateway is in a subnet. mtu_bytes: of the last interface.
    """
    outside = next((one for one in reversed(way.outer) if one.exit is not None), way)
    if (leaves := outside.exit) is None:
        return None
    via, out = outside.routes[-1][1].hops[0].via, leaves.out
    # A route of IPv4 may have a gateway of IPv6 (RFC 5549), which is in no subnet of IPv4.
    if via and (":" in via) != (":" in outside.destination):
        via = None
    own = [ip_interface(text) for index, text in out.space.prefixed if index == out.index]
    beside = next((one for one in own if via and ip_address(via) in one.network), None)
    return {
        "source": outside.source,
        "own": [str(one.ip) for one in own],
        "gateway": beside and f"{via}/{beside.network.prefixlen}",
        "beside": beside and str(beside.ip),
        "mtu_bytes": leaves.places[-1].link.mtu_bytes,
    }


def _hidden(way: Path) -> tuple[str, str]:
    """Return the address that rules put in the place of the sender's, and in words what the sender is behind.

    The address is "" if there is none or it is not known. The words begin with "is" or "may be". They are "" if rules
    keep the sender's address.
    """
    for space, into in way.routers.items():
        packet = {"saddr": way.source, "daddr": way.destination, "protocol": "tcp"}
        out = space.links.get(next(one.hops[0].index for at, one in way.routes if at is space) or 0)
        if out is None:
            break
        arrived = space.links[into].name if into else None
        address, is_sure = source_translation(space, packet, way.destination, arrived, out.name)
        if address not in (None, way.source):
            return address or "", f"{'is' if is_sure else 'may be'} behind {address or 'another address'}"
    return "", ""
