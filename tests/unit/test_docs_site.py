"""`make docs` builds all pages without a warning. They fetch nothing and include the notebooks and the API."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

MAKE = (ROOT / "Makefile").read_text()


def built(source: Path, form: str) -> Path:
    """Build the pages in this form. A warning is an error."""
    out = source.parent / form
    words = [sys.executable, "-P", "-m", "sphinx", "-q", "-W", "-b", form, str(source), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.long
def test_pages_and_manual(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(ROOT / "docs", source)
    shutil.copytree(ROOT / "notebooks", source / "notebooks", ignore=shutil.ignore_patterns(".*"))
    for name in ("CHANGELOG.md", "README.md", "SECURITY.md"):
        shutil.copy(ROOT / name, source)
        assert name in MAKE
    pages = built(source, "html")
    assert "open_run" in (pages / "API.html").read_text()
    assert (pages / "notebooks/00_start_here.html").is_file()
    index = (pages / "index.html").read_text()
    for name in ("README", "SECURITY", "CHANGELOG"):
        assert f'href="{name}.html"' in index, f"no table of contents leads to {name}"
    guide = (pages / "README.html").read_text()
    assert 'href="INSTALL.html"' in guide
    assert re.search(r'<img [^>]*src="_images/why\.png"', guide)
    for page in pages.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text())
        assert not loaded, f"{page.name} loads {loaded}"
    manual = (built(source, "man") / "labkit.1").read_text()
    assert "\\-\\-parquet" in manual
