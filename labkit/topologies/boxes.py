"""Ends whose programs run in a box: a container in the namespace of any topology, or a guest on a tap of a bridge."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from labkit import netlink
from labkit.endpoints import Endpoint, Pair, namespaces
from labkit.topologies.base import (
    BETWEEN,
    EDGE,
    Spec,
    Topology,
    end_address,
    end_name,
    mac,
    numbers,
)
from labkit.topologies.veth import BRIDGE


@contextmanager
def boxed(topology: Topology) -> Iterator[Topology]:
    """The topology with a container in every namespace that is an end of a pair."""
    from labkit.endpoints.container import containers  # what only containers need

    spaces = {
        id(end.namespace): end.namespace for pair in topology.pairs for end in (pair.client, pair.server)
    }
    with containers(list(spaces.values())) as made:
        of = dict(zip(spaces, made, strict=True))
        pairs = [
            Pair(*(dataclasses.replace(end, box=of[id(end.namespace)]) for end in (pair.client, pair.server)))
            for pair in topology.pairs
        ]
        yield dataclasses.replace(topology, pairs=pairs)


@contextmanager
def tap_bridge(name: str, spec: Spec) -> Iterator[Topology]:
    """A tap from every guest to one Linux bridge, as `veth_bridge` has a veth from every namespace."""
    from labkit.endpoints.guest import Nic, guests, parse  # what only guests need

    with namespaces([BETWEEN], family=spec.family) as [between], ExitStack() as stack:
        between.netlink.do(netlink.new_link("bridge", "bridge", index=BRIDGE, mtu_bytes=spec.mtu_bytes))
        nics = []
        queues = parse(spec.guest).queues
        for number in numbers(spec):
            tap = netlink.Tap(between.fd, f"port{number}", queues)
            stack.callback(tap.close)
            between.netlink.do(
                netlink.set_link(tap.index, mtu_bytes=spec.mtu_bytes), netlink.set_master(tap.index, BRIDGE)
            )
            partner = number ^ 1
            ends = (str(end_address(spec, number)), str(end_address(spec, partner).ip))
            nics.append(Nic(end_name(number), tap.fds, spec.mtu_bytes, *ends, mac(number), mac(partner)))
        made = stack.enter_context(guests(spec.guest, nics))
        ends_made = [
            Endpoint(one.name, between, "eth0", EDGE, nic.address.partition("/")[0], one, f"port{number}")
            for number, one, nic in zip(numbers(spec), made, nics, strict=True)
        ]
        pairs = [Pair(client, server) for client, server in zip(ends_made[::2], ends_made[1::2], strict=True)]
        yield Topology(name, spec, pairs, [between])
