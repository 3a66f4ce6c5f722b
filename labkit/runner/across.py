"""Two ends on two machines: both are asked in turns, each for its half of the path (`measure.existing.half`).

Packets of labkit's own go from one to the other. Each machine ends what it started when this process ends.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from typing import Any, Protocol

import msgspec

from labkit.common import errors
from labkit.common.errors import Failed, Unsupported
from labkit.common.topology_state import InterfaceState, Namespace, State
from labkit.common.topology_state import Place as PlaceState
from labkit.measure import hosts
from labkit.measure.existing.checks import evidence, load, probes, registry
from labkit.measure.existing.checks.findings import ALL, BETWEEN, SEEN, Finding
from labkit.measure.existing.checks.probes import Connection, OneWay
from labkit.measure.existing.path import chosen, others_than
from labkit.runner.two_hosts import PATIENCE_S

Say = Callable[[str], None]


class _Side(Protocol):
    """One machine's half: `begin` a request, then take its `result`."""

    where: str
    name: str

    def begin(self, ask: str, **given: Any) -> None:
        """Send a request."""

    def result(self) -> Any:
        """Return the answer. Raises OSError with the system's words, and the errors of the other side."""


class _Here:
    """The half of this machine, in this process."""

    def __init__(self, name: str, role: str, command: str, say: Say, stack: ExitStack) -> None:
        from labkit.measure.existing.half import Half  # what only an end of this machine needs
        from labkit.measure.hosts import local

        self.where, self.name = "here", name
        half = Half(name, role, lambda patience_s: local.measuring_lock(say, command, patience_s))
        self._half = stack.enter_context(closing(half))
        self._asked: tuple[str, dict[str, Any]] = ("", {})

    def begin(self, ask: str, **given: Any) -> None:
        self._asked = (ask, given)

    def result(self) -> Any:
        return _of(self._half.answer(*self._asked))


class _There:
    """The half of a machine behind ssh."""

    def __init__(self, where: str, name: str, role: str, command: str, say: Say, stack: ExitStack) -> None:
        self.where, self.name, self._say = where, name, say
        given = {"name": name, "role": role, "command": command}
        request = {"do": "existing", "question": "half", "given": given}
        self._conversation = stack.enter_context(hosts.conversation(where, request, say))
        self._lines = self._conversation.lines()
        self.result()

    def begin(self, ask: str, **given: Any) -> None:
        self._conversation.send(msgspec.json.encode({"ask": ask, "given": given}))

    def result(self) -> Any:
        for line in self._lines:
            event = _decoded(line)
            if event["event"] == "error":
                raise errors.error_by_name(event["kind"], event["text"])
            if event["event"] == "answer":
                return _of(event)
            self._say(event["text"])
        raise Failed(f"the check {self._conversation.end_reason()}")


@errors.reading("an answer of another machine")
def _decoded(line: bytes) -> dict[str, Any]:
    return msgspec.json.decode(line, type=dict[str, Any])


def _of(answer: dict[str, Any]) -> Any:
    if "failed" in answer:
        raise OSError(answer["failed"])
    return answer["answer"]


class _Ends:
    """Both halves: `client` and `server`."""

    def __init__(self, placed: list[tuple[str, str]], say: Say, stack: ExitStack) -> None:
        made: list[_Side] = []
        command = os.urandom(8).hex()  # by which two names of one machine share its lock
        for (where, name), role in zip(placed, ("client", "server"), strict=True):
            given = (name, role, command, say, stack)
            made.append(_Here(*given) if where == "here" else _There(where, *given))
        self.client, self.server = made

    def ask(self, side: _Side, ask: str, **given: Any) -> Any:
        side.begin(ask, **given)
        return side.result()

    def both(
        self, ask: str, client: dict[str, Any] | None = None, server: dict[str, Any] | None = None
    ) -> list[Any]:
        """Ask both at the same time; return the answers of client and server."""
        self.client.begin(ask, **(client or {}))
        self.server.begin(ask, **(server or {}))
        sides = (self.client, self.server)
        # This process is a half itself: it answers while the other one does.
        answers, failed = dict[_Side, Any](), list[OSError]()
        for side in sorted(sides, key=lambda one: one.where != "here"):
            try:
                answers[side] = side.result()
            except OSError as error:  # the other one's answer is read all the same
                failed.append(error)
        if failed:
            raise failed[0]
        return [answers[side] for side in sides]

    def far(self, side: _Side) -> _Side:
        """Return the other one."""
        return self.server if side is self.client else self.client


