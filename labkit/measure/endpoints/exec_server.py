"""Start programs and read and write files in a container or a guest, on request from outside.

It runs alone there, so it imports only modules of the smallest Python. It serves one conversation at a time on each
virtio-serial port of a guest, and any number on a container's socket. `exec_client` is the other end. A frame is a
letter, four bytes of length, and content.

  requests  R arguments with NUL between  start a program (one per conversation)
            T arguments with NUL between  the same, but stopped (SIGSTOP) until a signal continues it
            P arguments with NUL between  start a program that reads standard input; for others it is empty
            I content                     give it that on standard input
            S number                      send it a signal
            F path                        read a file
            W path NUL content            write a file
  answers   H                             hello: a client has connected
            B                             the program starts
            O, X                          its standard output, its standard error
            D exit code, CPU seconds      it has ended
            V content, N errno            the file's content, or why not
Closing a conversation kills its program.
"""

import errno
import os
import resource  # which os.wait4 imports
import select
import sys
import time

HELLO = b"labkit: inside"
PORT = "labkit-"  # prefix of the names of a guest's ports
BLOCK = 65536
SIGKILL, SIGSTOP = 9, 19
PORTS_S = 10.0
IDLE_S = 1.0
# An emulated machine with several CPUs sometimes loses a port's interrupt; polling finds the data.
WAKE_S = 0.1


def frame(kind: bytes, content: bytes = b"") -> bytes:
    return kind + len(content).to_bytes(4, "big") + content


class Frames:
    """Splits received data into frames."""

    def __init__(self) -> None:
        self.rest = b""

    def add(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Add data; return the frames that are complete now, as (letter, content)."""
        self.rest += data
        result = []
        while len(self.rest) >= 5:
            end = 5 + int.from_bytes(self.rest[1:5], "big")
            if len(self.rest) < end:
                break
            result.append((self.rest[:1], self.rest[5:end]))
            self.rest = self.rest[end:]
        return result


class ClientDisconnected(Exception):
    """The client has disconnected."""


class ByteStream:
    """The descriptor of a conversation: a socket, or a virtio-serial port (drivers/char/virtio_console.c).

    poll reports HUP while no client is connected.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)
        self._hup = select.poll()
        self._hup.register(fd, 0)

    def connected(self) -> bool:
        return not self._hup.poll(0)

    def read(self) -> bytes:
        """Return the received data. Raises ClientDisconnected."""
        try:
            data = os.read(self.fd, BLOCK)
        except BlockingIOError:
            return b""
        except OSError:
            raise ClientDisconnected from None
        if not data:
            raise ClientDisconnected
        return data

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Write a frame. Raises ClientDisconnected."""
        self.write(frame(kind, content))

    def write(self, data: bytes) -> None:
        """Write all data. Raises ClientDisconnected."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self.fd, left) :]
            except BlockingIOError:
                if not self.connected():
                    raise ClientDisconnected from None
                select.select([], [self.fd], [], 0.1)
            except OSError:
                raise ClientDisconnected from None


