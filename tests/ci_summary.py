"""What CI says above pytest's closing line: which tests passed only when tried once more, and for which no time was
left (`.ci/run`)."""

from __future__ import annotations

import os
import time

import pytest

LEFT_OUT = "the time of CI is over"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Leave a test out that would begin after LABKIT_TESTS_UNTIL, in seconds since 1970.

    CI's machine is sometimes three times as slow as usual. What it then tests of the long tests is better than nothing.
    """
    if time.time() > float(os.environ.get("LABKIT_TESTS_UNTIL", "inf")):
        pytest.skip(LEFT_OUT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print `left out: NAME` for each of these, and `flaky: NAME` for each test that passes in the second attempt,
    which LABKIT_SECOND_ATTEMPT marks."""
    for one in terminalreporter.getreports("skipped"):
        if LEFT_OUT in one.longreprtext:
            terminalreporter.write_line(f"left out: {one.nodeid}")
    if not os.environ.get("LABKIT_SECOND_ATTEMPT"):
        return
    broken = {one.nodeid for kind in ("failed", "error") for one in terminalreporter.getreports(kind)}
    for one in terminalreporter.getreports("passed"):
        if one.when == "call" and one.nodeid not in broken:
            terminalreporter.write_line(f"flaky: {one.nodeid}")
