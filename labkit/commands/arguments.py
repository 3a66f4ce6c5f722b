"""The parser of the command line, and what several commands have in common."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from labkit import __version__
from labkit.commands.messages import print_error
from labkit.commands.registry import COMMANDS
from labkit.common import run_folder, schema
from labkit.common.errors import MAX_CHARACTERS, BadInput, LabkitError, choose, did_you_mean
from labkit.common.printable import printable, shortened

EXIT_CODES = {
    "0": "The command succeeded. A reader may have closed the output early, for example head.",
    "1": "labkit itself has a fault. A traceback says where.",
    "2": "The input is wrong, the machine cannot do it, or something could not be measured. One sentence on standard"
    " error says what. Rows that were measured are on disk.",
    "130": "Ctrl-C. Finished rows are on disk. The same command resumes a sweep, and a run with --folder.",
}
VARIABLES = {
    "LABKIT_DATA": "the folder for runs; default: data in the project",
    "LABKIT_PROJECT": "the project, a folder with notebooks and params; labkit then executes its notebooks, even"
    " if others wrote them",
    "LABKIT_ALLOW": "machine_sysctl: changes may set sysctls of the whole machine while their arm is measured;"
    " trex_profile: a sweep's file may name a profile of TRex, which is code; trex_folder: it may name the folder of"
    " TRex, from which a program is started; existing_network: runs may send traffic between ends that labkit did not"
    " make; program: a change in a file may name a program; separate several with commas",
    "LABKIT_TREX": "the folder of an unpacked TRex release, from which labkit starts a server",
}


class CommandParser(argparse.ArgumentParser):
    """The parser of a command. It imports the command's module when it is used first.

    `name`: for example "kernels get"; `notes`: the text below its arguments; `json`: the fields that --json prints, in
    one object or in each of several `lines`; `rows`: it prints rows. `late_notes`: makes notes that need imports.
    """

    name, notes, lines, rows = "labkit", "", False, False
    json: Mapping[str, str] = MappingProxyType({})
    late_notes: Callable[[], str] | None = None

    def format_help(self) -> str:
        """Return the help, like argparse."""
        if self.late_notes is not None:
            self.epilog = self.late_notes()
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments, like argparse."""
        self.fill()
        arguments, rest = super().parse_known_args(args, namespace)
        if wrong := [word for word in rest if word.startswith("-")]:
            near = did_you_mean(wrong[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(wrong)}{near}")
        return arguments, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is none of the action's, with the one that was probably meant."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value} is unknown: {choose(value, action.choices)}")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a message. argparse would ignore that it could not be written."""
        file = file or sys.stderr
        file.write(message or "")
        file.flush()

    def error(self, message: str) -> NoReturn:
        """End with a message about the arguments that quotes them as other messages do (`messages.note`)."""
        super().error(printable(shortened(message))[:MAX_CHARACTERS])

    def fill(self) -> None:
        """Add the arguments, unless this was done before."""
        if self.name in COMMANDS and not self.notes:
            module = importlib.import_module(f"labkit.commands.{self.name}")
            self.described(module.NOTES, module.run)
            self.prints(getattr(module, "JSON", {}), getattr(module, "JSON_LINES", False))
            self.rows = getattr(module, "JSON_ROWS", False)
            module.add_arguments(self)

    def described(self, notes: str, run: Callable[[argparse.Namespace], int]) -> None:
        """Set the text below the arguments, and the function that runs the command."""
        self.notes = self.epilog = notes
        self.set_defaults(command=self.name, function=run)

    def prints(self, json: Mapping[str, str], lines: bool = False) -> None:
        """Say what --json prints, below the notes."""
        self.json, self.lines = json, lines
        if json:
            printed = "a list of objects" if lines else "one object"
            self.epilog = f"{self.notes.rstrip()}\n\n--json prints {printed}:\n{_wrapped(json)}"

    def commands(self) -> Iterator[CommandParser]:
        """Yield the parsers of the commands below this one, with their arguments."""
        self.fill()
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    parser.fill()
                    yield parser


def add_command(
    commands: argparse._SubParsersAction[CommandParser],
    name: str,
    summary: str,
    notes: str = "",
    run: Callable[[argparse.Namespace], int] | None = None,
) -> CommandParser:
    """Add the parser of a command, for example "kernels get".

    `notes` and `run` are those of `described`. A command of COMMANDS takes them from its module.
    """
    parser = commands.add_parser(
        name.split()[-1],
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.name = name
    if run is not None:
        parser.described(notes, run)
    return parser


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; `command` holds the name of the command.

    Invalid arguments end the process with exit code 2. Arguments of the form name=value may also follow options, which
    argparse alone would reject.
    """
    parser = command_parser()
    arguments: argparse.Namespace
    arguments, rest = parser.parse_known_args(argv)
    if rest and not hasattr(arguments, "parameters"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.parameters += rest
    return arguments


def name_value_pairs(words: Sequence[str]) -> dict[str, str]:
    """Return name=value arguments as a mapping.

    Raises BadInput for an argument of another form and for a repeated name.
    """
    mapping: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadInput(f"{word!r} is not a parameter: write name=value, for example pairs=8")
        if name in mapping:
            raise BadInput(f"the parameter {name} is given twice: keep one of them")
        mapping[name] = value
    return mapping


def command_parser() -> CommandParser:
    """Return the parser of the whole command line."""
    parser = CommandParser(
        prog="labkit",
        description="Which Linux virtual-network datapath is faster, by how much, and why.",
        epilog=f"exit codes:\n{_list_texts(EXIT_CODES)}\nenvironment variables:\n{_list_texts(VARIABLES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        add_command(commands, name, summary)
    return parser


def _list_texts(texts: dict[str, str]) -> str:
    return "\n".join(f"  {name:15}{text}" for name, text in texts.items())


def _wrapped(texts: Mapping[str, str]) -> str:
    return "\n".join(
        textwrap.fill(f"{name}: {text}", 100, initial_indent="  ", subsequent_indent="      ")
        for name, text in texts.items()
    )


class Folder(argparse.Action):
    """A folder argument that may occur once and must not be empty, because Path("") is the current folder."""

    def __call__(
        self, parser: argparse.ArgumentParser, into: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        if not value:
            by = f"{option} " if option else ""
            form = f"write {by}{self.metavar or 'FOLDER'}, for example {by}results"
            raise BadInput(f"{by}'' names no folder: {form}")
        if getattr(into, self.dest) is not None:
            raise BadInput(f"{option} is given twice: keep one of them")
        setattr(into, self.dest, Path(value))


def refuse(given: argparse.Namespace, options: Sequence[str], where: str) -> None:
    """Raise BadInput for the first of these options that is given although nothing uses it there."""
    for name in options:
        if getattr(given, name) is not None and getattr(given, name) is not False:
            shown = "RUN" if name == "run" else f"--{name.replace('_', '-')}"
            raise BadInput(f"{shown} does nothing {where}: leave it out")


def add_run(
    parser: argparse.ArgumentParser, name: str = "run", text: str = "the folder of a run or a sweep"
) -> None:
    """Add the argument for the folder of a run or a sweep."""
    parser.add_argument(name, type=run_folder.named, metavar="RUN", help=text)


def add_parameters(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the name=value arguments (`name_value_pairs`)."""
    parser.add_argument("parameters", nargs="*", metavar="name=value", help=text)


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for one topology and its parameters."""
    from labkit.measure import topologies  # most commands build none

    text = f"{', '.join(topologies.TABLE)}; or a YAML file that describes a network"
    parser.add_argument("topology", metavar="TOPOLOGY", help=text)
    add_parameters(parser, "pairs, mtu_bytes, family, parent")


def add_keep_failed(parser: argparse.ArgumentParser) -> None:
    """Add the option --keep-failed."""
    text = "keep failed rows instead of measuring them again"
    parser.add_argument("--keep-failed", action="store_true", help=text)


class _JudgePercentile(argparse.Action):
    """Judge latencies by the given percentile, in this process and in the notebooks that it executes."""

    def __call__(
        self, parser: argparse.ArgumentParser, into: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        os.environ[schema.PERCENTILE] = value
        setattr(into, self.dest, value)


def add_percentile(parser: argparse.ArgumentParser) -> None:
    """Add the option --percentile."""
    parser.add_argument(
        "--percentile",
        action=_JudgePercentile,
        type=schema.latency_text,
        choices=tuple(map(schema.latency_text, schema.LATENCIES)),
        help="the percentile of round-trip times that verdicts and figures are about (p50)",
    )


def add_gate(parser: argparse.ArgumentParser) -> None:
    """Add the options of a gate for CI."""
    text = (
        "exit with 3 if a point is worse by more than this margin, with 4 if that cannot be told; also 'cpu>5%%' and"
        " 'loss>0.1%%'; may be given several times"
    )
    parser.add_argument("--fail-if", action="append", metavar="'slower>3%%'", help=text)
    for form, what in (
        ("markdown", "a summary of the gate as Markdown"),
        ("junit", "the gate as JUnit's XML"),
    ):
        parser.add_argument(f"--{form}", type=Path, metavar="FILE", help=f"with --fail-if: write {what}")
    text = "with --fail-if: exit as `git bisect run` expects: 0 good, 1 bad, 125 cannot tell, 255 wrong input"
    parser.add_argument("--git-bisect", action="store_true", help=text)


# Exit codes of `git bisect run` for those of labkit: 1 is bad, 125 skips a commit, and more than 127 stops.
GIT_BISECT = {0: 0, 3: 1, 4: 125, 2: 125}
GIT_BISECT_STOPS = 255


def for_git_bisect(given: argparse.Namespace, run: Callable[[], int]) -> int:
    """Run a command with a gate, and return its exit code, with --git-bisect the one that git expects.

    git takes a commit for bad after most exit codes. So what could not be measured skips it, and what no other commit
    would change stops the search.
    """
    if not given.git_bisect:
        return run()
    try:
        return GIT_BISECT[run()]
    except LabkitError as error:
        print_error(str(error))
        return GIT_BISECT_STOPS if isinstance(error, BadInput) else GIT_BISECT[4]
    except Exception:  # a fault of labkit's says nothing about the commit
        traceback.print_exc()
        return GIT_BISECT_STOPS


def add_json(parser: argparse._ActionsContainer, text: str = "print one JSON object instead of text") -> None:
    """Add the option --json to a parser or a group."""
    parser.add_argument("--json", action="store_true", help=text)


def typed(value: Any) -> str:
    """Return a value as a user types it after the = of a parameter; changes and networks as JSON."""
    if isinstance(value, list):
        is_plain = not any(isinstance(one, dict) for one in value)
        return ",".join(map(str, value)) if is_plain else json.dumps(value, ensure_ascii=False)
    return str(value).lower() if value in (None, True, False) else str(value)
