"""Build flame graphs for notebooks, reports and standalone pages: icicles of thousands of frames, drawn by flame.js.

A notebook stores a flame graph as data (MIME), which a report and labkit's extension of JupyterLab draw with their own
script, and as HTML, which other programs draw if the notebook is trusted. plotly's icicle is not an alternative: it
takes more than half a minute for 5,000 frames and cannot search by name.
"""

import base64
import html
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.analysis import protocols, theme
from labkit.analysis.flame import folded_stacks, notes
from labkit.analysis.flame import profile as arms
from labkit.analysis.flame.difference import Difference, kinds
from labkit.analysis.flame.frame_tree import Tree
from labkit.analysis.flame.profile import Arm
from labkit.analysis.flame.significance import round_means
from labkit.common import run_folder, units
from labkit.common.errors import BadInput

MIME = "application/vnd.labkit.flame.v1+json"
MAX_FRAMES = 10_000  # the largest frames; the others are too small to see even when zoomed
# Of a still picture, in pixels: image width, row height, letter width, narrowest frame.
WIDTH, ROW, TEXT, MIN_WIDTH = 900, 17, 6.5, 1.0
_HERE = Path(__file__).parent
_UNTRUSTED = (
    "This is a still picture of the flame graph: in a notebook that is not trusted, no script runs. Run the cell again,"
    " or trust the notebook, to search, to zoom, and to see the numbers of a frame."
)
# The script draws every graph of the page that is not drawn yet.
_PAGE = """(() => {
%s
for (const place of document.querySelectorAll(".labkit-flame:not([data-drawn])")) {
  place.dataset.drawn = "";
  new Flame(place, JSON.parse(place.querySelector("script[type='application/json']").textContent));
}
})();
"""


class Flame:
    """A flame graph. A notebook draws it if it is the last expression of a cell. `data`: the input of flame.js."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def html(self) -> str:
        """Return self-contained HTML that draws the flame graph. It fetches nothing."""
        # Any notebook shows the picture, trusted or not.
        coded = base64.b64encode(still_picture(self.data).encode()).decode()
        picture = f'<img alt="flame graph" width="100%" src="data:image/svg+xml;base64,{coded}">'
        return (
            f'<style>{style()}</style><div class="labkit-flame"><p>{_UNTRUSTED}</p>{picture}'
            f'<script type="application/json">{as_json(self.data)}</script></div><script>{script()}</script>'
        )

    def write(self, path: Path) -> Path:
        """Write the flame graph as a standalone page, and return the path. Raises Failed if it cannot be written."""
        page = f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n{self.html()}\n</html>\n'
        run_folder.write(path, page.encode())
        return path

    def __repr__(self) -> str:
        return f"{self.data['title']}: {len(self.data['name']):,} frames"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {MIME: self.data, "text/html": self.html(), "text/plain": repr(self)}


class Flames(list[Flame]):
    """Flame graphs, each of which a notebook draws."""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        for one in self:
            display(one)


def graph(arm: Arm, per: str | None = None) -> Flame:
    """Return the flame graph of one arm.

    per: a key of PER; the values are then means over rounds per packet, gigabyte or second of busy CPU. Without it they
    are all samples.
    """
    tree = arm.tree()
    of = protocols.cost_unit(per) if per else None

    def values(samples: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        if of:
            return round_means(samples, arms.seconds_per_sample(arm, of)).mean / of.unit_s
        counts: npt.NDArray[np.int64] = samples.sum(axis=1)
        return counts.astype(float)

    total = values(tree.total)
    order = _order(tree, total)
    data = _frames(tree, order, arm.event) | {
        "title": arm.name,
        "subtitle": f"{units.counted(len(arm.rounds), 'round')}, {arm.event}",
        "unit_s": of.unit_s if of else None,
        "unit_words": f"CPU time per {of.description}" if of else "",
        "left": _five_digits(total[order]),
        "own_left": _five_digits(values(tree.own)[order]),
        "notes": [*_left_out(tree, order), *notes.notes(tree, [arm])],
    }
    return Flame(data)


def draw_difference(difference: Difference) -> Flame:
    """Return the differential flame graph. Frames that stand out are coloured by how much more or less they cost."""
    it, of = difference, difference.per
    spread, own = it.frames, it.judge(it.tree.own)
    order = _order(it.tree, (spread.left.mean + spread.right.mean) / 2)
    columns = {
        "left": spread.left.mean, "right": spread.right.mean, "half": spread.half,
        "own_left": own.left.mean, "own_right": own.right.mean,
    }  # fmt: skip
    there = [arm for arm in (it.left, it.right, it.control) if arm is not None]
    known = not np.isnan(spread.half).any()
    if not known:
        del columns["half"]
    data = _frames(it.tree, order, it.left.event)
    data |= {name: _five_digits(values[order] / of.unit_s) for name, values in columns.items()}
    data |= {
        "title": f"{it.right.name} against {it.left.name}",
        "subtitle": f"CPU time per {of.description}; colour: how much more (orange) or less (blue)",
        "left_name": it.left.name,
        "right_name": it.right.name,
        "unit_s": of.unit_s,
        "unit_words": f"per {of.description}",
        "stands_out": it.frames.stands_out[order].astype(int).tolist(),
        "notes": [*notes.judgement_notes(it), *_left_out(it.tree, order), *notes.notes(it.tree, there)],
    }
    return Flame(data)


def _order(tree: Tree, size: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the frames to draw in preorder, siblings in order of size, the largest first."""
    if not tree.total[0].any():
        raise BadInput("these profiles have no sample of a busy CPU, so there is nothing to draw")
    # No frame is larger than its parent, and parents come first, so the largest frames form a tree.
    kept = np.zeros(len(tree), dtype=bool)
    kept[np.lexsort((np.arange(len(tree)), -size))[:MAX_FRAMES]] = True
    below: list[list[int]] = [[] for _ in range(len(tree))]
    # the smallest first, because a stack returns the last one first
    for frame in np.lexsort((tree.name, size)):
        if kept[frame] and frame:
            below[tree.parent[frame]].append(int(frame))
    result, waiting = [], [0]
    while waiting:
        result.append(frame := waiting.pop())
        waiting += below[frame]
    return np.array(result)


