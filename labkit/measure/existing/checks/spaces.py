"""The network namespaces of this machine as a check reads them: nothing in them is changed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface
from pathlib import Path
from typing import Any

from labkit.common import existing_names
from labkit.common.errors import LabkitError
from labkit.measure.endpoints import Namespace
from labkit.measure.existing.endpoints import ExistingEndpoint
from labkit.measure.existing.spaces import Spaces
from labkit.system import machine

# Names that neither a shell nor nft reads as more than a name: a container may name an interface $(reboot).
PLAIN = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+/-]*")


class Space:
    """A network namespace: `name` for people, `words` by which a person enters it, `pid` of a process in it.

    What is read is remembered, because a check looks at one moment.
    """

    def __init__(self, spaces: Spaces, inode: int, name: str, pid: int | None, words: str) -> None:
        self._spaces, self.inode = spaces, inode
        self.name, self.pid, self.words = name, pid, words
        self.fd, self.links = spaces.read(inode).fd, spaces.read(inode).links

    @cached_property
    def namespace(self) -> Namespace:
        """The namespace as an endpoint's kernel: files, programs, netlink."""
        return self._spaces.opened(self.inode)

    @cached_property
    def addresses(self) -> dict[str, int]:
        """The addresses, without prefix length, to the index of their interface."""
        each = self._spaces.addresses(self.inode)
        return {text.partition("/")[0]: index for index, texts in each.items() for text in texts}

    @property
    def networks(self) -> list[IPv4Network | IPv6Network]:
        """The subnets of its addresses."""
        texts = (text for each in self._spaces.addresses(self.inode).values() for text in each)
        return [ip_interface(text).network for text in texts]

    @cached_property
    def details(self) -> dict[str, dict[str, Any]]:
        """The interfaces by name, as `ip -d -s -j address` prints them; empty without ip."""
        return {str(one.get("ifname")): one for one in self.json("ip", "-d", "-s", "-j", "address", "show")}

    @cached_property
    def neighbours(self) -> list[dict[str, Any]]:
        """The neighbour tables, as `ip -j neighbour` prints them."""
        return self.json("ip", "-j", "neighbour", "show")

    @cached_property
    def files(self) -> dict[str, str]:
        """What files show: sysctls, packet sockets, queues (`machine.namespace_files`)."""
        return machine.namespace_files(self.fd)

    @property
    def ruleset(self) -> list[dict[str, Any]]:
        """The ruleset of nftables now, as `nft -j` prints it; empty without nft or the right."""
        with suppress(LabkitError, ValueError, AttributeError):
            ended = self.namespace.run("nft", "-j", "list", "ruleset")
            listed: list[dict[str, Any]] = json.loads(ended.stdout or "{}").get("nftables", [])
            return listed
        return []

    def json(self, program: str, *words: str) -> list[dict[str, Any]]:
        """Return the objects that a program prints as JSON; none if it fails or is not installed."""
        with suppress(LabkitError, ValueError):
            result = json.loads(self.namespace.run(program, *words).stdout or "[]")
            return [one for one in result if isinstance(one, dict)]
        return []

    def route(self, to: str, *words: str) -> tuple[dict[str, Any], str]:
        """Return the route that the kernel takes to an address, and the kernel's words if it takes none."""
        family = f"-{ip_address(to).version}"
        ended = self.namespace.run("ip", family, "-j", "route", "get", to, *words)
        with suppress(ValueError, IndexError):
            if ended.returncode == 0:
                return dict(json.loads(ended.stdout)[0]), ""
        return {}, ended.stderr.strip().removeprefix("RTNETLINK answers: ").splitlines()[
            0
        ] if ended.stderr else "?"

    def index(self, name: str) -> int | None:
        """Return the index of an interface of this name."""
        return next((link.index for link in self.links.values() if link.name == name), None)

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
        strange = (
            one.name for one in self.links.values() if one.name in text and not PLAIN.fullmatch(one.name)
        )
        if (name := next(strange, None)) is not None:
            return f"by hand: a shell would read the name {name!r} of an interface as more than a name"
        return f"{self.words} {text}".strip()

    def close(self) -> None:
        """Close what was opened."""
        if "namespace" in self.__dict__:
            self.namespace.close()


class Machine:
    """The namespaces of this machine that this user may see, those of the ends by their names; close it after use."""

    def __init__(self, ends: Sequence[ExistingEndpoint]) -> None:
        self.spaces = Spaces([(end.name, end.namespace) for end in ends])
        self._made: dict[int, Space] = {}
        for end in ends:
            inode = os.fstat(end.namespace).st_ino
            one = self.spaces.read(inode)
            pid = end.pid if end.pid is not None else _process_in(inode)
            self._made[inode] = Space(self.spaces, inode, one.name, pid, entering(end.name, end.pid))

    def space(self, inode: int) -> Space:
        """Return a namespace; always the same object."""
        if inode not in self._made:
            name = self.spaces.read(inode).name
            kind, _, number = name.partition(":")
            pid = int(number) if kind == "pid" else None
            self._made[inode] = Space(self.spaces, inode, name, pid, entering(name, pid))
        return self._made[inode]

    def close(self) -> None:
        """Close everything."""
        for one in self._made.values():
            one.close()
        self.spaces.close()


def _process_in(inode: int) -> int | None:
    """Return a process in a namespace that has a name; None if there is none."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.stat(folder / "ns/net").st_ino == inode:
                return int(folder.name)
    return None


def entering(name: str, pid: int | None) -> str:
    """Return the words by which a person enters a namespace."""
    kind, _, own = name.partition(":")
    if kind == "netns":
        return f"ip netns exec {own}"
    return "" if kind == existing_names.HOST or pid is None else f"nsenter -t {pid} -n"
