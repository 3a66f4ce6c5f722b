"""Find the differences between the two sides of `labkit why`, requested or not.

It compares settings by name and value, kernel, tools, limits and BPF programs. Differences are evidence; they are no
reason to refuse a comparison.
"""

import contextlib
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.analysis import load
from labkit.analysis.why import code_paths
from labkit.analysis.why.selection import ProfiledPoint
from labkit.common import existing_names, run_folder
from labkit.common.errors import BadInput
from labkit.common.switch_options import OPTIONS, USUAL

ABSENT = "absent"
# Columns that describe the machine of a row; the peer's columns have the prefix peer_.
COLUMNS = (
    "kernel", "kernel_build", "kernel_config_digest", "cpu", "microcode", "cpus_count", "accelerator", "machine",
    "iperf3", "qdisc", "endpoint", "guest_kernel", "guest_accelerator", "guest_cpus_count", "guest_vhost",
    "container_runtime",
)  # fmt: skip
MACHINE = COLUMNS[:8]
# Settings that can affect packets or CPU time. The others are listed last and are never named as a cause.
RELEVANT = re.compile(
    r"sysctl (net\.|kernel\.sched|kernel\.(numa_balancing|timer_migration|nmi_watchdog|watchdog|perf_event|kptr"
    r"|bpf_stats|soft_watchdog|unprivileged_bpf)|vm\.(min_free|zone_reclaim|nr_hugepages|percpu|compaction|watermark"
    r"|overcommit|swappiness|numa))|BPF|qdisc|filter|offload|\bmtu\b|nftables|tables|rps_|xps_|(?<![a-z])gro(?!up)|gso|tso|xdp|txqlen"
    r"|queue|packet sockets"
    r"|CPUs|nice|scheduling|cgroup .*(cpu|memory\.)|cpufreq|scaling_|huge|SMT|turbo|boost|idle driver"
    r"|scheduler |cpuidle|energy_|perf_pct|DAMON|VLANs|executable|[sS]eccomp|process (Speculation|THP)"
    r"|clocksource|tracer|perf events|trace events|[ku]probe events|preemption|mitigation|routes|rules|XFRM|module"
    r"|environment|threaded|napi_defer|traffic classes|promiscuity|KSM|kernel command line"
    r"|^(peer_)?(kernel\w*|cpu\w*|accelerator|machine|iperf3|endpoint|guest\w*|container\w*|version of iperf3)$"
)
# Settings that by themselves affect neither CPU time nor packets. systemd loads such BPF programs for its services.
# Older runs have a file of cgroups that exists at other levels where labkit started from another shell; "CPUs allowed"
# has its value.
IDLE = re.compile(
    r"cpuset\.cpus\.effective"
    r"|sysctl net\.(unix|mptcp|netfilter\.nf_log|ipv4\.(ping_group_range|tcp_available|tcp_allowed"
    r"|tcp_orphan_retries|igmp|icmp|route\.|fwmark_reflect)|ipv6\.(icmp|route\.))|digest|tcp_child_ehash"
    r"|BPF program (cgroup_(device|sysctl|sockopt)|syscall|ext)\b"
)
# Offloads that the kernel switches with another one, by the names of ethtool -k (net/core/dev.c, netdev_fix_features):
# no segmentation without checksums and scatter-gather. A group has the name of the feature that the user sets.
_SEGMENTATION = (
    r"tcp-segmentation-offload|generic-segmentation-offload|tx-(\w+-)*segmentation|tx-udp-\w+-segmentation"
)
FOLLOWING = {
    "tx-checksumming": re.compile(rf"tx-checksum-\S+|{_SEGMENTATION}|scatter-gather|tx-scatter-gather\S*"),
    "scatter-gather": re.compile(rf"tx-scatter-gather\S*|{_SEGMENTATION}|tx-gso-\S+"),
    "tcp-segmentation-offload": re.compile(r"tx-tcp\S*-segmentation"),
    "generic-receive-offload": re.compile(r"rx-gro\S*"),
    "rx-checksumming": re.compile(r"rx-gro-hw|large-receive-offload"),
}
UNLIMITED = "unlimited"  # the value of a cgroup's limit that limits nothing
_NO_LIMIT = re.compile(
    r".*cgroup .*(cpu\.max: max .*|cpu\.weight: 100|quota_us: -1|cpu\.shares: 1024|memory\.\w+: max"
    r"|memory\..*limit_in_bytes: 92233720368547\d+)"
)
# Every run has these, except older runs and those on kernels that lack them.
_ALWAYS = re.compile(
    r"process \w+|scheduler .*|module parameter .*|cpu\d+ (scaling_min_freq|energy_performance_preference)"
    r"|(max|min)_perf_pct|\S+ (nice|scheduling policy|Seccomp|executable)|rules of IPv6|nftables .+ set .+"
)
_TIMES = re.compile(r"^\d+ times ")  # how many services have the same BPF program
# What a function was most likely called for comes first; much of the rest follows from it.
_PURPOSES = tuple(
    re.compile(rf"function ({one})")
    for one in (
        r"cgroup ",  # a limit explains more than the program that a function started beside it
        r"programs$",
        r"packet sockets$",
        r"(?!sysctl ).*(filter|qdisc|tables)",
        r"(?!sysctl |.*offload)",
        r"(?!sysctl )",
        "",
    )
)
_MTU_OF_IPV6 = re.compile(r"function sysctl net\.ipv6\.conf\.(.+)\.mtu")
_INTERFACE_SETTINGS = re.compile(r"(number of )?(routes|rules)\b|(function )?packet sockets")
_INTERFACE = re.compile(r"(\.(?:conf|neigh)\.)(?!all\b|default\b)[^.]+(?=\.)")
_CONF = re.compile(r"\.conf\.(all|default|\*)\.")
RULES = re.compile(r"(nftables|ip6?tables) ")
# What the name of an effect has before the recorded one, and recorded names that are others.
_KIND = re.compile(r"^(?:(function|big_tcp|tc_filter|tc_bpf) |machine_(?=sysctl ))")
_RECORDED = {
    "mtu_bytes": "mtu", "txqueuelen": "txqlen",
    **{f"filters {hook}": f"filter {hook}" for hook in ("ingress", "egress", "root")},
}  # fmt: skip
_PLAIN = re.compile(r"-?\d+|on|off")
_NUMBER = re.compile(r"\b(client|server|br|veth|leaf|spine|p|port|router)\d+\b")