def _frames(tree: Tree, order: npt.NDArray[np.int64], event: str) -> dict[str, Any]:
    """Return the names, depths and colours of the frames to draw. Only drawn names are included, in order of
    appearance."""
    used, places = {0: 0}, []
    for name in tree.name[order].tolist():
        places.append(used.setdefault(name, len(used)))
    of_name, odd = kinds(tree), set(notes.distorted(tree, event))
    return {
        "names": [folded_stacks.plain(tree.names[name]) for name in used],
        "kinds": ["process" if name == 0 else of_name[name] for name in used],
        "odd": [place for name, place in used.items() if name in odd],
        "name": places,
        "depth": tree.depth[order].tolist(),
        "colors": theme.FRAMES,
        "font": theme.FRAME_FONT,
    }


def _left_out(tree: Tree, order: npt.NDArray[np.int64]) -> list[str]:
    count = len(tree) - len(order)
    return [f"The {count:,} smallest frames are not drawn."] if count else []


def _five_digits(values: npt.NDArray[np.float64]) -> list[float]:
    """Return the numbers with five digits: more precision than is visible, in less than half the length."""
    return [float(f"{value:.5g}") for value in values]


@cache
def style() -> str:
    """Return the style sheet of flame graphs."""
    return (_HERE / "flame.css").read_text()


@cache
def script() -> str:
    """Return the script that draws all flame graphs of a page that are not drawn yet."""
    return _PAGE % (_HERE / "flame.js").read_text()


def as_json(data: dict[str, Any]) -> str:
    """Return JSON that is safe in a script element, where `</script>` or `<!--` would break the page."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def still_picture(data: dict[str, Any]) -> str:
    """Return a flame graph (`Flame.data`) as a still SVG image, for places where no script runs.

    The title and the subtitle are above the frames. Widths are those of the left side, or the means of both. Frames too
    narrow to see are left out.
    """
    left = data["left"]
    values = [(one + other) / 2 for one, other in zip(left, data.get("right", left), strict=True)]
    scale = WIDTH / values[0] if values[0] else 0.0
    begins: list[float] = []  # x of the next frame, by depth
    heads = [data["title"], data["subtitle"]]
    shapes = [f'<text x="3" y="{at * ROW + 12}">{html.escape(text)}</text>' for at, text in enumerate(heads)]
    rows = len(heads)
    for at, depth in enumerate(data["depth"]):
        width = values[at] * scale
        x = begins[depth] if depth < len(begins) else 0.0
        del begins[depth:]
        begins += [x + width, x]  # the next sibling starts at the frame's end, its first child at its start
        if width < MIN_WIDTH:
            continue
        row = depth + len(heads)
        rows = max(rows, row + 1)
        name = data["names"][data["name"][at]]
        y = row * ROW
        place = f'x="{x:.1f}" y="{y}" width="{max(width - 0.6, 0.4):.1f}" height="{ROW - 1}"'
        shapes.append(f'<rect {place} fill="{_color(data, at)}"/>')
        letters = int((width - 6) / TEXT)
        if letters >= 3:
            text = name if len(name) <= letters else f"{name[: letters - 1]}…"
            shapes.append(f'<text x="{x + 3:.1f}" y="{y + 12}">{html.escape(text)}</text>')
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {rows * ROW}" style="background:white"'
    return f'<svg {head} font-size="11" font-family="{html.escape(data["font"])}">{"".join(shapes)}</svg>'


def _color(data: dict[str, Any], at: int) -> str:
    colors = data["colors"]
    if "right" not in data:
        return str(colors.get(data["kinds"][data["name"][at]], colors["same"]))
    if not data["stands_out"][at]:
        return str(colors["same"])
    return str(colors["more" if data["right"][at] > data["left"][at] else "less"])
