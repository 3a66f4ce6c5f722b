"""YAML files that users write. Whatever is wrong with one is reported in one sentence."""

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

MAX_VALUES = 100_000  # in a file


def read(path: Path) -> Any:
    """Read a YAML file. Raises BadInput when it does not exist or is not valid YAML."""
    try:
        result = yaml.safe_load(path.read_text())
        _checked(result)
        return result
    except FileNotFoundError:
        raise BadInput(f"there is no file {path}") from None
    # PyYAML's constructors raise many kinds of errors: int() and date() ValueError, a wrong !!bool KeyError, …
    except (OSError, ValueError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise BadInput(f"{path} is not a valid YAML file: {' '.join(str(error).split())[:200]}") from None


def _checked(result: Any) -> None:
    """Raises ValueError for content that is too large or no text: aliases may stand for millions of values, and an
    escape for half a character."""
    left, count = [result], 0
    while left:
        one, count = left.pop(), count + 1
        if count > MAX_VALUES:
            raise ValueError(f"it contains more than {MAX_VALUES:,} values")
        if isinstance(one, str):
            one.encode()
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set):
            left += one


def network(path: Path) -> Network:
    """Read a network from a YAML file. Its keys are the parameters of `labkit.measure.topologies.network.parts`; `type`
    names the part. Raises BadInput for a network that cannot be built."""
    try:
        result = msgspec.convert(read(path), Network)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path} does not describe a network: {error}") from None
    check_network(result)
    return result


def with_changes(parameters: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Return the parameters of an experiment with its changes parsed. Files that they name are read; these must be in
    `folder` or below, unless `folder` is None. Raises BadInput."""
    if "change" not in parameters:
        return dict(parameters)
    return {**parameters, "change": changes(parameters["change"], Files(folder))}


def changes(given: Any, files: Files) -> tuple[Change, ...]:
    """Parse changes from a text, a list, or a YAML file (a list, or a mapping with `changes`). Paths in a YAML file are
    relative to its folder and must not leave it. Raises BadInput."""
    if not isinstance(given, str) or not given.strip().endswith((".yaml", ".yml")):
        return experiments.parse_changes(given, files)
    path = given.strip()
    content = read(files.path(path))
    if isinstance(content, dict):
        if content.keys() != {"changes"}:
            raise BadInput(
                f"{path}: a file of changes must be a list, or a mapping with the single key changes"
            )
        content = content["changes"]
    if not isinstance(content, list):
        raise BadInput(f"{path}: changes must be a list")
    return experiments.parse_changes(content, files.beside(path))
