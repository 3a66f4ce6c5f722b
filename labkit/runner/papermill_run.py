"""Execute a notebook with papermill into a folder: completely or not at all, with progress."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from labkit.common import run_folder, safe_files
from labkit.common.errors import BadInput, Failed
from labkit.runner.permissions import PROGRESS
from labkit.runner.progress import Bar
from labkit.runner.run import KEEP_FAILED

if TYPE_CHECKING:
    from traitlets.config import Config

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
    """Execute the notebook with these parameters; the folder gets notebook.ipynb only if all cells ran.

    `keep_failed`: do not measure failed rows again. `bar` receives the events, `name` identifies the execution for
    users. Raises BadInput or Failed with the notebook's message; failed.ipynb then has the executed part.
    """
    folder = folder.absolute()  # the notebook runs in its own folder
    import papermill
    from jupyter_client.kernelspec import NATIVE_KERNEL_NAME
    from nbclient.exceptions import DeadKernelError

    # Papermill's messages are in the errors below. An interrupted cell leaves asyncio a task whose error nobody reads.
    for logger in ("papermill", "asyncio"):
        logging.getLogger(logger).addHandler(logging.NullHandler())
    with (
        run_folder.write_errors(folder / "notebook.ipynb"),
        _scratch() as scratch,
        _show_events(bar, scratch, name, keep_failed),
    ):
        safe_files.make_folder(folder)
        executed = scratch / "notebook.ipynb"
        with safe_files.open_regular(notebook):  # papermill would wait for a pipe
            pass
        try:
            papermill.execute_notebook(
                _literal(notebook),
                _literal(executed),
                parameters=parameters,
                # Not the kernel saved in the notebook: if that is a lab VM's, all of labkit would run there.
                kernel_name=NATIVE_KERNEL_NAME,
                progress_bar=False,
                cwd=str(notebook.parent),
                extra_arguments=["--log-level=CRITICAL"],  # an interrupt is not a kernel error
                config=private_kernel(),
            )
        except papermill.PapermillExecutionError as error:
            kind = BadInput if error.ename == "BadInput" else Failed
            run_folder.write(folder / "failed.ipynb", executed.read_bytes())
            raise kind(
                f"point {name}: {error.evalue} (the notebook up to the error: {folder / 'failed.ipynb'})"
            ) from None
        except (DeadKernelError, RuntimeError) as error:
            if not isinstance(error, DeadKernelError) and "ernel died" not in str(error):
                raise
            raise Failed(
                f"point {name}: the notebook's process died; finished rows are kept; repeat the same command"
                " to continue"
            ) from None
        run_folder.write(folder / "notebook.ipynb", executed.read_bytes())
        safe_files.remove(folder / "failed.ipynb")


def private_kernel() -> Config:
    """Return the configuration of a notebook's kernel of which other users of the machine read and send nothing."""
    from traitlets.config import Config

    return Config(KernelManager={"transport_encryption": "required"})


def _literal(path: Path) -> str:
    """Escape a path for papermill, which treats braces as parameters."""
    return str(path).replace("{", "{{").replace("}", "}}")


@contextmanager
def _scratch() -> Iterator[Path]:
    """Create a folder for temporary files, including the kernel's connection file, where no other user can replace it:
    the folder of a run may be shared."""
    with safe_files.own_folder(safe_files.runtime_folder(), "labkit-notebook-") as (scratch, *_):
        before = tempfile.tempdir
        try:
            tempfile.tempdir = str(scratch)
            yield scratch
        finally:
            tempfile.tempdir = before


@contextmanager
def _show_events(bar: Bar, scratch: Path, name: str, keep_failed: bool) -> Iterator[None]:
    """Show the notebook's events: its process writes the last event to a file, and a thread shows it."""
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
    # In the notebook's kernel, files beside the notebook are not importable modules.
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
