"""Generate shell completion (`labkit completion SHELL`) from the parsers, with shtab.

The script completes commands, options, experiments, topologies and parameters.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from labkit.commands import arguments
from labkit.commands.arguments import CommandParser
from labkit.measure import experiments, topologies


def script(shell: str) -> str:
    """Return the completion script for one of SHELLS."""
    import shtab

    parser, words = arguments.command_parser(), _words()
    for action in _actions(parser):
        if action.dest in words and not action.option_strings:
            function = f"_labkit_{action.dest}"
            own = {"bash": function, "zsh": function, "fish": " ".join(words[action.dest])}
            action.complete = own  # type: ignore[attr-defined]
        elif action.type is Path or action.dest == "folder":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    form = {"bash": 'compgen -W "{}" -- "$1"', "zsh": "compadd -S '' -- {}"}.get(shell)
    functions = [
        f"_labkit_{name}() {{ {form.format(' '.join(own))}; }}" for name, own in words.items() if form
    ]
    return shtab.complete(parser, shell, preamble="\n".join(functions))


def _words() -> dict[str, list[str]]:
    """Return the completions of each positional argument, by its name."""
    names = dict.fromkeys(
        f"{key}=" for name in experiments.TABLE for key in experiments.find(name).parameters().asdict()
    )
    return {
        "experiment": list(experiments.TABLE),
        "topology": list(topologies.TABLE),
        "parameters": list(names),
    }


def _actions(parser: CommandParser) -> Iterator[argparse.Action]:
    yield from parser._actions
    for below in parser.commands():
        yield from _actions(below)


NOTES = """\
bash: write it to a file in ~/.local/share/bash-completion/completions named labkit. zsh: to a file
_labkit in a folder of fpath. fish: to ~/.config/fish/completions/labkit.fish.

    labkit completion bash
    labkit completion zsh
    labkit completion fish
"""

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(given: argparse.Namespace) -> int:
    """Run the command, and return the exit code."""
    print(script(given.shell), end="")
    return 0
