"""Another build of a program as a change, so that two builds are arms of one comparison."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from labkit.common import safe_files
from labkit.common.errors import BadInput
from labkit.measure.experiments.change_kinds.base import Files, Kind, digest

SWITCH = "ovs-vswitchd"
LARGEST_PROGRAM = 64 << 20


class Program(Kind):
    """Another build of a program in this arm: of iperf3, sockperf or wrk at the ends, or of ovs-vswitchd.

    It runs with the user's rights. So its path and its digest are part of the change, and nobody else may be able to
    replace the file. Who may name one, the runner decides (`yaml_files`).
    """

    placed = False
    example = "program iperf3=/usr/bin/iperf3"
    takes: ClassVar = {
        "name": f"iperf3|sockperf|wrk|{SWITCH}", "path": r"/[^\0\n]+", "digest": "sha256:[0-9a-f]{64}",
    }  # fmt: skip
    needs = ("name", "path", "digest")

    def parse_text(self, text: str, files: Files) -> dict[str, Any]:
        name, _, path = (word.strip() for word in text.partition("="))
        return {"name": name, "path": path, "digest": _digest(path)}


def verified(options: Mapping[str, Any]) -> str:
    """Return the path of a program. Raises BadInput if the file is not the one that the change was written with."""
    path = str(options["path"])
    if _digest(path) != options["digest"]:
        raise BadInput(
            f"{path} has changed since the run was asked for: repeat the command with another folder"
        )
    return path


def _digest(path: str) -> str:
    if path.startswith("/") and (reason := safe_files.untrusted(Path(path))):
        raise BadInput(f"the program {path} is not started, because {reason}")
    return digest(safe_files.read_regular(Path(path), LARGEST_PROGRAM))


PROGRAM = Program()
