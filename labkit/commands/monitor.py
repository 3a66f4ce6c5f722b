"""Watch an interface in the terminal, and write the kept packets to a pcapng file (`labkit monitor`)."""

from __future__ import annotations

import argparse
import contextlib
import math
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group
from rich.live import Live

from labkit import live
from labkit.commands import arguments
from labkit.commands.console import new_console, new_table
from labkit.common import run_folder, safe_files, units
from labkit.common.errors import BadInput, Unsupported, choose
from labkit.common.limits import Within
from labkit.common.packets import pcapng
from labkit.common.printable import printable, printable_json
from labkit.measure import topologies
from labkit.measure.observers.monitor import live_monitor
from labkit.measure.observers.monitor.live_monitor import SAVED_COUNT, LiveMonitor, MonitorReport, blocks
from labkit.system import process

SHOWN_S = 0.2  # between two updates
ALWAYS_SHOWN = ("seen_count", "selected_count", "dropped_count")  # the others only if they are not 0
MAX_SHOWN = 10  # packets, hosts and conversations shown in the terminal


@contextlib.contextmanager
def open_monitor(target: str, given: Mapping[str, str]) -> Iterator[tuple[live.LiveTopology, LiveMonitor]]:
    """Yield the topology of a target and a monitor in it. Raises BadInput, Unsupported, Failed."""
    net, interface, own = parse_target(target, given)
    with net:
        if interface is None:
            example = f"labkit monitor {target} interface=client0:eth0"
            raise BadInput(f"{target} has several interfaces: name one, for example {example}")
        with net.monitor(interface, **own) as result:
            yield net, result


def parse_target(
    target: str, given: Mapping[str, str]
) -> tuple[live.LiveTopology, str | None, dict[str, Any]]:
    """Return the topology of a target, the interface if one is named, and the monitor's parameters.

    The target is a topology or its file, with interface=NAME among the parameters, or an interface of the machine.
    """
    own = live_monitor.typed(given)
    rest = {name: value for name, value in given.items() if name not in {*own, "interface"}}
    if target.partition("+")[0] in topologies.TABLE or target.endswith((".yaml", ".yml")):
        return live.build(target, **rest), given.get("interface"), own
    if unknown := sorted(rest.keys() - {"where"}):
        names = [*live_monitor.TEXTS, *live_monitor.NUMBERS, "where"]
        raise BadInput(f"{unknown[0]} is not a parameter of a monitor: {choose(unknown[0], names)}")
    if "interface" in given:
        raise BadInput(f"{target[:80]!r} is not a topology but an interface: leave interface= out")
    known = [*topologies.TABLE, *(name for _, name in socket.if_nameindex())]
    if rest.get("where", "here") == "here" and target not in known:
        what = "no topology, and no interface of this machine"
        raise BadInput(f"{target[:80]!r} is {what}: {choose(target, known)}")
    return live.machine(rest.get("where", "here")), f"{topologies.MACHINE}:{target}", own


def watch(
    target: str,
    given: Mapping[str, str],
    seconds: float | None,
    file: Path | None,
    pings: bool,
    as_json: bool,
) -> None:
    """Show a monitor for `seconds` or until Ctrl-C, then its final counts.

    file: the file for packets. pings: whether every client of the topology pings its server meanwhile.
    """
    if seconds is not None and not 0 < seconds < math.inf:
        raise BadInput(f"--seconds {seconds:g}: give more than 0")
    with contextlib.ExitStack() as stack:
        net, one = stack.enter_context(open_monitor(target, given))
        begun = time.monotonic()
        writer = stack.enter_context(_writing(file, one)) if file else None
        if pings:
            _ping(net)
        end = math.inf if seconds is None else time.monotonic() + seconds
        screen = None
        if sys.stdout.isatty() and not as_json:
            screen = stack.enter_context(Live(console=new_console(), auto_refresh=False))
        with contextlib.suppress(KeyboardInterrupt):
            _until(end, one, writer, screen)
        one.stop()
        lasted_s = time.monotonic() - begun
        if writer:
            writer.write(one)
        last = one.read(limit=MAX_SHOWN)
    if as_json:
        print(printable_json(msgspec.json.encode(summary(one.hop, last)).decode()))
    else:
        new_console().print(tables(one.hop, last, (lasted_s, None)))
    if writer:
        gone = f"{writer.missed} left memory before they could be written"
        line = f"packets: {run_folder.display_path(writer.path)} ({units.counted(writer.count, 'packet')}, {gone})"
        print(printable(line), file=sys.stderr if as_json else sys.stdout)


