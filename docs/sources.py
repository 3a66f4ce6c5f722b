"""Collect the pages of `make docs` in a folder: those in git, and those made of the code and the published runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from labkit.commands import reference, rows
from studies.documents import document
from studies.documents.results import Results

ROOT = Path(__file__).resolve().parents[1]


def collect(source: Path, published: Path) -> None:
    """Write all pages, notebooks and pictures into a new folder; claims are judged by these published runs."""
    shutil.copytree(ROOT / "docs", source)
    shutil.copytree(ROOT / "notebooks", source / "notebooks", ignore=shutil.ignore_patterns(".*"))
    for path in (
        *ROOT.glob("figures/*.*"),
        *ROOT.glob("figures/results/*/forest.svg"),
        *(ROOT / name for name in ("CHANGELOG.md", "README.md", "SECURITY.md")),
    ):
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    (source / "COMMANDS.md").write_text(reference.page())
    with (source / "ROWS.md").open("a") as page:
        page.write(f"\n## Every column\n\n{rows.column_tables()}\n")
    results = Results(published)
    (source / "FINDINGS.md").write_text(document.page(results, document.judgements(results)))


if __name__ == "__main__":
    collect(Path(sys.argv[1]), Path(sys.argv[2]))