@dataclass(frozen=True)
class Setting:
    """A setting that differs: its name, its left and right values, and its places (machine, client, server …).

    requested: whether the experiment varied it on request. outside: whether it is a sysctl of the machine's own
    network namespace, while those of the experiment have the same value on both sides.
    """

    name: str
    left: str
    right: str
    places: tuple[str, ...]
    requested: bool = False
    outside: bool = False

    @property
    def can_affect_result(self) -> bool:
        """Return whether the setting can affect packets or CPU time of the experiment."""
        return self.relevant and not self.outside

    @property
    def relevant(self) -> bool:
        """Return whether the setting can affect packets or CPU time."""
        if self.name.startswith("module "):  # most modules do not touch the packets of others
            return bool(self.paths)
        return self.requested or (bool(RELEVANT.search(self.name)) and not IDLE.search(self.name))

    @property
    def concerns_machine(self) -> bool:
        """Return whether it is the kernel or the machine itself: another one has other code and other settings."""
        return not self.requested and self.name.removeprefix("peer_").removeprefix("guest_") in MACHINE

    @property
    def description(self) -> str:
        """Return `sysctl net.core.x (client, server): 0 → 1`."""
        where = f" ({', '.join(self.places)})" if self.places and "machine" not in self.places else ""
        return f"{self.name}{where}: {self.left} → {self.right}"

    @property
    def paths(self) -> list[code_paths.Path]:
        """Return the known code paths that the setting changes."""
        # The values of these have the names of interfaces, which say nothing about code.
        values = "" if _INTERFACE_SETTINGS.match(self.name) else f" {self.left} {self.right}"
        return code_paths.paths_of_setting(f"{self.name}:{values}")


def differences(point: ProfiledPoint) -> list[Setting]:
    """Return all settings that differ between the two sides: requested ones, then relevant ones, then the rest.

    The kernel and the machine come before their settings, because other kernels have other defaults.
    """
    parameters = _requested_settings(point)
    built = [built_topology(point, at) for at in (0, 1)]
    alike = built[0] == built[1] and all(one.name != "endpoint" for one in parameters)
    existing = any(map(existing_names.is_network, built))
    both = [_settings(rows) for rows in point.rows[:2]]
    # Topologies differ in their interfaces, and older runs recorded less, so only settings of both sides are compared,
    # and the rules of a network that is there already: whoever made it may have forgotten them.
    common = both[0].keys() & both[1].keys()
    recorded = [{place for place, _ in one} for one in both]

    def is_compared(place: str, name: str) -> bool:
        may_lack = alike or (existing and RULES.match(name) is not None)
        return (place, name) in common or (may_lack and all(place in places for places in recorded))

    both = [{key: value for key, value in one.items() if is_compared(*key)} for one in both]
    result: dict[tuple[str, str, str], list[str]] = {}
    for place, name in sorted(both[0].keys() | both[1].keys()):
        one, other = (side.get((place, name), ABSENT) for side in both)
        if {one, other} <= {ABSENT, UNLIMITED}:  # a program in another cgroup without limits does not differ
            continue
        if ABSENT in (one, other) and _ALWAYS.fullmatch(name):
            continue
        if one != other and not (place == "row" and ABSENT in (one, other)):
            result.setdefault((name, one, other), []).append(place)
    rest = [
        Setting(name, one, other, tuple(place for place in places if place != "row"))
        for (name, one, other), places in result.items()
    ]
    inside = [
        {_CONF.sub(".conf.*.", name) for place, name in side if place not in ("machine", "row")}
        for side in both
    ]
    # A sysctl may differ in the machine's own network namespace only, although every other namespace has it.
    rest = [
        replace(one, outside=all(one.name in names for names in inside))
        if one.name.startswith("sysctl net.") and one.places == ("machine",)
        else one
        for one in _once(rest)
    ]
    rest = [one for one in rest if not any(_follows(one, requested) for requested in parameters)]

    def rank(one: Setting) -> tuple[bool, bool, int, bool, str]:
        return (not one.can_affect_result, not one.relevant, *_order(one.name), one.name)

    return [*parameters, *sorted(rest, key=rank)]


