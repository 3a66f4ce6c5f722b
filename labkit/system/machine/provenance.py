"""Describe the machine: briefly for rows, in full for environment.json."""

import functools
import gzip
import hashlib
import json
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import labkit
from labkit.common import errors, extensions
from labkit.common.errors import LabkitError
from labkit.system import process
from labkit.system.machine import settings
from labkit.system.machine.programs import program, versions

# Sysctls that are known to affect throughput. A star matches all names that this kernel has.
SYSCTLS = {
    "net.core": (
        "rmem_default", "rmem_max", "wmem_default", "wmem_max", "optmem_max", "netdev_max_backlog", "netdev_budget*",
        "dev_weight", "default_qdisc", "rps_sock_flow_entries", "bpf_jit_enable", "bpf_jit_harden", "busy_poll",
        "busy_read", "gro_normal_batch", "high_order_alloc_disable", "somaxconn", "fb_tunnels_only_for_init_net",
    ),
    "net.ipv4": (
        "tcp_mem", "tcp_rmem", "tcp_wmem", "tcp_congestion_control", "tcp_slow_start_after_idle", "tcp_timestamps",
        "tcp_sack", "tcp_dsack", "tcp_window_scaling", "tcp_no_metrics_save", "tcp_mtu_probing", "tcp_moderate_rcvbuf",
        "tcp_adv_win_scale", "tcp_autocorking", "tcp_ecn", "tcp_limit_output_bytes", "tcp_notsent_lowat",
        "tcp_min_tso_segs", "tcp_tso_win_divisor", "tcp_early_demux", "udp_early_demux", "ip_early_demux",
        "udp_mem", "udp_rmem_min", "udp_wmem_min",
    ),
    "net.bridge": ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables"),
    "net.netfilter": ("nf_conntrack_max",),
    "kernel": ("sched_*", "numa_balancing", "timer_migration", "nmi_watchdog"),
}  # fmt: skip

TOOLS = ("iperf3", "ip", "ethtool", "ping", "uname")
CPU = Path("/sys/devices/system/cpu")

_HYPERVISORS = {
    "KVM": "kvm", "Microsoft": "hyperv", "VMware": "vmware", "Xen": "xen", "User-mode Linux": "uml",
    "Oracle": "virtualbox", "innotek GmbH": "virtualbox", "Windows Subsystem for Linux": "wsl",
}  # fmt: skip


def describe() -> dict[str, Any]:
    """Return the machine columns of a row: strings and counts, None if unknown. Takes 20 ms, later calls 2 ms."""
    config, cpu, info = kernel_config(), lscpu(), _read("/proc/cpuinfo") or ""
    return {
        "kernel": os.uname().release,
        "kernel_build": os.uname().version,
        "kernel_config_digest": digest(config) if config else None,
        "cpu": cpu.get("Model name") or _first(r"model name\s*: (.+)", info) or platform.machine(),
        "microcode": _first(r"microcode\s*: (\S+)", info),
        "cpus_count": os.cpu_count(),
        "accelerator": accelerator(cpu, _read("/sys/class/dmi/id/sys_vendor")),
        "machine": machine_id(),
        "sysctl_digest": digest(json.dumps(sysctls(), sort_keys=True)),
        "labkit": labkit.__version__,
        "git_revision": git_revision(),
    }


def details() -> dict[str, Any]:
    """Return the full description of the machine for environment.json."""
    from labkit.system import netlink  # not needed by those who import this module for something else

    memory = _read("/proc/meminfo") or ""
    total, pages = _first(r"MemTotal:\s+(\d+) kB", memory), _first(r"HugePages_Total:\s+(\d+)", memory)
    smt = _read(CPU / "smt/active")
    return {
        "kernel_version": os.uname().version,
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "lscpu": lscpu(),
        "memory_bytes": int(total) * 1024 if total else None,
        "hugepages_count": int(pages) if pages else None,
        "kernel_command_line": _read("/proc/cmdline"),
        "mitigations": {path.name: _read(path) for path in sorted((CPU / "vulnerabilities").glob("*"))},
        "clocksource": _read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        "cpufreq_governor": _read(CPU / "cpu0/cpufreq/scaling_governor"),
        "cpufreq_driver": _read(CPU / "cpu0/cpufreq/scaling_driver"),
        "smt": None if smt is None else smt == "1",
        "sysctls": sysctls(),
        "settings": settings.machine_settings(),
        "tools": {
            **versions(TOOLS),
            "python": platform.python_version(),
            "pyroute2": netlink.pyroute2_version,
            **extensions.packages(),
        },
    }


def _read(path: str | Path) -> str | None:
    """Return a small kernel file without surrounding space; None if missing, unreadable or empty."""
    try:
        return Path(path).read_text(errors="replace").strip() or None
    except OSError:
        return None


