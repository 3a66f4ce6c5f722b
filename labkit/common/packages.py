"""The programs that labkit starts: what is not possible without each, and its package for apt, dnf and pacman."""

import os
import platform
import shutil
from typing import NamedTuple

MANAGERS = {"apt": "apt install", "dnf": "dnf install", "pacman": "pacman -S"}


class Program(NamedTuple):
    """What is lost without the program, and its packages in Debian, Fedora and Arch Linux.

    "" is the same name as in Debian, None means that there is no package.
    """

    without_it: str
    apt: str
    dnf: str | None = ""
    pacman: str | None = ""


# The names for dnf and pacman are those of Fedora 42 and Arch Linux in 2025.
PROGRAMS = {
    "iperf3": Program("no TCP or UDP traffic, so no throughput", "iperf3"),
    "ping": Program("reachability is not checked and latency not measured", "iputils-ping", "iputils", "iputils"),
    "sockperf": Program("no requests and responses (protocol=udp_rr, tcp_rr)", "sockperf", "", None),
    "nginx": Program("no HTTP requests (protocol=http, http_close)", "nginx-light", "nginx", "nginx"),
    "wrk": Program("no HTTP requests (protocol=http, http_close)", "wrk", None),
    "ethtool": Program("rows have no offloads, so labkit does not notice when arms differ in them; no change by"
                       " offload", "ethtool"),
    "ip": Program("`labkit shell` cannot show the network, and rows lack the qdisc", "iproute2", "iproute"),
    "tc": Program("no queueing discipline can be set", "iproute2", "iproute-tc"),
    "unshare": Program("no experiment, because each has namespaces of its own", "util-linux"),
    "tcpdump": Program("captures cannot be viewed by hand; labkit itself does not need it", "tcpdump"),
    "nft": Program("no change by nftables or conntrack, no packet generator (searches for rates), and no"
                   " TRex server of labkit's own", "nftables"),
    "perf": Program("no profiles (observe=perf_record, perf_stat), so `labkit why` names no cause", "linux-perf",
                    "perf", "perf"),
    "bpftrace": Program("no times of functions (observe=function_times) on kernels without function_graph", "bpftrace"),
    "kprobe-perf": Program("no observe=kprobe, funcslower, tpoint", "perf-tools-unstable", None, None),
    "tshark": Program("captures cannot be analysed in depth by hand, and monitors have no display filter", "tshark",
                      "wireshark-cli", "wireshark-cli"),
    "dumpcap": Program("its cost is not measured beside that of other readers of an interface", "wireshark-common",
                       "wireshark-cli", "wireshark-cli"),
    "qemu-system-x86_64": Program("no guests, and no other kernel than this one", "qemu-system-x86"),
    "virtiofsd": Program("no lab VM (where=vm:KERNEL)", "virtiofsd"),
    "busybox": Program("no lab VM, no guest, and no address by DHCP", "busybox-static", "busybox", "busybox"),
    "modprobe": Program("the modules of a lab VM's kernel are not found", "kmod"),
    "depmod": Program("no kernel can be put into labkit's store", "kmod"),
    "ovs-vswitchd": Program("no topology with Open vSwitch can be built", "openvswitch-switch",
                            "openvswitch", "openvswitch"),
    "chromium": Program("figures are HTML only, not PNG and SVG", "chromium"),
    "pasta": Program("no user-mode network of rootless containers by pasta (topology=pasta)", "passt"),
    "slirp4netns": Program("no user-mode network of rootless containers by slirp4netns (topology=slirp4netns)",
                           "slirp4netns"),
    "rootlesskit": Program("no ports of rootless containers that rootlesskit publishes (topology=rootlesskit_builtin)",
                           "rootlesskit", None),
    "docker": Program("no Docker containers as endpoints", "docker.io", "moby-engine", "docker"),
    "podman": Program("no Podman containers as endpoints", "podman"),
    "crun": Program("no containers (endpoint=container), unless runc is there", "crun"),
    "runc": Program("no containers (endpoint=container), unless crun is there", "runc"),
    "ssh": Program("no experiment on other machines", "openssh-client", "openssh-clients", "openssh"),
}  # fmt: skip
# Programs that earlier releases have in another package: the first releases that do not, and that package.
EARLIER = {"virtiofsd": ({"debian": 13, "ubuntu": 24}, "qemu-system-common")}


def install(*names: str) -> str:
    """Return how these programs are installed: the command of apt where it is here, else those of dnf and pacman."""
    managers = ["apt"] if shutil.which("apt-get") else ["dnf", "pacman"]
    commands = []
    for manager in managers:
        packages = [_package(name, manager) for name in names]
        if None not in packages:
            commands.append(f"{MANAGERS[manager]} {' '.join(dict.fromkeys(filter(None, packages)))}")
    source = f"install {' and '.join(names)} from source (dnf and pacman have no package)"
    return " or ".join(commands) or source


def _package(name: str, manager: str) -> str | None:
    program = PROGRAMS[name]
    if manager == "apt" and name in EARLIER:
        since, package = EARLIER[name]
        return package if _older_than(since) else program.apt
    named: str | None = getattr(program, manager)
    return program.apt if named == "" else named


def _older_than(releases: dict[str, int]) -> bool:
    """Return whether this system is a release before the one that is named for it. An unknown system is a new one."""
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        return False
    number = system.get("VERSION_ID", "").partition(".")[0]
    return number.isdecimal() and int(number) < releases.get(system["ID"], 0)


def missing(argv0: str, how: str = "is not installed") -> str:
    """Return one sentence about a program that is missing: what is lost, and how it is installed."""
    name = os.path.basename(argv0)
    if name not in PROGRAMS:
        return f"the program {argv0} {how}: install it"
    return f"the program {argv0} {how} (without it: {PROGRAMS[name].without_it}): {install(name)}"
