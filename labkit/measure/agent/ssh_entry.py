"""The remote end of a conversation through ssh: it starts the experiment and passes lines on between both sides.

One experiment runs at a time. When standard input ends or is silent for too long, the caller is gone: this process
ends, and the kernel ends everything that it started.
"""

import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from labkit import __version__
from labkit.common.errors import Failed, LabkitError
from labkit.measure.hosts import local
from labkit.measure.hosts.ssh import BEAT_S, SILENCE_S
from labkit.system import machine

FOLDER = Path("~/.cache/labkit/run")  # stays empty on disk: only the experiment sees what is mounted on it

_output_lock = threading.Lock()


def write_event(event: dict[str, Any]) -> None:
    _pass_on(msgspec.json.encode(event) + b"\n")


def _pass_on(line: bytes) -> None:
    with _output_lock:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


class Caller:
    """The calling side: its lines go to the experiment, and this process ends with it."""

    def __init__(self) -> None:
        self._send: Callable[[bytes], None] | None = None
        self._early: list[bytes] = []
        self._lock = threading.Lock()
        signal.alarm(SILENCE_S)  # SIGALRM ends this process (signal(7)), even if the main thread is stuck
        for work in (self._listen, _beat):
            threading.Thread(target=work, daemon=True).start()

    def attach(self, send: Callable[[bytes], None]) -> None:
        """Pass lines on to this function from now on, earlier ones first."""
        with self._lock:
            self._send = send
            for line in self._early:
                send(line)

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            signal.alarm(SILENCE_S)
            if not (text := line.strip()):
                continue
            with self._lock:
                if self._send:
                    self._send(text)
                else:
                    self._early.append(text)
        os._exit(1)


def _beat() -> None:
    while True:
        time.sleep(BEAT_S)
        try:
            _pass_on(b"\n")
        except OSError:
            os._exit(1)


def _answer(request: dict[str, Any], caller: Caller) -> None:
    with local.conversation(request) as conversation:
        caller.attach(conversation.send)
        for line in conversation.lines():
            _pass_on(line + b"\n")
        write_event({"event": "ended", "text": conversation.end_reason()})


def _log(text: str) -> None:
    write_event({"event": "log", "text": text})


def _measuring(request: dict[str, Any], caller: Caller) -> None:
    """Answer a measuring request: take this machine's measuring lock and provide a folder for the run."""
    if limits := local.limits():
        _log(limits)
    if "folder" in request:
        request["folder"] = str(FOLDER.expanduser() / request["folder"])
    # The remote copy has no git checkout that knows the commit.
    request["machine"] = machine.describe() | {"git_revision": request.pop("git_revision")}
    patience_s = request.get("patience_s") or math.inf
    with local.measuring_lock(_log, request.get("command"), patience_s):
        if request["do"] == "serve":
            write_event({"event": "locked"})
        _answer(request, caller)


def _be_half(request: dict[str, Any], caller: Caller) -> None:
    """Answer for one end of a path to another machine, until the caller ends."""
    from labkit.measure.existing.half import Half  # no experiment needs it

    asked = queue.SimpleQueue[bytes]()
    try:
        half = Half(
            request["name"],
            request["role"],
            lambda patience_s: local.measuring_lock(_log, request["command"], patience_s),
        )
    except OSError as error:  # `main` takes it for a caller that is gone
        raise Failed(str(error)) from None
    caller.attach(asked.put)
    write_event({"event": "answer", "answer": None})
    while True:
        one = msgspec.json.decode(asked.get())
        write_event({"event": "answer", **half.answer(one["ask"], one["given"])})


def _ask_existing(request: dict[str, Any], _caller: Caller) -> None:
    """Answer a question about existing ends, which only the machine's own namespaces show."""
    from labkit.measure.existing.questions import QUESTIONS  # no experiment needs it

    asking: dict[str, Any] = (
        {"agreed": _agree, "locked": lambda: local.measuring_lock(_log)}
        if request["question"] == "check"
        else {}
    )
    try:
        answer = QUESTIONS[request["question"]](**request["given"], **asking)
    except OSError as error:  # `main` takes it for a caller that is gone
        raise Failed(str(error)) from None
    write_event({"event": "answer", "answer": answer})
    write_event({"event": "done"})


def _agree(plan: str) -> bool:
    """Show what a load will send; the caller has agreed to it already."""
    _log(f"the load: {plan}")
    return True


def main() -> None:
    """Read one request and answer it."""
    write_event({"event": "hello", "labkit": __version__})
    line = sys.stdin.buffer.readline()
    code = 1
    try:
        if line.endswith(b"\n"):
            request = msgspec.json.decode(line)
            handlers = {"existing": _ask_existing, "half": _be_half}
            usual = _measuring if "git_revision" in request else _answer
            handlers.get(request["do"], usual)(request, Caller())
            code = 0
    except LabkitError as error:
        write_event({"event": "error", "kind": type(error).__name__, "text": str(error)})
    except OSError:
        pass  # nobody listens any more
    os._exit(code)  # the listening thread holds standard input, for which Python would wait


if __name__ == "__main__":
    main()
