"""Everything that the documents name exists: files, folders, links, commands of make."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, Need

DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON_DOCUMENTS = [*DOCUMENTS, *sorted((ROOT / "notebooks").glob("*.ipynb"))]
IMPORTS = (ast.Import, ast.ImportFrom)
ENDINGS = (".py", ".md", ".yaml", ".yml", ".json", ".svg", ".png", ".js", ".css", ".csv", ".toml", ".ipynb")
# Files and folders that runs create; they are not in git.
RUN_FILES = re.compile(r"(data|figures|rows|artefacts)/|(run|environment|sweep)\.json|report\.html|why\.html")


def paths(text: str) -> list[str]:
    """Return the words in backticks that name a file or a folder of the project."""
    words = re.findall(r"`([^`\s]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [
        word
        for word in words
        if re.fullmatch(r"[\w./-]+", word)
        and not word.startswith(("/", "-"))
        and (word.endswith(ENDINGS) or re.fullmatch(r"([\w.-]+/)+", word))
        and not re.search(r"\b[A-Z]{4,}\b(?!\.md)", word)  # FILE.yaml is a placeholder
        and not RUN_FILES.match(word)
    ]


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
        missing = [link for link in links if not (document.parent / link).exists()]
        assert not missing, f"{document.name} links {', '.join(missing)}"
        for file, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", document.read_text()):
            there = document.parent / file if file else document
            assert anchors(there.read_text()).count(anchor) == 1, f"{document.name} links {file}#{anchor}"


def test_paths_lead_somewhere(need: Need) -> None:
    need("git")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    there = "".join(f"/{file}\n" for file in files if (ROOT / file).exists())
    for document in DOCUMENTS:
        named = [f"/{path}" if path.endswith("/") else f"/{path}\n" for path in paths(document.read_text())]
        missing = [path.strip() for path in named if path not in there]
        assert not missing, f"{document.name} names {', '.join(missing)}"


def anchors(text: str) -> list[str]:
    """Return the anchors of a document's headings, as GitHub and Sphinx make them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize(("name", "most_kb"), [("CHANGELOG.md", 5), ("docs/METHOD.md", 15), ("README.md", 7)])
def test_document_stays_short(name: str, most_kb: int) -> None:
    assert (ROOT / name).stat().st_size <= most_kb * 1024


def test_make_has_the_commands_of_the_documents() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"`make ([a-z-]+)", document.read_text()))
        assert named <= targets, f"{document.name} names {named - targets}"


def python_blocks(text: str) -> list[str]:
    """Return the Python code blocks of a Markdown text, without magics."""
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r"^%.*$", "", block, flags=re.MULTILINE) for block in blocks]


def markdown_of(path: Path) -> str:
    """Return the text of a Markdown file, or of a notebook's Markdown cells."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_python_in_documents_imports_what_exists() -> None:
    for path in PYTHON_DOCUMENTS:
        for code in python_blocks(markdown_of(path)):
            statements = (
                ast.unparse(node) for node in ast.walk(ast.parse(code)) if isinstance(node, IMPORTS)
            )
            for statement in statements:
                if re.match(r"(from|import) labkit\b", statement):
                    exec(statement, {})
