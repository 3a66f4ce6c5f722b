"""Files that a person writes: YAML, read with one sentence for whatever is wrong with one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from labkit.common.errors import BadInput
from labkit.measure import experiments
from labkit.measure.experiments import Change, Files
from labkit.measure.topologies import Network, check_network

MOST_VALUES = 100_000  # of a file that a person writes


def read(path: Path) -> Any:
    """What a YAML file says. Raises BadInput for one that is not there or is none."""
    try:
        result = yaml.safe_load(path.read_text())
        _checked(result)
        return result
    except FileNotFoundError:
        raise BadInput(f"{path} is not there") from None
    # PyYAML's constructors raise what the text makes of them: int() and date() ValueError, a wrong !!bool KeyError, …
    except (OSError, ValueError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise BadInput(f"{path} is no YAML file: {' '.join(str(error).split())[:200]}") from None


def _checked(result: Any) -> None:
    """Raises ValueError for what is no plain data of a sensible size: aliases may stand for millions of values, and an
    escape for half a character."""
    left, count = [result], 0
    while left:
        one, count = left.pop(), count + 1
        if count > MOST_VALUES:
            raise ValueError(f"it holds more than {MOST_VALUES:,} values")
        if isinstance(one, str):
            one.encode()
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set):
            left += one


def network(path: Path) -> Network:
    """The network that a YAML file describes, with the words of `labkit.measure.topologies.network.parts`; `type` says which part it
    is. Raises BadInput for one that cannot be built."""
    try:
        result = msgspec.convert(read(path), Network)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path} describes no network: {error}") from None
    check_network(result)
    return result


def with_changes(parameters: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """The parameters of an experiment with its changes as data: a file that they name is read. Such a file lies in
    `folder` or below, unless that is None. Raises BadInput."""
    if "change" not in parameters:
        return dict(parameters)
    return {**parameters, "change": changes(parameters["change"], Files(folder))}


def changes(given: Any, files: Files) -> tuple[Change, ...]:
    """The changes that a text, a list, or a YAML file (a list, or a mapping with `changes`) describes. Paths in a YAML
    file are relative to its own folder, and do not lead out of it. Raises BadInput."""
    if not isinstance(given, str) or not given.strip().endswith((".yaml", ".yml")):
        return experiments.parse_changes(given, files)
    path = given.strip()
    content = read(files.path(path))
    if isinstance(content, dict):
        if content.keys() != {"changes"}:
            raise BadInput(f"{path}: a file of changes is a list, or a mapping with changes alone")
        content = content["changes"]
    if not isinstance(content, list):
        raise BadInput(f"{path} has no list of changes")
    return experiments.parse_changes(content, files.beside(path))
