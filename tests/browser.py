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


# Texts of a figure that its edge cuts off, and pairs of texts that lie on each other.
OUTSIDE = """() => [...document.querySelectorAll('.figure')].flatMap(place => {
    const edge = place.querySelector('.main-svg').getBoundingClientRect();
    return [...place.querySelectorAll('.main-svg text')].filter(it => {
        const box = it.getBoundingClientRect();
        return box.width && (box.left < edge.left - 1 || box.right > edge.right + 1
            || box.top < edge.top - 1 || box.bottom > edge.bottom + 1);
    }).map(it => it.textContent);
})"""
MERGED = """() => [...document.querySelectorAll('.figure')].flatMap(place => {
    const texts = [...place.querySelectorAll('.main-svg text')].filter(it => it.checkVisibility())
        .map(it => [it.textContent, it.getBoundingClientRect()]).filter(([_, box]) => box.width);
    const title = place.querySelector('.gtitle')?.textContent;
    return texts.flatMap(([one, a], at) => texts.slice(at + 1).filter(([_, b]) =>
        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
        && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4
    ).map(([other, _]) => `${title}: ${one} | ${other}`));
})"""


def resized(page: Any, width: int, scheme: str) -> None:
    """Give the page a width in pixels and a colour scheme, and wait until its figures have that width.

    A figure is 680 px wide at least.
    """
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    most = max(680, min(900, width)) + 40
    page.wait_for_function(
        "most => [...document.querySelectorAll('.figure .main-svg')]"
        ".every(it => it.getBoundingClientRect().width <= most)",
        arg=most,
    )


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
    page.goto(address, timeout=120_000)  # a page of many figures, on a busy machine
    yield page
    page.close()
    assert not wrong, wrong
    assert parameters
    assert [url for url in parameters if not url.startswith(("file:", "data:", "blob:"))] == []


@contextmanager
def chromium(profile: Path, **options: Any) -> Iterator[Any]:
    """Start a browser; `profile` is its own folder. `options`: playwright's, for example `color_scheme`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(profile), executable_path="/usr/bin/chromium", headless=True, args=ARGUMENTS, **options
        )
        try:
            yield context
        finally:
            context.close()