class _Sender:
    """The sending end of a burst, on the machine of a half (`probes.Sends`)."""

    def __init__(self, ends: _Ends, side: _Side) -> None:
        self._ends, self._side = ends, side

    def send(self, number: int, length_bytes: int) -> str:
        return str(self._ends.ask(self._side, "send", number=number, length_bytes=length_bytes))

    def burst(self, count: int) -> None:
        self._ends.ask(self._side, "burst", count=count)

    def told(self) -> tuple[str, int | None]:
        words, mtu_bytes = self._ends.ask(self._side, "told")
        return words, mtu_bytes


class _Receiver:
    """The receiving end (`probes.Receives`)."""

    def __init__(self, ends: _Ends, side: _Side) -> None:
        self._ends, self._side = ends, side

    def arrived(self, wait_s: float, wanted: int) -> Collection[int]:
        return set(self._ends.ask(self._side, "arrived", wait_s=wait_s, wanted=wanted))


@contextmanager
def _channel(ends: _Ends, kind: str, sender: _Side) -> Iterator[tuple[_Sender, _Receiver]]:
    token = os.urandom(probes.TOKEN_BYTES).hex()
    try:
        port = ends.ask(ends.far(sender), "receive", kind=kind, token=token)
        ends.ask(sender, "sender", kind=kind, token=token, port=port)
        yield _Sender(ends, sender), _Receiver(ends, ends.far(sender))
    finally:
        ends.both("done")


class _Found:
    """The path that was chosen: both addresses, what each half told of it, and whether the client is hidden."""

    def __init__(self, ends: _Ends, family: int | None, only: Collection[str]) -> None:
        given = {"family": family}
        own, far = ends.both("addresses", given, given)
        client, server = chosen(own, far, only)
        source = client[0] if set(client) & set(only) else None
        ways = ends.ask(ends.client, "ways", pairs=[(source, to) for to in server])
        if not ways:
            raise Unsupported(f"{ends.client.name} and {ends.server.name} have no version of IP in common")
        back = ends.ask(
            ends.server, "ways", pairs=[(one["destination"], one["hidden"] or one["source"]) for one in ways]
        )
        order = sorted(
            zip(ways, back, strict=True),
            key=lambda both: (
                not (both[0]["leaves"] and both[1]["leaves"]),
                both[0]["version"],
                not both[0]["beside"],
            ),
        )
        there, _home = order[0]
        self.source, self.destination = there["source"], there["destination"]
        pairs = [(one["source"], one["destination"]) for one in ways]
        self.others = others_than([(self.source, self.destination)], pairs)
        self.hidden: str = there["hidden"]
        self.client, self.server = ends.both(
            "follow",
            {"source": self.source, "destination": self.destination},
            {"source": self.destination, "destination": self.hidden or self.source},
        )


def _check(
    placed: list[tuple[str, str]],
    say: Say,
    load_s: int | None,
    agreed: Callable[[str], bool],
    port: int | None,
    **given: Any,
) -> dict[str, Any]:
    """Return what a check of two ends on two machines found, as `labkit check --json` prints it.

    placed: machine and name of each (`existing_names.machines`). The other parameters are those of `checks.check`.
    """
    with ExitStack() as stack:
        ends = _Ends(placed, say, stack)
        found = _Found(ends, **given)
        not_seen = [f"what the network between {_shown(ends.client)} and {_shown(ends.server)} consists of"]
        not_seen += found.others
        if load_s is not None and not agreed(load.plan(*_words(ends, found), load_s)):
            not_seen.append("the load was not sent: its plan was not agreed to")
            load_s = None
        if load_s is not None:
            # Who holds one lock waits for the other with a limit: two commands may wait for each other.
            for side, patience_s in ((ends.client, None), (ends.server, PATIENCE_S)):
                ends.ask(side, "lock", patience_s=patience_s)
        ends.both("observe")
        probed = _probed(ends, found, load_s, port, not_seen)
        given = {"probed": msgspec.to_builtins(probed)}
        edges = ends.both("measured", given, given)
        judged = ends.both(
            "judge",
            {"beyond": edges[1], "narrow": _narrow(ends.server, found.server)},
            {"beyond": edges[0], "narrow": _narrow(ends.client, found.client)},
        )
        return _report(ends, found, probed, judged, not_seen)


