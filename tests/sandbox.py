"""Run labkit in a sandbox: namespaces with their own interfaces, measuring lock and folders.

Test runs and measurements do not disturb each other, and a test sees exactly what labkit leaves behind. Every process
in a sandbox carries a mark in its environment. By the mark, tests find it even after its parents have ended.
"""

import json
import os
import shlex
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

import pytest
from conftest import ROOT, cpu_cgroups

from labkit.common import run_folder
from labkit.measure.hosts import local

LABKIT = [sys.executable, "-P", "-m", "labkit.cli"]
# Without capabilities, like an ordinary user. The remaining one allows mapping uid 0 into a user namespace.
ORDINARY = ["setpriv", "--bounding-set", "-all,+setfcap", "--inh-caps", "-all", "--"]
MARK = "LABKIT_TEST_MARK"
# Runs several commands and prints the exit code, the standard output and the standard error of each.
TOGETHER = """
import contextlib, io, json, sys, traceback
from labkit import cli
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(words)
        except SystemExit as end:
            code = end.code
        except Exception:
            code = 1
            traceback.print_exc()
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
# Modules that labkit's processes import, from the standard library and from other packages.
IMPORTED = (
    "random", "json", "msgspec", "pyroute2", "numpy", "pandas", "IPython", "ipykernel_launcher", "sitecustomize",
)  # fmt: skip
LIMIT = "/proc/sys/user/max_net_namespaces"  # for the user namespace that accesses it (namespaces(7))

Row = dict[str, Any]
Done = subprocess.CompletedProcess[str]
Process = subprocess.Popen[str]


class Trap:
    """A folder with modules named like those that labkit's processes import. An imported one records its name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._record = folder, folder / "imported"
        self.text = (
            f"open({str(self._record)!r}, 'a').write(__name__ + chr(10)); raise ImportError('not labkit')"
        )
        for name in ("labkit/__init__", *IMPORTED):
            path = folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)

    def imported(self) -> str:
        """Return the names of the modules that were imported."""
        return self._record.read_text() if self._record.exists() else ""


