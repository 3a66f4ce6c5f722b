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


def labkit(python: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [str(python), "-c", "import sys; from labkit.start import main; sys.exit(main())", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=folder, check=False)


@pytest.mark.parametrize(
    ("points", "code", "sentence"),
    [
        (point("veth", "one:KIND"), TOPOLOGY, "veth (labkit.topologies) of the package one has a name that"),
        (point("new", "one:KIND"), "import nowhere", "cannot be imported (ModuleNotFoundError: "),
        (point("new", "one:KIND"), "KIND = 1", "is of type int: labkit needs a TopologyKind"),
    ],
    ids=["a name of labkit", "a broken module", "another type"],
)  # fmt: skip
def test_faulty_packages_are_named(tmp_path: Path, points: str, code: str, sentence: str) -> None:
    python = environment(tmp_path / "environment", [ROOT])
    install(package(tmp_path, "one", points, code), tmp_path / "environment")
    done = labkit(python, "draw", "nothing", folder=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_two_packages_with_one_name(tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", [ROOT])
    for name in ("one", "other"):
        install(package(tmp_path, name, point("new", f"{name}:KIND")), tmp_path / "environment")
    done = labkit(python, "draw", "nothing", folder=tmp_path)
    assert done.returncode == 2
    assert "are both installed: remove one" in done.stderr


def test_current_folder_and_pythonpath_add_nothing(tmp_path: Path) -> None:
    """A folder that somebody downloaded can contain what looks like an installed package."""
    folder = tmp_path / "downloaded"
    (folder / "lib/python3/site-packages").mkdir(parents=True)
    source = package(tmp_path, "one", point("new", "one:KIND"), "raise SystemExit('this code ran')")
    install(source, folder)
    python = environment(tmp_path / "environment", [ROOT, folder / "lib/python3/site-packages"])
    for place in (folder / "lib/python3/site-packages", tmp_path):
        done = labkit(python, "draw", "new", folder=place)
        assert done.returncode == 2
        assert "new is not a topology" in done.stderr


def test_experiments_are_imported_when_they_run(tmp_path: Path) -> None:
    python = environment(tmp_path / "environment", [ROOT])
    points = point("later", "one:EXPERIMENT", "labkit.experiments")
    install(package(tmp_path, "one", points, "raise SystemExit('imported')"), tmp_path / "environment")
    code = "from labkit.measure import experiments; assert 'later' in experiments.TABLE; experiments.find('datapaths')"
    subprocess.run([python, "-c", code], check=True, timeout=60)
