"""The page of all commands has every command and parameter, and its examples are valid commands."""

from __future__ import annotations

import re
import shlex

import pytest

from labkit.commands import arguments, reference, registry, why
from labkit.measure import experiments

PAGE = reference.page()
EXAMPLES = sorted(set(re.findall(r"^    labkit (.*)$", PAGE, re.MULTILINE)))


def test_page_has_every_command_and_parameter() -> None:
    headings = set(re.findall(r"^## (.*)$", PAGE, re.MULTILINE))
    assert {f"labkit {name}" for name in (*registry.COMMANDS, "kernels get", "kernels install")} | {
        f"Parameters of {name}" for name in experiments.TABLE
    } < headings
    for name in experiments.TABLE:
        for key in experiments.find(name).parameters().asdict():
            assert f"| `{key}` |" in PAGE


@pytest.mark.parametrize("words", EXAMPLES)
def test_example_is_a_command(words: str) -> None:
    """The parser accepts the example, and its experiment accepts the parameters."""
    given = arguments.parse(shlex.split(words))
    if given.command == "run":
        values = arguments.name_value_pairs(given.parameters)
        assert values.keys() <= experiments.find(given.experiment).parameters().asdict().keys()


def test_help_has_notes_and_the_fields_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(["why", "--help"])
    shown = capsys.readouterr().out
    assert why.NOTES.strip() in shown
    assert re.findall(r"^  (\w+): ", shown, re.MULTILINE) == list(why.JSON)
