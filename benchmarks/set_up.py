"""Compare the time to build veth_bridge with labkit and with `ip -batch`, to the same end state, and with the times of
redirects and netkit.

The reference is what a careful engineer would write for speed: one `ip -batch` for all namespaces, another for all
links, and one process chain for each namespace (nsenter, sh, `ip -batch`), which disables IPv6 and sets the address.
The namespaces have names in a private /run/netns, because ip requires names. Files are written before the clock starts,
and the results are compared after it has stopped.
"""

import contextlib
import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.promise import NotMeasuredError, Promise, at_most, inside, median, python
from labkit.measure import topologies
from labkit.measure.topologies import Spec, Topology
from labkit.measure.topologies.base import address
from labkit.measure.topologies.linux_datapaths import REDIRECTS, ROUTED
from labkit.system import netlink
from labkit.system.qemu import kernels

SIZES = {8: 7, 32: 5, 128: 3}  # number of pairs: repetitions of each way
BOUND = 1.0
BRIDGE, IP = "veth_bridge", "ip"
# The arms with BPF programs or another kind of cable, here and in a lab VM: at most so many times the time of a bridge.
HERE = tuple(name for name in REDIRECTS if name.startswith("veth"))
IN_A_VM = tuple(name for name in (*ROUTED, *REDIRECTS) if name.startswith("netkit"))
TO_BRIDGE = 2.0
VM_S = 600.0
LIMITS = {128: "at most 1.0 s on two shared virtual cores"}
NETNS = Path("/run/netns")
GONE_S = 60.0
IPV6 = "/proc/sys/net/ipv6/conf"


def promises(quick: bool) -> Iterator[Promise]:
    """Yield a promise for each size, with the absolute time of the largest for information, and for each redirect and
    netkit."""
    for pairs, repeats in SIZES.items():
        result = inside("benchmarks.set_up", pairs, 3 if quick else repeats, BRIDGE, IP)
        what = f"set-up of {pairs} pairs on veth_bridge"
        if result["differ"]:
            yield Promise(what, "", result["differ"], None, "the same end state", False)
            continue
        labkit_s, ip_s = median(result[BRIDGE]), median(result[IP])
        yield at_most(what, labkit_s, ip_s, "ip -batch", BOUND, LIMITS.get(pairs, ""))

    from labkit import live  # not in the process that measures

    words = (max(SIZES), 3 if quick else 5, BRIDGE)
    yield from _to_bridge(inside("benchmarks.set_up", *words, *HERE))
    if (kernel := netkit_kernel()) is None:
        yield Promise(
            "set-up on netkit", "not measured", more="no kernel that a lab VM can boot here has netkit"
        )
        return
    with live.build("veth", where=f"vm:{kernel}") as net:
        argv = python("-m", "benchmarks.set_up", *map(str, words), *IN_A_VM)
        yield from _to_bridge(json.loads(net.client0.run(*argv, timeout_s=VM_S)))


def _to_bridge(result: dict[str, Any]) -> Iterator[Promise]:
    bridge_s = median(result.pop(BRIDGE))
    for name, times in result.items():
        what = f"set-up of {max(SIZES)} pairs on {name}"
        yield at_most(what, median(times), bridge_s, BRIDGE, TO_BRIDGE)


def netkit_kernel() -> str | None:
    """Return the newest release in the store or in /boot that was built with netkit. None is fetched."""
    for each in reversed(kernels.installed()):
        build = each.image.with_name(f"config-{each.release}")
        if build.exists() and "CONFIG_NETKIT=y" in build.read_text().splitlines():
            return each.release
    return None


def main() -> None:
    """Build topologies (and one by "ip") alternately in an experiment's namespaces; print the seconds of each as
    JSON."""
    pairs, repeats, *names = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    NETNS.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "bench", NETNS], check=True)
    result: dict[str, Any] = {name: [] for name in names}
    states: dict[str, Any] = {}
    for number in range(repeats):
        for name in names[:: -1 if number % 2 else 1]:  # A B B A
            compare = IP in names and number == repeats - 1
            taken, states[name] = (_by_ip if name == IP else partial(_by_labkit, name))(pairs, compare)
            result[name].append(taken)
            all_gone()
    if IP in names:
        result["differ"] = difference(states[BRIDGE], states[IP])
    print(json.dumps(result))


def _by_labkit(name: str, pairs: int, compare: bool) -> tuple[float, Any]:
    begin = time.perf_counter()
    with topologies.build(name, Spec(pairs)) as topology:
        taken = time.perf_counter() - begin
        return taken, _state(_descriptors(topology), pairs) if compare else None


def _descriptors(topology: Topology) -> dict[str, str]:
    return {space.name: f"/proc/{os.getpid()}/fd/{space.fd}" for space in topology.namespaces}


