"""Run Debian's chromium, headless and without its own network requests."""

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
def watched(browser: Any, address: str) -> Iterator[Any]:
    """Open a page. At the end, check that it made no network request and that its scripts had no error."""
    page = browser.new_page()
    parameters: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: parameters.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.goto(address)
    yield page
    page.close()
    assert not wrong
    assert parameters
    assert [url for url in parameters if not url.startswith(("file:", "data:", "blob:"))] == []


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """Start a browser; `profile` is its own folder."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(profile), executable_path="/usr/bin/chromium", headless=True, args=ARGUMENTS
        )
        try:
            yield context
        finally:
            context.close()
