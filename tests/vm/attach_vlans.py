"""Give a container interfaces in VLANs, as root of a test's own machine.

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
# A NIC with VLANs 100 and 200 at its far end, and a bridge in VLAN 10.
MADE = """
ip link add nic0 up type veth peer name far0
ip link set far0 up
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
        address = attach(
            "web", AttachRequest(kind, over, f"eth{vlan}", f"10.{vlan}.0.2/24", vlan=vlan)
        ).address
        ping = ["ping", "-n", "-c1", "-w20", f"10.{vlan}.0.1"]
        done = subprocess.run(["nsenter", f"--target={pid}", "--net", *ping], stdout=subprocess.DEVNULL)
        result.append((address, done.returncode, there()))
    return result


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
            return {"before": before, "attached": attached(container.pid), "refused": refused()}
        finally:
            container.kill()
