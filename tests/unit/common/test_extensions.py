"""Entry points of other packages: which are read, and what is refused."""

import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from python_environment import environment, install

TOPOLOGY = "from labkit.measure.topologies.base import TopologyKind\nKIND = TopologyKind(print)\n"


def package(folder: Path, name: str, points: str, code: str = TOPOLOGY) -> Path:
    """Write the source of a package `name` with these entry points, and return its folder."""
    place = folder / name
    place.mkdir()
    (place / f"{name}.py").write_text(code)
    (place / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "2.0"\n{points}\n')
    return place


def point(name: str, value: str, group: str = "labkit.topologies") -> str:
    return f'[project.entry-points."{group}"]\n{name} = "{value}"'


def refused(python: Path, name: str, folder: Path) -> str:
    code = "import sys; from labkit.start import main; sys.exit(main())"
    argv = [str(python), "-c", code, "draw", name]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=folder, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("names", "name", "code", "sentence"),
    [
        (("one",), "veth", TOPOLOGY, "veth (labkit.topologies) of the package one has a name that"),
        (("one",), "new", "import nowhere", "cannot be imported (ModuleNotFoundError: "),
        (("one",), "new", "KIND = 1", "is of type int: labkit needs a TopologyKind"),
        (("one", "other"), "new", TOPOLOGY, "are both installed: remove one"),
    ],
    ids=["a name of labkit", "a broken module", "another type", "one name twice"],
)
def test_faulty_packages_are_named(
    tmp_path: Path, names: tuple[str, ...], name: str, code: str, sentence: str
) -> None:
    python = environment(tmp_path / "environment", [ROOT])
    for one in names:
        install(package(tmp_path, one, point(name, f"{one}:KIND"), code), tmp_path / "environment")
    assert sentence in refused(python, "nothing", tmp_path)


def test_current_folder_and_pythonpath_add_nothing(tmp_path: Path) -> None:
    """A folder that somebody downloaded can contain what looks like an installed package."""
    folder = tmp_path / "downloaded"
    (folder / "lib/python3/site-packages").mkdir(parents=True)
    source = package(tmp_path, "one", point("new", "one:KIND"), "raise SystemExit('this code ran')")
    install(source, folder)
    python = environment(tmp_path / "environment", [ROOT, folder / "lib/python3/site-packages"])
    for place in (folder / "lib/python3/site-packages", tmp_path):
        assert "new is not a topology" in refused(python, "new", place)


def test_experiments_are_imported_when_they_run(tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", [ROOT])
    points = point("later", "one:EXPERIMENT", "labkit.experiments")
    install(package(tmp_path, "one", points, "raise SystemExit('imported')"), tmp_path / "environment")
    code = "from labkit.measure import experiments; assert 'later' in experiments.TABLE; experiments.find('datapaths')"
    subprocess.run([python, "-c", code], check=True, timeout=60)