@process.ended_by_signals()
def serve(target: str, given: Mapping[str, str], port: int | None, pings: bool) -> int:
    """Serve a panel as a web page on loopback until Ctrl-C, and return Voilà's exit code.

    The page shows the target's interface or, without interface=, all interfaces of the topology. Raises Unsupported
    without Voilà, BadInput for a port that is taken.
    """
    from labkit.measure.hosts import local

    try:
        from labkit.jupyter import monitor_hub, monitor_page, monitor_panel
    except ModuleNotFoundError as error:
        way = "pip install 'labkit[serve]'"
        raise Unsupported(f"--serve needs the Python package {error.name}: {way}") from None

    net, interface, own = parse_target(target, given)
    with net, safe_files.own_folder(safe_files.runtime_folder(), "labkit-page-") as (folder, *_):
        if pings:
            _ping(net)
        names = monitor_panel.interfaces_of(net) if interface is None else [interface]
        choice = {"interface": names[0], **{name: str(value) for name, value in own.items()}}
        monitor_panel.check_choice(choice, names)
        path = str(folder / "hub")
        with monitor_hub.Hub(net, names, path):
            argv, environment, address = monitor_page.prepared(folder, path, names, choice, port)
            with monitor_page.answering(address, lambda: print(f"page: {address}", flush=True)):
                with contextlib.suppress(KeyboardInterrupt):
                    # Its kernels end with it: one that just begins would make the removed folder again, and stay. A
                    # machine may forbid namespaces to a user who watches an interface of another one.
                    unshare = local.prefix(net=False)
                    unshare = unshare if process.run([*unshare, "true"]).returncode == 0 else []
                    return process.interactive([*unshare, *argv], environment)
    return 0


def _until(end: float, one: LiveMonitor, writer: _Writer | None, screen: Live | None) -> None:
    before: tuple[float, MonitorReport | None] = time.monotonic(), None
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(SHOWN_S, left))
        if writer:
            writer.write(one)
        if screen is not None:
            now, report = time.monotonic(), one.read(limit=MAX_SHOWN)
            screen.update(tables(one.hop, report, (now - before[0], before[1])), refresh=True)
            before = now, report


def _ping(net: live.LiveTopology) -> None:
    pairs = net.state.pairs
    if not pairs:
        raise BadInput(
            f"--ping needs a topology with clients and servers, and {net.name} has none: name another"
        )
    for client, server in pairs:
        net.endpoints[client.name].start("ping", "-q", "-i", "0.01", server.address)


class _Writer:
    """Writes the packets of a monitor to a pcapng file."""

    def __init__(self, path: Path, file: Any, hop: str, snap_bytes: int) -> None:
        self.path, self._file = path, file
        self._hop, self._snap_bytes = hop, snap_bytes
        self._since = -1
        self._is_begun = False
        self.count = self.missed = 0

    def write(self, one: LiveMonitor) -> None:
        """Write new packets. Packets that had already left the memory count as missed."""
        report = one.read(self._since, SAVED_COUNT)
        with run_folder.write_errors(self.path):
            if not self._is_begun:
                self._put(pcapng.header([(self._hop, report.link_type)], self._snap_bytes))
                self._is_begun = True
            self._put(b"".join(blocks(report.packets)))
        if report.packets:
            self._since = report.packets[-1].number
            self.count += len(report.packets)
        self.missed = report.counts.kept_count + report.counts.forgotten_count - self.count

    def _put(self, content: bytes) -> None:
        left = memoryview(content)
        while left:
            left = left[self._file.write(left) :]


