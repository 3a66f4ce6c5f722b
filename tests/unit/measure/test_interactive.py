"""Requests to a live topology: several programs run at the same time, and each ends in time."""

import json
import os
import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.measure.agent import interactive
from labkit.measure.observers.capture import CapturePoint
from labkit.system import netlink

SLACK_S = 2.0  # on a loaded machine


class Asker:
    """Runs `interactive.answers` in a thread and sorts its answers."""

    def __init__(self) -> None:
        space = SimpleNamespace(name="cs1", prefix=[])
        topology: Any = SimpleNamespace(name="made", namespaces=[space], ends=[])
        reads, self._writes = os.pipe()
        self.answers: dict[int, dict[str, Any]] = {}
        self._requests = open(reads, "rb", buffering=0)
        self._answers = interactive.answers(topology, cast(Any, self._requests))
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        for answer in self._answers:
            self.answers[answer["number"]] = answer

    def ask(self, number: int, do: str, **more: Any) -> None:
        os.write(self._writes, json.dumps({"do": do, "number": number, **more}).encode() + b"\n")

    def run(self, number: int, *argv: str, timeout_s: float = 30.0, do: str = "run") -> None:
        self.ask(number, do, at="cs1", argv=argv, timeout_s=timeout_s)

    def answer(self, number: int, within_s: float = 10.0) -> dict[str, Any]:
        end = time.monotonic() + within_s
        while number not in self.answers and time.monotonic() < end:
            time.sleep(0.005)
        return self.answers[number]

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._writes)
        self._thread.join(10)
        self._requests.close()
        assert not self._thread.is_alive()


def test_programs_run_at_the_same_time_and_end_in_time() -> None:
    with Asker() as parameters:
        parameters.run(1, "sleep", "30")
        parameters.run(2, "echo", "hello")
        assert parameters.answer(2)["stdout"] == "hello\n"
        assert 1 not in parameters.answers
    begun = time.monotonic()
    with Asker() as parameters:
        parameters.run(1, "sleep", "30", timeout_s=0.4)
        parameters.run(2, "sleep", "30", timeout_s=0.2)
        for number in (1, 2):
            report = parameters.answer(number)
            assert (report["timed_out"], report["returncode"]) == (True, -signal.SIGKILL)
    assert time.monotonic() - begun < SLACK_S
    with Asker() as parameters:
        parameters.run(1, "sleep", "30")
        parameters.run(2, "sh", "-c", "sleep 0.3; echo done")
        parameters.ask(3, "stop", program=1)
        assert parameters.answer(2)["stdout"] == "done\n"
        assert 1 not in parameters.answers


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"do": "run", "at": "nowhere", "argv": ["true"], "timeout_s": 1}, "has no nowhere: there are cs1"),
        ({"do": "wait", "program": 7, "timeout_s": 1}, "no such program"),
        ({"do": "dance"}, "unknown request"),
    ],
)
def test_invalid_requests_are_refused(request_: dict[str, Any], says: str) -> None:
    with Asker() as parameters:
        parameters.ask(1, **request_)
        assert parameters.answer(1)["event"] == "refused"
        assert says in parameters.answer(1)["text"]


@pytest.mark.parametrize(("name", "hops"), [("machine", ["lo", "nic0", "v-web"]), ("made", ["v-web"])])
def test_a_capture_of_the_machine_is_at_all_interfaces(
    name: str, hops: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others made them, whatever their indexes; what every new namespace has is no part of a topology."""
    links = [
        SimpleNamespace(index=index, name=one) for index, one in ((1, "lo"), (2, "nic0"), (150, "v-web"))
    ]
    seen = list[str]()

    def capture(points: list[CapturePoint], *_of: Any, **_limits: Any) -> Any:
        seen.extend(one.interface for one in points)
        return nullcontext(SimpleNamespace(path=Path()))

    monkeypatch.setattr(netlink, "links", lambda _kernel: links)
    monkeypatch.setattr(interactive, "capture", capture)
    space = SimpleNamespace(name=name, netlink=None)
    captures = interactive._Captures(cast(Any, SimpleNamespace(name=name, namespaces=[space], ends=[])))
    captures.begin({"hops": [], "limits": {}, "number": 1})
    captures._going.pop(1)[0].cleanup()
    assert seen == hops
