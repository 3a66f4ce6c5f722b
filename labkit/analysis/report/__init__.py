"""Write reports: an executed notebook as one HTML file that works offline, and its figures as images.

The page has the notebook's prose, tables and figures, its code folded, and then the parameters and provenance of the
runs in the notebook's folder. It contains plotly.js once. Its Content-Security-Policy forbids all requests and all
scripts but its own, whatever text a tool, a parameter or an HTML output contains.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup
from nbformat import NotebookNode
from plotly.offline import get_plotlyjs

from labkit.analysis import flame, load
from labkit.analysis.answer import answer
from labkit.analysis.change_effects import all_verdicts
from labkit.analysis.report import notebook_cells as notebooks
from labkit.analysis.report import provenance
from labkit.analysis.report.images import images, svgs
from labkit.common import run_folder
from labkit.common.errors import BadInput

__all__ = ["html", "images", "page", "svgs"]

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
    answers = list(filter(None, map(_answer, dict.fromkeys(folders))))
    return page([notebooks.read(path) for path in paths], folders, out, paths[0].stem, answers)


def _answer(folder: Path) -> str:
    """Return the answer of a run or a sweep; an empty text where nothing was compared."""
    try:
        rows = load.load(folder, None)
        return answer(all_verdicts(rows[rows["part"].fillna("cost").eq("cost")]))
    except BadInput:
        return ""


def page(
    documents: Sequence[NotebookNode],
    folders: Sequence[Path],
    out: Path,
    name: str,
    answers: Sequence[str] = (),
) -> Path:
    """Write notebooks that are in memory, with the known facts about the runs in these folders, and return the path.

    name: the title of a page whose notebooks have no heading. answers: sentences for its head.
    """
    run_folder.write(out, rendered(documents, folders, name, answers).encode())
    return out


def rendered(
    documents: Sequence[NotebookNode], folders: Sequence[Path], name: str, answers: Sequence[str] = ()
) -> str:
    """Return the HTML that `page` writes."""
    title = next((result for result in map(notebooks.title, documents) if result), name)
    pieces = [notebooks.blocks(document, title) for document in documents]
    flames = any(block.kind == "flame" for blocks in pieces for block in blocks)
    return _PAGES.get_template("report.html.j2").render(
        title=title,
        notebooks=pieces,
        answers=answers,
        report=provenance.summarize_provenance(folders),
        plotlyjs=Markup(get_plotlyjs()),
        flame_css=Markup(flame.style()) if flames else "",
        flame_js=Markup(flame.script()) if flames else "",
        nonce=secrets.token_urlsafe(16),
    )
