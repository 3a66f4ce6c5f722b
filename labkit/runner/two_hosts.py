"""Relay between two nodes: a labkit process on the clients' host, and one on the servers' host."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from labkit.common.errors import Failed
from labkit.measure import hosts
from labkit.system import process

PATIENCE_S = 60.0  # for the measuring lock of the second host while the first is held
LAST_WORDS_S = 5.0  # for both to restore borrowed NICs
_TO_PEER = b'{"event":"peer"'


@contextmanager
def conversation(
    where: str, peer: str, request: dict[str, Any], say: Callable[[str], None]
) -> Iterator[process.Conversing]:
    """Start a conversation with the clients' host `where`, and relay its requests to the servers' host `peer`.

    Both end with the block.
    """
    serve = {name: request[name] for name in ("experiment", "parameters")}
    # Locks are taken one after the other. The holder of one waits for the second only for a limited time, because the
    # other holder may be waiting for the first.
    first = all(name.startswith("ssh:") for name in (where, peer))
    serve |= {"do": "serve", "command": request["command"], "patience_s": None if first else PATIENCE_S}
    asks = {**request, "peer": peer, "patience_s": PATIENCE_S}
    if "addresses" in request:
        asks["addresses"], serve["addresses"] = request["addresses"]
    with ExitStack() as stack:
        parameters = request["parameters"]
        link = (parameters["parent"], parameters["link_rate_bps"], parameters["mtu_bytes"])
        cable = hosts.join_nodes([where, peer], *link)
        one, other = stack.enter_context(cable)
        far = stack.enter_context(hosts.conversation(peer, serve, say, other))
        if peer.startswith("ssh:"):
            _wait_until_locked(far, peer, say)
        near = stack.enter_context(hosts.conversation(where, asks, say, one))
        both = TwoHostConversation(near, far, peer, say)
        stack.callback(both.leave)
        yield both


def _wait_until_locked(far: process.Conversing, peer: str, say: Callable[[str], None]) -> None:
    """Wait until the servers' host has its measuring lock. Raises Failed if it does not get the lock."""
    for line in far.lines():
        event = msgspec.json.decode(line, type=dict[str, Any])
        if event["event"] == "locked":
            return
        _handle_event(event, peer, say)
    raise Failed(f"the process on the servers' host {peer} {far.end_reason()}; nothing was measured")


def _handle_event(event: dict[str, Any], peer: str, say: Callable[[str], None]) -> None:
    """Handle an event of the servers' host about itself. Raises Failed for an error."""
    if event["event"] == "error":
        raise Failed(f"the servers' host {peer}: {event['text']}")
    if event["event"] == "log":
        say(event["text"])


class TwoHostConversation:
    """Combines the conversations with both hosts into one process.Conversing: that of the clients' host."""

    def __init__(
        self, near: process.Conversing, far: process.Conversing, peer: str, say: Callable[[str], None]
    ) -> None:
        self._near, self._far, self._peer, self._say = near, far, peer, say
        self._lost = False
        self._received: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()
        # Read this channel also while waiting for the other host, because an unread channel fills up.
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()

    def _listen(self) -> None:
        try:
            for line in self._near.lines():
                self._received.put(line)
        except Exception as error:
            self._received.put(error)
        self._received.put(None)

    def send(self, line: bytes) -> None:
        """Send one more line to the clients' process."""
        self._near.send(line)

    def lines(self) -> Iterator[bytes]:
        """Yield the answers of the clients' process until one of the two ends."""
        while (line := self._received.get()) is not None:
            if isinstance(line, Exception):
                raise line
            if not line.startswith(_TO_PEER):
                yield line
                continue
            answer = self._ask_servers(msgspec.json.encode(msgspec.json.decode(line)["say"]))
            if answer is None:
                self._lost = True
                return
            self._near.send(answer)

    def _ask_servers(self, request: bytes) -> bytes | None:
        """Send a request to the servers' process and return its answer; None if it has ended."""
        self._far.send(request)
        for line in self._far.lines():
            event = msgspec.json.decode(line, type=dict[str, Any])
            if event["event"] == "answer":
                return line
            _handle_event(event, self._peer, self._say)
        return None

    def end_reason(self) -> str:
        """Return which of the two ended, and how."""
        return (
            f"on the servers' host {self._peer} {self._far.end_reason()}"
            if self._lost
            else self._near.end_reason()
        )

    def leave(self) -> None:
        """Ask both to end and wait briefly, so that they return borrowed NICs; then end both."""
        self._far.send(b'{"do":"end"}')
        self._near.send(b'{"event":"answer","gone":true}')
        farewell = threading.Thread(target=_until_its_end, args=(self._far,), daemon=True)
        farewell.start()
        deadline = time.monotonic() + LAST_WORDS_S
        for thread in (self._ear, farewell):
            thread.join(max(0.0, deadline - time.monotonic()))
        self.end()

    def end(self) -> None:
        """End both now, if they still run."""
        self._near.end()
        self._far.end()


def _until_its_end(conversation: process.Conversing) -> None:
    with contextlib.suppress(OSError, ValueError, Failed):  # it ended or broke while we listened
        for _ in conversation.lines():
            pass
