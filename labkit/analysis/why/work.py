"""Relate a profile to work: the stage of a packet's path for each sample, and how many packets passed each stage.

The cost per packet that arrived is a sum over all stages. Each term is the number of packets that passed the stage per
packet that arrived (loss), times the stage's CPU time per packet that passed it. The cost of a packet lost on its way
is in the first factor. A change in code is in the second.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from labkit.analysis import protocols
from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.frame_tree import is_idle
from labkit.analysis.flame.load_profiles import OBSERVER, OUTSIDE, WITHIN, arm, observed
from labkit.analysis.flame.profile import process_pattern
from labkit.analysis.flame.significance import Estimate, Floats, RunVariation, beyond_control, estimate
from labkit.analysis.protocols import CostUnit
from labkit.analysis.why.selection import ProfiledPoint
from labkit.common import loss_places

SEND, RECEIVE, READ, REST = "sending", "receiving in the kernel", "reading by the program", "everything else"
STAGES = (SEND, RECEIVE, READ, REST)
MIN_SHARE = 0.02  # of a side's cost: a smaller part is not named as a cause
LOSS_SHARE = 0.05  # relative standard deviation between runs of packets sent per packet that arrived
# Functions where the kernel starts to receive from a queue, whichever process the interrupt hit.
SOFTIRQ = r"net_rx_action|process_backlog|napi_threaded_poll\w*|net_tx_action"
_SOFTIRQ = re.compile(SOFTIRQ)
_SENDING = re.compile(
    r"(sock|udp|udpv6|tcp|inet|inet6|raw|ping|packet|unix_\w+)_(sendmsg\w*|write_iter|sendpage)|sock_write_iter"
    r"|____?sys_sendm?m?sg|__sys_sendto|__sys_sendmm?sg|do_sendfile|do_splice\w*"
)
_READING = re.compile(
    r"(sock|udp|udpv6|tcp|inet|inet6|raw|ping|packet|unix_\w+)_(recvmsg\w*|read_iter|splice_read)|sock_read_iter"
    r"|____?sys_recvm?m?sg|__sys_recvfrom|__sys_recvmm?sg"
)
SYSCALL = re.compile(r"do_syscall_64|el0_svc\w*|invoke_syscall|do_fast_syscall_32")
# Functions with which an interrupt begins.
INTERRUPT = re.compile(
    r"(asm_)?sysvec_\w+|(asm_)?common_interrupt|__common_interrupt|do_IRQ|smp_\w+_interrupt|\w*_interrupt_handler"
    r"|_?_?irq_exit(_rcu)?|el[01]t?_(64_|32_)?(irq|fiq)\w*|el[01]_interrupt|(gic_)?handle_(domain_)?irq\w*|call_on_irq_stack"
)
# The kernel's threads do all sorts of work for the machine (memory, storage, timers). Only those with such a function
# carry packets, or clean up after them.
_CARRIES = re.compile(
    r"(wg|xfrm|esp\d?|ah\d?|crypto|cryptd|aead|padata|vhost|tun|macsec|mptcp|tls|skb|sk|sock|tcp|udp|inet\d?|ip(v?[46])?|fib\d?|napi"
    r"|mld|ndisc|addrconf|neigh|arp|nf|nft|dst|ovs|macvlan|ipvlan|br|flush_backlog|gc_worker)(_\w+)?"
    r"|run_ksoftirqd|smpboot_thread_fn"
)
# Storage that is reached through the network carries packets of its own.
_STORAGE = re.compile(r"(blk|scsi|iscsi|nvme|nbd|rpc|nfs|cifs|smb|ceph|wb)_\w+|submit_bio\w*|cleanup_net")
_DISK_INTERRUPT = re.compile(
    r"blk_done_softirq|blk_complete_reqs|virtblk_done|nvme_irq|ata_\w*interrupt\w*|ahci_\w+intr\w*"
)
# Functions with which the drivers of physical NICs receive, and those of a virtual machine's own NIC.
_NIC = re.compile(
    r"(virtnet|xennet|netvsc)_poll\w*|(e1000|igb|igc|ixgbe|i40e|iavf|ice|mlx[45]|ena|gve|bnx|vmxnet3|r8169|rtl8169|tg3)"
    r"\w*(poll|clean)\w*"
)
MACHINE = re.compile(r"kernel|swapper|ksoftirqd.*")  # processes that work for the whole machine
ROUND_COLUMNS = [
    "folder", "protocol", "nodes", "parent", "window_s", "cpus_count", "steal_s", "sent_count", "lost_count", "loop",
    "transaction_rate", "pairs", "streams", "outstanding", "cpu_wait_s", "changed",
]  # fmt: skip
_KTHREADS = "kernel"  # the process name of the kernel's threads (labkit.measure.observers.perf.fold_stacks)


@dataclass(frozen=True)
class Round:
    """One profiled round.

    run: its folder. samples: counts by stage and stack; a stack starts where its stage begins. period_s: the value of
    one sample in seconds. arrived: packets (or gigabytes, or seconds of CPU) that arrived. passed: how many passed each
    stage per unit that arrived.

    Shares of the time of all CPUs: foreign_share for programs outside the experiment, steal_share for the hypervisor,
    busy_share for all busy time. stacks: the samples as they were recorded, with their processes; if processes were
    chosen, only those that belong to one of their stages.

    round_trip_s: the mean time of a round trip in a closed loop of one connection. With more of them a request also
    waits for others' CPU time, which its own does not show, so it is unknown. wait_s: for each request, how long the
    experiment's programs were ready and waited for a CPU. Unknown values are NaN.
    """

    run: str
    samples: Mapping[str, Counter[str]]
    period_s: float
    arrived: float
    passed: Mapping[str, float]
    foreign_share: float
    steal_share: float
    busy_share: float
    stacks: folded_stacks.Stacks = field(default_factory=dict)
    round_trip_s: float = math.nan
    wait_s: float = math.nan

    @property
    def cost_s(self) -> float:
        """The CPU time of a unit that arrived."""
        counts = {stage: sum(self.samples[stage].values()) for stage in STAGES}
        return sum(counts[one] * self.seconds_per_sample(one) * self.passed[one] for one in STAGES)

    def seconds_per_sample(self, stage: str) -> float:
        """Return the value of a stage's sample, in seconds per unit that passed the stage."""
        return self.period_s / (self.arrived * self.passed[stage])


