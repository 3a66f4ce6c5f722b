"""Read every setting that may explain a difference between two measurements, as flat name-value pairs of strings.

A digest only shows that two machines differ; these settings show in what. They are current values, of the machine as
the calling process sees it (`machine_settings`), and of one network namespace (`namespace_settings`).
"""

import hashlib
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.common.errors import LabkitError
from labkit.system import libc, process
from labkit.system.machine import bpf
from labkit.system.machine.interfaces import features
from labkit.system.machine.printed import Printed, entries
from labkit.system.machine.programs import program

Settings = dict[str, str]

LONGEST = 300  # characters of a value
# States, counts and secrets, which differ between any two moments or boots.
VOLATILE = re.compile(
    r"kernel\.(random\.|ns_last_pid|pty\.nr|tainted|perf_event_max_sample_rate|perf_cpu_time_max|hostname|domainname"
    r"|cad_pid|keys\.|seccomp\.actions_avail|version|osrelease|ostype|usermodehelper|sem_next_id|msg_next_id|shm_next_id"
    r"|spl\.)|vm\.(stat_refresh|drop_caches|compact_memory)|net\.netfilter\.nf_conntrack_count"
    r"|net\.core\.netdev_rss_key|net\.ipv4\.(tcp_fastopen_key|route\.flush|neigh\..*\.gc_)"
    r"|net\.ipv6\.(route\.flush|conf\..*\.stable_secret)|net\.ipv6\.neigh\..*\.gc_"
)
# Fields of `ip -d link` that are irrelevant or differ every time.
STATES = frozenset((
    "ifindex", "link_index", "address", "broadcast", "permaddr", "link_netnsid", "operstate", "link", "ifname",
    "hello_timer", "tcn_timer", "topology_change_timer", "gc_timer", "bridge_id", "root_id", "root_port",
    "designated_bridge", "designated_root", "topology_change_ack", "config_pending", "port_no", "id", "flags", "no",
    "mcast_router", "portid", "phys_port_name", "timer", "topology_change_detected", "topology_change",
    "message_age_timer", "forward_delay_timer", "hold_timer", "designated_port", "root_path_cost", "master_index",
    "parentbus", "group_addr", "qdisc", "fdb_n_learned",
))  # fmt: skip
POLICIES = {0: "other", 1: "fifo", 2: "rr", 3: "batch", 5: "idle", 6: "deadline"}
# Of a cgroup. Its CPUs are in "CPUs allowed"; its file of them exists at other levels for another shell or service.
LIMITS = (
    "cpu.max", "cpu.weight", "cpu.cfs_quota_us", "cpu.shares", "memory.max", "memory.high", "memory.limit_in_bytes",
    "memory.kmem.tcp.limit_in_bytes",
)  # fmt: skip
PRELOADS = ("LD_PRELOAD", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "MALLOC_PERTURB_")
# Fields of a process's status that say what its system calls and its switches between programs cost.
STATUS = (
    "Seccomp", "Seccomp_filters", "Speculation_Store_Bypass", "SpeculationIndirectBranch", "THP_enabled",
)  # fmt: skip
MACHINE_FILES = {
    "transparent huge pages": "/sys/kernel/mm/transparent_hugepage/enabled",
    "huge page defragmentation": "/sys/kernel/mm/transparent_hugepage/defrag",
    "KSM": "/sys/kernel/mm/ksm/run",
    "CPUs online": "/sys/devices/system/cpu/online",
    "CPUs isolated": "/sys/devices/system/cpu/isolated",
    "SMT": "/sys/devices/system/cpu/smt/control",
    "no turbo": "/sys/devices/system/cpu/intel_pstate/no_turbo",
    "max_perf_pct": "/sys/devices/system/cpu/intel_pstate/max_perf_pct",
    "min_perf_pct": "/sys/devices/system/cpu/intel_pstate/min_perf_pct",
    "boost": "/sys/devices/system/cpu/cpufreq/boost",
    "idle driver": "/sys/devices/system/cpu/cpuidle/current_driver",
    "clocksource": "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "workqueue CPUs": "/sys/devices/virtual/workqueue/cpumask",
    "kernel command line": "/proc/cmdline",
    "preemption": "/sys/kernel/debug/sched/preempt",
    "tracer": "/sys/kernel/tracing/current_tracer",
    "trace events": "/sys/kernel/tracing/set_event",
    "kprobe events": "/sys/kernel/tracing/kprobe_events",
    "uprobe events": "/sys/kernel/tracing/uprobe_events",
}
FREQUENCIES = ("scaling_governor", "scaling_min_freq", "scaling_max_freq", "energy_performance_preference")
# Some kernels have these as sysctls, newer ones in debugfs.
SCHEDULER_FILES = (
    "base_slice_ns", "latency_ns", "min_granularity_ns", "idle_min_granularity_ns", "wakeup_granularity_ns",
    "migration_cost_ns", "nr_migrate", "tunable_scaling",
)  # fmt: skip
# Below /sys/class/net/NAME, and below its queues/NAME
OF_INTERFACE = ("gro_flush_timeout", "napi_defer_hard_irqs", "threaded", "tx_queue_len")
OF_QUEUE = ("rps_cpus", "rps_flow_cnt", "xps_cpus", "byte_queue_limits/limit_max", "tx_maxrate")
TUNED_MODULES = ("tcp_cubic", "tcp_bbr", "tcp_dctcp", "haltpoll", "bridge", "nf_conntrack", "veth", "tun")


