"""The network namespaces of this machine, and how their interfaces are joined, as the kernel reports it.

Nothing in them is changed. What is read is remembered, because a drawing or a check looks at one moment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

from labkit.common import existing_names
from labkit.common.errors import BadInput, LabkitError
from labkit.common.topology_state import TunnelState
from labkit.measure.endpoints import Namespace
from labkit.measure.existing import iptables, maps
from labkit.measure.existing.endpoints import NAMED, OWN, ExistingEndpoint
from labkit.measure.topologies.network.kinds import cables, tunnels
from labkit.measure.topologies.state.read import encrypted, tunnel_of
from labkit.system import bpf, machine, netlink
from labkit.system.machine import netfilter
from labkit.system.machine.printed import Printed
from labkit.system.netlink import encryption

NAMES = (NAMED, Path("/run/docker/netns"))  # where namespaces have names, also without a process
NO_MAC = "00:00:00:00:00:00"  # of a netkit in layer 3 mode
MASTERS = ("bridge", "openvswitch", "bond", "team")
ACTIVE = "IFLA_BOND_ACTIVE_SLAVE"  # the port of a bond that carries all until it fails; of some modes only
STATIC = ("permanent", "static")  # states of entries of a forwarding database that it has not learned
UPPERS = ("macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "macsec")
# Names that neither a shell nor nft reads as more than a name: a container may name an interface $(reboot).
PLAIN = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+/-]*")


class Space:
    """A network namespace: its name, and the id of a process in it, None without one."""

    def __init__(self, name: str, fd: int, pid: int | None) -> None:
        self.name, self.fd, self.pid = name, fd, pid

    @cached_property
    def namespace(self) -> Namespace:
        """The namespace as an endpoint's kernel: files, programs, netlink."""
        with netlink.inside(self.fd):
            return Namespace(self.name, self.fd, netlink.Netlink())

    @cached_property
    def links(self) -> dict[int, netlink.Link]:
        """The interfaces by index. Raises LinkError if this user may not enter."""
        return {link.index: link for link in netlink.links(self.namespace.netlink)}

    @cached_property
    def prefixed(self) -> list[tuple[int, str]]:
        """The addresses with the length of their prefixes, each with the index of its interface."""
        return netlink.addresses(self.namespace.netlink)

    @cached_property
    def addresses(self) -> dict[str, int]:
        """The addresses, without prefix length, to the index of their interface."""
        return {text.partition("/")[0]: index for index, text in self.prefixed}

    def usable(self) -> list[str]:
        """Return the addresses that another end may use: neither loopback nor link-local ones."""
        each = ((one, ip_address(one)) for one in self.addresses)
        return [text for text, one in each if not one.is_link_local and not one.is_loopback]

    def is_beside(self, address: str) -> bool:
        """Return whether an address is in a subnet of its own."""
        return any(ip_address(address) in ip_interface(text).network for _index, text in self.prefixed)

    @cached_property
    def remotes(self) -> list[tuple[int, str]]:
        """The remotes of each VXLAN (`netlink.remotes`), with the index of its interface."""
        return netlink.remotes(self.namespace.netlink)

    @cached_property
    def details(self) -> dict[str, dict[str, Any]]:
        """The interfaces by name, as `ip -d -s -j address` prints them; empty without ip."""
        return {str(one.get("ifname")): one for one in self.json("ip", "-d", "-s", "-j", "address", "show")}

    @cached_property
    def printed(self) -> Printed:
        """What programs print of it."""
        return Printed(self.namespace.run)

    @cached_property
    def neighbours(self) -> list[dict[str, Any]]:
        """The neighbour tables, as `ip -j neighbour` prints them."""
        return self.json("ip", "-j", "neighbour", "show")

    @cached_property
    def proxied(self) -> set[tuple[str, str]]:
        """The addresses of others for which interfaces answer, each with the name of one."""
        listed = self.json("ip", "-j", "neighbour", "show", "proxy")
        return {(str(one.get("dst")), str(one.get("dev"))) for one in listed}

    @cached_property
    def files(self) -> dict[str, str]:
        """What files show: sysctls, packet sockets, queues (`machine.namespace_files`)."""
        return machine.namespace_files(self.fd)

    @cached_property
    def chains(self) -> dict[str, str]:
        """The chains of nftables, and the loaded tables of iptables (`netfilter.rules`)."""
        with netlink.inside(self.fd):
            return netfilter.rules()

    @property
    def ruleset(self) -> list[dict[str, Any]]:
        """The rules now, as `nft -j` prints them, and in the same form those that only iptables reads; none of a
        program that is missing."""
        result: list[dict[str, Any]] = []
        with suppress(LabkitError, ValueError, AttributeError):
            text = self.namespace.run("nft", "-j", "list", "ruleset").stdout
            result += json.loads(text or "{}").get("nftables", [])
        for program in self.save_programs(result):
            with suppress(LabkitError, ValueError):
                result = iptables.merged(result, program, self.namespace.run(program, "-c").stdout)
        return maps.resolved(result)

    def save_programs(self, listed: list[dict[str, Any]]) -> list[str]:
        """Return the programs that print the rules here which nft does not list, or lists without reading them."""
        legacy = [one for one in iptables.PROGRAMS if any(name.startswith(f"{one} ") for name in self.chains)]
        return [*(f"{one}-legacy-save" for one in legacy), *iptables.save_programs(listed)]

    def missing_programs(self, listed: list[dict[str, Any]]) -> list[str]:
        """Return the programs that alone print rules here, and are not installed, or fail, as nft(8) may do with many
        rules or those of a newer release."""
        missing = [one for one in self.save_programs(listed) if not os.path.isabs(machine.program(one))]
        is_silent = not listed and any(map(netfilter.is_nftables, self.chains))
        return missing + ["nft"] * is_silent

    def json(self, program: str, *words: str) -> list[dict[str, Any]]:
        """Return the objects that a program prints as JSON (`Printed.objects`)."""
        return self.printed.objects(program, *words)

    def place(self, address: str) -> Place:
        """Return the interface that has an address of its own."""
        return Place(self, self.addresses[address])

    def sysctl(self, name: str) -> str | None:
        """Return the value of a sysctl, for example net/ipv4/ip_forward; None where it is not visible."""
        with suppress(OSError):
            return " ".join(self.namespace.read(f"/proc/sys/{name}").split())
        return None

    def number(self, name: str, at: int = 0, default: int = 0) -> int:
        """Return a number of a sysctl, or the default."""
        words = (self.sysctl(name) or "").split()
        return int(words[at]) if len(words) > at and words[at].lstrip("-").isdigit() else default

    def command(self, text: str) -> str:
        """Return the command line by which a person runs a command here."""
        strange = (one.name for one in self.links.values() if not PLAIN.fullmatch(one.name))
        if (name := next((one for one in strange if one in text), None)) is not None:
            return f"by hand: a shell would read the name {name!r} of an interface as more than a name"
        kind, _, own = self.name.partition(":")
        if kind == "netns":
            file = next((one for one in (folder / own for folder in NAMES) if one.exists()), NAMED / own)
            quoted = shlex.quote(own if file.parent == NAMED else str(file))
            return f"{'ip netns exec ' if file.parent == NAMED else 'nsenter --net='}{quoted} {text}"
        return text if kind == existing_names.HOST else f"nsenter -t {self.pid} -n {text}"

    def close(self) -> None:
        """Close its descriptors."""
        if "namespace" in self.__dict__:
            self.namespace.close()
        else:
            os.close(self.fd)


