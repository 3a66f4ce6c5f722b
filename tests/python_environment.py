"""Install packages into a Python environment of a test's own, without a package index and without pip."""

from __future__ import annotations

import sysconfig
import tomllib
import venv
from pathlib import Path


def environment(folder: Path, paths: list[Path]) -> Path:
    """Make a virtual environment that also sees this one's packages and the folders in `paths`; return its Python."""
    venv.create(folder, symlinks=True)
    packages = site_packages(folder)
    more = [Path(sysconfig.get_path("purelib")), *paths]
    (packages / "more.pth").write_text("".join(f"{path}\n" for path in more))
    return folder / "bin/python"


def site_packages(folder: Path) -> Path:
    """Return the folder in which a virtual environment has its packages."""
    [result] = folder.glob("lib/python3*/site-packages")
    return result


def install(package: Path, folder: Path) -> None:
    """Write what pip writes about a package (its .dist-info), and put its folder on the path."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    packages = site_packages(folder)
    (packages / f"{project['name']}.pth").write_text(f"{package}\n")
    info = packages / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
