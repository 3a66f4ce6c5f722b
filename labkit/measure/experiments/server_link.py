"""The link to the servers' host of two nodes: requests and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.common import errors
from labkit.common.errors import Failed

Answer = dict[str, Any]


class Peer:
    """The servers' host; `channel` carries a request to it and returns its answer."""

    def __init__(self, channel: Callable[[dict[str, Any]], Answer]) -> None:
        self._channel = channel
        self._gone = False
        self.views: dict[str, Any] = {}  # the BuiltArm of each topology that was built once
        hello = self.ask("hello")
        self.machine: dict[str, Any] = hello["machine"]  # as rows tell of it
        self.environment: dict[str, Any] = hello["environment"]

    def ask(self, do: str, **more: Any) -> Answer:
        """Send a request and return the answer. Raises the remote error, with the host's name."""
        answer: Answer = {"gone": True} if self._gone else self._channel({"do": do, **more})
        if answer.get("gone"):
            self._gone = True
            raise Failed("the connection to the servers' host has ended")
        if "kind" in answer:
            raise errors.error_by_name(answer["kind"], f"on the servers' host: {answer['text']}")
        return answer