@dataclass(frozen=True)
class Place:
    """An interface of a namespace."""

    space: Space
    index: int

    @property
    def link(self) -> netlink.Link:
        """The interface as the kernel lists it."""
        return self.space.links[self.index]

    @property
    def name(self) -> str:
        """Its name."""
        return self.link.name

    @property
    def details(self) -> dict[str, Any]:
        """What `ip` prints of it (`Space.details`)."""
        return self.space.details.get(self.name, {})

    @property
    def vlans(self) -> dict[int | None, tuple[bool, bool]]:
        """Its VLANs as a bridge, or a port of one (`Printed.vlans`)."""
        return self.space.printed.vlans.get(self.name, {})

    @property
    def untagged(self) -> int | None:
        """The VLAN of frames without a tag that enter a bridge here."""
        return next((number for number, (enters, _leaves) in self.vlans.items() if enters), None)

    @property
    def programs(self) -> list[str]:
        """The hooks at which BPF programs see its packets."""
        return programs(self.space.fd, self.space.printed, self.name, self.index)

    @property
    def counted_at(self) -> Place:
        """The interface that counts what passes: of a port its bond, because each packet passes one of the ports."""
        master = self.space.links.get(self.link.master or 0)
        return Place(self.space, master.index) if master and master.kind in ("bond", "team") else self

    @property
    def tunnel(self) -> TunnelState | None:
        """Its encapsulation; None if it is no tunnel."""
        if self.link.kind not in tunnels():
            return None
        every = encryption.associations(self.space.fd)
        leaving = [one for one in every if one.source in self.space.addresses]
        replicated = [to for index, to in self.space.remotes if index == self.index]
        return encrypted(self.space.fd, self.link, leaving) or tunnel_of(self.link, replicated)

    def __str__(self) -> str:
        return f"{self.space.name} {self.name}"

    def owns(self, address: str) -> bool:
        """Return whether it answers for an address: it is no bridge's port, and its namespace has the address; where
        neighbours of IPv6 are asked for, it has the address itself (ndisc_recv_ns), or a program may answer."""
        index = self.space.addresses.get(address)
        if index is None or ":" not in address or self.link.mac in (None, NO_MAC):
            return index is not None and (self.link.master is None or index == self.index)
        own = [text.partition("/")[0] for at, text in self.space.prefixed if at == self.index]
        return address in own or (self.link.master is None and bool(self.programs))


