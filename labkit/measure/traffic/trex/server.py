"""A TRex server that labkit starts itself, on interfaces of a topology.

TRex opens its interfaces in its own network namespace, so the interfaces of the pairs' ends move into one that is
made for it. The ends keep their addresses there, and the kernel answers ARP for them; an nftables ingress hook drops
everything else, which TRex's packet sockets have received before. Everything ends with the experiment.

TRex is not a package: users unpack a release, and LABKIT_TREX or a parameter names its folder. The shipped wrapper
`t-rex-64` finds and kills processes by name, so labkit starts `_t-rex-64` itself.
"""

import ipaddress
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.common.errors import Failed, Unsupported
from labkit.common.packets import ETHERNET_BYTES
from labkit.measure.endpoints import Endpoint, Namespace, Pair, namespaces
from labkit.measure.endpoints.nftables import run_nft
from labkit.measure.traffic.packet_ends import frame_addresses, frame_sender, learning_frame
from labkit.measure.traffic.packet_sender import FrameAddresses, Mix
from labkit.measure.traffic.trex import client
from labkit.measure.traffic.trex.client import Address, Client
from labkit.system import netlink, process, temporary_files

FOLDER_VARIABLE = "LABKIT_TREX"  # environment variable: the folder of an unpacked TRex release
BINARY = "_t-rex-64"
MISSING = (
    "unpack a TRex release, for example v3.08 (there is no package), and name its folder:"
    f" {FOLDER_VARIABLE}=/path/of/v3.08 in the environment"
)
ARGUMENTS = ("--no-key", "--no-scapy-server", "--no-ofed-check", "--iom", "0")
EXACT_LATENCY = "--hdrh"  # HDR histograms of latency, which only stateless traffic has
LIBRARIES = "so/x86_64:so"  # inside the folder of TRex
READY_S = 30.0  # TRex takes about 1.5 s
POLL_S = 0.02
MAX_PORTS = 16  # TREX_MAX_PORTS of TRex
# Rings of 32 MiB for each direction of each interface: with TRex's own 2 MiB it drops what the device delivered.
# A block is a multiple of a page and of a frame, and a frame holds a packet and its header (packet_mmap of the kernel).
# DPDK refuses a frame that TRex's largest packet buffer, of 9,280 bytes, cannot hold.
RING_BYTES, BLOCK_BYTES = 32 << 20, 1 << 20
RING_HEADER_BYTES = 128
PAGE_BYTES = 4096
FRAMES_BYTES = (2048, 4096, 8192, 9216)
RUNTIME = Path("/var/run/dpdk")  # where DPDK programs that do not know RUNTIME_DIRECTORY leave files
TABLE = "labkit_trex"


def find(given: str | None = None) -> Path:
    """Return the folder of `_t-rex-64`: `given`, or LABKIT_TREX, or where TRex's manual unpacks it.

    Raises Unsupported, with what to do, if there is none.
    """
    named = given or os.environ.get(FOLDER_VARIABLE)
    if named:
        places = [Path(named), Path(named) / "scripts"]
    else:
        places = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
        places += sorted(Path("/opt").glob("trex/*"), reverse=True)
    for place in places:
        if os.access(place / BINARY, os.X_OK) and (place / BINARY).is_file():
            return place.resolve()
    if named:
        raise Unsupported(f"{named} has no program {BINARY}, so it is not a TRex release: {MISSING}")
    raise Unsupported(f"TRex is not installed: {MISSING}")


@dataclass(frozen=True)
class OwnServer:
    """A TRex server that runs, with its client's connection.

    `ports`: their interfaces and addresses. `pid`: its process; `pids`: also that of the client. `adjacent`: the
    ends share one Ethernet, so a device between them forwards by MAC address alone.
    """

    client: Client
    ports: list[FrameAddresses]
    learning: list[Callable[[], None]]
    pid: int
    pids: frozenset[int]
    adjacent: bool

    @property
    def ends(self) -> list[tuple[str, str]]:
        """The source and the destination address of each port's frames."""
        return [(port.source_ip, port.target_ip) for port in self.ports]

    def announce(self) -> None:
        """Send a frame from every port's interface, so that bridges and switches know where it is."""
        for send in self.learning:
            send()


