"""How Sphinx makes the pages of `make docs`. It fetches nothing."""

from __future__ import annotations

from typing import Any

import labkit

project = "labkit"
copyright = "the labkit authors"  # a name that Sphinx reads
version = release = labkit.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
html_static_path: list[str] = []
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are shown as they are; running them measures for minutes
autodoc_member_order = "bysource"
autodoc_typehints = "description"
suppress_warnings = [
    "myst.xref_missing",
    "mystnb.unknown_mime_type",
    "misc.highlighting_failure",
]
man_pages = [("COMMANDS", "labkit", "measure and explain Linux virtual-network datapaths", "", 1)]


def _flat(_app: Any, name: str, text: list[str]) -> None:
    """Let documents of docs/ and of the folder above it, which are beside each other here, link to each other."""
    if "/" not in name:
        text[0] = text[0].replace("](docs/", "](").replace("](../", "](")


def setup(app: Any) -> None:
    """Sphinx calls this when it starts."""
    app.connect("source-read", _flat)
