"""Two ends on two machines: both are asked in turns, each for its half of the path (`measure.existing.half`).

Packets of labkit's own go from one to the other. Each machine ends what it started when this process ends.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_address, ip_interface
from typing import Any

import msgspec
from msgspec.structs import replace as replaced

from labkit.common import errors, existing_names
from labkit.common.errors import Failed, LabkitError, Unsupported
from labkit.common.topology_state import InterfaceState, Namespace, NextHop, Route, State
from labkit.common.topology_state import Place as PlaceState
from labkit.measure import hosts
from labkit.measure.existing.checks import check, evidence, load, probes, registry
from labkit.measure.existing.checks.findings import ALL, BETWEEN, SEEN, Finding
from labkit.measure.existing.checks.probes import Connection, OneWay, Sent
from labkit.measure.existing.clone import OUTSIDE, node_name
from labkit.measure.existing.path import chosen, others_than
from labkit.runner.two_hosts import PATIENCE_S

Say = Callable[[str], None]
Answer = Callable[[], dict[str, Any]]  # waits for the answer to a request


@dataclass(eq=False)
class _Side:
    """One machine's half. begin: sends a request, by its name (`half.ASKS`) and its parameters."""

    where: str
    name: str
    begin: Callable[[str, dict[str, Any]], Answer]

    def ask(self, ask: str, /, **given: Any) -> Any:
        """Return the answer. Raises OSError with the system's words, and the errors of the other side."""
        return _of(self.begin(ask, given)())


def _of(answer: dict[str, Any]) -> Any:
    if "failed" in answer:
        raise OSError(answer["failed"])
    return answer["answer"]


def _opened(where: str, name: str, role: str, command: str, say: Say, stack: ExitStack) -> _Side:
    """Open a half: of this machine in this process, of another one through ssh."""
    if where == "here":
        from labkit.measure.existing.half import Half  # what only an end of this machine needs
        from labkit.measure.hosts import local

        half = Half(name, role, lambda patience_s: local.measuring_lock(say, command, patience_s))
        stack.enter_context(closing(half))
        return _Side(where, name, lambda ask, given: lambda: half.answer(ask, given))
    request = {"do": "half", "name": name, "role": role, "command": command}
    conversation = stack.enter_context(hosts.conversation(where, request, say))
    lines, said = conversation.lines(), list[errors.LabkitError]()

    def answer() -> dict[str, Any]:
        for line in lines:
            event = _decoded(line)
            if event["event"] == "error":
                said.append(errors.error_by_name(event["kind"], event["text"]))
                break
            if event["event"] == "answer":
                return event
            say(event["text"])
        # Its last words stay the reason: a part of a check may go on without the answer.
        raise said[0] if said else Failed(f"the check {conversation.end_reason()}")

    def begin(ask: str, given: dict[str, Any]) -> Answer:
        conversation.send(msgspec.json.encode({"ask": ask, "given": given}))
        return answer

    answer()  # that the half is open
    return _Side(where, name, begin)


@errors.reading("an answer of another machine")
def _decoded(line: bytes) -> dict[str, Any]:
    return msgspec.json.decode(line, type=dict[str, Any])


class _Ends:
    """Both halves: `client` and `server`. far: the other one of each."""

    def __init__(self, placed: list[tuple[str, str]], say: Say, stack: ExitStack) -> None:
        command = os.urandom(8).hex()  # by which two names of one machine share its lock
        self.sides = [
            _opened(*place, role, command, say, stack)
            for place, role in zip(placed, ("client", "server"), strict=True)
        ]
        self.client, self.server = self.sides
        self.far = {self.client: self.server, self.server: self.client}

    def both(
        self, ask: str, client: dict[str, Any] | None = None, server: dict[str, Any] | None = None
    ) -> list[Any]:
        """Ask both at the same time; return the answers of client and server."""
        of = zip(self.sides, (client or {}, server or {}), strict=True)
        waiting = [(side, side.begin(ask, given)) for side, given in of]
        # This process is a half itself: it answers while the other one does.
        waiting.sort(key=lambda one: one[0].where != "here")
        answers = {side: wait() for side, wait in waiting}  # both are read, even if one says that it failed
        return [_of(answers[side]) for side in self.sides]