def _by_ip(pairs: int, compare: bool) -> tuple[float, Any]:
    with tempfile.TemporaryDirectory() as folder:
        script = _script(pairs, Path(folder))
        begin = time.perf_counter()
        subprocess.run(["sh", "-e", script], check=True)
        taken = time.perf_counter() - begin
        names = sorted(path.name for path in NETNS.iterdir())
        state = _state({name: str(NETNS / name) for name in names}, pairs) if compare else None
        lines = "".join(f"netns del {name}\n" for name in names)
        subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True)
        return taken, state


def _script(pairs: int, folder: Path) -> Path:
    """Write the reference: a shell script, and the batch files that it reads."""
    ends = [
        (f"{role}{number}", address(4, side, number))
        for number in range(pairs)
        for side, role in ((1, "client"), (2, "server"))
    ]
    names = ["between", *(name for name, _ in ends)]
    (folder / "namespaces").write_text("".join(f"netns add {name}\n" for name in names))
    links = ["link set lo up", "link add bridge mtu 1500 up type bridge"]
    for number, (name, _) in enumerate(ends):
        peer = f"peer name eth0 mtu 1500 netns {name}"
        links.append(f"link add port{number} mtu 1500 master bridge up type veth {peer}")
    (folder / "links").write_text("\n".join(links) + "\n")
    script = [f"ip -batch {folder}/namespaces", _enter("between", "default", folder / "links")]
    for name, at in ends:
        (folder / name).write_text(f"link set lo up\nlink set eth0 up\naddr add {at} dev eth0\n")
        script.append(_enter(name, "default eth0", folder / name))
    (folder / "script").write_text("\n".join(script) + "\n")
    return folder / "script"


def _enter(name: str, without_ipv6: str, batch: Path) -> str:
    off = " ".join(f"echo 1 >{IPV6}/{one}/disable_ipv6;" for one in without_ipv6.split())
    return f"nsenter --net={NETNS}/{name} sh -c '{off} exec ip -batch {batch}'"


def _state(spaces: dict[str, str], pairs: int) -> Any:
    """Return the number of namespaces, and all links and addresses of the first pair, the last pair and between
    them."""
    seen: dict[str, Any] = {"count": len(spaces)}
    for name in ("client0", "server0", f"client{pairs - 1}", f"server{pairs - 1}", "between"):
        enter = ["nsenter", f"--net={spaces[name]}"]
        listed = subprocess.check_output([*enter, "ip", "-json", "-details", "address"])
        off = subprocess.check_output([*enter, "sh", "-c", f"head -n1 {IPV6}/*/disable_ipv6"], text=True)
        links = sorted((_link(one) for one in json.loads(listed)), key=lambda link: str(link["ifname"]))
        seen[name] = {"links": links, "ipv6 off": off}
    return seen


def _link(report: dict[str, Any]) -> dict[str, Any]:
    # Not operstate, because the kernel's link watch updates it with a delay.
    kept = {key: report.get(key) for key in ("ifname", "mtu", "master", "qdisc")}
    addresses = sorted(f"{one['local']}/{one['prefixlen']}" for one in report["addr_info"])
    return kept | {
        "kind": report.get("linkinfo", {}).get("info_kind"),
        "up": "UP" in report["flags"],
        "at": addresses,
    }


def difference(labkit: Any, ip: Any) -> str | None:
    """Return the first difference in words, or None."""
    for name in labkit:
        here, there = labkit[name], ip[name]
        if here == there:
            continue
        if name != "count" and here["ipv6 off"] == there["ipv6 off"]:
            pairs = itertools.zip_longest(here["links"], there["links"])
            here, there = next(pair for pair in pairs if pair[0] != pair[1])
        return f"{name}: {here} by labkit, {there} by ip"
    return None


def all_gone() -> None:
    """Wait until the kernel has removed all namespaces that were released before.

    The kernel removes them in order, some time after the last reference is gone, and pending removals would slow down
    the next build. So release one more namespace that contains one end of a veth: when it is removed, the other end
    disappears here.
    """
    (descriptor, inner), *_ = netlink.new_namespaces(1)
    outer = netlink.Netlink()
    peer = {"name": "probe", "index": 50, "netns": descriptor}
    with contextlib.closing(outer):
        outer.do(netlink.new_link("veth", "probe", up=False, peer=peer))
    inner.close()
    os.close(descriptor)
    deadline = time.monotonic() + GONE_S
    while "probe" in (name for _, name in socket.if_nameindex()):
        if time.monotonic() > deadline:
            raise NotMeasuredError(f"namespaces were not taken down within {GONE_S:.0f} s")
        time.sleep(0.005)


if __name__ == "__main__":
    main()
