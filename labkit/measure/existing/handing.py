"""Hand an existing network to the process of an experiment, which lives in namespaces of its own and cannot look for
anything."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing, nullcontext
from typing import Any

import msgspec

from labkit.common import existing_names
from labkit.common.topology_state import Step
from labkit.measure.existing import ExistingNetwork, between


class HandedEnd(msgspec.Struct, frozen=True):
    """An end: its namespace, and the interface and address that carry the load.

    `process`: a descriptor (pidfd_open(2)) of a process in it; None for a namespace without one.
    """

    namespace: str
    interface: str
    index: int
    address: str
    process: int | None


class Handed(msgspec.Struct, frozen=True):
    """An existing network: a descriptor of each namespace on its path, both ends, and the path (`ExistingNetwork`).

    An end on another machine has its address, and the interface that leads there.
    """

    namespaces: dict[str, int]
    client: HandedEnd
    server: HandedEnd
    shown: dict[str, list[str]]
    forward: list[Step]
    back: list[Step]


def hand_over(request: Mapping[str, Any], stack: ExitStack) -> tuple[dict[str, Any], list[int]]:
    """Find the existing networks among the topologies of a request; they stay open until the stack closes.

    `addresses` in the request: those of each network between two machines (`Half.follow`). Its server is here if the
    request is to serve, else its client.

    Returns what the request needs beside it, and the descriptors that the process must inherit. Raises the errors of
    `existing.between`.
    """
    parameters = request.get("parameters", {})
    handed: dict[str, Handed] = {}
    for name in parameters.get("topology", ()):
        if isinstance(name, str) and existing_names.is_network(name):
            (_where, client), (_there, server) = existing_names.machines(*existing_names.ends(name))
            if (addresses := request.get("addresses", {}).get(name)) is None:
                path = stack.enter_context(between(client, server, parameters["family"]))
            else:
                path = _half(client, server, request["do"] == "serve", addresses, stack)
            handed[name] = _handed(path)
    fds = [fd for one in handed.values() for fd in one.namespaces.values()]
    ends = [end for one in handed.values() for end in (one.client, one.server)]
    fds += [end.process for end in ends if end.process is not None]
    return ({"existing": msgspec.to_builtins(handed)} if handed else {}), fds


def _half(
    client: str, server: str, serves: bool, addresses: Mapping[str, str], stack: ExitStack
) -> ExistingNetwork:
    from labkit.measure.existing.half import Half  # the largest part, which one machine does not need

    name, role = (server, "server") if serves else (client, "client")
    half = stack.enter_context(closing(Half(name, role, lambda _patience_s: nullcontext())))
    half.follow(**addresses)
    return half.described()


def _handed(path: ExistingNetwork) -> Handed:
    client, server = (
        HandedEnd(end.namespace.name, end.interface, end.index, end.address, path.processes.get(end.name))
        for end in (path.pair.client, path.pair.server)
    )
    spaces = {space.name: space.fd for space in path.topology.namespaces}
    shown = {at: sorted(interfaces) for at, interfaces in (path.topology.shown or {}).items()}
    return Handed(spaces, client, server, shown, path.state.forward, path.state.back)