def _follows(one: Setting, requested: Setting) -> bool:
    """Return whether a setting is the changed one as recorded, or an offload that follows it."""
    if not set(one.places) <= set(requested.places):
        return False
    name = _KIND.sub("", requested.name)
    if name.endswith("nftables ruleset") and one.name.startswith("nftables "):
        return True  # a ruleset has all chains and sets of its place
    if f" {one.name}".endswith(f" {_CONF.sub('.conf.*.', generic(_RECORDED.get(name, name)))}"):
        values = [text.split() for side in (one, requested) for text in (side.left, side.right)]
        # Another interface of the place may have another value; long texts are recorded in another form.
        return values[:2] == values[2:] or not all(_PLAIN.fullmatch(word) for each in values for word in each)
    return _is_switched_with(one, requested)


def _is_switched_with(one: Setting, cause: Setting) -> bool:
    """Return whether a setting is an offload that the kernel switches with another one (netdev_fix_features)."""
    own, feature = (setting.name.rpartition(" ")[2] for setting in (one, cause))
    pattern = FOLLOWING.get(feature)
    return pattern is not None and set(one.places) <= set(cause.places) and bool(pattern.fullmatch(own))


def _order(name: str) -> tuple[int, bool]:
    """Return the place of a column among COLUMNS, the peer's after ours; settings come after all columns."""
    own = name.removeprefix("peer_")
    return (COLUMNS.index(own) if own in COLUMNS else len(COLUMNS)), own != name


def _requested_settings(point: ProfiledPoint) -> list[Setting]:
    """Return the requested differences: parameters, topology, endpoint kind, and changes."""
    result = []
    names = [built_topology(point, at) for at in (0, 1)]
    if names[0] != names[1]:
        result += _topology(point, *names)
    for name in ("endpoint", *(one for one in load.GROUP if one not in load.HOST)):
        one, other = (_value(rows, name) for rows in point.rows[:2])
        if one != other:
            result.append(Setting(name, one, other, (), requested=True))
    changed = [_changed_settings(rows) for rows in point.rows[:2]]
    places: dict[tuple[str, str, str], list[str]] = {}
    for name, at in dict.fromkeys([*changed[0], *changed[1]]):
        sides = [each.get((name, at)) for each in changed]
        before = next(one[0] for one in sides if one is not None)
        after = [before if one is None else one[1] for one in sides]
        if after[0] != after[1]:
            places.setdefault((name, after[0], after[1]), []).extend([at] if at else [])
    result += [Setting(*key, tuple(sorted(at)), requested=True) for key, at in places.items()]
    return [one for one in result if not any(_is_switched_with(one, cause) for cause in result)]


def _topology(point: ProfiledPoint, left: str, right: str) -> list[Setting]:
    """Return the difference of two topologies: the options of a switch if only these differ, else the names."""
    result = []
    if _value(point.rows[0], "datapath") == _value(point.rows[1], "datapath") != ABSENT:
        for name, one in OPTIONS.items():
            usual = "default" if USUAL[name] is None else str(USUAL[name])
            before, after = (_value(rows, one.column or name, usual) for rows in point.rows[:2])
            if before != after:
                result.append(Setting(name, before, after, (), requested=True))
    return result or [Setting("topology", left, right, (), requested=True)]


def built_topology(point: ProfiledPoint, at: int) -> str:
    """Return the topology that was built for a side, without its changes and endpoint kind."""
    rows = point.rows[:2][at]
    names = list(rows["built_topology"].dropna()) if "built_topology" in rows else []
    return str(names[0]) if names else point.sides[:2][at].topology


