"""The run folder, in which an experiment stores its results. Every file is written completely or not at all, so that
a killed run leaves no partial row.

    data/EXPERIMENT/RUN/run.json           parameters, seed, times, why it stopped
                        rows/POINT.jsonl   the rows of one point, one JSON object per line
                        rows/POINT.unfinished  rows of a point that is being measured, or was when the run was killed
                        environment.json   the description of the machine
                        artefacts/         raw output of the tools
"""

import contextlib
import errno
import gzip
import os
import random
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from labkit.common import safe_files
from labkit.common.errors import BadInput, Failed
from labkit.common.plain_types import wrong_type

Row = dict[str, Any]
FINISHED, UNFINISHED = ".jsonl", ".unfinished"
MAX_ROWS_BYTES = 1 << 30  # in a file
# What run.json of a finished or interrupted run always holds.
NEEDED = ("created", "experiment", "run", "parameters", "seed", "why_stopped")
# Environment variable: the project's folder, which is trusted because the user names it.
PROJECT = "LABKIT_PROJECT"


def data_root() -> Path:
    """Return the folder for runs: $LABKIT_DATA, or else `data` in the project (see `project_root`)."""
    given = os.environ.get("LABKIT_DATA")
    return Path(given).absolute() if given else project_root() / "data"


def project_root() -> Path:
    """Return the project's folder.

    It is $LABKIT_PROJECT, or else the nearest folder, from the current one upwards, that has `notebooks` and `params`
    and that only this user and root can write, or else the current folder. Raises BadInput if $LABKIT_PROJECT or the
    current folder does not exist.
    """
    if given := os.environ.get(PROJECT):
        if not Path(given).is_dir():
            raise BadInput(f"{PROJECT}={given}: there is no such folder")
        return Path(given).absolute()
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise BadInput("the current folder has been removed: change to an existing folder") from None
    for folder in (here, *here.parents):
        if _is_project(folder) and _untrusted(folder) is None:
            return folder
    return here


def notebooks() -> Path:
    """Return the folder of the project's notebooks, which are executed with this user's rights.

    Raises BadInput if another user could have written them, unless $LABKIT_PROJECT names the project.
    """
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
    """Return why another user could write a notebook or a parameter file of the project, or None when nobody can."""
    paths = [project, project / "notebooks", project / "params", *(project / "notebooks").glob("*.ipynb")]
    return next(filter(None, map(safe_files.untrusted, paths)), None)


def named(path: str | Path) -> Path:
    """Return the path that a user names: relative to the current folder or, if nothing is there, to the project.

    The current folder of a notebook's cells is that of the notebook, but its runs are in the project's `data`.
    """
    given = Path(path)
    if not given.is_absolute() and not os.path.exists(given) and os.path.exists(project_root() / given):
        return project_root() / given
    return given


def check_there(folder: Path) -> None:
    """Raise BadInput if there is no such folder, with the one beside it that was probably meant."""
    if not folder.is_dir():
        raise BadInput(f"there is no run folder {folder}{safe_files.meant(folder)}")


def display_path(path: Path) -> str:
    """Return a path as a user would type it: relative when it is below the current folder."""
    here = os.getcwd()
    return os.path.relpath(path, here) if Path(path).absolute().is_relative_to(here) else str(path)


def new_run(experiment: str) -> Path:
    """Return an unused path for a new run: the time and a random suffix."""
    return data_root() / experiment / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert an error in writing `path` to Failed, in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            way = "free some space and repeat the command; finished rows are kept"
            raise Failed(f"the disk of {path.parent} is full: {way}") from None
        raise Failed(f"cannot write {path}: {error.strerror}") from None


def write(path: Path, content: bytes, within: int | None = None) -> None:
    """Write a file completely or not at all, with a temporary file and rename(2). `within`: see `safe_files.replacing`.

    Raises Failed if the disk is full or the folder is not writable.
    """
    with write_errors(path), safe_files.replacing(path, within) as file:
        file.write(content)


