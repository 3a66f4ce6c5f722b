"""Every label of a topology's figure stays in its box in a real browser with its own fonts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import ARGUMENTS
from example_states import bridged, overlay, tunnelled
from sandbox import also

from labkit.analysis import theme
from labkit.analysis.drawing import figure

pytestmark = pytest.mark.needs("chromium")

# For each label: the smallest box around its centre, and by how many pixels the label exceeds that box.
STICKING_OUT = """() => {
    const rects = selector => [...document.querySelectorAll(selector)].map(it => it.getBoundingClientRect());
    const boxes = rects('.shapelayer path').sort((one, other) => one.width * one.height - other.width * other.height);
    const edge = document.querySelector('.main-svg').getBoundingClientRect();
    return [...document.querySelectorAll('.main-svg text')].map(text => {
        const it = text.getBoundingClientRect(), x = (it.left + it.right) / 2, y = (it.top + it.bottom) / 2;
        const around = text.closest('.textpoint') || text.matches('.textpoint text')
            ? boxes.find(box => box.left < x && x < box.right && box.top < y && y < box.bottom) : edge;
        return [text.textContent, around ? Math.max(
            around.left - it.left, it.right - around.right, around.top - it.top, it.bottom - around.bottom) : 999];
    });
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        yield started
        started.close()


STATES = {"128 pairs": bridged(128), "overlay": overlay(), "4 pairs": bridged(4), "vxlan": tunnelled()}


@pytest.mark.parametrize("name", ["128 pairs", "overlay", *also("exhaustive", "4 pairs", "vxlan")])
def test_labels_fit_their_boxes(name: str, browser: Any, tmp_path: Path) -> None:
    drawn = figure.topology(STATES[name])
    drawn.write_html(tmp_path / "page.html", include_plotlyjs=True, include_mathjax=False)
    page = browser.new_page(viewport={"width": 1000, "height": 1000})
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector(".main-svg .textpoint text")
    result = dict(page.evaluate(STICKING_OUT))
    words = [text for trace in drawn.data if trace.mode == "text" for text in trace.text]
    assert len(words) > 4
    assert {
        word.replace("<b>", "").replace("</b>", "").replace("<br>", "") for word in words
    } <= result.keys()
    assert {text: by for text, by in result.items() if by > 0.5} == {}


COLOURS = """() => [...document.querySelectorAll('.main-svg text')].filter(it => it.checkVisibility() && it.textContent)
    .map(it => getComputedStyle(it).fill.match(/\\d+/g).slice(0, 3).map(Number))"""
PAGES = {
    "jupyterlab": ('data-jp-theme-light="true"', 255),
    "jupyterlab-dark": ('data-jp-theme-light="false"', 0x11),
    "vscode-dark": ('class="vscode-dark"', 0x1E),
    "a dark page on paper": ("", 255),
}


def luminance(parts: list[float]) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    "place", ["jupyterlab-dark", "a dark page on paper", *also("exhaustive", "jupyterlab", "vscode-dark")]
)
def test_text_is_readable_on_the_page(place: str, browser: Any, tmp_path: Path) -> None:
    attribute, grey = PAGES[place]
    drawn = figure.topology(bridged(1)).to_html(full_html=False, include_mathjax=False)
    whole = f"<body {attribute}>{theme.STYLE}{drawn}" if attribute else figure.page(bridged(1))
    (tmp_path / "page.html").write_text(whole)
    page = browser.new_page(color_scheme="dark")
    page.emulate_media(media=None if attribute else "print")
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector(".main-svg .textpoint text")
    found = page.evaluate(COLOURS)
    assert len(found) > 4
    for colour in found:
        both = sorted([luminance([part / 255 for part in colour]), luminance([grey / 255] * 3)])
        assert (both[1] + 0.05) / (both[0] + 0.05) >= 4.5, colour
