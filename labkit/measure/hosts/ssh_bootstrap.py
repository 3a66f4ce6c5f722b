"""The first program of the remote Python: labkit sends this source to it, and it installs what labkit needs there.

Standard library only. It talks in JSON lines: it receives the list of needed packages, reports which ones are there,
and receives the missing ones. Then labkit.measure.agent.ssh_entry takes over. Packages are unpacked once, into
`~/.cache/labkit/DIGEST`.
"""

import base64
import contextlib
import importlib
import importlib.metadata
import io
import json
import os
import re
import runpy
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

CACHE = Path("~/.cache/labkit").expanduser()
DIGEST = re.compile("[0-9a-f]{16}")  # the form that hosts/ssh.py creates
UNUSED_S = 30 * 86400
PATIENCE_S = 600  # for everything until labkit.measure.agent.ssh_entry starts, also on a slow line


def receive() -> Any:
    """Return the next message; exit if the connection has closed."""
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)
    return json.loads(line)


def write_event(event: dict[str, Any]) -> None:
    """Write one event as one line and flush it."""
    sys.stdout.buffer.write(json.dumps(event).encode() + b"\n")
    sys.stdout.buffer.flush()


def version(name: str) -> str | None:
    """Return the version of a package that this Python has, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def unpack(digest: str, content: bytes) -> None:
    """Unpack a package into its folder atomically; concurrent calls do no harm."""
    with tempfile.TemporaryDirectory(prefix=".new-", dir=CACHE, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch, digest)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(made)
        try:
            made.rename(CACHE / digest)
        except OSError:
            if not (CACHE / digest).is_dir():  # another one was first
                raise


def forget() -> None:
    """Remove packages that were unused for a month. They are renamed first, so that no package is ever incomplete."""
    for folder in CACHE.iterdir():
        with contextlib.suppress(OSError):
            unused = time.time() - folder.stat().st_mtime > UNUSED_S
            if unused and DIGEST.fullmatch(folder.name):
                folder = folder.rename(CACHE / f".old-{folder.name}")
            if folder.name.startswith(".old-") or (unused and folder.name.startswith(".new-")):
                shutil.rmtree(folder, ignore_errors=True)


def prepare() -> str | None:
    """Make labkit importable here and in programs that this process starts; return why that failed, or None."""
    digests = receive()  # names and digests of the packages
    (CACHE / "run").mkdir(mode=0o700, parents=True, exist_ok=True)
    write_event(
        {
            "versions": {name: version(name) for name in digests},
            "there": [name for name, digest in digests.items() if (CACHE / digest).is_dir()],
            "python": "{}.{}".format(*sys.version_info),
            "platform": [sysconfig.get_config_var("SOABI"), sysconfig.get_platform()],
        }
    )
    answer = receive()
    for name, content in answer["contents"].items():
        unpack(digests[name], base64.b64decode(content))
    folders = [str(CACHE / digests[name]) for name in answer["use"]]
    for folder in folders:
        os.utime(folder)
    forget()
    sys.path[:0] = folders
    own = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *([own] if own else [])])
    # a file like random.py in the home folder must not replace Python's module
    os.environ["PYTHONSAFEPATH"] = "1"
    for name in answer["try"]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"the copied {name} does not work with this Python ({error}): install it there"
    return None


def main() -> None:
    """Prepare labkit and run its ssh entry, or report an error event."""
    signal.alarm(PATIENCE_S)  # its signal ends this process (signal(7))
    try:
        why = prepare()
    except OSError as error:
        why = f"{error.filename or CACHE} cannot be written: {error.strerror}"
    if why:
        write_event({"event": "error", "kind": "Failed", "text": why})
    else:
        runpy.run_module("labkit.measure.agent.ssh_entry", run_name="__main__")


if __name__ == "__main__":
    main()