def programs(fd: int, printed: Printed, name: str, index: int) -> list[str]:
    """Return the hooks at which BPF programs see the packets of an interface; XDP and tc need ip and tc to be known."""
    with netlink.inside(fd):
        found = bpf.hooks(index)
    found += ["XDP"] if " prog/xdp " in printed.text("ip", "-d", "link", "show", "dev", name) else []
    own = printed.filters(name)
    hooks = (("tc", "ingress"), ("tc (egress)", "egress"))
    return found + [hook for hook, side in hooks if " bpf " in own.get(side, "")]


class Spaces:
    """The network namespaces of this machine that this user may see, `client` and `server` by the names of the ends
    (one and the same where the other end is on another machine); close it after use.

    Raises BadInput for two ends in one namespace.
    """

    def __init__(self, client: ExistingEndpoint, server: ExistingEndpoint | None = None) -> None:
        ends = {os.fstat(end.namespace).st_ino: end for end in (client, server) if end is not None}
        if server is not None and len(ends) == 1:
            raise BadInput(
                f"{client.name} and {server.name} share one network namespace, so their traffic never leaves it: name"
                " two ends with a network between them"
            )
        self._numbers: dict[Space, dict[int | None, Space]] = {}
        self._asked: dict[Space, Iterator[Space]] = {}
        self._uppers: dict[Place, list[Place]] | None = None
        self._all = {inode: Space(end.name, os.dup(end.namespace), end.pid) for inode, end in ends.items()}
        own = list(self._all.values())
        self.client, self.server = own[0], own[-1]
        self._add(existing_names.HOST, OWN)
        self.host = self._all[os.stat(OWN).st_ino]
        for folder in NAMES:
            for file in sorted(folder.iterdir()) if folder.is_dir() else ():
                self._add(f"netns:{file.name}", str(file))
        for pid in sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()):
            self._add(f"pid:{pid}", f"/proc/{pid}/ns/net", pid)

    def _add(self, name: str, path: str, pid: int | None = None) -> None:
        with suppress(OSError):  # it has ended, is another user's, or is not a namespace
            one = os.stat(path)  # a name whose mount is not visible here is an ordinary file
            if one.st_dev != os.stat(OWN).st_dev:
                return
            if one.st_ino not in self._all:
                self._all[one.st_ino] = Space(name, os.open(path, os.O_RDONLY | os.O_CLOEXEC), pid)
            elif self._all[one.st_ino].pid is None:
                self._all[one.st_ino].pid = pid

    def numbered(self, space: Space, number: int | None) -> Space | None:
        """Return the namespace that the kernel numbers so in another one, which has no number for itself; None if it is
        not visible."""
        if number is None:
            return space
        known = self._numbers.setdefault(space, {})
        asked = self._asked.setdefault(space, iter(list(self._all.values())))
        while number not in known:
            if (candidate := next(asked, None)) is None:
                return None
            known[netlink.id_of(space.namespace.netlink, candidate.fd)] = candidate
        return known[number]

    def referred(self, place: Place) -> Place | None:
        """Return the interface to which a link refers, its peer or its lower device; None if it is not visible."""
        index, space = place.link.link, self.numbered(place.space, place.link.link_netnsid)
        if not index or space is None or Place(space, index) == place:
            return None
        return Place(space, index) if index in space.links else None

    def _every(self) -> Iterator[Place]:
        """Yield all interfaces of all namespaces that this user may enter."""
        for space in self._all.values():
            with suppress(netlink.LinkError):
                yield from [Place(space, index) for index in space.links]

    def uppers(self, place: Place) -> Sequence[Place]:
        """Return the devices on a lower device, which may be in any namespace."""
        if self._uppers is None:
            self._uppers = {}
            for upper in self._every():
                if upper.link.kind in UPPERS and (lower := self.referred(upper)) is not None:
                    self._uppers.setdefault(lower, []).append(upper)
        return self._uppers.get(place, ())

    def beside(self, place: Place) -> Iterator[tuple[Place, str]]:
        """Yield the interfaces that get frames from an interface, and how: through a cable, up or down."""
        link, links = place.link, place.space.links
        if link.kind in cables() and (peer := self.referred(place)) is not None:
            yield peer, "cable"
        if link.kind in UPPERS and (lower := self.referred(place)) is not None:
            yield lower, "down"
        master = links.get(link.master or 0)
        if master and master.kind in MASTERS and master.data.get(ACTIVE) in (None, place.index):
            yield Place(place.space, master.index), "up"
        if link.kind in MASTERS:
            active = link.data.get(ACTIVE)
            ports = (at for at, one in links.items() if one.master == place.index and active in (None, at))
            yield from ((Place(place.space, index), "down") for index in ports)
        yield from ((upper, "up") for upper in self.uppers(place))

    def outside(self, tunnel: Place) -> Space:
        """Return the namespace of a tunnel's outer packets."""
        return self.numbered(tunnel.space, tunnel.link.link_netnsid) or tunnel.space

    def tunnels_of(self, kind: str | None, outside: Space) -> list[Place]:
        """Return the tunnels of a kind whose outer packets are in a namespace."""
        alike = [place for place in self._every() if place.link.kind == kind]
        return [place for place in alike if self.outside(place) is outside]

    def close(self, but: Collection[Space] = ()) -> None:
        """Close all namespaces but these."""
        for space in self._all.values():
            if space not in but:
                space.close()
