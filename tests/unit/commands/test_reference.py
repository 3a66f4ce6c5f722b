"""The examples of the page of all commands are valid commands."""

import re
import shlex

import pytest

from labkit.commands import arguments, reference, why
from labkit.measure import experiments, topologies


def test_examples_are_commands() -> None:
    """The parser accepts each example of the page, and its experiment accepts the parameters."""
    examples = set(re.findall(r"^    labkit (.*)$", reference.page(), re.MULTILINE))
    assert len(examples) > 50
    for words in examples:
        given = arguments.parse(shlex.split(words))
        if given.command == "run":
            values = arguments.name_value_pairs(given.parameters)
            assert values.keys() <= experiments.find(given.experiment).parameters().asdict().keys(), words


def test_help_has_notes_and_the_fields_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(["why", "--help"])
    shown = capsys.readouterr().out
    assert why.NOTES.strip() in shown
    assert re.findall(r"^  (\w+): ", shown, re.MULTILINE) == list(why.JSON)


def test_topologies_stand_in_the_row_of_their_model() -> None:
    """Those that labkit lacks have a row each, with what they need."""
    lines = reference.page().splitlines()
    for name, kind in topologies.TABLE.items():
        [row] = [line for line in lines if line.startswith(f"| {kind.networking_model} | ")]
        assert f"`{name}`" in row
    assert {line.split(" | ")[0] for line in lines} >= {"| SR-IOV", "| SmartNIC", "| VPP"}
