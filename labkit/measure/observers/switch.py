"""switch: what Open vSwitch counts during the traffic, and drops that none of its counters shows.

It reads coverage counters, upcalls and flows, hits of each cache of the userspace datapath with what a hit and a packet
cost, masks tried by the kernel datapath, packets and drops of each port, mirror statistics, and the most used flows
with their actions (ovs-appctl(8), ovs-dpctl(8)). It adds the drops at the packet sockets of the userspace datapath.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

from labkit.common import errors, switch_options
from labkit.common.errors import BadInput
from labkit.measure.observers.base import ArmedObserver, Observation, ObservedLoad, Observer
from labkit.measure.observers.counters.kernel_counters import changes
from labkit.system import netlink
from labkit.system.netlink.packet_sockets import PacketSockets

if TYPE_CHECKING:
    from labkit.measure.topologies.open_vswitch.switch import Switch

MAX_FLOWS = 10
FULL = "upcall_flow_limit_hit"  # the coverage counter of flows that were not installed
STATS = "dpif-netdev/pmd-stats-show"
# Averages of STATS, with the count of a thread by which those of several threads are weighted. The mean of packets in a
# batch is harmonic (-1), because the weights are packets.
PER_PACKET = "packets received"
AVERAGES = {
    "datapath passes per packet": (PER_PACKET, 1),
    "subtable lookups per megaflow hit": ("megaflow hits", 1),
    "packets per output batch": (PER_PACKET, -1),
    "cycles per packet": (PER_PACKET, 1),
    "processing cycles per packet": (PER_PACKET, 1),
}
OLD = "statistics of mirrors are as old as 5 s"  # other_config:stats-update-interval, minimum 5 s

NOT_COUNTERS = ("averages", "flows", "state")  # parts of `read` that are no counters

Counts = dict[str, Any]


def since_now(switch: Switch | None) -> Callable[[], Observation]:
    """Read a switch's counters; return a function that reads them again, and reports the changes since, by place.

    `averages` are those of the userspace datapath since then; cycles are those of the CPU's time stamp counter. `flows`
    are those with the most packets, with their actions; `state` is that at the end. All is empty without a switch.
    """
    if switch is None:
        return lambda: Observation({})
    if not switch.kernel:
        switch.command("dpif-netdev/pmd-stats-clear")  # its averages would be of the time before, too
    before = read(switch)

    def since() -> Observation:
        after = read(switch)
        counted = changes(*({name: value for name, value in one.items() if name not in NOT_COUNTERS}
                            for one in (before, after)))  # fmt: skip
        took = [
            {"packets": flow["packets"] - before["flows"].get(name, flow | {"packets": 0})["packets"],
             "match": flow["match"], "actions": flow["actions"]}
            for name, flow in after["flows"].items()
        ]  # fmt: skip
        used = sorted((one for one in took if one["packets"] > 0), key=lambda one: -int(one["packets"]))
        of_end = {"averages": after["averages"], "flows": used[:MAX_FLOWS], "state": after["state"]}
        observed = {**counted, **of_end, "not_read": OLD}
        return Observation(observed, doubts=overflow(counted, after["state"]))

    return since


def overflow(counted: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Return a doubt if flows did not fit into the table of the datapath, so that packets took the slow path."""
    times = counted.get("coverage", {}).get(FULL, 0)
    if not times:
        return []
    return [
        f"the switch's flow table is full: {times} flows did not fit beside the {state.get('flows', 0)} that are there"
        f" (limit {state.get('flow_limit')}), so ovs-vswitchd handles each of their packets"
    ]