def write_json(path: Path, content: Any) -> None:
    """Write an object as indented JSON."""
    write(path, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def write_artefact(path: Path, content: Any) -> None:
    """Write an object as compressed JSON."""
    write(path, gzip.compress(msgspec.json.encode(content), 6))


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises BadInput when it does not exist or is invalid."""
    try:
        return msgspec.json.decode(safe_files.read_regular(path))
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object. Raises BadInput like `read_json`."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise BadInput(f"{path} cannot be read: it does not contain a JSON object")
    return content


def artefact(folder: str | Path, name: Any) -> Path:
    """Return the path of an artefact of a run; `name` is from a row. Raises BadInput for a file outside of the folder.

    Runs come from others, too, whose rows could name any file of this machine.
    """
    path = Path(folder) / str(name)
    try:
        if isinstance(name, str) and path.resolve().is_relative_to(Path(folder).resolve()):
            return path
    except (OSError, RuntimeError, ValueError):  # a loop of links, or no valid name
        pass
    raise BadInput(f"a row of {folder} names {str(name)[:100]!r}, which is no file of this run")


def now() -> str:
    """Return the current time in UTC, as rows and run.json have it: 2026-11-23T02:41:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def drawn_seed() -> int:
    """Return a random seed for a run or a sweep."""
    return random.SystemRandom().randrange(1 << 31)


def describe_run(folder: Path, experiment: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the content of run.json when a run begins. A seed is drawn if the parameters have none."""
    seed = parameters.get("seed")
    return {
        "experiment": experiment,
        "run": folder.name,
        "parameters": parameters,
        "seed": drawn_seed() if seed is None else seed,
        "created": now(),
        "why_stopped": {},
    }


class OtherProgram(msgspec.Struct):
    """A program that ran beside a measurement, and its share of the CPUs."""

    name: str
    cpu_share: float


class RunDescription(msgspec.Struct, kw_only=True):
    """The types of what readers use of run.json. A run that has just begun lacks some of it."""

    created: str = ""
    finished: str | None = None
    experiment: str = ""
    run: str = ""
    command: str | list[str] | None = None
    parameters: dict[str, Any] = {}
    seed: int = 0
    why_stopped: dict[str, str] = {}
    measuring_s: float = 0.0
    percentile: str | None = None
    others: list[OtherProgram] | None = None


def read_run(folder: Path) -> dict[str, Any]:
    """Read run.json of a run folder. Raises BadInput when it does not exist or is incomplete."""
    run = read_begun(folder)
    for name in NEEDED:
        if run.get(name) is None:
            raise BadInput(f"{folder / 'run.json'} is incomplete, because it lacks {name}: remove the folder")
    return run


def read_begun(folder: Path) -> dict[str, Any]:
    """Read run.json of a run folder, which may lack anything. Raises BadInput when it is invalid."""
    path = folder / "run.json"
    run = read_object(path)
    if not _are_names(run.get("points", [])):
        raise BadInput(f"{path} is invalid, its points are not a list of names: remove the folder")
    try:
        msgspec.convert(run, RunDescription)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path} is invalid, {wrong_type(error)}: remove the folder") from None
    return run


def sweep_points(folder: Path) -> list[str]:
    """Return the names of the points in sweep.json of a sweep folder. Raises BadInput when it lists none."""
    path = folder / "sweep.json"
    names = read_object(path).get("points")
    if not _are_names(names):
        raise BadInput(f"{path} does not list its points")
    return names


def _are_names(content: Any) -> TypeGuard[list[str]]:
    return isinstance(content, list) and all(isinstance(name, str) and is_name(name) for name in content)


def is_name(text: str) -> bool:
    """Return whether a text can be the name of a folder in another one, and is not a path."""
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text


def is_finished(folder: Path, run: dict[str, Any]) -> bool:
    """Return whether the run is marked as finished and the rows of all its points exist."""
    return "finished" in run and set(run.get("points", ())) <= finished_points(folder)


def write_rows(folder: Path, point: str, rows: Iterable[Row]) -> None:
    """Write all rows of one point, in place of those that were kept while it was measured.

    Raises Failed for an invalid point name, because names may come from another machine and must not contain a path.
    """
    write(_rows_path(folder, point, FINISHED), as_lines(rows))
    safe_files.remove(_rows_path(folder, point, UNFINISHED))


def keep_unfinished(folder: Path, point: str, rows: Iterable[Row], *, first: bool) -> None:
    """Keep rows of a point that is being measured, so that they survive when the run is killed.

    `first`: they replace those of an earlier attempt. Raises Failed like `write_rows`.
    """
    path = _rows_path(folder, point, UNFINISHED)
    if first:
        write(path, as_lines(rows))
        return
    # Rows arrive several times a second beside a measurement, so the disk is not waited for.
    with write_errors(path):
        safe_files.append(path, as_lines(rows))


def _rows_path(folder: Path, point: str, suffix: str) -> Path:
    if not re.fullmatch(r"[\w.+-]+", point):
        raise Failed(f"{point[:100]!r} is not a valid name of a point: use letters, digits, and . + - _")
    return folder / "rows" / f"{point}{suffix}"


def as_lines(rows: Iterable[Row]) -> bytes:
    """Return rows as JSON, one object per line."""
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def finished_points(folder: Path) -> set[str]:
    """Return the points whose rows are complete."""
    return {path.stem for path in (folder / "rows").glob(f"*{FINISHED}")}


def has_rows(folder: Path) -> bool:
    """Return whether the folder holds rows, of finished points or of one that was being measured."""
    return any(path.suffix in (FINISHED, UNFINISHED) for path in (folder / "rows").glob("*"))


def failed_points(folder: Path) -> list[str]:
    """Return the finished points that have a failed row. Raises BadInput like `read_rows`."""
    finished = finished_points(folder)
    return [
        point
        for point, rows in _by_point(folder)
        if point in finished and any(row.get("status") == "failed" for row in rows)
    ]


def read_rows(folder: Path) -> list[Row]:
    """Return all rows of a run, ordered by the names of the points; those of an unfinished point as far as it came.

    Raises BadInput, with the name of the file, if a line is not a row.
    """
    return [row for _point, rows in _by_point(folder) for row in rows]


def _by_point(folder: Path) -> Iterator[tuple[str, list[Row]]]:
    """Yield each point with its rows.

    A finished point is measured again if one of its rows failed: its earlier rows count until the new ones are
    complete.
    """
    points = {path.stem for path in (folder / "rows").glob(f"*{UNFINISHED}")} | finished_points(folder)
    for point in sorted(points):
        path, content = _rows_content(folder, point)
        try:
            yield point, [msgspec.json.decode(line, type=dict) for line in content.splitlines()]
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            way = "delete the file to measure the point again"
            raise BadInput(f"{path} contains a line that is not a row ({error}): {way}") from None


def _rows_content(folder: Path, point: str) -> tuple[Path, bytes]:
    """Return the file with the rows of a point and its complete lines. Raises BadInput if it cannot be read."""
    finished, unfinished = (_rows_path(folder, point, suffix) for suffix in (FINISHED, UNFINISHED))
    if os.path.lexists(unfinished) and not os.path.lexists(finished):
        try:
            content = safe_files.read_regular(unfinished, MAX_ROWS_BYTES)
            return unfinished, content[: content.rfind(b"\n") + 1]  # a full disk can cut the last line
        except BadInput:
            if not os.path.lexists(finished):  # else the point was finished meanwhile
                raise
    return finished, safe_files.read_regular(finished, MAX_ROWS_BYTES)
