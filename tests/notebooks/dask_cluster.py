"""Run a real Dask cluster in a sandbox, and `labkit sweep --dask` on it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sandbox import LABKIT, Done, Sandbox, Trap, until

from labkit.common import run_folder
from labkit.system import process

PATIENCE_S = 240  # for steps that take 15 s on an idle machine
RESOURCE = ("--resources", "labkit=1")

Program = subprocess.Popen[bytes]


class Cluster:
    """A scheduler and its workers in a sandbox. Each has its own log and data root.

    All of them run in one folder, which is a trap: what they start must import no module from it.
    """

    def __init__(self, machine: Sandbox, name: str) -> None:
        self.machine = machine
        self.folder = machine.folder / name
        self.folder.mkdir()
        self.trap = Trap(self.folder)
        self.address = ""
        self.programs: list[Program] = []
        self.workers: dict[str, Program] = {}  # by address

    def __enter__(self) -> Cluster:
        there = self.folder / "scheduler.json"
        # The scheduler creates a folder for files that it never gets.
        words = ("--port", "0", "--no-dashboard", "--scheduler-file", str(there))
        self.scheduler = self._start("scheduler", *words, TMPDIR=str(self.folder))
        self._wait(self.scheduler, lambda: there.exists() and there.read_bytes().endswith(b"}"), "scheduler")
        self.address = str(run_folder.read_json(there)["address"])
        return self

    def __exit__(self, *_: object) -> None:
        for program in self.programs:
            program.kill()
            program.wait()
        assert not self.trap.imported()

    def _wait(self, program: Program, ready: Callable[[], bool], name: str) -> None:
        until(lambda: ready() or program.poll() is not None, PATIENCE_S)
        assert program.poll() is None, self.log(name)
        assert ready(), self.log(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _start(self, name: str, *words: str, **environment: str) -> Program:
        # Like the command `dask`, which does not import from the current folder either.
        words = (sys.executable, "-P", "-m", "dask", name.split("-")[0], "--host", "127.0.0.1", *words)
        with (self.folder / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                [*self.machine.prefix, *process.DIE_WITH_US, *words],
                cwd=self.folder, env=self.machine.environment | environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.programs.append(started)
        return started

    def data(self, name: str) -> Path:
        return self.folder / name / "data"

    def worker(self, name: str, *words: str, **environment: str) -> str:
        """Start a worker called worker-…; return its address when the scheduler knows it."""
        own = str(self.folder / name)
        data = {"LABKIT_DATA": str(self.data(name))}
        words = (
            self.address, "--nthreads", "2", "--no-nanny", "--no-dashboard", "--local-directory", own, *words,
        )  # fmt: skip
        started = self._start(name, *words, **data, **environment)
        self._wait(started, lambda: "Registered to:" in self.log(name), name)
        [address] = set(re.findall(r"Start worker at: +(\S+)", self.log(name)))
        self.workers[address] = started
        return address


class Sweep:
    """A running `labkit sweep --dask` whose output goes to a file."""

    def __init__(self, machine: Sandbox, name: str, address: str) -> None:
        self.lines = machine.folder / f"{name}.err"
        with self.lines.open("wb") as lines, (machine.folder / f"{name}.out").open("wb") as out:
            self.program = subprocess.Popen(
                [*machine.prefix, *process.DIE_WITH_US, *LABKIT, "sweep", f"params/{name}.yaml", "--dask", address],
                cwd=machine.folder / "project", env=machine.environment,
                stdin=subprocess.DEVNULL, stdout=out, stderr=lines, start_new_session=True,
            )  # fmt: skip

    def says(self, words: str) -> list[str]:
        """Return the group of every output line that matches."""
        return re.findall(words, self.lines.read_text(), re.MULTILINE)

    def waits(self, words: str) -> list[str]:
        """Wait for a matching line, and return the groups."""
        assert until(lambda: self.says(words) or self.program.poll() is not None, PATIENCE_S, 0.05)
        assert self.says(words), self.lines.read_text()
        return self.says(words)

    def done(self, timeout: float = PATIENCE_S) -> Done:
        code = self.program.wait(timeout)
        return Done([], code, self.lines.with_suffix(".out").read_text(), self.lines.read_text())