class _Far:
    """What the machine of a half does when it is asked: the sender or the receiver of a burst (`probes`)."""

    def __init__(self, side: _Side) -> None:
        self._side = side

    def __getattr__(self, ask: str) -> Callable[..., Any]:
        return lambda **given: self._side.ask(ask, **given)


@contextmanager
def _channel(ends: _Ends, kind: str, sender: _Side) -> Iterator[tuple[Any, Any]]:
    token = os.urandom(probes.TOKEN_BYTES).hex()
    try:
        port = ends.far[sender].ask("receive", kind=kind, token=token)
        sender.ask("sender", kind=kind, token=token, port=port)
        yield _Far(sender), _Far(ends.far[sender])
    finally:
        ends.both("done")


class _Found:
    """The path that was chosen: both addresses, what each half told of it, and what the client is behind.

    `addresses`: for each half, its own and that of the other one (`Half.follow`).
    """

    def __init__(self, ends: _Ends, family: int | None, only: Collection[str]) -> None:
        given = {"family": family}
        own, far = ends.both("addresses", given, given)
        client, server = chosen(own, far, only)
        source = client[0] if set(client) & set(only) else None
        ways = ends.client.ask("ways", pairs=[(source, to) for to in server])
        if not ways:
            raise Unsupported(f"{ends.client.name} and {ends.server.name} have no version of IP in common")
        pairs = [(one["destination"], one["hidden"] or one["source"]) for one in ways]
        back = ends.server.ask("ways", pairs=pairs)
        there, _home = min(
            zip(ways, back, strict=True),
            key=lambda two: (not all(one["leaves"] for one in two), two[0]["version"], not two[0]["beside"]),
        )
        self.source, self.destination = there["source"], there["destination"]
        pairs = [(one["source"], one["destination"]) for one in ways]
        self.others = others_than([(self.source, self.destination)], pairs)
        self.hidden, self.behind = str(there["hidden"]), str(there["behind"])
        self.addresses = (
            {"source": self.source, "destination": self.destination},
            {"source": self.destination, "destination": self.hidden or self.source},
        )
        self.client, self.server = ends.both("follow", *self.addresses)


