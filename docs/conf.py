"""How Sphinx makes the pages of `make docs`. It fetches nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import labkit

project = "labkit"
copyright = "the labkit authors"  # a name that Sphinx reads
version = release = labkit.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
html_theme = "pydata_sphinx_theme"
html_title = "labkit"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False, "header_links_before_dropdown": 4}
# The sidebar lists the pages of a section, and only the notebooks are one.
html_sidebars = {path.stem: [] for path in Path(__file__).parent.glob("*.md") if path.stem != "notebooks"}
# docs/executed.py writes it; it draws the figures of executed notebooks.
html_static_path = [path.name for path in Path(__file__).parent.glob("plotly.min.js")]
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]  # the tables of the manual page
nb_render_markdown_format = "myst"  # of outputs: with tables
nb_execution_mode = "off"  # docs/executed.py has executed those whose runs are published
autodoc_member_order = "bysource"
autodoc_typehints = "description"
suppress_warnings = [
    "myst.xref_missing",
    "mystnb.unknown_mime_type",
    "misc.highlighting_failure",
]
man_pages = [("COMMANDS", "labkit", "measure and explain Linux virtual-network datapaths", "", 1)]
today = f"labkit {labkit.__version__}"  # the manual page in docs/ is the same on every day


def _flat(app: Any, name: str, text: list[str]) -> None:
    """Let documents of docs/ and of the folder above it, which are beside each other here, link to each other.

    On the manual page, tables are lists.
    """
    if "/" not in name:
        text[0] = text[0].replace("](docs/", "](").replace("](../", "](")
    else:  # a notebook, or a page of docs/method
        text[0] = re.sub(r"\]\(\.\./(docs|\.\.)/(?=\w)", "](../", text[0])
    if app.builder.name == "man":
        text[0] = _definitions(text[0])


def _definitions(text: str) -> str:
    """Make the rows of tables definitions: a terminal is too narrow for tables of long texts."""
    lines, result = text.splitlines(), []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("|"):
            result.append(line)
        elif not re.match(r"\|[-| :]+\|$", line) and not re.match(r"\|[-| :]+\|$", after):  # no head
            term, *rest = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            result += [term.replace("\\|", "|"), f": {'; '.join(filter(None, rest))}".replace("\\|", "|"), ""]
    return "\n".join(result)


def _figures(app: Any, page: str, _template: str, _context: Any, _tree: Any) -> None:
    """Let the pages of notebooks load plotly.js, which is large."""
    if page.startswith("notebooks/"):
        app.add_js_file("plotly.min.js")


def setup(app: Any) -> None:
    """Sphinx calls this when it starts."""
    app.connect("source-read", _flat)
    app.connect("html-page-context", _figures)