def config(ports: Sequence[FrameAddresses], mtu_bytes: int, prefix: str) -> str:
    """Return TRex's configuration file for kernel interfaces: large rings, and threads that sleep (`low_end`).

    `prefix` tells the files of this DPDK program from those of others.
    """
    block, frame, count = ring_of(mtu_bytes)
    ring = f"blocksz={block},framesz={frame},framecnt={count}"
    devices = [
        f'"--vdev=net_af_packet{number},iface={port.interface},{ring}"' for number, port in enumerate(ports)
    ]
    lines = [
        "- version: 2",
        f"  port_limit: {len(ports)}",
        f"  interfaces: [{', '.join(devices)}]",
        "  low_end: true",
        f"  prefix: {prefix}",
        "  port_info:",
    ]
    for port in ports:
        lines += [f'    - dest_mac: "{port.target_mac}"', f'      src_mac: "{port.source_mac}"']
    return "\n".join(lines) + "\n"


def ring_of(mtu_bytes: int) -> tuple[int, int, int]:
    """Return the bytes of a ring's blocks and of its frames, and the number of frames: whole blocks."""
    needed = mtu_bytes + ETHERNET_BYTES + RING_HEADER_BYTES
    frame = next((one for one in FRAMES_BYTES if one >= needed), FRAMES_BYTES[-1])
    unit = math.lcm(PAGE_BYTES, frame)
    block = BLOCK_BYTES // unit * unit
    return block, frame, RING_BYTES // block * (block // frame)


def argv(folder: Path, configuration: Path, *, stateful: bool) -> list[str]:
    """Return the command line of the server. It has to run in TRex's folder, and with TRex's libraries."""
    mode = ["--astf"] if stateful else [EXACT_LATENCY]
    variables = [f"LD_LIBRARY_PATH={LIBRARIES}", f"RUNTIME_DIRECTORY={configuration.parent}"]
    start = ["env", f"--chdir={folder}", *variables]
    return [*start, f"./{BINARY}", "-i", *mode, "--cfg", str(configuration), *ARGUMENTS]


def check(pairs: Sequence[Pair]) -> None:
    """Raise Unsupported, with one sentence, for ends whose interface TRex cannot have."""
    for end in (end for pair in pairs for end in (pair.client, pair.server)):
        if not end.kernel.is_here:
            raise Unsupported(
                f"TRex cannot use an interface inside the guest {end.name}: use endpoint=namespace or"
                " endpoint=container"
            )
        if end.interface == "lo":
            raise Unsupported("TRex cannot use loopback: choose another topology")
        if ":" in end.address:
            raise Unsupported("labkit starts TRex with IPv4 only: use family=4")
    if 2 * len(pairs) > MAX_PORTS:
        raise Unsupported(f"TRex has at most {MAX_PORTS} ports: use at most {MAX_PORTS // 2} pairs")


@contextmanager
def started(
    pairs: Sequence[Pair], mtu_bytes: int, *, folder: str | None = None, stateful: bool = False
) -> Iterator[OwnServer]:
    """Start a server on the interfaces of these pairs, and a client; both end with the block.

    The ports of a pair have the numbers 2n (the client's) and 2n + 1 (the server's). The ends cannot be used for
    anything else afterwards. Raises Unsupported without TRex, Failed if it ends or does not answer.
    """
    place = find(folder)
    check(pairs)
    with ExitStack() as stack:
        [space] = stack.enter_context(namespaces(["trex"], family=4))
        space.netlink.do(netlink.set_link(1))
        addresses = _addresses(pairs)
        ends = _move_interfaces(pairs, addresses, space)
        ports = [replace(own, interface=end.interface) for end, own in zip(ends, addresses, strict=True)]
        _only_arp(space, ports)
        # in memory where the experiment has its own mounts
        scratch = tempfile.TemporaryDirectory(prefix="labkit-trex-", dir=temporary_files.in_memory())
        own = Path(stack.enter_context(scratch))
        prefix = f"labkit-{secrets.token_hex(4)}"
        stack.enter_context(temporary_files.covered(RUNTIME))
        written = own / "trex_cfg.yaml"
        written.write_text(config(ports, mtu_bytes, prefix))
        server = process.Running([*space.prefix, *argv(place, written, stateful=stateful)])
        stack.enter_context(process.all_ended([server]))
        _wait_until_ready(server, space)
        companion = stack.enter_context(client.companion(space.prefix))
        numbers = range(len(ports))
        connection = Client(companion.fileno(), Address("127.0.0.1"), numbers, "that labkit started")
        stack.callback(connection.close)
        learning = [
            stack.enter_context(frame_sender(end, learning_frame(own, Mix())))
            for end, own in zip(ends, addresses, strict=True)
        ]
        pids = frozenset({server.pid, companion.pid})
        yield OwnServer(connection, ports, learning, server.pid, pids, _share_one_ethernet(addresses))