@functools.lru_cache(maxsize=100_000)  # the same stacks occur in every round
def stage_of(stack: str, over_nic: bool = False) -> tuple[str, str] | None:
    """Return the stage of a folded stack, and the stack from the start of that stage.

    over_nic: whether packets of the experiment pass a NIC of the machine.

    Return None for a stack outside the experiment and for an idle CPU. A program outside the experiment receives in its
    own system calls what it sent itself; in an interrupt it receives for anybody, and that counts for the experiment,
    unless it receives from a NIC that the experiment does not use. The interrupts of disks, and the kernel's threads
    that do not carry packets, are outside, too.
    """
    frames = stack.split(";")
    if is_idle(frames[-1]):
        return None
    names = [folded_stacks.plain(frame) for frame in frames]
    for at in range(len(names) - 1, 0, -1):
        if _SOFTIRQ.fullmatch(names[at]) and frames[at].endswith(folded_stacks.KERNEL):
            first = next(place for place in range(1, at + 1) if _SOFTIRQ.fullmatch(names[place]))
            if frames[0] == OUTSIDE and _in_own_call(names[1:first]):
                return None
            if not over_nic and any(map(_NIC.fullmatch, names[at:])):
                return None
            if any(SYSCALL.fullmatch(name) or _SENDING.fullmatch(name) for name in names[first:at]):
                first = at
            return RECEIVE, ";".join(frames[first:])
    if frames[0] == OUTSIDE or _is_unrelated_kernel_work(frames[0], names):
        return None
    for stage, begins in ((SEND, _SENDING), (READ, _READING)):
        for at, name in enumerate(names):
            if at and begins.fullmatch(name):
                return stage, ";".join(frames[at:])
    for at, name in enumerate(names):
        if SYSCALL.fullmatch(name):
            return REST, ";".join([frames[0], *frames[at:]])
    return REST, stack


def _is_unrelated_kernel_work(process: str, names: Sequence[str]) -> bool:
    """Return whether a stack is of a disk's interrupt, or of a thread of the kernel that does not carry packets."""
    if any(map(_DISK_INTERRUPT.fullmatch, names[1:])):
        return True
    return process == _KTHREADS and (
        any(map(_STORAGE.fullmatch, names[1:])) or not any(map(_CARRIES.fullmatch, names[1:]))
    )


def _in_own_call(names: Sequence[str]) -> bool:
    """Return whether the innermost of these frames are of a system call that no interrupt interrupted."""
    for name in reversed(names):
        if INTERRUPT.fullmatch(name):
            return False
        if SYSCALL.fullmatch(name) or _SENDING.fullmatch(name):
            return True
    return False


