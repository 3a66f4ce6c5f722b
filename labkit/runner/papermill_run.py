"""One execution of a notebook by papermill into a folder: all or nothing, its progress shown meanwhile."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from labkit.common import run_folder, safe_files
from labkit.common.errors import BadInput, Failed
from labkit.runner.progress import Bar
from labkit.runner.run import KEEP_FAILED, PROGRESS

SAFE_PATH = "PYTHONSAFEPATH"


def execute(
    notebook: Path,
    folder: Path,
    parameters: dict[str, Any],
    bar: Bar,
    name: str,
    *,
    keep_failed: bool = False,
) -> None:
    """Execute the notebook with these parameters; notebook.ipynb is in the folder only when all of it ran.
    `keep_failed`: it does not measure again what failed.

    `bar` sees its events, and `name` says to a person which one it is. Raises BadInput or Failed with the words of the
    notebook, which is then in failed.ipynb as far as it came.
    """
    folder = folder.absolute()  # the notebook runs in a folder of its own
    import papermill
    from jupyter_client.kernelspec import NATIVE_KERNEL_NAME
    from nbclient.exceptions import DeadKernelError

    logging.getLogger("papermill").addHandler(logging.NullHandler())  # what it logs is in the sentences below
    with (
        run_folder.write_errors(folder / "notebook.ipynb"),
        _scratch(folder) as scratch,
        _followed(bar, scratch, name, keep_failed),
    ):
        executed = scratch / "notebook.ipynb"
        try:
            papermill.execute_notebook(
                _literal(notebook),
                _literal(executed),
                parameters=parameters,
                # Not the one that the notebook was saved with: a lab VM's would run all of labkit there.
                kernel_name=NATIVE_KERNEL_NAME,
                progress_bar=False,
                cwd=str(notebook.parent),
                extra_arguments=["--log-level=CRITICAL"],  # an interrupt is no error of the kernel's
            )
        except papermill.PapermillExecutionError as error:
            kind = BadInput if error.ename == "BadInput" else Failed
            run_folder.write(folder / "failed.ipynb", executed.read_bytes())
            raise kind(
                f"point {name}: {error.evalue} (the notebook as far as it came: {folder / 'failed.ipynb'})"
            ) from None
        except (DeadKernelError, RuntimeError) as error:
            if not isinstance(error, DeadKernelError) and "ernel died" not in str(error):
                raise
            raise Failed(
                f"point {name}: the notebook's process died; every finished row is kept, and the same command goes on"
            ) from None
        run_folder.write(folder / "notebook.ipynb", executed.read_bytes())
        (folder / "failed.ipynb").unlink(missing_ok=True)


def _literal(path: Path) -> str:
    """A path for papermill, which takes braces in one for the name of a parameter."""
    return str(path).replace("{", "{{").replace("}", "}}")


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder inside of `folder` for all that is written meanwhile, also by the kernel's starter (the file that tells
    how to connect to it). What sweeps that were killed left of theirs is removed."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            scratch = stack.enter_context(safe_files.own_folder(folder, ".notebook-"))
        except OSError as error:
            raise Failed(f"cannot make {folder}: {error.strerror}") from None
        before = tempfile.tempdir
        try:
            tempfile.tempdir = str(scratch)
            yield scratch
        finally:
            tempfile.tempdir = before


@contextmanager
def _followed(bar: Bar, scratch: Path, name: str, keep_failed: bool) -> Iterator[None]:
    """The notebook's process writes its last event into a file; a thread shows it."""
    path = scratch / "progress.json"
    ended = threading.Event()

    def follow() -> None:
        seen = b""
        while not ended.wait(0.2):
            try:
                content = path.read_bytes()
            except OSError:
                continue
            if content != seen:
                seen = content
                event = msgspec.json.decode(content)
                if event["event"] == "finished":
                    bar.doing(f"{name}: executing the rest of the notebook")
                else:
                    bar.see(event | ({"what": f"{name}, {event['what']}"} if "what" in event else {}))

    thread = threading.Thread(target=follow, daemon=True)
    # In the notebook's kernel nothing beside the notebook is one of its modules.
    own = {PROGRESS: str(path), SAFE_PATH: "1", **({KEEP_FAILED: "1"} if keep_failed else {})}
    before = {key: os.environ.get(key) for key in own}
    os.environ |= own
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        bar.stop()
        for key, value in before.items():
            del os.environ[key]
            if value is not None:
                os.environ[key] = value
