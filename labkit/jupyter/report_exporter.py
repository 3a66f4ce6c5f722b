"""Export the report with nbconvert: `jupyter nbconvert --to labkit-report NOTEBOOK`, and in JupyterLab's menu "Save and
Export Notebook As".

The exporter has two names. JupyterLab's server addresses exporters by names of letters, digits and _ only, so
`labkit_report` is in its menu, and `labkit-report` is for the command line.

Any executed notebook can be exported. The report of a notebook beside a run includes the run's provenance.
"""

import sys
from pathlib import Path
from typing import Any

from nbconvert.exporters import Exporter
from nbformat import NotebookNode

from labkit.analysis import report


class ReportExporter(Exporter):
    """Exports a notebook as one HTML page that works offline."""

    export_from_notebook = "labkit report"
    output_mimetype = "text/html"

    def _file_extension_default(self) -> str:
        return ".html"

    def from_notebook_node(  # type: ignore[override]  # nbconvert's own exporters return a text, too
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        """Return the page and nbconvert's resources. Parameters and provenance come from the runs in the notebook's
        folder, if there are any."""
        document, resources = super().from_notebook_node(nb, resources, **kwargs)
        about = resources.get("metadata", {})
        folders = [Path(about["path"])] if about.get("path") else []
        return report.rendered([document], folders, about.get("name") or "Report"), resources


class CommandLineExporter(ReportExporter):
    """The same exporter for `jupyter nbconvert --to labkit-report`. In a Jupyter server it is not enabled."""

    def __init__(self, **words: Any) -> None:
        super().__init__(**words)  # type: ignore[no-untyped-call]
        server = sys.modules.get("jupyter_server.serverapp")
        self.enabled = server is None or not server.ServerApp.initialized()