def _narrow(side: _Side, told: dict[str, Any]) -> tuple[str, int] | None:
    """Return the interface with the smallest MTU, as the other machine names it, and this MTU."""
    return told["narrow"] and (f"{told['narrow'][0]} of {_shown(side)}", told["narrow"][1])


def _words(ends: _Ends, found: _Found) -> tuple[tuple[str, str], tuple[str, str]]:
    return (_end(ends.client), found.source), (_end(ends.server), found.destination)


def _probed(
    ends: _Ends, found: _Found, load_s: int | None, port: int | None, not_seen: list[str]
) -> dict[str, Any]:
    """Send packets from each end to the other; return what that showed, by the fields of `Evidence`."""
    result: dict[str, Any] = {
        "forward_probe": probes.one_way(
            lambda kind: _channel(ends, kind, ends.client), found.client["mtu_bytes"]
        ),
        "back_probe": OneWay(),
        "connection": _connected(ends),
    }
    if found.hidden:
        back: OneWay = result["back_probe"]
        back.icmp.exempt = back.udp.exempt = True
        not_seen.append(
            f"what {ends.server.name} sends by itself to {ends.client.name}, which is behind {found.hidden}"
        )
    else:
        result["back_probe"] = probes.one_way(
            lambda kind: _channel(ends, kind, ends.server), found.server["mtu_bytes"]
        )
    if result["forward_probe"].icmp.arrived:
        result["round_trips_ms"] = ends.ask(ends.client, "round_trips_ms")
    ports = [port] if port is not None else []
    if not (ports or result["connection"].connected or ends.server.name == "host"):
        ports = ends.ask(ends.server, "listening")[: evidence.MAX_PORTS]
    result["ports"] = {each: ends.ask(ends.client, "refused", port=each) for each in ports}
    ways = (result["forward_probe"], result["back_probe"])
    not_seen += evidence.exempted(ends.server.name, result["ports"], result["connection"], ways)
    if load_s is not None and not result["connection"].connected:
        not_seen.append(f"the load was not sent: no connection of labkit's own reached {found.destination}")
    elif load_s is not None:
        result |= {"load_s": load_s, "loads": _loads(ends, load_s, not_seen)}
    return result


def _connected(ends: _Ends) -> Connection:
    """Connect with TCP, and carry what `probes.tcp` does."""
    try:
        port = ends.ask(ends.server, "listen")
        ends.ask(ends.client, "connect", port=port)
        ends.ask(ends.server, "accept")
        carried = ends.both("carry")[1]
    except OSError as error:
        return Connection(False, 0, 0.0, str(error))
    finally:
        ends.both("done")
    return Connection(True, carried, probes.TCP_S)


def _loads(ends: _Ends, load_s: int, not_seen: list[str]) -> list[load.Load]:
    result = list[load.Load]()
    for protocol in load.PROTOCOLS:
        if said := ends.ask(ends.server, "serve"):
            not_seen.append(f"the load did not run: {said}")
            return result
        sent = ends.ask(ends.client, "load", seconds=load_s, protocol=protocol)
        ends.ask(ends.server, "served")
        result.append(msgspec.convert(sent, load.Load))
    return result


def _shown(side: _Side) -> str:
    return "this machine" if side.where == "here" else side.where.removeprefix("ssh:")


def _end(side: _Side, name: str | None = None) -> str:
    """Return a name of a half as the user would give it."""
    return (name or side.name) if side.where == "here" else f"{side.where}/{name or side.name}"