def rounds(point: ProfiledPoint, side: int, processes: str = WITHIN) -> list[Round]:
    """Return the profiled rounds of a side. Raises BadInput if there is none."""
    name, rows = list(point.named_sides())[side]
    unit = protocols.find(point.protocol).unit
    own = rows[rows["observer"].eq(OBSERVER) & rows["status"].eq("ok") & rows["artefact"].notna()]
    profile = arm(rows, name, ".*")
    if processes != WITHIN:
        arm(rows, name, processes)  # raises BadInput if the expression is invalid or matches nothing
    before = _lost_before(rows)
    return [
        _round(row, each.stacks, each.period_s, getattr(each, unit.work), unit, before, processes)
        for row, each in zip(
            own.reindex(columns=ROUND_COLUMNS).to_dict("records"), profile.rounds, strict=True
        )
        if (getattr(each, unit.work) or 0) > 0
    ]


def _round(
    row: Mapping[Any, Any],
    stacks: folded_stacks.Stacks,
    period_s: float,
    arrived: float,
    unit: CostUnit,
    before: float,
    processes: str,
) -> Round:
    samples: dict[str, Counter[str]] = {stage: Counter() for stage in STAGES}
    foreign, busy, counted = 0, 0, dict[str, int]()
    wanted = process_pattern(processes).fullmatch
    over_nic = row.get("nodes") == "two" or pd.notna(row.get("parent"))
    for stack, count in stacks.items():
        result = stage_of(stack, over_nic)
        process = stack.partition(";")[0]
        if is_idle(stack.rpartition(";")[2]):
            continue
        busy += count
        if result is None:
            foreign += count
        elif result[0] == RECEIVE or processes == WITHIN or wanted(process):
            samples[result[0]][result[1]] += count
            counted[stack] = count
    capacity_s = float(row["window_s"]) * float(row["cpus_count"] or 1)
    rate = row["transaction_rate"]
    several = (
        row["pairs"] * row["streams"] != 1
        or pd.notna(row["outstanding"])
        or _has_own_requests(row["changed"])
    )
    # The rest of a round trip is time of no process, not of those that are left out.
    alone = row["loop"] == "closed" and not several and processes == WITHIN
    return Round(
        str(row["folder"]), samples, period_s, arrived / unit.one, _passed_packets(row, before),
        # Where programs wait long for a CPU, samples were taken for longer than the window.
        min(foreign * period_s / capacity_s, 1.0) if capacity_s > 0 else math.nan,
        float(row["steal_s"]) / capacity_s if capacity_s > 0 and pd.notna(row["steal_s"]) else 0.0,
        min(busy * period_s / capacity_s, 1.0) if capacity_s > 0 else math.nan,
        stacks if processes == WITHIN else counted,
        1 / float(rate) if alone and pd.notna(rate) and rate > 0 else math.nan,
        math.nan if pd.isna(row["cpu_wait_s"]) else float(row["cpu_wait_s"]) / arrived,
    )  # fmt: skip


def _has_own_requests(changed: Any) -> bool:
    """Return whether the arm's change sets the number of requests in flight. The row has the point's value instead."""
    effects = changed if isinstance(changed, list) else ()
    return any(one["kind"] == "parameter" and one["setting"] in ("streams", "outstanding") for one in effects)


def _passed_packets(row: Mapping[Any, Any], before: float) -> dict[str, float]:
    """Return the packets that passed each stage per packet that arrived.

    before: the share of lost packets that were lost before the kernel's receive stage.
    """
    sent, lost = row.get("sent_count"), row.get("lost_count")
    whole = dict.fromkeys(STAGES, 1.0)
    if protocols.find(row["protocol"]).work != "packet" or pd.isna(sent) or pd.isna(lost):
        return whole
    if not 0 <= lost < sent:
        return whole
    spent = float(sent / (sent - lost))
    return whole | {SEND: spent, RECEIVE: 1 + (spent - 1) * (1 - before), REST: spent}


def loss_by_hop(rows: pd.DataFrame) -> dict[str, float]:
    """Return each hop's share of all loss in the rounds with the kernel's counters; empty without such rounds."""
    return loss_places.shares(pair for _, pairs in followed_datagrams(rows) for pair in pairs)


