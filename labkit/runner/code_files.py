"""Read the files of code that parameters name, and check who may name code and folders of programs: they run with the
user's rights.

A sweep file may name them only with permission, because somebody else may have written it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.common import safe_files
from labkit.common.errors import BadInput
from labkit.measure.parameters import CodeParameter, Parameters
from labkit.runner import permissions

MAX_BYTES = 1 << 20


def read(kind: type[Parameters], parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the parameters with the path and the digest of each code file that they name, and its text by the digest.

    kind: the class of the experiment's parameters, whose CODE says which of them name code. The text is part of the
    request, so that a run is resumed only with the same code. Raises BadInput for a missing file, one that is not text,
    and for code or a folder that a sweep's parameters name without the flag in LABKIT_ALLOW.
    """
    result, sources = dict(parameters), dict[str, str]()
    for name, code in kind.CODE.items():
        value = parameters.get(name)
        if value in (None, "", "none") or (code.digest_parameter and not str(value).endswith(".py")):
            continue
        _check_permission(f"{name}={value} {code.what}", code)
        if code.digest_parameter:
            path = Path(str(value)).absolute()  # the run has another current folder
            result[name], source = str(path), _source(f"{name}={value}", path)
            result[code.digest_parameter] = hashlib.sha256(source.encode()).hexdigest()
            sources[result[code.digest_parameter]] = source
    return result, sources


def _source(what: str, path: Path) -> str:
    """Return the text of a file of Python."""
    content = safe_files.read_regular(path, MAX_BYTES)
    try:
        source = content.decode()
        compile(source, str(path), "exec")
        return source
    except UnicodeDecodeError:
        raise BadInput(f"{what} cannot be read: it is not text") from None
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{what} is not valid Python: {error}") from None


def _check_permission(what: str, code: CodeParameter) -> None:
    """Raise BadInput if a sweep's file names something that runs, and its user has not allowed that."""
    if permissions.is_of_a_sweep() and not permissions.is_allowed(code.flag):
        raise BadInput(
            f"{what}, and a sweep's file may be somebody else's: name it on the command line or in"
            f" your own notebook, or allow it with {permissions.ALLOW}={code.flag} in the environment"
        )
