"""Generate shell completion (`labkit completion SHELL`) from the parsers, with shtab.

The script completes commands, options, experiments, topologies and parameters.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import shtab

from labkit.commands import arguments
from labkit.measure import experiments, topologies


def script(shell: str) -> str:
    """Return the completion script for one of arguments.SHELLS."""
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


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
