"""The programs that labkit starts: what is not possible without each, and its package for apt, dnf and pacman."""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

MANAGERS = {"apt": "apt install", "dnf": "dnf install", "pacman": "pacman -S"}


class Program(NamedTuple):
    """What is lost without the program, and its packages in Debian, Fedora and Arch Linux.

    "" is the same name as in Debian, None means that there is no package.
    """

    lost: str
    apt: str
    dnf: str | None = ""
    pacman: str | None = ""


# The names for dnf and pacman are those of Fedora 42 and Arch Linux in 2025.
PROGRAMS = {
    "iperf3": Program("no TCP or UDP traffic, so no throughput", "iperf3"),
    "ping": Program("reachability is not checked and latency not measured", "iputils-ping", "iputils", "iputils"),
    "ethtool": Program("rows lack the offloads, so arms are not compared in them", "ethtool"),
    "ip": Program("`labkit shell` cannot show the network, and rows lack the qdisc", "iproute2", "iproute"),
    "tc": Program("no queueing discipline can be set", "iproute2", "iproute-tc"),
    "unshare": Program("no experiment, because each has namespaces of its own", "util-linux"),
    "tcpdump": Program("captures cannot be viewed by hand; labkit itself does not need it", "tcpdump"),
    "nft": Program("no packet filter can be loaded from a file", "nftables"),
    "perf": Program("no profiles and no counters on the command line", "linux-perf", "perf", "perf"),
    "bpftrace": Program("no one-line BPF programs", "bpftrace"),
    "kprobe-perf": Program("no calls of a kernel function (observe=kprobe)", "perf-tools-unstable", None, None),
    "tshark": Program("captures cannot be analysed in depth by hand, and monitors have no display filter", "tshark",
                      "wireshark-cli", "wireshark-cli"),
    "dumpcap": Program("the experiment monitor_cost lacks this reader", "wireshark-common",
                       "wireshark-cli", "wireshark-cli"),
    "qemu-system-x86_64": Program("no guests, and no other kernel than this one", "qemu-system-x86"),
    "virtiofsd": Program("a guest cannot share this machine's files",
                         "virtiofsd (before Debian 13: qemu-system-common)", "virtiofsd", "virtiofsd"),
    "busybox": Program("no lab VM, no guest, and no address by DHCP", "busybox-static", "busybox", "busybox"),
    "modprobe": Program("the modules of a lab VM's kernel are not found", "kmod"),
    "depmod": Program("no kernel can be put into labkit's store", "kmod"),
    "ovs-vswitchd": Program("no topology with Open vSwitch can be built", "openvswitch-switch",
                            "openvswitch", "openvswitch"),
    "chromium": Program("figures are HTML only, not PNG and SVG", "chromium"),
    "docker": Program("no Docker containers as endpoints", "docker.io", "moby-engine", "docker"),
    "podman": Program("no Podman containers as endpoints", "podman"),
    "crun": Program("OCI containers need runc", "crun"),
    "runc": Program("OCI containers need crun", "runc"),
    "ssh": Program("no experiment on other machines", "openssh-client", "openssh-clients", "openssh"),
}  # fmt: skip


def install(*names: str) -> str:
    """Return how these programs are installed: the command of apt where it is here, else those of dnf and pacman."""
    managers = ["apt"] if shutil.which("apt-get") else ["dnf", "pacman"]
    commands = []
    for manager in managers:
        packages = [_package(PROGRAMS[name], manager) for name in names]
        if None not in packages:
            commands.append(f"{MANAGERS[manager]} {' '.join(dict.fromkeys(filter(None, packages)))}")
    return " or ".join(commands) or "install it from source, because dnf and pacman have no package of it"


def _package(program: Program, manager: str) -> str | None:
    package: str | None = getattr(program, manager)
    return program.apt if package == "" else package


def missing(argv0: str, how: str = "is not here") -> str:
    """Return one sentence about a program that is missing: what is lost, and how it is installed."""
    name = os.path.basename(argv0)
    if name not in PROGRAMS:
        return f"the program {argv0} {how}: install it"
    return f"the program {argv0} {how} (without it: {PROGRAMS[name].lost}): {install(name)}"
