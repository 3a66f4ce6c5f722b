"""Forked processes that run one function: stopped, killed, and orphaned."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from sandbox import output, until

BEGIN = """
import os, signal, socket, sys, time
from labkit.system import process
from labkit.common.errors import Failed

def work(control):
    while control.recv(1):
        pass
    control.sendall(b"x" * 300_000)

def reported(forked):
    try:
        return len(forked.stop(20))
    except Failed as error:
        return str(error)
"""


def program(text: str) -> str:
    """Return the output of a program that begins with BEGIN. It is not forked from pytest, which may have threads."""
    return output([sys.executable, "-c", BEGIN + text], 60, cwd=ROOT)


def test_output_and_exit_status() -> None:
    assert program("print(reported(process.Forked(work)))") == "300000\n"
    killed = "one = process.Forked(work); os.kill(one.pid, signal.SIGKILL); print(reported(one))"
    assert program(killed) == "was killed by signal 9\n"
    failing = "one = process.Forked(lambda control: 1 / 0); print(reported(one))"
    assert program(failing) == "ended with 70\n"
    silent = "one = process.Forked(lambda control: time.sleep(60))\ntry: one.stop(0.2)\nexcept Failed as e: print(e)"
    assert program(silent) == "did not end within 0.2 s and was killed\n"


def test_closes_pipes_and_ignores_interrupts() -> None:
    text = """
reading, writing = os.pipe()
one = process.Forked(work)
os.close(writing)
print(os.read(reading, 1))
os.kill(one.pid, signal.SIGINT)
print(reported(one))
two = process.Forked(work)
two.kill()
print(os.path.exists(f"/proc/{two.pid}"))
"""
    assert program(text) == "b''\n300000\nFalse\n"


def test_dies_with_its_parent() -> None:
    text = "one = process.Forked(work); print(one.pid, flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", BEGIN + text], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        pid = int(parent.stdout.readline())
        assert os.path.exists(f"/proc/{pid}")
        parent.kill()
        parent.wait()
        assert until(lambda: _is_gone(pid), 20)


def _is_gone(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


WAITING = """
import signal, threading
from labkit.measure.hosts import local

def end(*_):
    raise SystemExit("obeyed")

signal.signal(signal.SIGTERM, end)
threading.Timer(0.3, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
try:
    process.interactive([*local.prefix(net=False), "sh", "-c", "sleep 60 & wait"])
except SystemExit as one:
    print(one)
"""


@pytest.mark.needs("namespaces")
def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    """Of two signals at once the kernel may give both to any thread. What unshare has started ends as well."""
    assert program(WAITING) == "obeyed\n"