def drops(counted: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return what a switch and its packet sockets dropped, by port, from the changes that `switched` reports.

    Under "" are the drops that belong to no port: lost upcalls, and the coverage counters of drops.
    """
    result: dict[str, dict[str, int]] = {}
    for port, counts in counted.get("ports", {}).items():
        for name, count in counts.items():
            if name.endswith(("_dropped", "_errors")):
                result.setdefault(port, {})[f"Open vSwitch {name}"] = count
    for port, count in counted.get("sockets_dropped", {}).items():
        result.setdefault(port, {})["packet socket dropped"] = count
    whole = {name: count for name, count in counted.get("coverage", {}).items() if "drop_" in name}
    if lost := counted.get("datapath", {}).get("lost"):
        whole["upcalls lost"] = lost
    return {**result, "": whole} if whole else result


def read(switch: Switch) -> Counts:
    """Return all counters now. Takes 0.1 s, mostly for the switch's main loop."""
    ports, datapath, state = datapaths(switch.command("dpctl/show", "-s"))
    with closing(PacketSockets(switch.space.fd)) as sockets:
        dropped = sockets.drops()
    names = {link.index: link.name for link in netlink.links(switch.space.netlink)}
    upcalls = switch.command("upcall/show")
    of_threads = switch.command(STATS) if not switch.kernel else ""
    limit = re.search(r"\(limit (\d+)\)", upcalls)
    return {
        "coverage": coverage(switch.command("coverage/show")),
        "ports": ports,
        "datapath": datapath,
        "caches": caches(of_threads),
        "averages": averages(of_threads),
        "sockets_dropped": {names[index]: count for index, count in dropped.items() if index in names},
        "mirrors": {
            row["name"]: row["statistics"] for row in switch.database.rows("Mirror", "name", "statistics")
        },
        "flows": flows(switch.command("dpctl/dump-flows", "-m")),
        "state": {**state, "flow_limit": int(limit[1]) if limit else None},
    }


@errors.reading("coverage/show of Open vSwitch")
def coverage(text: str) -> dict[str, int]:
    """Parse `coverage/show`: name to total."""
    return {name: int(total) for name, total in re.findall(r"^(\w+) .*total: (\d+)$", text, re.MULTILINE)}


@errors.reading(f"{STATS} of Open vSwitch")
def caches(text: str) -> dict[str, int]:
    """Parse the counts of STATS, summed over threads."""
    result: Counter[str] = Counter()
    for thread in _threads(text):
        result.update({name: int(value) for name, value in thread.items() if name not in AVERAGES})
    return dict(result)


@errors.reading(f"{STATS} of Open vSwitch")
def averages(text: str) -> dict[str, float]:
    """Parse the averages of STATS (AVERAGES) over all threads.

    A thread that has no packet, or counts no cycles, reports none.
    """
    result = {}
    threads = _threads(text)
    for name, (weight, power) in AVERAGES.items():
        some = [one for one in threads if one.get(name) and one.get(weight)]
        if some:
            total = sum(one[weight] for one in some)
            result[name] = round((sum(one[weight] * one[name] ** power for one in some) / total) ** power, 4)
    return result


def _threads(text: str) -> list[dict[str, float]]:
    """Return the numbers of each thread of STATS by name: counts, and averages since the counters were cleared."""
    result: list[dict[str, float]] = []
    for line in text.splitlines():
        if not line.startswith(" "):
            result.append({})
        elif number := re.match(r" +(?:avg\.? )?([\w ]+): (\d+(?:\.\d+)?)(?: \(.*\))?$", line):
            result[-1][number[1]] = float(number[2])
    return result


@errors.reading("dpctl/show of Open vSwitch")
def datapaths(text: str) -> tuple[dict[str, dict[str, int]], dict[str, int], dict[str, int]]:
    """Parse `dpctl/show -s`.

    Returns the counters of each port, those of the datapath (hit, missed, lost, masks hit), and the numbers of flows
    and masks.
    """
    ports: dict[str, dict[str, int]] = {}
    own: dict[str, int] = {}
    state: dict[str, int] = {}
    port = ""
    for line in text.splitlines():
        if match := re.match(r"\s+port \d+: (\S+)", line):
            port = match[1]
            ports[port] = {}
        elif match := re.match(r"\s+(RX|TX) packets:(.*)", line):
            direction = match[1].lower()
            for name, count in re.findall(r"(\w+):(\d+)", f"packets:{match[2]}"):
                ports[port][f"{direction}_{name}"] = int(count)
        elif not port and (match := re.match(r"\s+lookups: (.*)", line)):
            own |= {name: int(count) for name, count in re.findall(r"(\w+):(\d+)", match[1])}
        elif not port and (match := re.match(r"\s+flows: (\d+)", line)):
            state["flows"] = int(match[1])
        elif not port and (match := re.match(r"\s+masks: hit:(\d+) total:(\d+)", line)):
            own["masks_hit"], state["masks"] = int(match[1]), int(match[2])
    return ports, own, state


def masks(text: str) -> set[str]:
    """Return the different masks of `dpctl/dump-flows`: what is matched of each field, without the values.

    The kernel's datapath counts its masks, the userspace datapath does not.
    """
    result = set()
    for line in text.splitlines():
        match, packets, _rest = line.partition(", packets:")
        if packets:
            masked = re.sub(r"([(=])[^(),=/]+/", r"\1/", match)
            result.add(re.sub(r"([(=])[^(),=/+]+(?=[),])", r"\1", masked))
    return result


@errors.reading("dpctl/dump-flows of Open vSwitch")
def flows(text: str) -> dict[str, dict[str, Any]]:
    """Parse `dpctl/dump-flows -m`: flow identifier to packets, match (without wildcards) and actions."""
    result = {}
    for line in text.splitlines():
        parts = re.match(
            r"(ufid:[\w-]+), (.*), packets:(\d+), bytes:\d+.*, actions:(.*?)(, dp-extra-info:.*)?$", line
        )
        if parts:
            fields = re.findall(r"[\w.]+\((?:[^()]|\([^()]*\))*\)", parts[2])
            match = ",".join(one for one in fields if not re.fullmatch(r"\w+\(0(x0)?/0(x0)?\)", one))
            result[parts[1]] = {"packets": int(parts[3]), "match": match, "actions": parts[4]}
    return result


def _check(parameters: ObservedLoad) -> None:
    if not any(map(switch_options.is_switch, parameters.topology_names)):
        names = " or ".join(switch_options.NAMES)
        raise BadInput(f"observe=switch needs topology={names}")


SWITCH = Observer(
    lambda _parameters, topology, _stem: nullcontext(ArmedObserver(since_now(topology.switch))),
    check_parameters=_check,
)
