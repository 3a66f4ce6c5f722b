"""The user-mode networks of rootless containers: pasta, slirp4netns, and rootlesskit, which uses slirp4netns.

A program holds a tap in the namespace of one end, and ordinary sockets in the host's (the namespace between the ends).
It speaks TCP and UDP with that end itself, and copies the payload between both: no packet passes from one to the other.
The other end has a cable to the host, as another machine. The end behind the program is the client, or a server whose
port the program publishes at the host's address.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_interface
from pathlib import Path
from typing import TypeVar

from labkit.common import packages
from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.topology_state import PROGRAM, InterfaceState, Place
from labkit.measure.endpoints import Endpoint, Namespace, Pair
from labkit.measure.endpoints.namespace import first_sysctls
from labkit.measure.topologies.base import (
    BETWEEN,
    CLIENTS,
    SERVERS,
    Interface,
    Spec,
    Topology,
    end_name,
    mac,
    subnet,
)
from labkit.measure.topologies.network.build import joined
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, Part, Route
from labkit.measure.traffic.base import PORT
from labkit.system import netlink, process
from labkit.system.temporary_files import short_folder

START_S = 10.0
TAP = "eth0"
LOOPBACK = ip_interface("127.0.0.1/8")
MAX_MTU = 65521  # slirp4netns(1), --mtu; with more, pasta of March 2023 makes a tap of 1500 without a word
# rootlesskit maps the user's subordinate IDs (subuid(5)), of which root has none.
SUBORDINATE_IDS = "root:100000:65536\n"
TIMESTAMPS_BYTES = 12  # of TCP's header (RFC 7323), without which the programs' own TCP sends
Found = TypeVar("Found")


@dataclass(frozen=True)
class Start:
    """What the command of a program depends on.

    `path`: of the namespace; for a program that makes one, of a folder for its state. `own`, `gateway`: the addresses
    of the end behind the program, and of its gateway. `host`: the host's address, which the other end sends to.
    `publishes`: whether the end is a server, whose port the program publishes.
    """

    spec: Spec
    number: int
    path: Path
    own: Interface
    gateway: Interface
    host: Interface
    publishes: bool


def pasta_argv(start: Start) -> list[str]:
    """Return the command of pasta(1).

    As root it would become nobody, who may not enter the namespace, so it keeps its user. It maps no address of the
    host. It knows the end's MAC address, because until it has learned one it sends broadcasts, which TCP ignores.
    """
    ports = f"{start.host.ip}/{PORT}" if start.publishes else "none"
    return [
        "pasta", "--foreground", "--quiet", "--runas", "0", "--netns-only", "--no-netns-quit",
        "--netns", str(start.path), "--config-net", f"-{start.spec.family}", "-i", f"port{start.number}", "-I", TAP,
        "-a", str(start.own.ip), "-g", str(start.gateway.ip), "-m", str(start.spec.mtu_bytes), "--no-map-gw",
        "--ns-mac-addr", mac(start.number), "-t", ports, "-u", ports, "-T", "none", "-U", "none",
        *(["-n", str(start.own.network.prefixlen)] if start.spec.family == 4 else []),
    ]  # fmt: skip


def slirp4netns_argv(start: Start) -> list[str]:
    return [
        "slirp4netns", "--configure", f"--mtu={start.spec.mtu_bytes}", "--disable-host-loopback", "--netns-type=path",
        str(start.path), TAP,
    ]  # fmt: skip


def rootlesskit_argv(start: Start, *, port_driver: str) -> list[str]:
    """Return the command of rootlesskit(1), with subordinate IDs for root in a mount namespace of its own.

    Of its network drivers, Debian has slirp4netns, and lxc-user-nic, which is a veth on a bridge. Raises Unsupported
    if it is missing.
    """
    if shutil.which("rootlesskit") is None:
        raise Unsupported(packages.missing("rootlesskit"))
    ids = start.path.with_suffix(".ids")
    ids.write_text(SUBORDINATE_IDS)
    script = 'mount --bind "$0" /etc/subuid && mount --bind "$0" /etc/subgid && exec rootlesskit "$@"'
    ports = [f"{start.host.ip}:{PORT}:{PORT}/{kind}" for kind in ("tcp", "udp") if start.publishes]
    return [
        "unshare", "--mount", "sh", "-c", script, str(ids), f"--state-dir={start.path}", "--net=slirp4netns",
        f"--ifname={TAP}", f"--mtu={start.spec.mtu_bytes}", "--disable-host-loopback", f"--port-driver={port_driver}",
        *(f"--publish={one}" for one in ports), "sleep", "infinity",
    ]  # fmt: skip


@dataclass(frozen=True)
class Program:
    """A program between the host and one end.

    `argv`: its command. `side`: that of the end behind it. `makes_namespace`: whether the program makes that end's
    namespace. `interface`: at which the payload arrives there. `families`: the versions of IP that it carries.
    """

    argv: Callable[[Start], list[str]]
    side: int = CLIENTS
    makes_namespace: bool = False
    interface: str = TAP
    families: tuple[int, ...] = (4,)


PROGRAMS = {
    "pasta": Program(pasta_argv, families=(4, 6)),
    "pasta_published": Program(pasta_argv, SERVERS, families=(4, 6)),
    "slirp4netns": Program(slirp4netns_argv),
    "rootlesskit": Program(partial(rootlesskit_argv, port_driver="none"), CLIENTS, True),
    # This driver hands the host a connection that it has opened in the server's namespace (pkg/port/builtin/child).
    "rootlesskit_builtin": Program(partial(rootlesskit_argv, port_driver="builtin"), SERVERS, True, "lo"),
    "rootlesskit_slirp4netns": Program(partial(rootlesskit_argv, port_driver="slirp4netns"), SERVERS, True),
}


def check_load(name: str, _pairs: int, mtu_bytes: int, family: int) -> None:
    """Raise BadInput for what a program cannot do."""
    if family not in PROGRAMS[name].families:
        raise BadInput("family=6: slirp4netns has IPv6 as an experiment only; use family=4, or pasta")
    if mtu_bytes > MAX_MTU:
        raise BadInput(f"mtu_bytes={mtu_bytes}: the largest MTU of {name} is {MAX_MTU}; use that, or less")


@contextmanager
def user_mode(name: str, spec: Spec) -> Iterator[Topology]:
    """Build a client and a server for each pair, and start the program of the topology `name` for one end of each.

    The sockets hold megabytes for each pair, so use whole runs. Raises Unsupported if the program is missing, Failed
    with its last message if it ends.
    """
    program = PROGRAMS[name]
    with (
        short_folder("labkit-netns-") as folder,
        joined(_described(name, spec, program), spec) as built,
        ExitStack() as made,
        process.all_ended([]) as running,
    ):
        topology = built.topology(name, spec)
        between, spaces = built.space[BETWEEN], dict(built.space)
        # Pings leave by sockets that only this range of groups may open (icmp(7)).
        between.sysctl("ipv4/ping_group_range", "0 0")
        pairs, relays = [], []
        for number in range(spec.pairs):
            client, server = names = [end_name(2 * number), end_name(2 * number + 1)]
            behind = names[program.side - CLIENTS]
            gateway, own = subnet(spec, program.side, number)
            host, _ = subnet(spec, _other(program.side), number)
            start = Start(spec, number, folder / behind, own, gateway, host, program.side == SERVERS)
            with ExitStack() as starting, netlink.inside(between.fd):
                if not program.makes_namespace:
                    spaces[behind].netlink.do(netlink.set_link(1))
                    starting.enter_context(_mounted(spaces[behind], start.path))
                running.append(process.Running(program.argv(start)))
                if program.makes_namespace:
                    spaces[behind] = _namespace_of(behind, start, running[-1])
                    made.callback(spaces[behind].close)
                index, own = _tap(spaces[behind], running[-1])
            if program.interface != TAP:
                index, own = 1, LOOPBACK
            end = Endpoint(behind, spaces[behind], program.interface, index, str(own.ip))
            relays.append(InterfaceState(
                name=f"{name.partition('_')[0]}{number}", index=0, kind=PROGRAM, up=True, carrier=True, mtu_bytes=0,
                peer=Place(behind, end.interface), lower=Place(BETWEEN, f"port{number}"),
            ))  # fmt: skip
            if program.interface == TAP:
                end = replace(end, more_header_bytes=-TIMESTAMPS_BYTES)
            pairs.append(
                Pair(end, built.endpoint(server))
                if behind == client
                else Pair(built.endpoint(client), replace(end, published_address=str(host.ip)))
            )
        yield replace(topology, pairs=pairs, namespaces=list(spaces.values()), relays=relays)


def _other(side: int) -> int:
    return CLIENTS + SERVERS - side


def _described(name: str, spec: Spec, program: Program) -> Network:
    """Describe the namespaces behind programs, which are empty, and the host with a cable to each other end."""
    side = _other(program.side)
    # The programs copy the addresses of an interface of the host only if there is a default route.
    parts: list[Part] = [Node(BETWEEN), Route(BETWEEN, "default", via=str(subnet(spec, side, 0)[1].ip))]
    for number in range(spec.pairs):
        names = [end_name(2 * number), end_name(2 * number + 1)]
        end = names[side - CLIENTS]
        host, own = subnet(spec, side, number)
        cable = Cable(CableEnd(BETWEEN, f"port{number}", str(host)), CableEnd(end, "eth0", str(own)))
        there = [end] if program.makes_namespace else names
        parts += [*(Node(each, container=True) for each in there), cable]
        parts.append(Route(end, "default", via=str(host.ip)))
    return Network(name, tuple(parts), mtu_bytes=spec.mtu_bytes)


@contextmanager
def _mounted(space: Namespace, path: Path) -> Iterator[None]:
    """Mount a namespace at a path, which a program may open that has fewer rights than labkit.

    Such a program may not follow /proc/PID/fd (proc(5), ptrace(2)).
    """
    path.touch()
    process.output(["mount", "--bind", f"/proc/{os.getpid()}/fd/{space.fd}", str(path)])
    try:
        yield
    finally:
        process.output(["umount", "--lazy", str(path)])  # the program keeps it open


def _namespace_of(name: str, start: Start, program: process.Running) -> Namespace:
    """Wait until rootlesskit has published the port; return the namespace that it made."""

    def pid() -> str | None:
        with suppress(FileNotFoundError):
            return (start.path / "child_pid").read_text() or None
        return None

    fd = os.open(f"/proc/{_wait(name, program, pid)}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    with netlink.inside(fd):
        space = Namespace(name, fd, netlink.Netlink())
    for sysctl, value in first_sysctls(start.spec.family).items():
        space.sysctl(sysctl, value)
    return space


def _tap(space: Namespace, program: process.Running) -> tuple[int, Interface]:
    """Wait until a program has made and configured the tap, the default route last; return its index and address."""

    def configured() -> tuple[int, Interface] | None:
        up = {link.index for link in netlink.links(space.netlink) if link.name == TAP and link.up}
        own = [
            (index, ip_interface(each))
            for index, each in netlink.addresses(space.netlink)
            if index in up and not ip_interface(each).is_link_local
        ]
        routed = any(route.to == "default" for route in netlink.routes(space.netlink))
        return own[0] if own and routed else None

    return _wait(space.name, program, configured)


def _wait(name: str, program: process.Running, look: Callable[[], Found | None]) -> Found:
    """Return what `look` finds. Raises Failed with the program's last message if it ends first, or is late."""
    deadline = time.monotonic() + START_S
    while not program.poll() and time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.005)
    program.kill()
    ended = program.ended()
    raise Failed(
        f"there is no network in {name}, because its program {process.how_ended(ended.returncode, ended.stderr)}"
    )
