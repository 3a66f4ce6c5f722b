"""Add still pictures to the figures of a notebook that plain `jupyter nbconvert` converts (html, markdown, notebook).

Not in a Jupyter server: drawing changes the environment of the process, which kernels would inherit.

A picture is drawn from a figure's numbers and texts. No code of the notebook runs, and the browser that draws reaches
nobody (`report.draw_stills`).
"""

from typing import Any

from nbconvert.exporters import Exporter
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from traitlets import Bool
from traitlets.config import Config

# LaTeX would need inkscape for an SVG, and a script has no pictures.
SHOWN = (".html", ".slides.html", ".md", ".rst", ".asciidoc", ".ipynb")


class Stills(Preprocessor):
    """Draws the figures that have no still picture, if the notebook becomes a kind of file that shows one."""

    enabled = Bool(True, help="Whether figures get still pictures.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        """Return the notebook with a picture beside each figure; without a browser, as it is."""
        if resources.get("output_extension") in SHOWN:
            from labkit.analysis import report  # takes a second, which other conversions need not wait

            report.draw_stills(nb)
        return nb, resources


def register(config: Config) -> None:
    """Let exporters with this configuration draw after they have executed the notebook, and before they write pictures
    as files of their own."""
    usual: Any = Exporter.class_traits()["default_preprocessors"].default()
    place = usual.index("nbconvert.preprocessors.ExtractOutputPreprocessor")
    config.Exporter.default_preprocessors.insert(place, f"{__name__}.Stills")