def machine_settings() -> Settings:
    """Return the settings of the machine, of this process and of those that it starts. Takes about 30 ms."""
    result = {f"sysctl {name}": value for name, value in sysctls(Path("/proc/sys"), ("kernel", "vm", "net"))}
    result |= _texts(MACHINE_FILES.items())
    result |= _cpus(Path("/sys/devices/system/cpu"))
    result |= _scheduler(Path("/sys/kernel/debug/sched"))
    for module in TUNED_MODULES:
        files = sorted(Path("/sys/module", module, "parameters").glob("*"))
        result |= _texts((f"module parameter {module}.{file.name}", file) for file in files)
    for file in Path("/sys/kernel/mm/damon/admin/kdamonds").glob("[0-9]*/state"):
        if _text(file) == "on":
            result[f"DAMON {file.parts[-2]}"] = "on"
    for line in (_text(Path("/proc/modules"), 1 << 20) or "").splitlines():
        result[f"module {line.split()[0]}"] = "loaded"
    profilers = {
        f"perf events of {name}": f"{count} open" for name, count in bpf.perf_event_holders().items()
    }
    return result | _process() | bpf_settings() | profilers


def _cpus(top: Path) -> Settings:
    """Return the limits of each CPU's frequency, and its idle states that are disabled."""
    result: Settings = {}
    for cpu in sorted(top.glob("cpu[0-9]*")):
        result |= _texts((f"{cpu.name} {name}", cpu / "cpufreq" / name) for name in FREQUENCIES)
        for state in sorted(cpu.glob("cpuidle/state*")):
            if _text(state / "disable") not in ("0", None):
                result[f"{cpu.name} cpuidle {state.name}"] = "disabled"
    return result


def _scheduler(top: Path) -> Settings:
    """Return the scheduler's settings in debugfs, its features one by one."""
    result = _texts((f"scheduler {name}", top / name) for name in SCHEDULER_FILES)
    for word in (_text(top / "features", 1 << 14) or "").split():
        result[f"scheduler feature {word.removeprefix('NO_')}"] = "off" if word.startswith("NO_") else "on"
    return result


def bpf_settings() -> Settings:
    """Return the loaded BPF programs by kind and name, with their tags and where they are attached."""
    count: Counter[str] = Counter()
    words: dict[str, set[str]] = {}
    for one in bpf.programs():
        name = f"BPF program {one.kind} {one.name or one.tag}"
        count[name] += 1
        words.setdefault(name, set()).add(f"tag {one.tag}" + "".join(f", on {place}" for place in one.places))
    return {
        name: _truncated(
            f"{f'{count[name]} times ' if count[name] > 1 else ''}{'; '.join(sorted(words[name]))}"
        )
        for name in sorted(count)
    }


