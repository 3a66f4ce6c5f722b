"""Read YAML files that users write. Every error is one sentence."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from labkit.common import safe_files
from labkit.common.errors import BadInput
from labkit.common.plain_types import wrong_type
from labkit.common.printable import say
from labkit.measure import experiments
from labkit.measure.experiments import Change, Files
from labkit.measure.topologies import Network, check_network
from labkit.runner import containerlab, permissions

MAX_VALUES, MAX_BYTES = 100_000, 4 << 20  # in a file
# The formats of other programs, by a key that only their files have, and one inside it: how they are read as networks.
FORMATS = {("topology", "nodes"): containerlab.network}


def read(path: Path) -> Any:
    """Read a YAML file. Raises BadInput when it does not exist or is not valid YAML."""
    content = safe_files.read_regular(path, MAX_BYTES)
    try:
        result = yaml.safe_load(content.decode())
        _check_content(result)
        return result
    # PyYAML's constructors raise many kinds of errors: int() and date() ValueError, a wrong !!bool KeyError, …
    except (ValueError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise BadInput(f"{path} is not a valid YAML file: {' '.join(str(error).split())[:200]}") from None


def comment(path: Path) -> str:
    """Return the comment with which a file begins, as one text."""
    lines = safe_files.read_regular(path, MAX_BYTES).decode(errors="replace").splitlines()
    return " ".join(
        line.lstrip("# ") for line in itertools.takewhile(lambda line: line.startswith("#"), lines)
    )


def _check_content(content: Any) -> None:
    """Raise ValueError for content that is too large or invalid text: aliases may expand to millions of values."""
    left, count = [content], 0
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
    """Read a network from a YAML file. Raises BadInput for a network that cannot be built.

    Its keys are the parameters of `labkit.measure.topologies.network.parts`. `type` names the part. Without `name`, the
    network is named after the file. Of a file in another format (FORMATS), a message says what is left out.
    """
    content = read(path)
    for (key, inner), read_as in FORMATS.items():
        if not (
            isinstance(content, dict) and isinstance(within := content.get(key), dict) and inner in within
        ):
            continue
        result, sentence = read_as(content, path.stem.removesuffix(".clab"))
        say(sentence)
        check_network(result)
        return result
    try:
        if isinstance(content, dict):
            content = {"name": path.stem, **content}
        result = msgspec.convert(content, Network)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path} does not describe a network: {wrong_type(error)}") from None
    check_network(result)
    return result


def with_files(
    parameters: Mapping[str, Any],
    folder: Path | None,
    project: Path | None = None,
    *,
    of_a_sweep: bool = False,
) -> dict[str, Any]:
    """Return the parameters of an experiment with its changes parsed and the names of network files replaced by the
    networks. Both may also be lists in JSON, as in the command of a published run.

    Files must be in `folder` or below, unless `folder` is None. A network may also be in `project`. Raises BadInput,
    also for a program that a sweep's file names, unless its user allows that.
    """
    result = {name: _of_json(name, value) for name, value in parameters.items()}
    if "change" in parameters:
        result["change"] = changes(result["change"], Files(folder))
        if of_a_sweep or permissions.is_of_a_sweep():
            _refuse_programs(result["change"], "a sweep's file")
    if "topology" in parameters:
        result["topology"] = _topologies(result["topology"], folder, project)
    return result


def _of_json(name: str, given: Any) -> Any:
    """Return the list in a text in JSON, or another value as it is."""
    if name not in ("change", "topology") or not (isinstance(given, str) and given.startswith("[")):
        return given
    try:
        return msgspec.json.decode(given, type=list[Any])
    except msgspec.MsgspecError as error:
        raise BadInput(f"{name}={given[:40]}…: it begins as a list in JSON and is none: {error}") from None


def _topologies(given: Any, folder: Path | None, project: Path | None) -> Any:
    """Replace every name of a YAML file in the value of `topology` by the network in the file."""
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not any(map(_is_file, names)):
        return given
    return [_network(one.strip(), folder, project) if _is_file(one) else one for one in names]


def _is_file(name: Any) -> bool:
    return isinstance(name, str) and name.strip().endswith((".yaml", ".yml"))


def _network(name: str, folder: Path | None, project: Path | None) -> Network:
    path = Files(folder).path(name)
    if project is not None and not path.exists():
        other = Files(project).path(name)
        path = other if other.exists() else path
    return network(path)


def changes(given: Any, files: Files) -> tuple[Change, ...]:
    """Parse changes from a text, a list, or a YAML file (a list, or a mapping with `changes`).

    Paths in a YAML file are relative to its folder and must not lead out of it. Raises BadInput.
    """
    if not _is_file(given):
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
        raise BadInput(f"{path}: changes must be a list of mappings, each with a name and its steps")
    return _refuse_programs(experiments.parse_changes(content, files.beside(path)), path)


def _refuse_programs(given: tuple[Change, ...], file: str) -> tuple[Change, ...]:
    """Return the changes of a file. Raises BadInput if one names a program, and the user has not allowed that."""
    for one in given:
        if one.programs and not permissions.is_allowed("program"):
            raise BadInput(
                f"change {one.name} names a program, and {file} may be somebody else's: name it on the command line or"
                f" in your own notebook, or allow it with {permissions.ALLOW}=program in the environment"
            )
    return given
