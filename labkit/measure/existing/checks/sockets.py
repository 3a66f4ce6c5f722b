"""Buffers, TCP's settings and the tables of the kernel: sockets that drop, retransmissions, limits that are near."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress

from labkit.common import units
from labkit.common.errors import LabkitError
from labkit.measure.existing.checks import probes, rules
from labkit.measure.existing.checks.evidence import Evidence
from labkit.measure.existing.checks.findings import ALL, MOST, MUCH, POSSIBLE, PRESENT, SEEN, SOME, Finding
from labkit.measure.existing.spaces import Space
from labkit.system import netlink

SMALL_BYTES = 1 << 18
# What the kernel takes for the fragments of a datagram of 64 KB: 100,000 bytes with an MTU of 1500
DATAGRAM_BYTES = 1 << 17
NEAR = 0.8
IN_USE = os.strerror(errno.EADDRINUSE)
SOME_DROPS, DROP_SHARE = 50, 0.01
SLOW_MS = 2.0
LISTENER = re.compile(r'^LISTEN +\d+ +\d+ +(\S+) +\S+(?: +users:\(\("(.*?)",pid=(\d+))?', re.M)
UNREAD_BYTES, AGAIN_S = 1 << 16, 0.2
# Switches of TCP whose other value costs, with what it does.
TCP_SWITCHES = {
    "tcp_window_scaling": (1, "windows are at most 64 KB"), "tcp_sack": (1, "one loss costs a round trip each"),
    "tcp_moderate_rcvbuf": (1, "receive buffers do not grow"),
}  # fmt: skip


def buffers(seen: Evidence) -> Iterator[Finding]:
    """Small limits of TCP's and UDP's buffers, and of those for fragments."""
    fragments = f"net/{'ipv6/ip6' if seen.client.version == 6 else 'ipv4/ip'}frag_high_thresh"
    for space in seen.ends:
        if (held := space.number(fragments, default=DATAGRAM_BYTES)) < DATAGRAM_BYTES:
            few = (
                f"at most {held:,} bytes of fragments, less than one datagram may take"
                if held
                else "no fragments"
            )
            yield Finding(
                cause="small reassembly buffer", weight=MUCH if held else MOST, where=space.name,
                what=f"{space.name} keeps {few}: it drops what is more ({fragments.rpartition('/')[2]})",
                undo=space.command(f"sysctl -w {fragments.replace('/', '.')}=4194304"),
            )  # fmt: skip
        for name in ("tcp_rmem", "tcp_wmem"):
            most = space.number(f"net/ipv4/{name}", 2, SMALL_BYTES)
            if most < SMALL_BYTES:
                yield Finding(
                    cause="small TCP buffers", weight=MOST if most < SMALL_BYTES / 4 else MUCH, where=space.name,
                    what=f"{name} lets a TCP connection have at most {most:,} bytes of buffer",
                    cost=f"at most {units.si(8 * most / 1e-3, 'bit/s')} at a round trip of 1 ms",
                    undo=space.command(f"sysctl -w net.ipv4.{name}='4096 131072 6291456'"),
                )  # fmt: skip
        for name, (usual, why) in TCP_SWITCHES.items():
            if (value := space.number(f"net/ipv4/{name}", default=usual)) != usual:
                yield Finding(
                    cause="TCP option off", what=f"{name} is {value}: {why}", where=space.name, weight=SOME,
                    undo=space.command(f"sysctl -w net.ipv4.{name}={usual}"),
                )  # fmt: skip
        if 0 < (size := space.number("net/core/rmem_max", default=0)) < 1 << 16:
            yield Finding(
                cause="small UDP buffers", what=f"net.core.rmem_max lets a socket have at most {size:,} bytes",
                where=space.name, weight=SOME, undo="sysctl -w net.core.rmem_max=212992",
            )  # fmt: skip


def dropped(seen: Evidence) -> Iterator[Finding]:
    """Datagrams and connections that sockets at the ends dropped: during the check, or since the namespace exists."""
    for space in seen.ends:
        for group in ("Udp", "Udp6"):
            count, now = (seen.mib(space, group, "RcvbufErrors", total) for total in (True, False))
            taken = seen.mib(space, group, "InDatagrams", total=True)
            if now or (count > SOME_DROPS and count > DROP_SHARE * (count + taken)):
                when = f"{now} of them during the check" if now else "since the namespace exists"
                yield Finding(
                    cause="full socket buffer", certainty=SEEN if now else PRESENT, weight=MUCH, where=space.name,
                    what=f"sockets of {space.name} dropped {units.counted(max(count, now), 'datagram')}, because their"
                    f" buffers were full ({group} RcvbufErrors), {when}",
                    undo="sysctl -w net.core.rmem_max=8388608 net.core.rmem_default=8388608, or a faster program",
                )  # fmt: skip
        overflows, now = (seen.mib(space, "TcpExt", "ListenOverflows", total) for total in (True, False))
        opened = seen.mib(space, "Tcp", "PassiveOpens", total=True)
        if overflows > SOME_DROPS and overflows > DROP_SHARE * (opened + overflows):
            yield Finding(
                cause="full accept queue", certainty=SEEN if now else PRESENT, weight=MUCH, where=space.name,
                what=f"a listening socket of {space.name} refused {overflows} connections, because its queue was full"
                " (ListenOverflows)",
                undo=space.command("sysctl -w net.core.somaxconn=4096") + ", and a larger backlog in the program",
            )  # fmt: skip


def programs(seen: Evidence) -> Iterator[Finding]:
    """What programs at the ends do: they do not accept, they do not read, they use all local ports."""
    both, unread = (seen.client.address, seen.server.address), set[tuple[str, str]]()
    said = {one.said for _path, probe in seen.directions for one in (probe.icmp, probe.udp)}
    said.add(seen.connection.said if seen.connection else "")
    for space in seen.ends:
        sockets, used = _connections(space), Counter[str]()
        for state, queued, most, own, other in sockets:
            port = own.rpartition(":")[2]
            used[other] += state != "LISTEN"
            if state == "LISTEN" and queued > most:
                refused = seen.ports.get(int(port), "")
                yield Finding(
                    cause="full accept queue", certainty=SEEN if refused else PRESENT, weight=ALL if refused else MUCH,
                    where=space.name, undo="let the program accept faster, with a larger backlog",
                    what=f"the socket that listens at port {port} has {queued} connections that its program has not"
                    f" accepted, and room for {most}",
                )  # fmt: skip
            elif state == "ESTAB" and queued >= UNREAD_BYTES and _address(other) in both:
                unread.add((own, other))
        if unread:
            time.sleep(AGAIN_S)
        for _state, queued, _most, own, other in _connections(space) if unread else ():
            if (own, other) in unread and queued >= UNREAD_BYTES:
                yield Finding(
                    cause="slow reader", weight=MUCH, where=space.name,
                    what=f"a program of {space.name} has not read {queued:,} bytes of the connection from {other} to"
                    f" {own}",
                    cost="the connection is as slow as this program",
                    undo=space.command(f"ss -tnp src {own}  # shows the program"),
                )  # fmt: skip
        first, last = (space.number("net/ipv4/ip_local_port_range", at) for at in (0, 1))
        to, count = max(used.items(), key=lambda one: one[1], default=("", 0))
        full = IN_USE in said and _is_full(space, both)
        if last and (full or count >= NEAR * (last - first + 1)):
            yield Finding(
                cause="few local ports", certainty=SEEN if full else PRESENT, weight=ALL if full else MUCH,
                where=space.name,
                what=f"{space.name} has local ports from {first} to {last}, and "
                + ("none is free" if full else f"{count} connections to {to} use them"),
                undo=space.command("sysctl -w net.ipv4.ip_local_port_range='32768 60999'"),
            )  # fmt: skip


def _is_full(space: Space, addresses: Collection[str]) -> bool:
    """Return whether no local port of TCP or UDP is free at one of these addresses that the space has."""
    for address in (one for one in addresses if one in space.addresses):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with netlink.inside(space.fd):
                one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind)
            with one, suppress(OSError):
                one.bind((address, 0))
                continue
            return True
    return False


def _connections(space: Space) -> list[tuple[str, int, int, str, str]]:
    """Return state, queues and both addresses of the sockets of TCP, as ss(8) prints them; none without it."""
    result = []
    with suppress(LabkitError):
        for state, queued, most, own, other, *_ in map(
            str.split, space.namespace.run("ss", "-Htan").stdout.splitlines()
        ):
            result.append((state, int(queued), int(most), own, other))
    return result


def _address(socket: str) -> str:
    return socket.rpartition(":")[0].strip("[]").removeprefix("::ffff:").partition("%")[0]


def tables(seen: Evidence) -> Iterator[Finding]:
    """Tables of connections and neighbours that are nearly full."""
    for space in seen.spaces:
        most, count = (space.number(f"net/netfilter/nf_conntrack_{name}") for name in ("max", "count"))
        if most and count >= NEAR * most:
            yield Finding(
                cause="connection table", weight=MOST if count >= 0.95 * most else MUCH, where=space.name,
                what=f"{space.name} tracks {count:,} connections of at most {most:,} (nf_conntrack_max)",
                cost="new connections are dropped when it is full", undo=f"sysctl -w net.nf_conntrack_max={4 * most}",
            )  # fmt: skip
        for family, name in (("ipv4", "arp_cache"), ("ipv6", "ndisc_cache")):
            limit, used = space.number(f"net/{family}/neigh/default/gc_thresh3"), 0
            with suppress(OSError, ValueError, IndexError):
                used = int(space.namespace.read(f"/proc/net/stat/{name}").splitlines()[1].split()[0], 16)
            if limit and used >= NEAR * limit:
                yield Finding(
                    cause="neighbour table", weight=MUCH, where=space.name,
                    what=f"the kernel knows {used:,} neighbours of at most {limit:,} (gc_thresh3 of {family})",
                    cost="neighbours are forgotten and asked for again",
                    undo=f"sysctl -w net.{family}.neigh.default.gc_thresh3={4 * limit}",
                )  # fmt: skip


def connection(seen: Evidence) -> Iterator[Finding]:
    """What labkit's own connections showed: retransmissions, slow transfer, long round trips."""
    for one in seen.loads:
        share = one.again_count / one.sent_count if one.sent_count else 0.0
        if share > DROP_SHARE and one.again_count > 20:
            words = "sent again" if one.protocol == "TCP" else "lost"
            yield Finding(
                cause="retransmissions" if one.protocol == "TCP" else "loss", certainty=SEEN, weight=SOME, where="path",
                what=f"{units.percent(share)} of {one.protocol}'s packets were {words} during the load",
            )  # fmt: skip
    closed, at, address = rules.closed_ports(seen), seen.server.space, seen.server.address
    for port, said in seen.ports.items():
        is_refused = said == os.strerror(errno.ECONNREFUSED)
        if port in closed:
            to, why, undo, is_sure = closed[port]
            listed = at.namespace.run("ss", "-Htlnp", f"sport = :{to}").stdout if shutil.which("ss") else ""
            for own, name, pid in LISTENER.findall(listed):
                why = f"; {f'{name} (pid {pid})' if name else 'a program'} listens at {own} only{why}"
                undo = f"let the program listen at {address}"
            yield Finding(
                cause="nothing listens", what=f"nothing listens at port {to} of {address}{why}", weight=ALL,
                where=at.name, undo=undo,
                certainty=POSSIBLE if not is_sure else SEEN if is_refused else PRESENT,
            )  # fmt: skip
        elif said and seen.connects:
            yield Finding(
                cause="port without answer", certainty=POSSIBLE, weight=MUCH, where="path",
                what=f"port {port} of {address}{'' if is_refused else ' listens but'} does not answer: {said}",
            )  # fmt: skip
    own = seen.connection
    if own and own.connected and own.carried_bytes < probes.TCP_BYTES:
        yield Finding(
            cause="slow connection", certainty=SEEN, weight=SOME, where="path",
            what=f"a TCP connection carried {own.carried_bytes:,} of {probes.TCP_BYTES:,} bytes in"
            f" {own.lasted_s:.1f} s",
        )  # fmt: skip
    if seen.round_trips_ms:
        middle = sorted(seen.round_trips_ms)[len(seen.round_trips_ms) // 2]
        if middle > SLOW_MS and seen.far is None:
            yield Finding(
                cause="long round trips", certainty=POSSIBLE, weight=SOME, where="path",
                what=f"a round trip takes {middle:.1f} ms, although both ends are on this machine",
            )  # fmt: skip


def echo_requests(seen: Evidence) -> Iterator[Finding]:
    """A server that is told to answer no ping."""
    name = "net/ipv6/icmp/echo_ignore_all" if seen.server.version == 6 else "net/ipv4/icmp_echo_ignore_all"
    if seen.server.space in seen.ends and seen.server.space.number(name):
        yield Finding(
            cause="no answer to ping", what=f"{seen.server.space.name} answers no echo request ({name})", weight=SOME,
            where=seen.server.space.name, undo=seen.server.space.command(f"sysctl -w {name.replace('/', '.')}=0"),
        )  # fmt: skip
