"""The source follows the project's rules (docs/DESIGN.md): layers, imports, how programs start, notebooks, and
names."""

import ast
import functools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT, Need

# The layers of labkit/, from the bottom. A module imports only from its own folder and from the layers below it.
# `measure` and `analysis` are in one layer and never import each other.
LAYERS = (
    {"common"},
    {"system"},
    {"measure", "analysis"},
    {"runner", "jupyter"},
    {"live", "existing"},
    {"commands"},
    {"cli", "notebook"},
    {"start", "magics", "parameter_panel"},
    {"studies"},  # the folder beside labkit, which plugs in by entry points
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
# The only packages that the measuring side may import beside the standard library. Only searches need the last two.
LIGHT = {"pyroute2", "msgspec", "ovs", "MLRsearch", "hdrh"}
# A separate program that runs beside labkit. Only it imports TRex's client and the packages that come with it.
APART = {
    "labkit.measure.traffic.trex.client_process": {"lbr_trex_client", "trex"},
    "labkit.measure.traffic.trex.streams": {"trex"},
}

OF_LABKIT, OF_STUDIES = (sorted((ROOT / name).rglob("*.py")) for name in ("labkit", "studies"))
SOURCES = [*OF_LABKIT, *OF_STUDIES]
PYTHON = [*SOURCES, *sorted((ROOT / "benchmarks").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=named(path))


def module_name(path: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCES}


def folder(name: str) -> str:
    """Return the folder or module directly below labkit that a dotted name belongs to; "" for labkit itself, and
    `studies` for all of them."""
    if name.split(".")[0] == "studies":
        return "studies"
    return name.split(".")[1] if "." in name else ""


def room(name: str) -> str:
    """Return the folder below measure, analysis, system or common, or else the folder below labkit; a study."""
    words = name.split(".")
    if words[0] == "studies":
        return ".".join(words[:2])
    deep = len(words) > 2 and words[1] in {"measure", "analysis", "system", "common"}
    return ".".join(words[1:3]) if deep else folder(name)


@functools.cache
def imported(path: Path) -> list[tuple[str, int]]:
    """Return the modules that a file imports, anywhere in it (also for types only), as names with lines."""
    result = list[tuple[str, int]]()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            result += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)}:{node.lineno}: write the whole name instead of dots"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                result.append((whole if whole in MODULES else node.module, node.lineno))
    return result