class Sandbox:
    """Namespaces held by a process, and folders.

    `data` is labkit's data root; `home`, `tmp` and `here` (the current folder) stay empty. `words` precede every
    command that runs inside.
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
            # the user's kernels, and whether KVM works, because testing that takes long
            "XDG_DATA_HOME": os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share"),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            "COLUMNS": "200",
        }  # fmt: skip

    @property
    def prefix(self) -> list[str]:
        """Return the words that make a command run inside."""
        return ["nsenter", f"--target={self.keeper.pid}", *self.user, "--net", "--"]

    def start(self, *argv: str, cwd: Path | None = None, **environment: str) -> Process:
        """Start a program in its own process group with pipes for both outputs."""
        return subprocess.Popen(
            [*self.prefix, *self.words, *argv],
            cwd=cwd or self.folder / "here",
            env=self.environment | environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def project(self, **sweeps: str) -> Path:
        """Create a folder with the notebooks and these files in params/. From then on, labkit's data are in it."""
        project = self.folder / "project"
        shutil.copytree(ROOT / "notebooks", project / "notebooks", ignore=shutil.ignore_patterns(".*"))
        (project / "params").mkdir()
        for name, text in sweeps.items():
            (project / "params" / f"{name}.yaml").write_text(text)
        del self.environment["LABKIT_DATA"]
        self.data = project / "data"
        return project

    def run(
        self,
        *argv: str,
        cwd: Path | None = None,
        timeout: float = 120,
        code: int | None = None,
        **environment: str,
    ) -> Done:
        """Run a program to its end. If an exit code is given, assert it."""
        process = self.start(*argv, cwd=cwd, **environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        assert code in (None, process.returncode), (process.returncode, err, out)
        return Done(argv, process.returncode, out, err)

    def labkit(self, *words: str, **options: Any) -> Done:
        """Run labkit to its end, with the options of `run`."""
        return self.run(*LABKIT, *words, **options)

    def shell(self, script: str, *words: str) -> Done:
        """Return what `labkit shell` prints for commands on its standard input."""
        argv = [*self.prefix, *LABKIT, "shell", *words]
        return subprocess.run(
            argv, input=script, cwd=self.folder / "here", env=self.environment | {"SHELL": "/bin/bash"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def commands(
        self, *lines: str, cwd: Path | None = None, timeout: float = 120, **environment: str
    ) -> dict[str, Done]:
        """Run labkit commands in one process, one after the other, and return how each ended.

        The imports, which take most of the time of a command that is refused, are done once.
        """
        argvs = json.dumps([shlex.split(line) for line in lines])
        words = (sys.executable, "-P", "-c", TOGETHER, argvs)
        done = self.run(*words, cwd=cwd, timeout=timeout, **environment)
        return dict(zip(lines, ended_together(done, lines), strict=True))

    def sweep(self, name: str, timeout: float, **environment: str) -> str:
        """Run `labkit sweep` for a file of `project`, and return what it prints."""
        options = {"cwd": self.folder / "project", "timeout": timeout, "code": 0, **environment}
        return self.labkit("sweep", f"params/{name}.yaml", **options).stdout

    def swept(self, experiment: str, name: str) -> Path:
        """Return the folder of the only sweep of a file of `project`."""
        [result] = (self.data / experiment).glob(f"{name}-*")
        return result

    def rows(self, *words: str, experiment: str = "datapaths", code: int = 0, **options: Any) -> list[Row]:
        """Return the rows of a run, with the options of `run`."""
        done = self.labkit("run", experiment, *words, "--json", code=code, **options)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def processes(self) -> dict[int, list[str]]:
        """Return the living processes that were started inside, with their command lines."""
        return marked(self.mark)

    def pids(self, which: Callable[[list[str]], bool]) -> list[int]:
        """Return the inside processes whose command line matches."""
        return [pid for pid, words in sorted(self.processes().items()) if words and which(words)]

    def interfaces(self) -> dict[str, Any]:
        """Return the properties of the machine's interfaces that must not change."""
        report = json.loads(self.run("ip", "-d", "-j", "link").stdout)
        names = ("ifindex", "mtu", "address", "promiscuity", "allmulti", "flags", "master")
        return {link["ifname"]: {name: link.get(name) for name in names} for link in report}

    def only_namespace(self) -> bool:
        """Return whether the kernel counts no other network namespace than the sandbox's own.

        The count includes namespaces held only by a descriptor or a socket: they would prevent creating another one.
        """
        script = f'old=$(cat {LIMIT}); echo 2 >{LIMIT}; unshare --net true; code=$?; echo "$old" >{LIMIT}; exit $code'
        return (
            subprocess.run([*self.prefix, "sh", "-c", script], capture_output=True, check=False).returncode
            == 0
        )

    def leaves_nothing(self, before: object, within_s: float = 20) -> None:
        """Check that no process, network namespace, interface or file is left. before: the interfaces that were."""
        assert until(lambda: not self.processes(), within_s), self.processes()
        assert until(self.only_namespace, 20), "network namespaces are left"
        assert self.interfaces() == before
        assert [list(folder.iterdir()) for folder in self.empty] == [[], [], []]

    def end(self) -> None:
        """End all processes that are left inside."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()
        self.keeper.wait(10)


def ended_together(done: Done, lines: Sequence[str]) -> list[Done]:
    """Return how each command of a run of TOGETHER ended."""
    assert done.returncode == 0, done.stderr
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    return [Done(shlex.split(line), *one) for line, one in zip(lines, ended, strict=True)]


@contextmanager
def sandbox(
    folder: Path, words: Sequence[str] = (), *, user: bool = True, nics: Sequence[str] = ()
) -> Iterator[Sandbox]:
    """Create a sandbox: a user and a network namespace in which labkit is root, or only the latter if `user` is false.

    `nics` are its interfaces beside lo. Each is one end of a veth and is up.
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


def machine_fixture(scope: Any = "function", sweeps: dict[str, str] | None = None, **options: Any) -> Any:
    """Return the fixture `machine`: a sandbox with these options for each test, in its tmp_path, or for a module.

    sweeps: files in params/ of a project (`Sandbox.project`) that is made in it.
    """

    @pytest.fixture(scope=scope)
    def machine(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Sandbox]:
        is_for_one = scope == "function"
        folder = request.getfixturevalue("tmp_path") if is_for_one else tmp_path_factory.mktemp("machine")
        with sandbox(folder, **options) as made:
            if sweeps:
                made.project(**sweeps)
            yield made

    return machine


@contextmanager
def clean_sandbox(folder: Path) -> Iterator[Sandbox]:
    """Create root's sandbox. At the end, check that no process is left and that the interfaces are the same as
    before."""
    with sandbox(folder, user=False) as made:
        before = made.interfaces()
        yield made
        assert until(lambda: not made.processes(), 20), made.processes()
        assert made.interfaces() == before


def marked(mark: str) -> dict[int, list[str]]:
    """Return the living processes that carry the mark in their environment, with their command lines."""
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
    """Return the JSON that a test program prints. It runs in its own namespaces, like an experiment's process.

    through: words before the command, for a program that starts it.
    """
    argv = [*local.prefix(), *through, sys.executable, str(program), *words]
    return json.loads(output(argv, timeout_s, cwd=ROOT))


def output(argv: Sequence[str], timeout_s: float, **options: Any) -> str:
    """Return what a program prints, which must succeed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def until(true: Callable[[], Any], seconds: float, step_s: float = 0.05) -> bool:
    """Return whether the condition becomes true within this many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(step_s)
    return bool(true())


def one_sentence(done: Done, code: int = 2) -> str:
    """Return the last line on standard error of a failed command. Check that there is no traceback and that the exit
    code is right.

    Lines before it may be what labkit printed while it ran.
    """
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr + done.stdout
    lines = done.stderr.strip().splitlines()
    assert lines, done
    assert all(line.startswith("labkit: ") for line in lines), done.stderr
    return lines[-1].removeprefix("labkit: ")


def also(mark: str, *cases: Any) -> list[Any]:
    """Return the cases of a test with a mark: `long` where `make test` runs others that are like them, and `exhaustive`
    where CI does."""
    marks = getattr(pytest.mark, mark)
    return [pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=marks) for one in cases]


@contextmanager
def fifth_of_a_cpu(name: str) -> Iterator[Path]:
    """Make a cgroup of this name with a quota; yield the file to which a program that is in it writes its PID."""
    [top] = cpu_cgroups()
    own = top / name
    own.mkdir()
    try:
        if (own / "cpu.max").exists():
            (own / "cpu.max").write_text("20000 100000")
        else:
            (own / "cpu.cfs_period_us").write_text("100000")
            (own / "cpu.cfs_quota_us").write_text("20000")
        yield own / "cgroup.procs"
    finally:
        assert until(lambda: not (own / "cgroup.procs").read_text(), 10)
        own.rmdir()


# What a busy machine does to a run whose load is right.
STARVED = ("generator-limited: ", "the flows ran together for only ", "nothing arrived while all flows ran, ")


def unstarved(measure: Callable[[], list[Row]], attempts: int = 4) -> list[Row]:
    """Return the rows of the first of a few measurements in which the machine left the load enough CPU time.

    Rows that are invalid for another reason are returned as they are. Fails with the reasons of the last attempt.
    """
    for _ in range(attempts):
        rows = measure()
        starved = [row["reason"] for row in rows if (row["reason"] or "").startswith(STARVED)]
        if not starved:
            return rows
    pytest.fail(f"the load was starved in all {attempts} attempts, the last time: {starved}")


def shell_program(folder: Path, name: str, text: str) -> str:
    """Write a program and return a PATH that finds it first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def only_run(machine: Sandbox, experiment: str = "datapaths") -> Path:
    """Return the folder of the only run of an experiment in the sandbox."""
    [result] = (machine.data / experiment).iterdir()
    return result


def rows_on_disk(folder: Path) -> dict[str, bytes]:
    """Return the row files of a run; check that every line is a row."""
    run_folder.read_rows(folder)
    return {path.name: path.read_bytes() for path in sorted((folder / "rows").glob("*.jsonl"))}


def names_in_run() -> list[str]:
    """Return the names in /run and, if it exists, in /run/netns, without those of tests that run beside this one."""
    beside = ("labkit-measuring-", "labkit-browser-")
    names = [name for name in os.listdir("/run") if not name.startswith(beside)]
    return sorted([*names, *(str(path) for path in Path("/run/netns").glob("*"))])
