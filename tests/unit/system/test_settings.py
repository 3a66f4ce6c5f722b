"""The record of the machine's settings, and of other programs, in a run."""

import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sandbox import output, until

from labkit.analysis.why import code_paths
from labkit.system import netlink, process
from labkit.system.machine import bpf, load_programs, netfilter, settings
from labkit.system.machine.printed import Printed

pytestmark = pytest.mark.long


def test_settings_of_files(tmp_path: Path) -> None:
    for name, text in {"net/core/rmem_max": "212992\n", "kernel/random/boot_id": "x", "kernel/ns_last_pid": "7",
                       "net/ipv4/tcp_mem": "1\t2\t3\n"}.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    result = dict(settings.sysctls(tmp_path, ("kernel", "net")))
    assert result == {"net.core.rmem_max": "212992", "net.ipv4.tcp_mem": "1 2 3"}
    # The CPUs are left out: the file is there at other levels for another shell, and "CPUs allowed" has them.
    for name, text in {"cpu.max": "50000 100000", "memory.limit_in_bytes": "9223372036854771712",
                       "memory.kmem.tcp.limit_in_bytes": "4096", "cpuset.cpus.effective": "0-1"}.items():  # fmt: skip
        (tmp_path / "user" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "user" / name).write_text(f"{text}\n")
    assert settings._cgroup(tmp_path, "/user", "") == {
        "cgroup level 1 cpu.max": "50000 100000",
        "cgroup level 1 memory.limit_in_bytes": "9223372036854771712",
        "cgroup level 1 memory.kmem.tcp.limit_in_bytes": "4096",
    }
    (tmp_path / "status").write_text("Name:\ta\nSeccomp:\t2\nSeccomp_filters:\t1\nThreads:\t1\n")
    result = settings.process_status(tmp_path / "status", settings.STATUS)
    assert result == {"Seccomp": "2", "Seccomp_filters": "1"}
    for name, text in {
        "cpu/cpu0/cpufreq/scaling_governor": "powersave", "cpu/cpu0/cpufreq/scaling_min_freq": "800000",
        "cpu/cpu0/cpufreq/scaling_cur_freq": "1234567", "cpu/cpu0/cpuidle/state1/disable": "0",
        "cpu/cpu0/cpuidle/state2/disable": "1", "sched/base_slice_ns": "3000000",
        "sched/features": f"PLACE_LAG NO_HRTICK {'X' * 300} NO_LAST_ONE",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert settings._cpus(tmp_path / "cpu") == {
        "cpu0 scaling_governor": "powersave",
        "cpu0 scaling_min_freq": "800000",
        "cpu0 cpuidle state2": "disabled",
    }
    result = settings._scheduler(tmp_path / "sched")
    assert result["scheduler base_slice_ns"] == "3000000"
    features = {name.removeprefix("scheduler feature "): value for name, value in result.items()}
    assert (features["PLACE_LAG"], features["HRTICK"], features["LAST_ONE"]) == ("on", "off", "off")
    assert settings._scheduler(tmp_path / "none") == {}


def test_settings_are_stable() -> None:
    """Every comparison would report a setting that changes by itself."""
    first, second = settings.machine_settings(), settings.machine_settings()
    differ = {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
    assert not {name for name in differ if not name.startswith(("BPF", "perf events"))}  # of other tests
    assert first["CPUs allowed"]
    assert "process Seccomp" in first
    assert any(name.startswith("sysctl net.ipv4.") for name in first)
    assert gzip.compress(str(first).encode())


def test_reports_become_flat_settings() -> None:
    report = {"ifname": "eth0", "mtu": 1500, "linkinfo": {"info_data": {"stp": 0}}, "flags": ["UP"]}
    assert dict(settings.flat(report, settings.STATES)) == {"mtu": "1500", "linkinfo info_data stp": "0"}
    assert dict(settings.flat({"a": [1, 2]}, frozenset())) == {"a": "1 2"}
    # Sockets of one interface and protocol count together; one whose interface is gone is left out.
    head = "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n"
    lines = [f"000000007e6b8b3f 3      3    {protocol}   {at}     1 0      0      12345\n"
             for protocol, at in (("0003", 0), ("0800", 1), ("0003", 0), ("0003", 99999))]  # fmt: skip
    words = "2 times on any interface of protocol 0x0003; on lo of protocol 0x0800"
    assert settings.packet_sockets(head + "".join(lines)) == {"packet sockets": words}
    assert settings.packet_sockets(head) == {}
    report = [{"vlan": 1, "flags": ["PVID", "Egress Untagged"]}, {"vlan": 5, "vlanEnd": 9}]
    assert settings.vlans(report) == "1 PVID Egress Untagged; 5-9"


def test_filters_are_asked_for_where_a_queueing_discipline_takes_them() -> None:
    """A plain ingress qdisc would answer for all places with the same ones."""
    asked = list[str]()
    each = {"a": ["noqueue"], "b": ["ingress", "noqueue"], "c": ["clsact", "fq_codel"], "d": ["mq", "htb"]}
    qdiscs = [{"dev": name, "kind": kind} for name, kinds in each.items() for kind in kinds]

    def run(*words: str) -> process.Ended:
        asked.append(" ".join(words))
        fails = words[-1] == "egress"
        return process.Ended(
            words, int(fails), json.dumps(qdiscs) if "qdisc" in words else " text\n", "", 0.0
        )

    printed = Printed(run)
    assert [printed.filters(name, "-s") for name in [*each, "gone"]] == [
        {}, {"ingress": "text"}, {"ingress": "text", "egress": "", "": "text"}, {"": "text"}, {},
    ]  # fmt: skip
    shown = ("b ingress", "c ingress", "c egress", "c", "d")
    assert asked == ["tc -j qdisc show", *(f"tc -s filter show dev {words}" for words in shown)]


@pytest.mark.needs("root", "perf")
def test_profiler_of_another_program_is_a_setting() -> None:
    """Its interrupts cost CPU time that no sample shows, and the program itself uses little."""
    events = lambda: settings.machine_settings().get("perf events of perf", "0 open")  # noqa: E731
    seen = [events()]
    command = ["perf", "record", "--all-cpus", "--output", "/dev/null", "--", "sleep", "30"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as perf:
        try:
            assert until(lambda: seen.append(events()) or seen[-1] != seen[0], 20, 0.1)
        finally:
            perf.terminate()
    assert int(seen[-1].split()[0]) >= 1
    assert code_paths.paths_of_setting(f"perf events of perf: absent {seen[-1]}")[0].name == "sampling (perf)"


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def expression(name: str, data: bytes) -> bytes:
    return attribute(1, attribute(1, name.encode() + b"\0") + attribute(2, data))


def listed_rules(namespace: Any, ruleset: str) -> dict[str, str]:
    """Return what `rules` lists in a namespace with these rules."""
    with netlink.inside(namespace[0]):
        process.output(["nft", ruleset])
        return netfilter.rules()


@pytest.mark.needs("root", "namespaces", "nft")
def test_rules_that_change_all_the_time_are_listed(namespace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = netfilter.Netlink._answers
    monkeypatch.setattr(
        netfilter.Netlink, "_answers", lambda *given, **named: (answers(*given, **named)[0], True)
    )
    result = listed_rules(namespace, "add table ip t; add chain ip t c; add rule ip t c drop")
    assert result["nftables ip t c"].startswith("1 rule, digest ")


@pytest.mark.needs("root", "namespaces", "nft")
def test_only_the_first_elements_of_a_large_set_are_read(
    namespace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netfilter, "MAX_MESSAGES", 3)
    elements = ", ".join(f"10.0.{n >> 8}.{n & 255}" for n in range(9000))
    result = listed_rules(
        namespace,
        f"add table ip t; add set ip t few {{ type ipv4_addr; elements = {{ 10.0.0.1 }}; }};"
        f" add set ip t many {{ type ipv4_addr; elements = {{ {elements} }}; }}",
    )
    assert result["nftables ip t set few"].startswith("1 element, digest ")
    count, _, words = result["nftables ip t set many"].partition(" ")
    assert (0 < int(count) < 9000, words[:14]) == (True, "first elements")


def test_rules_behind_a_counter_are_told_apart() -> None:
    """Only the counter's numbers are left out: `counter drop` and `counter accept` are different rules."""

    def rule(packets: int, verdict: int, limit: int = 9) -> bytes:
        count = attribute(1, struct.pack(">Q", 60 * packets)) + attribute(2, struct.pack(">Q", packets))
        quota = attribute(1, struct.pack(">Q", limit)) + attribute(4, struct.pack(">Q", packets))
        counted = expression("counter", count) + expression("quota", quota)
        return counted + expression("immediate", bytes([verdict]))

    drop = netfilter._without_counters(rule(1, 0))
    assert drop == netfilter._without_counters(rule(77, 0))
    assert drop != netfilter._without_counters(rule(1, 1))
    assert drop != netfilter._without_counters(rule(1, 0, limit=8))
    plain = expression("immediate", b"\0")
    assert netfilter._without_counters(plain) == plain


SPACE = """{setup}
exec {python} -c 'import json, os
from labkit.system.machine import settings
print(json.dumps(settings.namespace_settings(os.open("/proc/self/ns/net", os.O_RDONLY))))'"""
TABLE = """nft 'table ip t {{ set s {{ type ipv4_addr; elements = {{ {} }}; }}
chain c {{ type filter hook input priority 0; policy {}; ip saddr @s drop; udp dport {{ 53, {} }} drop; }}; }}'"""
USUAL = TABLE.format("192.0.2.1", "accept", 99)
# With another MAC address, and so with another link-local one, every time.
VETH = """echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
ip link add v0 up type veth peer name v1; ip link set v1 up; sleep 0.1"""


SETS = {
    "nftables ip t set s": TABLE.format("192.0.2.2", "accept", 99),
    "nftables ip t set __set0": TABLE.format("192.0.2.1", "accept", 98),
    "nftables ip t c": TABLE.format("192.0.2.1", "drop", 99),
}
RULE = {"rules of IPv6": f"{VETH}\nip -6 rule add to 2001:db8::/32 unreachable"}


@pytest.mark.needs("root", "namespaces", "nft")
@pytest.mark.parametrize(("setup", "others"), [(USUAL, SETS), (VETH, RULE)])
def test_settings_outside_of_rules_themselves(setup: str, others: dict[str, str]) -> None:
    """What a set contains, a chain's policy, and rules of IPv6 decide as much as rules; nothing else differs."""

    def found(setup: str) -> Any:
        script = SPACE.format(setup=setup, python=sys.executable)
        return json.loads(output(["unshare", "--net", "sh", "-ec", script], 60))

    usual = found(setup)
    assert found(setup) == usual
    for name, other in others.items():
        seen = found(other)
        assert {key for key in usual if usual[key] != seen.get(key)} == {name}


def test_saved_rules_of_iptables() -> None:
    text = """# Generated by iptables-save v1.8.9 on Wed Nov 25 07:00:00 2026
*filter
:INPUT ACCEPT [12:3456]
:FORWARD DROP [0:0]
-A INPUT -p udp -m comment --comment "a \\"b\\" c" -j DROP
-A INPUT -j ACCEPT
COMMIT
*raw
:PREROUTING ACCEPT [1:2]
COMMIT
"""
    result = netfilter.iptables_tables("iptables", text)
    assert list(result) == ["iptables filter", "iptables raw"]
    assert result["iptables filter"].startswith("2 rules, digest ")
    assert result["iptables raw"].startswith("0 rules, digest ")
    later = text.replace("07:00:00", "08:00:00").replace("[12:3456]", "[99:9999]").replace("a \\", "other \\")
    assert netfilter.iptables_tables("iptables", later) == result
    assert netfilter.iptables_tables("iptables", text.replace("-j DROP", "-j ACCEPT")) != result
    assert netfilter.iptables_tables("iptables", text.replace("FORWARD DROP", "FORWARD ACCEPT")) != result


def test_a_list_of_the_kernel_is_one_setting() -> None:
    """Each policy of XFRM has three lines, and 5,000 rules are no 5,000 settings."""
    policy = "src 10.0.0.0/8 dst 10.1.0.0/16\n\tdir out\n\ttmpl src 1.1.1.1 dst 2.2.2.2 proto esp\n"
    assert settings.listed("XFRM policies", policy) == {"XFRM policies": " ".join(policy.split())}
    many = "".join(f"{number}:\tfrom 10.0.0.{number % 250} lookup main\n" for number in range(5000))
    [text] = settings.listed("rules", many).values()
    assert text.startswith("5000 entries, digest ")
    assert settings.listed("rules", many.replace("10.0.0.7", "10.0.1.7"))["rules"] != text
    assert settings.listed("routes", "") == {}


def test_unknown_programs_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(bpf, "call", refused)
    assert bpf.programs() == []


def test_settings_of_a_running_program() -> None:
    """Somebody changes the priority of a program that already runs."""
    code = "open('/proc/self/comm', 'w').write('a-niced-program'); print(flush=True); import time; time.sleep(30)"
    command = [sys.executable, "-P", "-c", code]
    here = {os.stat("/proc/self/ns/net").st_ino: "client0"}
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        try:
            program.stdout.readline()
            before = load_programs.program_settings(here)["client0"]
            os.setpriority(os.PRIO_PROCESS, program.pid, 7)
            os.sched_setscheduler(program.pid, os.SCHED_BATCH, os.sched_param(0))
            after = load_programs.program_settings(here)["client0"]
        finally:
            program.kill()
    name = "a-niced-program"
    assert {key: value for key, value in after.items() if key.startswith(name) and value != before[key]} == {
        f"{name} nice": "7",
        f"{name} scheduling policy": "batch",
    }
    assert after[f"{name} Seccomp"].isdigit()
    assert after[f"{name} executable"].startswith(f"{Path(sys.executable).resolve()} digest ")
    assert load_programs.program_settings({1: "elsewhere"}) == {}
