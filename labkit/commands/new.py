"""`labkit new`: create a project folder with notebooks, sweep files, published figures and runs, an example network.

In a clone they are beside the package. A wheel contains them as data files below share/labkit.
"""

import argparse
from pathlib import Path

import labkit
from labkit.commands import arguments
from labkit.common import run_folder, units
from labkit.common.errors import BadInput, Failed
from labkit.common.printable import printable

NOTES = """\
The folder then contains the notebooks, the sweep files, docs/network.yaml, which is an example of a
network of your own, and what the notebooks refer to. Commands that are typed in it write their
runs to its folder data.

    labkit new my-project
    cd my-project
    labkit doctor
    labkit sweep params/datapaths-quick.yaml
    jupyter lab
"""

# What a project contains: also what its notebooks and these documents link. pyproject.toml lists the same files for the
# wheel, each published run by name; a test compares both.
PATTERNS = (
    "notebooks/*.ipynb", "params/*.yaml", "docs/network.yaml", "docs/INSTALL.md", "docs/METHOD.md", "docs/ROWS.md",
    "docs/EXTENDING.md", "docs/FINDINGS.md", "docs/method/*.md", "figures/*.svg",
    "SECURITY.md", "data/reference/*", "data/results/*/*.*",
)  # fmt: skip
SHARE = "share/labkit/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a folder that does not exist yet, or an empty one"
    parser.add_argument("folder", action=arguments.Folder, metavar="FOLDER", help=text)


def run(given: argparse.Namespace) -> int:
    count = create(given.folder)
    shown = run_folder.display_path(given.folder.absolute())
    then = "go there (cd), and then `labkit doctor`, `labkit sweep params/datapaths-quick.yaml`, or `jupyter lab`"
    print(printable(f"{units.counted(count, 'file')} in {shown}: {then}"))
    return 0


def create(folder: Path) -> int:
    """Copy the project's files into a new or empty folder, and return their number.

    Raises BadInput if the folder is not empty, and Failed if this installation has no such files.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        way = "name a new folder, so nothing is overwritten"
        raise BadInput(f"{folder} exists and is not an empty folder: {way}")
    files = sources()
    if not files:
        raise Failed(
            "this installation of labkit has no notebooks, so no project can be made:"
            " install the wheel again (pip install --force-reinstall --no-deps labkit)"
        )
    for name, source in files.items():
        run_folder.write(folder / name, source.read_bytes())
    return len(files)


def sources() -> dict[str, Path]:
    """Return the project's files by their names in a project: those of the clone, else those of the wheel."""
    clone = Path(labkit.__file__).parents[1]
    if (clone / "notebooks").is_dir() and (clone / "params").is_dir():
        return {
            path.relative_to(clone).as_posix(): path
            for pattern in PATTERNS
            for path in sorted(clone.glob(pattern))
            if path.is_file()
        }
    import importlib.metadata  # takes long, and only a wheel needs it

    installed = importlib.metadata.distribution("labkit").files or ()
    located = {
        path.as_posix().partition(SHARE)[2]: Path(str(path.locate()))
        for path in installed
        if SHARE in path.as_posix()
    }
    return {name: path for name, path in located.items() if path.is_file()}
