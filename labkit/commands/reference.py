"""Write the page of all commands from the parsers: `python -m labkit.commands.reference FILE`."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from labkit.commands import arguments
from labkit.commands.arguments import CommandParser
from labkit.common import switch_options
from labkit.common.printable import markdown_table
from labkit.measure import experiments, topologies
from labkit.measure.experiments import changes
from labkit.measure.experiments.change_kinds.registry import KINDS
from labkit.measure.topologies import registry
from labkit.measure.topologies.base import NETWORKING_MODELS

BEGINNING = """\
# Commands

This page is made from the parsers of the command line. The same texts are in `labkit COMMAND --help`.
Results go to standard output, and everything else goes to standard error. `make` alone lists the
commands of the Makefile.
"""
LONGEST = 60  # characters of a default in a table
NO_ARGUMENTS = (argparse._HelpAction, argparse._SubParsersAction)


def page() -> str:
    """Return the whole page as Markdown."""
    return "\n".join([BEGINNING, *_beginning(), *_commands(arguments.command_parser()), *_parameters()])


def _beginning() -> Iterator[str]:
    yield _meanings("exit code", arguments.EXIT_CODES)
    yield _meanings("environment variable", arguments.VARIABLES)


def _meanings(what: str, texts: Mapping[str, str]) -> str:
    return markdown_table((what, "meaning"), [(f"`{name}`", text) for name, text in texts.items()])


def _commands(parser: CommandParser) -> Iterator[str]:
    for one in parser.commands():
        yield f"## labkit {one.name}\n"
        yield f"{one.description}\n"
        own = [each for each in one._actions if not isinstance(each, NO_ARGUMENTS)]
        rows = [(_argument_words(action), _help(one, action)) for action in own]
        if rows:
            yield markdown_table(("argument", "meaning"), rows)
        yield one.notes
        if one.rows:
            yield "With `--json` it prints a row on each line. `labkit rows --columns` explains their columns.\n"
        if one.json:
            printed = "a list of objects" if one.lines else "one object"
            yield f"With `--json` it prints {printed}:\n"
            yield _meanings("field", one.json)
        yield from _commands(one)


def _argument_words(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else action.metavar or action.dest.upper()
    return f"`{' '.join([*action.option_strings[:1], str(value)]).strip()}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    required = (group for group in parser._mutually_exclusive_groups if group.required)
    needed = any(action in group._group_actions for group in required)
    return (action.help or "") + ("; one of these is needed" if needed else "")


def _parameters() -> Iterator[str]:
    """Yield the parameters of the first experiment, and for each other experiment only those that differ."""
    known: dict[str, tuple[str, str]] = {}
    for name in experiments.TABLE:
        experiment = experiments.find(name)
        values = experiment.parameters().asdict()
        rows = {
            key: (_default_text(arguments.typed(values[key])), text) for key, text in experiment.help.items()
        }
        yield f"## Parameters of {name}\n"
        if experiment.about:
            yield f"{experiment.about[0].upper()}{experiment.about[1:]}.\n"
        if known:
            yield "Parameters that are not in this table are those of datapaths.\n"
        if missing := [f"`{key}`" for key in known if key not in rows]:
            yield f"It has no {', '.join(missing)}.\n"
        yield markdown_table(
            ("parameter", "default", "meaning"),
            [(f"`{key}`", *row) for key, row in rows.items() if known.get(key) != row],
        )
        known = known or rows
    yield from _topologies()
    yield from _switch_options()
    yield from _changes()


def _topologies() -> Iterator[str]:
    """Yield the topologies by model, and what labkit has no topology for."""
    yield (
        "## Topologies\n\n"
        "The models of draft-ietf-bmwg-containerized-infra-08 say where packets are forwarded between containers."
        " `labkit doctor --datapaths` says which topologies this machine can build.\n"
    )
    of = {
        model: [f"`{name}`" for name, kind in topologies.TABLE.items() if kind.networking_model == model]
        for model in NETWORKING_MODELS
    }
    rows = [(model, ", ".join(names) or "none") for model, names in of.items()]
    yield markdown_table(("model", "topologies"), rows)
    missing = [(name, model, needs) for name, (model, needs) in registry.WITHOUT_TOPOLOGY.items()]
    yield markdown_table(("no topology", "model", "it needs"), missing)


def _switch_options() -> Iterator[str]:
    """Yield the options of a switch's name, with their defaults."""
    yield (
        "## Options of Open vSwitch\n\n"
        f"The topologies {', '.join(f'`{name}`' for name in switch_options.NAMES)} take options in their name, for"
        " example `ovs_netdev+mirrors=2+readers=count`.\n"
    )
    usual = {name: arguments.typed(value) for name, value in switch_options.USUAL.items()}
    rows = [(f"`{name}`", f"`{usual[name]}`", one.help) for name, one in switch_options.OPTIONS.items()]
    yield markdown_table(("option", "default", "meaning"), rows)


def _changes() -> Iterator[str]:
    """Yield the kinds of changes, and the places at which they are applied."""
    yield f"## Changes\n\n`change=` takes `{changes.FORM}`. The kinds:\n"
    rows = [
        (f"`{name}`", one.meaning, f"`{one.example}`" if one.example else "") for name, one in KINDS.items()
    ]
    yield markdown_table(("kind", "meaning", "example"), rows)
    yield "A kind with `at` in its example needs a place:\n"
    yield _meanings("place", changes.PLACE_WORDS)


def _default_text(default: str) -> str:
    if len(default) > LONGEST:
        return "see `labkit run datapaths --help`"
    return f"`{default}`" if default else ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
