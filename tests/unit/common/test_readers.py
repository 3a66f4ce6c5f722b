"""Readers of external texts and files return an answer or raise labkit's own error, whatever the content.

The mutants come from a fixed seed. All readers together have a budget of 0.6 seconds, and of 9 in the long test.
"""

import contextlib
import functools
import json
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trex_server import calls

from labkit.analysis.flame import folded_stacks
from labkit.common import call_trees, errors, packets, run_folder
from labkit.common.errors import BadInput, Failed, LabkitError
from labkit.common.packets import pcapng
from labkit.measure.hosts import debian_kernels
from labkit.measure.observers import switch
from labkit.measure.observers.counters import kernel_counters, receive_counters
from labkit.measure.observers.ftrace import bpftrace_times, ring_buffer, session
from labkit.measure.observers.perf import stat
from labkit.measure.observers.perf.fold_stacks import StackCounter
from labkit.measure.topologies.open_vswitch import rpc
from labkit.measure.traffic import iperf3, ping
from labkit.measure.traffic.trex import readings
from labkit.system import machine, process
from labkit.system.machine import interfaces, mibs, provenance
from studies.monitor_cost import readers

SAMPLES = Path(__file__).parents[2] / "samples"
BUDGETS = [0.02, pytest.param(0.3, marks=pytest.mark.long)]  # seconds for each of the 31 readers
SEED = 12


def sample(name: str | Callable[[], str]) -> str:
    """Return the text of a sample, or what makes it; a text of several lines is its own sample."""
    if not isinstance(name, str):
        return name()
    return name if "\n" in name else (SAMPLES / name).read_text()


def of_iperf3(text: str) -> dict[str, Any]:
    page = json.loads(sample("iperf3-3.12-udp-client.json"))
    return iperf3.metrics([{"client": page, "server": iperf3.IPERF3.page(text)}], "udp")


def softnet(text: str) -> Any:
    return kernel_counters.cpus(text, sample("proc-softirqs-6.18.txt"), sample("proc-stat-6.18.txt"))


def format_of(text: str) -> Any:
    return ring_buffer.layout(sample("funcgraph-header_page-6.12.txt"), text, ("func", "depth"))


def folded(text: str, weighted: bool) -> list[bytes]:
    with StackCounter(weighted) as result:
        result.read([text.encode()])
        return list(result.lines())


