"""How packets are processed: offloads, CPUs, quotas, captures, programs in the path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from labkit.common import existing_names, units
from labkit.measure.existing.checks import drops
from labkit.measure.existing.checks.evidence import Evidence
from labkit.measure.existing.checks.findings import LITTLE, MOST, MUCH, POSSIBLE, PRESENT, SEEN, SOME, Finding
from labkit.measure.existing.path import SHOW_PROGRAMS
from labkit.system import netlink
from labkit.system.machine import cpu_quota
from labkit.system.netlink import taps
from labkit.system.netlink.packet_sockets import PacketSockets

# Offloads that an interface of any kind has on: a single missing one makes packets smaller or costs copies.
WANTED = {
    "tcp-segmentation-offload": ("tso", MUCH), "generic-segmentation-offload": ("gso", MUCH),
    "scatter-gather": ("sg", MUCH), "tx-checksumming": ("tx", MUCH),
}  # fmt: skip
KINDS = {"veth", "netkit", "macvlan", "ipvlan", "vxlan", "vlan", "geneve"}
SMALL_GSO_BYTES, FEW_SEGMENTS = 1 << 15, 8
BUSY = 0.8
FROZEN = {"freezer.state": "FROZEN", "cgroup.events": "frozen 1"}  # of a paused container's cgroup, v1 and v2
# As what the kernel counts packets that programs drop; others' drops have no reason of their own.
DROPPED_AS = {
    f"{name}{side}": f"TC_{reason}"
    for name in ("tc", "tcx")
    for side, reason in (("", "INGRESS"), (" (egress)", "EGRESS"))
}


def offloads(seen: Evidence) -> Iterator[Finding]:
    """Offloads that are off although interfaces of the kind have them, and small limits of segmentation."""
    # A program carries frames on where the kernel shows no way: a switch in user space needs them whole.
    carried = [
        path.domains[-1] for path, probe in seen.directions if probe.arrives and path.domains and not path.complete
        and not any(one.cause == "BPF program" for one in path.problems)
    ]  # fmt: skip
    for place in (one for one in seen.places if not any(one in places for places in carried)):
        kind, details = place.link.kind, place.details
        features = seen.features(place) if kind in KINDS or (kind is None and place.name != "lo") else {}
        off = [name for name in WANTED if features.get(name) is False]
        if kind is None:  # a NIC may lack the others by nature
            off = [name for name in off if name == "generic-segmentation-offload"]
            off += ["generic-receive-offload"] if features.get("generic-receive-offload") is False else []
        if kind == "vxlan" and features.get("generic-receive-offload") is False:
            off.append("generic-receive-offload")
        if off:
            words = " ".join(f"{WANTED.get(name, ('gro', MUCH))[0]} on" for name in off)
            # A change is at an end of the copy; where an offload is on already, it would have no effect.
            end = seen.ends.get(place.space)
            yield Finding(
                cause="offload off", what=f"{units.listed(off)} of {place.name} {'is' if len(off) == 1 else 'are'} off",
                where=str(place), weight=max(WANTED.get(name, ("gro", MUCH))[1] for name in off),
                cost="TCP passes in packets of one MTU instead of 64 KB",
                undo=place.space.command(f"ethtool -K {place.name} {words}"),
                change=f"offload: offload {words} at {end}" if end else None,
            )  # fmt: skip
        size, segments = details.get("gso_max_size") or 65536, details.get("gso_max_segs") or 65535
        if kind in KINDS and (size < SMALL_GSO_BYTES or segments <= FEW_SEGMENTS):
            yield Finding(
                cause="small segmentation limit",
                what=f"{place.name} takes packets of at most {size} bytes and {segments} segments for segmentation",
                where=str(place), weight=MUCH,
                undo=place.space.command(f"ip link set {place.name} gso_max_size 65536 gso_max_segs 65535"),
            )  # fmt: skip


def checksums(seen: Evidence) -> Iterator[Finding]:
    """Packets that arrived with a wrong checksum, as a broken offload with tunnels makes them."""
    for space in seen.spaces:
        for group in ("Tcp", "Udp", "Icmp", "Udp6", "Icmp6"):
            if count := seen.mib(space, group, "InCsumErrors"):
                yield Finding(
                    cause="wrong checksums", certainty=SEEN, weight=MOST, where=space.name,
                    what=f"{units.counted(count, 'packet')} of {group} arrived with a wrong checksum during the check:"
                    " an offload of the sender may leave it out",
                    change="tx: offload tx off at both",
                )  # fmt: skip


def quotas(seen: Evidence) -> Iterator[Finding]:
    """CPU quotas of the cgroups of both ends, and how long they stopped their threads."""
    for end in seen.ends:
        if end.pid is None:
            continue
        try:
            quota, share = cpu_quota.quota_cpus(end.pid), cpu_quota.throttled_share(end.pid)
        except OSError:  # it has just ended
            continue
        stopped_s = seen.throttled_s.get(end.name, 0.0)
        if quota is None or (stopped_s < 0.01 and share < 0.01 and quota >= 1):
            continue
        during = f", {units.duration(stopped_s)} of them during the check" if stopped_s >= 0.05 else ""
        yield Finding(
            cause="CPU quota",
            what=f"a quota gives the programs of {end.name} {units.digits(quota)} CPUs, and stopped them in"
            f" {units.percent(share)} of the periods{during}",
            where=end.name, certainty=SEEN if stopped_s >= 0.01 else PRESENT, weight=MUCH if share > 0.01 else SOME,
            undo="raise or remove the quota (cpu.max of its cgroup; docker update --cpus)",
        )  # fmt: skip


def stopped(seen: Evidence) -> Iterator[Finding]:
    """Programs of both ends that are stopped: those that listen, and a container's first one, or without either any of
    the namespace, which may have nothing to do with the traffic."""
    for end in seen.ends:
        if end.pid is None:
            continue
        first = [end.pid]
        groups = _holders(seen) if seen.ends[end] == "server" else []
        if not end.name.startswith(("netns:", existing_names.HOST)):
            groups.append(first)
        which, so = ("the", ": it takes nothing that arrives") if groups else ("a", "")
        for one in dict.fromkeys(pids[0] for pids in groups or [first] if all(map(_is_stopped, pids))):
            yield Finding(
                cause="stopped program", weight=MOST if groups else SOME, certainty=PRESENT if groups else POSSIBLE,
                what=f"{which} program of {end.name} (pid {one}) is stopped{so}", where=end.name,
                undo=f"continue the container, or kill -CONT {one}",
            )  # fmt: skip


def _holders(seen: Evidence) -> list[list[int]]:
    """Return the programs that hold each socket at which the server listens."""
    result: dict[str, list[int]] = {f"socket:[{one.inode}]": [] for one in seen.listeners()}
    own = os.fstat(seen.server.space.fd).st_ino
    for folder in Path("/proc").glob("[0-9]*") if result else ():
        with suppress(OSError):  # it has ended, or is another user's
            if os.stat(folder / "ns/net").st_ino == own:
                for name in {os.readlink(file) for file in (folder / "fd").iterdir()} & result.keys():
                    result[name].append(int(folder.name))
    return [pids for pids in result.values() if pids]


def _is_stopped(pid: int) -> bool:
    """Return whether a program is stopped, or frozen with its container."""
    with suppress(OSError):  # it has just ended
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        files = (at / name for at in cpu_quota.cgroups(pid, "freezer") for name in FROZEN)
        return state == b"T" or any(one.exists() and FROZEN[one.name] in one.read_text() for one in files)
    return False


def captures(seen: Evidence) -> Iterator[Finding]:
    """Packet sockets for all protocols, which copy each packet, and programs that hold interfaces of the path."""
    for space in seen.spaces:
        names, captured = {0: "any interface"}, set[int]()
        names |= {place.index: place.name for place in seen.places if place.space is space}
        with suppress(OSError, netlink.LinkError), closing(PacketSockets(space.fd)) as sockets:
            captured = sockets.captured()
        for name in (names[index] for index in sorted(captured & names.keys())):
            yield Finding(
                cause="capture", what=f"a program captures every packet of {name} (a packet socket)",
                where=f"{space.name} {name}", weight=SOME,
                undo=space.command("ss -0 -p  # shows the program: end it"),
            )  # fmt: skip
    reasons = {reason for reason, _function, name in seen.drops if name} - drops.EVERYDAY
    for place in seen.places:
        for hook in place.programs:
            own = DROPPED_AS.get(hook)
            by_programs = seen.drops and reasons <= {*DROPPED_AS.values()}
            drop = seen.lossy and (own in reasons if own else by_programs)
            show = f"ip link set {place.name} xdp off" if hook == "XDP" else SHOW_PROGRAMS + place.name
            yield Finding(
                cause=f"{hook.partition(' ')[0]} program", where=str(place), undo=place.space.command(show),
                what=f"a BPF program at {hook} of {place.name} sees each packet, and may send it past other interfaces",
                certainty=SEEN if seen.blocked or seen.lossy else POSSIBLE,
                weight=MOST if seen.blocked or drop else LITTLE,
            )  # fmt: skip
        if place.link.kind == "tun":
            programs = [f"{name} (pid {pid})" for pid, name in taps.holders(place.space.fd, place.name)]
            yield Finding(
                cause="proxy in user space",
                what=f"packets of {place.name} pass {', '.join(programs) or 'a program'} in user space, one system call"
                " each",
                where=str(place), weight=MUCH,
            )  # fmt: skip


def proxies(seen: Evidence) -> Iterator[Finding]:
    """Programs that copy what arrives at a published port."""
    for path in (seen.forward, seen.back):
        if path.published is not None and (port := path.published[1]).copies:
            yield Finding(
                cause="proxy in user space", what=port.what, where=str(port), weight=MUCH,
                cost="two system calls and two copies for each piece of data",
                undo="send to the address of the end, or publish the port by a rule (docker: userland-proxy=false)",
            )  # fmt: skip


def softirqs(seen: Evidence) -> Iterator[Finding]:
    """CPUs that dropped packets or ran out of their budget, and one CPU that did all of the network's work."""
    cpus = seen.changed.get("cpus", {})
    dropped = sum(one.get("dropped", 0) for one in cpus.values())
    if dropped:
        yield Finding(
            cause="softnet drops", certainty=SEEN, weight=MUCH, where="host",
            what=f"the backlog of a CPU was full: {units.counted(dropped, 'packet')} dropped during the check",
            undo="sysctl -w net.core.netdev_max_backlog=10000",
        )  # fmt: skip
    if not seen.loads:
        return
    squeezed = sum(one.get("time_squeeze", 0) for one in cpus.values())
    processed = sum(one.get("processed", 0) for one in cpus.values())
    if squeezed > 100 and squeezed > processed / 1000:
        yield Finding(
            cause="softnet squeezes", certainty=SEEN, weight=SOME, where="host",
            what=f"CPUs ended their turn with work left {squeezed} times during the check",
            undo="sysctl -w net.core.netdev_budget=600",
        )  # fmt: skip
    work_s = {cpu: float(one.get("softirq_s", 0.0)) for cpu, one in cpus.items()}
    rate = seen.loads[0].received_bps
    if (os.cpu_count() or 1) > 1 and (total := sum(work_s.values())) > 1:
        cpu, most_s = max(work_s.items(), key=lambda one: one[1])
        if most_s > 0.9 * total and most_s > BUSY * seen.load_s and rate:
            yield Finding(
                cause="one CPU for all softirqs", certainty=SEEN, weight=SOME, where=f"CPU {cpu}",
                what=f"CPU {cpu} did {units.percent(most_s / total)} of all work in softirqs, {most_s:.1f} s during the"
                " check",
                change=f"rps: rps 0-{(os.cpu_count() or 1) - 1} at server",
            )  # fmt: skip