def _report(
    ends: _Ends, found: _Found, probed: dict[str, Any], judged: list[dict[str, Any]], not_seen: list[str]
) -> dict[str, Any]:
    explained, others, drops = list[Finding](), list[Finding](), Counter[str]()
    for side, one in zip((ends.client, ends.server), judged, strict=True):
        explained += _placed(side, ends.far(side), one["explained"])
        others += _placed(side, ends.far(side), one["unexplained"])
        for reason, function, interface, count in one["drops"]:
            drops[f"{reason} in {function}{f' at {interface}' if interface else ''} of {_shown(side)}"] += (
                count
            )
        not_seen += [f"{text} ({_shown(side)})" for text in one["not_seen"]]
    explained += _tunnels(ends, found, probed)
    trips_ms = sorted(probed.get("round_trips_ms", []))
    return {
        "client": _end(ends.client),
        "server": _end(ends.server),
        "findings": [asdict(one) for one in registry.judged(explained, others)],
        "paths": [
            {
                "client": found.source,
                "server": found.destination,
                "interfaces": [
                    *(_end(ends.client, one) for one in found.client["interfaces"]),
                    BETWEEN,
                    *(_end(ends.server, one) for one in found.server["interfaces"]),
                ],
                "forward": probed["forward_probe"].summary,
                "back": probed["back_probe"].summary,
                "tcp": probed["connection"].connected,
                "ports": {str(port): said or "connects" for port, said in probed["ports"].items()},
                "round_trip_ms": trips_ms[len(trips_ms) // 2] if trips_ms else None,
            }
        ],
        "loads": [asdict(one) for one in probed.get("loads", [])],
        "drops": dict(drops.most_common(20)),
        "not_seen": list(dict.fromkeys(not_seen)),
    }


def _tunnels(ends: _Ends, found: _Found, probed: dict[str, Any]) -> Iterator[Finding]:
    """Yield that the tunnels of both machines differ, where nothing arrives."""
    sides = ((ends.client, found.client["tunnels"]), (ends.server, found.server["tunnels"]))
    has = [f"{_end(side, name)} has {what}" for side, tunnels in sides for name, what in tunnels]
    same = {what for _name, what in found.client["tunnels"]} & {
        what for _name, what in found.server["tunnels"]
    }
    if all(tunnels for _side, tunnels in sides) and not same and not probed["forward_probe"].arrives:
        yield Finding(
            cause="tunnel ends differ", what="; ".join(has), where=BETWEEN, certainty=SEEN, weight=ALL
        )  # fmt: skip


def _placed(side: _Side, far: _Side, given: list[dict[str, Any]]) -> Iterator[Finding]:
    """Yield the findings of a machine, with its name before their places."""
    for one in msgspec.convert(given, list[Finding]):
        known = one.where in ("path", BETWEEN) or f" of {_shown(far)} (MTU " in one.where
        yield one if known else replace(one, where=_end(side, one.where))


def _draw(placed: list[tuple[str, str]], say: Say, port: int | None, **given: Any) -> dict[str, Any]:
    """Return the state of the path between two ends on two machines, and its gap, as `questions` does."""
    if port is not None:
        raise Unsupported(
            "a published port is drawn between ends of one machine: name host there, and leave out --port"
        )
    with ExitStack() as stack:
        ends = _Ends(placed, say, stack)
        found = _Found(ends, **given)
        told = {ends.client: found.client, ends.server: found.server}
        states = [
            _renamed(side, msgspec.convert(ends.ask(side, "state"), State))
            for side in (ends.client, ends.server)
        ]
    one, other = states
    exits = (one.forward[-1:], other.forward[:1])
    network = [
        InterfaceState(
            name=_shown(side), index=0, kind="cable", up=True, carrier=True, mtu_bytes=0,
            peer=PlaceState(step.namespace, step.interface),
        )
        for side, steps in zip((ends.client, ends.server), exits, strict=True)
        for step in steps
    ]  # fmt: skip
    state = State(
        topology=f"{_end(ends.client)}+{_end(ends.server)}",
        kernel=" and ".join(dict.fromkeys((one.kernel, other.kernel))),
        pairs=[(one.pairs[0][0], other.pairs[0][1])],
        namespaces=[*one.namespaces, Namespace(BETWEEN, network, []), *other.namespaces],
        forward=[*one.forward, *other.forward],
        back=[*other.back, *one.back],
    )
    gaps = (f"{_shown(side)}: {told['gap']}" for side, told in told.items() if told["gap"])
    return {"state": msgspec.to_builtins(state), "gap": next(gaps, None), "others": found.others}


def _renamed(side: _Side, state: State) -> State:
    """Return a state with the machine's name before each namespace."""
    whole = msgspec.to_builtins(state)

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: _end(side, one) if key == "namespace" and isinstance(one, str) else named(one)
                for key, one in value.items()
            }
        return [named(one) for one in value] if isinstance(value, list | tuple) else value

    whole = named(whole)
    for space in whole["namespaces"]:
        space["name"] = _end(side, space["name"])
    return msgspec.convert(whole, State)


# As `questions.QUESTIONS` answers about two ends of one machine.
QUESTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {"check": _check, "draw": _draw}
