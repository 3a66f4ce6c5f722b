"""`labkit new`: create a project."""

from __future__ import annotations

import argparse

from labkit.commands import arguments
from labkit.common import run_folder, units
from labkit.common.printable import printable

NOTES = """\
The folder then contains the notebooks, the sweep files, docs/network.yaml, which is an example of a
network of your own, and what the notebooks refer to. Commands that are typed in it write their
runs to its folder data.

    labkit new my-project
    cd my-project
    labkit run datapaths duration_s=1
    labkit sweep params/datapaths-quick.yaml
    jupyter lab
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "folder",
        action=arguments.Folder,
        metavar="FOLDER",
        help="a folder that does not exist yet, or an empty one",
    )


def run(given: argparse.Namespace) -> int:
    """Run the command, and return the exit code."""
    from labkit.commands import new_project

    count = new_project.create(given.folder)
    shown = run_folder.display_path(given.folder.absolute())
    print(
        printable(
            f"{units.counted(count, 'file')} in {shown}: go there (cd), and then `labkit doctor`,"
            " `labkit sweep params/datapaths-quick.yaml`, or `jupyter lab`"
        )
    )
    return 0