def sysctls(top: Path, groups: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each readable sysctl of these groups, without volatile ones."""
    # Paths are strings here, because making Path objects takes as long as reading the files.
    for group in groups:
        for folder, _folders, files in os.walk(top / group):
            for file in files:
                path = f"{folder}/{file}"
                name = path.removeprefix(f"{top}/").replace("/", ".")
                if not VOLATILE.match(name) and (value := _text(path)) is not None:
                    yield name, " ".join(value.split())


def _process() -> Settings:
    """Return what started programs inherit: CPUs, priority, cgroup limits, preloaded libraries."""
    policy = os.sched_getscheduler(0)
    result = {
        "CPUs allowed": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "nice": str(os.nice(0)),
        "scheduling policy": POLICIES.get(policy, str(policy)),
    }
    result |= {
        f"process {name}": value for name, value in process_status(Path("/proc/self/status"), STATUS).items()
    }
    result |= {
        f"environment {name}": _truncated(os.environ[name]) for name in PRELOADS if os.environ.get(name)
    }
    return result | cgroup_limits(cgroups("self"))


def process_status(file: Path, names: Iterable[str]) -> Settings:
    """Return these fields of a process's status (proc(5)) that the kernel has."""
    fields = dict(line.split(":", 1) for line in (_text(file, 1 << 14) or "").splitlines() if ":" in line)
    return {name: fields[name].strip() for name in names if name in fields}


def cgroups(process: int | str) -> str:
    """Return the cgroups of a process, as the kernel lists them (cgroups(7))."""
    return _text(Path(f"/proc/{process}/cgroup"), 1 << 16) or ""


def cgroup_limits(listed: str) -> Settings:
    result: Settings = {}
    for line in listed.splitlines():
        _number, controllers, path = line.split(":", 2)
        if (top := Path("/sys/fs/cgroup", controllers)).is_dir():
            result |= _cgroup(top, path, controllers)
    return result


def _cgroup(top: Path, path: str, controllers: str) -> Settings:
    """Return the CPU and memory limits of a cgroup and its parents, by level, because their names are often
    generated."""
    result: Settings = {}
    below = top
    of = f" {controllers}" if controllers else ""
    for level, part in enumerate(["", *filter(None, path.split("/"))]):
        below /= part
        result |= _texts((f"cgroup{of} level {level} {name}", below / name) for name in LIMITS)
    return result


def namespace_settings(netns: int) -> Settings:
    """Return the settings of a network namespace (a file descriptor). Takes about 50 ms.

    These are sysctls, interfaces with offloads, queues and queueing disciplines, filters, netfilter rules, packet
    sockets, routes, and the numbers of static neighbour and forwarding entries. What cannot be read is left out. The
    calling process must have one thread, because this forks.
    """
    # It imports netlink, which is not needed by those who import this module for something else.
    from labkit.system.machine import netfilter

    result = namespace_files(netns)
    prefix = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{netns}", "--"]
    printed = Printed(lambda name, *words: process.run([*prefix, program(name), *words]))
    for link in printed.links:
        name = str(link.get("ifname"))
        if name == "lo":
            continue
        result |= {f"{name} {key}": value for key, value in flat(link, STATES)}
        offloads = features(printed.text("ethtool", "-k", name))
        result |= {f"{name} offload {key}": "on" if on else "off" for key, on in offloads.items()}
        for side, text in printed.filters(name).items():
            text = re.sub(r"\bid \d+\b|jited", "", text)  # counters
            result |= {f"{name} filter {side or 'root'}": _truncated(" ".join(text.split()))} if text else {}
    for name in ("iptables", "ip6tables"):
        # Usually no table is loaded, and no program needs to start.
        if any(key.startswith(f"{name} ") for key in result):
            text = printed.text(f"{name}-legacy-save") or printed.text(f"{name}-save")
            result |= netfilter.iptables_tables(name, text)
    disciplines: dict[str, list[str]] = {}
    for name, own in printed.qdiscs.items():
        for one in own if name != "lo" else ():
            words = [one.get("kind", ""), one.get("parent", "root")]
            words += [f"{key} {value}" for key, value in flat(one.get("options", {}), frozenset())]
            disciplines.setdefault(name, []).append(" ".join(map(str, words)))
    result |= {f"{name} qdisc": _truncated("; ".join(sorted(all_of))) for name, all_of in disciplines.items()}
    classes = printed.text("tc", "class", "show")
    result |= {"traffic classes": _truncated(classes)} if classes else {}
    for what, command, in_order in (
        ("rules", "rule show", True), ("rules of IPv6", "-6 rule show", True),
        ("routes", "route show table all", False), ("XFRM policies", "xfrm policy", True),
    ):  # fmt: skip
        result |= listed(what, printed.text("ip", *command.split()), in_order)
    if any(name.endswith(" vlan_filtering") and value == "1" for name, value in result.items()):
        for one in printed.objects("bridge", "-j", "vlan", "show"):
            result[f"{one.get('ifname')} VLANs"] = vlans(one.get("vlans", []))
    neighbours = printed.objects("ip", "-j", "neighbour", "show", "nud", "permanent")
    static = Counter(f"{one.get('dev')} static neighbours" for one in neighbours)
    for one in printed.objects("bridge", "-j", "fdb", "show"):
        # Without a master these are the interface's own multicast addresses, which come and go.
        if one.get("state") in ("permanent", "static") and one.get("master"):
            static[f"{one.get('ifname')} static forwarding entries"] += 1
    return result | {name: str(count) for name, count in static.items()}


def listed(what: str, text: str, in_order: bool = True) -> Settings:
    """Return a list of the kernel, as `ip` prints it, as one setting: its entries, or their number and a digest.

    `in_order`: whether their order means something; routes of several interfaces come in any order.
    """
    # A link-local address is made of a MAC address, which is another one in each set-up.
    result = [one for one in entries(text) if not one.startswith("local fe80:")]
    if not result:
        return {}
    if not in_order:
        result.sort()
    if len(shown := "; ".join(result)) <= LONGEST:
        return {what: shown}
    digest = hashlib.sha256("\n".join(result).encode()).hexdigest()[:8]
    return {what: f"{len(result)} entries, digest {digest}"}


def vlans(report: Sequence[Mapping[str, Any]]) -> str:
    """Return the VLANs of a bridge's port, as `bridge -j vlan show` reports them: `1 PVID Egress Untagged; 5-9`."""
    words = []
    for one in report:
        last = f"-{one['vlanEnd']}" if "vlanEnd" in one else ""
        words.append(" ".join([f"{one.get('vlan')}{last}", *map(str, one.get("flags", []))]))
    return _truncated("; ".join(words))


def namespace_files(netns: int) -> Settings:
    """Return what files show in a namespace (a file descriptor); a forked copy of this process reads them there, with
    its own /sys. Empty if it may not."""
    from labkit.system.machine import netfilter  # before the copy is made

    def work(connection: socket.socket) -> None:
        libc.call("setns", netns, libc.CLONE_NEWNET)
        result = {f"sysctl {name}": value for name, value in sysctls(Path("/proc/sys"), ("net",))}
        result |= netfilter.rules()
        result |= packet_sockets(_text(Path("/proc/thread-self/net/packet"), 1 << 16) or "")
        result |= _queues()
        connection.sendall(json.dumps(result).encode())

    try:
        lines = process.Forked(work, [netns]).stop(10.0)
        read: Settings = json.loads(lines)
    except (LabkitError, ValueError):
        return {}
    return read


def packet_sockets(text: str) -> Settings:
    """Return the packet sockets, which captures use, by interface and protocol. text: /proc/net/packet."""
    sockets: Counter[str] = Counter()
    for line in text.splitlines()[1:]:
        _address, _references, _type, protocol, interface, *_ = line.split()
        with suppress(OSError):
            where = socket.if_indextoname(int(interface)) if int(interface) else "any interface"
            sockets[f"on {where} of protocol 0x{protocol}"] += 1
    words = [f"{count} times {name}" if count > 1 else name for name, count in sorted(sockets.items())]
    return {"packet sockets": _truncated("; ".join(words))} if words else {}


def _queues() -> Settings:
    """Return the queue settings from /sys.

    /sys is mounted again, because a mount shows the interfaces of the namespace in which it was mounted. That is for
    this process alone, which then ends.
    """
    result: Settings = {}
    with suppress(OSError):
        libc.call("unshare", libc.CLONE_NEWNS)
        libc.call("mount", b"none", b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)
        libc.call("mount", b"labkit", b"/sys", b"sysfs", 0, None)
        for link in (one for one in sorted(Path("/sys/class/net").iterdir()) if one.name != "lo"):
            result |= _texts((f"{link.name} {name}", link / name) for name in OF_INTERFACE)
            for queue in sorted(link.glob("queues/*")):
                result |= _texts((f"{link.name} {queue.name} {name}", queue / name) for name in OF_QUEUE)
    return result


def flat(value: Any, left_out: frozenset[str], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the innermost values of an object, each with the names above it joined by spaces."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in left_out:
                yield from flat(inner, left_out, f"{above} {name}".strip())
    elif isinstance(value, list):
        if value and isinstance(value[0], dict):
            for at, inner in enumerate(value):
                yield from flat(inner, left_out, f"{above} {at}".strip())
        else:
            yield above, _truncated(" ".join(map(str, value)))
    else:
        yield above, _truncated(str(value))


def _texts(files: Iterable[tuple[str, str | Path]]) -> Settings:
    """Return the texts of small files by name, without those that are empty or cannot be read."""
    return {name: text for name, path in files if (text := _text(path)) is not None}


def _text(path: str | Path, limit: int = LONGEST) -> str | None:
    """Return the text of a small file; None if it is empty or cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return _truncated(file.read(max(limit, 1 << 14)).strip(), limit) or None
    except OSError:
        return None


def _truncated(text: str, limit: int = LONGEST) -> str:
    return text if len(text) <= limit else f"{text[:limit]} …"
