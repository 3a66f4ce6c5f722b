"""Reports of perf stat and of the kernel's files, read from real samples and from guests."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import sample

from labkit.common.errors import BadInput, Failed, Unsupported
from labkit.common.topology_state import Step
from labkit.measure.endpoints import Endpoint, Pair
from labkit.measure.observers.counters import kernel_counters, packet_loss
from labkit.measure.observers.ftrace import perf_tools
from labkit.measure.observers.parameters import OwnParameters
from labkit.measure.observers.perf import control, record, stat
from labkit.measure.observers.perf.control import WHOLE_MACHINE, Scope
from labkit.system import process
from labkit.system.machine import mibs, programs


def test_output_of_perf_stat() -> None:
    result = stat.parse(sample("perf-stat-6.1-no-counters.txt"))
    assert result["task-clock"] == {"count": 0.43084, "running_ratio": 1.0, "reason": None, "unit": "s"}
    assert result["context-switches"] == {"count": 675, "running_ratio": 1.0, "reason": None}
    assert result["net:netif_rx"]["count"] == 36
    for name in ("cycles", "LLC-loads"):
        assert (result[name]["count"], result[name]["running_ratio"]) == (None, None)
        assert "no such counter" in result[name]["reason"]
    assert len(result) == 7
    # The columns follow perf-stat(1), because this machine has no hardware counters to multiplex.
    text = (
        "9000||cpu_core/cycles/|100|60.00||\n1000||cpu_atom/cycles/|100|40.00||\n"
        "<not counted>||branches|0|0.00||\n500||LLC-loads|50|25.00||\n"
    )
    result = stat.parse(text)
    assert stat.event_counts(result, "cycles") == {"count": 10000, "running_ratio": 0.4, "reason": None}
    assert stat.event_counts(result, "LLC-loads")["running_ratio"] == 0.25
    assert "got no counter" in stat.event_counts(result, "branches")["reason"]
    assert stat.event_counts(result, "instructions")["count"] is None
    assert stat.parse("5||cycles|100|||\n")["cycles"]["running_ratio"] is None


def test_event_names_are_validated() -> None:
    for name in ("-e", "cycles -o /tmp/x", "", "cycles,instructions", "x/y.o"):
        with pytest.raises(BadInput, match="not an event name"):
            stat.check((name,))


def test_missing_perf_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "_MORE_PATH", [])
    record.check.cache_clear()
    for check in (lambda: stat.check(("page-faults",)), record.check):
        with pytest.raises(Unsupported, match=r"the program perf is not installed \(without it: no profiles"):
            check()


@pytest.mark.parametrize(
    ("count", "event"),
    [
        ("9|", "cycles"),
        ("0|", "cpu-clock"),  # a virtual machine whose counter stands still
        ("<not counted>|", "cpu-clock"),
    ],
)
def test_event_without_counts_is_not_sampled(count: str, event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def report(argv: list[str], _patience_s: float) -> process.Ended:
        assert "-a" in argv
        return process.Ended(argv, 0, f"{count}|cycles|1|100.00||\n", "", 0.0)

    monkeypatch.setattr(control, "program", lambda: "perf")
    monkeypatch.setattr(process, "run", report)
    assert record.sampled_event() == event


def test_kernel_without_symbols(tmp_path: Path) -> None:
    """Some of the first symbols really are at address 0: those of the per-CPU area."""
    path = tmp_path / "kallsyms"
    assert not control.has_symbols(path)
    path.write_text("0000000000000000 T startup_64\n" * 2000)
    assert not control.has_symbols(path)
    path.write_text("0000000000000000 A fixed_percpu_data\nffffffff81000000 T startup_64\n")
    assert control.has_symbols(path)


def test_counters_of_the_kernel() -> None:
    [(name, lo)] = mibs.interfaces(sample("proc-net-dev-6.18.txt")).items()
    assert (name, lo["rx_packets"], lo["tx_packets"], lo["tx_dropped"]) == ("lo", 231359, 231359, 0)
    assert lo["rx_bytes"] == lo["tx_bytes"] == 99011507
    udp = mibs.mibs(sample("proc-net-snmp-6.18.txt"))["Udp"]
    assert (udp["InDatagrams"], udp["RcvbufErrors"], udp["OutDatagrams"]) == (201309, 30023, 231332)
    assert "DefaultTTL" not in mibs.mibs(sample("proc-net-snmp-6.18.txt"))["Ip"]
    assert {"TcpExt", "IpExt"} < set(mibs.mibs(sample("proc-net-netstat-6.18.txt")))
    six = mibs.mibs6(sample("proc-net-snmp6-6.18.txt"))
    assert {"Ip6", "Icmp6", "Udp6"} <= set(six)
    assert "InDatagrams" in six["Udp6"]
    stat_text = "cpu  1 2 3 4 5 6 7 8 9 0\ncpu0 1 2 3 4 5 6 70 8 9 0\ncpu1 1 2 3 4 5 6 1 8 9 0\nintr 5\n"
    softnet, softirqs = (sample(f"proc-{name}-6.18.txt") for name in ("net-softnet_stat", "softirqs"))
    result = kernel_counters.cpus(softnet, softirqs, stat_text)
    assert set(result) == {"0", "1"}
    names = {"processed", "dropped", "time_squeeze", "NET_RX", "NET_TX", "softirq_s", "irq_s"}
    assert names <= set(result["0"])
    assert (result["0"]["softirq_s"], result["1"]["softirq_s"]) == (0.7, 0.01)
    assert result["1"]["processed"] > 0
    before = {"a": {"b": 1, "c": 2}, "d": 0.25}
    now = {"a": {"b": 1, "c": 5}, "d": 0.5, "new": {"e": 1, "f": 0}}
    assert kernel_counters.changes(before, now) == {"a": {"c": 3}, "d": 0.25, "new": {"e": 1}}


class Inside:
    """A guest's kernel with its own counters; `times` are those of the samples."""

    name, is_here = "shared", False

    def __init__(self) -> None:
        self.times = 1

    def read(self, path: str) -> str:
        name = path.removeprefix("/").replace("/", "-") + "-6.18.txt"
        if name.startswith("proc-net-snmp6"):
            raise FileNotFoundError
        return re.sub(r"(?<=[ :])231332\b", str(231332 * self.times), sample(name))


