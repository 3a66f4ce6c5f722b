"""`labkit bisect`: find the first kernel, change or value with which a benchmark is worse."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from labkit.commands import arguments
from labkit.commands.messages import json_text
from labkit.common import run_folder, safe_files
from labkit.common.errors import BadInput
from labkit.common.printable import printable
from labkit.runner.progress import Bar

NOTES = """\
Values are in order, from good to bad. labkit measures each of them in turn with the good end, and
judges the ratios of these pairs of runs as a gate does: at least 3 pairs, and up to --most-pairs where
it cannot tell. A kernel may have options as in where=vm:…; one that does not boot is skipped. The same
command with --folder goes on after an interruption, even after kill -9. At the end, both sides of
the change are profiled and explained.

    labkit bisect datapaths topology=veth rounds=2 --over kernels 6.1.0-47-cloud-amd64 6.1.0-49-cloud-amd64
    labkit bisect datapaths topology=veth where=vm:debian,cpus=1 --over kernels IMAGES --folder data/veth
    labkit bisect datapaths topology=veth protocol=udp --over length_bytes=1400,1450,1472,1500
    labkit bisect datapaths topology=veth --over kernels OLD NEW --fail-if 'slower>2%' --gate
    labkit bisect datapaths topology=veth --over change 'rules 10 at server' 'rules 1000 at server'

Exit codes: 0 the first bad one is found, 4 cannot tell (the values that are left are named), 2 an
error, for example if the bad end is not worse than the good one. With --gate: 0 not worse, 3 worse,
4 cannot tell. `labkit compare --help` has the
command for `git bisect run`.
"""

JSON = {
    "folder": "the folder, in which `labkit compare` and `labkit why` can read the runs",
    "first_bad": "the first bad value; null: cannot tell",
    "last_good": "the nearest value before it that is not worse",
    "left": "the values of which one is the first bad one",
    "sentence": "the answer with its interval",
    "why": "what `labkit why` says of both, in sentences; the first one is its command",
    "steps": "a list: `value`, `word` (worse, not worse, cannot tell, skipped), `pairs` of runs, `sentence`",
}
CANNOT_TELL = 4
MOST_PAIRS = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment", metavar="EXPERIMENT", help="as in labkit run")
    arguments.add_parameters(parser, "its parameters, equal in all runs")
    text = (
        "kernels, then releases or images (where=vm:…), a folder of images, or a file with one of them in each"
        " line; or a parameter and its values; a change is named by its steps"
    )
    parser.add_argument("--over", nargs="+", required=True, metavar="kernels|NAME[=VALUE,…]", help=text)
    for name, text in (("good", "the good end (the first value)"), ("bad", "the bad end (the last value)")):
        parser.add_argument(f"--{name}", metavar="VALUE", help=text)
    text = "what is bad, as in labkit compare (slower>3%%); also 'cpu>5%%' and 'loss>0.1%%'"
    parser.add_argument("--fail-if", action="append", metavar="'slower>3%%'", help=text)
    text = f"pairs of runs after which labkit says that it cannot tell (10, at most {MOST_PAIRS})"
    parser.add_argument("--most-pairs", type=int, default=10, metavar="N", help=text)
    text = "judge the last value against the first one, and search nothing; exit codes as labkit compare"
    parser.add_argument("--gate", action="store_true", help=text)
    text = "where runs and state are; an unfinished bisect in it is resumed"
    parser.add_argument("--folder", action=arguments.Folder, help=text)
    arguments.add_percentile(parser)
    arguments.add_json(parser)


def run(given: argparse.Namespace) -> int:
    from labkit.analysis import gate
    from labkit.runner import bisect

    if not 2 <= given.most_pairs <= MOST_PAIRS:
        raise BadInput(f"--most-pairs {given.most_pairs}: choose 2 to {MOST_PAIRS}")
    over, values = _values(given.over)
    question = bisect.Question(
        given.experiment,
        arguments.name_value_pairs(given.parameters),
        over,
        bisect.ordered(values, given.good, given.bad),
        tuple(given.fail_if or ("slower>3%",)),
        given.most_pairs,
    )
    folder = given.folder or run_folder.new_run("bisect")
    bar = Bar()
    try:
        with bisect.held(safe_files.make_folder(folder)):
            search = bisect.Search(question, folder, bar.see, bar.say)
            bar.say(f"the bisect is in {run_folder.display_path(folder)}; --folder with it resumes it")
            answer = search.ends() if given.gate else search.run()
    finally:
        bar.stop()
    if given.json:
        print(json_text({"folder": str(folder), **dataclasses.asdict(answer)}))
    else:
        for sentence in (answer.sentence, *answer.why):
            print(f"- {printable(sentence)}")
    if given.gate:
        return gate.EXIT_CODES[answer.steps[0].word]
    return CANNOT_TELL if answer.first_bad is None else 0


def _values(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name that --over exchanges and its values."""
    from labkit.runner import bisect

    name, equals, text = words[0].partition("=")
    values = list(words[1:])
    if equals:
        if values:
            raise BadInput(f"--over {words[0]}: write NAME=VALUE,VALUE or NAME VALUE VALUE, not both")
        values = [value.strip() for value in text.split(",")]
    if name == bisect.KERNELS and len(values) == 1:
        values = bisect.kernels_of(Path(values[0]))
    if not values or not all(values):
        raise BadInput(f"--over {words[0]}: name at least two values, from good to bad")
    return name, values
