"""The state of a topology that is set up: namespaces, interfaces, tunnels and routes, with names instead of indices."""

import msgspec

from labkit.common import packets

# Kinds of what packets pass that is no interface: a rule that replaces addresses, and a program that copies data.
RULE, PROGRAM = "rule", "program"


class Place(msgspec.Struct, frozen=True):
    """An interface and its namespace, by name."""

    namespace: str
    interface: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.interface}"


class TunnelState(msgspec.Struct, frozen=True, kw_only=True):
    """The encapsulation of an interface: identifier (VNI or key), outer addresses, UDP port; hop limit and mark of its
    outer packets, if it has its own.

    peers are the other ends: the interfaces with the same identifier at the remotes that send back to this one, or all
    members of the same multicast group.
    """

    id: int | None = None
    local: str | None = None
    remotes: list[str] = []
    port: int | None = None
    ttl: int | None = None
    mark: int | None = None
    peers: list[Place] = []


class RedirectState(msgspec.Struct, frozen=True):
    """Where a BPF program sends what arrives at an interface: the helper that it calls, and the hook where it runs.

    unseen: the interfaces at which neither a capture nor a queue nor a rule sees it pass. Those of XDP count it.
    """

    to: Place
    helper: str
    hook: str
    unseen: list[Place] = []

    @property
    def facts(self) -> list[str]:
        """Where it goes, and where captures do not see it, as parts of a sentence."""
        result = [f"{self.helper} at {self.hook} to {self.to}"]
        if unseen := ", ".join(map(str, self.unseen)):
            is_counted = self.hook.startswith("xdp")
            result.append(f"captures do not see it at {unseen}{' (counters do)' if is_counted else ''}")
        return result


class InterfaceState(msgspec.Struct, frozen=True, kw_only=True):
    """An interface.

    kind: the kernel's name of the type, or `loopback` or `nic`. mode: of its kind; `esp` if its address has ESP in
    transport mode. up: the administrative state. carrier: the operational state. master: the bridge of which it is a
    port. peer: the other end of a cable. lower: the underlying device.
    copies: the ports whose packets a mirror copies to it. qdisc: the root queueing discipline, and offloads: ethtool's
    groups, on or off; both of existing networks only. An MTU or index of 0 means that only the switch knows the
    interface, not the kernel, or that it is a RULE or PROGRAM.
    """

    name: str
    index: int
    kind: str
    mode: str | None = None
    up: bool
    carrier: bool
    mtu_bytes: int
    mac: str | None = None
    addresses: list[str] = []
    master: str | None = None
    peer: Place | None = None
    lower: Place | None = None
    tunnel: TunnelState | None = None
    copies: list[Place] = []
    redirect: RedirectState | None = None
    qdisc: str | None = None
    offloads: dict[str, bool] = {}


class NextHop(msgspec.Struct, frozen=True):
    """A next hop of a route.

    via is the gateway, or None. state is `dead` if the kernel does not use the hop, `linkdown` if the interface has no
    carrier, else None.
    """

    interface: str | None
    via: str | None = None
    state: str | None = None


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A route of the main table. Several `hops` have equal cost. connected: the kernel derived the route from an
    address. limits: by ip-route(8)'s names."""

    to: str
    hops: list[NextHop]
    source: str | None = None
    metric: int | None = None
    connected: bool = False
    limits: dict[str, int] = {}


class Namespace(msgspec.Struct, frozen=True):
    """A network namespace.

    rules: of an existing network, each chain of nftables with its number of rules, and loaded tables of iptables.
    published: the ports that its rules or programs publish for the ends, a sentence each.
    """

    name: str
    interfaces: list[InterfaceState]
    routes: list[Route]
    rules: dict[str, str] = {}
    published: list[str] = []


class PairEnd(msgspec.Struct, frozen=True):
    """One end of a pair: its name, and the interface and address that carry the load."""

    name: str
    namespace: str
    interface: str
    address: str


class Step(msgspec.Struct, frozen=True):
    """An interface where a frame leaves a namespace or goes to the device below (out), or arrives or goes to the
    one above (in). skips: the interface before it that a redirect skips, so that it counts nothing."""

    namespace: str
    interface: str
    direction: str
    skips: Place | None = None


class State(msgspec.Struct, frozen=True):
    """The state of a topology. Each element of `pairs` is a client and a server.

    `forward` and `back`: the steps from the first client to its server, and back; empty if they are not known.
    """

    topology: str
    kernel: str
    pairs: list[tuple[PairEnd, PairEnd]]
    namespaces: list[Namespace]
    forward: list[Step] = []
    back: list[Step] = []

    def unseen(self) -> dict[str, str]:
        """Return what redirects hide from captures, a sentence for each of their points (NAMESPACE:INTERFACE)."""
        result: dict[str, str] = {}
        for space in self.namespaces:
            redirects = [(one.name, one.redirect) for one in space.interfaces if one.redirect is not None]
            for name, redirect in redirects:
                what = f"what arrives at {Place(space.name, name)}: {', '.join(redirect.facts)}"
                for at in redirect.unseen:
                    point = f"{at.namespace}:{at.interface}"
                    result[point] = f"{result[point]}; {what}" if point in result else what
        return result

    def ports(self) -> dict[int, str]:
        """Return the encapsulation for each UDP port: the well-known ports and those of this topology's tunnels."""
        links = (link for space in self.namespaces for link in space.interfaces)
        own = {link.tunnel.port: link.kind for link in links if link.tunnel and link.tunnel.port}
        own = {port: kind for port, kind in own.items() if kind in packets.PORTS.values()}
        return {**packets.PORTS, **own}

    def owners(self) -> dict[str, str]:
        """Return the namespace of each address that exactly one namespace has."""
        result: dict[str, set[str]] = {}
        for space in self.namespaces:
            for link in space.interfaces:
                for address in link.addresses:
                    result.setdefault(address.partition("/")[0], set()).add(space.name)
        return {address: min(names) for address, names in result.items() if len(names) == 1}
