"""Too low limits of open files or processes give one sentence with the remedy."""

import errno
import subprocess
import sys

import pytest
from conftest import ROOT

from labkit.common.errors import Failed, Unsupported
from labkit.measure.agent import main as agent
from labkit.system.process import limits, programs

# A non-root user who can read root's Python, because limits of processes do not apply to root.
RIGHTS = "-all,+dac_read_search"
SOMEBODY = ["setpriv", "--reuid", "65533", "--regid", "65533", "--clear-groups", "--bounding-set", RIGHTS,
            "--inh-caps", RIGHTS, "--ambient-caps", RIGHTS, "--"]  # fmt: skip


def doctor(kind: str, number: int, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [*words, "prlimit", f"--{kind}={number}", sys.executable, "-P", "-m", "labkit.cli", "doctor"]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("number", [10, 20])
def test_too_few_open_files(number: int) -> None:
    done = doctor("nofile", number)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "labkit: too many open files: raise the limit with ulimit -n 1024\n"


@pytest.mark.needs("root")
def test_too_few_processes() -> None:
    done = doctor("nproc", 8, *SOMEBODY)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("labkit: too many processes of this user: raise the limit with ulimit -u")
    assert done.stderr.count("\n") == 1


def test_reason_why_a_program_cannot_start_is_named() -> None:
    for kind, number, sentence in (
        (Failed, errno.EMFILE, limits.TOO_MANY_FILES),
        (Failed, errno.ENFILE, limits.OPENING_ERRORS[errno.ENFILE]),
        (Failed, errno.EAGAIN, limits.TOO_MANY_PROCESSES),
        (Failed, errno.ENOMEM, limits.STARTING_ERRORS[errno.ENOMEM]),
        (Unsupported, errno.ENOENT, "the program nsenter is not installed: install it"),
    ):
        with pytest.raises(kind) as caught, programs.startable(["nsenter"]):
            raise OSError(number, "no")
        assert str(caught.value).startswith(sentence)


def test_error_of_the_measuring_process(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[dict[str, str]] = []
    monkeypatch.setattr(agent, "write_event", events.append)

    def broken(error: Exception):  # type: ignore[no-untyped-def]
        raise error
        yield

    agent._answer(broken(OSError(errno.EMFILE, "Too many open files")))
    agent._answer(broken(RuntimeError("can't start new thread")))
    assert [event["kind"] for event in events] == ["Failed", "Failed"]
    assert [event["text"] for event in events] == [limits.TOO_MANY_FILES, limits.TOO_MANY_PROCESSES]
    # EAGAIN has another meaning when no process is being started.
    assert limits.exhausted(OSError(errno.EAGAIN, "again")) is None
    assert limits.exhausted(RuntimeError("other")) is None
