"""The client of `labkit.measure.endpoints.exec_server`, which runs in a container or a guest.

As a program it is a command prefix, as nsenter(1) is for a namespace: it runs another program inside and passes on its
output, its exit code, and signals. Two signals cannot be passed on: SIGKILL kills this client, and the server then
kills the program; SIGTSTP stands for SIGSTOP. Only small parts of the standard library are imported, because this
client is started once for each program.
"""

import errno
import fcntl
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
PATIENCE_S = 20.0  # until a server listens and has a free port, and until it has read or written a file
# An emulated guest on busy CPUs needs tens of seconds for what takes a tenth of a second elsewhere. A guest whose
# machine has ended is noticed at once.
ANSWER_S = 120.0
# Without an answer for so long, connect again: a guest that gets no CPU while one conversation ends and the next
# begins does not notice either, so it waits for requests of the first one. Every attempt waits twice as long as the one
# before, and its guest has twice as long to notice, because a slow guest may be about to answer.
BEGIN_S, PAUSE_S = 5.0, 0.1


class ServerDisconnected(Exception):
    """The server has gone."""


class NoAnswerError(TimeoutError):
    """The server has accepted the connection, and says nothing."""


class Conversation:
    """A conversation with the endpoint in `folder`.

    `port` is a port number of a guest, or None for any free one. `check` is called while waiting for the server's
    hello and may raise to end the wait; without it the wait for a server that listens is limited to PATIENCE_S, and
    that for its hello to `hello_s`.
    """

    def __init__(
        self,
        folder: str,
        port: int | None = None,
        check: Callable[[], None] | None = None,
        hello_s: float = ANSWER_S,
    ) -> None:
        self._frames = exec_server.Frames()
        self._lock: int | None = None
        self.received_before: list[tuple[bytes, bytes]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            deadline = time.monotonic() + PATIENCE_S
            self._connect(self._lock_socket(folder, port, deadline), deadline, check)
            self._wait_for_hello(time.monotonic() + hello_s, check)
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
        """Connect as soon as the server listens. Raises TimeoutError, or what `check` raises."""
        while self._socket.connect_ex(path):  # the socket exists shortly before QEMU listens
            if check is not None:
                check()
            elif time.monotonic() > deadline:
                raise TimeoutError("it does not answer")
            time.sleep(0.005)

    def _wait_for_hello(self, deadline: float, check: Callable[[], None] | None) -> None:
        """Wait for the hello; input before it belongs to an earlier conversation.

        Raises NoAnswerError, ServerDisconnected, or what `check` raises.
        """
        hello, seen = exec_server.frame(b"H", exec_server.HELLO), b""
        while hello not in seen:
            if not select.select([self._socket], [], [], 0.1)[0]:
                if check is not None:
                    check()
                elif time.monotonic() > deadline:
                    raise NoAnswerError("it does not answer")
                continue
            data = self._socket.recv(exec_server.BLOCK)
            if not data:
                raise ServerDisconnected
            seen = (seen + data)[-2 * exec_server.BLOCK :]

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
        """Send a frame. Raises ServerDisconnected."""
        try:
            self._socket.sendall(exec_server.frame(kind, content))
        except OSError:
            raise ServerDisconnected from None

    def received(self, timeout_s: float | None = None) -> list[tuple[bytes, bytes]]:
        """Return the received frames; none after `timeout_s`. Raises ServerDisconnected."""
        if self.received_before:
            result, self.received_before = self.received_before, []
            return result
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return []
        data = self._socket.recv(exec_server.BLOCK)
        if not data:
            raise ServerDisconnected
        return list(self._frames.add(data))

    def ask(self, kind: bytes, content: bytes, patience_s: float = PATIENCE_S) -> bytes:
        """Read a file (F) and return its content, or write one (W). Raises OSError from the server, or
        TimeoutError."""
        self.send(kind, content)
        deadline = time.monotonic() + patience_s
        while (rest := deadline - time.monotonic()) > 0:
            for answer_kind, value in self.received(rest):
                if answer_kind == b"V":
                    return value
                if answer_kind == b"N":
                    path = content.partition(b"\0")[0].decode(errors="replace")
                    raise OSError(int(value), os.strerror(int(value)), path)
        raise TimeoutError(errno.ETIMEDOUT, "no answer")


def start_conversation(folder: str, words: list[str], request: bytes) -> Conversation:
    """Start a program by a request (R, T, or P: see exec_server) and return its conversation.

    Raises ServerDisconnected, or TimeoutError if the server does not start it in time.
    """
    deadline = time.monotonic() + ANSWER_S
    wait_s, pause_s = BEGIN_S, PAUSE_S
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            return _started(folder, words, request, min(wait_s, left_s))
        except NoAnswerError:
            time.sleep(pause_s)
        wait_s, pause_s = 2 * wait_s, 2 * pause_s
    raise NoAnswerError(f"it did not start {words[0]} within {ANSWER_S:g} s")


def _started(folder: str, words: list[str], request: bytes, wait_s: float) -> Conversation:
    """Connect, start a program and return its conversation.

    Raises NoAnswerError if the hello, or the start after it, takes longer than `wait_s`.
    """
    conversation = Conversation(folder, hello_s=wait_s)
    conversation.send(request, b"\0".join(os.fsencode(word) for word in words))
    until = time.monotonic() + wait_s
    while (rest := until - time.monotonic()) > 0:
        received = conversation.received(rest)
        kinds = [kind for kind, _ in received]
        if b"B" in kinds:  # the program may already have ended
            conversation.received_before = received[kinds.index(b"B") + 1 :]
            return conversation
    conversation.close()
    raise NoAnswerError("it does not answer")


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
    except (ServerDisconnected, OSError) as error:
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
