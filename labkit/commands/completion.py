"""Generate shell completion (`labkit completion SHELL`) from the parsers, with shtab.

The script completes commands, options, experiments, topologies, parameters and their values.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from labkit.commands import arguments
from labkit.commands.arguments import CommandParser
from labkit.common import run_folder
from labkit.measure import experiments, topologies


def script(shell: str) -> str:
    """Return the completion script for one of SHELLS."""
    import shtab

    parser, words = arguments.command_parser(), _completions()
    if shell == "fish":  # it completes whole words only
        words["parameters"] += dict.fromkeys(
            f"{one.name}={value}" for one in _known() for value in one.values
        )
    for action in _actions(parser):
        if action.dest in words and not action.option_strings:
            function = f"_labkit_{action.dest}"
            own = {"bash": function, "zsh": function, "fish": " ".join(words[action.dest])}
            action.complete = own  # type: ignore[attr-defined]
        elif action.type in (Path, run_folder.named) or action.dest == "folder":
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    form = {"bash": 'compgen -W "{}" -- "$1"', "zsh": "compadd -S '' -- {}"}.get(shell)
    functions = [
        f"_labkit_{name}() {{ {form.format(' '.join(own))}; }}"
        for name, own in words.items()
        if form and name != "parameters"
    ]
    if shell in PARAMETERS:
        functions += [_values_function(), PARAMETERS[shell].replace("NAMES", " ".join(words["parameters"]))]
    return shtab.complete(parser, shell, preamble="\n".join(functions))


def _completions() -> dict[str, list[str]]:
    """Return the completions of each positional argument, by its name."""
    every = (experiments.find(name).parameters().asdict() for name in experiments.TABLE)
    names = list(dict.fromkeys(f"{name}=" for own in every for name in own))
    return {"experiment": list(experiments.TABLE), "topology": list(topologies.TABLE), "parameters": names}


class _Known(NamedTuple):
    """The values of a parameter, and the experiments in which it has them."""

    name: str
    values: tuple[str, ...]
    experiments: list[str]


def _known() -> list[_Known]:
    known: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for experiment in experiments.TABLE:
        parameters = experiments.find(experiment).parameters
        for name in parameters().asdict():
            if values := tuple(parameters.known_values(name)):
                known.setdefault((name, values), []).append(experiment)
    return [_Known(*key, of) for key, of in known.items()]


def _values_function() -> str:
    """Return a shell function that prints the values of a parameter: `_labkit_values NAME WORD…`.

    The words are those of the command line, of which one is the experiment.
    """
    cases = [
        f'    {"|".join(f"{experiment}:{one.name}" for experiment in one.experiments)}) echo "{" ".join(one.values)}";;'
        for one in _known()
    ]
    return "\n".join([
        "_labkit_values() {",
        '  local name=$1 word experiment=""; shift',
        f'  for word in "$@"; do case "$word" in {"|".join(experiments.TABLE)}) experiment=$word;; esac; done',
        '  case "$experiment:$name" in', *cases, "  esac",
        "}",
    ])  # fmt: skip


# Bash divides words at "=" (COMP_WORDBREAKS) and completes what follows the last one. A value may be a list.
_BASH = """\
_labkit_parameters() {
  local word=$1 name="" list="" at=$COMP_CWORD
  if [[ $word == "=" ]]; then name=${COMP_WORDS[at-1]} word=""
  elif [[ ${COMP_WORDS[at-1]} == "=" ]]; then name=${COMP_WORDS[at-2]}
  elif [[ $word == *=* ]]; then name=${word%%=*} list="${word%%=*}=" word=${word#*=}
  else compgen -W "NAMES" -- "$word"; return
  fi
  [[ $word == *,* ]] && list+="${word%,*},"
  compgen -P "$list" -W "$(_labkit_values "$name" "${COMP_WORDS[@]}")" -- "${word##*,}"
}"""
_ZSH = """\
_labkit_parameters() {
  if compset -P 1 '*='; then
    local name=${IPREFIX%=}
    compset -P '*,'
    compadd -S '' -- $(_labkit_values "$name" ${(z)BUFFER})
  else
    compadd -S '' -- NAMES
  fi
}"""
PARAMETERS = {"bash": _BASH, "zsh": _ZSH}


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
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(given: argparse.Namespace) -> int:
    print(script(given.shell), end="")
    return 0
