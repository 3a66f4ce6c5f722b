"""Programs that labkit, or who looks around with it, starts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from labkit.measure.capabilities.base import Capability

OLDEST = {"iperf3": (3, 12)}  # its JSON of UDP runs has the sums of both ends only from there on

# program: what is lost without it, and the Debian package to recommend
TOOLS = {
    "iperf3": ("no TCP or UDP traffic, so no throughput", "iperf3"),
    "ping": ("reachability is not checked and latency not measured", "iputils-ping"),
    "ethtool": ("rows do not tell the offloads, and arms are not compared in them", "ethtool"),
    "ip": ("`labkit shell` has nothing to look around with, and rows do not tell the qdisc", "iproute2"),
    "tcpdump": ("packets cannot be looked at by hand; labkit captures and decodes without it", "tcpdump"),
    "nft": ("no packet filter can be loaded from a file", "nftables"),
    "perf": ("no profiles and no counters on the command line", "linux-perf"),
    "bpftrace": ("no one-line BPF programs", "bpftrace"),
    "tshark": ("captures cannot be looked into by hand as deeply; labkit decodes headers without it", "tshark"),
    "qemu-system-x86_64": ("no guests, and no other kernel than this one", "qemu-system-x86"),
    "virtiofsd": ("a guest cannot share this machine's files", "virtiofsd (before Debian 13: qemu-system-common)"),
    "ovs-vswitchd": ("no topology with Open vSwitch can be built", "openvswitch-switch"),
    "chromium": ("figures are HTML only, not PNG and SVG", "chromium"),
    "docker": ("no containers of Docker's as endpoints", None),
    "podman": ("no containers of Podman's as endpoints", "podman"),
    "crun": ("OCI containers are run by runc only, if that is there", "crun"),
    "runc": ("OCI containers are run by crun only, if that is there", "runc"),
}  # fmt: skip
ONLY_CLIENT = {"docker": "whether its daemon runs was not asked"}


def tools(result: dict[str, str | None]) -> list[Capability]:
    """Every tool with its version, as machine.versions(TOOLS) finds it; one too old is as good as none."""
    return [*(_tool(name, result[name]) for name in TOOLS), _trex()]


def _tool(name: str, version: str | None) -> Capability:
    lost, package = TOOLS[name]
    if version is None:
        remedy = f"apt install {package}" if package else "install it as its manual says"
        return Capability("tools", name, False, "not here", lost, remedy)
    oldest = OLDEST.get(name)
    if oldest and tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < oldest:
        wanted = ".".join(map(str, oldest))
        return Capability(
            "tools", name, False, f"{version} is too old", lost, f"install {name} {wanted} or newer"
        )
    version_text = "its version is not known, it did not print one in time" if version == "?" else version
    return Capability("tools", name, True, "; ".join(filter(None, (version_text, ONLY_CLIENT.get(name)))))


def _trex() -> Capability:
    """TRex is unpacked, not installed: it is looked for where its manual puts it, and not started (it seizes NICs)."""
    places = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted(Path("/opt").glob("trex/*"))
    for place in places:
        if (place / "_t-rex-64").exists():
            return Capability("tools", "trex", True, str(place))
    lost = "no traffic of millions of flows or packets a second, and none at an exact rate"
    return Capability(
        "tools",
        "trex",
        False,
        "not here",
        lost,
        "unpack a release of TRex into /opt/trex (no package has it)",
    )
