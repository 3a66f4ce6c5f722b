"""The client of `labkit.measure.endpoints.exec_server`, which runs in a container or a guest.

As a program it is a command prefix, as nsenter(1) is for a namespace: it runs another program inside and passes on its
output, its exit code, and signals. Two signals cannot be passed on: SIGKILL kills this client, and the server then
kills the program; SIGTSTP stands for SIGSTOP. Only small parts of the standard library are imported, because this
client is started once for each program.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

if __name__ != "__main__":
    from labkit.measure.endpoints import exec_server
else:  # importing all of labkit would take longer than most programs run
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    exec_server = __import__("exec_server")

SOCKET = "socket"  # the socket of a container, in the endpoint's folder
NAMES = exec_server.PORT
LOCKS = "port"  # a guest's ports port0, port1 …; the first is reserved for the owner of the guest
PORTS = 16
PATIENCE_S = 20.0
# Without an answer for so long, the port still belonged to an earlier conversation: connect again.
BEGIN_S = 5.0


class Disconnected(Exception):
    """The server has gone."""


class Conversation:
    """A conversation with the endpoint in `folder`.

    `port` is a port number of a guest, or None for any free one. `check` is called while waiting for the server's
    hello and may raise to end the wait; without it the wait is limited to PATIENCE_S.
    """

    def __init__(self, folder: str, port: int | None = None, check: Callable[[], None] | None = None) -> None:
        self._frames = exec_server.Frames()
        self._lock: int | None = None
        self.received_before: list[tuple[bytes, bytes]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        deadline = time.monotonic() + (PATIENCE_S if check is None else math.inf)
        try:
            self._connect(self._lock_socket(folder, port, deadline), deadline, check)
        except BaseException:
            self.close()
            raise

    def _lock_socket(self, folder: str, port: int | None, deadline: float) -> str:
        """Lock a socket that no other conversation uses, and return its path."""
        if os.path.exists(f"{folder}/{SOCKET}"):
            return f"{folder}/{SOCKET}"
        while True:
            for number in range(1, PORTS) if port is None else [port]:
                path = f"{folder}/{LOCKS}{number}"
                lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(lock)
                    continue
                self._lock = lock
                return path
            if time.monotonic() > deadline:
                raise TimeoutError("all its ports are in use")
            time.sleep(0.01)

    def _connect(self, path: str, deadline: float, check: Callable[[], None] | None) -> None:
        """Connect and wait for the hello; input before it belongs to an earlier conversation."""
        while self._socket.connect_ex(path):  # the socket exists shortly before QEMU listens
            self._check_deadline(deadline, check)
            time.sleep(0.005)
        hello, seen = exec_server.frame(b"H", exec_server.HELLO), b""
        while hello not in seen:
            if not select.select([self._socket], [], [], 0.1)[0]:
                self._check_deadline(deadline, check)
                continue
            data = self._socket.recv(exec_server.BLOCK)
            if not data:
                raise Disconnected
            seen = (seen + data)[-2 * exec_server.BLOCK :]

    def _check_deadline(self, deadline: float, check: Callable[[], None] | None) -> None:
        """Raise TimeoutError after the deadline, or what `check` raises."""
        if check is not None:
            check()
        if time.monotonic() > deadline:
            raise TimeoutError("it does not answer")

    def fileno(self) -> int:
        """Return a descriptor that is readable when the server has sent something."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection and unlock the port."""
        self._socket.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send a frame. Raises Disconnected."""
        try:
            self._socket.sendall(exec_server.frame(kind, content))
        except OSError:
            raise Disconnected from None

    def received(self, timeout_s: float | None = None) -> list[tuple[bytes, bytes]]:
        """Return the received frames; none after `timeout_s`. Raises Disconnected."""
        if self.received_before:
            result, self.received_before = self.received_before, []
            return result
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return []
        data = self._socket.recv(exec_server.BLOCK)
        if not data:
            raise Disconnected
        return list(self._frames.add(data))

    def ask(self, kind: bytes, content: bytes, patience_s: float = PATIENCE_S) -> bytes:
        """Read a file (F) and return its content, or write one (W). Raises OSError from the server, or
        TimeoutError."""
        self.send(kind, content)
        deadline = time.monotonic() + patience_s
        while (rest := deadline - time.monotonic()) > 0:
            for lines, value in self.received(rest):
                if lines == b"V":
                    return value
                if lines == b"N":
                    path = content.partition(b"\0")[0].decode(errors="replace")
                    raise OSError(int(value), os.strerror(int(value)), path)
        raise TimeoutError(errno.ETIMEDOUT, "no answer")


def start_conversation(folder: str, words: list[str], request: bytes) -> Conversation:
    """Start a program by a request (R, T, or P: see exec_server) and return its conversation.

    If the server does not start it in time, it has not noticed the end of an earlier conversation: connect again.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        conversation = Conversation(folder)
        conversation.send(request, b"\0".join(os.fsencode(word) for word in words))
        until = time.monotonic() + BEGIN_S
        while (rest := until - time.monotonic()) > 0:
            received = conversation.received(rest)
            kinds = [kind for kind, _ in received]
            if b"B" in kinds:  # the program may already have ended
                conversation.received_before = received[kinds.index(b"B") + 1 :]
                return conversation
        conversation.close()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{words[0]} did not begin")
        time.sleep(0.1)


def _relay(conversation: Conversation, caught: int) -> int:
    """Pass on output and signals until the program has ended; return its exit code."""
    code: int | None = None
    while code is None:
        waits = [] if conversation.received_before else [conversation.fileno(), caught]
        ready = select.select(waits, [], [])[0] if waits else [conversation.fileno()]
        if caught in ready:
            for number in os.read(caught, 64):
                passed = signal.SIGSTOP if number == signal.SIGTSTP else number
                conversation.send(b"S", b"%d" % passed)
        if conversation.fileno() in ready:
            for kind, content in conversation.received():
                if kind in (b"O", b"X"):
                    _write(1 if kind == b"O" else 2, content)
                elif kind == b"D":
                    code = int(content.split()[0])
    return code


def _write(fd: int, content: bytes) -> None:
    while content:
        content = content[os.write(fd, content) :]


def main() -> int:
    """Run as a program: FOLDER [held] -- PROGRAM ARGUMENTS …"""
    folder, words = sys.argv[1], sys.argv[sys.argv.index("--") + 1 :]
    caught, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT):
        signal.signal(number, lambda *_: None)
    held = "held" in sys.argv[2 : sys.argv.index("--")]
    try:
        conversation = start_conversation(folder, words, b"T" if held else b"R")
        if held:
            os.kill(os.getpid(), signal.SIGSTOP)  # continuing this process continues the program
        code = _relay(conversation, caught)
    except (Disconnected, OSError) as error:
        words_of = f": {error}" if str(error) else ""
        _write(2, f"{os.path.basename(folder)} no longer exists, or does not answer{words_of}\n".encode())
        return 125
    if code < 0:  # end by the same signal
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        time.sleep(1)
    return code


if __name__ == "__main__":
    sys.exit(main())
