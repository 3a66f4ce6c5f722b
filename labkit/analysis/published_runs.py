"""A published run (`labkit publish`): a folder with run.json and one file of rows, with the stacks of its profiles. The
file's digest is in run.json."""

import hashlib
from pathlib import Path

from labkit.analysis import parquet_rows
from labkit.common import run_folder, safe_files
from labkit.common.errors import BadInput

ROWS = "rows.parquet"


def is_published(folder: Path) -> bool:
    """Return whether the folder has the rows of a published run."""
    return (folder / ROWS).exists()


def read_rows(folder: Path) -> list[run_folder.Row]:
    """Return the rows of a run, published or not.

    Raises BadInput like `run_folder.read_rows`, and if a published file is not the one that was published.
    """
    if not is_published(folder):
        return run_folder.read_rows(folder)
    content = safe_files.read_regular(folder / ROWS, run_folder.MAX_ROWS_BYTES)
    if run_folder.read_begun(folder).get("sha256") != hashlib.sha256(content).hexdigest():
        raise BadInput(
            f"{folder / ROWS} is not the file that was published: its SHA-256 digest is not that in run.json"
        )
    return parquet_rows.decode(content)
