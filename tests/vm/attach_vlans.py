"""Give a container interfaces in VLANs and one in ipvlan's layer 3 mode, as root of a test's own machine.

The container is the namespace of a sleeping program, and a fake docker reports its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from labkit.commands.attach import AttachRequest, attach
from labkit.common.errors import LabkitError

ENGINE = "#!/bin/sh\nexec cat {}\n"
# A NIC with VLANs 100 and 200 at its far end, and a bridge in VLAN 10. In layer 3 mode, nobody asks and answers ARP.
MADE = """
ip link add nic0 address 02:00:00:00:00:06 up type veth peer name far0 address 02:00:00:00:00:07
ip link set far0 up
ip address add 10.6.0.1/24 dev far0
ip neigh add 10.6.0.2 lladdr 02:00:00:00:00:06 dev far0
ip neigh add 10.6.0.1 lladdr 02:00:00:00:00:07 dev nic0
ip link add link far0 name far0.100 up type vlan id 100
ip link add link far0 name far0.200 up type vlan id 200
ip address add 10.100.0.1/24 dev far0.100
ip address add 10.200.0.1/24 dev far0.200
ip link add br0 up type bridge vlan_filtering 1
bridge vlan add dev br0 vid 10 self
ip link add link br0 name br0.10 up type vlan id 10
ip address add 10.10.0.1/24 dev br0.10
"""
UNREACHABLE = {"address": "1.2.3.4/24", "gateway": "9.9.9.9"}


def there() -> list[str]:
    """Return this machine's interfaces, without the near ends of cables, whose names are random."""
    report = json.loads(subprocess.check_output(["ip", "-j", "link"]))
    return sorted(link["ifname"] for link in report if not link["ifname"].startswith("lk"))


def attached(pid: int) -> list[tuple[str | None, int, list[str]]]:
    """Return for each kind the address, the exit code of ping, and the interfaces that exist."""
    result = []
    for kind, over, vlan in (("macvlan", "nic0", 100), ("ipvlan", "nic0", 200), ("veth", "br0", 10)):
        wanted = AttachRequest(kind, over, f"eth{vlan}", f"10.{vlan}.0.2/24", vlan=vlan)
        result.append((attach("web", wanted).address, pinged(pid, f"10.{vlan}.0.1"), there()))
    return result


def in_layer_3(pid: int) -> tuple[str | None, int, str]:
    """Return the address, the exit code of ping, and the mode of an ipvlan."""
    address = attach("web", AttachRequest("ipvlan", "nic0", "eth6", "10.6.0.2/24", l3=True)).address
    code = pinged(pid, "10.6.0.1")
    shown = subprocess.check_output([*inside(pid), "ip", "-j", "-d", "link", "show", "dev", "eth6"])
    return address, code, json.loads(shown)[0]["linkinfo"]["info_data"]["mode"]


def inside(pid: int) -> list[str]:
    return ["nsenter", f"--target={pid}", "--net"]


def pinged(pid: int, address: str) -> int:
    ping = ["ping", "-n", "-c1", "-w20", address]
    return subprocess.run([*inside(pid), *ping], stdout=subprocess.DEVNULL).returncode


def refused() -> list[tuple[str, list[str]]]:
    """Return the error and the existing interfaces, for a VLAN that has a device and for one that has none."""
    result = []
    for wanted in (
        AttachRequest("macvlan", "nic0", vlan=100, **UNREACHABLE),
        AttachRequest("macvlan", "nic0", vlan=300, **UNREACHABLE),
        AttachRequest("macvlan", "nic0", vlan=300, mtu_bytes=9000),
    ):
        try:
            attach("web", wanted)
        except LabkitError as error:
            result.append((str(error), there()))
    return result


def report() -> dict[str, Any]:
    """Create everything, then remove the container."""
    for line in MADE.split("\n"):
        subprocess.run(line.split() or ["true"], check=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(["unshare", "--net", "sleep", "1000"]) as container,
    ):
        try:
            while Path(f"/proc/{container.pid}/comm").read_text() != "sleep\n":
                time.sleep(0.05)
            pid, engine = Path(folder, "pid"), Path(folder, "docker")
            pid.write_text(str(container.pid))
            engine.write_text(ENGINE.format(pid))
            engine.chmod(0o755)
            os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
            before = there()
            vlans = {"before": before, "attached": attached(container.pid), "refused": refused()}
            return {**vlans, "layer 3": in_layer_3(container.pid)}
        finally:
            container.kill()
