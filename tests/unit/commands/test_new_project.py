"""`labkit new` makes a project from the clone, and from a wheel that is installed beside no clone."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import ROOT

from labkit import cli
from labkit.commands import new
from labkit.common import run_folder
from labkit.runner import sweep

BUILD = "from setuptools import build_meta; print(build_meta.build_wheel({!r}))"


def test_project_of_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "project"
    assert cli.main(["new", str(folder)]) == 0
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"notebooks/00_start_here.ipynb", "params/datapaths.yaml", "docs/network.yaml"} <= names
    assert capsys.readouterr().out.startswith(f"{len(names)} files in {folder}")
    monkeypatch.chdir(folder / "params")
    monkeypatch.delenv(run_folder.PROJECT, raising=False)
    assert run_folder.project_root() == folder
    assert sweep.load(folder / "params/datapaths-quick.yaml").experiment == "datapaths"


def test_links_of_a_project_lead_to_its_files(tmp_path: Path) -> None:
    """The documents and the notebooks of a project link nothing that it lacks."""
    new.create(tmp_path / "project")
    documents = [path for path in (tmp_path / "project").rglob("*") if path.suffix in (".md", ".ipynb")]
    assert len(documents) > 10
    for document in documents:
        for link in re.findall(r"\]\((?!https?:)([\w./-]+)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links {link}"


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("kept")
    for taken in (tmp_path, tmp_path / "mine"):
        assert cli.main(["new", str(taken)]) == 2
        assert capsys.readouterr().err == (
            f"labkit: {taken} exists and is not an empty folder: name a new folder, so nothing is overwritten\n"
        )
    assert os.listdir(tmp_path) == ["mine"]
    assert cli.main(["new", ""]) == 2
    assert capsys.readouterr().err == "labkit: '' names no folder: write FOLDER, for example results\n"


@pytest.mark.long
def test_project_of_a_wheel(tmp_path: Path) -> None:
    """The wheel is built from a copy, and installed into a folder of its own."""
    copy, prefix = tmp_path / "copy", tmp_path / "prefix"
    for name in ("labkit", "notebooks", "params", "data/reference", "data/results", "docs", "figures"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("pyproject.toml", "README.md", "SECURITY.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = [sys.executable, "-W", "ignore", "-c", BUILD.format(str(tmp_path))]
    made = subprocess.run(build, cwd=copy, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    [wheel] = tmp_path.glob("labkit-*.whl")
    install = [
        *["-m", "pip", "install", "--no-index", "--no-deps", "--ignore-installed", "--prefix"],
        str(prefix),
        str(wheel),
    ]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    shutil.rmtree(copy)

    packages = sysconfig.get_path("purelib", vars={"base": str(prefix)})
    code = "import labkit, sys; from labkit import start; print(labkit.__file__); sys.exit(start.main())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "new", "project"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": packages}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith(packages), done.stderr
    assert done.returncode == 0, done.stderr
    for pattern in new.PATTERNS:
        there, here = (
            {path.relative_to(root): path.read_bytes() for path in root.glob(pattern) if path.is_file()}
            for root in (tmp_path / "project", ROOT)
        )
        assert there == here
