"""Debian's chromium, headless, without anything that asks the network of its own accord."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser; `profile` is a folder of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(profile), executable_path="/usr/bin/chromium", headless=True, args=ARGUMENTS
        )
        try:
            yield context
        finally:
            context.close()
