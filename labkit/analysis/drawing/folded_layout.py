"""Fold the drawing of a deep network so that it fits a page.

Containers are at the bottom, the namespaces that join them above, and spines at the top. Each namespace has its
interfaces in three rows: those that lead up, its own, and those that lead down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise, permutations

from labkit.analysis.drawing.flat_layout import (
    PAD_PX,
    TITLE_PX,
    Coordinates,
    Layout,
    TextBox,
    box_for,
    distances,
)
from labkit.analysis.drawing.graph import Join
from labkit.common.topology_state import Place, State

WIDE_PX = 1000.0  # a layout up to this width is not folded
LEVEL_PX, ROW_PX = 58.0, 26.0  # between levels, between rows of a namespace: space for lines
BESIDE_PX, APART_PX = 20.0, 36.0  # between interfaces of a row, between namespaces
LETTER_PX = 8.0  # of a namespace's name, which is bold
LANE_PX = 10.0  # distance of detouring lines from what they pass

Rows = tuple[list[Place], list[Place], list[Place]]


def places(state: State) -> Layout | Levels:
    """Return the layout from left to right, or the folded one if the former is too wide and the latter is legible."""
    beside = Layout(state)
    if beside.width <= WIDE_PX:
        return beside
    folded = Levels(state, beside)
    return folded if folded.width < beside.width and folded.is_clear() else beside


class Levels:
    """The boxes of a state's namespaces and interfaces, and the lines between the interfaces, as in `Layout`,
    but in rows below each other.

    The order from left to right is that of the `Layout`.
    """

    def __init__(self, state: State, beside: Layout) -> None:
        self._joins = [join for join, _ in beside.lines]
        self._others: dict[Place, list[Place]] = {}  # by links, not by tunnels
        self._peers: dict[Place, list[Place]] = {}  # by tunnels
        for join in self._joins:
            for one, other in permutations(join.ends, 2):
                (self._peers if join.kind == "tunnel" else self._others).setdefault(one, []).append(other)
        where = {name: (box.x, box.y) for name, box in beside.namespaces.items()}
        self._names = sorted(where, key=lambda name: where[name])
        self._level = self._levels(state)
        self.interfaces = {place: box_for(box.lines) for place, box in beside.interfaces.items()}
        self._rows: dict[str, Rows] = {}
        for name in sorted(self._names, key=lambda name: self._level[name]):
            self._rows[name] = self._rows_of_interfaces(name)
        self.namespaces = {name: self._namespace_box(name) for name in self._names}
        self._across()
        self._down()
        self.width = max((box.right for box in self.namespaces.values()), default=0.0)
        self.height = max((box.bottom for box in self.namespaces.values()), default=0.0)
        self._lanes = 0
        self.lines = [(join, self._line(join)) for join in self._joins]
        for box in self.namespaces.values():
            if any(crosses(line, _title(box)) for _, line in self.lines):
                box.title_px = box.width - len(box.lines[0]) * LETTER_PX - PAD_PX

    def _neighbours(self, name: str) -> set[str]:
        """Return the namespaces that a namespace is linked with."""
        own = [place for place in self._others if place.namespace == name]
        return {far.namespace for place in own for far in self._others[place]} - {name}

    def _levels(self, state: State) -> dict[str, int]:
        """Return each namespace's distance in links from the nearest namespace at an end."""
        beside = {name: self._neighbours(name) for name in self._names}
        ends = {end.namespace for pair in state.pairs for end in pair}
        ends |= {name for name in beside if len(beside[name]) <= 1}
        return dict.fromkeys(self._names, 0) | distances(beside, ends)

    def _step(self, place: Place) -> int:
        """Return whether an interface is joined with a higher level (1), a lower level (-1), or neither (0)."""
        here = self._level[place.namespace]
        steps = [self._level[far.namespace] - here for far in self._others.get(place, [])]
        return next((1 if step > 0 else -1 for step in steps if step), 0)

    def _rows_of_interfaces(self, name: str) -> Rows:
        """Return the rows of a namespace from top to bottom, each in the order of its neighbours.

        The rows of the levels below must be known already.
        """
        own = [place for place in self.interfaces if place.namespace == name]
        middle = sorted((place for place in own if self._step(place) == 0), key=self._side)

        def order(place: Place) -> tuple[float, ...]:
            inside = [middle.index(other) for other in self._others.get(place, []) if other in middle]
            inside += [at for at, other in enumerate(middle) if place in self._others.get(other, [])]
            far = [other for other in self._others.get(place, []) if other.namespace != name]
            above = [
                self._rows[other.namespace][0].index(other)
                for other in far
                if other.namespace in self._rows and other in self._rows[other.namespace][0]
            ]
            names = (self._names.index(other.namespace) for other in far)
            return min(inside, default=0), min(names, default=0), min(above, default=0)

        up, down = (sorted((p for p in own if self._step(p) == step), key=order) for step in (1, -1))
        return up, middle, down

    def _side(self, place: Place) -> float:
        """Return the side of a tunnel's interface, which is that of its peer: -1 left, 1 right, 0 neither."""
        here = self._names.index(place.namespace)
        sides = {self._names.index(far.namespace) > here for far in self._peers.get(place, [])}
        return 0.0 if len(sides) != 1 else 1.0 if sides == {True} else -1.0

    def _namespace_box(self, name: str) -> TextBox:
        """Return the box of a namespace, as wide as its widest row."""
        wide = [
            sum(self.interfaces[place].width for place in row) + BESIDE_PX * (len(row) - 1)
            for row in self._rows[name]
            if row
        ]
        return TextBox([name], max([*wide, len(name) * LETTER_PX]) + 2 * PAD_PX, TITLE_PX + PAD_PX)

    def _across(self) -> None:
        """Put each namespace above those that lead only to it; one without such namespaces goes above all that it leads
        to."""
        above = {
            name: [other for other in self._neighbours(name) if self._level[other] > self._level[name]]
            for name in self._names
        }
        below = {name: [other for other in self._names if above[other] == [name]] for name in self._names}
        x = 0.0
        for name in (name for name in self._names if len(above[name]) != 1):
            if below[name] or self._level[name] == 0:
                x += self._hang(name, x, below) + APART_PX
        free = (name for name in self._names if len(above[name]) != 1 and not below[name])
        tops = [name for name in free if self._level[name]]
        for level in sorted({self._level[name] for name in tops}):
            here = [self.namespaces[name] for name in tops if self._level[name] == level]
            start = (x - APART_PX - sum(box.width + APART_PX for box in here) + APART_PX) / 2
            for box in here:
                box.x = max(start, 0.0)
                start = box.right + APART_PX
        for name in self._names:
            self._spread(name)

    def _hang(self, name: str, x: float, below: dict[str, list[str]]) -> float:
        """Put a namespace and all that hangs below it to the right of `x`, and return their width."""
        box, right = self.namespaces[name], x
        for other in below[name]:
            right += self._hang(other, right, below) + APART_PX
        inner = max(right - x - APART_PX, 0.0)
        if box.width > inner:
            self._shift(below[name], (box.width - inner) / 2, below)
        box.x = x + max(inner - box.width, 0.0) / 2
        return max(inner, box.width)

    def _shift(self, names: Iterable[str], by: float, below: dict[str, list[str]]) -> None:
        for name in names:
            self.namespaces[name].x += by
            self._shift(below[name], by, below)

    def _spread(self, name: str) -> None:
        """Give the interfaces of each row equal space between and beside them."""
        box = self.namespaces[name]
        for row in self._rows[name]:
            boxes = [self.interfaces[place] for place in row]
            free = box.width - 2 * PAD_PX - sum(one.width for one in boxes)
            x = box.x + PAD_PX
            for one in boxes:
                one.x = x + free / (2 * len(boxes))
                x = one.x + one.width + free / (2 * len(boxes))

    def _down(self) -> None:
        """Place the levels from the highest down. Rows of all namespaces of a level have the same height."""
        y = 0.0
        for level in sorted(set(self._level.values()), reverse=True):
            here = [name for name in self._names if self._level[name] == level]
            top, y = y, y + TITLE_PX
            for part in range(3):
                boxes = [self.interfaces[place] for name in here for place in self._rows[name][part]]
                for one in boxes:
                    one.y = y
                y += max((one.height for one in boxes), default=-ROW_PX) + ROW_PX
            y += PAD_PX - ROW_PX
            for name in here:
                self.namespaces[name].y, self.namespaces[name].height = top, y - top
            y += LEVEL_PX

    def _line(self, join: Join) -> list[Coordinates]:
        """Return the line between two interfaces: downwards if one is below the other, else sideways, or around below
        their level."""
        near, far = sorted(join.ends, key=lambda place: self.interfaces[place].x)
        left, right = self.interfaces[near], self.interfaces[far]
        if left.bottom <= right.y or right.bottom <= left.y:
            upper, lower = sorted((left, right), key=lambda box: box.y)
            return [(upper.middle[0], upper.bottom), (lower.middle[0], lower.y)]
        straight = [(left.right, left.middle[1]), (right.x, right.middle[1])]
        if not self._crosses_label(straight):
            return straight
        self._lanes += 1
        bottom = max(self.namespaces[place.namespace].bottom for place in (near, far))
        away_px = LANE_PX * self._lanes
        y = bottom + away_px
        out = self.namespaces[near.namespace].right + away_px
        back = self.namespaces[far.namespace].x - away_px
        return [straight[0], (out, straight[0][1]), (out, y), (back, y), (back, straight[1][1]), straight[1]]

    def _crosses_label(self, line: Sequence[Coordinates]) -> bool:
        """Return whether a line crosses a label."""
        boxes = [*self.interfaces.values(), *map(_title, self.namespaces.values())]
        return any(crosses(line, box) for box in boxes)

    def is_clear(self) -> bool:
        """Return whether no line crosses a label and no namespaces overlap."""
        boxes = list(self.namespaces.values())
        clear = not any(
            one.x < other.right and other.x < one.right and one.y < other.bottom and other.y < one.bottom
            for at, one in enumerate(boxes)
            for other in boxes[:at]
        )
        return clear and not any(self._crosses_label(line) for _, line in self.lines)


def _title(box: TextBox) -> TextBox:
    """Return the box of a namespace's name."""
    wide = len(box.lines[0]) * LETTER_PX + PAD_PX
    return TextBox(box.lines, wide, TITLE_PX - PAD_PX, box.x + box.title_px, box.y + PAD_PX / 2)


def crosses(line: Sequence[Coordinates], box: TextBox) -> bool:
    """Return whether a line runs through the inside of a box (Liang-Barsky clipping of each of its segments)."""
    for (x0, y0), (x1, y1) in pairwise(line):
        begin, end = 0.0, 1.0
        sides = ((x0, x1 - x0, box.x + 1, box.right - 1), (y0, y1 - y0, box.y + 1, box.bottom - 1))
        for start, step, low, high in sides:
            if step == 0:
                begin, end = (begin, end) if low < start < high else (1.0, 0.0)
            else:
                one, other = sorted(((low - start) / step, (high - start) / step))
                begin, end = max(begin, one), min(end, other)
        if begin < end:
            return True
    return False
