"""YAML files by anyone: every error is one sentence, whatever the content."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.common.errors import BadInput, Failed, error_by_name
from labkit.runner import yaml_files

NASTY = {
    "a number of 5,000 digits": "9" * 5000,
    "a date that is none": "2001-13-45",
    "no binary number": "0b_",
    "an int that is none": "!!int abc",
    "a float that is none": "!!float abc",
    "a time that is none": "!!timestamp abc",
    "a truth that is none": "!!bool abc",
    "deep": "[" * 3000,
    "a program": "!!python/object/apply:os.system [true]",
    "no text": "\x00",
}


@pytest.mark.parametrize("content", NASTY.values(), ids=NASTY)
def test_invalid_content_is_one_sentence(content: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(content)
    with pytest.raises(
        BadInput, match=r"own\.yaml (is not a valid YAML file|does not describe a network): "
    ) as refused:
        yaml_files.network(path)
    assert "\n" not in str(refused.value)


def test_link_loops_and_error_classes(tmp_path: Path) -> None:
    loop = tmp_path / "own.yaml"
    loop.symlink_to(loop)
    with pytest.raises(BadInput, match=r"own\.yaml cannot be read: Too many levels of symbolic links"):
        yaml_files.read(loop)
    assert isinstance(error_by_name("BadInput", "x"), BadInput)
    assert type(error_by_name("LinkError", "x")) is Failed
    assert type(error_by_name("print", "x")) is Failed
