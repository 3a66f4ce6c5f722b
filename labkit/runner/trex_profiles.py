"""Read user-defined profiles of TRex. They are Python code, so a sweep file may name them only with permission.

The folder of a TRex release is the same: a program in it is started.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labkit.common.errors import BadInput
from labkit.runner import permissions

FLAG = "trex_profile"
FOLDER_FLAG = "trex_folder"
MAX_BYTES = 1 << 20


def read(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the parameters with the digest of the profile file that they name, and its text by the digest.

    The text is part of the request, so that a run is resumed only with the same code. Raises BadInput for a missing
    file, one that is not text, and one that a sweep's parameters name without LABKIT_ALLOW=trex_profile, or a folder of
    TRex without LABKIT_ALLOW=trex_folder.
    """
    if parameters.get("trex") not in (None, "", "none"):
        _check_named(f"trex={parameters['trex']} is the folder of a program", FOLDER_FLAG)
    profile = parameters.get("profile")
    if not (isinstance(profile, str) and profile.endswith(".py")):
        return dict(parameters), {}
    _check_named(f"profile={profile} is code", FLAG)
    try:
        content = Path(profile).read_bytes()
        if len(content) > MAX_BYTES:
            raise BadInput(
                f"profile={profile} is larger than {MAX_BYTES >> 20} MiB: a profile is a short program"
            )
        source = content.decode()
        compile(source, profile, "exec")
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadInput(f"profile={profile} cannot be read: {words}") from None
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"profile={profile} is not valid Python: {error}") from None
    digest = hashlib.sha256(content).hexdigest()
    return {**parameters, "profile_digest": digest}, {digest: source}


def _check_named(what: str, flag: str) -> None:
    """Raise BadInput if a sweep's file names something that runs, and its user has not allowed that."""
    if permissions.is_of_a_sweep() and not permissions.is_allowed(flag):
        raise BadInput(
            f"{what}, and a sweep's file may be somebody else's: name it on the command line or in"
            f" your own notebook, or allow it with {permissions.ALLOW}={flag} in the environment"
        )
