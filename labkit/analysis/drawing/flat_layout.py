"""Lay out a drawing from left to right: namespaces in columns, clients left and servers right.

Coordinates are in pixels from the top left. Interfaces joined across namespaces have the same height where possible,
and no line crosses a label.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

from labkit.analysis.drawing.graph import Join, joins, label
from labkit.common.topology_state import Namespace, Place, State

Coordinates = tuple[float, float]

CHAR_PX, LINE_PX = 6.9, 16.0  # of a 12 px font; slightly more than most fonts need, because fonts differ
PAD_PX, TITLE_PX = 8.0, 24.0
GAP_PX, ROW_PX = 26.0, 14.0  # between interfaces of one stack, between namespaces
# Between columns of namespaces, between stacks in a namespace: space for lines.
COLUMN_PX, STACK_PX = 100.0, 70.0
DETOUR_PX, CHANNEL_PX = 12.0, 14.0  # distances of detouring lines: from their start, from each other


@dataclass
class TextBox:
    """A rectangle with lines of text; y grows downwards. title_px: the offset of a namespace's name from the left
    edge."""

    lines: list[str]
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0
    title_px: float = 0.0

    @property
    def right(self) -> float:
        """Return the x of the right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Return the y of the lower edge."""
        return self.y + self.height

    @property
    def middle(self) -> Coordinates:
        """Return the centre."""
        return self.x + self.width / 2, self.y + self.height / 2


def box_for(lines: list[str]) -> TextBox:
    """Return a rectangle with room for these lines."""
    return TextBox(lines, max(map(len, lines)) * CHAR_PX + 2 * PAD_PX, len(lines) * LINE_PX + PAD_PX)


class Layout:
    """The boxes of a state's namespaces and interfaces, and the lines between the interfaces.

    The state is a result of `shown` and `first`.
    """

    def __init__(self, state: State) -> None:
        self._joins = joins(state)
        self._others: dict[Place, list[Place]] = {}
        for join in self._joins:
            for one, other in permutations(join.ends):
                self._others.setdefault(one, []).append(other)
        self._rows = [
            list(dict.fromkeys((client.namespace, server.namespace))) for client, server in state.pairs
        ]
        self._columns = columns(state, self._joins)
        self.interfaces = {
            Place(space.name, one.name): box_for(label(one))
            for space in state.namespaces
            for one in space.interfaces
        }
        self._placed: set[str] = set()  # namespaces that have a place
        self._below = 0  # number of lines that go below everything
        self._stacks = {space.name: self._stacked(space) for space in state.namespaces}
        self._even()
        self.namespaces = {space.name: self._namespace_box(space.name) for space in state.namespaces}
        self._across()
        self._down()
        self.width = max((box.right for box in self.namespaces.values()), default=0.0)
        self.height = max((box.bottom for box in self.namespaces.values()), default=0.0)
        # Of the lines below everything, the shortest is uppermost, so that they do not cross each other.
        drawn = {join: self._line(join) for join in sorted(self._joins, key=self._span)}
        self.lines = [(join, drawn[join]) for join in self._joins]
        self.height += CHANNEL_PX / 2 if self._below else 0

    def _stacked(self, space: Namespace) -> tuple[list[Place], list[Place], list[Place]]:
        """Return the interfaces of a namespace as three stacks: joined to the left only, all others, joined to the
        right only.

        A namespace of a pair has one stack.
        """
        left, centre, right = list[Place](), list[Place](), list[Place]()
        here = self._columns[space.name]
        paired = any(space.name in row for row in self._rows)
        for place in (Place(space.name, one.name) for one in space.interfaces):
            others = [other for other in self._others.get(place, []) if other.namespace != space.name]
            sides = {self._columns[other.namespace] - here > 0 for other in others}
            stack = centre if paired or len(sides) != 1 else right if sides == {True} else left
            stack.append(place)
        return left, self._chain(centre), right

    def _chain(self, stack: list[Place]) -> list[Place]:
        """Return a stack in an order in which joined interfaces are neighbours where possible."""
        every = {place: self._others.get(place, []) for place in stack}
        inside = {place: [one for one in others if one in stack] for place, others in every.items()}
        order: list[Place] = []
        for start in sorted(stack, key=lambda place: len(inside[place]) == 2):
            waiting = [start]
            while waiting:
                place = waiting.pop()
                if place not in order:
                    order.append(place)
                    waiting += reversed(inside[place])
        return order

    def _even(self) -> None:
        """Make interfaces of one stack equally wide, also across the namespaces of a column."""
        for column in set(self._columns.values()):
            names = [name for name in self._stacks if self._columns[name] == column]
            for part in range(3):
                boxes = [self.interfaces[place] for name in names for place in self._stacks[name][part]]
                for box in boxes:
                    box.width = max(other.width for other in boxes)

    def _namespace_box(self, name: str) -> TextBox:
        """Return the box of a namespace, with the least width that it needs."""
        widths = [self.interfaces[stack[0]].width for stack in self._stacks[name] if stack]
        inner = sum(widths) + STACK_PX * max(len(widths) - 1, 0)
        return TextBox([name], max(inner, len(name) * CHAR_PX) + 2 * PAD_PX, TITLE_PX + PAD_PX)

    def _across(self) -> None:
        x = 0.0
        for column in sorted(set(self._columns.values())):
            boxes = {name: box for name, box in self.namespaces.items() if self._columns[name] == column}
            width = max(box.width for box in boxes.values())
            for name, box in boxes.items():
                box.x, box.width = x, width
                for part, stack in zip((0, 0.5, 1), self._stacks[name], strict=True):
                    for place in stack:
                        one = self.interfaces[place]
                        one.x = x + PAD_PX + (width - 2 * PAD_PX - one.width) * part
            x += width + COLUMN_PX

    def _down(self) -> None:
        """Place the rows of pairs first, and then the namespaces between them at the height of their neighbours."""
        y = 0.0
        for row in self._rows:
            for name in row:
                if name not in self._placed:
                    self._pile(self._stacks[name][1], y + TITLE_PX)
                    self._enclose(name)
            self._placed.update(row)
            y = max(y, *(self.namespaces[name].bottom + ROW_PX for name in row))
        free: dict[int, float] = {}
        for name in self._placed:
            column = self._columns[name]
            free[column] = max(free.get(column, 0.0), self.namespaces[name].bottom + ROW_PX)
        between = self.namespaces.keys() - self._placed
        for column in sorted({self._columns[name] for name in between}):
            here = [name for name in between if self._columns[name] == column]
            for name in sorted(here, key=lambda name: (self._height(name, y / 2), name)):
                self._place_between(name, y - ROW_PX, free.get(column, 0.0))
                free[column] = self.namespaces[name].bottom + ROW_PX
            self._placed.update(here)

    def _height(self, name: str, usual: float) -> float:
        """Return the best height for a namespace: the mean height of the interfaces that it is joined with, or else
        `usual`."""
        places = [place for stack in self._stacks[name] for place in stack]
        heights = [height for place in places if (height := self._far_height(place)) is not None]
        return sum(heights) / len(heights) if heights else usual

    def _far_height(self, place: Place) -> float | None:
        """Return the height of the interface joined with this one in another namespace, or None if it has no place
        yet."""
        for far in self._others.get(place, []):
            if far.namespace != place.namespace and far.namespace in self._placed:
                return self.interfaces[far].middle[1]
        return None

    def _place_between(self, name: str, height: float, top: float) -> None:
        usual = self._height(name, height / 2)
        sides = [place for stack in self._stacks[name][::2] for place in stack]
        for stack in self._stacks[name][::2]:
            self._level(stack, usual)
        ends = [self.interfaces[place] for place in sides]
        centre = (min(one.y for one in ends) + max(one.bottom for one in ends)) / 2 if ends else usual
        stack = self._stacks[name][1]
        self._pile(stack, centre - self._pile(stack, 0.0) / 2)
        self._enclose(name)
        shift = max(top - self.namespaces[name].y, 0.0)
        for place in (*sides, *stack):
            self.interfaces[place].y += shift
        self.namespaces[name].y += shift

    def _pile(self, stack: Sequence[Place], y: float) -> float:
        """Stack the interfaces below each other from `y` on, and return the height of the stack."""
        start = y
        for place in stack:
            self.interfaces[place].y = y
            y = self.interfaces[place].bottom + GAP_PX
        return y - start - (GAP_PX if stack else 0)

    def _level(self, stack: list[Place], usual: float) -> None:
        """Put each interface at the height of the one it is joined with, but below the one before."""
        heights = {place: self._far_height(place) for place in stack}
        wanted = {place: usual if height is None else height for place, height in heights.items()}
        least = -float("inf")
        for place in sorted(stack, key=lambda place: wanted[place]):
            one = self.interfaces[place]
            one.y = max(wanted[place] - one.height / 2, least)
            least = one.bottom + PAD_PX

    def _enclose(self, name: str) -> None:
        box = self.namespaces[name]
        inside = [self.interfaces[place] for stack in self._stacks[name] for place in stack]
        if inside:
            box.y = min(one.y for one in inside) - TITLE_PX
            bottom = max(one.bottom for one in inside)
            mirrors = (join.ends for join in self._joins if join.kind == "mirror")
            own = (ends for ends in mirrors if {place.namespace for place in ends} == {name})
            if any(self._passes_centre(*ends) for ends in own):
                centre = self._stacks[name][1]
                bottom = max(bottom, *(self.interfaces[place].bottom + DETOUR_PX for place in centre))
            box.height = bottom + PAD_PX - box.y

    def _span(self, join: Join) -> float:
        """Return the horizontal distance between two joined interfaces."""
        one, other = (self.interfaces[place].x for place in join.ends)
        return abs(one - other)

    def _line(self, join: Join) -> list[Coordinates]:
        """Return the line between two joined interfaces, from edge to edge.

        It runs sideways if they are beside each other, downwards if one is below the other, and around obstacles.
        """
        near, far = sorted(join.ends, key=lambda place: self.interfaces[place].x)
        if join.kind == "mirror" and self._passes_centre(near, far):
            return self._around_centre(near, far)
        left, right = self.interfaces[near], self.interfaces[far]
        if left.right <= right.x:
            straight = [(left.right, left.middle[1]), (right.x, right.middle[1])]
            if near.namespace != far.namespace and self._is_crossing(straight, (near, far)):
                return self._detour(near, far)
            return straight
        upper, lower = sorted((left, right), key=lambda box: box.y)
        x = (max(upper.x, lower.x) + min(upper.right, lower.right)) / 2
        between = (box for box in self.interfaces.values() if upper.bottom < box.middle[1] < lower.y)
        if any(box.x < x < box.right for box in between):
            far_x = max(upper.right, lower.right) + DETOUR_PX
            (_, above), (_, below) = upper.middle, lower.middle
            return [(upper.right, above), (far_x, above), (far_x, below), (lower.right, below)]
        return [(x, upper.bottom), (x, lower.y)]

    def _passes_centre(self, *ends: Place) -> bool:
        """Return whether a line between two interfaces of one namespace has to pass its centre stack: both are in the
        stacks at its sides."""
        left, centre, right = self._stacks[ends[0].namespace]
        return bool(centre) and all(place in (*left, *right) for place in ends)

    def _around_centre(self, near: Place, far: Place) -> list[Coordinates]:
        """Return a line that goes below the centre stack. All such lines of a namespace share the way there, as mirrors
        copy the same ports."""
        _left, centre, right = self._stacks[near.namespace]
        stubs = []
        for place in (near, far):
            box = self.interfaces[place]
            edge, away_px = (box.x, -DETOUR_PX) if place in right else (box.right, DETOUR_PX)
            stubs.append([(edge, box.middle[1]), (edge + away_px, box.middle[1])])
        (start, (near_x, _)), (end, (far_x, _)) = stubs[0], stubs[1]
        y = max(self.interfaces[place].bottom for place in centre) + DETOUR_PX
        below = [(near_x, y), (far_x, y)] if near_x != far_x else []
        return [start, stubs[0][1], *below, stubs[1][1], end]

    def _is_crossing(self, line: list[Coordinates], ends: tuple[Place, Place]) -> bool:
        """Return whether a line would cross another namespace, or another interface of its own namespaces."""
        own = {place.namespace for place in ends}
        boxes = [box for name, box in self.namespaces.items() if name not in own]
        inside = (place for place in self.interfaces if place.namespace in own)
        boxes += [self.interfaces[place] for place in inside if place not in ends]
        (x0, y0), (x1, y1) = line
        for box in boxes:
            from_x, to_x = max(x0, box.x), min(x1, box.right)
            heights = [y0 + (y1 - y0) * (x - x0) / (x1 - x0) for x in (from_x, to_x)] if from_x < to_x else []
            if heights and min(heights) < box.bottom and max(heights) > box.y:
                return True
        return False

    def _detour(self, near: Place, far: Place) -> list[Coordinates]:
        """Return a line that goes around below everything. Each further detour is below the one before."""
        self.height += CHANNEL_PX
        self._below += 1
        down = self._outwards(near, DETOUR_PX + CHANNEL_PX / 2 * self._below, 1)
        up = self._outwards(far, DETOUR_PX + CHANNEL_PX / 2 * self._below, -1)
        return [*down, (down[-1][0], self.height), (up[-1][0], self.height), *reversed(up)]

    def _outwards(self, place: Place, away_px: float, usual: int) -> list[Coordinates]:
        """Return the points from an interface to beside its namespace, without crossing another interface."""
        box, namespace = self.interfaces[place], self.namespaces[place.namespace]
        left, centre, right = self._stacks[place.namespace]
        side = -1 if place in left else 1 if place in right else usual
        out = namespace.right + away_px if side > 0 else namespace.x - away_px
        edge = box.right if side > 0 else box.x
        if place not in centre or not (right if side > 0 else left):
            return [(edge, box.middle[1]), (out, box.middle[1])]
        inside, below = edge + side * DETOUR_PX, namespace.bottom - PAD_PX / 2
        return [(edge, box.middle[1]), (inside, box.middle[1]), (inside, below), (out, below)]


def columns(state: State, joins: Sequence[Join]) -> dict[str, int]:
    """Return the column of each namespace.

    Clients are in column 0 and servers in the last one. The others are as many columns away as they are links away from
    the clients. A namespace with a single neighbour is on that neighbour's outer side.
    """
    clients = {client.namespace for client, _ in state.pairs}
    servers = {server.namespace for _, server in state.pairs} - clients
    beside: dict[str, set[str]] = {space.name: set() for space in state.namespaces}
    for join in joins:
        for one, other in permutations({place.namespace for place in join.ends}, 2):
            if join.kind != "tunnel":
                beside[one].add(other)
    from_clients, from_servers = distances(beside, clients), distances(beside, servers)
    result = {name: 0 if name in clients else from_clients.get(name, 1) for name in beside}
    single = {name for name in beside if len(beside[name]) == 1} - clients - servers
    for name in single:
        [at] = beside[name]
        outwards = -1 if from_clients.get(at, 0) < from_servers.get(at, 0) else 1
        result[name] = max(result[at] + outwards, 0)
    inner = [result[name] for name in result if name not in servers | single]
    return result | dict.fromkeys(servers, 1 + max(inner, default=0))


def distances(beside: dict[str, set[str]], starts: Iterable[str]) -> dict[str, int]:
    """Return for each namespace that can be reached its distance in links from the nearest start."""
    result = dict.fromkeys(starts, 0)
    waiting = list(result)
    for name in waiting:  # the list grows during the loop
        for other in beside[name] - result.keys():
            result[other] = result[name] + 1
            waiting.append(other)
    return result
