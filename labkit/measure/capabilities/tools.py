"""Programs that labkit or its users start."""

from __future__ import annotations

import importlib.util
import re

from labkit.common.errors import Unsupported
from labkit.measure.capabilities.base import Capability
from labkit.measure.traffic.trex import server

OLDEST = {"iperf3": (3, 12)}  # earlier versions lack the sums of both ends in the JSON of UDP runs

# program: (what is lost without it, Debian package)
TOOLS = {
    "iperf3": ("no TCP or UDP traffic, so no throughput", "iperf3"),
    "ping": ("reachability is not checked and latency not measured", "iputils-ping"),
    "ethtool": ("rows lack the offloads, so arms are not compared in them", "ethtool"),
    "ip": ("`labkit shell` cannot show the network, and rows lack the qdisc", "iproute2"),
    "tcpdump": ("captures cannot be viewed by hand; labkit itself does not need it", "tcpdump"),
    "nft": ("no packet filter can be loaded from a file", "nftables"),
    "perf": ("no profiles and no counters on the command line", "linux-perf"),
    "bpftrace": ("no one-line BPF programs", "bpftrace"),
    "tshark": ("captures cannot be analysed in depth by hand; labkit itself does not need it", "tshark"),
    "qemu-system-x86_64": ("no guests, and no other kernel than this one", "qemu-system-x86"),
    "virtiofsd": ("a guest cannot share this machine's files", "virtiofsd (before Debian 13: qemu-system-common)"),
    "ovs-vswitchd": ("no topology with Open vSwitch can be built", "openvswitch-switch"),
    "chromium": ("figures are HTML only, not PNG and SVG", "chromium"),
    "docker": ("no Docker containers as endpoints", None),
    "podman": ("no Podman containers as endpoints", "podman"),
    "crun": ("OCI containers need runc", "crun"),
    "runc": ("OCI containers need crun", "runc"),
}  # fmt: skip
ONLY_CLIENT = {"docker": "its daemon was not checked"}


def tools(result: dict[str, str | None]) -> list[Capability]:
    """Return every tool with its version from machine.versions(TOOLS); one that is too old counts as missing."""
    return [*(_tool(name, result[name]) for name in TOOLS), _trex()]


def _tool(name: str, version: str | None) -> Capability:
    lost, package = TOOLS[name]
    if version is None:
        remedy = f"apt install {package}" if package else "install it as its manual says"
        return Capability("tools", name, False, "not installed", lost, remedy)
    oldest = OLDEST.get(name)
    if oldest and tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < oldest:
        wanted = ".".join(map(str, oldest))
        return Capability(
            "tools", name, False, f"{version} is too old", lost, f"install {name} {wanted} or newer"
        )
    version_text = "unknown version, because it printed none in time" if version == "?" else version
    return Capability("tools", name, True, "; ".join(filter(None, (version_text, ONLY_CLIENT.get(name)))))


def _trex() -> Capability:
    """Look for TRex where labkit starts it from. It is not started here, because that takes two interfaces."""
    try:
        place = server.find()
    except Unsupported as error:
        lost = "no load by TRex on labkit's own topologies; a TRex server elsewhere can be used (server=HOST)"
        return Capability("tools", "trex", False, "not installed", lost, str(error).partition(": ")[2])
    client = importlib.util.find_spec("lbr_trex_client") is not None
    if not client:
        lost = "labkit has no client for TRex"
        return Capability("tools", "trex", False, str(place), lost, "pip install 'labkit[trex]'")
    return Capability("tools", "trex", True, str(place))
