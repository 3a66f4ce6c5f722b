"""What the machine and the switch did during a trial: whether loss came from scheduling, and where it was counted.

Loss belongs to the datapath only if its processes had a CPU when they wanted one and the sender kept its schedule. On
shared cores that is often not so: without this check, the same switch gave rates between 28 and 253 kpps
(docs/method/throughput.md).
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from labkit.measure.endpoints import Namespace
from labkit.measure.observers import switch as counters
from labkit.measure.topologies.open_vswitch.switch import Switch
from labkit.measure.traffic.base import Trial
from labkit.system import machine
from labkit.system.machine import mibs
from labkit.system.netlink.packet_sockets import PacketSockets

# Share of a trial: a busy thread that waited longer, or a sender that slipped more, was disturbed.
WAITED = 0.01
STOLEN = 0.05  # of all CPUs
BUSY = 0.05  # share of a trial: threads that ran less do not carry packets
POLLING = "pmd-"  # the names of DPDK's threads in ovs-vswitchd begin so
FIRST = -20  # the nice value of the highest ordinary priority
MAX_FLOWS = 5000  # listing more flows takes seconds, during which the switch does little else


@dataclass(frozen=True)
class Conditions:
    """The conditions of one trial, named as the columns of its row.

    `datapath_wait_s`: how long the datapath's busy thread that waited most waited for a CPU. `drops`: by interface or
    place. `in_guests`: the generator runs in guests, whose CPUs are threads of the datapath and wait for one another.
    """

    slip_s: float
    datapath_wait_s: float
    steal_s: float
    cpu_s: float
    softirq_s: float
    datapath_cpu_s: float
    softnet_drops_count: int
    socket_drops_count: int
    drops: dict[str, int]
    in_guests: bool = False

    def disturbance(self, trial: Trial) -> str | None:
        """Return why this trial says nothing about the datapath, or None.

        A trial without loss whose sender kept its rate is always valid.
        """
        if trial.generator_limited:
            return f"the generator reached {trial.offered_pps:.0f} of {trial.rate_pps or 0:.0f} pps"
        if trial.fault is not None or not trial.lost_count:
            return trial.fault
        allowed_s = WAITED * trial.duration_s
        if self.datapath_wait_s > allowed_s and not self.in_guests:
            return f"a thread of the datapath waited {1e3 * self.datapath_wait_s:.1f} ms for a CPU"
        if self.slip_s > allowed_s:
            return f"the sender was late by {1e3 * self.slip_s:.1f} ms"
        if self.steal_s > STOLEN * trial.duration_s * (os.cpu_count() or 1):
            return f"the hypervisor took {1e3 * self.steal_s:.0f} ms of CPU time"
        return None

    def problem(self, trial: Trial) -> str | None:
        """Return `disturbance` with the word for its kind, or None."""
        kind = "generator-limited" if trial.generator_limited else "disturbed"
        return (words := self.disturbance(trial)) and f"{kind}: {words}"

    def row(self) -> dict[str, Any]:
        columns = {name: value for name, value in vars(self).items() if name != "in_guests"}
        return columns | {"drops": self.drops or None}


class _Moment(NamedTuple):
    """All counters at a moment; `threads`: how long each ran and waited, in ns."""

    drops: Counter[str]
    softnet: int
    sockets: int
    threads: dict[str, tuple[int, int]]
    times: machine.CpuTimes


class ConditionsMonitor:
    """The counters of a topology's namespaces and of this experiment's processes except the generator's."""

    def __init__(
        self, namespaces: Sequence[Namespace], generator: frozenset[int], *, in_guests: bool = False
    ) -> None:
        self._in_guests, self._generator = in_guests, generator
        self.pids = machine.descendants(os.getpid()) - generator
        self._sockets = [PacketSockets(space.fd) for space in namespaces]
        self._spaces = namespaces
        self.begin()

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def give_priority(self, switch: Switch | None) -> str | None:
        """Set how the datapath's processes are scheduled and return it; None if there are none.

        The CPUs of guests run the generator too, and several with SCHED_FIFO on one CPU would keep each other from it.
        """
        if not self.pids:
            return None
        if self._in_guests:
            return "normal"
        cpu = min(os.sched_getaffinity(0))
        if switch is not None and not switch.kernel:
            # All senders share one CPU: on the switch's own CPU one would keep it from its packets.
            for pid in self._generator:
                with suppress(ProcessLookupError):  # the trial reports how it ended
                    os.sched_setaffinity(pid, {cpu})
        return "fifo" if give_cpus(self.pids, cpu) else "normal"

    def begin(self) -> None:
        self._before = self._now()

    def end(self, trial: Trial) -> Conditions:
        """Return the conditions since the start of the trial."""
        now, then = self._now(), self._before
        used = now.times - then.times
        ran = [
            (run - then.threads[thread][0], wait - then.threads[thread][1])
            for thread, (run, wait) in now.threads.items()
            if thread in then.threads
        ]
        busy = [wait for run, wait in ran if run > BUSY * trial.elapsed_s * 1e9]
        return Conditions(
            slip_s=trial.slip_s,
            datapath_wait_s=max(busy, default=0) / 1e9,
            steal_s=used.steal_s if self._spaces else 0.0,  # else nothing of the datapath is on this machine
            cpu_s=used.busy_s,
            softirq_s=used.softirq_s,
            datapath_cpu_s=sum(run for run, _ in ran) / 1e9,
            softnet_drops_count=now.softnet - then.softnet,
            socket_drops_count=now.sockets - then.sockets,
            drops=dict(now.drops - then.drops),
            in_guests=self._in_guests,
        )

    def _now(self) -> _Moment:
        drops = Counter(
            {
                f"{space.name} {interface}": count
                for space in self._spaces
                for interface, count in interface_drops(space.read("/proc/net/dev")).items()
            }
        )
        sockets = sum(sum(one.drops().values()) for one in self._sockets)
        threads = machine.thread_times(self.pids)
        return _Moment(drops, softnet_drops(), sockets, threads, machine.cpu_times())


