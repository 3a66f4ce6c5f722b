"""Every label of a topology's figure stays in its box in a real browser with its own fonts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import ARGUMENTS
from example_states import bridged, overlay, tunnelled

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


@pytest.mark.parametrize(
    "state",
    [tunnelled(), bridged(4), bridged(128), overlay()],
    ids=["vxlan", "4 pairs", "128 pairs", "overlay"],
)
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
