"""The rules of the house (docs/DESIGN.md), kept by reading the source instead of by remembering them."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT, Need

# A module, or a whole package, has a floor and imports only from floors below it; what is inside one package may import
# from that package. A new module gets its floor here.
MEASURING = {
    "errors": 0, "units": 0, "safe_files": 0, "printable": 0,
    "calls": 1, "process": 1, "netlink": 1, "records": 1, "packets": 1,
    "machine": 2, "scratch": 2,
    "qemu": 3,
    "endpoints": 4, "hosts": 4,
    "topologies": 5, "traffic": 5, "observers": 5,
    "experiments": 6, "capabilities": 6, "standing": 6, "notebook_kernel": 6,
    "agent": 7, "launch": 7,
    "guest": 8, "__main__": 8,
}  # fmt: skip
READING = {
    "stats": 1, "mirror_tax": 3, "theme": 2, "loading": 2, "fitting": 2,
    "conditions": 3, "flame": 3, "sizes": 3, "ends": 3, "loss_rates": 3,
    "tables": 4, "figures": 4, "timed": 4, "profiled": 4,
    "comparison": 5, "contrasts": 5,
}  # fmt: skip
DRIVERS = {
    "packet_size": 7, "progress": 8, "overlay": 8, "virtual_tap": 8, "terminal": 9, "drawing": 8, "relay": 8,
    "written": 8,
    "run": 9, "report": 9, "doctor": 9, "jupyter": 9, "kernelspecs": 9,
    "execution": 10, "notebook": 10, "live": 10,
    "sweep": 11, "why": 11, "boundary": 11, "arguments": 11, "bootable": 11,
    "fleet": 12,
    "cli": 13, "start": 14,
}  # fmt: skip
FLOORS = MEASURING | READING | DRIVERS
# what the reading wing may have from the measuring wing
SHARED = {"errors", "units", "records", "calls", "safe_files", "printable"}
# All that the measuring wing may import beside the standard library; the last two only where a search needs them.
LIGHT = {"pyroute2", "msgspec", "ovs", "MLRsearch", "hdrh"}

SOURCES = sorted((ROOT / "labkit").rglob("*.py"))
PYTHON = [*SOURCES, *sorted((ROOT / "benchmarks").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=named(path))


def part(path: Path) -> str:
    """The module or package directly below labkit that a file belongs to; "" for labkit itself."""
    first = path.relative_to(ROOT / "labkit").parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, anywhere in it, as a dotted name with its line."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)}:{node.lineno}: say the whole name instead of dots"
            assert node.module is not None
            if node.module == "labkit":
                yield from ((f"labkit.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


def of_labkit(path: Path) -> Iterator[tuple[str, int]]:
    """The parts of labkit that a file imports; its own, and labkit.__version__ and the like, are not among them."""
    for name, line in imported(path):
        words = name.split(".")
        if (
            words[0] == "labkit"
            and len(words) > 1
            and words[1] != part(path)
            and not words[1].startswith("__")
        ):
            yield words[1], line


def of_others(path: Path) -> Iterator[tuple[str, int]]:
    for name, line in imported(path):
        first = name.split(".")[0]
        if first != "labkit" and first not in sys.stdlib_module_names:
            yield first, line


def strings(path: Path) -> Iterator[tuple[str, int]]:
    """Every string of a file that is not a docstring."""
    module = tree(path)
    docs = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value, node.lineno


def none(faults: list[str]) -> None:
    assert not faults, "\n".join(faults)


def test_every_module_has_a_floor() -> None:
    none([f"{named(path)}: {part(path)} has no floor" for path in SOURCES if part(path) not in {"", *FLOORS}])


def test_imports_go_down() -> None:
    none(
        [
            f"{named(path)}:{line}: {part(path) or 'labkit'} imports {other}, which is not on a floor below"
            for path in SOURCES
            for other, line in of_labkit(path)
            if FLOORS.get(other, 99) >= FLOORS.get(part(path), 0)
        ]
    )


def test_wings_do_not_import_each_other() -> None:
    of_reading, of_measuring = frozenset(READING), frozenset(MEASURING) - SHARED
    foreign = dict.fromkeys(MEASURING, of_reading) | dict.fromkeys(READING, of_measuring)
    none(
        [
            f"{named(path)}:{line}: imports {other} of the other wing"
            for path in SOURCES
            for other, line in of_labkit(path)
            if other in foreign.get(part(path), frozenset())
        ]
    )


def test_measuring_wing_is_light() -> None:
    measuring = [path for path in SOURCES if part(path) in MEASURING or part(path) == ""]
    none(
        [
            f"{named(path)}:{line}: {name}"
            for path in measuring
            for name, line in of_others(path)
            if name not in LIGHT
        ]
    )


@pytest.mark.parametrize(("module", "user"), [("subprocess", "process"), ("pyroute2", "netlink")])
def test_one_module_alone_imports(module: str, user: str) -> None:
    none(
        [
            f"{named(path)}:{line}: only labkit/{user} imports {module}"
            for path in SOURCES
            for name, line in imported(path)
            if name.split(".")[0] == module and part(path) != user
        ]
    )


def test_programs_start_without_a_shell() -> None:
    faults = []
    for path in PYTHON:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.keyword) and node.arg == "shell":
                faults.append(f"{named(path)}:{node.lineno}: shell=")
            elif isinstance(node, ast.Attribute) and ast.unparse(node) in {"os.system", "os.popen"}:
                faults.append(f"{named(path)}:{node.lineno}: {ast.unparse(node)}")
            elif isinstance(node, ast.Attribute) and node.attr.startswith("create_subprocess_"):
                faults.append(f"{named(path)}:{node.lineno}: {node.attr}")
    none(faults)


def test_python_never_has_the_current_folder_on_its_path() -> None:
    """Each start of this Python says -P or -I, and is known here if it is none."""
    starts = re.compile(r'sys\.executable(?!, "-[PI]"|, \*light|\)| +#)')
    programs = [path for path in PYTHON if "tests" not in path.parts and path.name != "there.py"]
    none(
        [
            f"{named(path)}: {line.strip()}"
            for path in programs
            for line in path.read_text().splitlines()
            if starts.search(line)
        ]
    )


def test_nothing_is_killed_by_name() -> None:
    by_name = re.compile(r"\b(pkill|killall|pgrep|pidof)\b")
    none(
        [
            f"{named(path)}:{line}: {text!r}"
            for path in SOURCES
            for text, line in strings(path)
            if by_name.search(text)
        ]
    )


def test_tests_skip_in_one_way() -> None:
    """Tests skip by `need` of conftest.py alone, so that LABKIT_NO_SKIP reaches every skip."""
    faults = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and node.attr in {
                "skip",
                "skipif",
                "importorskip",
                "skipTest",
            }:
                faults.append(f"{named(path)}:{node.lineno}: {ast.unparse(node)}")
    none([fault for fault in faults if not fault.startswith("tests/conftest.py:")])


def test_notebooks_are_thin_and_clean() -> None:
    assert NOTEBOOKS
    faults = []
    for path in NOTEBOOKS:
        code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        if len(code) > 8:
            faults.append(f"{named(path)}: {len(code)} code cells; what is more belongs into the package")
        if sum("parameters" in cell["metadata"].get("tags", []) for cell in code) != 1:
            faults.append(f"{named(path)}: not one cell with the tag parameters")
        if any(cell["outputs"] or cell["execution_count"] for cell in code):
            faults.append(f"{named(path)}: outputs are in the file; run .venv/bin/nbstripout {named(path)}")
    none(faults)


# Put together here so that this file does not name them either. (One without its slash is a Debian package.)
HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"), ("files", "pythonhosted", "org"), ("conda", "anaconda", "org"), ("crates", "io"),
        ("registry", "npmjs", "org"), ("proxy", "golang", "org"), ("repo1", "maven", "org"), ("deb", "debian", "org"),
        ("security", "debian", "org"), ("docker", "io/"), ("quay", "io"), ("ghcr", "io"), ("huggingface", "co"),
    )
]  # fmt: skip
# Not preceded by what makes it a part of a longer path or of an address.
A_PLACE_OF_ONE_MACHINE = re.compile(r"(?<![\w./~})])/(?:root|work|home)/\w")


def texts() -> Iterator[tuple[str, str]]:
    """Every text file that is in git, or will be with the next `git add`."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        path = ROOT / name
        if name and path.is_file() and b"\0" not in (content := path.read_bytes()):
            yield name, content.decode(errors="replace")


def test_nothing_names_a_registry_or_a_place_of_one_machine(need: Need) -> None:
    need("git")
    faults = []
    for name, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            faults += [f"{name}:{number}: names {host}" for host in HOSTS if host in line.lower()]
            if place := A_PLACE_OF_ONE_MACHINE.search(line):
                faults.append(f"{name}:{number}: {line[place.start() :][:60]}")
    none(faults)
