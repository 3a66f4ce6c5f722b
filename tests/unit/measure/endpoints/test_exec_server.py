"""The protocol between labkit and an endpoint's box, without a container or a guest."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sandbox import until

from labkit.measure.endpoints import exec_client, exec_server
from labkit.system import process

LINE = [sys.executable, "-I", "-S", exec_client.__file__]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / exec_client.SOCKET
    with subprocess.Popen([sys.executable, "-I", "-S", exec_server.__file__, "socket", str(path)]) as server:
        assert until(path.exists, 20)
        yield str(tmp_path)
        server.kill()


def started(folder: str, *words: str, held: bool = False) -> process.Running:
    return process.Running([*LINE, folder, *["held"] * held, "--", *words], stops=signal.SIGTSTP)


def test_program_output_and_exit_code(folder: str) -> None:
    for words, ended in (
        (("sh", "-c", "echo out; echo err >&2; exit 3"), (3, "out\n", "err\n")),
        (("no-such-program", "x"), (127, "", "no-such-program: No such file or directory\n")),
        (("sh", "-c", "kill -TERM $$"), (-signal.SIGTERM, "", "")),
        (("sh", "-c", "head -c 2000000 /dev/zero | tr '\\0' x"), (0, "x" * 2_000_000, "")),
        (("cat",), (0, "", "")),  # its standard input is empty
    ):
        result = process.run([*LINE, folder, "--", *words], 30)
        assert (result.returncode, result.stdout, result.stderr) == ended


def test_program_reads_what_it_is_given(folder: str) -> None:
    conversation = exec_client.start_conversation(
        folder, ["sh", "-c", "while read -r one; do echo got $one; done"], b"P"
    )
    seen, deadline = b"", time.monotonic() + 20
    conversation.send(b"I", b"first\nsec")
    conversation.send(b"I", b"ond\n")
    while seen.count(b"\n") < 2 and time.monotonic() < deadline:
        seen += b"".join(content for kind, content in conversation.received(1) if kind == b"O")
    conversation.close()
    assert seen == b"got first\ngot second\n"


def test_program_ends_with_its_proxy(folder: str) -> None:
    program = started(folder, "sh", "-c", "echo $$; sleep 1000 & wait")
    assert until(program.output_so_far, 20)
    there = Path(f"/proc/{program.output_so_far().strip()}")
    assert there.exists()
    program.kill()
    program.ended()
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        assert until(lambda: "Z" in (there / "stat").read_text().split()[2], 20)


def test_interrupt_is_forwarded(folder: str) -> None:
    program = started(
        folder, "sh", "-c", "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.01; done"
    )
    assert until(program.output_so_far, 20)
    program.signal(signal.SIGINT)
    assert not process.wait([program], time.monotonic() + 20)
    assert (program.ended().returncode, program.ended().stdout) == (7, "ready\ncaught\n")


def test_file_transfer(folder: str, tmp_path: Path) -> None:
    conversation = exec_client.Conversation(folder)
    content = os.urandom(3_000_000)
    path = os.fsencode(tmp_path / "file")
    assert conversation.ask(b"W", path + b"\0" + content) == b""
    assert conversation.ask(b"F", path) == content
    assert b"cpu" in conversation.ask(b"F", b"/proc/stat")
    with pytest.raises(FileNotFoundError):
        conversation.ask(b"F", b"/no/such/file")
    conversation.close()


def test_lost_endpoint_is_reported(folder: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / exec_client.SOCKET).touch()
    code = f"import sys; sys.path.insert(0, {str(Path(exec_client.__file__).parents[3])!r}); "
    code += "from labkit.measure.endpoints import exec_client; exec_client.PATIENCE_S = 0.2; "
    code += f"sys.argv = ['x', {str(missing)!r}, '--', 'true']; sys.exit(exec_client.main())"
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 125
    assert "missing no longer exists, or does not answer" in done.stderr


class SilentGuest:
    """A guest's port, of which only one connection is served at a time, as QEMU does.

    Its server does not answer the first `deaf` connections, and is `late_s` late for the others.
    """

    def __init__(self, folder: Path, deaf: int, late_s: float) -> None:
        self.served = 0
        self._deaf, self._late_s = deaf, late_s
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(folder / f"{exec_client.LOCKS}1"))
        self._listening.listen(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.served += 1
                if self.served > self._deaf and not select.select([client], [], [], self._late_s)[0]:
                    client.sendall(exec_server.frame(b"H", exec_server.HELLO))
                while client.recv(exec_server.BLOCK):  # until it disconnects; all that it sends asks to start
                    client.sendall(exec_server.frame(b"B", b""))
                client.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(20)


# It has not noticed the end of the conversation before, or is slow: attempts of 0.2 and 0.4 s are too short.
@pytest.mark.parametrize(("deaf", "late_s", "served"), [(1, 0.0, 2), (0, 0.7, 3)])
def test_guest_that_does_not_answer_is_connected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: int, late_s: float, served: int
) -> None:
    monkeypatch.setattr(exec_client, "PATIENCE_S", 0.05)  # it listens at once
    monkeypatch.setattr(exec_client, "BEGIN_S", 0.2)
    monkeypatch.setattr(exec_client, "PAUSE_S", 0.01)
    guest = SilentGuest(tmp_path, deaf, late_s)
    conversation = exec_client.start_conversation(str(tmp_path), ["true"], b"R")
    conversation.close()
    guest.close()
    assert guest.served >= served  # more on a busy machine


def test_guest_that_never_answers_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_client, "BEGIN_S", 0.1)
    monkeypatch.setattr(exec_client, "PAUSE_S", 0.01)
    monkeypatch.setattr(exec_client, "ANSWER_S", 0.5)
    guest = SilentGuest(tmp_path, 1000, 0.0)
    with pytest.raises(TimeoutError, match=r"it did not start true within 0\.5 s"):
        exec_client.start_conversation(str(tmp_path), ["true"], b"R")
    guest.close()
    assert guest.served > 1