def _changed_settings(rows: pd.DataFrame) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the effects of an arm's changes, as the kernel reported them: (setting, place) to (value before, value
    after)."""
    result: dict[tuple[str, str], tuple[str, str]] = {}
    for effects in rows["changed"].dropna() if "changed" in rows else ():
        for one in effects if isinstance(effects, list) else ():
            kind, setting = str(one.get("kind") or ""), str(one.get("setting") or "")
            name = setting if kind in setting else f"{kind} {setting}".strip()
            # A row has None for a parameter that is not given.
            unset = "default" if kind == "parameter" else "None"
            values = (one.get("before"), one.get("after"))
            before, after = (unset if value in (None, "None") else str(value) for value in values)
            # Several steps of a change may set the same: from the first one's value to the last one's.
            key = name, str(one.get("at") or "")
            result[key] = (result[key][0] if key in result else before, after)
    for name, at in list(result):  # the MTUs of IPv6 that followed those of their interfaces
        if (of := _MTU_OF_IPV6.fullmatch(name)) and (f"function {of[1]} mtu", at) in result:
            del result[name, at]
    return dict(sorted(result.items(), key=lambda one: _purpose(one[0][0])))


def _purpose(name: str) -> int:
    """Return the place of a function's effect among all; the steps of other changes have an order, which they keep."""
    return next((at for at, one in enumerate(_PURPOSES) if one.match(name)), 0)


def _value(rows: pd.DataFrame, name: str, absent: str = ABSENT) -> str:
    column = rows.get(name)
    return absent if column is None or column.isna().all() else " and ".join(load.values(column))


def _once(settings: Iterable[Setting]) -> list[Setting]:
    """Remove duplicate settings.

    BPF programs that the machine's settings list with their places are not repeated as the rows have them. A sysctl
    that a namespace inherits from the machine becomes one setting with both places.
    """
    result: dict[tuple[str, str, str], Setting] = {}
    for one in settings:
        same = next((key for key in result if key[0] == one.name and ABSENT in key[1:]), None)
        one = Setting(_CONF.sub(".conf.*.", one.name), one.left, one.right, one.places)
        if one.name.startswith("BPF") and same is not None:
            if "on " in f"{one.left} {one.right}":
                del result[same]
            else:
                continue
        key = (one.name, one.left, one.right)
        places = dict.fromkeys([*(result[key].places if key in result else ()), *one.places])
        result[key] = Setting(one.name, one.left, one.right, tuple(places))
    return list(result.values())


def _settings(rows: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return a side's settings by place and name. A setting that varies between rounds has all its values, joined by
    `or`."""
    result: dict[tuple[str, str], dict[str, None]] = {}

    def take(place: str, settings: Any, kind: str = "") -> None:
        for name, value in settings.items() if isinstance(settings, Mapping) else ():
            if value is not None:
                is_limit = "cgroup " in str(name)
                text = UNLIMITED if is_limit and _NO_LIMIT.fullmatch(f"{name}: {value}") else str(value)
                text = _TIMES.sub("", text) if str(name).startswith("BPF program ") else text
                result.setdefault((place, generic(f"{kind}{name}")), {})[text] = None

    def take_all(name: str, column: pd.Series) -> None:
        for value in load.values(column.dropna()):
            take("row", {name: value})

    for folder in sorted(set(rows["folder"].dropna())):
        environment = _object(Path(folder) / "environment.json")
        take("machine", environment.get("settings"))
        take("machine", environment.get("mitigations"), "mitigation ")
        take("machine", environment.get("tools"), "version of ")
        if "settings" not in environment:  # the run is of an older labkit
            take("machine", environment.get("sysctls"), "sysctl ")
            take("namespace", environment.get("namespace_sysctls"), "sysctl ")
    for folder, name in rows[["folder", "settings"]].dropna().drop_duplicates().itertuples(index=False):
        for place, settings in _object(run_folder.artefact(folder, name)).items():
            if place == "machine" and any(key[0] == "machine" and key[1].startswith("BPF") for key in result):
                settings = {one: value for one, value in settings.items() if ("machine", one) not in result}
            take(generic(place), settings)
    for name in COLUMNS:
        for column in (name, f"peer_{name}"):
            if column in rows:
                take_all(column, rows[column])
    if "settings" not in rows or rows["settings"].isna().all():
        take_all("sysctl_digest", rows["sysctl_digest"])
    return {key: " or ".join(sorted(values)) for key, values in result.items()}


def _object(path: Path) -> dict[str, Any]:
    """Return a JSON object of a run's folder, gzipped or not, or an empty one if it cannot be read.

    Unknown values must not look like absent ones.
    """
    with contextlib.suppress(BadInput):
        return run_folder.read_object(path)
    return {}


@functools.cache
def generic(name: str) -> str:
    """Return a name without a pair's number, and a sysctl's name without its interface."""
    return _NUMBER.sub(r"\1", _INTERFACE.sub(r"\1*", name))