@contextlib.contextmanager
def _writing(path: Path, one: LiveMonitor) -> Iterator[_Writer]:
    with run_folder.write_errors(path), safe_files.create_new(path) as file:
        yield _Writer(path, file, one.hop, one.request.snap_bytes)


def summary(hop: str, report: MonitorReport) -> dict[str, Any]:
    """Return the report as a mapping, for programs."""
    return {
        "hop": hop,
        **msgspec.to_builtins(report.counts),
        "sampled_count": report.counts.sampled_count,
        "classes": report.classes,
        "conversations": report.conversations,
        "talkers": report.talkers,
        "problem": report.problem,
        "hint": live_monitor.hint(report),
        "packets": [one.stack for one in report.packets],
        "fields": [one.fields for one in report.packets],
    }


def tables(hop: str, report: MonitorReport, before: tuple[float, MonitorReport | None]) -> Group:
    """Return the report as tables, for people.

    before: for rates, the seconds since an earlier report and that report; None: since the monitor began.
    """
    seconds, earlier = before
    counts = msgspec.to_builtins(report.counts)
    counts_before = msgspec.to_builtins(earlier.counts) if earlier else {}
    title = f"{hop}{' (the interface has gone)' if report.is_gone else ''}"
    counters = new_table(title, [("packets", False), ("", True), ("rate", True)])
    for name, value in counts.items():
        if value or name in ALWAYS_SHOWN:
            rate = units.si((value - counts_before.get(name, 0)) / seconds, "pps")
            counters.add_row(name.removesuffix("_count"), f"{value:,}", rate)
    hints = [f"- {text}" for text in (report.problem, live_monitor.hint(report)) if text]
    by_class = new_table("\nClasses", [("class", False), ("packets", True), ("bytes", True), ("rate", True)])
    for name, (count, length_bytes) in report.classes.items():
        count_before = earlier.classes.get(name, (0, 0))[0] if earlier else 0
        rate = units.si((count - count_before) / seconds, "pps")
        by_class.add_row(name, f"{count:,}", f"{length_bytes:,}", rate)
    talkers = new_table(
        "\nTop talkers",
        [("host", False), ("packets sent", True), ("bytes sent", True), ("packets received", True),
         ("bytes received", True)],
    )  # fmt: skip
    for host in report.talkers[:MAX_SHOWN]:
        talkers.add_row(*map(str, host))
    conversations = new_table(
        "\nConversations",
        [("class", False), ("source", False), ("destination", False), ("packets", True), ("bytes", True)],
    )
    for row in report.conversations[:MAX_SHOWN]:
        conversations.add_row(*map(str, row))
    last = new_table("\nLast packets", [("time", False), ("", False), ("bytes", True), ("headers", False)])
    for one in report.packets:
        headers = "; ".join([one.stack, *one.fields])
        last.add_row(units.time_of_day(one.time_ns), one.direction, str(one.length_bytes), headers)
    return Group(counters, *hints, by_class, talkers, conversations, last)


