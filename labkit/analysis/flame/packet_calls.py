"""Show the calls of one packet, as the observer function_graph recorded them.

The drawing is an icicle whose widths are times, with the text of ftrace below it. Those of several arms are one below
the other, on one scale of time. A table compares the function times of two packets.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from labkit.analysis import theme
from labkit.analysis.flame.flame_graph import Flame
from labkit.analysis.flame.load_profiles import observed, usable_rows, why_not
from labkit.analysis.load import emulated
from labkit.common import call_trees, run_folder, safe_files, units
from labkit.common.call_trees import Call, Tree
from labkit.common.errors import BadInput
from labkit.common.units import si

OBSERVER = "function_graph"
MEDIAN = 0.5
ROWS, LETTERS = 25, 36  # a table's rows, and the length of its names
ALIKE = 1.2  # the largest ratio of the arms' shortest calls at which their times are comparable

READ = (
    "The width of a frame is its time. Calls are in order from left to right. The part of a frame with nothing below"
    " it is its self time, which includes functions that are inlined or cannot be traced. It is always drawn at the"
    " frame's end."
)
TABLE = (
    "Self time of each function in these two packets. Functions that only one of them called come first. A single"
    " packet shows what is called. The profiles show how much more it costs."
)


@dataclass(frozen=True)
class PacketCalls:
    """One call of a root function: the packet that it carried, and the notes for its drawing.

    arm: the name of the arm. notes: sentences. shortest_s: the duration of the shortest call recorded with it, most of
    which is the tracer's own time.
    """

    arm: str
    tree: Tree
    notes: Sequence[str]
    shortest_s: float

    @property
    def root(self) -> str:
        """Return the function that contains all others."""
        return self.tree.root.name

    @property
    def text(self) -> str:
        """Return the calls as ftrace printed them."""
        return "\n".join(self.tree.lines)

    def icicle(self, span_s: float | None = None) -> Flame:
        """Return the icicle.

        span_s: the time that the full width stands for, by default the call's duration. It gives several icicles one
        scale.
        """
        tree = self.tree
        names: dict[tuple[str, str], int] = {(tree.process, "process"): 0}
        places = [names.setdefault(_named(call), len(names)) for call in tree.calls]
        total = [max(0, call.total_ns) for call in tree.calls]
        data: dict[str, Any] = {
            "title": f"{self.arm}: {self.root}",
            "subtitle": f"the calls of one packet, {si(tree.root.total_ns / 1e9, 's')}",
            "names": [name for name, _ in names],
            "kinds": [kind for _, kind in names],
            "odd": [],
            "name": [0, *places],
            "depth": [0, *(call.depth + 1 for call in tree.calls)],
            "left": [total[0], *total],
            "own_left": [0, *(max(0, call.self_ns) for call in tree.calls)],
            "unit_s": 1e-9,
            "unit_words": "",
            "colors": theme.FRAMES,
            "font": theme.FRAME_FONT,
            "notes": [*self.notes, READ],
            "text": self.text,
            "text_words": "as ftrace prints it",
        }
        return Flame(data | ({} if span_s is None else {"span": span_s * 1e9}))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return self.icicle()._repr_mimebundle_(include, exclude)


def _named(call: Call) -> tuple[str, str]:
    return (f"{call.name} [{call.module}]", "module") if call.module else (call.name, "kernel")


def packets(rows: pd.DataFrame, name: str) -> list[PacketCalls]:
    """Return the packets of one arm from its rows of one point (`load.profiles`).

    There is one packet per root function that was called, the sender's first. Of several rounds it is the median by
    duration. Raises BadInput if there is none.
    """
    observed_rows, own = usable_rows(rows, OBSERVER)
    if own.empty and len(observed_rows):
        raise BadInput(f"{name} was traced, but none of its calls can be used: {why_not(observed_rows)}")
    if own.empty:
        raise BadInput(f"{name} has no recorded calls of a packet: run it with observe={OBSERVER}")
    result: dict[str, list[tuple[Tree, pd.Series]]] = {}
    for _, row in own.iterrows():
        kept = observed(row["observed"]).get("trees", [])
        there = read(run_folder.artefact(row["folder"], row["artefact"]))
        if len(there) != len(kept):
            raise BadInput(f"{row['artefact']} has {len(there)} calls, but its row lists {len(kept)}")
        for about, tree in zip(kept, there, strict=True):
            if about["part"] == MEDIAN:
                result.setdefault(tree.root.name, []).append((tree, row))
    if not result:
        raise BadInput(f"{name} has no recorded calls of a packet: {own['doubts'].iloc[0]}")
    return [_middle(name, each) for each in result.values()]


def read(path: Path) -> list[Tree]:
    """Return the calls of a file that the observer wrote, in its order. Raises BadInput if it cannot be read."""
    if not path.exists():
        raise BadInput(f"the recorded calls {path} do not exist: measure again with observe={OBSERVER}")
    return list(call_trees.Reader().read(safe_files.text_lines(path)))


def _middle(arm: str, rounds: list[tuple[Tree, pd.Series]]) -> PacketCalls:
    tree = call_trees.median(tree for tree, _ in rounds)
    assert tree is not None
    row = next(row for one, row in rounds if one is tree)
    report = observed(row["observed"])
    of = report["roots"][tree.root.name]["chosen_of"]
    origin = f"One call of {tree.root.name}, by {tree.process} on CPU {tree.cpu}: its duration is the"
    origin += f" median of {of}."
    if len(rounds) > 1:
        durations = sorted(one.root.total_ns / 1e9 for one, _ in rounds)
        ends = f"{si(durations[0], 's')} to {si(durations[-1], 's')}"
        origin += f" It is from the middle one of {len(rounds)} rounds, whose medians are {ends}."
    cost = "Tracing a call adds to its own time and to its caller's self time, so functions that call many others"
    cost += " appear more expensive than they are."
    cost += f" The shortest of the calls took {si(report['shortest_s'], 's')}."
    if pd.notna(row["overhead_ratio"]):
        cost += f" With the tracer the speed was {units.percent(row['overhead_ratio'])} of that without it."
    notes = [origin, cost]
    if bool(emulated(pd.DataFrame([row])).any()):
        notes.append("The CPU was emulated: times on a real one differ.")
    return PacketCalls(arm, tree, notes, report["shortest_s"])


def packets_compared(left: PacketCalls, right: PacketCalls, rows: int = ROWS) -> pd.DataFrame:
    """Return the self times of two packets' functions in µs, and their numbers of calls.

    The rows are the functions that only one packet called, then those that differ most, everything else, and the total,
    which is the duration of the two calls.
    """
    sides = [_by_function(packet.tree) for packet in (left, right)]
    names = sorted({name for side in sides for name in side[1]})
    both = sides[0][0].keys() & sides[1][0].keys()
    order = sorted(names, key=lambda name: (name in both, -abs(sides[1][1][name] - sides[0][1][name])))
    heads = [left.arm, right.arm] if left.arm != right.arm else ["left", "right"]
    result = []
    groups = [(name, [name]) for name in order[:rows]]
    groups += [("everything else", order[rows:])] if order[rows:] else []
    for words, group in [*groups, ("total", order)]:
        count = [sum(side[0][name] for name in group) for side in sides]
        took = [sum(side[1][name] for name in group) for side in sides]
        result.append((words, *count, *(each / 1e3 for each in took), (took[1] - took[0]) / 1e3))
    columns = ["function", *(f"{head}, calls" for head in heads), *(f"{head}, µs" for head in heads)]
    table = pd.DataFrame(result, columns=[*columns, "difference, µs"]).set_index("function")
    for name in table:
        form = "{:+,.1f}" if name == "difference, µs" else "{:,.1f}" if str(name).endswith("µs") else "{:,}"
        table[name] = table[name].map(form.format)
    return table


def _by_function(tree: Tree) -> tuple[Counter[str], Counter[str]]:
    count, took = Counter[str](), Counter[str]()
    for call in tree.calls:
        name = call.name if len(call.name) <= LETTERS else f"{call.name[: LETTERS - 1]}…"
        count[name] += 1
        took[name] += call.self_ns
    return count, took


def side_by_side(arms: Sequence[Sequence[PacketCalls]]) -> Iterator[str | Flame | pd.DataFrame]:
    """Yield text, figures and tables in their order, for the packets of each arm (`packets`).

    Each table compares the first arm with one of the others.
    """
    each = [{packet.root: packet for packet in arm} for arm in arms]
    if len(each) > 1:
        yield f"One scale of time for {'both' if len(each) == 2 else 'all'} sides."
    for root in dict.fromkeys(root for arm in each for root in arm):
        there = [arm[root] for arm in each if root in arm]
        span_s = max(packet.tree.root.total_ns for packet in there) / 1e9
        yield from (packet.icicle(span_s) for packet in there)
        for other in there[1:]:
            yield TABLE + _speed_warning(there[0].shortest_s, other.shortest_s)
            yield packets_compared(there[0], other)
        if len(there) == 1 < len(each):
            yield f"Calls of {root} were recorded for {there[0].arm} only."


def _speed_warning(left_s: float, right_s: float) -> str:
    """Return a warning if the machine was faster on one of the sides, or else an empty text."""
    if min(left_s, right_s) <= 0 or max(left_s, right_s) / min(left_s, right_s) < ALIKE:
        return ""
    return (
        f" The shortest call took {si(left_s, 's')} on one side and {si(right_s, 's')} on the other, so the"
        " machine or its tracer was not equally fast. Compare which functions were called, not their times."
    )
