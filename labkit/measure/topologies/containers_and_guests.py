"""Endpoints in containers or guests: a container in each namespace of any topology, or a guest on a tap of a bridge."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from labkit.measure.endpoints import Endpoint, Namespace, namespaces
from labkit.measure.topologies.base import (
    BETWEEN,
    EDGE,
    Spec,
    Topology,
    end_address,
    end_name,
    mac,
    numbers,
    paired,
)
from labkit.system import netlink
from labkit.system.netlink.taps import Tap

if TYPE_CHECKING:
    from labkit.measure.endpoints.guest.spec import Nic

BRIDGE = netlink.FIRST_INDEX
SHARED = "shared"  # the name of a guest that all ends share


@contextmanager
def with_containers(topology: Topology) -> Iterator[Topology]:
    """Start a container in every namespace that is an end of a pair; yield the topology with these ends."""
    from labkit.measure.endpoints.oci_container import containers  # what only containers need

    spaces = {id(end.namespace): end.namespace for end in topology.ends}
    with containers(list(spaces.values())) as made:
        of = dict(zip(spaces, made, strict=True))
        moved = [dataclasses.replace(end, runtime=of[id(end.namespace)]) for end in topology.ends]
        yield dataclasses.replace(topology, pairs=paired(moved))


@contextmanager
def tap_bridge(name: str, spec: Spec) -> Iterator[Topology]:
    """Build a tap from every guest to one Linux bridge: `veth_bridge` with guests in place of namespaces."""
    with namespaces([BETWEEN], family=spec.family) as [between], ExitStack() as stack:
        between.netlink.do(netlink.new_link("bridge", "bridge", index=BRIDGE, mtu_bytes=spec.mtu_bytes))
        nics = {}
        for number in numbers(spec):
            tap = tap_of(stack, spec, between, number)
            between.netlink.do(netlink.set_master(tap.index, BRIDGE))
            nics[number] = nic_of(spec, number, tap.fds)
        ends = booted(stack, spec, between, nics)
        yield Topology(name, spec, paired(list(ends.values())), [between])


def tap_of(stack: ExitStack, spec: Spec, between: Namespace, number: int) -> Tap:
    """Make the tap of the guest that is end `number`, and set it up; it exists until the stack is closed."""
    from labkit.measure.endpoints.guest.spec import parse  # what only guests need

    tap = Tap(between.fd, f"port{number}", parse(spec.guest).queues)
    stack.callback(tap.close)
    between.netlink.do(netlink.set_link(tap.index, mtu_bytes=spec.mtu_bytes))
    return tap


def booted(stack: ExitStack, spec: Spec, between: Namespace, nics: Mapping[int, Nic]) -> dict[int, Endpoint]:
    """Boot the guest of each NIC (by the number of its tap) until the stack is closed; return them as ends."""
    if not nics:
        return {}
    from labkit.measure.endpoints.guest.qemu_guest import guests  # what only guests need
    from labkit.measure.endpoints.guest.spec import GuestAdditions

    additions = GuestAdditions(scripts=spec.guest_files)
    made = stack.enter_context(guests(spec.guest, list(nics.values()), additions))
    return {
        number: Endpoint(
            nic.name, between, "eth0", EDGE, nic.address.partition("/")[0], guest, f"port{number}"
        )
        for (number, nic), guest in zip(nics.items(), made, strict=True)
    }


@contextmanager
def bridge_inside(name: str, spec: Spec) -> Iterator[Topology]:
    """Build `veth_bridge` inside one guest that has the CPUs and memory of one guest for each end together."""
    from labkit.measure.endpoints.guest.qemu_guest import guests
    from labkit.measure.endpoints.guest.shared_guest import MODULES, PROGRAMS, guest_namespaces
    from labkit.measure.endpoints.guest.spec import GuestAdditions, Nic

    nics = [nic_of(spec, number, ()) for number in numbers(spec)]
    machine = Nic(SHARED, (), spec.mtu_bytes)
    with namespaces([SHARED], family=spec.family) as [outside]:
        more = GuestAdditions(len(nics), MODULES, PROGRAMS, spec.guest_files)
        with guests(spec.guest, [machine], more) as [guest]:
            made = guest_namespaces(guest, nics, spec.family)
            ends = [
                Endpoint(nic.name, outside, "eth0", EDGE, nic.address.partition("/")[0], room)
                for nic, room in zip(nics, made, strict=True)
            ]
            yield Topology(name, spec, paired(ends), [outside])


def nic_of(spec: Spec, number: int, fds: Sequence[int]) -> Nic:
    """Return the NIC of the guest that is end `number`; `fds` are the file descriptors of its tap."""
    from labkit.measure.endpoints.guest.spec import Nic

    partner = number ^ 1
    neighbour = (str(end_address(spec, partner).ip), mac(partner))
    return Nic(
        end_name(number), fds, spec.mtu_bytes, str(end_address(spec, number)), mac(number), [neighbour]
    )
