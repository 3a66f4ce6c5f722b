"""Write reports: an executed notebook as one HTML file that works offline, and its figures as images.

The page has the notebook's prose, tables and figures, its code folded, and then the parameters and provenance of the
runs in the notebook's folder. It contains plotly.js once. Its Content-Security-Policy forbids all requests and all
scripts but its own, whatever text a tool, a parameter or an HTML output contains.
"""

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup
from nbformat import NotebookNode
from plotly.offline import get_plotlyjs

from labkit.analysis import flame, load
from labkit.analysis.answer import answer, question
from labkit.analysis.change_effects import all_verdicts
from labkit.analysis.report import notebook_cells as notebooks
from labkit.analysis.report import provenance
from labkit.analysis.report.images import add_stills, draw_stills, figures_in, images, svgs
from labkit.analysis.report.paper import paper
from labkit.common import run_folder
from labkit.common.errors import BadInput

__all__ = ["add_stills", "draw_stills", "figures_in", "html", "images", "page", "paper", "svgs"]

_PAGES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def html(notebook: Path | Sequence[Path], out: Path) -> Path:
    """Write one or several executed notebooks (.ipynb) as the HTML file `out`, and return its path.

    Parameters and provenance are read from the notebooks' folders: run.json and environment.json of a run, or of every
    point that sweep.json names. Missing files are left out. The page begins with the answer of each of these runs.
    Raises BadInput for a file that is not a notebook, and Failed if `out` cannot be written.
    """
    paths = [Path(notebook)] if isinstance(notebook, str | Path) else [Path(path) for path in notebook]
    folders = [path.parent for path in paths]
    heads = [_head(folder) for folder in dict.fromkeys(folders)]
    return page([notebooks.read(path) for path in paths], folders, out, paths[0].stem, heads)


@dataclass(frozen=True)
class Head:
    """What a page says first about a run or a sweep: its question, its file's comment, and the sentences of its answer.
    Each may be empty."""

    question: str = ""
    about: str = ""
    answer: Sequence[str] = ()


def _head(folder: Path) -> Head:
    about = ""
    with contextlib.suppress(BadInput):
        about = str(run_folder.read_object(folder / "sweep.json").get("about", ""))
    try:
        rows = load.load(folder, None)
        compared = all_verdicts(load.part(rows, "cost"))
    except BadInput:
        return Head(about=about)
    return Head(question(compared), about, answer(compared))


def page(
    documents: Sequence[NotebookNode],
    folders: Sequence[Path],
    out: Path,
    name: str,
    heads: Sequence[Head] = (),
) -> Path:
    """Write notebooks that are in memory, with the known facts about the runs in these folders, and return the path.

    name: the title of a page whose notebooks have no heading. heads: what it says first.
    """
    run_folder.write(out, rendered(documents, folders, name, heads).encode())
    return out


def rendered(
    documents: Sequence[NotebookNode], folders: Sequence[Path], name: str, heads: Sequence[Head] = ()
) -> str:
    """Return the HTML that `page` writes."""
    asked = next((head.question for head in heads if head.question), "")
    titles = (notebooks.title(document, asked) for document in documents)
    title, heading = next(filter(None, titles), (name, name))
    pieces = [notebooks.blocks(document, heading) for document in documents]
    kinds = {(block.kind, bool(block.more.get("still"))) for blocks in pieces for block in blocks}
    flames = ("flame", False) in kinds
    first = _figure_that_answers(pieces) if any(head.answer for head in heads) else []
    return _PAGES.get_template("report.html.j2").render(
        title=title,
        notebooks=pieces,
        first=first,
        heads=heads,
        needs_scripts=flames or ("figure", False) in kinds,
        report=provenance.summarize_provenance(folders),
        plotlyjs=Markup(get_plotlyjs()),
        flame_css=Markup(flame.style()) if flames else "",
        flame_js=Markup(flame.script()) if flames else "",
        nonce=secrets.token_urlsafe(16),
    )


def _figure_that_answers(pieces: list[list[notebooks.Block]]) -> list[notebooks.Block]:
    """Take the first figure, with the prose that explains it, out of the notebooks' blocks."""
    for blocks in pieces:
        for place, block in enumerate(blocks):
            if block.kind == "figure":
                following = blocks[place + 1 : place + 2]
                taken = [block, *(one for one in following if one.kind == "prose" and one.more.get("output"))]
                del blocks[place : place + len(taken)]
                return taken
    return []
