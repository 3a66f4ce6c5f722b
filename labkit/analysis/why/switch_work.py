"""Split the CPU time of arms with an Open vSwitch, or with a program that relays all data in user space, by what the
time is spent on: the work that mirrors add, or that of the program.

A sample belongs to the first one of WORK_AREAS that its stack matches, and there to the first kind of work. So the
parts add up to the whole CPU time. A packet that a switch sends is received in another context. Hence delivery to the
other end of a virtual cable is an area of its own.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.analysis import protocols
from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.frame_tree import is_idle
from labkit.analysis.flame.load_profiles import OUTSIDE
from labkit.analysis.flame.processes import FORWARDING, HANDLING, READER, RELAY
from labkit.analysis.flame.significance import Estimate, RunVariation, estimate
from labkit.analysis.why.selection import ProfiledPoint
from labkit.analysis.why.work import MIN_SHARE, SOFTIRQ, Round

POLLING = "dpdk"  # the datapath whose threads never pause
ENDPOINTS = "the endpoints and everything else"
COPYING = (
    "copying the data of packets",
    r"_?copy_(from|to)_(iter|user)|copyin|copyout|rep_movs\w*|copy_user\w*|skb_copy\w*|__skb_datagram_iter"
    r"|pskb_expand_head|memcpy\w*",
)


@dataclass(frozen=True)
class WorkArea:
    """Where work is done, with the kinds of work there: each a name, and the kernel functions that do it.

    process, functions: what a stack must have; None fits every stack. A kind without functions is all that is left.
    """

    process: str | None
    functions: str | None
    kinds: tuple[tuple[str, str | None], ...]


RELAY_WORK = {
    "copying data in the relay": COPYING[1],
    "reading and writing the relay's tap": r"tun_chr_\w+",
    "sending through the relay's sockets": r"\w*sys_send(to|m?msg)|sock_write_iter|do_splice\w*",
    "receiving from the relay's sockets": r"\w*sys_recv(from|m?msg)|sock_read_iter",
    "waiting for data in the relay": r"do_sys_poll|\w*sys_poll|(do_)?epoll_\w+|ep_\w+|do_select|do_futex",
    "running the relay's own code": None,
}
WORK_AREAS = (
    WorkArea(HANDLING, None, (("handling upcalls and checking flows", None),)),
    WorkArea(None, r"ovs_\w+|do_execute_actions|do_output|output_userspace", (
        ("handing packets to ovs-vswitchd (upcalls)", r"ovs_dp_upcall|queue_userspace_packet|output_userspace"),
        ("segmenting packets in software", r"skb_segment\w*|__skb_gso_segment|skb_mac_gso_segment|\w+_gso_segment"),
        ("cloning packets", r"skb_clone|__skb_clone"),
        COPYING,
        ("sending packets to ports", r"do_output|ovs_vport_send|__?dev_queue_xmit|dev_hard_start_xmit"),
        ("looking up flows in the kernel's datapath", None),
    )),
    WorkArea(None, SOFTIRQ, (("delivering packets to the other ends of the ports", None),)),
    WorkArea(RELAY, None, tuple(RELAY_WORK.items())),
    WorkArea(READER, None, (("reading the copies", None),)),
    WorkArea(FORWARDING, None, (
        COPYING,
        ("sending packets through packet sockets", r"packet_sendmsg|packet_snd|\w*sys_sendm?msg|tun_chr_write_iter"),
        ("receiving packets from packet sockets", r"packet_recvmsg|\w*sys_recvm?msg|tun_chr_read_iter"),
        ("waiting for packets", r"do_sys_poll|\w*sys_poll|ep_\w+"),
        ("running the switch's own code", None),
    )),
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A kind of work, in seconds per unit that arrived on each side. copies: how many more copies the right side makes
    of each unit."""

    name: str
    size: Estimate
    copies: float

    @property
    def each_copy_s(self) -> float | None:
        """Return the difference in seconds per further copy, or None if the right side does not make more copies."""
        return self.size.difference / self.copies if self.copies > 0 else None


@functools.cache
def kind_of(stack: str) -> str | None:
    """Return the kind of work of a folded stack; None for an idle CPU and for processes outside the experiment."""
    process, *frames = stack.split(";")
    if not frames or is_idle(frames[-1]):
        return None
    kernel = [folded_stacks.plain(one) for one in frames if one.endswith(folded_stacks.KERNEL)]
    for place in WORK_AREAS:
        if place.process is not None and not re.fullmatch(place.process, process):
            continue
        if _has_any(kernel, place.functions):
            return next(name for name, functions in place.kinds if _has_any(kernel, functions))
    return None if process == OUTSIDE else ENDPOINTS


