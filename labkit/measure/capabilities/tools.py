"""Programs that labkit or its users start."""

import importlib.util
import re
import sys

from labkit.common import packages
from labkit.common.errors import Unsupported
from labkit.measure.capabilities.base import Capability
from labkit.measure.traffic.trex import server

OLDEST = {"iperf3": (3, 12)}  # earlier versions lack the sums of both ends in the JSON of UDP runs

TOOLS = (
    "iperf3", "ping", "sockperf", "nginx", "wrk", "ethtool", "ip", "tcpdump", "nft", "perf", "bpftrace", "tshark",
    "qemu-system-x86_64", "virtiofsd", "ovs-vswitchd", "chromium", "docker", "podman", "crun", "runc",
)  # fmt: skip
ONLY_CLIENT = {"docker": "its daemon was not checked"}


def tools(result: dict[str, str | None]) -> list[Capability]:
    """Return every tool with its version from machine.versions(TOOLS); one that is too old counts as missing."""
    return [*(_tool(name, result[name]) for name in TOOLS), _trex()]


def _tool(name: str, version: str | None) -> Capability:
    lost = packages.PROGRAMS[name].without_it
    if version is None:
        return Capability("tools", name, False, "not installed", lost, packages.install(name))
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
        what, _, way = str(error).partition(": ")
        return Capability("tools", "trex", False, what.removeprefix("TRex is "), lost, way)
    client = importlib.util.find_spec("lbr_trex_client") is not None and sys.version_info < (3, 12)
    if not client:
        lost = "labkit has no client for TRex"
        way = "pip install 'labkit[trex]'" if sys.version_info < (3, 12) else "run labkit with Python 3.11"
        return Capability("tools", "trex", False, str(place), lost, way)
    return Capability("tools", "trex", True, str(place))
