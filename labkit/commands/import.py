"""Make a run of results that were measured by hand (`labkit import`)."""

import argparse
from pathlib import Path

from labkit.commands import arguments
from labkit.common import run_folder
from labkit.common.errors import BadInput
from labkit.common.printable import printable

NOTES = """\
Each FILE is what `iperf3 -c HOST -J` wrote for one run. The first arm is the baseline. Name it twice,
the second time with other files of its own, so that labkit knows how much it differs from itself:
without that there is no evidence. Measure the arms in turn (A B A B), and at least five times each.

    labkit import veth=a1.json,a2.json,a3.json veth=b1.json,b2.json,b3.json vxlan=c1.json,c2.json,c3.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "an arm and the files of its runs, in order"
    parser.add_argument("arms", nargs="+", metavar="ARM=FILE[,FILE...]", help=text)
    parser.add_argument("--folder", action=arguments.Folder, help="the run folder to write (a new one)")


def run(given: argparse.Namespace) -> int:
    from labkit.analysis import load
    from labkit.commands import terminal_tables
    from labkit.runner import imported_run

    files: dict[str, list[Path]] = {}
    again: list[Path] = []
    for text in given.arms:
        name, _, listed = text.partition("=")
        paths = [Path(one) for one in listed.split(",") if one]
        if not run_folder.is_name(name) or not paths:
            raise BadInput(f"{text}: write ARM=FILE,FILE with the files that iperf3 -J wrote")
        if name not in files:
            files[name] = paths
        elif name == next(iter(files)) and not again:
            again = paths
        else:
            raise BadInput(
                f"{name} is named too often: only the first arm can be named twice, as its own control"
            )
    folder = given.folder or run_folder.new_run(imported_run.EXPERIMENT)
    imported_run.write(files, again, folder)
    terminal_tables.show_rows(load.load(folder))
    print(f"run: {printable(run_folder.display_path(folder))}")
    return 0
