"""Write the notes on a drawn profile: how it was sampled, what that distorts, and what was left out."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from labkit.analysis.flame import folded_stacks
from labkit.analysis.flame.difference import Difference
from labkit.analysis.flame.frame_tree import Tree
from labkit.analysis.flame.profile import Arm
from labkit.analysis.flame.significance import CLAIM_SHARE
from labkit.common import units

# Functions that turn interrupts on (kernel/locking/spinlock.c, kernel/softirq.c, kernel/sched/core.c,
# kernel/entry/common.c, net/core/dev.c). A pending clock interrupt is taken there, so the time with interrupts off is
# counted there.
TURNS_ON = re.compile(
    r"_raw_(spin|read|write)_unlock_irq(restore)?|finish_task_switch(\..*)?|handle_softirqs|__do_softirq"
    r"|irqentry_exit_to_user_mode|exit_to_user_mode_loop|syscall_exit_to_user_mode|net_rx_action|process_backlog"
)
CLOCKS = ("cpu-clock", "task-clock")  # events without a non-maskable interrupt
# The tolerated relative difference between the samples' time and the CPU time that the kernel counts.
COVERED = 0.1


def distorted(tree: Tree, event: str) -> list[int]:
    """Return the names (indices into tree.names) where samples pile up with this event."""
    if not event.startswith(CLOCKS):
        return []
    kernel = [(at, name) for at, name in enumerate(tree.names) if name.endswith(folded_stacks.KERNEL)]
    return [at for at, name in kernel if TURNS_ON.fullmatch(folded_stacks.plain(name))]


def notes(tree: Tree, arms: Sequence[Arm]) -> list[str]:
    """Return sentences for below the drawing. The tree's columns are the rounds of these arms."""
    result = []
    for event in dict.fromkeys(arm.event for arm in arms):
        if event.startswith(CLOCKS):
            result.append(_piled(tree, event))
        elif event == "cycles":
            result.append(
                "Sampled by CPU cycles. The number of cycles varies between samples, so samples are weighted by their"
                " cycles, and the sum is scaled to the CPU time that the kernel counted."
            )
    rested, all_of_it = int(tree.idle.sum()), int(tree.idle.sum() + tree.total[0].sum())
    if rested:
        result.append(f"Samples of idle CPUs are left out: {units.percent(rested / all_of_it)} of all.")
    nameless = [at for at, name in enumerate(tree.names) if "[unknown]" in name]
    unknown = tree.own[np.isin(tree.name, nameless)].sum() / max(all_of_it - rested, 1)
    if unknown > 0.02:
        share = units.percent(unknown)
        result.append(f"{share} of the samples are in functions without a known name ([unknown]).")
    result += [arm.left_out for arm in arms if arm.left_out]
    return result + list(_uncovered(tree, arms))


def _piled(tree: Tree, event: str) -> str:
    samples = tree.by_name(tree.own).sum(axis=1)
    odd = distorted(tree, event)
    most = max(odd, key=lambda at: int(samples[at]), default=0)
    here = ""
    if odd and samples[odd].sum():
        share = units.percent(float(samples[odd].sum() / max(tree.total[0].sum(), 1)))
        where = folded_stacks.plain(tree.names[most])
        here = f" Here that is {share} of the samples, most of them in {where}."
    return (
        f"Sampled by {event}, which cannot interrupt code that has disabled interrupts: its time is charged to"
        f" the function that enables them again (marked †), not to the function that spent it.{here}"
    )


def _uncovered(tree: Tree, arms: Sequence[Arm]) -> Iterator[str]:
    """Yield a sentence for each arm whose samples' time differs from the CPU time that the kernel counted."""
    ends = np.cumsum([len(arm.rounds) for arm in arms])[:-1]
    for arm, samples in zip(arms, np.split(tree.total[0], ends), strict=True):
        known = [
            ((count + each.others_count) * each.period_s, each.cpu_s)
            for count, each in zip(samples, arm.rounds, strict=True)
            if each.cpu_s
        ]
        if known and abs((ratio := sum(s for s, _ in known) / sum(cpu for _, cpu in known)) - 1) > COVERED:
            yield f"The samples of {arm.name} make up {units.percent(ratio)} of the CPU time that the kernel counted."


def judgement_notes(it: Difference) -> list[str]:
    """Return sentences on how frames got their colours, and what the control says about that."""
    rounds = f"{len(it.left.rounds)} and {len(it.right.rounds)} rounds"
    if not it.frames.stands_out.any() and np.isnan(it.frames.p).all():
        return [
            f"Nothing is coloured: {rounds} show no spread between rounds. At least two rounds of each arm are needed."
        ]
    result = [
        f"Coloured frames stand out from the spread between rounds (Student's t over {rounds}). At most"
        f" {units.exact_percent(CLAIM_SHARE)} of them are expected to be chance (Benjamini-Hochberg)."
    ]
    if it.frames.control is not None:
        count = int(it.frames.control.stands_out.sum())
        result.append(
            f"{it.left.name} against itself (A/A control): {count:,} of {len(it.tree):,} frames would be coloured."
            " Frames that differ no more than that are grey."
        )
    return result