def test_guest_kernel_counters() -> None:
    kernel, place = Inside(), SimpleNamespace(name="between", is_here=True)
    runtime = SimpleNamespace(name="shared", kernel=kernel)
    ends = [Endpoint(name, place, "eth0", 100, "10.1.0.1", runtime) for name in ("client0", "server0")]  # type: ignore[arg-type]
    changed = kernel_counters.since_now([], ends)
    kernel.times = 2
    report = changed()
    assert report["namespaces"]["client0"]["mibs"]["Udp"] == {"OutDatagrams": 231332}
    assert report["not_read"] == "queueing disciplines in guests"
    assert "guests" not in report, "none of its CPUs has changed"
    assert {*kernel_counters.read([], ends)["guests"]} == {"shared"}
    pair = Pair(*ends)
    out, arrives = ("client0", "eth0", "out"), ("server0", "eth0", "in")
    assert packet_loss._pair_path(pair, []) == [out, arrives]
    cable = [("between", "port0", "in"), ("between", "port1", "out")]
    assert packet_loss._pair_path(pair, [Step(*one) for one in cable]) == [out, *cable, arrives]
    assert packet_loss._pair_path(Pair(*(replace(end, runtime=None) for end in ends)), []) == []


def test_scope_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stat, "perf_stat", lambda _events, scope=WHOLE_MACHINE: scope)
    switch = SimpleNamespace(pid=7)

    def armed(of: str, switch: Any) -> Any:
        parameters: Any = OwnParameters(events=("cycles",), events_of=of)
        topology: Any = SimpleNamespace(name="an_arm", switch=switch)
        return stat.PERF_STAT.armed(parameters, topology, Path())

    assert armed("machine", None) == armed("machine", switch) == WHOLE_MACHINE
    assert armed("switch", switch) == Scope(pids=(7,))
    with pytest.raises(Unsupported, match="an_arm has no switch whose events could be counted"):
        armed("switch", None)


HEADER = """\
Tracing kprobe labkit_probe for 100000 seconds (buffered)...
# tracer: nop
#
# entries-in-buffer/entries-written: 4/1900   #P:2
#
#                                _-----=> irqs-off/BH-disabled
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
"""
CALLS = """\
          iperf3-412     [001] ..s1.    77.123456: labkit_probe: (ip_rcv+0x0/0xa0)
 kworker/u4:2-h-71       [000] ..s1.    77.123457: labkit_probe: (ip_rcv+0x0/0xa0)
          iperf3-412     [001] ..s1.    77.123458: labkit_probe: (ip_rcv+0x0/0xa0)
          <idle>-0       [001] ..s1.    77.123459: labkit_probe: (ip_rcv+0x0/0xa0)

Ending tracing...
"""
RETURNS = """\
          iperf3-412     [001] .....    77.1: labkit_probe: (inet_sendmsg+0x64/0x80 <- udp_sendmsg) value=512
          iperf3-412     [001] .....    77.2: labkit_probe: (inet_sendmsg+0x64/0x80 <- udp_sendmsg) value=512
          iperf3-412     [001] .....    77.3: labkit_probe: (inet_sendmsg+0x64/0x80 <- udp_sendmsg) value=4294967285
"""


def test_output_of_kprobe() -> None:
    observed = perf_tools.events(HEADER + CALLS, "ip_rcv").observed
    assert (observed["calls_count"], observed["kept_count"]) == (1900, 4)
    assert observed["processes"] == {"iperf3": 2, "kworker/u4:2-h": 1, "<idle>": 1}
    assert observed["values"] == {}
    observed = perf_tools.events(HEADER + RETURNS, "udp_sendmsg:return").observed
    assert observed["values"] == {"512": 2, "-11": 1}
    report = perf_tools.events("# entries-in-buffer/entries-written: 0/0   #P:2\n", "ip6_rcv")
    assert report.doubts == ["ip6_rcv: nothing was recorded"]
    with pytest.raises(Failed, match="the output of perf-tools"):
        perf_tools.events("ERROR: func ip_rcv not in available_filter_functions\n", "ip_rcv")