def upcalls(switch: Switch | None) -> Callable[[], dict[str, Any]]:
    """Begin to count what the datapath of an Open vSwitch does not know; return a function for columns of a row.

    They are the packets since now without a flow, and the flows at the end with their masks; none without a switch.
    """
    if switch is None:
        return dict
    _ports, before, _state = counters.datapaths(switch.command("dpctl/show"))

    def since() -> dict[str, Any]:
        _ports, now, state = counters.datapaths(switch.command("dpctl/show"))
        masks = state.get("masks")
        if masks is None and state["flows"] <= MAX_FLOWS:
            masks = len(counters.masks(switch.command("dpctl/dump-flows")))
        missed = now["missed"] - before["missed"]
        return {"upcalls_count": missed, "megaflows_count": state["flows"], "masks_count": masks}

    return since


def give_cpus(pids: frozenset[int], apart_from: int) -> bool:
    """Raise the priority of the datapath's processes, on the CPUs that the generator does not use. Return whether it
    worked for all of their threads.

    With the usual priority a switch in userspace waits for most of a trial on a busy machine.

    A thread that polls without a pause gets the highest ordinary priority: with SCHED_FIFO it would keep the switch's
    other threads from that CPU for good.
    """
    cpus = os.sched_getaffinity(0)
    others = cpus - {apart_from} or cpus
    done = True
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*"):
            try:
                os.sched_setaffinity(int(path.name), others)
                if (path / "comm").read_text().startswith(POLLING):
                    os.setpriority(os.PRIO_PROCESS, int(path.name), FIRST)
                else:
                    os.sched_setscheduler(int(path.name), os.SCHED_FIFO, os.sched_param(1))
            except (ProcessLookupError, FileNotFoundError):
                continue
            except OSError:
                done = False
    return done


def interface_drops(text: str) -> dict[str, int]:
    """Parse /proc/net/dev: frames dropped by each interface in both directions."""
    return {
        name: counts["rx_dropped"] + counts["tx_dropped"] for name, counts in mibs.interfaces(text).items()
    }


def softnet_drops() -> int:
    """Return the packets dropped at full CPU backlogs (/proc/net/softnet_stat)."""
    try:
        text = Path("/proc/net/softnet_stat").read_text()
    except OSError:
        return 0
    return sum(counts["dropped"] for counts in mibs.softnet_counts(text).values())
