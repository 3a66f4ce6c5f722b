"""Open vSwitch with DPDK: its program, its settings, and ports that are interfaces of the kernel.

There are neither huge pages nor a NIC for DPDK: its ports are packet sockets (the driver af_packet). A thread polls
them without a pause and takes a whole CPU. Sources: Documentation/intro/install/dpdk.rst of Open vSwitch,
doc/guides/nics/af_packet.rst of DPDK.
"""

import shutil
from pathlib import Path

from labkit.common.errors import LabkitError, Unsupported
from labkit.system import process

# Debian's and Ubuntu's, beside the one without DPDK.
PROGRAM = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
DRIVER = "net_af_packet"
# In other_config of Open_vSwitch; -m: MB.
SETTINGS = {"dpdk-init": "true", "dpdk-extra": "--no-huge --legacy-mem --no-pci --no-telemetry -m 512"}
VERSION_S = 10.0
REMEDY = (
    "install Debian's openvswitch-switch-dpdk with DPDK's driver af_packet and its memory pools (Debian:"
    " librte-net-af-packet*, librte-mempool-ring*); the machine's own Open vSwitch stays as it is"
)


def program() -> str:
    """Return the ovs-vswitchd that has DPDK. Raises Unsupported if there is none."""
    for name in (PROGRAM, "ovs-vswitchd"):
        path = name if Path(name).exists() else shutil.which(name)
        if path is not None and "DPDK" in _version(path):
            return path
    raise Unsupported(f"Open vSwitch has no DPDK here: {REMEDY}")


def _version(path: str) -> str:
    try:
        return process.output([path, "--version"], VERSION_S)
    except LabkitError:
        return ""