def addresses(
    names: Iterable[str], family: int, say: Say
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """Return the addresses of each existing network (`Half.follow`), for the clients' machine and for the servers'."""
    clients, servers = dict[str, dict[str, str]](), dict[str, dict[str, str]]()
    for name in names:
        with ExitStack() as stack:
            ends = _Ends(existing_names.machines(*existing_names.ends(name)), say, stack)
            clients[name], servers[name] = _Found(ends, family, ()).addresses
    return clients, servers


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
        words = (_end(ends.client), found.source), (_end(ends.server), found.destination)
        if load_s is not None and not agreed(load.plan(*words, load_s)):
            not_seen.append("the load was not sent: its plan was not agreed to")
            load_s = None
        if load_s is not None:
            # Who holds one lock waits for the other with a limit: two commands may wait for each other.
            for side, patience_s in ((ends.client, None), (ends.server, PATIENCE_S)):
                side.ask("lock", patience_s=patience_s)
        ends.both("observe")
        probed = evidence.Probed()
        _sending(ends, found, not_seen).probe(probed, not_seen, load_s, port)
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


def _sending(ends: _Ends, found: _Found, not_seen: list[str]) -> evidence.Sending:
    """Return how packets get from each end to the other."""

    def forward() -> OneWay:
        return probes.one_way(lambda kind: _channel(ends, kind, ends.client), found.client["mtu_bytes"])

    def back() -> OneWay:
        if found.behind:
            not_seen.append(
                f"what {ends.server.name} sends by itself to {ends.client.name}, which {found.behind}"
            )
            return OneWay(Sent(exempt=True), Sent(exempt=True))
        return probes.one_way(lambda kind: _channel(ends, kind, ends.server), found.server["mtu_bytes"])

    return evidence.Sending(
        ends.server.name,
        found.destination,
        forward,
        back,
        connect=lambda: _connected(ends),
        round_trips_ms=lambda: ends.client.ask("round_trips_ms"),
        listening=lambda: ends.server.ask("listening"),
        refused=lambda port: ends.client.ask("refused", port=port),
        loads=lambda seconds: (_load(ends, seconds, protocol) for protocol in load.PROTOCOLS),
    )


def _connected(ends: _Ends) -> Connection:
    """Connect with TCP, and carry what `probes.tcp` does."""
    try:
        port = ends.server.ask("listen")
        ends.client.ask("connect", port=port)
        ends.server.ask("accept")
        carried = ends.both("carry")[1]
    except OSError as error:
        return Connection(False, 0, 0.0, str(error))
    finally:
        ends.both("done")
    return Connection(True, carried, probes.TCP_S)


def _load(ends: _Ends, seconds: int, protocol: str) -> load.Load:
    try:
        if said := ends.server.ask("serve") or ends.client.ask("load", seconds=seconds, protocol=protocol):
            raise Failed(said)
        while (sent := ends.client.ask("loaded")) is None:
            ends.server.ask("listening")  # any answer says that its end is there
    finally:
        with suppress(LabkitError, OSError):  # a half that has ended says so at the next request, too
            ends.both("served")
    return msgspec.convert(sent, load.Load)


def _shown(side: _Side) -> str:
    return "this machine" if side.where == "here" else side.where.removeprefix("ssh:")


def _end(side: _Side, name: str | None = None) -> str:
    """Return a name of a half as the user would give it."""
    return (name or side.name) if side.where == "here" else f"{side.where}/{name or side.name}"


def _report(
    ends: _Ends, found: _Found, probed: evidence.Probed, judged: list[dict[str, Any]], not_seen: list[str]
) -> dict[str, Any]:
    explained, others, drops = list[Finding](), list[Finding](), Counter[str]()
    of = zip(ends.sides, (found.client, found.server), strict=True)
    spaces = {(side, one.rpartition(" ")[0]) for side, told in of for one in told["interfaces"]}
    nodes = Counter(node_name(_end(*one)) for one in spaces)
    for side, one in zip(ends.sides, judged, strict=True):
        explained += _placed(side, ends.far[side], one["explained"], nodes)
        others += _placed(side, ends.far[side], one["unexplained"], nodes)
        drops.update({f"{what} of {_shown(side)}": count for what, count in one["drops"].items()})
        not_seen += [f"{text} ({_shown(side)})" for text in one["not_seen"]]
    explained += _tunnels(ends, found, probed)
    interfaces = [
        *(_end(ends.client, one) for one in found.client["interfaces"]),
        BETWEEN,
        *(_end(ends.server, one) for one in found.server["interfaces"]),
    ]
    return {
        "client": _end(ends.client),
        "server": _end(ends.server),
        "findings": [asdict(one) for one in registry.judged(explained, others)],
        "paths": [check.path_entry(found.source, found.destination, interfaces, probed)],
        "loads": [asdict(one) for one in probed.loads],
        "drops": dict(drops.most_common(20)),
        "not_seen": list(dict.fromkeys(not_seen)),
    }


def _tunnels(ends: _Ends, found: _Found, probed: evidence.Probed) -> Iterator[Finding]:
    """Yield that the tunnels of both machines differ, where nothing arrives."""
    sides = ((ends.client, found.client["tunnels"]), (ends.server, found.server["tunnels"]))
    has = [f"{_end(side, name)} has {what}" for side, tunnels in sides for name, what in tunnels]
    same = {what for _name, what in found.client["tunnels"]} & {
        what for _name, what in found.server["tunnels"]
    }
    if all(tunnels for _side, tunnels in sides) and not same and not probed.forward_probe.arrives:
        yield Finding(
            cause="tunnel ends differ", what="; ".join(has), where=BETWEEN, certainty=SEEN, weight=ALL
        )  # fmt: skip


def _placed(side: _Side, far: _Side, given: list[dict[str, Any]], nodes: Counter[str]) -> Iterator[Finding]:
    """Yield the findings of a machine, with its name before their places, and its node in their changes.

    A finding has no change if a copy has several nodes of that name. nodes: the number of nodes of each name.
    """
    host = existing_names.HOST
    node = f" at {node_name(_end(side, host))}:"
    for one in msgspec.convert(given, list[Finding]):
        change = one.change and one.change.replace(f" at {host}:", node)
        at, is_node, _name = (change or "").rpartition(" at ")[2].partition(":")
        one = replace(one, change=None if is_node and nodes[at] > 1 else change)
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
        state, gap = _state(ends, found)
    return {"state": msgspec.to_builtins(state), "gap": gap, "others": found.others}


def _clone(placed: list[tuple[str, str]], say: Say, name: str, **given: Any) -> dict[str, Any]:
    """Return a copy of the path between two ends on two machines, as `questions` does; the client's one builds it."""
    with ExitStack() as stack:
        ends = _Ends(placed, say, stack)
        found = _Found(ends, **given)
        state, gap = _state(ends, found)
        state, form = _joined(found, state)
        halves = zip(ends.sides, ends.both("facts"), strict=True)
        of = {_end(side, at): one for side, facts in halves for at, one in facts.items()}
        copy = ends.client.ask("cloned", state=msgspec.to_builtins(state), of=of, gap=gap, name=name)
    between = f"what is between {_shown(ends.client)} and {_shown(ends.server)}, which is {form} in the copy"
    return {"network": copy["network"], "lacks": [between, *copy["lacks"]]}


def _state(ends: _Ends, found: _Found) -> tuple[State, str | None]:
    """Return the state of both halves, with the network between as a namespace, and the gap."""
    told = {ends.client: found.client, ends.server: found.server}
    one, other = (_renamed(side, msgspec.convert(side.ask("state"), State)) for side in ends.sides)
    exits = (one.forward[-1:], other.forward[:1])
    network = [
        InterfaceState(
            name=_shown(side), index=0, kind="cable", up=True, carrier=True, mtu_bytes=0,
            peer=PlaceState(step.namespace, step.interface),
        )
        for side, steps in zip(ends.sides, exits, strict=True)
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
    return state, next(gaps, None)


def _joined(found: _Found, state: State) -> tuple[State, str]:
    """Return the state with the network between as a copy has it, and what that is: a cable, or a router if packets
    leave both machines to gateways, or nothing if they do not leave."""
    [between] = (space for space in state.namespaces if space.name == BETWEEN)
    machines = [space for space in state.namespaces if space is not between]
    nics = [one.peer for one in between.interfaces if one.peer is not None]
    exits = [one["exit"] for one in (found.client, found.server)]
    if len(nics) < 2 or None in exits:
        return replaced(state, namespaces=machines), "nothing"
    if not _have_gateways(exits):
        cable = dict(zip(nics, nics[::-1], strict=True))
        return replaced(state, namespaces=[_plugged(one, cable) for one in machines]), "a cable"
    router = _router(found, between, exits)
    cables = dict(zip(nics, (PlaceState(OUTSIDE, one.name) for one in router.interfaces), strict=True))
    namespaces = [*(_plugged(one, cables) for one in machines), router]
    return replaced(state, namespaces=namespaces), f"the router {OUTSIDE}"


def _have_gateways(exits: list[dict[str, Any]]) -> bool:
    """Return whether packets leave both machines to gateways, which are neither of the two."""
    own = {address for one in exits for address in one["own"]}
    return all(one["gateway"] and one["gateway"].partition("/")[0] not in own for one in exits)


def _plugged(space: Namespace, peers: Mapping[PlaceState, PlaceState]) -> Namespace:
    """Return a namespace whose interfaces in `peers` are ends of cables to these."""
    interfaces = [
        replaced(one, kind="veth", mode=None, lower=None, peer=peers[at])
        if (at := PlaceState(space.name, one.name)) in peers
        else one
        for one in space.interfaces
    ]
    return replaced(space, interfaces=interfaces)


def _router(found: _Found, between: Namespace, exits: list[dict[str, Any]]) -> Namespace:
    """Return a router that has the gateways of both machines, and leads to the addresses of both ends."""
    interfaces, routes = [], []
    hidden = {found.source: found.hidden or found.source}  # in a tunnel, nobody sees it
    for name, one, way in zip(("to-client", "to-server"), between.interfaces, exits, strict=True):
        gateway, source = ip_interface(way["gateway"]), hidden.get(way["source"], way["source"])
        interfaces.append(
            replaced(one, name=name, kind="veth", mtu_bytes=way["mtu_bytes"], addresses=[str(gateway)])
        )
        if ip_address(source) not in gateway.network:
            routes.append(Route(to=str(ip_interface(source)), hops=[NextHop(name, way["beside"])]))
    return Namespace(OUTSIDE, interfaces, routes)


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
QUESTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {"check": _check, "draw": _draw, "clone": _clone}
