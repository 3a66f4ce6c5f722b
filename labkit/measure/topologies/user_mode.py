"""The topologies pasta and slirp4netns: the user-mode networks of rootless containers.

A program holds a tap in the client's namespace, and ordinary sockets in the host's (the namespace between the ends). It
speaks TCP and UDP with the client itself, and copies the payload between both: no packet passes from one to the other.
The host has a cable to each server, as to another machine.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from labkit.common import safe_files
from labkit.common.errors import BadInput, Failed
from labkit.measure.endpoints import Endpoint, Namespace, Pair
from labkit.measure.topologies.base import BETWEEN, CLIENTS, SERVERS, Spec, Topology, address, end_name
from labkit.measure.topologies.network.build import joined
from labkit.measure.topologies.network.parts import Cable, CableEnd, Network, Node, Part, Route
from labkit.system import netlink, process

START_S = 10.0
TAP = "eth0"
Interface = IPv4Interface | IPv6Interface
MAX_MTU = 65521  # slirp4netns(1), --mtu; with more, pasta of March 2023 makes a tap of 1500 without a word


def pasta_argv(path: str, spec: Spec, number: int, own: Interface, gateway: Interface) -> list[str]:
    """Return the command of pasta(1) for the client `number` in the namespace at a path.

    As root it would become nobody, who may not enter the namespace, so it keeps its user. It forwards no port and maps
    no address of the host: the client begins all connections.
    """
    none = [word for option in ("-t", "-u", "-T", "-U") for word in (option, "none")]
    return [
        "pasta", "--foreground", "--quiet", "--runas", "0", "--netns-only", "--no-netns-quit", "--netns", path,
        "--config-net", f"-{spec.family}", "-i", f"port{number}", "-I", TAP, "-a", str(own.ip), "-g", str(gateway.ip),
        "-m", str(spec.mtu_bytes), "--no-map-gw", *none,
        *(["-n", str(own.network.prefixlen)] if spec.family == 4 else []),
    ]  # fmt: skip


def slirp4netns_argv(path: str, spec: Spec, _number: int, _own: Interface, _gateway: Interface) -> list[str]:
    """Return the command of slirp4netns(1) for a client in the namespace at a path."""
    return [
        "slirp4netns", "--configure", f"--mtu={spec.mtu_bytes}", "--disable-host-loopback", "--netns-type=path",
        path, TAP,
    ]  # fmt: skip


COMMANDS: dict[str, Callable[[str, Spec, int, Interface, Interface], list[str]]] = {
    "pasta": pasta_argv,
    "slirp4netns": slirp4netns_argv,
}


def check_load(name: str, _pairs: int, mtu_bytes: int, family: int) -> None:
    """Raise BadInput for what a program cannot do."""
    if name == "slirp4netns" and family == 6:
        raise BadInput("family=6: slirp4netns has IPv6 as an experiment only; use family=4, or pasta")
    if mtu_bytes > MAX_MTU:
        raise BadInput(f"mtu_bytes={mtu_bytes}: the largest MTU of {name} is {MAX_MTU}; use that, or less")


@contextmanager
def user_mode(name: str, spec: Spec) -> Iterator[Topology]:
    """Build a client and a server for each pair, and start the program `name` for each client.

    The sockets hold megabytes for each pair, so use whole runs. Raises Unsupported if the program is missing, Failed
    with its message if it ends.
    """
    with joined(_described(name, spec), spec) as built, process.all_ended([]) as programs:
        between = built.space[BETWEEN]
        # Pings leave by sockets that only this range of groups may open (icmp(7)).
        between.sysctl("ipv4/ping_group_range", "0 0")
        pairs = []
        for number in range(spec.pairs):
            space = built.space[end_name(2 * number)]
            space.netlink.do(netlink.set_link(1))
            gateway, own = _subnet(spec, CLIENTS, number)
            with _path(space) as path, netlink.inside(between.fd):
                programs.append(process.Running(COMMANDS[name](path, spec, number, own, gateway)))
                index, own = _tap(space, programs[-1])
            client = Endpoint(space.name, space, TAP, index, str(own.ip))
            pairs.append(Pair(client, built.endpoint(end_name(2 * number + 1))))
        yield replace(built.topology(name, spec), pairs=pairs)


def _subnet(spec: Spec, side: int, number: int) -> tuple[Interface, Interface]:
    """Return both addresses of a subnet of two (RFC 3021, RFC 6164): the host's or gateway's, and the end's."""
    short = 31 if spec.family == 4 else 127
    return address(spec.family, side, 2 * number + 1, short), address(
        spec.family, side, 2 * number + 2, short
    )


def _described(name: str, spec: Spec) -> Network:
    """Describe the clients' namespaces, which are empty, and the host with a cable to each server."""
    # The programs copy the addresses of an interface of the host only if there is a default route.
    parts: list[Part] = [Node(BETWEEN), Route(BETWEEN, "default", via=str(_subnet(spec, SERVERS, 0)[1].ip))]
    for number in range(spec.pairs):
        client, server = end_name(2 * number), end_name(2 * number + 1)
        host, own = _subnet(spec, SERVERS, number)
        cable = Cable(CableEnd(BETWEEN, f"port{number}", str(host)), CableEnd(server, "eth0", str(own)))
        default = Route(server, "default", via=str(host.ip))
        parts += [Node(client, container=True), Node(server, container=True), cable, default]
    return Network(name, tuple(parts), mtu_bytes=spec.mtu_bytes)


@contextmanager
def _path(space: Namespace) -> Iterator[str]:
    """Yield a path to a namespace that a program may open which has fewer rights than labkit.

    Such a program may not follow /proc/PID/fd (proc(5), ptrace(2)).
    """
    with safe_files.own_folder(safe_files.runtime_folder(), "labkit-netns-") as folder:
        path = folder.path / space.name
        path.touch()
        process.output(["mount", "--bind", f"/proc/{os.getpid()}/fd/{space.fd}", str(path)])
        try:
            yield str(path)
        finally:
            process.output(["umount", "--lazy", str(path)])  # the program keeps it open


def _tap(space: Namespace, program: process.Running) -> tuple[int, Interface]:
    """Wait until a program has made and configured the tap; return its index and address."""
    deadline = time.monotonic() + START_S
    while not program.poll() and time.monotonic() < deadline:
        up = {link.index for link in netlink.links(space.netlink) if link.name == TAP and link.up}
        own = [
            (index, ip_interface(each))
            for index, each in netlink.addresses(space.netlink)
            if index in up and not ip_interface(each).is_link_local
        ]
        if own:
            return own[0]
        time.sleep(0.005)
    program.kill()
    raise Failed(f"there is no network in {space.name}: {program.ended().message()}")