def _has_any(kernel: Sequence[str], functions: str | None) -> bool:
    """Return whether one of these functions is among the kernel's. None stands for any function, or for none at all."""
    return functions is None or any(_does(functions, one) for one in kernel)


@functools.cache
def _does(functions: str, name: str) -> bool:
    """Return whether a function is one of these, or a copy of it that the compiler made (`name.part.0`)."""
    return re.fullmatch(rf"(?:{functions})(?:\..*)?", name) is not None


def polls(point: ProfiledPoint) -> bool:
    """Return whether the switch of a side polls without a pause: then CPU time per packet is the inverse of the
    speed."""
    return POLLING in _datapaths(point)


def _datapaths(point: ProfiledPoint) -> set[str]:
    """Return the datapaths of the sides that have a switch."""
    return {str(one) for rows in point.rows[:2] for one in rows["datapath"].dropna()}


def parts(
    point: ProfiledPoint,
    rounds: tuple[Sequence[Round], Sequence[Round]],
    variation: RunVariation | None,
    control: Sequence[Round] = (),
) -> list[Part]:
    """Return the parts of the CPU time per unit that arrived, largest difference first; [] without switch and relay.

    control: the rounds of left measured again: what they show as well is no difference.
    """
    if not _datapaths(point) and not any(map(_relay_of, rounds)):
        return []
    copies = _copies(point, 1) - _copies(point, 0)
    sizes = _sizes(kind_of, (*rounds, control), variation)
    result = [Part(name, size, copies) for name, size in sizes.items()]
    return sorted(result, key=lambda one: -abs(one.size.difference))


def relay(sides: Sequence[Sequence[Round]], variation: RunVariation | None) -> Part | None:
    """Return all work of programs that relay data, named after them; None without one. sides: as of `_sizes`."""
    left, right = map(_relay_of, sides[:2])
    if not left and not right:
        return None
    name = right if left in ("", right) else f"{right} instead of {left}" if right else f"the lack of {left}"
    sizes = _sizes(lambda stack: RELAY if kind_of(stack) in RELAY_WORK else None, sides, variation)
    return Part(name, sizes[RELAY], math.nan)


def _relay_of(side: Sequence[Round]) -> str:
    """Return the busiest program that relays data, or "" without one that counts."""
    of = sum((_by_kind(lambda stack: stack.partition(";")[0], one) for one in side), Counter[str]())
    count, name = max(((of[one], one) for one in of if re.fullmatch(RELAY, one)), default=(0, ""))
    return name if count > MIN_SHARE * of.total() else ""


def _sizes(
    kind: Callable[[str], str | None], sides: Sequence[Sequence[Round]], variation: RunVariation | None
) -> dict[str, Estimate]:
    """Return the CPU time of each kind of stacks per unit that arrived. sides: left, right, left measured again."""
    counts = [[_by_kind(kind, one) for one in side] for side in sides]
    worth = [np.array([one.period_s / one.arrived for one in side]) for side in sides]
    names = dict.fromkeys(name for side in counts[:2] for each in side for name in each)

    def size(name: str) -> Estimate:
        samples = [np.array([float(each[name]) for each in side]) for side in counts]
        both = list(zip(samples, worth, strict=True))
        left, right, again = (count * each for count, each in both)
        floors = [float((count * each**2).sum()) / max(len(count), 1) ** 2 for count, each in both]
        return estimate(left, right, variation, floors, again)

    return {name: size(name) for name in names}


def _by_kind(kind: Callable[[str], str | None], one: Round) -> Counter[str]:
    result: Counter[str] = Counter()
    for stack, count in one.stacks.items():
        if (name := kind(stack)) is not None:
            result[name] += count
    return result


def _copies(point: ProfiledPoint, side: int) -> float:
    """Return the copies of each unit that arrived, or NaN if unknown. A side without mirrors makes none."""
    rows = point.rows[side]
    if rows is None or "copies_count" not in rows:
        return math.nan
    ok = rows[rows["status"].eq("ok")]
    unit = protocols.find(point.protocol).unit
    if unit.work not in ok or not ok[unit.work].sum() > 0:
        return math.nan
    return float(ok["copies_count"].fillna(0).sum() / ok[unit.work].sum() * unit.one)


def main_part(parts: Collection[Part], total: Estimate) -> Part | None:
    """Return the part that carries most of a difference: certain, in its direction, and not at the endpoints."""
    whole = max(total.left, total.right)
    along = [
        one
        for one in parts
        if one.name != ENDPOINTS
        and one.size.certain
        and one.size.p < 0.05 / len(parts)
        and abs(one.size.difference) >= MIN_SHARE * whole
        and (not total.certain or one.size.difference * total.difference > 0)
    ]
    return max(along, key=lambda one: abs(one.size.difference), default=None)
