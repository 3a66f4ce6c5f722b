"""Every label of a topology's figure stays in its box in a real browser with its own fonts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import ARGUMENTS
from example_states import bridged, overlay

from labkit.analysis import theme
from labkit.analysis.drawing import figure
from labkit.common.topology_state import State

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


@pytest.mark.parametrize("state", [bridged(128), overlay()], ids=["128 pairs", "overlay"])
def test_labels_fit_their_boxes(state: State, browser: Any, tmp_path: Path) -> None:
    drawn = figure.topology(state)
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


def luminance(parts: list[float]) -> float:
    """Return the relative luminance of a colour (WCAG 2.2)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


# JupyterLab's dark theme, and a dark page on paper; test_theme.py has the pages of others.
@pytest.mark.parametrize(("attribute", "grey"), [('data-jp-theme-light="false"', 0x11), ("", 255)])
def test_text_is_readable_on_the_page(attribute: str, grey: int, browser: Any, tmp_path: Path) -> None:
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