def _first(pattern: str, text: str) -> str | None:
    """Return the group of the first line that starts with the pattern."""
    match = re.search(f"^{pattern}", text, re.MULTILINE)
    return match[1] if match else None


def digest(content: str | bytes) -> str:
    """Return the first 12 hexadecimal digits of SHA-256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:12]


@functools.cache
def kernel_config() -> str | None:
    """Return the build configuration of the running kernel, None if it is not available."""
    try:
        with gzip.open("/proc/config.gz", "rt") as file:
            return file.read()
    except OSError:
        return _read(f"/boot/config-{os.uname().release}")


@functools.cache
def lscpu() -> dict[str, str]:
    """Return the fields of lscpu(1); empty if it is not installed."""
    try:
        return lscpu_fields(process.output([program("lscpu"), "-J"]))
    except (LabkitError, ValueError):
        return {}


@errors.reading("the output of lscpu")
def lscpu_fields(text: str) -> dict[str, str]:
    """Flatten the output of `lscpu -J`, which is nested in newer versions."""
    result: dict[str, str] = {}

    def walk(entries: Iterable[dict[str, Any]]) -> None:
        for entry in entries:
            if entry.get("data") is not None:
                result[entry["field"].rstrip(":")] = entry["data"]
            walk(entry.get("children", ()))

    walk(json.loads(text)["lscpu"])
    return result


def accelerator(cpu: dict[str, str], maker: str | None) -> str:
    """Return what runs this kernel: "none" (bare metal), "kvm", "tcg", "uml", "vmware", "hyperv", "xen" … or
    "unknown".

    `cpu` are the fields of lscpu, `maker` is /sys/class/dmi/id/sys_vendor. lscpu does not know TCG's CPUID signature:
    it reports no hypervisor, or VMware because QEMU answers at VMware's port. It does know KVM's. Therefore a QEMU
    machine without KVM is emulated. Only x86 has CPUID.
    """
    model, vendor = cpu.get("Model name", ""), cpu.get("Hypervisor vendor", "none")
    if cpu.get("Vendor ID") == "User Mode Linux" or model == "UML":
        return "uml"
    if "TCG" in model or "TCG" in vendor:
        return "tcg"
    if ("QEMU" in model or maker == "QEMU") and vendor != "KVM":
        return "tcg" if re.match(r"x86|i\d86", cpu.get("Architecture", "")) else "unknown"
    if vendor != "none":
        return _HYPERVISORS.get(vendor, vendor.lower())
    return "unknown" if "hypervisor" in cpu.get("Flags", "").split() else "none"


def machine_id() -> str | None:
    """Return 12 digits that identify this machine anonymously; None if it has no identity."""
    identity = _read("/etc/machine-id")
    if identity is None or identity == "uninitialized":
        names = ("product_uuid", "sys_vendor", "product_name", "product_serial", "board_name", "board_serial")
        identity = "\n".join(filter(None, (_read(f"/sys/class/dmi/id/{name}") for name in names)))
    return digest(f"labkit machine {identity}") if identity else None


def sysctls() -> dict[str, str | None]:
    """Return the values of SYSCTLS; None for a sysctl that this kernel or namespace lacks."""
    result: dict[str, str | None] = {}
    for group, names in SYSCTLS.items():
        folder = Path("/proc/sys", *group.split("."))
        for name in names:
            for one in sorted(at.name for at in folder.glob(name)) if "*" in name else [name]:
                value = _read(folder / one)
                result[f"{group}.{one}"] = None if value is None else " ".join(value.split())
    return result


@functools.cache
def git_revision() -> str | None:
    """Return the commit of labkit's checkout, with "+dirty" if its packages were changed; None outside a checkout.

    Remote copies of labkit receive it in LABKIT_GIT_REVISION, because git is slow under emulation or missing.
    """
    if (report := os.environ.get("LABKIT_GIT_REVISION")) is not None:
        return report or None
    return revision_of(Path(labkit.__file__).resolve().parents[1])


def revision_of(root: Path) -> str | None:
    """Return the commit of a checkout as `git_revision` does; the checkout may belong to another user."""
    if not (root / ".git").exists():
        return None
    git = [
        "git", "--no-optional-locks", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(root),
    ]  # fmt: skip
    packages = ["labkit", *extensions.own_packages()]
    try:
        text = process.output([*git, "status", "--porcelain=v2", "--branch", "--", *packages], timeout_s=2)
    except LabkitError:
        return None
    commit = _first(r"# branch\.oid ([0-9a-f]{12})", text)
    if commit is None:  # "(initial)": there is no commit yet
        return None
    return commit + ("+dirty" if any(not line.startswith("#") for line in text.splitlines()) else "")
