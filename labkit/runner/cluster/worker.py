"""Run on a Dask worker: start a separate process for the point, relay its progress, and return the folder.

The worker's own process is unsuitable: executing a notebook changes its environment and current folder, it may have
started before labkit was updated, and its threads cannot be ended.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from distributed import get_worker

from labkit.common import run_folder
from labkit.common.errors import LabkitError
from labkit.runner.cluster import folders
from labkit.system import process

OFTEN_S = 1.0  # seconds between two events, and between two checks whether the point is still wanted


def measure_point(request: bytes, point: str, topic: str) -> dict[str, Any]:
    """Measure the point of a Request (as JSON), and report progress on a topic of the scheduler.

    Returns `kind`: done, refused (this worker cannot serve this caller; `text` says why), BadInput or Failed (with the
    point's message in `text`). If there is a folder, `packed` has all its files and `folder` its path here.
    """
    try:
        with folders.attempt_folder(run_folder.data_root()) as top:
            answer = _answer(request, top, lambda event: get_worker().log_event(topic, [point, event]))
            if answer["kind"] != "refused":
                answer |= {"packed": folders.pack(top / point), "folder": str(top / point)}
            return answer
    except LabkitError as error:
        return {"kind": "Failed", "text": f"point {point}: {error}"}


def _answer(request: bytes, top: Path, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run the point's process and return its final answer; relay its progress, at most every OFTEN_S."""
    conversation = process.Conversation(
        process.python("-m", "labkit.runner.cluster.point_process", str(top)), request
    )
    with _end_with_block(conversation):
        reported_s = 0.0
        for line in conversation.lines():
            event: dict[str, Any] = msgspec.json.decode(line)
            if event["event"] == "done":
                return {"kind": "done", "text": ""}
            if event["event"] in ("refused", "error"):
                return {"kind": event.get("kind", "refused"), "text": event["text"]}
            if time.monotonic() - reported_s > OFTEN_S:
                reported_s = time.monotonic()
                report(event)
        return {"kind": "Failed", "text": f"the point's process {conversation.end_reason()}"}


@contextmanager
def _end_with_block(conversation: process.Conversation) -> Iterator[None]:
    """End the process with the block, or earlier if the caller cancels the point or is gone."""
    worker = get_worker()
    task, over = worker.get_current_task(), threading.Event()

    def watch() -> None:
        while not over.wait(OFTEN_S):
            state = worker.state.tasks.get(task)
            if state is None or state.state == "cancelled":
                conversation.send(b"end")
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        conversation.end()