def of_labkit(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the modules of labkit and of studies that a file imports, without itself."""
    for name, line in imported(path):
        if name in MODULES and name not in {"labkit", "studies", module_name(path)}:
            yield name, line


def of_others(path: Path) -> Iterator[tuple[str, int]]:
    for name, line in imported(path):
        first = name.split(".")[0]
        if first not in {"labkit", "studies"} and first not in sys.stdlib_module_names:
            yield first, line


def strings(path: Path) -> Iterator[tuple[str, int]]:
    """Yield every string of a file that is not a docstring."""
    module = tree(path)
    docs = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value, node.lineno


def none(faults: list[str]) -> None:
    assert not faults, "\n".join(faults)


def test_imports_point_downwards() -> None:
    """No module imports upwards, and `measure` and `analysis` do not import each other."""
    none(
        [
            f"{named(path)}:{line}: {name} imports {other}, which is not in a layer below"
            for name, path in MODULES.items()
            for other, line in of_labkit(path)
            if folder(name) != folder(other) and LAYER.get(folder(other), 99) >= LAYER.get(folder(name), 0)
        ]
    )


def circles(edges: dict[str, set[str]]) -> list[str]:
    """Return the edges that lead back to their start, directly or through others."""

    def reaches(start: str, target: str) -> bool:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            if (here := waiting.pop()) == target:
                return True
            if here not in seen:
                seen.add(here)
                waiting += edges.get(here, ())
        return False

    return [
        f"{one} imports {other}, which leads back"
        for one in edges
        for other in edges[one]
        if reaches(other, one)
    ]


@pytest.mark.parametrize("level", [str, room], ids=["modules", "folders"])
def test_no_import_circles(level: Callable[[str], str]) -> None:
    edges: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        for other, _line in of_labkit(path):
            if level(name) != level(other):
                edges.setdefault(level(name), set()).add(level(other))
    none(circles(edges))


def with_experiments() -> set[str]:
    """Return the modules of studies that experiments import, which start with every run of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [value.partition(":")[0] for value in project["entry-points"]["labkit.experiments"].values()]
    seen: set[str] = set()
    while waiting:
        if (name := waiting.pop()) not in seen:
            seen.add(name)
            waiting += [other for other, _ in of_labkit(MODULES[name]) if folder(other) == "studies"]
    return seen


def test_experiments_of_studies_do_not_analyse() -> None:
    none(
        [
            f"{name} imports {other}"
            for name in with_experiments()
            for other, _ in of_labkit(MODULES[name])
            if folder(other) not in {"measure", "system", "common", "studies"}
        ]
    )


def test_studies_share_through_labkit_alone() -> None:
    """No study imports another one; what several need is in labkit, or directly in the folder `studies`."""
    none(
        [
            f"{named(path)}:{line}: {other}"
            for path in OF_STUDIES
            for other, line in of_labkit(path)
            if folder(other) == "studies" and room(other) != room(module_name(path)) and other.count(".") > 1
        ]
    )


def test_labkit_names_no_study() -> None:
    """What is beside labkit can be taken away: labkit names none of its experiments, neither in code nor in words."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {
        name
        for group, points in project["entry-points"].items()
        if group.startswith("labkit.")
        for name in points
    }
    # Words of everyday are not names: an overlay is a network as well, and every program has documents and requests.
    pattern = re.compile(rf"\b(studies\.|{'|'.join(sorted(names - {'overlay', 'documents', 'requests'}))})")
    texts = [
        *OF_LABKIT,
        *(path for path in (ROOT / "labkit").rglob("*") if path.suffix in {".j2", ".js", ".css"}),
    ]
    none(
        [
            f"{named(path)}:{number}: {place[0]}"
            for path in texts
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if (place := pattern.search(line))
        ]
    )


def test_measuring_wing_is_light() -> None:
    measuring = [
        path for name, path in MODULES.items() if folder(name) in {"", "measure", "system", "common"}
    ]
    measuring += [MODULES[name] for name in with_experiments()]
    none(
        [
            f"{named(path)}:{line}: {name}"
            for path in measuring
            for name, line in of_others(path)
            if name not in LIGHT | APART.get(module_name(path), set())
        ]
    )


@pytest.mark.parametrize(
    ("module", "user"), [("subprocess", "system.process"), ("pyroute2", "system.netlink")]
)
def test_one_module_alone_imports(module: str, user: str) -> None:
    none(
        [
            f"{named(path)}:{line}: only labkit.{user} imports {module}"
            for path in SOURCES
            for name, line in imported(path)
            if name.split(".")[0] == module and room(module_name(path)) != user
        ]
    )


# Programs that run within guests and containers, where labkit.system is not.
FORKING = {"labkit.measure.endpoints.exec_server", "labkit.measure.traffic.socket_loops"}


def test_one_package_alone_forks_and_executes() -> None:
    faults = []
    for path in SOURCES:
        if (name := module_name(path)) in FORKING or room(name) == "system.process":
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and re.fullmatch(
                r"os\.(fork\w*|exec\w+|spawn\w+|posix_spawn\w*)", ast.unparse(node)
            ):
                faults.append(f"{named(path)}:{node.lineno}: {ast.unparse(node)}")
    none(faults)


def test_python_runs_without_the_current_folder() -> None:
    """Each start of this Python passes -P or -I. The pattern lists the exceptions."""
    # `python()` of endpoints/guest/initramfs.py is the path of this Python without its virtual environment.
    interpreter = r"(?:sys\.executable|(?<=\[)(?:initramfs\.)?python\(\))"
    starts = re.compile(rf'{interpreter}(?!,\s+"-[PI]"|, \*light|\)| +#)')
    programs = [path for path in PYTHON if "tests" not in path.parts and path.name != "ssh_bootstrap.py"]
    none(
        [
            f"{named(path)}: {place[0]} at character {place.start()}"
            for path in programs
            for place in starts.finditer(path.read_text())
        ]
    )


def test_no_kill_by_name() -> None:
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
    """Tests skip only by `need` of conftest.py, so that LABKIT_NO_SKIP reaches every skip.

    ci_summary.py leaves out what CI has no time for, and names it.
    """
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
    none([fault for fault in faults if not fault.startswith(("tests/conftest.py:", "tests/ci_summary.py:"))])


def test_notebooks_are_thin_and_clean() -> None:
    assert NOTEBOOKS
    faults = []
    for path in NOTEBOOKS:
        code = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        if len(code) > 10:
            faults.append(f"{named(path)}: {len(code)} code cells; what is more belongs into the package")
        if sum("parameters" in cell["metadata"].get("tags", []) for cell in code) != 1:
            faults.append(f"{named(path)}: not one cell with the tag parameters")
        if any(cell["outputs"] or cell["execution_count"] for cell in code):
            faults.append(f"{named(path)}: outputs are in the file; run .venv/bin/nbstripout {named(path)}")
    none(faults)


# Joined here so that this file does not name them either. (Without its slash, one is a Debian package.)
HOSTS = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"), ("files", "pythonhosted", "org"), ("conda", "anaconda", "org"), ("crates", "io"),
        ("registry", "npmjs", "org"), ("proxy", "golang", "org"), ("repo1", "maven", "org"), ("deb", "debian", "org"),
        ("security", "debian", "org"), ("docker", "io/"), ("quay", "io"), ("ghcr", "io"), ("huggingface", "co"),
    )
]  # fmt: skip
# Not preceded by anything that makes it part of a longer path or of an address.
A_PLACE_OF_ONE_MACHINE = re.compile(r"(?<![\w./~})])/(?:root|work|home)/\w")


def texts() -> Iterator[tuple[str, str]]:
    """Yield every text file that is in git, or will be after the next `git add`."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        path = ROOT / name
        if name and path.is_file() and b"\0" not in (content := path.read_bytes()):
            yield name, content.decode(errors="replace")


def test_no_registry_or_machine_path_is_named(need: Need) -> None:
    need("git")
    faults = []
    for name, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            faults += [f"{name}:{number}: names {host}" for host in HOSTS if host in line.lower()]
            if place := A_PLACE_OF_ONE_MACHINE.search(line):
                faults.append(f"{name}:{number}: {line[place.start() :][:60]}")
    none(faults)