class Program:
    """A program and the pipes of its output, each with the letter of its frames."""

    def __init__(self, words: list[bytes], *, held: bool, reads: bool = False) -> None:
        pipes = [os.pipe(), os.pipe()]
        self.input: int | None = None
        if reads:
            given, self.input = os.pipe()
        else:
            given = os.open("/dev/null", os.O_RDONLY)
        self.pid = os.fork()
        if self.pid == 0:
            _become(words, given, [writes for _, writes in pipes], held)
        for fd in (given, *(writes for _, writes in pipes)):
            os.close(fd)
        self.letters = {pipes[0][0]: b"O", pipes[1][0]: b"X"}
        self.fd = os.pidfd_open(self.pid)
        if held:  # otherwise it might stop after the signal that continues it
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def forward(self, stream: ByteStream, fd: int) -> None:
        """Send what a pipe holds."""
        data = os.read(fd, BLOCK)
        if data:
            stream.send(self.letters[fd], data)
        else:
            os.close(fd)
            del self.letters[fd]

    def give(self, content: bytes) -> None:
        """Write to its standard input; what an ended program does not read is lost."""
        try:
            while content and self.input is not None:
                content = content[os.write(self.input, content) :]
        except BrokenPipeError:
            pass

    def send(self, number: int) -> None:
        """Send a signal to the program and its children."""
        for send in (os.killpg, os.kill):  # it may not lead its process group yet
            try:
                return send(self.pid, number)
            except ProcessLookupError:
                continue

    def end(self) -> tuple[int, float]:
        """Kill it if it still runs; return its exit code (negative: signal) and its CPU seconds."""
        self.send(SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        for fd in [*self.letters, self.fd, *([] if self.input is None else [self.input])]:
            os.close(fd)
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime

    def ended(self) -> bool:
        """Return whether it has ended; it must still be waited for."""
        return bool(select.select([self.fd], [], [], 0)[0])


def _become(words: list[bytes], given: int, writes: list[int], held: bool) -> None:
    """In the child: execute the program, or write the error to standard error."""
    os.setsid()
    os.dup2(given, 0)
    os.dup2(writes[0], 1)
    os.dup2(writes[1], 2)
    if held:
        os.kill(os.getpid(), SIGSTOP)
    # os.execvp needs modules that are not there.
    folders = [b""] if b"/" in words[0] else os.environb.get(b"PATH", b"/usr/bin:/bin").split(b":")
    number = errno.ENOENT
    for path in [os.path.join(folder, words[0]) for folder in folders]:
        try:
            os.execv(path, words)
        except OSError as error:
            number = number if error.errno == errno.ENOENT else error.errno or 0
    os.write(2, b"%b: %b\n" % (words[0], os.strerror(number).encode()))
    os._exit(127)


def _file(stream: ByteStream, kind: bytes, content: bytes) -> None:
    path, _, data = content.partition(b"\0")
    try:
        fd = os.open(path, os.O_RDONLY if kind == b"F" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o755)
        try:
            if kind == b"W":
                while data:
                    data = data[os.write(fd, data) :]
            result = b""
            while kind == b"F" and (more := os.read(fd, 1 << 20)):
                result += more
        finally:
            os.close(fd)
    except OSError as error:
        stream.send(b"N", b"%d" % (error.errno or 0))
    else:
        stream.send(b"V", result)


def converse(stream: ByteStream) -> None:
    """Serve one conversation, from the hello until the client disconnects."""
    frames = Frames()
    program: Program | None = None
    try:
        stream.send(b"H", HELLO)
        while True:
            watched = [stream.fd] if program is None else [stream.fd, program.fd, *program.letters]
            ready, _, _ = select.select(watched, [], [], WAKE_S)
            for kind, content in frames.add(stream.read()) if stream.fd in ready else []:
                if kind in (b"R", b"T", b"P"):
                    program = Program(content.split(b"\0"), held=kind == b"T", reads=kind == b"P")
                    stream.send(b"B")
                elif kind == b"I" and program is not None:
                    program.give(content)
                elif kind == b"S" and program is not None:
                    program.send(int(content))
                elif kind in (b"F", b"W"):
                    _file(stream, kind, content)
            if program is not None:
                program = _watch(stream, program, ready)
    except ClientDisconnected:
        pass
    finally:
        if program is not None:
            program.end()


def _watch(stream: ByteStream, program: Program, ready: list[int]) -> Program | None:
    """Send the program's output, and its end; return the program while it runs, else None."""
    for fd in [fd for fd in program.letters if fd in ready]:
        program.forward(stream, fd)
    if not program.ended():
        return program
    # Its children may hold the pipes open; read only what it wrote itself.
    for fd in list(program.letters):
        while fd in program.letters and select.select([fd], [], [], 0)[0]:
            program.forward(stream, fd)
    code, cpu_s = program.end()
    stream.send(b"D", b"%d %.6f" % (code, cpu_s))
    return None


def serve_socket(path: str) -> None:
    """Fork a process for each client of a unix socket; as PID 1, also wait for orphans."""
    import socket

    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(path)
    os.chmod(path, 0o600)  # other users may pass its folder
    listening.listen(64)
    while True:
        if select.select([listening], [], [], 1.0)[0]:
            connected, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                converse(ByteStream(connected.detach()))
                os._exit(0)
            connected.close()
        reap()


def serve_ports(count: int) -> None:
    """Fork a process for each conversation on a guest's ports; as PID 1, also wait for orphans.

    A port without a host is always ready (HUP), so only edge-triggered events show a new host (epoll(7), EPOLLET).
    """
    events = select.epoll()
    streams = {}
    for stream in ports(PORT, count):
        events.register(stream.fd, select.EPOLLIN | select.EPOLLOUT | select.EPOLLHUP | select.EPOLLET)
        streams[stream.fd] = stream
    served: dict[int, int] = {}  # port to process
    ends: dict[int, int] = {}  # a process's descriptor to port
    while True:
        for fd, stream in streams.items():
            if fd not in served and stream.connected():
                served[fd] = os.fork()
                if served[fd] == 0:
                    _serve_port(stream)
                ends[pidfd := os.pidfd_open(served[fd])] = fd
                events.register(pidfd, select.EPOLLIN)
        for fd, _ in events.poll(IDLE_S):
            if fd in ends:
                os.close(fd)
                del served[ends.pop(fd)]
        reap()


def _serve_port(stream: ByteStream) -> None:
    """In a forked process: serve one conversation."""
    # Requests must be answered while the load uses all CPUs. Programs do not inherit the priority.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(2))
    try:
        while stream.read():  # discard input that was meant for an earlier program
            pass
        converse(stream)
    except ClientDisconnected:
        pass
    os._exit(0)


def ports(prefix: str, count: int) -> list[ByteStream]:
    """Open the ports with names of this prefix; they appear some time after their module was loaded.

    Fewer than `count` are returned if the others do not appear in time.
    """
    deadline = time.monotonic() + PORTS_S
    top = "/sys/class/virtio-ports"
    while True:
        result = []
        for name in os.listdir(top) if os.path.isdir(top) else []:
            with open(f"{top}/{name}/name") as file:
                if file.read().startswith(prefix) and os.path.exists(f"/dev/{name}"):
                    result.append(f"/dev/{name}")
        if len(result) == count or time.monotonic() > deadline:
            return [ByteStream(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)) for path in result]
        time.sleep(0.01)


def reap() -> None:
    """Wait for children and orphans that have ended, as PID 1 must."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _modules(scripts: list[str]) -> None:
    """Print name and file of each module that a guest needs for this program and for these Python files."""
    assert resource
    for script in scripts:
        sys.path.insert(0, os.path.dirname(script))
        __import__(os.path.basename(script).removesuffix(".py"))
        del sys.path[0]
    for name, module in sorted(sys.modules.items()):
        if path := getattr(module, "__file__", None):
            print(name, path)


if __name__ == "__main__":
    if sys.argv[1] == "socket":
        serve_socket(sys.argv[2])
    elif sys.argv[1] == "ports":
        serve_ports(int(sys.argv[2]))
    else:
        _modules(sys.argv[2:])
