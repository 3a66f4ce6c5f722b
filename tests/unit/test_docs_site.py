"""`make docs` builds all pages without a warning. They fetch nothing, and include executed notebooks and the API."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from sandbox import output

from labkit.commands import reference, registry


def python(*words: str) -> None:
    output([sys.executable, "-P", *words], 900, cwd=ROOT)


@pytest.mark.long
def test_pages(tmp_path: Path) -> None:
    source, pages = tmp_path / "source", tmp_path / "html"
    # To judge the claims by all published runs takes 100 s: here, Sphinx sees a page of one run.
    shutil.copytree(ROOT / "data/results/mtu", tmp_path / "published/mtu")
    python("docs/sources.py", str(source), str(tmp_path / "published"))
    # tests/notebooks measures with the others, some of them only for `make test-exhaustive`.
    executed = ("02_container_vs_vm", "04_overlay")
    python("docs/executed.py", str(source / "notebooks"), *executed, "06_live_monitor")
    python("-m", "sphinx", "-q", "-W", "-b", "html", str(source), str(pages))  # a warning is an error
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
    assert 'href="../METHOD.html"' in (pages / "notebooks/00_start_here.html").read_text()
    assert "macvlan-faster-tcp" in (pages / "FINDINGS.html").read_text()
    assert "throughput_bps" in (pages / "ROWS.html").read_text()
    assert "--parquet" in (pages / "COMMANDS.html").read_text()
    assert 'href="../METHOD.html"' in (pages / "method/why.html").read_text()
    assert "Section Navigation" not in (pages / "FINDINGS.html").read_text()
    for name in executed:
        page = (pages / f"notebooks/{name}.html").read_text()
        assert "Plotly.newPlot" in page, name
        assert "_static/plotly.min.js" in page
    assert "_static/plotly.min.js" not in guide
    assert (pages / "_static/plotly.min.js").stat().st_size > 1_000_000
    # Nothing of these is published, so they are not executed: they would measure.
    for name in ("06_live_monitor", "09_what_does_it_cost"):
        assert "Plotly.newPlot" not in (pages / f"notebooks/{name}.html").read_text()


@pytest.mark.long
def test_manual_page_has_every_command_and_option(tmp_path: Path) -> None:
    (tmp_path / "COMMANDS.md").write_text(reference.page())
    shutil.copy(ROOT / "docs/conf.py", tmp_path)
    python("-m", "sphinx", "-q", "-b", "man", "-D", "root_doc=COMMANDS", str(tmp_path), str(tmp_path / "man"))
    manual = re.sub(r"\\f(\w|\(\w\w|\[\w*])", "", (tmp_path / "man/labkit.1").read_text()).replace("\\-", "-")
    for name in registry.COMMANDS:
        assert re.search(rf"labkit {name}(?![\w-])", manual)
    option = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    assert set(option.findall(reference.page())) <= set(option.findall(manual))
