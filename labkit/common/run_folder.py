"""What an experiment leaves: a run folder. Every file is written whole or not at all, so that a killed run
leaves no half row.

    data/EXPERIMENT/RUN/run.json           parameters, seed, when, why it stopped
                        rows/POINT.jsonl   the rows of one point, one JSON object a line
                        environment.json   the machine in full
                        artefacts/         raw output of the tools
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from labkit.common import safe_files
from labkit.common.errors import BadInput, Failed

Row = dict[str, Any]
PROJECT = "LABKIT_PROJECT"  # in the environment: the project's folder, trusted because it is named


def data_root() -> Path:
    """Where runs go: $LABKIT_DATA, else `data` in the nearest folder at or above the current one that has
    `notebooks` and `params`, else `data` here."""
    given = os.environ.get("LABKIT_DATA")
    return Path(given).absolute() if given else project_root() / "data"


def project_root() -> Path:
    """$LABKIT_PROJECT, else the nearest folder at or above the current one that has `notebooks` and `params` and that
    nobody but this user and root can have made or can change, else the current one."""
    if given := os.environ.get(PROJECT):
        if not Path(given).is_dir():
            raise BadInput(f"{PROJECT}={given}: there is no such folder")
        return Path(given).absolute()
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise BadInput("the current folder has been removed: change to one that is there") from None
    for folder in (here, *here.parents):
        if _is_project(folder) and _untrusted(folder) is None:
            return folder
    return here


def notebooks() -> Path:
    """The folder of the project's notebooks, which are executed with this user's rights. Raises BadInput when somebody
    else could have put one there, unless $LABKIT_PROJECT names the project."""
    root = project_root()
    if not os.environ.get(PROJECT):
        foreign = next((folder for folder in (root, *root.parents) if _is_project(folder)), root)
        if os.path.isdir(foreign / "notebooks") and (reason := _untrusted(foreign)):
            raise BadInput(
                f"the notebooks in {foreign / 'notebooks'} are not executed, because {reason}:"
                f" if you trust all of them, name the project with {PROJECT}={foreign}"
            )
    return root / "notebooks"


def _is_project(folder: Path) -> bool:
    return os.path.isdir(folder / "notebooks") and os.path.isdir(folder / "params")


def _untrusted(project: Path) -> str | None:
    """Why somebody else could put a notebook or a parameter file into the project, or replace one; None when nobody
    can."""
    places = [project, project / "notebooks", project / "params", *(project / "notebooks").glob("*.ipynb")]
    return next(filter(None, map(safe_files.untrusted, places)), None)


def shown(path: Path) -> str:
    """A path as a person would type it here."""
    here = os.getcwd()
    return os.path.relpath(path, here) if Path(path).absolute().is_relative_to(here) else str(path)


def new_run(experiment: str) -> Path:
    """A path for a new run, not made yet: its name is the time and something that no other run has."""
    return data_root() / experiment / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """What goes wrong in writing below `path` is raised as Failed, in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Failed(
                f"the disk of {path.parent} is full: make room and run the same again;"
                " rows that were finished are kept"
            ) from None
        raise Failed(f"cannot write {path}: {error.strerror}") from None


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all (a new file, then rename(2)). Raises Failed when the disk is full or
    the folder cannot be written."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with safe_files.replacing(path) as file:
            file.write(content)


def write_json(path: Path, content: Any) -> None:
    """Write an object as JSON, laid out to be read."""
    write(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def write_artefact(path: Path, content: Any) -> None:
    """Write an object as compressed JSON."""
    write(path, gzip.compress(msgspec.json.encode(content), 6))


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises BadInput when it is not there or is none."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{path} is not there") from None
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


def read_run(folder: Path) -> dict[str, Any]:
    """run.json of a run folder. Raises BadInput when it is not there, or lacks what every run has."""
    run = read_json(folder / "run.json")
    if isinstance(run, dict) and not _are_names(run.get("points", [])):
        raise BadInput(f"{folder / 'run.json'} has no list of names for points: remove the folder")
    needed = {"experiment": str, "run": str, "parameters": dict, "seed": int, "why_stopped": dict}
    wrong = [
        name
        for name, kind in needed.items()
        if not isinstance(run, dict) or not isinstance(run.get(name), kind)
    ]
    if wrong:
        raise BadInput(
            f"{folder / 'run.json'} is half written or no run's: it has no {wrong[0]}; remove the folder"
        )
    return dict(run)


def _are_names(points: Any) -> bool:
    return isinstance(points, list) and all(isinstance(name, str) for name in points)


def is_finished(folder: Path, run: dict[str, Any]) -> bool:
    """Whether the run said that it was finished, and the rows of all its points are still there."""
    return "finished" in run and set(run.get("points", ())) <= finished_points(folder)


def write_rows(folder: Path, point: str, rows: Iterable[Row]) -> None:
    """Write all rows of one point. Raises Failed for a point whose name would be a path: it may come from another
    machine."""
    if not re.fullmatch(r"[\w.+-]+", point):
        raise Failed(f"a point cannot be called {point[:100]!r}")
    write(folder / "rows" / f"{point}.jsonl", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def finished_points(folder: Path) -> set[str]:
    """The points whose rows are on disk."""
    return {path.stem for path in (folder / "rows").glob("*.jsonl")}


def failed_points(folder: Path) -> list[str]:
    """The points that have a failed row. Raises BadInput as `read_rows`."""
    return [point for point, rows in _by_point(folder) if any(row.get("status") == "failed" for row in rows)]


def read_rows(folder: Path) -> list[Row]:
    """All rows of a run, point by point in the order of their names. Raises BadInput, naming the file, when a
    line is no row."""
    return [row for _point, rows in _by_point(folder) for row in rows]


def _by_point(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    for path in sorted((folder / "rows").glob("*.jsonl")):
        try:
            yield path.stem, [msgspec.json.decode(line, type=dict) for line in path.read_bytes().splitlines()]
        except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
            raise BadInput(
                f"{path} has a line that is no row ({error}): delete the file, and the point is measured again"
            ) from None
