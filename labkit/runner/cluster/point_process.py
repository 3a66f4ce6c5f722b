"""The process that measures one point on a worker.

It reads a Request as a JSON line on standard input and writes events as JSON lines on standard output. It executes the
notebook like a sweep without --dask, and dies with the worker.
"""

import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import IO, Any

import msgspec

from labkit.common import run_folder, schema
from labkit.common.errors import BadInput, LabkitError
from labkit.runner import papermill_run, sweep
from labkit.runner.cluster.request import Request, other_labkit
from labkit.runner.progress import Bar

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
PATIENCE_S = 10.0  # for a notebook that should end


class _ProgressRelay(Bar):
    """Sends progress to the caller instead of showing a bar."""

    def __init__(self, out: IO[bytes]) -> None:
        super().__init__()
        self._out = out

    def see(self, event: dict[str, Any]) -> None:
        self._out.write(msgspec.json.encode(event) + b"\n")
        self._out.flush()

    def doing(self, what: str) -> None:
        self.see({"event": "log", "text": what})


def measure(request: Request, folder: Path, bar: Bar) -> None:
    """Measure a point into `folder`/its name.

    Raises BadInput for parameters that the notebook or the experiment does not have: only values enter the notebook.
    """
    for name in (request.notebook, request.point):
        if not NAME.fullmatch(name):
            raise BadInput(f"{name!r} is not a valid name of a notebook or a point")
    notebook = folder / "notebooks" / f"{request.notebook}.ipynb"
    run_folder.write(notebook, request.text.encode())
    point = sweep.SweepPoint(request.point, request.parameters)
    sweep.check(notebook, notebook, sweep.parameters_of(notebook), point)
    parameters = {**request.parameters, "folder": str(folder / request.point)}
    if request.percentile:
        os.environ[schema.PERCENTILE] = request.percentile
    papermill_run.execute(notebook, folder / request.point, parameters, bar, request.point)


def _end_on_request() -> None:
    """Interrupt like Ctrl-C at the next input line or the end of input; this also ends the notebook's process."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(PATIENCE_S)
    os._exit(1)


def main() -> None:
    """Answer one request; the folder is the only argument."""
    # Output of the notebook's process or a library goes to standard error, not between the events.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        bar = _ProgressRelay(out)
        request = msgspec.json.decode(sys.stdin.buffer.readline(), type=Request)
        threading.Thread(target=_end_on_request, daemon=True).start()
        if text := other_labkit(request):
            bar.see({"event": "refused", "text": text})
            return
        try:
            measure(request, Path(sys.argv[1]), bar)
            bar.see({"event": "done"})
        except LabkitError as error:
            bar.see({"event": "error", "kind": type(error).__name__, "text": str(error)})


if __name__ == "__main__":
    main()
