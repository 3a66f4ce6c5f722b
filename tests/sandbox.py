"""A sandbox in which tests run labkit: namespaces with interfaces, a measuring lock and folders of their own.

Test runs and measurements do not disturb each other, and a test sees exactly what labkit leaves behind. Every
process in a sandbox carries a mark in its environment, by which tests find it whatever became of its parents.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import ROOT

from labkit.common import run_folder
from labkit.measure.hosts import local

LABKIT = [sys.executable, "-P", "-m", "labkit.cli"]
# Without capabilities, as an ordinary user; the one that stays lets uid 0 be mapped into a user namespace at all.
ORDINARY = ["setpriv", "--bounding-set", "-all,+setfcap", "--inh-caps", "-all", "--"]
MARK = "LABKIT_TEST_MARK"
LIMIT = "/proc/sys/user/max_net_namespaces"  # of the user namespace that reads and writes it (namespaces(7))

Row = dict[str, Any]
Done = subprocess.CompletedProcess[str]
Process = subprocess.Popen[str]


class Sandbox:
    """Namespaces held by a process, and folders: `data`, and `home`, `tmp`, `here` (the current one), which stay empty.

    `words` go in front of every command that is run in it.
    """

    def __init__(self, folder: Path, keeper: Process, words: Sequence[str] = (), user: bool = True) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.empty = [folder / name for name in ("home", "tmp", "here")]
        for each in self.empty:
            each.mkdir(parents=True, exist_ok=True)
        self.keeper = keeper
        self.words = list(words)
        self.user = ["--user", "--preserve-credentials"] if user else []
        self.mark = uuid.uuid4().hex
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "IPYTHON"))
        }
        self.environment = kept | {
            MARK: self.mark,
            "LABKIT_DATA": str(self.data),
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "PYTHONPATH": str(ROOT),
            # the kernels of the user who runs the tests, and whether KVM works, which takes long to find out
            "XDG_DATA_HOME": os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share"),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            "COLUMNS": "200",
        }  # fmt: skip

    @property
    def prefix(self) -> list[str]:
        """The words that make a command run in here."""
        return ["nsenter", f"--target={self.keeper.pid}", *self.user, "--net", "--"]

    def start(self, *argv: str, cwd: Path | None = None, **environment: str) -> Process:
        """Start a program; both its outputs are pipes, and it leads a process group of its own."""
        return subprocess.Popen(
            [*self.prefix, *self.words, *argv],
            cwd=cwd or self.folder / "here",
            env=self.environment | environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def project(self, **sweeps: str) -> Path:
        """A folder with the notebooks and these files in params/; labkit's data are from now on in it."""
        project = self.folder / "project"
        shutil.copytree(ROOT / "notebooks", project / "notebooks", ignore=shutil.ignore_patterns(".*"))
        (project / "params").mkdir()
        for name, text in sweeps.items():
            (project / "params" / f"{name}.yaml").write_text(text)
        del self.environment["LABKIT_DATA"]
        self.data = project / "data"
        return project

    def run(self, *argv: str, cwd: Path | None = None, timeout: float = 120, **environment: str) -> Done:
        """Run a program to its end."""
        process = self.start(*argv, cwd=cwd, **environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return Done(argv, process.returncode, out, err)

    def labkit(self, *words: str, cwd: Path | None = None, timeout: float = 120, **environment: str) -> Done:
        """Run labkit."""
        return self.run(*LABKIT, *words, cwd=cwd, timeout=timeout, **environment)

    def rows(self, *words: str, code: int = 0, timeout: float = 120, **environment: str) -> list[Row]:
        """The rows of `labkit run datapaths`; asserts the exit code."""
        done = self.labkit("run", "datapaths", *words, "--json", timeout=timeout, **environment)
        assert done.returncode == code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def processes(self) -> dict[int, list[str]]:
        """The processes that were started in here and live, with their command lines."""
        return marked(self.mark)

    def pids(self, which: Callable[[list[str]], bool]) -> list[int]:
        """The processes in here whose command line is such."""
        return [pid for pid, words in sorted(self.processes().items()) if words and which(words)]

    def interfaces(self) -> dict[str, Any]:
        """What of the machine's interfaces must not change."""
        report = json.loads(self.run("ip", "-d", "-j", "link").stdout)
        names = ("ifindex", "mtu", "address", "promiscuity", "allmulti", "flags", "master")
        return {link["ifname"]: {name: link.get(name) for name in names} for link in report}

    def only_namespace(self) -> bool:
        """Whether the sandbox's own network namespace is the only one that the kernel still counts for it.

        Also one that nothing but a descriptor or a socket holds would count; none else could be made then.
        """
        script = f'old=$(cat {LIMIT}); echo 2 >{LIMIT}; unshare --net true; code=$?; echo "$old" >{LIMIT}; exit $code'
        return (
            subprocess.run([*self.prefix, "sh", "-c", script], capture_output=True, check=False).returncode
            == 0
        )

    def end(self) -> None:
        """End whatever is left in here."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()
        self.keeper.wait(10)


@contextmanager
def sandbox(
    folder: Path, words: Sequence[str] = (), *, user: bool = True, nics: Sequence[str] = ()
) -> Iterator[Sandbox]:
    """A sandbox: a user and a network namespace in which labkit is root; with `user` false (as root) the latter alone.

    `nics` are interfaces that it has beside lo: each is one end of a veth, up.
    """
    makes = ["unshare", *(["--user", "--map-root-user"] if user else []), "--net", "--"]
    lines = ["ip link set lo up", *(f"ip link add {nic} up type veth peer name far-{nic}" for nic in nics)]
    lines += [f"ip link set far-{nic} up" for nic in nics]
    script = " && ".join([*lines, "echo", "exec cat"])
    with subprocess.Popen(
        [*makes, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "\n", "a namespace cannot be made, or nothing in it"
        made = Sandbox(folder, keeper, words, user)
        try:
            yield made
        finally:
            made.end()


@contextmanager
def clean_sandbox(folder: Path) -> Iterator[Sandbox]:
    """A sandbox of root's in which afterwards no process is left, and no interface more or less than before."""
    with sandbox(folder, user=False) as made:
        before = made.interfaces()
        yield made
        assert until(lambda: not made.processes(), 20), made.processes()
        assert made.interfaces() == before


def marked(mark: str) -> dict[int, list[str]]:
    """The processes that carry the mark in their environment and live, with their command lines."""
    wanted = f"{MARK}={mark}".encode()
    result = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    result[int(folder.name)] = words[:-1]
            except OSError:
                continue
    return result


def printed(program: Path, *words: str, timeout_s: float, through: Sequence[str] = ()) -> Any:
    """What a program of the tests prints as JSON; it runs as an experiment's process does, in namespaces of its own.
    through: words before it, as of a program that starts it."""
    argv = [*local.prefix(), *through, sys.executable, str(program), *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def until(true: Callable[[], Any], seconds: float, step_s: float = 0.02) -> bool:
    """Whether it has become true within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(step_s)
    return bool(true())


def one_sentence(done: Done, code: int = 2) -> str:
    """The last line on standard error, of a command that could not do it: no traceback, and what exit code 2 promises.

    Lines before it may be what labkit said while it ran.
    """
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr + done.stdout
    lines = done.stderr.strip().splitlines()
    assert lines, done
    assert all(line.startswith("labkit: ") for line in lines), done.stderr
    return lines[-1].removeprefix("labkit: ")


def only_run(machine: Sandbox) -> Path:
    """The folder of the one run that was made in the sandbox."""
    [result] = (machine.data / "datapaths").iterdir()
    return result


def rows_on_disk(folder: Path) -> dict[str, bytes]:
    """The files with rows of a run, and that every line of them is a row."""
    run_folder.read_rows(folder)
    return {path.name: path.read_bytes() for path in sorted((folder / "rows").glob("*.jsonl"))}
