"""Every name of labkit that a notebook uses exists, so that a renamed function does not break a notebook unnoticed."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from labkit.notebook import Run

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
RUN_NAMES = {*dir(Run), "folder", "all", "rows"}  # with what the constructor sets


def trees(notebook: Path) -> Iterator[ast.AST]:
    """Yield every node of the code cells."""
    for cell in json.loads(notebook.read_text())["cells"]:
        if cell["cell_type"] == "code":
            yield from ast.walk(ast.parse("".join(cell["source"])))


def imported(module: str, name: str) -> Any:
    """Return what `from module import name` would give. Raises ImportError or AttributeError."""
    try:
        return importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_names_exist(notebook: Path) -> None:
    nodes = list(trees(notebook))
    there = {
        alias.asname or alias.name: imported(str(node.module), alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    used = [
        (node.value.id, node.attr)
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    missing = [(name, attr) for name, attr in used if name in there and not hasattr(there[name], attr)]
    missing += [(name, attr) for name, attr in used if name == "run" and attr not in RUN_NAMES]
    assert missing == []