def of_json(read: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return a reader of JSON. A text that is no JSON is nothing for it."""

    def parsed(text: str) -> Any:
        try:
            content = json.loads(text)
        except ValueError:
            return None
        return read(content)

    return parsed


def words(content: Any) -> str:
    """Return JSON in which every name and every number is a word of its own."""
    return json.dumps(content, indent=1, separators=(" ,", " : "))


def trex_session() -> str:
    """Return four readings of the ports of a real server, the last with latencies, as the client process returns."""
    answers: dict[tuple[str, Any], list[Any]] = {}
    for _, method, given, result in calls("stl_latency_loss_hdrh"):
        answers.setdefault((method, given.get("port_id")), []).append(result)
    ports = [answers["get_port_stats", port] for port in (0, 1)]
    latencies = [one for one in answers["get_pgid_stats", None] if one.get("latency", {}).get("5")][-1]
    times = [
        {"time": float(at), "ports": {str(port): ports[port][at] for port in (0, 1)}} for at in (0, 1, -2, -1)
    ]
    times[-1]["pgid"] = {name: {"1000": latencies[name]["5"]} for name in ("flow_stats", "latency")}
    return words({"readings": times})


def trex(raw: Any) -> list[Any]:
    [direction] = readings.directions(raw, (0, 1), (0,))
    probes = direction.latency
    return [direction.lost_count, probes and (probes.lost_count, probes.percentiles_s["p50"])]


CAPTURE = (
    pcapng.header([("client0:eth0", packets.ETHERNET), ("server0:eth0", packets.ETHERNET)], 64)
    + pcapng.packet(0, 10**18, 1, 60, bytes(range(60)))
    + pcapng.statistics(0, 10**18, pcapng.Counts(1))
    + pcapng.statistics(1, 10**18, pcapng.Counts())
)
# As perf script prints them for `-F comm,pid,tid,period,ip,sym,symoff,dso`.
WEIGHTED = "".join(
    f"sh {number}/{number}    {period} \n\tffffffff817554ea busy+0x1 ([kernel.kallsyms])\n\n"
    for number, period in enumerate((3_000_000, 1_000_000, 10_000), 1)
)
MIRRORS = {
    "rows": [
        {
            "name": "mirror0",
            "statistics": ["map", [["tx_bytes", 7028], ["tx_packets", 100]]],
            "output_port": ["uuid", "10a679af-1b01-4fe9-8394-8276a1e9590c"],
            "select_src_port": ["set", []],
        }
    ]
}
LAST_WORDS = """Packets captured: 199000
Packets received/dropped on interface 'eth0': 199000/1000 (pcap:900/dumpcap:100/flushed:0/ps_ifdrop:0) (99.5%)
"""
TEXTS: dict[str, tuple[Callable[[str], Any], str | Callable[[], str]]] = {
    "perf stat": (stat.parse, "perf-stat-6.1-no-counters.txt"),
    "net/dev": (mibs.interfaces, "proc-net-dev-6.18.txt"),
    "net/snmp": (mibs.mibs, "proc-net-snmp-6.18.txt"),
    "net/netstat": (mibs.mibs, "proc-net-netstat-6.18.txt"),
    "net/snmp6": (mibs.mibs6, "proc-net-snmp6-6.18.txt"),
    "softnet_stat": (softnet, "proc-net-softnet_stat-6.18.txt"),
    "datagrams": (receive_counters.received_datagrams, "proc-net-snmp-6.18.txt"),
    "datagrams of IPv6": (receive_counters.received_datagrams, "proc-net-snmp6-6.18.txt"),
    "sent datagrams": (receive_counters.sent_datagrams, "proc-net-snmp-6.18.txt"),
    "stat": (machine.cpu_times_of, "proc-stat-6.18.txt"),
    "ip link": (interfaces.qdisc_in, "ip-link-6.1.0.json"),
    "ethtool": (interfaces.features, "ethtool-k-6.1.txt"),
    "lscpu": (provenance.lscpu_fields, "lscpu-2.38.1-kvm.json"),
    "bpftrace": (lambda text: bpftrace_times.parse(text, ["ip_rcv", "udp_rcv"]), "bpftrace-0.17.0-times.jsonl"),
    "trace format": (format_of, "funcgraph-exit-format-6.12.txt"),
    "function_graph": (lambda text: list(call_trees.Reader().read(text.splitlines())), "function_graph-6.12-ipv6.txt"),
    "ping": (ping.round_trip_times, "ping-20221126-answered.txt"),
    "iperf3": (of_iperf3, "iperf3-3.12-udp-server.json"),
    "folded": (lambda text: folded_stacks.parse(text.splitlines()), "inferno-0.12.8-folded.txt"),
    "trace stats": (session.lost, "proc-stat-6.18.txt"),
    "perf script": (lambda text: folded(text, False), "perf-script-6.1.txt"),
    "perf script with periods": (lambda text: folded(text, True), WEIGHTED),
    "dpctl/show": (switch.datapaths, "ovs-3.1-dpctl-show.txt"),
    "dpctl/dump-flows": (switch.flows, "ovs-3.1-dpctl-dump-flows.txt"),
    "pmd-stats-show": (switch.caches, "ovs-3.1-pmd-stats-show.txt"),
    "OVSDB": (of_json(rpc.read_rows), words(MIRRORS)),
    "TRex": (of_json(trex), trex_session),
    "last words of dumpcap": (lambda text: readers.parse_counts("dumpcap", text), LAST_WORDS),
    "apt-cache": (debian_kernels.read_show, "apt-cache-show-2.6.1-image.txt"),
}  # fmt: skip
WORDS = [*"\0ÿ²\n:|\ud7ff", "", "-1", "1e999", "nan", "9" * 30, "null", "[]", "{}", "0x", "<not counted>"]


def mutant(text: str, rng: random.Random) -> str:
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        to = min(len(text), at + rng.choice([0, 1, 2, 8, 40]))
        if rng.random() < 0.4 and (fields := text.split()):
            text = text.replace(rng.choice(fields), rng.choice(WORDS), 1)
        elif rng.random() < 0.1:
            text = text[:at]
        else:
            text = text[:at] + rng.choice(WORDS) + text[to:]
    return text


def survives(read: Callable[[], Any], what: Any) -> None:
    try:
        read()
    except LabkitError:
        pass
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} over {what!r:.2000}") from error


def bytes_of(content: bytes, rng: random.Random) -> bytes:
    """Return the bytes with a few of them changed."""
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 6)):
        changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.1 else changed)


def capture(content: bytes) -> None:
    with contextlib.suppress(LabkitError):
        pcapng.in_order(content)
    for frame in pcapng.read(content).frames:
        packets.layers(frame.data, frame.link_type, length_bytes=frame.length_bytes)


def of_run(folder: Path, content: bytes) -> None:
    """Read a run folder with this run.json and these rows, which are behind its first line."""
    described, _, rows = content.partition(b"\n")
    (folder / "rows").mkdir(exist_ok=True)
    (folder / "run.json").write_bytes(described)
    (folder / "rows" / "1-r0.jsonl").write_bytes(rows)
    for read in (run_folder.read_rows, run_folder.failed_points):
        with contextlib.suppress(LabkitError):
            read(folder)
    run_folder.is_finished(folder, run_folder.read_run(folder))


RUN = b"""{"created": "x", "experiment": "a", "run": "a", "parameters": {}, "seed": 1, "why_stopped": {}, "points": []}
{"arm": "veth", "status": "ok"}
{"arm": "veth", "status": "ok"}
"""


@pytest.mark.parametrize("budget_s", BUDGETS)
def test_texts_and_files_are_read_or_refused(budget_s: float, tmp_path: Path) -> None:
    files: dict[str, tuple[Callable[[Any], Any], bytes]] = {
        "capture": (capture, CAPTURE),
        "run folder": (functools.partial(of_run, tmp_path), RUN),
    }
    texts = {name: (read, sample(source)) for name, (read, source) in TEXTS.items()}
    for name, (read, source) in {**files, **texts}.items():
        rng, mutated = random.Random(SEED), bytes_of if isinstance(source, bytes) else mutant
        read(source.splitlines()[0] if name == "stat" else source)
        end = time.monotonic() + budget_s
        while time.monotonic() < end:
            changed = mutated(source, rng)
            survives(functools.partial(read, changed), (name, changed))


def test_errors_have_a_position_and_a_bound() -> None:
    with pytest.raises(Failed, match=r"/proc/net/dev, line 4 cannot be read"):
        mibs.interfaces("a\nb\neth0: 1 2\neth1: 1 x\n")
    with pytest.raises(BadInput, match="the capture, byte 44 cannot be read"):
        pcapng.read(CAPTURE.replace(b"client0", b"\xff\xff\xff\xff\xff\xff\xff"))
    assert len(str(errors.BadInput("x" * 1_000_000))) < 2100


@pytest.mark.parametrize("answer", [b"\xff\n", b"[]\n", b'{"error": 1}\n'])
def test_nonsense_of_a_companion_names_it(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = process.CompanionClient(ours.fileno(), "TRex's client")
        theirs.sendall(answer)
        with pytest.raises(Failed, match="the answer of TRex's client cannot be read"):
            line.ask({}, 1.0)
        line.close()


def test_endless_output_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labkit.system.process.programs.MAX_BYTES", 1000)
    assert len(process.output(["head", "-c", "100000", "/dev/zero"])) == 1000
