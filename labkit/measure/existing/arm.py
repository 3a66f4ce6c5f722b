"""An existing network as an arm: load between two ends that labkit did not make, and of which it changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from labkit.common import existing_names
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.measure.endpoints import Endpoint, Namespace, Pair, RemoteEnd
from labkit.measure.existing.endpoints import require
from labkit.measure.existing.handing import Handed, HandedEnd
from labkit.measure.topologies.base import CLIENTS, BuiltSide, Meter, Spec, Topology
from labkit.measure.traffic.base import PORT
from labkit.system import netlink
from labkit.system.netlink import encryption

PORTS = 64  # how many arms may use an end at the same time
# Other traffic at an end is looked at for so long before each set-up, and doubted from so many frames a second.
LOOK_S, OTHERS_PPS = 0.1, 200
_HANDED: dict[str, Handed] = {}
_ports_in_use: set[tuple[int, int]] = set()  # inode of the server's namespace, and the offset of a port


def receive(given: Mapping[str, Any]) -> None:
    """Keep the networks that the process's request hands over (`handing.hand_over`)."""
    _HANDED.update(msgspec.convert(given, dict[str, Handed]))


def check_load(name: str, pairs: int, _mtu_bytes: int, _family: int) -> None:
    """Raise BadInput for several pairs: there are two ends."""
    if pairs > 1:
        raise BadInput(f"pairs={pairs}: {name} is one pair, and labkit adds no end to it: use pairs=1")


@contextmanager
def existing(name: str, spec: Spec) -> Iterator[Topology]:
    """Stand between the two ends of an existing network. Nothing is made and nothing removed.

    Raises Unsupported if its ends do not have the MTU that the other arms have, and Failed if one of them has ended.
    """
    handed = _handed(name)
    with _entered(handed, spec, handed.client, handed.server) as (spaces, ends):
        yield Topology(
            name,
            spec,
            [Pair(*ends)],
            spaces,
            meter=_meter(handed.client, handed.server),
            doubts=tuple(_others(ends)),
            shown=handed.shown,
            steps=(handed.forward, handed.back),
        )


@contextmanager
def side(name: str, spec: Spec) -> Iterator[BuiltSide]:
    """Stand at the end that is on this machine, as `existing` does; the other end is on another one."""
    handed = _handed(name)
    client, server = existing_names.ends(name)
    own, far, far_name, meter = handed.server, handed.client, client, None
    if spec.side == CLIENTS:  # whose meter is read
        own, far, far_name, meter = handed.client, handed.server, server, _meter(handed.client)
    with _entered(handed, spec, own) as (_spaces, ends):
        yield BuiltSide(ends, [RemoteEnd(far_name, far.address)], meter=meter, doubts=tuple(_others(ends)))


def _meter(*ends: HandedEnd) -> Meter:
    """Return a meter without columns, which raises Failed if one of these has ended."""

    def metered() -> dict[str, Any]:
        for one in ends:
            require(one.namespace, one.process)
        return {}

    def begin() -> Callable[[], dict[str, Any]]:
        metered()
        return metered

    return begin


def _handed(name: str) -> Handed:
    if name not in _HANDED:
        raise Unsupported(f"{name} is on this machine: measure it with where=here, on one host")
    return _HANDED[name]


@contextmanager
def _entered(
    handed: Handed, spec: Spec, *wanted: HandedEnd
) -> Iterator[tuple[list[Namespace], list[Endpoint]]]:
    """Yield the namespaces of the path, and these ends of it; the last one's port is free of others."""
    with ExitStack() as stack:
        spaces: dict[str, Namespace] = {}
        for at, fd in handed.namespaces.items():
            with netlink.inside(fd):
                spaces[at] = Namespace(at, os.dup(fd), netlink.Netlink())
            stack.callback(spaces[at].close)
        offset = _free_port(spaces[wanted[-1].namespace], stack)
        yield list(spaces.values()), [_end(one, handed, spaces, spec, offset) for one in wanted]


def _end(one: HandedEnd, of: Handed, spaces: Mapping[str, Namespace], spec: Spec, offset: int) -> Endpoint:
    space, other = spaces[one.namespace], of.server if one is of.client else of.client
    require(one.namespace, one.process)
    link = next((link for link in netlink.links(space.netlink) if link.index == one.index), None)
    if link is None or not link.up:
        raise Failed(f"{one.namespace} has lost its interface {one.interface}")
    if link.mtu_bytes != spec.mtu_bytes:
        raise Unsupported(
            f"{one.interface} of {one.namespace} has an MTU of {link.mtu_bytes} bytes, which labkit does not change:"
            f" give all arms the same one with mtu_bytes={link.mtu_bytes}"
        )
    return Endpoint(
        one.namespace, space, one.interface, one.index, one.address, port_offset=offset,
        more_header_bytes=encryption.added_bytes(space.fd, one.address, other.address),
    )  # fmt: skip


def _free_port(server: Namespace, stack: ExitStack) -> int:
    """Return an offset to the generators' port at which nobody listens, until the stack closes. Raises Failed."""
    inode = os.fstat(server.fd).st_ino
    for offset in range(PORTS):
        taken = (inode, offset) in _ports_in_use
        if not taken and not any(server.listens(PORT + offset, transport) for transport in ("tcp", "udp")):
            _ports_in_use.add((inode, offset))
            stack.callback(_ports_in_use.discard, (inode, offset))
            return offset
    raise Failed(f"{server.name} has no free port from {PORT} to {PORT + PORTS - 1}")


def _others(ends: list[Endpoint]) -> Iterator[str]:
    """Yield a doubt about each end at which more than a little traffic arrives while labkit sends none."""
    before = [end.counters().received_count for end in ends]
    time.sleep(LOOK_S)
    for end, earlier in zip(ends, before, strict=True):
        rate = (end.counters().received_count - earlier) / LOOK_S
        if rate > OTHERS_PPS:
            yield f"others use {end.interface} of {end.name}: {rate:.0f} frames per second arrived before the load"
