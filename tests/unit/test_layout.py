"""The source follows the project's rules (docs/DESIGN.md): layers, imports, how programs start, notebooks, and
names."""

import ast
import functools
import graphlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT, Need
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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

OF_LABKIT, OF_STUDIES, OF_BENCHMARKS, OF_TESTS = (
    sorted((ROOT / name).rglob("*.py")) for name in ("labkit", "studies", "benchmarks", "tests")
)
SOURCES = [*OF_LABKIT, *OF_STUDIES]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def line_at(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


# A whole statement. Only these are parsed: the trees of all files take ten times as long.
IMPORT = re.compile(
    r"^ *(?:from [\w.]+ import (?:\([^)]*\)|[\w, *]+)|import [\w.]+(?: as \w+)?(?:, [\w.]+)*)(?=\s*(?:#.*)?$)",
    re.MULTILINE,
)


def module_name(path: Path) -> str:
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
    text = path.read_text()
    for statement in IMPORT.finditer(text):
        line = line_at(text, statement.start())
        [node] = ast.parse(statement[0].strip()).body
        if isinstance(node, ast.Import):
            result += [(alias.name, line) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{named(path)}:{line}: write the whole name instead of dots"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                result.append((whole if whole in MODULES else str(node.module), line))
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


def found(paths: Iterable[Path], pattern: str, kind: type[ast.Attribute | ast.Constant]) -> list[str]:
    """Return the attributes or strings with this pattern in them, of the files whose text has it; no docstrings."""
    faults = []
    for path in paths:
        if not re.search(pattern, text := path.read_text()):
            continue
        tree = ast.parse(text, filename=named(path))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, kind) and id(node) not in docs:
                what = str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)
                if re.search(pattern, what):
                    faults.append(f"{named(path)}:{node.lineno}: {what}")
    return faults


def none(faults: Iterable[str]) -> None:
    every = list(faults)
    assert not every, "\n".join(every)


def test_imports_point_downwards() -> None:
    """No module imports upwards, and `measure` and `analysis` do not import each other."""
    none(
        f"{named(path)}:{line}: {name} imports {other}, which is not in a layer below"
        for name, path in MODULES.items()
        for other, line in of_labkit(path)
        if folder(name) != folder(other) and LAYER.get(folder(other), 99) >= LAYER.get(folder(name), 0)
    )


@pytest.mark.parametrize("level", [str, room], ids=["modules", "folders"])
def test_no_import_circles(level: Callable[[str], str]) -> None:
    edges: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        for other, _line in of_labkit(path):
            if level(name) != level(other):
                edges.setdefault(level(name), set()).add(level(other))
    try:
        graphlib.TopologicalSorter(edges).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def with_experiments() -> set[str]:
    """Return the modules of studies that experiments import, which start with every run of them."""
    waiting = [value.partition(":")[0] for value in PROJECT["entry-points"]["labkit.experiments"].values()]
    seen: set[str] = set()
    while waiting:
        if (name := waiting.pop()) not in seen:
            seen.add(name)
            waiting += [other for other, _ in of_labkit(MODULES[name]) if folder(other) == "studies"]
    return seen


def test_experiments_of_studies_do_not_analyse() -> None:
    none(
        f"{name} imports {other}"
        for name in with_experiments()
        for other, _ in of_labkit(MODULES[name])
        if folder(other) not in {"measure", "system", "common", "studies"}
    )


def test_studies_share_through_labkit_alone() -> None:
    """No study imports another one; what several need is in labkit, or directly in the folder `studies`."""
    none(
        f"{named(path)}:{line}: {other}"
        for path in OF_STUDIES
        for other, line in of_labkit(path)
        if folder(other) == "studies" and room(other) != room(module_name(path)) and other.count(".") > 1
    )


def test_labkit_names_no_study() -> None:
    """What is beside labkit can be taken away: labkit names none of its experiments, neither in code nor in words."""
    groups = (points for group, points in PROJECT["entry-points"].items() if group.startswith("labkit."))
    names = {name for points in groups for name in points}
    # Words of everyday are not names: an overlay is a network as well, and every program has documents and requests.
    pattern = re.compile(rf"\b(studies\.|{'|'.join(sorted(names - {'overlay', 'documents', 'requests'}))})")
    kinds = {".py", ".j2", ".js", ".css"}
    none(
        f"{named(path)}:{line_at(text, place.start())}: {place[0]}"
        for path in (ROOT / "labkit").rglob("*")
        if path.suffix in kinds
        for text in [path.read_text()]
        for place in pattern.finditer(text)
    )


def test_measuring_wing_is_light() -> None:
    measuring = [
        path for name, path in MODULES.items() if folder(name) in {"", "measure", "system", "common"}
    ]
    measuring += [MODULES[name] for name in with_experiments()]
    none(
        f"{named(path)}:{line}: {name}"
        for path in measuring
        for name, line in of_others(path)
        if name not in LIGHT | APART.get(module_name(path), set())
    )


