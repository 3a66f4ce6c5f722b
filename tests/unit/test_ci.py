"""The exit code of .ci/run when its parts fail, and the tests that it names: flaky ones, and those left out.

Fake programs replace make, labkit and pytest."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from sandbox import shell_program

PARTS = ("test", "test-long", "test-alone")
# Each part ends as the file of its name says, and records pytest's exit code if pytest ran.
MAKE = """
echo "make $1" >>log
[ "$1" != setup ] || exit 0
mkdir -p .pytest_cache
if [ -e "$1" ]; then cp "$1" .pytest_cache/exit-code; exit 2; fi
[ ! -e "$1-unreached" ] || exit 2
echo 0 >.pytest_cache/exit-code
"""
AGAIN = "again"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    shell_program(tmp_path / "bin", "make", MAKE)
    shell_program(tmp_path / ".venv/bin", "labkit", "")
    shell_program(tmp_path / ".venv/bin", "python", f'echo "python $*" >>log\nexit "$(cat {AGAIN})"')
    return tmp_path


def run(tree: Path) -> tuple[int, list[str]]:
    """Return the exit code of .ci/run, and the programs that it started."""
    environment = os.environ | {"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(tree / ".ci/run")], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, (tree / "log").read_text().splitlines()


def test_kernel_that_cannot_be_fetched_ends_it(tree: Path) -> None:
    """It is fetched beside the first part, so only the second part needs it."""
    (tree / ".venv/bin/labkit").write_text('#!/bin/sh\n[ "$*" != "kernels get" ]\n')
    assert run(tree) == (1, ["make setup", "make test"])


ALL = ["make setup", *(f"make {part}" for part in PARTS)]
LAST_FAILED = "python -m pytest --last-failed"


@pytest.mark.parametrize(
    ("ended", "again", "code", "retried"),
    [
        ({}, 0, 0, False),
        ({"test": "1"}, 0, 0, True),
        ({"test-alone": "1"}, 1, 1, True),
        ({"test-long": "2"}, 0, 1, False),  # an interrupted pytest, or (3) an internal error of it
        ({"test-unreached": ""}, 0, 1, False),  # a failure of ruff or mypy
        ({"test-unreached": "", "test-alone": "1"}, 0, 1, True),  # tests that pass then hide no other failure
        ({"test-long": "2", "test-alone": "1"}, 0, 1, True),
    ],
)
def test_failed_tests_alone_are_retried(
    tree: Path, ended: dict[str, str], again: int, code: int, retried: bool
) -> None:
    for part, content in ended.items():
        (tree / part).write_text(content)
    (tree / AGAIN).write_text(str(again))
    assert run(tree) == (code, [*ALL, *[LAST_FAILED] * retried])


TWICE = """
import pathlib

def test_that_passes_the_second_time():
    mark = pathlib.Path("mark")
    there = mark.exists()
    mark.touch()
    assert there

def test_that_fails():
    assert False

def test_that_passes():
    pass
"""


def test_flaky_tests_and_those_left_out_are_named(tmp_path: Path) -> None:
    """The line stands above pytest's closing line, and a second run by a person names none."""
    shutil.copy(ROOT / "tests/ci_summary.py", tmp_path / "conftest.py")
    (tmp_path / "test_twice.py").write_text(TWICE)

    def lines(*words: str, **environment: str) -> list[str]:
        pytest_ = [sys.executable, "-m", "pytest", "-q", *words]
        given = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            pytest_, cwd=tmp_path, env=given | environment, capture_output=True, text=True, check=False
        )
        return done.stdout.splitlines()

    late = lines(LABKIT_TESTS_UNTIL="1")
    assert sum(line.startswith("left out: test_twice.py::test_that_") for line in late) == 3
    assert "3 skipped" in late[-1]
    first = lines(LABKIT_SECOND_ATTEMPT="", LABKIT_TESTS_UNTIL=f"{time.time() + 1000:.0f}")
    assert not any(line.startswith(("flaky:", "left out:")) for line in first)
    second = lines("--last-failed", LABKIT_SECOND_ATTEMPT="1")
    assert [line for line in second if line.startswith("flaky:")] == [
        "flaky: test_twice.py::test_that_passes_the_second_time"
    ]
    assert "1 failed, 1 passed" in second[-1]