def followed_datagrams(rows: pd.DataFrame) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return the run and the losses of the pairs of each round with the kernel's counters, where these followed
    datagrams."""
    own = rows[rows["observer"].eq("counters") & rows["status"].eq("ok")]
    rounds = [
        (str(run), [pair for pair in observed(report).get("loss", []) if pair.get("unit") == "datagrams"])
        for run, report in zip(own["folder"], own.get("observed", ()), strict=False)
    ]
    return [one for one in rounds if sum(pair["sent_count"] for pair in one[1])]


def _lost_before(rows: pd.DataFrame) -> float:
    """Return the share of lost packets that were lost before the kernel's receive stage.

    Return 0 if unknown, because most packets are lost at the socket.
    """
    after = (": UDP socket", "left unread in the socket", ": IP")
    return sum(share for place, share in loss_by_hop(rows).items() if not place.endswith(after))


@dataclass(frozen=True)
class Split:
    """The difference in cost per unit that arrived, in seconds, and its parts, which add up to it: loss and stages.

    spent: packets sent for each that arrived. stages: left and right are the CPU time of a packet that passes it.
    """

    unit: CostUnit
    total: Estimate
    spent: Estimate
    loss: Estimate
    stages: Mapping[str, Estimate]


@dataclass(frozen=True)
class RoundTrips:
    """The time of a round trip and its parts, in seconds: CPU time, waiting for a CPU (None: unknown), and the rest.

    CPU time that passes while the response is already on its way counts as well, so the rest is the least.
    """

    whole: Estimate
    cpu: Estimate
    wait: Estimate | None
    rest: Estimate

    @property
    def is_rest(self) -> bool:
        """Whether most of a certain difference is certainly in the rest: neither CPU time nor waiting for a CPU."""
        certain = self.whole.certain and self.rest.certain
        return certain and self.rest.difference / self.whole.difference > 0.5


def round_trips(
    left: Sequence[Round],
    right: Sequence[Round],
    variation: RunVariation | None,
    control: Sequence[Round] = (),
) -> RoundTrips | None:
    """Split the time of a round trip on both sides; None if it is unknown. control: as of `split`."""
    if not all(math.isfinite(one.round_trip_s) for one in (*left, *right)):
        return None
    waits = all(math.isfinite(one.wait_s) for one in (*left, *right))

    def compared(value: Callable[[Round], float]) -> Estimate:
        sides = [np.array([value(one) for one in side]) for side in (left, right, control)]
        return estimate(sides[0], sides[1], variation, again=sides[2])

    return RoundTrips(
        compared(lambda one: one.round_trip_s),
        compared(lambda one: one.cost_s),
        compared(lambda one: one.wait_s) if waits else None,
        compared(lambda one: one.round_trip_s - one.cost_s - (one.wait_s if waits else 0.0)),
    )


def split(
    left: Sequence[Round],
    right: Sequence[Round],
    unit: CostUnit,
    variation: RunVariation | None,
    control: Sequence[Round] = (),
) -> Split:
    """Split the difference in both sides' cost per unit that arrived into its parts.

    control: the rounds of left measured again: what they show as well is no difference.

    Each factor is weighted by the mean of both sides of the other factor, so that the parts add up to the difference.
    """

    def by_stage(value: Callable[[Round, str], float]) -> list[Floats]:
        """Return the values [stage, round] of both sides."""
        return [
            np.array([[value(one, stage) for one in side] for stage in STAGES], dtype=float)
            for side in (left, right)
        ]

    samples = by_stage(lambda one, stage: sum(one.samples[stage].values()))
    worth = by_stage(Round.seconds_per_sample)
    passed = by_stage(lambda one, stage: one.passed[stage])
    cost = [count * each for count, each in zip(samples, worth, strict=True)]
    middle, weight = ((one.mean(axis=1) + other.mean(axis=1)) / 2 for one, other in (cost, passed))
    total = [(one * by).sum(axis=0) for one, by in zip(cost, passed, strict=True)]
    loss = [(middle[:, None] * by).sum(axis=0) for by in passed]
    # The least variance of each mean: that of counting samples (Poisson).
    both = zip(samples, worth, strict=True)
    least = [(count * each**2).sum(axis=1) / count.shape[1] ** 2 for count, each in both]

    def of_stage(at: int) -> Estimate:
        one, other = (weight[at] * side[at] for side in cost)
        size = estimate(one, other, variation, [float(weight[at] ** 2 * side[at]) for side in least])
        return replace(size, left=float(cost[0][at].mean()), right=float(cost[1][at].mean()))

    sending = STAGES.index(SEND)
    of_loss = None if variation is None else RunVariation(variation.runs, LOSS_SHARE)
    result = Split(
        unit,
        estimate(total[0], total[1], variation, [float((weight**2 * one).sum()) for one in least]),
        estimate(passed[0][sending], passed[1][sending], of_loss),
        estimate(loss[0], loss[1], variation),
        {stage: of_stage(at) for at, stage in enumerate(STAGES)},
    )
    if len(control) < 2:
        return result
    again = split(left, control, unit, None)
    return Split(
        unit,
        beyond_control(result.total, again.total),
        beyond_control(result.spent, again.spent),
        beyond_control(result.loss, again.loss),
        {stage: beyond_control(size, again.stages[stage]) for stage, size in result.stages.items()},
    )
