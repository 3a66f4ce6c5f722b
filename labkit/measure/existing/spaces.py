"""The network namespaces of this machine, and how their interfaces are joined, as the kernel reports it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.common import existing_names
from labkit.measure.endpoints import Namespace
from labkit.measure.existing.endpoints import NAMED, OWN
from labkit.measure.topologies.network.kinds import cables, tunnels
from labkit.measure.topologies.state import read
from labkit.system import netlink

NAMES = (NAMED, Path("/run/docker/netns"))  # where namespaces have names, also without a process
MASTERS = ("bridge", "openvswitch", "bond", "team")
UPPERS = ("macvlan", "macvtap", "ipvlan", "ipvtap", "vlan")
LO = 1


@dataclass(frozen=True)
class Node:
    """An interface: the inode of its namespace, and its index."""

    space: int
    index: int


class Spaces:
    """The network namespaces of this machine. Each is read when the walk reaches it."""

    def __init__(self, ends: Sequence[tuple[str, int]]) -> None:
        self._names: dict[int, str] = {}
        self._fds: dict[int, int] = {}
        self._read: dict[int, read.NamespaceRead] = {}
        self._addresses: dict[int, dict[int, list[str]]] = {}
        self._numbers: dict[int, dict[int | None, int]] = {}
        self._asked: dict[int, Iterator[tuple[int, int]]] = {}
        self._uppers: dict[Node, list[Node]] | None = None
        for name, fd in ends:
            self._add(name, os.dup(fd))
        self._add_path(existing_names.HOST, OWN)
        for folder in NAMES:
            for file in sorted(folder.iterdir()) if folder.is_dir() else ():
                self._add_path(f"netns:{file.name}", str(file))
        for pid in sorted(int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()):
            self._add_path(f"pid:{pid}", f"/proc/{pid}/ns/net")

    def _add_path(self, name: str, path: str) -> None:
        with suppress(OSError):  # it has ended, is another user's, or is not a namespace
            one = os.stat(path)  # a name whose mount is not visible here is an ordinary file
            if one.st_dev == os.stat(OWN).st_dev and one.st_ino not in self._fds:
                self._add(name, os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def _add(self, name: str, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        self._names[inode], self._fds[inode] = name, fd

    def read(self, inode: int) -> read.NamespaceRead:
        """Return the namespace with its links."""
        if inode not in self._read:
            fd = self._fds[inode]
            with netlink.inside(fd):
                self._read[inode] = read.namespace_read(self._names[inode], fd, netlink.Netlink())
        return self._read[inode]

    def opened(self, inode: int) -> Namespace:
        """Return the namespace as endpoints have it, which stays open."""
        fd = os.dup(self._fds[inode])
        with netlink.inside(fd):
            return Namespace(self._names[inode], fd, netlink.Netlink())

    def addresses(self, inode: int) -> dict[int, list[str]]:
        """Return the addresses of each interface, with the length of their prefixes."""
        if inode not in self._addresses:
            result: dict[int, list[str]] = {}
            for index, address in netlink.addresses(self.read(inode).kernel):
                result.setdefault(index, []).append(address)
            self._addresses[inode] = result
        return self._addresses[inode]

    def has(self, node: Node, address: str) -> bool:
        """Return whether an interface has this address."""
        return any(address == one.partition("/")[0] for one in self.addresses(node.space).get(node.index, ()))

    def owns(self, inode: int, address: str) -> bool:
        """Return whether any interface of a namespace has this address."""
        return any(self.has(Node(inode, index), address) for index in self.addresses(inode))

    def holder(self, inode: int, address: str) -> Node:
        """Return the interface of a namespace that has an address."""
        nodes = (Node(inode, index) for index in self.addresses(inode))
        return next((node for node in nodes if self.has(node, address)), Node(inode, LO))

    def link(self, node: Node) -> netlink.Link:
        """Return an interface."""
        return self.read(node.space).links[node.index]

    def name(self, node: Node) -> str:
        """Return namespace and interface, for messages."""
        return f"{self._names[node.space]}:{self.link(node).name}"

    def numbered(self, inode: int, number: int | None) -> int | None:
        """Return the namespace that the kernel numbers so in another one, which has no number for itself; None if it is
        not visible."""
        if number is None:
            return inode
        known = self._numbers.setdefault(inode, {})
        asked = self._asked.setdefault(inode, iter(list(self._fds.items())))
        while number not in known:
            if (candidate := next(asked, None)) is None:
                return None
            known[netlink.id_of(self.read(inode).kernel, candidate[1])] = candidate[0]
        return known[number]

    def referred(self, node: Node, index: int | None) -> Node | None:
        """Return the interface `index` in the namespace to which a link refers; None if it is not visible."""
        space = self.numbered(node.space, self.link(node).link_netnsid)
        if not index or space is None or Node(space, index) == node:
            return None
        return Node(space, index) if index in self.read(space).links else None

    def uppers(self, node: Node) -> Sequence[Node]:
        """Return the devices on a lower device, which may be in any namespace."""
        if self._uppers is None:
            self._uppers = {}
            for upper, link in self._every():
                if link.kind in UPPERS and (lower := self.referred(upper, link.link)) is not None:
                    self._uppers.setdefault(lower, []).append(upper)
        return self._uppers.get(node, ())

    def _every(self) -> Iterator[tuple[Node, netlink.Link]]:
        """Yield all interfaces of all namespaces that this user may enter."""
        for inode in list(self._fds):
            with suppress(netlink.LinkError):
                links = self.read(inode).links
                yield from ((Node(inode, index), links[index]) for index in links)

    def beside(self, node: Node) -> Iterator[tuple[Node, str]]:
        """Yield the interfaces that get frames from an interface, and how: through a cable, up or down."""
        link, links = self.link(node), self.read(node.space).links
        if link.kind in cables() and (peer := self.referred(node, link.link)) is not None:
            yield peer, "cable"
        if link.kind in UPPERS and (lower := self.referred(node, link.link)) is not None:
            yield lower, "down"
        if link.master in links and links[link.master].kind in MASTERS:
            yield Node(node.space, link.master), "up"
        if link.kind in MASTERS:
            yield from (
                (Node(node.space, one.index), "down") for one in links.values() if one.master == node.index
            )
        if link.kind not in (*MASTERS, *UPPERS):
            yield from ((upper, "up") for upper in self.uppers(node))

    def tunnels_to(self, node: Node) -> Iterator[tuple[Node, int, str]]:
        """Yield the other ends of a tunnel, each with the namespace of its outer packets and their destination."""
        if (link := self.link(node)).kind not in tunnels():
            return
        outer = self.numbered(node.space, link.link_netnsid) or node.space
        remotes = _remotes(self.read(node.space), link)
        for far, other in self._every():
            if far != node and _same_tunnel(link, other):
                at = self.numbered(far.space, other.link_netnsid) or far.space
                yield from ((far, outer, remote) for remote in remotes if self.owns(at, remote))

    def close(self) -> None:
        """Close everything that `opened` did not return."""
        for one in self._read.values():
            one.kernel.close()
        for fd in self._fds.values():
            os.close(fd)


def _value(link: netlink.Link, *names: str) -> Any:
    prefix = f"IFLA_{(link.kind or '').removesuffix('tap').upper()}_"
    values = (link.data.get(prefix + name) for name in names)
    return next((value for value in values if value not in (None, 0, "0.0.0.0", "::")), None)


def _same_tunnel(one: netlink.Link, other: netlink.Link) -> bool:
    names = (("ID",), ("OKEY",), ("PORT",))
    return one.kind == other.kind and all(_value(one, *name) == _value(other, *name) for name in names)


def _remotes(one: read.NamespaceRead, link: netlink.Link) -> list[str]:
    replicated = [to for index, to in netlink.remotes(one.kernel) if index == link.index]
    remote = _value(link, "GROUP", "GROUP6", "REMOTE", "REMOTE6")
    return replicated or ([] if remote is None else [str(remote)])
