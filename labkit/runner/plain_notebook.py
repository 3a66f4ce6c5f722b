"""A notebook for the report of a run whose experiment has none: the run, its figures, and its doubts."""

import json
from pathlib import Path
from typing import Any

CELLS = (
    ("markdown", "title", "# {experiment}"),
    ("code", "parameters", 'folder = ""'),
    ("code", "run", "import labkit\n\nrun = labkit.open(folder)\nrun"),
    ("code", "figures", "run.figures"),
    ("markdown", "rows-text", "## Every measurement"),
    ("code", "rows", "run.rows"),
    ("markdown", "doubts-text", "## What cannot be concluded\n\nEvery reason for doubt that was found."),
    ("code", "doubts", "run.doubts()"),
)


def write(path: Path, experiment: str) -> None:
    """Write the notebook. Its parameter `folder` is the run's folder."""
    cells = [_cell(kind, name, text.replace("{experiment}", experiment)) for kind, name, text in CELLS]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    metadata = {"kernelspec": kernel}
    content = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(content))


def _cell(kind: str, name: str, text: str) -> dict[str, Any]:
    tags = {"parameters": ["parameters"], "title": ["general-question"]}.get(name)
    metadata = {"tags": tags} if tags else {}
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": metadata, "source": text}
    return cell | ({"outputs": [], "execution_count": None} if kind == "code" else {})
