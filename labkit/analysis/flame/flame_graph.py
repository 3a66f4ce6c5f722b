"""Flame graphs for notebooks, reports and pages of their own: icicles of thousands of frames, drawn by flame.js.

A notebook stores one as data (MIME, which a report draws by its own script) and as HTML (which a notebook draws).
(plotly's own icicle takes more than half a minute for 5,000 frames, and finds none by its name.)
"""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from labkit.analysis import theme
from labkit.analysis.flame import folded_stacks, notes, still_picture
from labkit.analysis.flame import profile as arms
from labkit.analysis.flame.difference import Difference, kinds
from labkit.analysis.flame.frame_tree import Tree
from labkit.analysis.flame.profile import Arm
from labkit.analysis.flame.significance import round_means
from labkit.common import run_folder
from labkit.common.errors import BadInput

MIME = "application/vnd.labkit.flame.v1+json"
MOST_FRAMES = 10_000  # of the largest; what is left out is too small to be seen even when zoomed
_HERE = Path(__file__).parent
_UNTRUSTED = (
    "This is a still picture of the flame graph: in a notebook that is not trusted, no script runs. Run the cell again,"
    " or trust the notebook, to search, to zoom, and to see the numbers of a frame."
)
# A report and an HTML output draw every graph of the page that is not drawn yet; a widget draws its own.
_PAGE = """(() => {
%s
for (const place of document.querySelectorAll(".labkit-flame:not([data-drawn])")) {
  place.dataset.drawn = "";
  new Flame(place, JSON.parse(place.querySelector("script[type='application/json']").textContent));
}
})();
"""
_WIDGET = """%s
export default {render({model, el}) {
  const place = made("div", {className: "labkit-flame"});
  el.append(place);
  new Flame(place, model.get("data"));
}};
"""


class Flame:
    """A flame graph. As the last expression of a notebook's cell it is drawn there. `data`: what flame.js draws."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def html(self) -> str:
        """HTML that draws it wherever it is put: it fetches nothing."""
        return (
            f'<style>{style()}</style><div class="labkit-flame"><p>{_UNTRUSTED}</p>{self._still()}'
            f'<script type="application/json">{as_json(self.data)}</script></div><script>{script()}</script>'
        )

    def _still(self) -> str:
        """An image of it, which a notebook shows without trust."""
        coded = base64.b64encode(still_picture.svg(self.data).encode()).decode()
        return f'<img alt="flame graph" width="100%" src="data:image/svg+xml;base64,{coded}">'

    def widget(self) -> Any:
        """Return it as a widget (anywidget), which JupyterLab, VS Code and Colab draw without trust."""
        import anywidget
        import traitlets

        class FlameWidget(anywidget.AnyWidget):
            _esm = widget_script()
            _css = style()
            data = traitlets.Dict().tag(sync=True)

        return FlameWidget(data=self.data)

    def write(self, path: Path) -> Path:
        """Write it as a page of its own, and return its path. Raises Failed when that cannot be written."""
        run_folder.write(
            path,
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n{self.html()}\n</html>\n'.encode(),
        )
        return path

    def __repr__(self) -> str:
        return f"{self.data['title']}: {len(self.data['name']):,} frames"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {MIME: self.data, "text/html": self.html(), "text/plain": repr(self)}


def graph(arm: Arm, per: str | None = None) -> Flame:
    """The flame graph of one arm: the mean of its rounds per packet, gigabyte or second of busy CPU (PER), or by
    itself all its samples."""
    tree = arm.tree()
    of = arms.cost_unit(per) if per else None
    unit_s = of.unit_s if of else 1.0

    def values(samples: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return (
            round_means(samples, arms.each(arm, of)).mean / unit_s
            if of
            else samples.sum(axis=1).astype(float)
        )

    total = values(tree.total)
    order = _order(tree, total)
    data = _frames(tree, order, arm.event) | {
        "title": arm.name,
        "subtitle": f"{len(arm.rounds)} {'round' if len(arm.rounds) == 1 else 'rounds'}, {arm.event}",
        "unit_s": unit_s if of else None,
        "unit_words": f"CPU time per {of.words}" if of else "",
        "left": _short(total[order]),
        "own_left": _short(values(tree.own)[order]),
        "notes": [*_left_out(tree, order), *notes.notes(tree, [arm])],
    }
    return Flame(data)


def drawn(difference: Difference) -> Flame:
    """The differential flame graph: frames that stand out are coloured by how much more or less they cost."""
    it, of = difference, difference.per
    spread, own = it.frames.spread, it.judge(it.tree.own).spread
    order = _order(it.tree, (spread.left.mean + spread.right.mean) / 2)
    columns = {
        "left": spread.left.mean, "right": spread.right.mean, "half": spread.half,
        "own_left": own.left.mean, "own_right": own.right.mean,
    }  # fmt: skip
    there = [arm for arm in (it.left, it.right, it.control) if arm is not None]
    known = not np.isnan(spread.half).any()
    data = _frames(it.tree, order, it.left.event) | {
        name: _short(values[order] / of.unit_s) for name, values in columns.items() if known or name != "half"
    }
    data |= {
        "title": f"{it.right.name} against {it.left.name}",
        "subtitle": f"CPU time per {of.words}; colour: how much more or less",
        "left_name": it.left.name,
        "right_name": it.right.name,
        "unit_s": of.unit_s,
        "unit_words": f"per {of.words}",
        "stands_out": it.frames.stands_out[order].astype(int).tolist(),
        "notes": [*notes.judged(it), *_left_out(it.tree, order), *notes.notes(it.tree, there)],
    }
    return Flame(data)


def _order(tree: Tree, size: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The frames to be drawn in preorder, of siblings the largest first."""
    if not tree.total[0].any():
        raise BadInput("there is not one sample of a busy CPU in these profiles: nothing can be drawn")
    # No frame is larger than its parent, which is also before it: so the first ones are a tree by themselves.
    kept = np.zeros(len(tree), dtype=bool)
    kept[np.lexsort((np.arange(len(tree)), -size))[:MOST_FRAMES]] = True
    below: list[list[int]] = [[] for _ in range(len(tree))]
    for frame in np.lexsort((tree.name, size)):  # the smallest first, because a stack gives back the last
        if kept[frame] and frame:
            below[tree.parent[frame]].append(int(frame))
    result, waiting = [], [0]
    while waiting:
        result.append(frame := waiting.pop())
        waiting += below[frame]
    return np.array(result)


def _frames(tree: Tree, order: npt.NDArray[np.int64], event: str) -> dict[str, Any]:
    """Names and places of frames; only names that are drawn, in the order in which they come."""
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


def _short(values: npt.NDArray[np.float64]) -> list[float]:
    """Numbers of five digits, which is more than an eye can see and less than half as long."""
    return [float(f"{value:.5g}") for value in values]


@cache
def style() -> str:
    """The style sheet of flame graphs."""
    return (_HERE / "flame.css").read_text()


@cache
def script() -> str:
    """The script that draws all flame graphs of a page that are not drawn yet."""
    return _PAGE % (_HERE / "flame.js").read_text()


@cache
def widget_script() -> str:
    """The module of a widget that draws its flame graph."""
    return _WIDGET % (_HERE / "flame.js").read_text()


def as_json(data: dict[str, Any]) -> str:
    """JSON that can stand in a script element: in it, `</script>` or `<!--` would end or derail the page."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
