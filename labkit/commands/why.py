"""`labkit why`: explain a difference."""

import argparse
from pathlib import Path

from labkit.commands import arguments
from labkit.commands.messages import json_text
from labkit.common import run_folder
from labkit.common.errors import BadInput
from labkit.common.printable import printable

NOTES = """\
The first sentence names the cause of the difference with its size and share. If the evidence is too
weak, it says what is known. The page works offline. Both sides need profiles (`labkit run ...
observe=perf_record,counters`). Several runs of one side are RUN+RUN. Arms are named by what
differs. RUN alone compares every arm with the first, without a page if there are several.

    labkit why RUN
    labkit why RUN:veth veth_bridge
    labkit why RUN:veth,length_bytes=1472 length_bytes=1473
    labkit why RUN:veth,pairs=1 pairs=8
    labkit why RUN+RUN RUN+RUN
"""

JSON = {
    "left": "the name of the left side",
    "right": "the name of the right side; several arms: null",
    "verdicts": "verdicts from the rounds without observers, in sentences",
    "notes": "notes on the verdicts, in sentences",
    "points": "a list: `point`, `sentence` (the conclusion), `cause` (null: no cause is named), `notes`, `next` (the"
    " measurements to make next), `candidates` (`name`, `evidence`: strong, good, weak or none, `known`,"
    " `difference_s` of CPU time for each unit that arrived, `half_width_s` of its 95 % interval)",
    "page": "the path of the HTML page; several arms: null, and each point also has `arm`",
    "exported": "with --export, a sentence that names the files; otherwise null",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a run's folder, one of its arms, and one of its points, for example RUN:veth,length_bytes=1472"
    parser.add_argument("left", metavar="RUN[:ARM][,name=value…]", help=text)
    text = (
        "what to compare with: another run, or another arm or point of the same run, for example veth_bridge, or"
        " length_bytes=1473, or pairs=8; a value that only one side names applies to both"
    )
    parser.add_argument("right", nargs="?", metavar="RUN[:ARM]|ARM[,name=value…]", help=text)
    text = "where to write the page; default: why.html in the first run's folder"
    parser.add_argument("--out", type=Path, metavar="FILE", help=text)
    text = "count the CPU time of these processes alone, or of ovs-vswitchd (switch); default: all of the experiment"
    text += " and of the kernel"
    parser.add_argument("--processes", default=r"(?!elsewhere$).*", metavar="REGEX", help=text)
    text = "also write the stacks of each side to this folder: folded (flamegraph.pl, speedscope, Firefox Profiler)"
    parser.add_argument("--export", type=Path, metavar="DIR", help=text)
    arguments.add_percentile(parser)
    arguments.add_json(parser)


def run(given: argparse.Namespace) -> int:
    from labkit.analysis import why

    if given.right is None and why.has_several(run_folder.named(given.left)):
        if given.out is not None or given.export is not None:
            one = "name one, because a page and an export are about one"
            raise BadInput(f"{given.left} has several arms: {one}")
        arms = why.explain_run(run_folder.named(given.left), given.processes)
        if given.json:
            print(json_text({**arms.as_json(), "page": None, "exported": None}))
        for sentence in [] if given.json else arms.sentences():
            print(f"- {printable(sentence)}")
        return 0
    explained = why.explain(given.left, given.right, given.processes)
    path = explained.write(given.out)
    exported = explained.export(given.export) if given.export is not None else None
    if given.json:
        print(json_text({**explained.as_json(), "page": str(path), "exported": exported}))
        return 0
    for sentence in [*explained.sentences(), *([exported] if exported else [])]:
        print(f"- {printable(sentence)}")
    print(f"page: {printable(run_folder.display_path(path))}")
    return 0