NOTES = """\
The kernel selects packets. Those that you did not select cost little. A sampler then chooses, and
memory holds the last of those. Every packet is counted: seen by the interface, selected, dropped
(the reader was too slow), sampled, kept, forgotten (pushed out of memory). A mirror port of Open
vSwitch is monitored where its copies arrive: mirror0 in the namespace monitor. An interface of this
machine needs root.

    labkit monitor eth0 source=10.0.0.1 destination=10.0.0.0/8 --seconds 10
    labkit monitor eth0 expression='tcp[tcpflags] & tcp-syn != 0' sample=interval:10:1
    labkit monitor veth_bridge interface=client0:eth0 protocol=icmp --ping --seconds 3 --pcapng seen.pcapng
    labkit monitor veth_bridge interface=client0:eth0 where=vm:debian --ping --seconds 5
    labkit monitor eth0 --serve

--serve prints the address of a page with controls, charts, talkers, conversations and the last packets. It
needs the extra labkit[serve]. From another machine, forward the port: ssh -L PORT:127.0.0.1:PORT.

parameters of a monitor:
    source=, destination=   an address or a prefix, IPv4 or IPv6
    port=                   of the source or the destination: 53, or 5000-5010
    protocol=               arp, gre, icmp, icmp6, ip, ip6, sctp, tcp, udp
    vlan=                   the VLAN's number
    inside=                 vxlan, geneve, gre, ipip: source, destination, port and protocol are those of the
                            inner packet
    expression=             what else must hold, in libpcap's syntax (pcap-filter)
    sample=                 all, one_in:N, random:P, interval:N:S (N packets every S seconds),
                            first:B (the first B bytes of each flow)
    display=                keep only sampled packets that match, in Wireshark's syntax (needs tshark)
    fields=                 add the values of Wireshark's fields to each packet: ip.ttl,_ws.col.Info (needs tshark)
    keep_count=             packets in memory; default 10000
    snap_bytes=             bytes of each packet; default 256
    interface=              of a topology: NAMESPACE:INTERFACE, or a name that only one namespace has
and those of the topology (pairs, mtu_bytes, family, parent) and where.
"""

JSON = {
    "hop": "the interface, NAMESPACE:INTERFACE",
    "seen_count": "packets that the interface received and sent",
    "selected_count": "of these, those that the filter in the kernel selected",
    "dropped_count": "of the selected, those that were lost because the ring was full",
    "waiting_count": "those that were not read yet; 0 at the end",
    "unsampled_count": "those that the sampler left out",
    "sampled_count": "those that the sampler chose",
    "kept_count": "of the sampled, those in memory",
    "forgotten_count": "those that were pushed out of memory",
    "hidden_count": "those that the display filter did not match",
    "unexamined_count": "those that tshark was too slow for",
    "classes": "for each class of packets, the number of packets and their bytes",
    "conversations": "a list of lists: class, source, destination, packets, bytes",
    "talkers": "a list of lists, by bytes: address, packets and bytes sent, packets and bytes received",
    "problem": "what went wrong, for example that tshark was killed; empty: nothing",
    "hint": "why no packet was selected, or only first fragments; or what redirects hide from it; empty: nothing",
    "packets": "the headers of the last packets, a line of text each",
    "fields": "for each of these packets, the list of its values of `fields=`",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "an interface of this machine; or a topology or a YAML file of a network, with interface=NAME"
    parser.add_argument("target", metavar="INTERFACE|TOPOLOGY", help=text)
    arguments.add_parameters(parser, "what is selected, and how it is sampled")
    text = "stop after S seconds; default: Ctrl-C stops it"
    parser.add_argument("--seconds", type=float, metavar="S", help=text)
    text = "write the sampled packets to this file"
    parser.add_argument("--pcapng", action=arguments.Folder, metavar="FILE", help=text)
    text = "show a page on loopback, behind a token, instead of a table"
    parser.add_argument("--serve", action="store_true", help=text)
    text = "the page's port, with --serve; default: a free one"
    parser.add_argument("--port", type=int, metavar="N", help=text)
    text = "each client of the topology pings its server meanwhile"
    parser.add_argument("--ping", action="store_true", help=text)
    arguments.add_json(parser, "print the last counts as one JSON object")


def run(given: argparse.Namespace) -> int:
    pairs = arguments.name_value_pairs(given.parameters)
    unused = ("seconds", "pcapng", "json") if given.serve else ("port",)
    arguments.refuse(given, unused, "with --serve" if given.serve else "without --serve")
    Within(1024, 65535).check("--port", given.port)  # those that a user may take
    if given.serve:
        return serve(given.target, pairs, given.port, given.ping)
    watch(given.target, pairs, given.seconds, given.pcapng, given.ping, given.json)
    return 0