# Packages whose import name differs from their own.
IMPORTED_AS = {
    "ipython": "IPython", "jupyter-client": "jupyter_client", "pytest-xdist": "xdist", "pyyaml": "yaml",
    "mlrsearch": "MLRsearch", "hdrhistogram": "hdrh", "lbr-trex-client": "lbr_trex_client",
}  # fmt: skip
# lbr-trex-client also brings trex; jupyter-client brings zmq; ipykernel brings psutil
BROUGHT = {"trex", "zmq", "psutil"}
# Packages that no line imports: for the build, programs, types, and what other packages load.
BY_OTHERS = {"ipykernel", "pandas-stubs", "scipy-stubs", "types-pyyaml", "sphinx", "myst-nb", "aiohttp"}
BY_OTHERS |= {"pydata-sphinx-theme", "voila", "setuptools", "jupyterlab", "ruff", "mypy", "nbstripout"}


def modules_of(requirements: Iterable[str]) -> set[str]:
    own = {canonicalize_name(Requirement(one).name) for one in requirements}
    return {IMPORTED_AS.get(name, name) for name in own}


EXTRAS = {name: modules_of(extra) for name, extra in PROJECT["optional-dependencies"].items()}
DEV = EXTRAS.pop("dev")
OPTIONAL = set().union(*EXTRAS.values())  # only one command needs these
RUN = modules_of(PROJECT["dependencies"])


def others(*groups: list[Path]) -> set[str]:
    own = {"benchmarks", *(path.stem for path in OF_TESTS)}
    return {name for paths in groups for path in paths for name, _ in of_others(path)} - own


def test_imports_are_declared_and_what_is_declared_is_used() -> None:
    of_package, of_tests = others(SOURCES), others(OF_TESTS, OF_BENCHMARKS)
    assert of_package - BROUGHT <= RUN | OPTIONAL
    assert of_tests - BROUGHT <= RUN | OPTIONAL | DEV
    assert of_package >= (RUN | OPTIONAL) - BY_OTHERS
    assert of_tests >= DEV - BY_OTHERS


def test_extras_are_imported_by_their_command_only() -> None:
    """Everything else works without the extras. Only the modules of `--dask` import them at module level."""
    at_top = re.compile(rf"^(?:import|from) ({'|'.join(OPTIONAL)})\b", re.MULTILINE)
    none(
        named(path) for path in OF_LABKIT if path.parent.name != "cluster" and at_top.search(path.read_text())
    )


@pytest.mark.parametrize(
    ("module", "user"), [("subprocess", "system.process"), ("pyroute2", "system.netlink")]
)
def test_one_module_alone_imports(module: str, user: str) -> None:
    none(
        f"{named(path)}:{line}: only labkit.{user} imports {module}"
        for path in SOURCES
        for name, line in imported(path)
        if name.split(".")[0] == module and room(module_name(path)) != user
    )


# Programs that run within guests and containers, where labkit.system is not.
FORKING = {"labkit.measure.endpoints.exec_server", "labkit.measure.traffic.socket_loops"}


def test_one_package_alone_forks_and_executes() -> None:
    elsewhere = (
        path for name, path in MODULES.items() if name not in FORKING and room(name) != "system.process"
    )
    none(found(elsewhere, r"\bos\.(fork|exec|spawn|posix_spawn)", ast.Attribute))


def test_python_runs_without_the_current_folder() -> None:
    """Each start of this Python passes -P or -I. The pattern lists the exceptions."""
    # `python()` of endpoints/guest/initramfs.py is the path of this Python without its virtual environment.
    interpreter = r"(?:sys\.executable|(?<=\[)(?:initramfs\.)?python\(\))"
    starts = re.compile(rf'{interpreter}(?!,\s+"-[PI]"|, \*light|\)| +#)')
    none(
        f"{named(path)}: {place[0]} at character {place.start()}"
        for path in (*SOURCES, *OF_BENCHMARKS)
        if path.name != "ssh_bootstrap.py"
        for place in starts.finditer(path.read_text())
    )


def test_no_kill_by_name() -> None:
    none(found(SOURCES, r"\b(pkill|killall|pgrep|pidof)\b", ast.Constant))


def test_tests_skip_in_one_way() -> None:
    """Tests skip only by `need` of conftest.py, so that LABKIT_NO_SKIP reaches every skip.

    ci_summary.py leaves out what CI has no time for, and names it.
    """
    paths = [path for path in OF_TESTS if path.name not in ("conftest.py", "ci_summary.py")]
    none(found(paths, r"\.(skip|skipif|importorskip|skipTest)\b", ast.Attribute))


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


def unwanted(text: str) -> Iterator[int]:
    lowered = text.lower()
    yield from (lowered.index(host) for host in HOSTS if host in lowered)
    if any(f"/{name}/" in text for name in ("root", "work", "home")):  # the pattern alone is slow
        yield from (place.start() for place in A_PLACE_OF_ONE_MACHINE.finditer(text))


def test_no_registry_or_machine_path_is_named(need: Need) -> None:
    need("git")
    none(
        f"{name}:{line_at(text, place)}: {text[place:][:60]!r}"
        for name, text in texts()
        for place in unwanted(text)
    )
