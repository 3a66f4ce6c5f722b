"""Names the tests that pass when CI tries failed tests once more (`.ci/run`), above pytest's closing line."""

from __future__ import annotations

import os

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print `flaky: NAME` for each test that passes in the second attempt, which LABKIT_SECOND_ATTEMPT marks."""
    if not os.environ.get("LABKIT_SECOND_ATTEMPT"):
        return
    broken = {one.nodeid for kind in ("failed", "error") for one in terminalreporter.getreports(kind)}
    for one in terminalreporter.getreports("passed"):
        if one.when == "call" and one.nodeid not in broken:
            terminalreporter.write_line(f"flaky: {one.nodeid}")