def _addresses(pairs: Sequence[Pair]) -> list[FrameAddresses]:
    """Return where the frames of each end go. Raises Unsupported without Ethernet."""
    addresses = [frame_addresses(one) for pair in pairs for one in (pair, pair.turned)]
    if not all(one.ethernet for one in addresses):
        raise Unsupported(
            "TRex sends Ethernet frames, which the interfaces of this topology do not carry: choose a topology with"
            " Ethernet, for example veth_bridge"
        )
    return addresses


def _share_one_ethernet(addresses: Sequence[FrameAddresses]) -> bool:
    own = [one.source_mac for one in addresses]
    return len(set(own)) == len(own) and all(one.target_mac in own for one in addresses)


def _move_interfaces(
    pairs: Sequence[Pair], senders: Sequence[FrameAddresses], space: Namespace
) -> list[Endpoint]:
    """Move the interfaces of all ends into TRex's namespace, with their addresses; return the ends there."""
    space.sysctl("ipv4/conf/all/arp_ignore", 1)  # an interface answers only for its own addresses
    result = []
    for number, end in enumerate(end for pair in pairs for end in (pair.client, pair.server)):
        addresses = [
            ipaddress.ip_interface(text)
            for index, text in netlink.addresses(end.namespace.netlink)
            if index == end.index
        ]
        name = f"trex{number}"
        try:
            end.namespace.netlink.do(netlink.move_link(end.index, space.fd, name=name))
        except netlink.LinkError as error:
            raise Unsupported(
                f"the interface of {end.name} cannot be moved into TRex's namespace ({error}): choose another topology"
            ) from None
        with netlink.inside(space.fd):
            index = netlink.index_of(name)
        own = [netlink.new_address(index, one) for one in addresses if one.version == 4]
        space.netlink.do(netlink.set_link(index), *own)
        # The kernel itself sends to the partner only in answer to ARP, so it needs no neighbours.
        result.append(Endpoint(name, space, name, index, senders[number].source_ip))
    return result


def _only_arp(space: Namespace, ports: Sequence[FrameAddresses]) -> None:
    """Let the kernel handle nothing but ARP from TRex's interfaces: it would answer load with resets and errors."""
    rules = [f"add table netdev {TABLE}"]
    for port in ports:
        rules += [
            f"add chain netdev {TABLE} {port.interface} {{ type filter hook ingress device {port.interface}"
            " priority 0 ; }",
            f"add rule netdev {TABLE} {port.interface} meta protocol != arp drop",
        ]
    try:
        run_nft(space, rules, "drop frames at ingress", "CONFIG_NETFILTER_INGRESS, nf_tables")
    except Unsupported as error:
        raise Unsupported(f"{error}; or use a TRex server elsewhere, server=HOST") from None


def _wait_until_ready(server: process.Running, space: Namespace) -> None:
    """Wait until the server listens for requests. Raises Failed, with its last words, if it ends or takes too long."""
    if not server.ready(lambda: space.listens(client.RPC_PORT), time.monotonic() + READY_S, POLL_S):
        how = "ended before it was ready" if server.poll() else f"was not ready after {READY_S:.0f} s"
        server.kill()
        raise Failed(f"the TRex server {how}: {_last_words(server.ended())}")


def _last_words(ended: process.Ended) -> str:
    """Return what a server printed last, in one line, without colours."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", f"{ended.stdout}\n{ended.stderr}")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    if any("mmap failed" in line for line in lines):  # as DPDK says it
        lines += [f"its rings of {RING_BYTES >> 20} MiB must fit into locked memory: ulimit -l unlimited"]
    return " / ".join(lines[-4:])[-400:] or f"it printed nothing and ended with {ended.returncode}"
