"""The report in a real browser draws its figures, folds its code away, and makes no network request."""

from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
import synthetic_report
from browser import MERGED, OUTSIDE, chromium, resized, watched

from labkit.analysis import report

pytestmark = pytest.mark.needs("chromium")
VISIBLE = "it => it.checkVisibility()"
# how much wider than its place a table of many long cells is
TABLE = """() => {
    const place = document.createElement("div");
    place.className = "table";
    place.innerHTML = `<table><tr>${"<td>a queueing discipline, dropping packets</td>".repeat(6)}</tr></table>`;
    document.querySelector("main").append(place);
    const more = place.scrollWidth - place.clientWidth;
    place.remove();
    return more;
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    nbformat.write(synthetic_report.notebook(synthetic_report.rows()), folder / "notebook.ipynb")
    return report.html(folder / "notebook.ipynb", folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as context:
        yield context


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """Open the report. At the end, check that it made no network request and that its scripts had no error."""
    with watched(browser, address) as page:
        page.wait_for_function(
            "document.querySelectorAll('.figure .main-svg .legend, .figure .main-svg .plot').length > 0"
        )
        yield page


def test_every_figure_is_drawn(page: Any) -> None:
    places = page.query_selector_all(".figure")
    assert len(places) == len(synthetic_report.FIGURES)
    for place in places:
        size = place.query_selector(".main-svg").bounding_box()
        assert size["width"] > 600
        assert size["height"] > 200
        points = place.query_selector_all(".scatterlayer .points path.point")
        assert len(points) >= 3
        box = points[0].bounding_box()
        assert size["y"] <= box["y"] <= size["y"] + size["height"]
        assert place.query_selector(".gtitle").text_content()


def test_code_unfolds_and_hover_shows_units(page: Any) -> None:
    codes = page.query_selector_all("details.code")
    assert codes
    for code in codes:
        assert not code.query_selector("pre").evaluate(VISIBLE)
    codes[0].query_selector("summary").click()
    assert codes[0].query_selector("pre").evaluate(VISIBLE)
    # The drag layer covers the points, so move the pointer to the position of one.
    point = page.query_selector(".figure .scatterlayer .errorbars ~ .points path.point")
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".figure .hoverlayer .hovertext")
    assert "Gbit/s" in page.query_selector(".hoverlayer .hovertext").text_content()


def test_texts_can_be_read_on_every_page(page: Any) -> None:
    """The edge of a figure cuts off no title, note or label, and on a narrow page no two of them merge."""
    resized(page, 1280, "light")
    assert page.evaluate(OUTSIDE) == []
    resized(page, 700, "dark")
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate(MERGED) == []
    colours = "['body', '.gtitle'].map(it => getComputedStyle(document.querySelector(it)))"
    background, words = page.evaluate(
        f"{colours}.map((style, at) => at ? style.fill : style.backgroundColor)"
    )

    def brightness(colour: str) -> float:
        return sum(float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3

    assert brightness(background) < 60
    assert brightness(words) > 180
    page.set_viewport_size({"width": 1400, "height": 800})
    assert page.evaluate(TABLE) == 0, "words of a table break before the page scrolls it"
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400, "it scrolls the figures"


def test_paper_holds_every_figure(page: Any) -> None:
    """On A4 nothing is wider than the page, which would make all of it smaller, and no page's end cuts a panel."""
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1047})
    page.evaluate("document.querySelectorAll('.figure')[2].style.height = '2400px'")
    count, height = page.evaluate("[document.querySelectorAll('.figure').length, document.body.scrollHeight]")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.scrollWidth") <= 718
    shown = [one for one in page.query_selector_all(".scroll > *") if one.evaluate(VISIBLE)]
    assert len(shown) > count  # one is in pieces
    heights = [one.bounding_box()["height"] for one in shown]
    assert all(100 < one <= 1000 for one in heights), heights
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("[document.querySelectorAll('.figure').length, document.body.scrollHeight]") == [
        count,
        height,
    ]
