"""Files that a person writes: YAML, read with one sentence for whatever is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from labkit.errors import BadInput
from labkit.topologies import Network, check_network


def read(path: Path) -> Any:
    """What a YAML file says. Raises BadInput for one that is not there or is none."""
    try:
        return yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"{path} is not there") from None
    # PyYAML's constructors raise what the text makes of them: int() and date() ValueError, a wrong !!bool KeyError, …
    except (OSError, ValueError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise BadInput(f"{path} is no YAML file: {' '.join(str(error).split())[:200]}") from None


def network(path: Path) -> Network:
    """The network that a YAML file describes, with the words of `labkit.topologies.parts`; `type` says which part it
    is. Raises BadInput for one that cannot be built."""
    try:
        found = msgspec.convert(read(path), Network)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path} describes no network: {error}") from None
    check_network(found)
    return found
